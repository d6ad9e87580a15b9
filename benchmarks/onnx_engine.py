"""Exported folders in the engine against transformers: CPU time on one thread, measured in turns.

    python benchmarks/onnx_engine.py --texts examples/reviews.tsv

Ours: `Predictor` on the adapter `emotion`, exported in every precision, from texts to labels. Theirs: the same encoder
without a head, in torch, with its tokenizer, in batches of 16 sorted by length. One text: a short one alone; all: the
whole file. Other programs disturb both alike, as each repetition runs all of them after each other; medians. One text
is asked for twenty times in a row, as by a program with one model, whose weights stay in the processor's cache.
"""

import argparse
import os
import statistics
import tempfile
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

os.environ["HF_HUB_OFFLINE"] = "1"
os.environ["OMP_NUM_THREADS"] = "1"

import torch
import transformers

import bothways
from bothways.data.texts import read_texts_labelled
from bothways.model.exported import FILES, FOLDER

BATCH, ROW = 16, 20


def cpu_seconds(work: Callable[[], Any], times: int = 1) -> list[float]:
    """The CPU time of each call; of several the first is left out."""
    found = []
    for _ in range(times):
        start = time.process_time()
        work()
        found.append(time.process_time() - start)
    return found[min(1, times - 1) :]


def peer() -> Callable[[list[str]], None]:
    """transformers, from texts to hidden states."""
    folder = bothways.boxed("en")
    model = transformers.AutoModelForMaskedLM.from_pretrained(folder, dtype=torch.float32).base_model.eval()
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder)

    def run(texts: list[str]) -> None:
        ordered = sorted(texts, key=len)
        with torch.inference_mode():
            for i in range(0, len(ordered), BATCH):
                model(**tokenizer(ordered[i : i + BATCH], padding=True, return_tensors="pt"))

    return run


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("--texts", required=True, help="a file of texts")
    options.add_argument("--repeat", type=int, default=3)
    asked = options.parse_args()
    torch.set_num_threads(1)
    texts = [row.texts[0] for row in read_texts_labelled([asked.texts])]
    short = sorted(texts, key=len)[len(texts) // 4]
    works: dict[str, Callable[[list[str]], Any]] = {}
    with tempfile.TemporaryDirectory() as place:
        for precision in FILES:
            bothways.export_onnx(bothways.boxed("emotion"), place, precision=precision)
            works[precision] = bothways.Predictor.load(Path(place) / FOLDER / FILES[precision])
        works["bothways, torch"] = bothways.Predictor.load("emotion", device="cpu")
        works["transformers, torch"] = peer()
        found: dict[tuple[str, str], list[float]] = {}
        for kind, some, times in (("one", [short], ROW), ("all", texts, 1)):
            for turn in range(asked.repeat + 1):
                for name, work in works.items():
                    seconds = cpu_seconds(partial(work, some), times)
                    if turn:  # the first turn warms up
                        found.setdefault((name, kind), []).extend(seconds)
    middle = {key: statistics.median(values) for key, values in found.items()}
    print("| | one text, ms | × transformers | all texts, s | times as fast |\n|---|---|---|---|---|")
    for name in works:
        one, many = middle[name, "one"], middle[name, "all"]
        of_one, of_many = one / middle["transformers, torch", "one"], middle["transformers, torch", "all"] / many
        print(f"| {name} | {1e3 * one:.1f} | {of_one:.2f} | {many:.2f} | {of_many:.2f} |")


if __name__ == "__main__":
    main()
