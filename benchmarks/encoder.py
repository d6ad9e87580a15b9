"""The encoder against transformers' on this machine: inference and one pretraining step, in one run.

Random weights and random tokens: speed does not depend on them. Every figure is the median of interleaved rounds,
after warming up. On a shared CPU only the ratios mean something.

    python benchmarks/encoder.py                 # CPU: a 6 × 384 encoder (MiniLM's shape)
    python benchmarks/encoder.py --device cuda   # GPU: BERT-Base, 32,768 tokens a step, bf16
"""

import argparse
import os
import platform
import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

os.environ["HF_HUB_OFFLINE"] = "1"

import torch
import transformers
from torch import Tensor
from torch.nn import functional as F

from bothways.model.batch import Batch
from bothways.model.config import BASE, EncoderConfig, ModelConfig
from bothways.model.model import Model

MINI = EncoderConfig(width=384, layers=6, num_heads=12, ffn_width=1536)
HEADS = ("pooler", "masked", "next")


@dataclass(frozen=True)
class Job:
    """Some sequences, and the tokens to predict (15 %, the same number in each)."""

    ids: list[list[int]]
    predicted: list[list[int]]

    @property
    def tokens(self) -> int:
        return sum(map(len, self.ids))

    @property
    def longest(self) -> int:
        return max(map(len, self.ids))


def work(lengths: Sequence[int]) -> Job:
    draws = torch.Generator().manual_seed(0)
    ids = [torch.randint(1000, 30_000, (n,), generator=draws).tolist() for n in lengths]
    predicted = [torch.randperm(n, generator=draws)[: max(1, round(0.15 * n))].tolist() for n in lengths]
    return Job(ids, predicted)


def uneven(count: int, longest: int) -> list[int]:
    """Lengths as documents have them: many short, some that fill the window."""
    draws = torch.Generator().manual_seed(1)
    raw = torch.exp(torch.randn(count, generator=draws) * 0.9 + torch.log(torch.tensor(longest / 3.0)))
    return [int(n) for n in raw.clamp(8, longest)]


# ---------------------------------------------------------------------- the two sides


def our_step(model: Model, job: Job, device: str) -> Callable[[], Tensor]:
    batch = Batch.pack(job.ids).to(device)
    starts = batch.first.tolist()
    at = torch.tensor([s + a for s, own in zip(starts, job.predicted, strict=True) for a in own], device=device)
    words, follows = batch.ids[at], torch.zeros(batch.size, dtype=torch.long, device=device)

    def loss() -> Tensor:
        states = model.encoder(batch)
        next_loss = F.cross_entropy(model.logits("next", states, batch).float(), follows)
        return F.cross_entropy(model.masked(states[at]).float(), words) + next_loss

    return loss


def their_step(model: torch.nn.Module, job: Job, device: str) -> Callable[[], Tensor]:
    grid = torch.tensor([row + [0] * (job.longest - len(row)) for row in job.ids], device=device)
    mask = torch.tensor([[1] * len(row) + [0] * (job.longest - len(row)) for row in job.ids], device=device)
    labels = torch.full_like(grid, -100)
    for row, own in enumerate(job.predicted):
        labels[row, own] = grid[row, own]
    follows = torch.zeros(len(grid), dtype=torch.long, device=device)
    # A mask that hides nothing is left out, which lets their attention take its fastest path.
    arguments = {"input_ids": grid, "labels": labels, "next_sentence_label": follows}
    if not bool(mask.all()):
        arguments["attention_mask"] = mask

    def loss() -> Tensor:
        found: Tensor = model(**arguments).loss
        return found

    return loss


def training(model: torch.nn.Module, loss: Callable[[], Tensor], device: str, compiled: bool) -> Callable[[], None]:
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, fused=True)
    forward = torch.compile(loss, dynamic=False) if compiled else loss

    def step() -> None:
        with torch.autocast(device, torch.bfloat16, enabled=device == "cuda"):
            value = forward()
        value.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0, foreach=True)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)

    return step


def inference(model: Model, theirs: torch.nn.Module, job: Job, device: str) -> dict[str, Callable[[], None]]:
    batch = Batch.pack(job.ids).to(device)
    grid = torch.tensor([row + [0] * (job.longest - len(row)) for row in job.ids], device=device)
    mask = torch.tensor([[1] * len(row) + [0] * (job.longest - len(row)) for row in job.ids], device=device)

    def run(call: Callable[[], object]) -> Callable[[], None]:
        def timed() -> None:
            with torch.inference_mode(), torch.autocast(device, torch.bfloat16, enabled=device == "cuda"):
                call()

        return timed

    return {
        "bothways": run(lambda: model.encoder(batch)),
        "transformers": run(lambda: theirs.bert(grid, attention_mask=mask)),  # type: ignore[operator]
    }


