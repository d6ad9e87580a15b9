"""One masked-word training step of every family, ours against transformers', in one run.

Forward, loss at 15 % of the tokens, backward, clipping and fused AdamW; bf16 on a GPU; sizes, vocabulary and dropout as
the family's base model was published; random weights and tokens, since speed does not depend on them. Ours computes as
`bothways.train.fit` does (bf16 weights with fp32 masters, logits where asked), transformers' XForMaskedLM under
autocast (DeBERTa v1, which fails there, in plain bf16), with SDPA if the family has it. Both eager and compiled.
Medians after warming up; ktok/s counts real tokens, never padding.

Each family has a process of its own. Its eager steps are timed first, then the compiled ones until its share of
--seconds is over: what does not fit is left out and said so. Compiling takes most of the time, and goes with the number
of layers: with --side-by-side N, so many families build, compile and warm up at once; when all of them are ready, each
is timed alone. With --batches 2 or more, a side whose shapes follow the lengths compiles for each of them, as it would
at every step of a real run.

    python benchmarks/families.py --layers 4                          # all families, four layers each
    python benchmarks/families.py --families deberta,deberta-v2 --json FILE
    python benchmarks/families.py --families modernbert --shapes long
    python benchmarks/families.py --device cpu                        # tiny shapes, to see that it runs
"""

import argparse
import contextlib
import gc
import itertools
import json
import logging
import multiprocessing
import os
import platform
import statistics
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, field
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any, Literal

os.environ["HF_HUB_OFFLINE"] = "1"
os.environ.setdefault("TRANSFORMERS_VERBOSITY", "error")

import torch
import torch._dynamo.utils
import transformers
from torch import Tensor
from torch.nn import functional as F

from bothways.model.batch import Batch
from bothways.model.config import ModelConfig
from bothways.model.families import FAMILIES
from bothways.model.model import Model
from bothways.train.fp32_master import MasterWeights

WARM_UP = 3
LOWEST = 5  # the ids below it may mean padding

Side = Literal["ours", "theirs"]

# ---------------------------------------------------------------------- the families

_DEBERTA = {
    "relative_attention": True,
    "position_biased_input": False,
    "pos_att_type": ["c2p", "p2c"],
    "max_relative_positions": -1,
    "type_vocab_size": 0,
    "layer_norm_eps": 1e-7,
    "max_position_embeddings": 512,
}
_BASE = {"hidden_size": 768, "num_hidden_layers": 12, "num_attention_heads": 12, "intermediate_size": 3_072}
_TINY = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 64}
_TINY_TOO = {"vocab_size": 300, "pad_token_id": 0}
_NAMES_OF_DISTILBERT = dict(zip(_BASE, ("dim", "n_layers", "n_heads", "hidden_dim"), strict=True))


@dataclass(frozen=True)
class Published:
    """A family's base model: how transformers' classes begin, and what its config.json has beside 12 × 768."""

    classes: str
    values: dict[str, Any]
    tiny: dict[str, Any] = field(default_factory=dict)
    has_autocast: bool = True
    """False: transformers' class fails under autocast, so that its weights are bf16 without masters."""


