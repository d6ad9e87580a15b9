"""Scores of 16-bit vectors and models are computed in fp32: none tie where fp32 tells them apart."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import bothways
from bothways.model.checkpoint import save
from bothways.model.config import ModelConfig
from bothways.model.model import Model
from bothways.model.pooling import Pooling
from bothways.model.sentence import Dense, Normalize, Sentence
from bothways.predict.predictor import Predictor
from bothways.predict.rerank import Reranker
from bothways.search.nearest import nearest
from bothways.search.pairs import similar_pairs
from bothways.tasks.folder import with_task
from bothways.text.tokenizer import Tokenizer
from helpers import TINY, WORDS, config_for, make_loud

pytestmark = pytest.mark.filterwarnings("ignore:mkldnn_matmul failed")  # a CPU without bf16 instructions
HALVES = ["bf16", "fp16"]
DTYPES = {"bf16": torch.bfloat16, "fp16": torch.float16}
DOCUMENTS = [f"the {WORDS[i]} reads and writes in the {WORDS[i + 7]} house" for i in range(60)]
TANH = "torch.nn.modules.activation.Tanh"


def a_bit_apart() -> tuple[Any, Any]:
    """A query and fp16 rows of length 1 or so, whose products with it differ by some 1e-5."""
    draws = np.random.default_rng(0)
    query, row = draws.standard_normal((2, 1, 64)).astype(np.float32) / 8
    rows = np.repeat(row, 40, 0).astype(np.float16)
    for i in range(40):
        rows[i, i] = np.nextafter(rows[i, i], np.float16(np.inf))
    return query, rows


def in_order(scores: Any, wanted: Any) -> None:
    """As many different scores as fp32 has, in its order."""
    assert len(np.unique(wanted.astype(np.float32))) > 20
    assert np.array_equal(np.argsort(-scores, kind="stable"), np.argsort(-wanted.astype(np.float32), kind="stable"))
    assert len(np.unique(scores)) == len(np.unique(wanted.astype(np.float32)))


def test_rows_that_differ_in_the_last_bit_of_16() -> None:
    query, rows = a_bit_apart()
    wanted = (rows.astype(np.float64) @ query[0].astype(np.float64)).astype(np.float32)
    scores, found = nearest(query, rows, len(rows), device="cpu")
    in_order(scores[0][np.argsort(found[0])], wanted)
    with pytest.raises(AssertionError):  # products in fp16 tie
        in_order((rows * query[0].astype(np.float16)).sum(1), wanted)


def test_pairs_of_rows_that_differ_in_the_last_bit_of_16() -> None:
    query, rows = a_bit_apart()
    matrix = np.concatenate([query.astype(np.float16), rows])
    texts = [f"text {i}" for i in range(len(matrix))]
    pairs = {(first, second): score for score, first, second in similar_pairs(texts, vectors=matrix, above=-1.0)}
    unit = matrix.astype(np.float64)
    unit /= np.linalg.norm(unit, axis=1, keepdims=True)
    in_order(np.array([pairs[0, i] for i in range(1, len(matrix))]), (unit[1:] @ unit[0]).astype(np.float32))


def model_for(tokenizer: Tokenizer) -> Model:
    model = Model.new(ModelConfig(replace(TINY, layers=1), ("pooler",)), tokenizer)
    make_loud(model)
    return model


def are_fp32(scores: Any, dtype: str) -> None:
    """They are not rounded to 16 bits, and no two are equal."""
    found = torch.tensor(np.asarray(scores, np.float32)).flatten()
    assert len(found.unique()) == len(found)
    rounded = found.to(DTYPES[dtype]).float()
    assert int((rounded != found).sum()) > 0.8 * len(found)


@pytest.mark.parametrize("dtype", HALVES)
def test_logits_of_a_reranker_and_of_a_classifier(dtype: Any, tokenizer: Tokenizer) -> None:
    scorer = with_task(model_for(tokenizer), config_for("score", texts=2), ("score",))
    make_loud(scorer.heads, 1)
    pairs = [("the cat", document) for document in DOCUMENTS]
    ranker = Reranker(scorer, device="cpu", dtype=dtype)
    are_fp32(ranker._logits(pairs, lambda some, *_: some), dtype)
    assert len({hit.score for hit in ranker.rank("the cat", DOCUMENTS)}) == len(DOCUMENTS)
    labelled = with_task(model_for(tokenizer), config_for("classify", "single"), ("a", "b"))
    make_loud(labelled.heads, 1)
    answers = Predictor(labelled, device="cpu", dtype=dtype)(DOCUMENTS)
    assert len({answer["score"] for answer in answers}) == len(DOCUMENTS)


@pytest.mark.parametrize("dtype", HALVES)
def test_vectors_behind_a_dense_layer_are_fp32(dtype: Any, tokenizer: Tokenizer, tmp_path: Path) -> None:
    """Also where a folder's vectors are compared by the task of sentence vectors."""
    model = model_for(tokenizer)
    model.sentence = Sentence(Pooling(("mean",)), [Dense(32, 24, True, TANH), Normalize()])
    make_loud(model.sentence, 2)
    save(model, tmp_path)
    vectors = bothways.encode(DOCUMENTS, tmp_path, device="cpu", dtype=dtype)
    are_fp32(vectors[:, 0], dtype)
    assert np.allclose(np.linalg.norm(vectors, axis=1), 1, atol=1e-6)
    pairs = [("the cat", document) for document in DOCUMENTS]
    scores = [answer["score"] for answer in Predictor.load(tmp_path, device="cpu", dtype=dtype)(pairs)]
    first = bothways.encode(["the cat"], tmp_path, device="cpu", dtype=dtype)[0]
    assert len(set(scores)) == len(DOCUMENTS)
    assert np.abs(np.array(scores) - vectors @ first).max() < 1e-4
