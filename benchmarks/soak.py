"""Hours of training and predicting in one process: memory, threads and open files must stay flat.

    python benchmarks/soak.py                          # an hour
    OMP_NUM_THREADS=1 python benchmarks/soak.py --minutes 20

A round runs each verb of the library once on a tiny random model (2 layers of width 32) and 200 lines: pack, pretrain,
finetune, predict, predict_files, encode_files, fill, build and search an index. After each round and a garbage
collection it samples the resident set, the threads and the open descriptors of the process (Linux only). A table shows
the samples at equal distances of time. The first fifth of the time warms up. After it, neither threads nor descriptors
may grow, and the straight line through the resident set may rise by 5 MiB at most: otherwise the exit status is 1.
"""

import argparse
import gc
import os
import platform
import random
import shutil
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch

import bothways
from bothways.model.checkpoint import save
from bothways.model.config import EncoderConfig, Learned, ModelConfig
from bothways.model.model import Model
from bothways.pretraining.recipe import read_recipe
from bothways.scale import encode_files, predict_files
from bothways.tasks.recipe import finetune_recipe
from bothways.text.tokenizer import BERT_SPECIALS, Tokenizer

SYLLABLES = [first + second for first in "bdfgklmnprstvz" for second in "aeiou"]
LINES, WORDS = 200, 8
WARM_UP = 0.2
"""Share of the time."""
GROWTH = 5.0
"""MiB by which the line through the resident set may rise."""


@dataclass(frozen=True)
class Sample:
    """What the process holds after a round."""

    seconds: float
    rounds: int
    resident: float
    """MiB."""
    threads: int
    descriptors: int


def prepare(home: Path) -> None:
    """A model, a text, and rows with a label."""
    pieces = [*BERT_SPECIALS, *SYLLABLES, *(f"##{piece}" for piece in SYLLABLES)]
    shape = EncoderConfig(
        vocab_size=len(pieces), width=32, layers=2, num_heads=2, ffn_width=64, positions=Learned(64), init_std=0.2
    )
    model = Model.new(ModelConfig(shape, ("pooler", "masked", "next")), Tokenizer.from_pieces(pieces), seed=0)
    save(model, home / "model")
    draws = random.Random(0)
    lines = [" ".join(draws.choices(SYLLABLES, k=WORDS)) for _ in range(LINES)]
    (home / "text.txt").write_text("\n".join(lines), encoding="utf-8")
    rows = [f"{line}\t{'yes' if 'a' in line[:8] else 'no'}" for line in lines]
    (home / "rows.tsv").write_text("\n".join(["text\tlabel", *rows]), encoding="utf-8")


def one_round(home: Path, out: Path) -> None:
    """Each verb once; what it writes is removed by the next round."""
    shutil.rmtree(out, ignore_errors=True)
    model, text, rows = home / "model", home / "text.txt", str(home / "rows.tsv")
    bothways.pack([text], Tokenizer.load(model), out / "packed", valid=0.1, each="lines")
    sizes = ["model.width=32", "model.ffn_width=64", "data.valid_sequences=10", "run.minutes=0", "run.steps=10"]
    plan = read_recipe("tiny", ["objectives=['mlm']", *sizes, f"data.train=['{out / 'packed'}']", "run.device='cpu'"])
    bothways.pretrain(plan, out / "pretrained")
    tuning = {
        "task": "classify",
        "data": {"train": [rows], "dev": [rows]},
        "model": {"init": str(model)},
        "run": {"steps": 10, "batch_size": 16, "device": "cpu"},
    }
    tuned = bothways.finetune(finetune_recipe(tuning, []), out / "tuned").folder
    predictor = bothways.Predictor.load(tuned, device="cpu")
    lines = text.read_text(encoding="utf-8").splitlines()
    if len(list(predictor.stream(lines))) != LINES:
        raise SystemExit("predict lost rows")
    predict_files(rows, out / "answers.jsonl", tuned, text="text", device="cpu")
    encode_files(text, out / "vectors.npy", model, device="cpu")
    bothways.fill("ba de [MASK] go", model)
    index = bothways.Index.build(text, out / "index", model, device="cpu")
    index.search(lines[0], 3)


def sample(begun: float, rounds: int) -> Sample:
    gc.collect()  # what is open in a cycle of references is closed at some later time
    own = Path("/proc/self")
    pages = int((own / "statm").read_text().split()[1])
    counts = (len(list((own / name).iterdir())) for name in ("task", "fd"))
    return Sample(time.monotonic() - begun, rounds, pages * os.sysconf("SC_PAGE_SIZE") / 2**20, *counts)


def growth(samples: Sequence[Sample]) -> float:
    """MiB by which the straight line through the resident set rises from the first sample to the last."""
    seconds = np.array([one.seconds for one in samples])
    resident = np.array([one.resident for one in samples])
    if len(samples) < 2:
        return 0.0
    return float(np.polyfit(seconds, resident, 1)[0] * (seconds[-1] - seconds[0]))


def problems(samples: Sequence[Sample]) -> list[str]:
    """What grew after the warm-up."""
    last = samples[-1].seconds
    warm = [one for one in samples if one.seconds >= WARM_UP * last]
    found = []
    if (rise := growth(warm)) > GROWTH:
        found.append(f"the resident set rose by {rise:.1f} MiB, and at most {GROWTH} were expected")
    for name in ("threads", "descriptors"):
        first, final = (max(getattr(one, name) for one in part) for part in (warm[: len(warm) // 2 or 1], warm[-1:]))
        if final > first:
            found.append(f"{name} rose from {first} to {final}")
    return found


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("--minutes", type=float, default=60.0)
    options.add_argument("--rows", type=int, default=12, help="rows of the table")
    asked = options.parse_args()
    print(f"{platform.machine()}, Python {platform.python_version()}, torch {torch.__version__}", flush=True)
    samples: list[Sample] = []
    with tempfile.TemporaryDirectory(prefix="bothways-soak-") as folder:
        prepare(Path(folder))
        begun = time.monotonic()
        while not samples or samples[-1].seconds < 60 * asked.minutes:
            one_round(Path(folder), Path(folder) / "out")
            samples.append(sample(begun, len(samples) + 1))
    print("\n| minutes | rounds | resident set, MiB | threads | descriptors |\n|---|---|---|---|---|")
    ends = np.linspace(0, samples[-1].seconds, asked.rows + 1)[1:]
    for end in ends:
        one = max((one for one in samples if one.seconds <= end + 1e-9), key=lambda one: one.rounds, default=samples[0])
        print(f"| {one.seconds / 60:.1f} | {one.rounds:,} | {one.resident:.1f} | {one.threads} | {one.descriptors} |")
    warm = [one for one in samples if one.seconds >= WARM_UP * samples[-1].seconds]
    print(f"\nafter the warm-up the line through the resident set rises by {growth(warm):+.1f} MiB")
    found = problems(samples)
    print("\n".join(found) or "flat")
    sys.exit(1 if found else 0)


if __name__ == "__main__":
    main()
