"""How fast the included model for vectors is, beside all-MiniLM-L6-v2 with bothways and with sentence-transformers.

    python benchmarks/sentence_speed.py --peer DIR

DIR: a folder of all-MiniLM-L6-v2. The texts are those of examples/reviews.tsv, alone and eight joined to one. Medians
of CPU time on one thread, in turns, after warming up: on a shared machine only their ratios mean something.
"""

import argparse
import csv
import platform
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import sentence_transformers
import torch
from box_speed import REVIEWS, median_seconds

import bothways

JOINED = 8


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("--peer", type=Path, required=True, metavar="DIR")
    options.add_argument("--rounds", type=int, default=7)
    asked = options.parse_args()
    torch.set_num_threads(1)
    with REVIEWS.open(encoding="utf-8", newline="") as file:
        short = [row["text"] for row in csv.DictReader(file, delimiter="\t")]
    long = [" ".join(short[i : i + JOINED]) for i in range(len(short) - JOINED + 1)]
    ours = {name: bothways.load(name).eval() for name in ("sentence", str(asked.peer))}
    theirs = sentence_transformers.SentenceTransformer(str(asked.peer), device="cpu")
    print(f"{platform.machine()}, 1 thread; Python {platform.python_version()}, torch {torch.__version__}, "
          f"sentence-transformers {sentence_transformers.__version__}")  # fmt: skip
    print("| texts | tokens | sentence | MiniLM, bothways | MiniLM, sentence-transformers | times slower | |")
    print("|---|---|---|---|---|---|---|")
    tokenizer = ours["sentence"].require_tokenizer()
    for texts in (short, long):
        calls: dict[str, Callable[[], Any]] = {
            "sentence": partial(bothways.encode, texts, ours["sentence"]),
            "bothways": partial(bothways.encode, texts, ours[str(asked.peer)]),
            "theirs": partial(theirs.encode, texts, show_progress_bar=False),
        }
        found = median_seconds(calls, asked.rounds, time.process_time)
        tokens = np.mean([len(tokenizer(text).ids) for text in texts])
        cells = [f"{1000 * found[name] / len(texts):.2f} ms" for name in calls]
        cells += [f"{found[name] / found['sentence']:.2f}" for name in ("bothways", "theirs")]
        print(f"| {len(texts)} | {tokens:.0f} | {' | '.join(cells)} |", flush=True)


if __name__ == "__main__":
    main()
