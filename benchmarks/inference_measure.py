"""Timing and tables of benchmarks/inference.py. Every row is printed as soon as it is measured."""

import gc
import platform
import statistics
import sys
import time
import traceback
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import torch

T = TypeVar("T")
Call = Callable[[list[Any]], Any]


@dataclass(frozen=True)
class Run:
    """What was asked for on the command line."""

    data: Path
    out: Path
    """A folder for models that are made on the way."""
    texts: list[str]
    device: str
    dtypes: tuple[str, ...]
    rounds: int
    scale: float
    blimp_limit: int

    @property
    def minilm(self) -> Path:
        return self.data / "minilm"

    def size(self, count: int) -> int:
        """A number of inputs, scaled, and enough of them to run at all."""
        return max(8, round(count * self.scale))


@dataclass(frozen=True)
class Candidate:
    """A way to do the work: `make` opens the model and returns a call that takes the inputs."""

    name: str
    make: Callable[[], Call]


@dataclass(frozen=True)
class Timed:
    """A candidate's median seconds and what it returned."""

    name: str
    seconds: float
    result: Any


# ---------------------------------------------------------------------- tables


def line(*cells: str) -> None:
    print(f"| {' | '.join(cells)} |", flush=True)


def table(title: str, *columns: str) -> None:
    print(f"\n{title}\n", flush=True)
    line(*columns)
    line(*["---"] * len(columns))


def attempt(name: str, do: Callable[[], T]) -> T | None:
    """The result, or None after a row that tells the error: the rest of the run goes on."""
    try:
        return do()
    except Exception as error:
        traceback.print_exc(file=sys.stderr)
        words = (str(error).strip().splitlines() or [""])[0]
        line(name, f"failed: {type(error).__name__}: {words[:200]}")
        return None
    finally:
        release()


def release() -> None:
    """Give memory back before the next candidate is opened."""
    gc.collect()
    if torch.cuda.is_available():
        torch.cuda.empty_cache()


def factor(theirs: Timed | None, ours: Timed) -> str:
    """How many times as fast ours is."""
    return f"{theirs.seconds / ours.seconds:.2f} ×" if theirs else "–"


def machine(device: str) -> str:
    import sentence_transformers
    import transformers

    import bothways

    where = torch.cuda.get_device_name() if device == "cuda" else f"{torch.get_num_threads()} CPU threads"
    return (
        f"{platform.machine()}, {where} · Python {platform.python_version()}, torch {torch.__version__}, transformers "
        f"{transformers.__version__}, sentence-transformers {sentence_transformers.__version__}, bothways "
        f"{bothways.__version__}"
    )


# ---------------------------------------------------------------------- times


def wait() -> None:
    if torch.cuda.is_available() and torch.cuda.is_initialized():
        torch.cuda.synchronize()


def timed(call: Callable[[], T]) -> tuple[float, T]:
    wait()
    begin = time.perf_counter()
    result = call()
    wait()
    return time.perf_counter() - begin, result


def median(call: Callable[[], T], rounds: int) -> tuple[float, T]:
    """Median seconds, and the last result. The caller warms up."""
    found = [timed(call) for _ in range(rounds)]
    return statistics.median(seconds for seconds, _ in found), found[-1][1]


def interleaved(calls: Mapping[str, Callable[[], Any]], rounds: int) -> dict[str, Timed]:
    """All calls in turn, after a round that does not count: on a shared CPU only ratios mean something."""
    times: dict[str, list[float]] = {name: [] for name in calls}
    results: dict[str, Any] = {}
    for number in range(rounds + 1):
        for name, call in calls.items():
            seconds, results[name] = timed(call)
            if number:
                times[name].append(seconds)
    return {name: Timed(name, statistics.median(some), results[name]) for name, some in times.items()}


def measure(candidate: Candidate, inputs: list[Any], rounds: int) -> Timed:
    """After a warm-up with all inputs."""
    call = candidate.make()
    call(inputs)
    return Timed(candidate.name, *median(lambda: call(inputs), rounds))


def sweep(
    candidates: Iterable[Candidate],
    sample: list[Any],
    inputs: list[Any],
    rounds: int,
    show: Callable[[str, float, int], None],
    keep: Collection[str] = (),
) -> dict[str, Timed]:
    """The best of many candidates, and those in `keep`, measured well, the best first.

    Each is timed once on a sample, warm. `show` prints name, seconds and the number of inputs. A candidate that fails
    is told and left out.
    """
    listed = list(candidates)
    seconds: dict[str, float] = {}
    for candidate in listed:
        if (found := attempt(candidate.name, partial(_once, candidate, sample))) is not None:
            seconds[candidate.name] = found
            show(candidate.name, found, len(sample))
    best = min(seconds, key=seconds.__getitem__, default="")
    chosen = [c for c in listed if c.name in seconds and (c.name == best or c.name in keep)]
    again: dict[str, Timed] = {}
    for candidate in sorted(chosen, key=lambda c: seconds[c.name]):
        if (result := attempt(candidate.name, partial(measure, candidate, inputs, rounds))) is not None:
            again[candidate.name] = result
            show(f"{candidate.name}, median of {rounds}", result.seconds, len(inputs))
    return dict(sorted(again.items(), key=lambda item: item[1].seconds))


def _once(candidate: Candidate, sample: list[Any]) -> float:
    call = candidate.make()
    call(sample[: max(1, len(sample) // 8)])
    return timed(partial(call, sample))[0]


# ---------------------------------------------------------------------- differences


def cosines(ours: Any, theirs: Any) -> tuple[float, float]:
    """The lowest and the mean cosine of rows."""
    a, b = (np.asarray(value, np.float64) for value in (ours, theirs))
    each = (a * b).sum(1) / np.linalg.norm(a, axis=1) / np.linalg.norm(b, axis=1)
    return float(each.min()), float(each.mean())


def share_equal(ours: Sequence[Any], theirs: Sequence[Any]) -> float:
    return sum(bool(a == b) for a, b in zip(ours, theirs, strict=True)) / len(ours)