_ROBERTA = {"vocab_size": 50_265, "max_position_embeddings": 514, "type_vocab_size": 1, "layer_norm_eps": 1e-5}
BASES = {
    "bert": Published("Bert", {}),
    "roberta": Published("Roberta", _ROBERTA, {"pad_token_id": 1}),
    "albert": Published(  # v2
        "Albert",
        {"embedding_size": 128, "hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0},
        {"embedding_size": 16},
    ),
    "distilbert": Published("DistilBert", {"num_hidden_layers": 6}),
    "electra": Published("Electra", {"embedding_size": 768}, {"embedding_size": 32}),
    "mpnet": Published(
        "MPNet",
        {"vocab_size": 30_527, "max_position_embeddings": 514, "layer_norm_eps": 1e-5},
        {"pad_token_id": 1},
    ),
    "deberta": Published("Deberta", {**_DEBERTA, "vocab_size": 50_265}, has_autocast=False),
    "deberta-v2": Published(  # v3
        "DebertaV2",
        {
            **_DEBERTA,
            "vocab_size": 128_100,
            "position_buckets": 256,
            "share_att_key": True,
            "norm_rel_ebd": "layer_norm",
        },
        {"position_buckets": 8},
    ),
    "modernbert": Published(
        "ModernBert", {"intermediate_size": 1_152, "num_hidden_layers": 22}, {"local_attention": 8}
    ),
}


def make_config(family: str, layers: int, vocabulary: int, is_tiny: bool) -> Any:
    """Transformers' config of a base model, or of a tiny one of its kind; 0: as many as were published."""
    base = BASES[family]
    values = {**_BASE, **base.values}
    if is_tiny:
        values |= {**_TINY, **_TINY_TOO, **base.tiny}
    if layers:
        values["num_hidden_layers"] = layers
    if vocabulary:
        values["vocab_size"] = vocabulary
    if family == "distilbert":
        values = {_NAMES_OF_DISTILBERT.get(name, name): value for name, value in values.items()}
    return getattr(transformers, f"{base.classes}Config")(**values)


# ---------------------------------------------------------------------- the batches


@dataclass(frozen=True)
class Job:
    """Some sequences, and which of their tokens are asked for."""

    ids: list[list[int]]
    asked: list[list[int]]

    @classmethod
    def of(cls, lengths: Sequence[int], vocabulary: int, seed: int) -> "Job":
        """The lengths in an order of the seed's: as many tokens in all, at other places."""
        draws = torch.Generator().manual_seed(seed)
        lengths = [lengths[i] for i in torch.randperm(len(lengths), generator=draws).tolist()]
        ids = [torch.randint(LOWEST, vocabulary // 2, (n,), generator=draws).tolist() for n in lengths]
        asked = [torch.randperm(n, generator=draws)[: max(1, round(0.15 * n))].tolist() for n in lengths]
        return cls(ids, asked)

    @property
    def longest(self) -> int:
        return max(map(len, self.ids))


def lengths_of(shape: str, is_tiny: bool) -> list[int]:
    count, longest = (4, 24) if is_tiny else (8, 4_096) if shape == "long" else (64, 512)
    if shape != "ragged":
        return [longest] * count
    draws = torch.Generator().manual_seed(1)  # as documents have them: many short, some that fill the window
    raw = torch.exp(torch.randn(count, generator=draws) * 0.9 + torch.log(torch.tensor(longest / 3.0)))
    return [int(n) for n in raw.clamp(4, longest)]


# ---------------------------------------------------------------------- the two sides


def our_step(family: str, config: Any, jobs: Sequence[Job], device: str, compiled: bool) -> Callable[[], None]:
    raw = config.to_dict()
    encoder = FAMILIES[family].read_config(raw)
    model = Model.new(ModelConfig(encoder, ("masked",), family=family, hf_config=raw)).to(device).train()
    weights = MasterWeights(model, torch.bfloat16 if device == "cuda" else None)
    batches = itertools.cycle([our_batch(job, device) for job in jobs])

    def loss(batch: Batch, at: Tensor, words: Tensor) -> Tensor:
        return F.cross_entropy(model.masked(model.encoder(batch)[at]).float(), words)

    forward = torch.compile(loss, dynamic=False) if compiled else loss
    parameters = list(weights.trained.values())
    optimizer = torch.optim.AdamW(parameters, lr=1e-4, weight_decay=0.01, fused=True)

    def step() -> None:
        forward(*next(batches)).backward()
        weights.gather()
        torch.nn.utils.clip_grad_norm_(parameters, 1.0, foreach=True)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        weights.publish()

    return step


def our_batch(job: Job, device: str) -> tuple[Batch, Tensor, Tensor]:
    """The tokens, where they are asked for, and what stands there."""
    batch = Batch.pack(job.ids)
    starts = batch.first.tolist()
    at = torch.tensor([start + a for start, asked in zip(starts, job.asked, strict=True) for a in asked])
    return batch.to(device), at.to(device), batch.ids[at].to(device)


def their_step(family: str, config: Any, jobs: Sequence[Job], device: str, compiled: bool) -> Callable[[], None]:
    kind = getattr(transformers, f"{BASES[family].classes}ForMaskedLM")
    config._attn_implementation = "sdpa" if kind._supports_sdpa else "eager"
    with torch.device(device):
        model = kind(config).train()
    is_mixed = device == "cuda" and BASES[family].has_autocast
    if device == "cuda" and not is_mixed:
        model = model.bfloat16()
    batches = itertools.cycle([their_batch(job, int(config.pad_token_id or 0), device) for job in jobs])
    call = torch.compile(model, dynamic=False) if compiled else model
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, weight_decay=0.01, fused=True)

    def step() -> None:
        with torch.autocast(device, torch.bfloat16, enabled=is_mixed):
            loss = call(**next(batches)).loss
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0, foreach=True)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)

    return step