# ---------------------------------------------------------------------- measuring


def medians(candidates: dict[str, Callable[[], None]], rounds: int, device: str) -> dict[str, float]:
    """Seconds per call, one candidate after the other in every round."""

    def wait() -> None:
        if device == "cuda":
            torch.cuda.synchronize()

    times: dict[str, list[float]] = {name: [] for name in candidates}
    for step in candidates.values():
        for _ in range(3):
            step()
    for _ in range(rounds):
        for name, step in candidates.items():
            wait()
            begin = time.perf_counter()
            step()
            wait()
            times[name].append(time.perf_counter() - begin)
    return {name: statistics.median(found) for name, found in times.items()}


def report(title: str, job: Job, seconds: dict[str, float], memory: dict[str, float] | None = None) -> None:
    base = max(value for name, value in seconds.items() if name.startswith("transformers"))
    full = job.tokens / len(job.ids) / job.longest
    print(f"\n{title}: {len(job.ids)} sequences, {job.tokens:,} tokens, {full:.0%} full")
    for name, value in seconds.items():
        gib = f"  {memory[name]:5.1f} GiB" if memory else ""
        print(f"  {name:24} {value * 1e3:9.1f} ms  {job.tokens / value / 1e3:8.1f} ktok/s  {base / value:5.2f} x{gib}")


def fresh(shape: EncoderConfig, device: str) -> tuple[Model, torch.nn.Module]:
    ours = Model.new(ModelConfig(shape, HEADS)).to(device)
    config = transformers.BertConfig(
        hidden_size=shape.width,
        num_hidden_layers=shape.layers,
        num_attention_heads=shape.num_heads,
        intermediate_size=shape.ffn_width,
        attn_implementation="sdpa",
    )
    return ours, transformers.BertForPreTraining(config).to(device)


def measure_training(shape: EncoderConfig, job: Job, title: str, device: str, rounds: int, compile_too: bool) -> None:
    """Each candidate has a model of its own, made when it is its turn, so that memory can be told apart."""
    seconds: dict[str, float] = {}
    memory: dict[str, float] = {}
    for name in ("transformers", "bothways"):
        for compiled in (False, True) if compile_too else (False,):
            torch.compiler.reset()
            ours, theirs = fresh(shape, device)
            model: torch.nn.Module = (ours if name == "bothways" else theirs).train()
            loss = our_step(ours, job, device) if name == "bothways" else their_step(theirs, job, device)
            del ours, theirs
            if device == "cuda":
                torch.cuda.empty_cache()
                torch.cuda.reset_peak_memory_stats()
            label = f"{name}, compiled" if compiled else name
            seconds |= medians({label: training(model, loss, device, compiled)}, rounds, device)
            memory[label] = torch.cuda.max_memory_allocated() / 2**30 if device == "cuda" else 0.0
            del model, loss
    report(title, job, seconds, memory if device == "cuda" else None)


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("--device", choices=("cpu", "cuda"), default="cpu")
    options.add_argument("--rounds", type=int, default=7)
    asked = options.parse_args()
    device = asked.device
    where = torch.cuda.get_device_name() if device == "cuda" else f"{torch.get_num_threads()} CPU threads"
    print(f"{platform.machine()}, {where}; Python {platform.python_version()}")
    print(f"torch {torch.__version__}, transformers {transformers.__version__}")
    torch.set_float32_matmul_precision("high")
    if device == "cuda":
        shape, sizes = BASE, {"256 × 128": [128] * 256, "64 × 512": [512] * 64, "ragged, 512": uneven(128, 512)}
    else:
        shape, sizes = MINI, {"32 short, even": [16] * 32, "32 uneven": uneven(32, 128)}
    for title, lengths in sizes.items():
        job = work(lengths)
        ours, theirs = (model.eval() for model in fresh(shape, device))
        assert isinstance(ours, Model)
        report(f"inference, {title}", job, medians(inference(ours, theirs, job, device), asked.rounds, device))
        del ours, theirs
        measure_training(shape, job, f"pretraining step, {title}", device, asked.rounds, compile_too=device == "cuda")


if __name__ == "__main__":
    main()
