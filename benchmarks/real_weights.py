"""Weights that others trained, read here: the numbers that transformers gives, and sentence vectors of their quality.

    python benchmarks/real_weights.py --minilm DIR --stsb FILE
    python benchmarks/real_weights.py --folder DIR --fairseq checkpoint.pt

--minilm: all-MiniLM-L6-v2, a Hugging Face folder. --stsb: STS-B's development set, .jsonl with sentence1, sentence2 and
score. --folder: any masked-word model in Hugging Face's layout (may be repeated). --fairseq: a RoBERTa of fairseq, with
its dict.txt beside it (may be repeated).
"""

import argparse
import os
import platform
import tempfile
import warnings
from pathlib import Path

os.environ["HF_HUB_OFFLINE"] = "1"
os.environ.setdefault("TRANSFORMERS_VERBOSITY", "error")

import numpy as np
import torch
import transformers
from scipy import stats  # type: ignore[import-untyped]

import bothways
from bothways.data.texts import read_texts_labelled
from bothways.model.batch import Batch

LENGTHS = (5, 40, 200)


def difference(folder: Path) -> str:
    """The largest difference of masked-word logits from transformers', on random tokens of several lengths."""
    ours = bothways.load(folder)
    theirs = transformers.AutoModelForMaskedLM.from_pretrained(folder, dtype=torch.float32).eval()
    vocabulary, limit = ours.config.encoder.vocab_size, ours.config.encoder.max_length
    worst = highest = 0.0
    for length in LENGTHS:
        draws = torch.Generator().manual_seed(length)
        ids = torch.randint(5, vocabulary, (min(length, limit),), generator=draws)
        batch = Batch.pack([ids.tolist()])
        with torch.no_grad():
            found, expected = ours.masked(ours.encoder(batch)), theirs(ids[None]).logits[0]
        worst = max(worst, float((found - expected).abs().max()))
        highest = max(highest, float(expected.abs().max()))
    return (
        f"{ours.config.family} {ours.config.encoder.layers} × {ours.config.encoder.width}: {worst:.1e} of {highest:.0f}"
    )


def correlations(folder: Path, file: Path) -> dict[str, float]:
    """Spearman's, with the gold, of the cosines of sentence vectors."""
    from sentence_transformers import SentenceTransformer

    pairs = [example for example in read_texts_labelled([str(file)]) if example.gold is not None]
    gold = [float(str(example.gold)) for example in pairs]
    texts = [text for example in pairs for text in example.texts]
    judge = SentenceTransformer(str(folder), device="cpu")
    found = {
        "bothways": bothways.encode(texts, folder),
        "sentence-transformers": np.asarray(judge.encode(texts, batch_size=64, show_progress_bar=False)),
        "the token table alone": bothways.encode(texts, folder, layers="static"),
    }
    scores = {}
    for name, vectors in found.items():
        unit = vectors / np.linalg.norm(vectors, axis=1, keepdims=True)
        scores[name] = 100 * float(stats.spearmanr((unit[::2] * unit[1::2]).sum(1), gold)[0])
    return scores


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("--minilm", type=Path)
    options.add_argument("--stsb", type=Path)
    options.add_argument("--folder", type=Path, action="append", default=[])
    options.add_argument("--fairseq", type=Path, action="append", default=[])
    asked = options.parse_args()
    print(f"{platform.machine()}; Python {platform.python_version()}, torch {torch.__version__}, "
          f"transformers {transformers.__version__}")  # fmt: skip
    for folder in asked.folder:
        print(f"{folder.name}: {difference(folder)}", flush=True)
    for file in asked.fairseq:
        with tempfile.TemporaryDirectory() as made, warnings.catch_warnings():
            warnings.simplefilter("ignore")
            bothways.convert(file, Path(made) / "roberta")
            print(f"{file.name}: {difference(Path(made) / 'roberta')}", flush=True)
    if asked.minilm and asked.stsb:
        for name, score in correlations(asked.minilm, asked.stsb).items():
            print(f"STS-B, {name}: {score:.2f}")


if __name__ == "__main__":
    main()