def their_batch(job: Job, pad: int, device: str) -> dict[str, Tensor]:
    gaps = [job.longest - len(row) for row in job.ids]
    grid = torch.tensor([row + [pad] * gap for row, gap in zip(job.ids, gaps, strict=True)])
    labels = torch.full_like(grid, -100)
    for row, asked in enumerate(job.asked):
        labels[row, asked] = grid[row, asked]
    arguments = {"input_ids": grid, "labels": labels}
    if any(gaps):  # without a mask, their attention takes its fastest path
        real = [[1] * len(row) + [0] * gap for row, gap in zip(job.ids, gaps, strict=True)]
        arguments["attention_mask"] = torch.tensor(real)
    return {name: value.to(device) for name, value in arguments.items()}


# ---------------------------------------------------------------------- measuring


@dataclass(frozen=True)
class Candidate:
    family: str
    shape: str
    side: Side
    compiled: bool


@dataclass(frozen=True)
class Found:
    """What came of a candidate: figures, or why there are none."""

    candidate: Candidate
    ktoks: float = 0.0
    milliseconds: float = 0.0
    gib: float = 0.0
    graphs: int = 0
    """That the compiler made: one, if it saw the whole step, and if the next batch needed no other."""
    took: float = 0.0
    """Seconds in all, building and compiling included."""
    failure: str = ""

    def __str__(self) -> str:
        case = self.candidate
        title = f"  {case.family:10} {case.shape:6} {case.side:6} {'compiled' if case.compiled else 'eager':8}"
        if self.failure:
            return f"{title} {self.failure}"
        graphs = f", {self.graphs} graphs" if self.graphs > 1 else ""
        speed = f"{self.ktoks:8.1f} ktok/s {self.milliseconds:8.1f} ms"
        return f"{title} {speed} {self.gib:6.1f} GiB   ({self.took:.0f} s{graphs})"


@dataclass(frozen=True)
class Settings:
    """What the command line says of every candidate."""

    device: str
    layers: int = 0
    vocabulary: int = 0
    rounds: int = 8
    batches: int = 1


def prepare(case: Candidate, settings: Settings) -> tuple[Callable[[], None], int]:
    """One candidate, built and warmed up, and how many tokens a step of it has."""
    device, is_tiny = settings.device, settings.device == "cpu"
    torch.compiler.reset()
    torch._dynamo.utils.counters.clear()
    gc.collect()
    config = make_config(case.family, settings.layers, settings.vocabulary, is_tiny)
    lengths = lengths_of(case.shape, is_tiny)
    jobs = [Job.of(lengths, config.vocab_size, seed) for seed in range(settings.batches)]
    make = our_step if case.side == "ours" else their_step
    step = make(case.family, config, jobs, device, case.compiled)
    for _ in range(WARM_UP):
        step()
    if device == "cuda":  # while others are timed, it holds no more than its weights
        torch.cuda.synchronize()
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats()
    return step, sum(lengths)


def time_steps(step: Callable[[], None], settings: Settings) -> float:
    """The median of some steps, in seconds."""
    times = []
    for _ in range(1 + settings.rounds):  # the first one fetches memory
        start = time.perf_counter()
        step()
        if settings.device == "cuda":
            torch.cuda.synchronize()
        times.append(time.perf_counter() - start)
    return statistics.median(times[1:])


