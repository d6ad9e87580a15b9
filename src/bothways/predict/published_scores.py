"""What the authors of BERTScore published for known models: the best layer, and files of baselines."""

import math
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from bothways.errors import BothwaysError
from bothways.text.files import read_lines
from bothways.text.tables import find_separator, parse_csv

_BEST_LAYERS = {
    1: "bert_uncased_L-2_H-128_A-2 bert_uncased_L-2_H-256_A-4 bert_uncased_L-2_H-512_A-8",
    2: "bert_uncased_L-2_H-768_A-12",
    3: "bert_uncased_L-4_H-128_A-2 bert_uncased_L-4_H-256_A-4 bert_uncased_L-4_H-512_A-8 bert_uncased_L-4_H-768_A-12",
    4: "distilbert-base-uncased-distilled-squad distilbert-base-turkish-cased deberta-v3-small",
    5: "distilbert-base-uncased distilbert-base-multilingual-cased distilroberta-base bert_uncased_L-6_H-128_A-2 "
    "bert_uncased_L-6_H-256_A-4 bert_uncased_L-6_H-512_A-8 bert_uncased_L-6_H-768_A-12",
    6: "bert_uncased_L-8_H-512_A-8",
    7: "roberta-base-openai-detector bert_uncased_L-8_H-128_A-2 bert_uncased_L-8_H-256_A-4 bert_uncased_L-8_H-768_A-12",
    8: "bert-base-chinese scibert_scivocab_uncased albert-xxlarge-v1 albert-xxlarge-v2 mpnet-base spanbert-base-cased "
    "unsup-simcse-roberta-base bert_uncased_L-10_H-128_A-2 bert_uncased_L-10_H-256_A-4 bert_uncased_L-10_H-768_A-12",
    9: "bert-base-uncased bert-base-multilingual-cased bert-base-cased-finetuned-mrpc scibert_scivocab_cased "
    "scibert_basevocab_uncased albert-base-v2 xlm-roberta-base electra-small-generator electra-base-discriminator "
    "bertweet-base deberta-base deberta-base-mnli deberta-v3-base bert_uncased_L-10_H-512_A-8 "
    "bert_uncased_L-12_H-768_A-12",
    10: "roberta-base albert-base-v1 electra-base-generator finbert bert-base-turkish-cased deberta-v2-xlarge "
    "deberta-v3-xsmall mdeberta-v3-base unsup-simcse-bert-base-uncased sup-simcse-bert-base-uncased "
    "sup-simcse-roberta-base bert_uncased_L-12_H-128_A-2 bert_uncased_L-12_H-512_A-8",
    11: "electra-small-discriminator bert_uncased_L-12_H-256_A-4",
    12: "deberta-v3-large",
    13: "albert-xlarge-v2 unsup-simcse-roberta-large",
    14: "albert-large-v2 electra-large-discriminator",
    15: "roberta-large-openai-detector",
    16: "albert-xlarge-v1 deberta-large sup-simcse-roberta-large",
    17: "roberta-large xlm-roberta-large albert-large-v1 spanbert-large-cased deberta-v2-xlarge-mnli",
    18: "bert-large-uncased electra-large-generator deberta-large-mnli deberta-xlarge DeBERTa-v3-large-mnli "
    "unsup-simcse-bert-large-uncased sup-simcse-bert-large-uncased",
    19: "roberta-large-mnli",
    21: "deberta-v2-xxlarge",
    22: "deberta-v2-xxlarge-mnli",
    40: "deberta-xlarge-mnli",
}
"""Layers that agree best with human judgements (WMT16, to English), with the names of models without their owners."""


def best_layer(folder: Path | str, depth: int) -> int:
    """The published layer of a model by the name of its folder, else its last layer, which is `depth`.

    >>> best_layer("models/bert-base-chinese", 12), best_layer("my-model", 12)
    (8, 12)
    """
    parts = Path(folder).parts[-3:]
    # The Hub's cache has models--OWNER--NAME/snapshots/COMMIT.
    names = {*parts[-1:], *(part.split("--")[-1] for part in parts if part.startswith("models--"))}
    found = [layer for layer, known in _BEST_LAYERS.items() if names & set(known.split()) and layer <= depth]
    return found[0] if found else depth


def read_baseline(path: Path | str, layer: int) -> NDArray[np.float64]:
    """Precision, recall and F1 of unrelated sentences at a layer, from a file with the columns LAYER, P, R, F."""
    path = Path(path)
    if not path.is_file():
        raise BothwaysError(f"there is no baseline file {path}", "no-file", path)
    lines = list(read_lines(path))
    rows = [[cell.strip() for cell in row] for _, row in parse_csv(path, lines, find_separator("".join(lines[:1])))]
    if not rows or rows[0] != ["LAYER", "P", "R", "F"]:
        raise BothwaysError(
            f"{path} is no file of baselines: expected the columns LAYER, P, R, F in its first line", "no-column", path
        )
    for row in rows[1:]:
        if row[0] == str(layer):
            return _numbers(path, row)
    has = f"{rows[1][0]} to {rows[-1][0]}" if len(rows) > 1 else "none"
    raise BothwaysError(f"{path} has no baseline for layer {layer}: it has {has}", "no-such-layer", layer)


def _numbers(path: Path, row: list[str]) -> NDArray[np.float64]:
    try:
        found = np.array([float(cell) for cell in row[1:]])
    except ValueError:
        found = np.array([math.nan])
    if found.shape != (3,) or not (found < 1).all():
        raise BothwaysError(
            f"{path}: layer {row[0]} has {', '.join(row[1:]) or 'nothing'}, expected three numbers below 1",
            "not-a-number",
            path,
        )
    return found
