"""Weights that others trained, read here: the numbers that transformers gives, and sentence vectors of their quality.

    python benchmarks/real_weights.py --minilm DIR --stsb FILE
    python benchmarks/real_weights.py --folder DIR --fairseq checkpoint.pt
    python benchmarks/real_weights.py --vectors DIR --vectors DIR --texts FILE

--minilm: all-MiniLM-L6-v2, a Hugging Face folder. --stsb: STS-B's development set, .jsonl with sentence1, sentence2 and
score. --folder: any masked-word model in Hugging Face's layout (may be repeated). --fairseq: a RoBERTa of fairseq, with
its dict.txt beside it (may be repeated). --vectors: a folder of sentence-transformers, with modules.json, weights in 32
bits, tokenizer, such as all-MiniLM-L6-v2, all-mpnet-base-v2 or gte-small (may be repeated). --texts: .txt, one text
per line, of all lengths that matter; sentence-transformers and this library encode each of them on a CPU.
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
from numpy.typing import NDArray
from scipy import stats  # type: ignore[import-untyped]

import bothways
from bothways.data.texts import read_texts_labelled
from bothways.model.batch import Batch

Vectors = NDArray[np.float32]
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


def vectors(folder: Path, texts: list[str]) -> list[str]:
    """How far our vectors are from sentence-transformers' on its folder, and its own on the folder that we save."""
    from sentence_transformers import SentenceTransformer

    def judged(opened: Path) -> Vectors:
        judge = SentenceTransformer(str(opened), device="cpu")
        return np.asarray(judge.encode(texts, batch_size=32, show_progress_bar=False))

    expected = judged(folder)
    found = bothways.encode(texts, folder, device="cpu", dtype="fp32", long="cut")
    with tempfile.TemporaryDirectory() as made:
        bothways.save(bothways.load(folder), Path(made) / "saved")
        again = judged(Path(made) / "saved")
    return [f"we open theirs: {_apart(found, expected)}", f"they open ours: {_apart(again, expected)}"]


def _apart(found: Vectors, expected: Vectors) -> str:
    a, b = (
        v.astype(np.float64) / np.linalg.norm(v.astype(np.float64), axis=1, keepdims=True) for v in (found, expected)
    )
    return (
        f"worst cosine {(a * b).sum(1).min():.9f}, largest difference of a number {np.abs(found - expected).max():.1e}"
    )


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("--minilm", type=Path)
    options.add_argument("--stsb", type=Path)
    options.add_argument("--folder", type=Path, action="append", default=[])
    options.add_argument("--fairseq", type=Path, action="append", default=[])
    options.add_argument("--vectors", type=Path, action="append", default=[])
    options.add_argument("--texts", type=Path)
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
    if asked.vectors and asked.texts:
        texts = [line for line in asked.texts.read_text(encoding="utf-8").split("\n") if line.strip()]
        words = sorted(len(text.split()) for text in texts)
        print(f"{len(texts):,} texts of {words[0]} to {words[-1]} words, {words[len(words) // 2]} in the middle")
        for folder in asked.vectors:
            for line in vectors(folder, texts):
                print(f"{folder.name}, {line}", flush=True)


if __name__ == "__main__":
    main()