def attempt(case: Candidate, settings: Settings, wait: Callable[[], object]) -> Found:
    """Make one candidate ready, wait, time it. What goes wrong is told, not raised: it does not end the run."""
    begin = time.monotonic()
    try:
        step, tokens = prepare(case, settings)
        took = time.monotonic() - begin
        wait()
        seconds = time_steps(step, settings)
    except Exception as error:
        first = (str(error).strip() or "no message").splitlines()[0]
        failure = f"failed: {type(error).__name__}: {first[:100]}"
        return Found(case, took=time.monotonic() - begin, failure=failure)
    gib = torch.cuda.max_memory_allocated() / 2**30 if settings.device == "cuda" else 0.0
    graphs = torch._dynamo.utils.counters["stats"]["unique_graphs"]
    return Found(case, tokens / seconds / 1e3, seconds * 1e3, gib, graphs, took)


def work_off(settings: Settings, pipe: Connection) -> None:
    """In a process of its own: make ready what is asked for, say so, and time it when told to."""
    torch.set_float32_matmul_precision("high")
    logging.getLogger("torch").setLevel(logging.ERROR)  # the compiler writes pages about DeBERTa

    def wait() -> None:
        pipe.send(None)
        pipe.recv()

    while (case := pipe.recv()) is not None:
        found = attempt(case, settings, wait)
        torch.compiler.reset()
        gc.collect()
        if settings.device == "cuda":
            torch.cuda.empty_cache()  # for the others
        pipe.send(found)


def measure(families: Sequence[Sequence[Candidate]], settings: Settings, until: float) -> Iterator[Found]:
    """Some families side by side. A fork costs no imports, and its memory and whatever it compiled go with it. CUDA is
    not touched before."""
    context = multiprocessing.get_context("fork")
    pipes = []
    for _ in families:
        here, there = context.Pipe()
        context.Process(target=work_off, args=(settings, there)).start()
        there.close()
        pipes.append(here)
    for cases in itertools.zip_longest(*families):
        asked = [(pipe, case) for pipe, case in zip(pipes, cases, strict=True) if case is not None]
        if any(case.compiled for _, case in asked) and time.monotonic() > until:
            yield from (Found(case, failure="left out: the time was over") for _, case in asked)
            continue
        for pipe, case in asked:
            _tell(pipe, case)
        answers = [(pipe, case, _hear(pipe, case)) for pipe, case in asked]
        crowded = []
        for pipe, case, answer in answers:
            found = _timed(pipe, case, answer)
            if len(asked) > 1 and "OutOfMemory" in found.failure:
                crowded.append((pipe, case))
            else:
                yield found
        for pipe, case in crowded:  # once more, alone
            _tell(pipe, case)
            yield _timed(pipe, case, _hear(pipe, case))
    for pipe in pipes:
        _tell(pipe, None)


def _timed(pipe: Connection, case: Candidate, answer: Found | None) -> Found:
    """What comes of a candidate that is ready, if that was its answer."""
    if answer is None:
        _tell(pipe, None)
        answer = _hear(pipe, case)
    assert answer is not None
    return answer


def _tell(pipe: Connection, what: Candidate | None) -> None:
    with contextlib.suppress(OSError):  # a process that has died is noticed when it is heard
        pipe.send(what)


def _hear(pipe: Connection, case: Candidate) -> Found | None:
    try:
        answer: Found | None = pipe.recv()
    except (EOFError, OSError):
        return Found(case, failure="failed: its process has died")
    return answer


# ---------------------------------------------------------------------- the table

HEADER = ("family", "shape", "ours", "compiled", "theirs", "compiled", "best", "eager", "compiled", "GiB, ours: theirs")


