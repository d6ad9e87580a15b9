"""A run from its beginning or its last checkpoint to its end, with everyone who listens."""

import json
import math
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from bothways import atomic
from bothways.errors import BothwaysError
from bothways.train.curve import draw_curve, entries
from bothways.train.fit import fit
from bothways.train.health import HealthMonitor
from bothways.train.optim import OptimSettings, rate
from bothways.train.protocol import Event, Finished, Started, Trainable, phase_at
from bothways.train.ranks import Ranks
from bothways.train.report import Log, TensorBoard
from bothways.train.settings import RunSettings
from bothways.train.state import Checkpoints, read_state

_LOCK = ".lock"
FINAL = -1
"""In place of a step: the end, wherever that is."""
Listener = Callable[[Event], None]
Say = Callable[[str], None]


@dataclass(frozen=True)
class Listeners:
    """Who hears of a run beside its own log."""

    events: Sequence[Listener] = ()
    say: Say = lambda words: None
    """Gets sentences for a person, such as why training goes badly."""


def run_session(
    work: Trainable,
    run: RunSettings,
    optim: OptimSettings,
    out: Path,
    ranks: Ranks,
    listeners: Listeners,
    diagnosis: HealthMonitor | None = None,
    plateau: float | None = None,
) -> Finished:
    """Train, writing metrics.jsonl and at the end curve.png, in which `plateau` is a line to compare with."""
    ended = Finished(0, 0.0, complete=False)
    with _held(out, ranks), ExitStack() as stack:
        hear = list(listeners.events) if ranks.is_first else []
        for event in fit(work, run, optim, out, ranks):
            if isinstance(event, Started) and ranks.is_first:
                hear.append(Log(out / "metrics.jsonl", event.step))
                if run.tensorboard:
                    hear.append(TensorBoard(out / "tensorboard"))
                for listener in hear:
                    if hasattr(listener, "close"):
                        stack.callback(listener.close)
            for listener in hear:
                listener(event)
            for words in diagnosis(event) if diagnosis else ():
                if ranks.is_first:
                    listeners.say(words)
            if isinstance(event, Finished):
                ended = event
    ranks.wait()
    if ranks.is_first and not draw_curve(out / "metrics.jsonl", out / "curve.png", plateau):
        listeners.say("no picture of the curve was drawn, for lack of matplotlib: pip install 'bothways[plots]'")
    return ended


def first_and_last_scores(out: Path) -> tuple[dict[str, float], dict[str, float]]:
    """The evaluations before the first step and after the last, whichever session made them."""
    found = dict(_evaluations(out))
    return found.get(0, {}), found.get(FINAL, {})


def scores_at(out: Path, step: int | None) -> dict[str, float]:
    """The latest evaluation at this step."""
    found = [scores for place, scores in _evaluations(out) if place == step]
    return found[-1] if found else {}


def _evaluations(out: Path) -> Iterator[tuple[int, dict[str, float]]]:
    """The scores of each evaluation by step; the final ones at FINAL too. What JSON could not write is nan again."""
    for _, entry in entries(out / "metrics.jsonl"):
        if "valid" in entry:
            scores = {name: math.nan if value is None else value for name, value in entry["valid"].items()}
            yield entry["step"], scores
            if entry.get("final"):
                yield FINAL, scores


# What may differ when a run goes on: where and how it computes, and what it tells; not what it learns.
_FREE = ("device", "precision", "compile", "gradient_checkpointing", "deterministic", "micro_tokens", "parallel", "evaluate_every",
         "evaluate_first", "save_every", "save_minutes", "keep", "tensorboard")  # fmt: skip


# And this, while it makes no difference yet.
_LENGTH = ("steps", "minutes")


@contextmanager
def _held(out: Path, ranks: Ranks) -> Iterator[None]:
    """Nobody else trains in this folder meanwhile."""
    if not ranks.is_first or os.name != "posix":
        yield
        return
    import fcntl  # not everywhere

    with (out / _LOCK).open("w") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            raise BothwaysError(f"another process is training in {out}: take another --out, or wait for it") from None
        yield


def claim(
    out: Path,
    recipe: Any,
    read: Callable[[Path], Any],
    write: Callable[[Any], str],
    data: Mapping[str, Any],
    shares: Sequence[float] = (1.0,),
) -> None:
    """Write the recipe, and what identifies its data, into the run's folder.

    A folder in which another recipe ran, or the same on other data, is refused; and one that is no run's. A run may be
    made longer or shorter as long as its learning rate and its phase (of these shares) are now what they would be.
    """
    path = out / "recipe.toml"
    others = [file.name for file in out.iterdir() if file.name != _LOCK] if out.exists() else []
    if others and not path.exists():
        raise BothwaysError(f"{out} already holds other files, such as {min(others)}: name a new or empty folder")
    if path.exists():
        earlier = read(path)
        free = (*_FREE, *_LENGTH) if recipe.run.epochs == earlier.run.epochs else _FREE
        same = replace(recipe.run, **{name: getattr(earlier.run, name) for name in free})
        if replace(recipe, run=same) != earlier:
            raise BothwaysError(
                f"{out} holds a run of another recipe (see {path}): take another --out, or go on with that recipe"
            )
        _require_no_seam(out, recipe, earlier.run, shares)
    told, known = json.dumps(data) + "\n", out / "data.json"
    if known.exists() and known.read_text(encoding="utf-8") != told:
        raise BothwaysError(f"{out} holds a run on other data: take another --out")
    for file, content in ((path, write(recipe)), (known, told)):
        with atomic.new_file(file) as fresh:
            fresh.write_text(content, encoding="utf-8")


def _require_no_seam(out: Path, recipe: Any, earlier: RunSettings, shares: Sequence[float]) -> None:
    """If the run has another length now, nothing may jump where it goes on."""
    lengths = {name: getattr(recipe.run, name) for name in _LENGTH}
    latest = Checkpoints(out, recipe.run.keep).latest()
    if latest is None or lengths == {name: getattr(earlier, name) for name in _LENGTH}:
        return
    state = read_state(latest)
    was, would = (run.done(state.step, state.elapsed) for run in (earlier, recipe.run))
    rates = [rate(recipe.optim, state.step, done) for done in (was, would)]
    said = " and ".join(f"run.{name} = {value:g}" for name, value in lengths.items() if value)
    if state.complete:
        trouble = "its run is over"
    elif would >= 1:
        trouble = "that is behind it already"
    elif not math.isclose(*rates, abs_tol=1e-6):
        trouble = f"the learning rate would jump from {rates[0]:.3g} to {rates[1]:.3g} of its peak"
    elif phase_at(shares, was) != phase_at(shares, would):
        trouble = "it would jump to another phase"
    else:
        return
    raise BothwaysError(
        f"{out} cannot go on with {said}: at step {state.step:,}, {trouble}; take the length it had, or another --out"
    )
