"""What bothways does in benchmarks/inference.py. Every function opens a model and returns a call that takes inputs."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from inference_measure import Call

import bothways

MAX_LENGTH = 256
"""What MiniLM's folder says; both sides cut what is longer."""


def opened(folder: Path, device: str, dtype: str) -> Any:
    return bothways.Engine(folder, device=device, dtype=dtype).model


def vectors(folder: Path, device: str, dtype: str) -> Call:
    model = opened(folder, device, dtype)
    return lambda texts: bothways.encode(texts, model, long="cut")


def answers(folder: Path, device: str, dtype: str) -> Call:
    options: dict[str, Any] = {"device": device, "dtype": dtype}
    return bothways.Predictor.load(folder, **options)


def fill_one_by_one(folder: Path, device: str, dtype: str) -> Call:
    model = opened(folder, device, dtype)
    return lambda texts: [bothways.fill(text, model) for text in texts]


def fill_list(folder: Path, device: str, dtype: str) -> Call:
    model = opened(folder, device, dtype)
    fill: Any = bothways.fill
    return lambda texts: fill(texts, model)


def sentence_scores(folder: Path, device: str, dtype: str) -> Call:
    model = opened(folder, device, dtype)
    return lambda texts: list(bothways.sentence_scores(texts, model))


def count_tokens(folder: Path, texts: Sequence[str]) -> int:
    """With special tokens, up to the length at which both sides cut."""
    tokenizer = bothways.load(folder).require_tokenizer()
    return sum(min(len(encoding.ids), MAX_LENGTH) for encoding in tokenizer.batch(list(texts)))