def table(found: Sequence[Found]) -> str:
    """ktok/s of the four candidates, three ratios of ours to theirs, and the memory of the best of each."""
    good = {f.candidate: f for f in found if not f.failure}
    rows: list[tuple[str, ...]] = [HEADER]
    for family, shape in dict.fromkeys((f.candidate.family, f.candidate.shape) for f in found):
        ours, theirs = (
            [good.get(Candidate(family, shape, side, compiled)) for compiled in (False, True)]
            for side in ("ours", "theirs")
        )
        best = [max((f for f in side if f), key=lambda f: f.ktoks, default=None) for side in (ours, theirs)]
        ratios = [_ratio(best[0], best[1]), _ratio(ours[0], theirs[0]), _ratio(ours[1], theirs[1])]
        speeds = [f"{f.ktoks:.1f}" if f else "–" for f in (*ours, *theirs)]
        memory = ": ".join(f"{f.gib:.1f}" if f else "–" for f in best)
        rows.append((family, shape, *speeds, *ratios, memory))
    widths = [max(len(row[i]) for row in rows) for i in range(len(HEADER))]
    return "\n".join("  ".join(text.rjust(width) for text, width in zip(row, widths, strict=True)) for row in rows)


def _ratio(ours: Found | None, theirs: Found | None) -> str:
    return f"{ours.ktoks / theirs.ktoks:.2f} ×" if ours and theirs else "–"


def candidates(family: str, shapes: Sequence[str], sides: Sequence[Side], compile_too: bool) -> list[Candidate]:
    """Eager ones first; long rows for ModernBERT alone."""
    return [
        Candidate(family, shape, side, compiled)
        for compiled in ((False, True) if compile_too else (False,))
        for shape in shapes
        if shape != "long" or family == "modernbert"
        for side in sides
    ]


def main(arguments: Sequence[str] | None = None) -> None:
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("--device", choices=("cpu", "cuda"), default="cuda")
    options.add_argument("--families", default=",".join(BASES), help="comma-separated (default: all)")
    options.add_argument("--shapes", default="even,ragged,long", help="even: 64 × 512; long: 8 × 4096, ModernBERT only")
    options.add_argument("--only", choices=("ours", "theirs"), help="run one side only")
    options.add_argument("--no-compile", action="store_true", help="eager steps only")
    options.add_argument("--layers", type=int, default=0, help="fewer layers compile faster (default: as published)")
    options.add_argument("--vocabulary", type=int, default=0, help="tokens in the table (default: the family's own)")
    options.add_argument("--rounds", type=int, default=8, help="timed steps of each candidate (default 8)")
    options.add_argument(
        "--batches", type=int, default=1, help="number of batches that take turns; ragged ones differ in length"
    )
    options.add_argument("--seconds", type=float, default=210.0, help="time limit after which nothing more is compiled")
    options.add_argument("--side-by-side", type=int, default=1, metavar="N", help="families to prepare at once")
    options.add_argument("--json", type=Path, metavar="FILE", help="write all figures to this file too")
    asked = options.parse_args(arguments)
    families, shapes = asked.families.split(","), asked.shapes.split(",")
    if unknown := [*(set(families) - set(BASES)), *(set(shapes) - {"even", "ragged", "long"})]:
        options.error(f"{unknown[0]!r} is not known: families are {', '.join(BASES)}, shapes even, ragged, long")
    settings = Settings(asked.device, asked.layers, asked.vocabulary, asked.rounds, asked.batches)
    sides: list[Side] = [asked.only] if asked.only else ["ours", "theirs"]
    print(f"{platform.machine()}, {asked.device}; Python {platform.python_version()}")
    print(f"torch {torch.__version__}, transformers {transformers.__version__}", flush=True)
    todo = [candidates(family, shapes, sides, not asked.no_compile) for family in families]
    found: list[Found] = []
    end, together = time.monotonic() + asked.seconds, asked.side_by_side
    for first in range(0, len(todo), together):
        groups_left = -(-(len(todo) - first) // together)
        until = time.monotonic() + (end - time.monotonic()) / groups_left
        for result in measure(todo[first : first + together], settings, until):
            found.append(result)
            print(result, flush=True)
    found.sort(key=lambda result: families.index(result.candidate.family))
    print(f"\nktok/s, and how many times theirs ours is\n{table(found)}")
    if asked.json:
        rows = [asdict(f) for f in found]
        asked.json.write_text(json.dumps({"torch": torch.__version__, "found": rows}, indent=1), encoding="utf-8")


if __name__ == "__main__":
    main()
