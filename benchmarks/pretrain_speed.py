"""One pretraining step of BERT-Base (masked words and next sentence), ours against transformers', in one run.

Forward, backward, clipping and AdamW; bf16, dropout 0.1; random tokens, since speed does not depend on them. Ours is
the library's own training loop (`bothways.train.fit`) fed with one batch again and again; transformers' is
BertForPreTraining with SDPA under autocast with fused AdamW, eager and compiled. Nobody waits for the GPU between
steps. Every figure is the median of several windows after warming up.

    python benchmarks/pretrain_speed.py                       # one GPU
    python benchmarks/pretrain_speed.py --data PACKED         # and the real command on packed text
    python benchmarks/pretrain_speed.py --device cpu          # a small shape, to see that it runs

--data: a folder that `bothways pack` made, of a few million tokens or more.
"""

import argparse
import os
import platform
import statistics
import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

os.environ["HF_HUB_OFFLINE"] = "1"

import numpy as np
import torch
import transformers

from bothways.model.config import BASE, EncoderConfig, ModelConfig
from bothways.model.model import Model
from bothways.pretraining.loader import collate
from bothways.pretraining.objective import BatchBuilder, Capacity
from bothways.pretraining.pretrain import pretrain
from bothways.pretraining.recipe import Phase, PretrainData, PretrainRecipe, read_recipe
from bothways.pretraining.sampler import RawSequences
from bothways.pretraining.trainable import Pretraining, Texts
from bothways.text.tokenizer import Tokenizer
from bothways.text.train_vocab import FIRST_PIECES
from bothways.train.fit import fit
from bothways.train.protocol import Step, Stepped
from bothways.train.ranks import Ranks
from bothways.train.settings import RunSettings

SMALL = EncoderConfig(width=64, layers=2, num_heads=2, ffn_width=128)


class Synthetic(Pretraining):
    """Pretraining that is fed with the same batch for ever."""

    def __init__(self, model: Model, lengths: Sequence[int], recipe: PretrainRecipe) -> None:
        super().__init__(model, Texts({}), Texts({}), recipe)
        self.step = make_step(self, lengths, recipe.phases[0].length)

    def _loader(self, *_: Any) -> Any:
        return None

    def feed(self, phase: int, index: int, ranks: Ranks, static_shapes: bool) -> Iterator[Step]:
        while True:
            yield self.step

    def evaluate(self, *_: Any) -> dict[str, float]:
        return {}

    def save(self, *_: Any) -> None:
        pass


def make_step(work: Pretraining, lengths: Sequence[int], longest: int) -> Step:
    draws = np.random.default_rng(0)
    cu_seqlens = np.concatenate([[0], np.cumsum(lengths)])
    ids = draws.integers(1_000, 30_000, int(cu_seqlens[-1]))
    special = np.zeros(len(ids), bool)
    special[cu_seqlens[:-1]] = special[cu_seqlens[1:] - 1] = True
    segments = (np.arange(len(ids)) - np.repeat(cu_seqlens[:-1], lengths)) * 2 >= np.repeat(lengths, lengths)
    pair_labels = draws.integers(0, 2, len(lengths))
    keys = np.arange(len(lengths), dtype=np.uint64)
    rows = RawSequences(ids, segments.astype(np.int64), cu_seqlens, np.ones(len(ids), bool), special, keys, pair_labels)
    capacity = Capacity(len(ids), len(lengths), longest)
    builder = BatchBuilder(rows, rows.ids)
    for objective in work.objectives.values():
        objective.prepare(builder, capacity, None)
    return Step([collate(builder, capacity)], builder.counts, len(ids), len(lengths))


def ours(shape: EncoderConfig, lengths: Sequence[int], longest: int, device: str, steps: int, **run: Any) -> float:
    """Tokens a second."""
    words = [f"word{i}" for i in range(shape.vocab_size - len(FIRST_PIECES))]
    tokenizer = Tokenizer.from_pieces([*FIRST_PIECES, *words])
    settings = RunSettings(steps=steps, device=device, save_minutes=0, micro_tokens=sum(lengths), **run)  # type: ignore[arg-type]
    recipe = PretrainRecipe(run=settings, phases=(Phase(length=longest, tokens=sum(lengths)),))
    model = Model.new(ModelConfig(shape, ("pooler", "masked", "next")), tokenizer)
    work = Synthetic(model, lengths, recipe)
    with tempfile.TemporaryDirectory() as out:
        return median_speed(
            [e for e in fit(work, settings, recipe.optim, Path(out), Ranks()) if isinstance(e, Stepped)]
        )


def median_speed(events: Sequence[Stepped]) -> float:
    """Of the windows between two flushes, the first fifth of the steps left out."""
    speeds = {event.elapsed: event.speed for event in events if event.step > len(events) / 5}
    return statistics.median(speeds.values())


