"""The same answer whatever the batch: alone, in any company, in any order, in every family and precision."""

import random
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch

from bothways.engine.reader import WindowSettings
from bothways.model.config import Learned, ModelConfig
from bothways.model.families import FAMILIES
from bothways.model.model import Model
from bothways.predict.encode import encode, encode_tokens
from bothways.predict.fill import fill
from bothways.predict.likelihood import sentence_scores
from bothways.predict.predictor import Predictor
from bothways.tasks.folder import with_task
from bothways.text.tokenizer import Tokenizer
from helpers import DEVICES, TINY, config_for, make_loud, tokenizer_of

BOUNDS = {("fp32", "cpu"): 1e-6, ("fp32", "cuda"): 1e-6, ("bf16", "cuda"): 2e-3, ("bf16", "cpu"): 2**-7}
"""The largest distance of a vector from the one of the text alone, relative to its length.

In bf16 on a CPU one unit of its last place: CPUs that do not compute in bf16 add in an order that depends on the shape.
"""


def mixed_texts(count: int = 24) -> list[str]:
    """Texts of one to some forty tokens; some are equal."""
    words = ["the", "cat", "unbelievable", "paris", "北京", "walks", "talking", "big", "."]
    draws = random.Random(5)
    return [" ".join(draws.choices(words, k=draws.choice([1, 2, 3, 5, 8]))) for _ in range(count)]


def model_like_real_ones(family: str) -> Model:
    """Wide enough that one rounded number is not a large part of a vector, and about as loud as a trained model."""
    tokenizer = tokenizer_of(family)
    shape = replace(TINY, width=128, ffn_width=256, layers=3, vocab_size=tokenizer.size, positions=Learned(64))
    shape = FAMILIES[family].fresh(replace(shape, init_std=0.08))
    return Model.new(ModelConfig(shape, (), family=family), tokenizer).eval()


def distance(found: Any, alone: Any) -> float:
    return max(float(np.linalg.norm(a - b) / np.linalg.norm(b)) for a, b in zip(found, alone, strict=True))


IN_BF16 = ["cuda"] if "cuda" in DEVICES else ["cpu"] if torch.ops.mkldnn._is_mkldnn_bf16_supported() else []
"""A CPU without bf16 instructions rounds at every step, by kernels that depend on the shape."""
CASES = [("fp32", device) for device in DEVICES] + [("bf16", device) for device in IN_BF16]


@pytest.mark.slow
@pytest.mark.parametrize(("dtype", "device"), CASES)
@pytest.mark.parametrize("family", FAMILIES)
def test_vectors_of_every_family(family: str, dtype: str, device: str, monkeypatch: pytest.MonkeyPatch) -> None:
    model = model_like_real_ones(family)
    texts = mixed_texts(12)

    def vectors(some: list[str]) -> Any:
        return encode(some, model, device=device, dtype=dtype)

    alone = np.concatenate([vectors([text]) for text in texts])
    order = random.Random(1).sample(range(len(texts)), len(texts))
    assert distance(vectors(texts), alone) <= BOUNDS[dtype, device]
    assert distance(vectors([texts[i] for i in order]), alone[order]) <= BOUNDS[dtype, device]
    for budget, chunk in ((60, 1_000), (10_000, 5)):
        monkeypatch.setattr("bothways.engine.engine.TOKENS_AT_ONCE", dict.fromkeys(("cpu", "cuda"), budget))
        monkeypatch.setattr("bothways.engine.chunks._TEXTS", dict.fromkeys(("cpu", "cuda"), chunk))
        assert distance(vectors(texts), alone) <= BOUNDS[dtype, device]


@pytest.mark.parametrize("device", DEVICES)
def test_every_kind_of_answer(device: str, tokenizer: Tokenizer) -> None:
    """Windows of long texts, tokens, masks, sentence scores and labels."""
    model = Model.new(ModelConfig(TINY, ("masked",)), tokenizer)
    make_loud(model)
    tuned = with_task(model, config_for("classify", "single", window=WindowSettings(24, 6)), ("a", "b", "c"))
    make_loud(tuned.heads, 1)
    predictor = Predictor(tuned, device=device, dtype="fp32")
    texts = [*mixed_texts(), "the cat sleeps in paris " * 30]
    masked = [f"{text} [MASK]" for text in texts[:-1]]

    def answers(some: list[str]) -> list[Any]:
        tokens = encode_tokens(some, model, long="window", device=device)
        return [encode(some, model, long="window", device=device), *(one.vectors for one in tokens)]

    together = answers(texts)
    for i, text in enumerate(texts):
        vector, tokens = answers([text])
        assert distance([together[0][i]], vector) <= 1e-6
        assert distance([together[i + 1].ravel()], [tokens.ravel()]) <= 1e-6
    scores = [answer["score"] for answer in predictor(texts)]
    assert scores == pytest.approx([predictor(text)["score"] for text in texts], rel=2e-6)
    likelihoods = list(sentence_scores(texts[:-1], model, device=device))
    assert likelihoods == pytest.approx([next(sentence_scores([text], model)) for text in texts[:-1]], rel=2e-6)
    filled = fill(masked, model, top=1, device=device)
    assert [one[0].words for one in filled] == [fill(text, model, top=1)[0].words for text in masked]
    probabilities = [one[0].score for one in filled]
    assert probabilities == pytest.approx([fill(text, model, top=1)[0].score for text in masked], rel=2e-5)
    assert torch.equal(*(torch.from_numpy(vector) for vector in (together[0], answers(texts)[0])))
