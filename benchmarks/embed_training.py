"""Training of sentence vectors, ours against sentence-transformers: same pairs, loss, steps and seeds; scores, seconds.

    python benchmarks/embed_training.py --pairs FILE --sts FILE --model DIR
    python benchmarks/embed_training.py --pairs FILE --sts FILE --model DIR --device cpu --rows 2000
    python benchmarks/embed_training.py --pairs FILE --sts FILE --model DIR --poolings

--pairs: .jsonl of pairs (columns a, b), plain or .xz. --sts: .jsonl with sentence1, sentence2 and score.
benchmarks/vector_data.py writes both. --model: the encoder to start from, a folder that transformers opens too.

Both sides: in-batch negatives (scale 20), mean pooling, no text twice in a batch, AdamW, 10 % warm-up and linear decay,
weight decay 0.01, clipping at 1, bf16 on a GPU, texts cut at 128 tokens, nothing evaluated in between. Theirs: their
model, loss and tokenizing in a plain loop, with workers that tokenize, which is faster than their Trainer. Times are of
all the work once the model is open, ours with saving. The score is Spearman's correlation of the cosine, each side by
its own `encode`. --poolings: only ours, with cls, mean and max, before and after training.
"""

import argparse
import os
import platform
import random
import statistics
import tempfile
import time
import warnings
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

os.environ["HF_HUB_OFFLINE"] = "1"

import numpy as np
import torch
import transformers

import bothways
from bothways.data.examples import Related
from bothways.data.related import read_related
from bothways.tasks.recipe import finetune_recipe

LENGTH = 128


def ours(
    asked: argparse.Namespace, pairs: list[tuple[str, str]], seed: int, out: Path, pooling: str = "mean"
) -> tuple[float, Any]:
    table = {
        "task": "embed",
        "embed": {"pooling": pooling},
        "model": {"init": str(asked.model)},
        "window": {"length": LENGTH},
        "optim": {"lr": asked.lr, "warmup": 0.1, "weight_decay": 0.01, "eps": 1e-8, "layer_decay": 1.0},
        "run": {
            "epochs": 1.0,
            "batch_size": asked.batch,
            "micro_tokens": asked.micro_tokens,
            "seed": seed,
            "device": asked.device,
            "save_minutes": 0.0,
        },
    }
    begun = time.perf_counter()
    found = bothways.finetune(finetune_recipe(table), out, train=[Related(pair) for pair in pairs], dev=[])
    seconds = time.perf_counter() - begun
    return seconds, lambda texts: bothways.encode(texts, found.folder, device=asked.device, dtype="fp32", long="cut")


class Collate:
    """Tokenizes pairs, in a worker too."""

    def __init__(self, transformer: Any) -> None:
        self.tokenizer = transformer.tokenizer

    def __call__(self, rows: list[tuple[str, str]]) -> list[Any]:
        settings = {"padding": True, "truncation": True, "max_length": LENGTH, "return_tensors": "pt"}
        return [dict(self.tokenizer([row[i] for row in rows], **settings)) for i in (0, 1)]