def real(packed: str, shape: EncoderConfig, length: int, device: str, steps: int) -> tuple[float, list[int]]:
    """Tokens a second of `bothways pretrain`, and the lengths of its first batch."""
    plan = read_recipe("bert-base", [f"run.steps={steps}", f"run.device={device}", "run.evaluate_every=0"])
    plan = replace(
        plan,
        data=PretrainData(train=(packed,), valid_sequences=100),
        model=replace(
            plan.model, width=shape.width, layers=shape.layers, num_heads=shape.num_heads, ffn_width=shape.ffn_width
        ),
        run=replace(plan.run, save_every=0, save_minutes=0),
        phases=(Phase(length=length, tokens=32_768 if device == "cuda" else 1_024),),
    )
    events: list[Stepped] = []
    with tempfile.TemporaryDirectory() as out:
        pretrain(plan, Path(out) / "run", listen=[lambda e: events.append(e) if isinstance(e, Stepped) else None])
    return median_speed(events), first_lengths(plan)


def first_lengths(plan: PretrainRecipe) -> list[int]:
    from bothways.pretraining.loader import Loader, Mixture
    from bothways.pretraining.sampler import SpecialIds, make_sampler
    from bothways.pretraining.shards import Corpus, open_packed

    packed = open_packed(plan.data.train[0], verify=False)
    phase = plan.phases[0]
    shards = [shard for split, shard in packed.shards if split == "train"]
    pairs = make_sampler("next", Corpus(shards), SpecialIds.of(packed.tokenizer), phase.length, 0.1)
    loader = Loader(Mixture({"": pairs}, None, 0), [], phase.length, phase.tokens, None, 1, static_shapes=False)
    step = loader.step(0, range(1), loader.capacity())
    return [int(n) for n in step.micros[0].batch.lengths]


def theirs(
    shape: EncoderConfig, lengths: Sequence[int], longest: int, device: str, windows: int, compiled: bool
) -> float:
    """Tokens a second, padding not counted."""
    config = transformers.BertConfig(
        vocab_size=shape.vocab_size,
        hidden_size=shape.width,
        num_hidden_layers=shape.layers,
        num_attention_heads=shape.num_heads,
        intermediate_size=shape.ffn_width,
        attn_implementation="sdpa",
    )
    model = transformers.BertForPreTraining(config).to(device).train()
    draws = torch.Generator().manual_seed(0)
    grid = torch.randint(1_000, 30_000, (len(lengths), longest), generator=draws)
    mask = (torch.arange(longest) < torch.tensor(list(lengths))[:, None]).long()
    labels = torch.where((torch.rand(grid.shape, generator=draws) < 0.15) & mask.bool(), grid, -100)
    arguments = {
        "input_ids": grid,
        "labels": labels,
        "next_sentence_label": torch.zeros(len(lengths), dtype=torch.long),
    }
    arguments |= {} if bool(mask.all()) else {"attention_mask": mask}  # without one, their fastest path
    arguments = {name: value.to(device) for name, value in arguments.items()}
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, weight_decay=0.01, fused=True)
    call = torch.compile(model, dynamic=False) if compiled else model

    def step() -> None:
        with torch.autocast(device, torch.bfloat16, enabled=device == "cuda"):
            loss = call(**arguments).loss
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0, foreach=True)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)

    for _ in range(3):
        step()
    times = []
    for _ in range(windows):
        wait(device)
        begin = time.perf_counter()
        for _ in range(10):
            step()
        wait(device)
        times.append((time.perf_counter() - begin) / 10)
    return sum(lengths) / statistics.median(times)


def wait(device: str) -> None:
    if device == "cuda":
        torch.cuda.synchronize()


def flops(shape: EncoderConfig, lengths: Sequence[int]) -> float:
    """Of one step for one real token: six for each weight it meets, and attention to its own sequence."""
    block = 4 * shape.width**2 + 2 * shape.width * shape.ffn_width
    head = 0.15 * (shape.width**2 + shape.width * shape.vocab_size)
    mean = sum(n * n for n in lengths) / sum(lengths)
    return 6 * (shape.layers * block + head) + 12 * shape.layers * shape.width * mean


def uneven(total: int, longest: int) -> list[int]:
    """Documents as they come: mean 46 % of the window, some fill it."""
    draws = np.random.default_rng(1)
    lengths: list[int] = []
    while sum(lengths) < total:
        lengths.append(int(np.clip(np.exp(draws.normal(0, 0.8)) * longest / 2.9, 8, longest)))
    lengths[-1] -= sum(lengths) - total
    return [n for n in lengths if n > 3]


