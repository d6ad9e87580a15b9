"""Sections of benchmarks/inference.py about the machine: the bare encoder, single texts, CPU threads, start-up."""

import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import inference_data as data
import inference_ours as ours
import inference_peers as peers
import torch
from inference_measure import Call, Run, Timed, attempt, cosines, factor, interleaved, line, median, table, timed

import bothways
from bothways.engine.compiled import CompilePolicy
from bothways.engine.sequences import Indices, Sequences, by_budget
from bothways.model.batch import Batch
from bothways.model.config import BASE, EncoderConfig, ModelConfig
from bothways.model.model import Model

BATCH_TOKENS = 65_536
TOO_SLOW = 5
"""How many times as slow as fp32 bf16 may be: a CPU without bf16 instructions takes a hundred times as long."""


# ---------------------------------------------------------------------- base


def draw_sequences(low: int, high: int, tokens: int) -> list[list[int]]:
    draws = torch.Generator().manual_seed(0)
    found: list[list[int]] = []
    while sum(map(len, found)) < tokens:
        length = int(torch.randint(low, high + 1, (), generator=draws))
        found.append(torch.randint(1000, 30_000, (length,), generator=draws).tolist())
    return found


def operations(shape: EncoderConfig, lengths: Sequence[int]) -> float:
    """2 × matmul parameters × tokens, and in each layer 4 × width × length² for the attention of a sequence."""
    weights = shape.layers * (4 * shape.width**2 + 2 * shape.width * shape.ffn_width)
    return float(sum(2 * weights * n + 4 * shape.layers * shape.width * n**2 for n in lengths))


def base_dtype(run: Run) -> str:
    return "bf16" if run.device == "cuda" else "fp32"


def product_rate(run: Run, rows: int, inner: int, columns: int) -> float:
    """TFLOP/s of a matrix product."""
    a, b = (
        torch.randn(*s, device=run.device, dtype=peers.DTYPES[base_dtype(run)])
        for s in ((rows, inner), (inner, columns))
    )
    times = 20 if run.device == "cuda" else 1

    def many() -> None:
        for _ in range(times):
            torch.mm(a, b)

    many()
    return times * 2 * rows * inner * columns / median(many, 5)[0] / 1e12


def base(run: Run) -> None:
    edge = 8192 if run.scale >= 1 else 1024
    sizes = ((4 * edge, 768, 3072), (edge, edge, edge))
    rates = {size: attempt(f"product {size}", partial(product_rate, run, *size)) or 0.0 for size in sizes}
    shown = ", ".join(f"({a}×{b})·({b}×{c}) {rate:.3g} TFLOP/s" for (a, b, c), rate in rates.items())
    print(f"\nbase: matrix products in {base_dtype(run)}: {shown}", flush=True)
    for low, high in ((128, 128), (512, 512), (128, 512)):
        attempt(f"base, {low} to {high}", partial(base_lengths, run, low, high, max(rates.values())))


def base_lengths(run: Run, low: int, high: int, peak: float) -> None:
    sequences = draw_sequences(low, high, max(2_048, round(run.scale * 8 * BATCH_TOKENS)))
    lengths = [len(row) for row in sequences]
    tokens, flops = sum(lengths), operations(BASE, lengths)
    table(
        f"base: BERT-Base, {base_dtype(run)}, {len(lengths):,} sequences of {low} to {high}, {tokens:,} tokens; "
        "FLOP = 2 × matmul parameters × tokens + 4 × layers × width × length²",
        "", "seconds", "ktok/s", "TFLOP/s", "of the faster product",
    )  # fmt: skip

    def show(name: str, seconds: float) -> None:
        rate = flops / seconds / 1e12
        share = f"{rate / peak:.0%}" if peak else "–"
        line(name, f"{seconds:.4f}", f"{tokens / seconds / 1e3:,.1f}", f"{rate:.3g}", share)

    model = peers.base_encoder(BASE, run.device, base_dtype(run))
    for size in (32, 64, 128, 256, 512):
        name = f"transformers sdpa, batch {size}"
        if (found := attempt(name, partial(base_theirs, run, model, sequences, size))) is not None:
            show(name, found)
    del model
    for make in (eager, compiled, through_engine):
        name = f"bothways {make.__name__.replace('_', ' ')}"
        if (found := attempt(name, partial(base_ours, run, sequences, make))) is not None:
            show(name, found)


def base_theirs(run: Run, model: Any, sequences: list[list[int]], size: int) -> float:
    given = peers.padded_batches(sequences, size, run.device)

    @torch.inference_mode()
    def call() -> None:
        for batch in given:
            model(**batch)

    call()
    return median(call, run.rounds)[0]


def base_ours(run: Run, sequences: list[list[int]], make: Callable[[Run, Model, "Given"], Callable[[], Any]]) -> float:
    call = make(run, Model.new(ModelConfig(BASE, ())), Given(Sequences.of(sequences)))
    for _ in range(2):
        call()
    return median(call, run.rounds)[0]


@dataclass(frozen=True)
class Given:
    """A chunk of the engine."""

    sequences: Sequences


def eager(run: Run, model: Model, given: Given, compile: CompilePolicy = "never") -> Callable[[], Any]:
    """The encoder on packed batches that are on the device already, as transformers' are."""
    engine = bothways.Engine(model, device=run.device, dtype=base_dtype(run), compile=compile)
    groups = by_budget(given.sequences.lengths, BATCH_TOKENS)
    batches = [given.sequences.batch(group, engine.device) for group in groups]

    def call() -> None:
        with torch.inference_mode(), engine.around(BATCH_TOKENS):
            for batch in batches:
                engine.states(batch)

    return call


def compiled(run: Run, model: Model, given: Given) -> Callable[[], Any]:
    torch.compiler.reset()
    return eager(run, model, given, "always")


