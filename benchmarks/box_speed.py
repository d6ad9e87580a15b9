"""How fast the model in the box is on this machine, beside transformers with the same folder.

    python benchmarks/box_speed.py

The texts are those of examples/reviews.tsv. Every figure is the median of interleaved rounds, after warming up; the
first answer is timed from the prompt, with the start of Python and the loading of the model. On a shared machine only
ratios mean something.
"""

import argparse
import csv
import os
import platform
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

os.environ |= {"HF_HUB_OFFLINE": "1", "TRANSFORMERS_VERBOSITY": "error", "HF_HUB_DISABLE_PROGRESS_BARS": "1"}

import numpy as np
import torch
import transformers
from numpy.typing import NDArray

import bothways

REVIEWS = Path(__file__).parents[1] / "examples/reviews.tsv"
FIRST = ("fill", "Paris is the [MASK] of France.")
BATCH = 32


def theirs(folder: Path, texts: list[str]) -> Callable[[], NDArray[np.float32]]:
    """Means of the last states by transformers, padded batches of the texts in order of length."""
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
    model = transformers.AutoModel.from_pretrained(folder, dtype=torch.float32).eval()
    order = sorted(range(len(texts)), key=lambda i: len(texts[i]))

    @torch.inference_mode()
    def call() -> NDArray[np.float32]:
        found = np.empty((len(texts), model.config.hidden_size), np.float32)
        for start in range(0, len(order), BATCH):
            some = order[start : start + BATCH]
            given = tokenizer([texts[i] for i in some], padding=True, return_tensors="pt")
            states = model(given["input_ids"], attention_mask=given["attention_mask"]).last_hidden_state
            mask = given["attention_mask"][..., None]
            found[some] = ((states * mask).sum(1) / mask.sum(1)).numpy()
        return found

    return call


def median_seconds(
    calls: dict[str, Callable[[], object]], rounds: int, clock: Callable[[], float] = time.perf_counter
) -> dict[str, float]:
    """Of each call, in turns, so that all see the same neighbours."""
    times: dict[str, list[float]] = {name: [] for name in calls}
    for _ in range(rounds + 1):
        for name, call in calls.items():
            began = clock()
            call()
            times[name].append(clock() - began)
    return {name: statistics.median(some[1:]) for name, some in times.items()}


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("--rounds", type=int, default=7)
    options.add_argument("--texts", type=int, default=0, help="number of texts (default: all)")
    asked = options.parse_args()
    if asked.rounds < 1 or asked.texts < 0:
        options.error("--rounds is 1 or more, --texts 0 or more")
    with REVIEWS.open(encoding="utf-8") as file:
        texts = [row["text"] for row in csv.DictReader(file, delimiter="\t", quoting=csv.QUOTE_NONE)]
    texts = texts[: asked.texts or None]
    folder, model = bothways.boxed(), bothways.load()
    read = model.require_tokenizer()
    tokens = sum(len(read(text).ids) for text in texts)
    print(
        f"{platform.machine()}, {torch.get_num_threads()} threads; Python {platform.python_version()}, torch "
        f"{torch.__version__}, transformers {transformers.__version__}; {len(texts)} texts, {tokens:,} tokens"
    )
    peer = theirs(folder, texts)
    distance = float(np.abs(bothways.encode(texts, model) - peer()).max())
    predictors = {name: bothways.Predictor.load(bothways.boxed(name)) for name in ("emotion", "pos")}
    calls: dict[str, Callable[[], object]] = {
        "encode": lambda: bothways.encode(texts, model),
        "encode, transformers": peer,
        **{f"predict, {name}": partial(one, texts) for name, one in predictors.items()},
        "fill, a word and a blank": lambda: [bothways.fill(f"{text.split()[0]} [MASK]", model) for text in texts],
    }
    seconds = median_seconds(calls, asked.rounds)
    command = [sys.executable, "-m", "bothways", *FIRST]
    first = median_seconds({"": lambda: subprocess.run(command, check=True, capture_output=True)}, min(asked.rounds, 3))
    print("| | texts a second | |\n|---|---|---|")
    for name, spent in seconds.items():
        ratio = f"{seconds['encode, transformers'] / spent:.2f} ×" if name == "encode" else ""
        print(f"| {name} | {len(texts) / spent:,.0f} | {ratio} |")
    print(f"the first answer of `bothways fill`: {first['']:.1f} s; largest difference of vectors: {distance:.1e}")


if __name__ == "__main__":
    main()