def measure_ceiling(device: torch.device, dtype: torch.dtype) -> float:
    """Floating-point operations per second of a matrix product: the best of several."""
    size = 4096 if device.type == "cuda" else 512
    a, b = (torch.randn(size, size, device=device, dtype=dtype) for _ in range(2))
    times = []
    for _ in range(6 if device.type == "cuda" else 30):  # the CPU may be busy with something else
        begin = time.perf_counter()
        torch.mm(a, b)
        if device.type == "cuda":
            torch.cuda.synchronize(device)
        times.append(time.perf_counter() - begin)
    return 2 * size**3 / min(times)


def measured(name: str, lengths: Sequence[int], shape: EncoderConfig, ceiling: float, speed: Any) -> float:
    """Run one candidate, print its line."""
    torch.compiler.reset()
    if torch.cuda.is_available():
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats()
    begin = time.monotonic()
    found: float = speed()
    memory = torch.cuda.max_memory_allocated() / 2**30 if torch.cuda.is_available() else 0.0
    share = found * flops(shape, lengths)
    print(
        f"  {name:34} {found / 1e3:8.1f} ktok/s  {share / 1e12:6.1f} TFLOP/s  {share / ceiling:5.1%} of the ceiling"
        f"  {memory:5.1f} GiB   ({time.monotonic() - begin:.0f} s)",
        flush=True,
    )
    return found


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("--device", choices=("cpu", "cuda"), default="cuda")
    options.add_argument(
        "--data", metavar="PACKED", help="a folder written by bothways pack: time the real command on it"
    )
    options.add_argument("--steps", type=int, default=100, help="steps of our loop for each figure (default 100)")
    options.add_argument(
        "--only", choices=("128", "512", "ragged", "real-128", "real-512", "deterministic"), action="append"
    )
    asked = options.parse_args()
    device, on_gpu = asked.device, asked.device == "cuda"
    only = asked.only or ["128", "512", "ragged", *(["real-128", "real-512"] if asked.data else [])]
    where = torch.cuda.get_device_name() if on_gpu else f"{torch.get_num_threads()} CPU threads"
    print(f"{platform.machine()}, {where}; Python {platform.python_version()}")
    print(f"torch {torch.__version__}, transformers {transformers.__version__}")
    torch.set_float32_matmul_precision("high")
    shape = BASE if on_gpu else replace(SMALL, vocab_size=BASE.vocab_size)
    total = 32_768 if on_gpu else 1_024
    ceiling = measure_ceiling(torch.device(device), torch.bfloat16 if on_gpu else torch.float32)
    print(f"matrix product 4096³: {ceiling / 1e12:.0f} TFLOP/s", flush=True)
    windows = 5 if on_gpu else 2
    jobs = {
        "128": ([128] * (total // 128), 128),
        "512": ([512] * (total // 512), 512),
        "ragged": (uneven(total, 512), 512),
    }
    for name, (lengths, longest) in jobs.items():
        if name not in only:
            continue
        full = sum(lengths) / len(lengths) / longest
        print(f"\n{len(lengths)} sequences of up to {longest}, {sum(lengths):,} tokens, {full:.0%} full")
        base = measured(
            "transformers",
            lengths,
            shape,
            ceiling,
            lambda n=lengths, m=longest: theirs(shape, n, m, device, windows, False),
        )
        fast = (
            measured(
                "transformers, compiled",
                lengths,
                shape,
                ceiling,
                lambda n=lengths, m=longest: theirs(shape, n, m, device, windows, True),
            )
            if on_gpu
            else base
        )
        own = measured(
            "bothways", lengths, shape, ceiling, lambda n=lengths, m=longest: ours(shape, n, m, device, asked.steps)
        )
        print(f"  {own / base:.2f} × transformers, {own / fast:.2f} × compiled")
    if "deterministic" in only:
        lengths = jobs["128"][0]
        print("\nbit for bit the same on every run (run.deterministic = true)")
        measured(
            "bothways",
            lengths,
            shape,
            ceiling,
            lambda: ours(shape, lengths, 128, device, asked.steps, deterministic=True),
        )
    if asked.data:
        for longest in (n for n in (128, 512) if f"real-{n}" in only):
            found: dict[str, Any] = {}

            def command(longest: int = longest, found: dict[str, Any] = found) -> float:
                speed, found["lengths"] = real(asked.data, shape, longest, device, asked.steps)
                return speed

            print(f"\nbothways pretrain on packed text, pairs of up to {longest}")
            speed = measured("the real command", [longest], shape, ceiling, command)
            lengths = found["lengths"]
            print(f"  its batches: {len(lengths)} sequences, {sum(lengths) / len(lengths) / longest:.0%} full")
            same = measured(
                "one such batch again and again",
                lengths,
                shape,
                ceiling,
                lambda n=lengths, m=longest: ours(shape, n, m, device, asked.steps),
            )
            print(f"  the real command reaches {speed / same:.1%} of it")


if __name__ == "__main__":
    main()