def through_engine(run: Run, model: Model, given: Given) -> Callable[[], Any]:
    """With packing, sorting and the copies to the device and back; one vector of each sequence comes back."""
    engine = bothways.Engine(model, device=run.device, dtype=base_dtype(run), max_tokens=BATCH_TOKENS)

    def first(batch: Batch, chunk: Given, picked: Indices) -> torch.Tensor:
        found: torch.Tensor = engine.states(batch)[batch.first]
        return found

    return lambda: list(engine.run([given], first))


# ---------------------------------------------------------------------- latency, cpu


def latency(run: Run) -> None:
    texts = data.short(run.texts, run.size(200), 8, 30)
    table(f"latency: {len(texts)} texts of 8 to 30 words, one at a time, CPU, fp32; medians, in turns",
          "", "", "threads", "ms", "CPU ms", "over sentence-transformers", "in CPU time")  # fmt: skip
    for name, folder in (("MiniLM", run.minilm), ("the box", bothways.boxed())):
        attempt(name, partial(latency_of, name, folder, texts))


def latency_of(name: str, folder: Path, texts: Sequence[str]) -> None:
    calls = {
        "bothways": ours.vectors(folder, "cpu", "fp32"),
        "sentence-transformers": peers.sentence_vectors(folder, "cpu", "fp32", 32),
        "transformers": peers.mean_vectors(folder, "cpu", "fp32", 1),
    }
    usual = torch.get_num_threads()
    for threads in dict.fromkeys((usual, 1)):
        torch.set_num_threads(threads)
        wall, spent = one_at_a_time(calls, texts)
        for who in calls:
            line(name, who, f"{threads}", f"{wall[who].seconds * 1e3:.2f}", f"{spent[who].seconds * 1e3:.2f}",
                 *(factor(some["sentence-transformers"], some[who]) for some in (wall, spent)))  # fmt: skip
    torch.set_num_threads(usual)


def one_at_a_time(calls: Mapping[str, Call], texts: Sequence[str]) -> list[dict[str, Timed]]:
    """The medians of each call: by the wall clock, and of CPU time, that of all threads."""
    clocks = (time.perf_counter, time.process_time)
    times: list[dict[str, list[float]]] = [{name: [] for name in calls} for _ in clocks]
    for number, text in enumerate([*texts[:5], *texts]):
        for name, call in calls.items():
            begin = [clock() for clock in clocks]
            call([text])
            spent = [clock() - then for clock, then in zip(clocks, begin, strict=True)]
            if number >= 5:
                for kind, value in zip(times, spent, strict=True):
                    kind[name].append(value)
    return [{name: Timed(name, statistics.median(some), None) for name, some in kind.items()} for kind in times]


def cpu(run: Run) -> None:
    texts = run.texts[: run.size(600)]
    has = [f"{name[4:-10]} {getattr(torch.cpu, name)()}" for name in
           ("_is_amx_tile_supported", "_is_avx512_bf16_supported") if hasattr(torch.cpu, name)]  # fmt: skip
    level = torch.backends.cpu.get_cpu_capability()
    table(f"cpu: {len(texts)} texts, MiniLM, 2 threads; torch's vector instructions: {', '.join([level, *has])}",
          "", "seconds", "over sentence-transformers", "worst cosine")  # fmt: skip
    usual = torch.get_num_threads()
    torch.set_num_threads(2)
    theirs = "sentence-transformers fp32, batch 32"
    calls: dict[str, Callable[[], Any]] = {
        theirs: partial(peers.sentence_vectors(run.minilm, "cpu", "fp32", 32), list(texts)),
        "bothways fp32": partial(ours.vectors(run.minilm, "cpu", "fp32"), list(texts)),
    }
    half, few = ours.vectors(run.minilm, "cpu", "bf16"), list(texts[:4])
    slower = timed(lambda: half(few))[0] / timed(lambda: ours.vectors(run.minilm, "cpu", "fp32")(few))[0]
    if slower < TOO_SLOW:
        calls["bothways bf16"] = partial(half, list(texts))
    else:
        line("bothways bf16", f"not timed: {slower:.0f} times as slow as fp32 on {len(few)} texts", "", "")
    found = interleaved(calls, run.rounds)
    torch.set_num_threads(usual)
    for name, row in found.items():
        worst, _ = cosines(row.result, found[theirs].result)
        line(name, f"{row.seconds:.2f}", factor(found[theirs], row), f"{worst:.6f}")


# ---------------------------------------------------------------------- startup


def startup(run: Run) -> None:
    ask = ["-m", "bothways", "fill", "Paris is the [MASK] of France."]
    commands = {
        "import torch": ["-c", "import torch"],
        "bothways fill": ask,
        "import sentence_transformers": ["-c", "import sentence_transformers"],
    }
    if torch.cuda.is_available():
        commands["bothways fill --device cpu"] = [*ask, "--device", "cpu"]
    times: dict[str, list[float]] = {name: [] for name in commands}
    table(f"startup: fresh processes, median of {run.rounds}, in turns", "", "seconds")
    for _ in range(run.rounds):
        for name, words in commands.items():
            begin = time.perf_counter()
            done = subprocess.run([sys.executable, *words], capture_output=True, text=True, check=False)
            times[name].append(time.perf_counter() - begin)
            if done.returncode:
                line(name, f"failed: {(done.stderr.strip().splitlines() or [''])[-1][:200]}")
    middle = {name: statistics.median(some) for name, some in times.items()}
    for name, seconds in middle.items():
        line(name, f"{seconds:.2f}")
    for name in commands:
        if name.startswith("bothways"):
            line(f"{name} − 1.2 × import torch", f"{middle[name] - 1.2 * middle['import torch']:.2f}")