def theirs(asked: argparse.Namespace, pairs: list[tuple[str, str]], seed: int, out: Path) -> tuple[float, Any]:
    from sentence_transformers import SentenceTransformer
    from sentence_transformers.sentence_transformer import losses, modules

    torch.manual_seed(seed)
    transformer = modules.Transformer(str(asked.model), max_seq_length=LENGTH, model_kwargs={"dtype": torch.float32})
    pooling = modules.Pooling(transformer.get_embedding_dimension(), "mean")
    model = SentenceTransformer(modules=[transformer, pooling, modules.Normalize()], device=asked.device).train()
    loss = losses.MultipleNegativesRankingLoss(model)

    begun = time.perf_counter()
    steps = without_repeats(pairs, asked.batch, seed)
    loader: Any = torch.utils.data.DataLoader(
        pairs,  # type: ignore[arg-type]
        batch_sampler=steps,
        collate_fn=Collate(transformer),
        num_workers=asked.workers,
        multiprocessing_context="spawn" if asked.workers else None,  # a fork of a process with CUDA may hang
    )
    decayed = [p for p in model.parameters() if p.ndim > 1]
    rest = [p for p in model.parameters() if p.ndim == 1]
    groups = [{"params": decayed, "weight_decay": 0.01}, {"params": rest, "weight_decay": 0.0}]
    optimizer = torch.optim.AdamW(groups, lr=asked.lr, eps=1e-8, fused=True)
    schedule = transformers.get_linear_schedule_with_warmup(optimizer, len(steps) // 10, len(steps))
    for columns in loader:
        moved = [{n: v.to(asked.device) if hasattr(v, "to") else v for n, v in some.items()} for some in columns]
        with torch.autocast(asked.device, torch.bfloat16, enabled=asked.device == "cuda"):
            found = loss(moved, None)
        found.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        schedule.step()
        optimizer.zero_grad()
    if asked.device == "cuda":
        torch.cuda.synchronize()
    seconds = time.perf_counter() - begun
    return seconds, lambda texts: model.eval().encode(texts, batch_size=128)


def without_repeats(pairs: list[tuple[str, str]], batch: int, seed: int) -> list[list[int]]:
    """Batches in which no text is twice, in random order."""
    left = list(range(len(pairs)))
    random.Random(seed).shuffle(left)
    found = []
    while left:
        step: list[int] = []
        later: list[int] = []
        seen: set[str] = set()
        for place, i in enumerate(left):
            if len(step) == batch:
                later += left[place:]
                break
            if seen.isdisjoint(pairs[i]):
                step.append(i)
                seen.update(pairs[i])
            else:
                later.append(i)
        found.append(step)
        left = later
    return found


def spearman(encode: Callable[[list[str]], Any], rows: list[Related]) -> float:
    first, second = (np.asarray(encode([row.texts[i] for row in rows])) for i in (0, 1))
    cosines = (first * second).sum(1) / np.linalg.norm(first, axis=1) / np.linalg.norm(second, axis=1)
    from bothways.scoring.regression import Regression

    scores = Regression()
    scores.add([float(row.gold or 0.0) for row in rows], cosines.tolist())
    return scores.scores()["spearman"]


def _seeds(asked: argparse.Namespace) -> range:
    return range(asked.first_seed, asked.first_seed + asked.seeds)


def poolings(asked: argparse.Namespace, pairs: list[tuple[str, str]], sts: list[Related]) -> None:
    """What is gained by training, by how token states become a vector."""
    print("| pooling | before | after |\n|---|---|---|")
    model = bothways.load(asked.model, device=asked.device)
    for pooling in ("cls", "mean", "max"):
        before = 100 * spearman(partial(bothways.encode, model=model, pool=pooling, long="cut"), sts)
        after = []
        for seed in _seeds(asked):
            with tempfile.TemporaryDirectory() as folder:
                _, encode = ours(asked, pairs, seed, Path(folder) / "run", pooling)
                after.append(100 * spearman(encode, sts))
        spread = statistics.stdev(after) if len(after) > 1 else 0.0
        print(f"| {pooling} | {before:.1f} | {statistics.mean(after):.1f} ± {spread:.1f} |", flush=True)


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    for name in ("pairs", "sts", "model"):
        options.add_argument(f"--{name}", type=Path, required=True)
    options.add_argument("--rows", type=int, default=50_000, help="pairs to train on")
    options.add_argument("--batch", type=int, default=128)
    options.add_argument("--lr", type=float, default=2e-4)
    options.add_argument("--seeds", type=int, default=3)
    options.add_argument("--first-seed", type=int, default=0)
    options.add_argument("--micro-tokens", type=int, default=65_536, help="tokens of a pass, on our side")
    options.add_argument("--workers", type=int, default=2, help="the peer's processes that tokenize")
    options.add_argument("--device", default="cuda", choices=("cuda", "cpu"))
    options.add_argument("--poolings", action="store_true", help="only cls, mean and max, before and after training")
    asked = options.parse_args()
    warnings.simplefilter("ignore")
    pairs = [(row.texts[0], row.texts[1]) for row in read_related([str(asked.pairs)])]
    random.Random(0).shuffle(pairs)
    sts = list(read_related([str(asked.sts)]))
    print(
        f"{len(pairs[: asked.rows]):,} pairs, batches of {asked.batch}, {asked.device}; {platform.machine()}, torch",
        end="",
    )
    print(f" {torch.__version__}\n")
    if asked.poolings:
        poolings(asked, pairs[: asked.rows], sts)
        return
    print("| | seconds | Spearman |\n|---|---|---|")
    sides = {"bothways": ours, "sentence-transformers": theirs}
    found: dict[str, list[tuple[float, float]]] = {name: [] for name in sides}
    with tempfile.TemporaryDirectory() as folder:
        for name, train in sides.items():  # warm
            train(asked, pairs[: 4 * asked.batch], 0, Path(folder) / f"warm {name}")
        for seed in _seeds(asked):
            for name, train in sides.items():
                seconds, encode = train(asked, pairs[: asked.rows], seed, Path(folder) / f"{name} {seed}")
                found[name].append((seconds, 100 * spearman(encode, sts)))
                print(f"| {name}, seed {seed} | {seconds:.1f} | {found[name][-1][1]:.2f} |", flush=True)
    means = {name: [statistics.mean(column) for column in zip(*rows, strict=True)] for name, rows in found.items()}
    for name, (seconds, score) in means.items():
        print(f"| **{name}, mean** | {seconds:.1f} | {score:.2f} |")
    print(f"\nours takes {means['bothways'][0] / means['sentence-transformers'][0]:.2f} of the peer's time")


if __name__ == "__main__":
    main()
