"""BERTScore of the same pairs by bothways and by the bert_score package: seconds, pairs per second, largest difference.

    pip install bert-score==0.3.13
    python benchmarks/bertscore.py --data FILE --model DIR

--data: a file of texts: lines of .txt, plain, .gz or .xz, or rows of .jsonl, .csv or .tsv with a column `text`. Texts
with similar numbers of characters are paired. --model: a folder that transformers can open too. Both sides compute in
fp32, read the model once before the clock starts, cut texts that are too long, and take turns. The package is also run
with batches of one pair: in larger batches it takes 0, the similarity of its padding, for maxima below 0.
"""

import argparse
import os
import random
import statistics
import tempfile
import time
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

os.environ["HF_HUB_OFFLINE"] = "1"
os.environ["TOKENIZERS_PARALLELISM"] = "true"

import numpy as np
import torch

import bothways
from bothways.text.files import read_texts

Scores = list[np.ndarray[Any, Any]]


def read_pairs(file: Path, count: int) -> tuple[list[str], list[str]]:
    """Candidates and references, in random order."""
    texts = sorted({text.strip() for text in read_texts(file)} - {""})
    draws = random.Random(0)
    draws.shuffle(texts)
    texts = sorted(texts[: 2 * count], key=len)
    pairs = list(zip(texts[::2], texts[1::2], strict=False))
    draws.shuffle(pairs)
    if not pairs:
        raise SystemExit(f"{file} has fewer than two texts")
    return [first for first, _ in pairs], [second for _, second in pairs]


def package(folder: str, layer: int, device: str) -> Callable[..., Scores]:
    """The package with a model: candidates, references, and pairs in a batch → scores."""
    from bert_score import BERTScorer

    scorer = BERTScorer(model_type=folder, num_layers=layer, device=device)
    return lambda candidates, references, batch_size=64: [
        part.numpy() for part in scorer.score(candidates, references, batch_size=batch_size)
    ]


def timed(score: Callable[..., Scores], *texts: list[str]) -> tuple[float, Scores]:
    begun = time.perf_counter()
    found = score(*texts)
    return time.perf_counter() - begun, found


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("--data", type=Path, required=True, help="a file of texts, described above")
    options.add_argument("--model", type=Path, help="model folder; the default is the model in the box")
    options.add_argument("--pairs", type=int, default=1000, help="pairs to score")
    options.add_argument("--layer", type=int, help="layer; the default is the last one")
    options.add_argument("--rounds", type=int, default=3, help="rounds, of which the median counts")
    options.add_argument("--device", default="cpu", help="cpu or cuda")
    asked = options.parse_args()
    candidates, references = read_pairs(asked.data, asked.pairs)
    model = bothways.load(asked.model, device=asked.device)
    layer = model.config.encoder.layers if asked.layer is None else asked.layer
    warnings.simplefilter("ignore")  # texts are cut on both sides

    def ours(left: list[str], right: list[str]) -> Scores:
        return list(bothways.bert_score(left, right, model, layer=layer, long="cut"))

    with tempfile.TemporaryDirectory() as folder:
        fp32 = str(Path(folder) / "model")  # transformers would compute in the precision of the file
        bothways.save(model, Path(fp32))
        theirs = package(fp32, layer, asked.device)
        sides = {"bothways": ours, "bert_score": theirs}
        few = candidates[:64], references[:64]
        for score in sides.values():
            score(*few)
        times: dict[str, list[float]] = {name: [] for name in sides}
        for _ in range(asked.rounds):
            for name, score in sides.items():
                times[name].append(timed(score, candidates, references)[0])
        mine = ours(*few)
        single = theirs(*few, batch_size=1)
        padded = theirs(*few)
    far, farther = (max(float(np.abs(a - b).max()) for a, b in zip(mine, o, strict=True)) for o in (single, padded))
    print(f"{len(candidates):,} pairs, layer {layer}, {asked.device}, torch {torch.__version__}\n")
    print("| | seconds | pairs per second |\n|---|---|---|")
    medians = {name: statistics.median(found) for name, found in times.items()}
    for name, seconds in medians.items():
        print(f"| {name} | {seconds:.2f} | {len(candidates) / seconds:,.0f} |")
    print(
        f"\nratio {medians['bert_score'] / medians['bothways']:.2f}; largest difference of 64 pairs {far:.1e}", end=""
    )
    print(f" (with the package's batches of 64: {farther:.1e})")


if __name__ == "__main__":
    main()
