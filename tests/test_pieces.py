"""Long texts are tokenized in pieces, with the tokens of the whole, and in memory that does not grow with them."""

import json
import os
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tokenizers import AddedToken, Regex, models, normalizers, pre_tokenizers, processors
from tokenizers import Tokenizer as Backend

from bothways import cli
from bothways.data.texts import read_texts_labelled
from bothways.engine import long_reader, token_ids
from bothways.engine.engine import Engine
from bothways.engine.reader import Tally
from bothways.engine.token_ids import TokenIds
from bothways.model import checkpoint
from bothways.model.config import Learned, ModelConfig
from bothways.model.model import Model
from bothways.predict.encode import encode, encode_blocks
from bothways.predict.features import Features, text_recipe
from bothways.predict.predictor import Predictor
from bothways.search import passages
from bothways.tasks.classify import ClassifyOptions
from bothways.tasks.folder import with_task
from bothways.tasks.task import TaskConfig
from bothways.text import long_text, pieces, plain_ids, streams
from bothways.text.plain_ids import PlainIds
from bothways.text.tokenizer import Tokenizer
from helpers import PIECES, ROBERTA, TINY, byte_level, make_loud, model_of, refused
from helpers.cli import Run
from helpers.strings import ALPHABETS, FIXED

WORDS = [
    "the",
    "Cat",
    "walking",
    "Paris",
    "北京",
    "中国的首都是北京",
    "naïve",
    "über",
    "don't",
    "1,234.56",
    "[MASK]",
    "C++",
    "x" * 70,
]
SEPARATORS = ["", " ", " ", " ", "  ", "\n", "\u3000", "，", "。", "!!!", " \t"]
WIDE = st.lists(
    st.tuples(
        st.one_of(
            st.sampled_from(WORDS),
            st.sampled_from(FIXED),
            *(st.text(letters, min_size=1, max_size=9) for letters in ALPHABETS.values()),
            st.text(max_size=5),
        ),
        st.sampled_from(SEPARATORS),
    ),
    min_size=1,
    max_size=60,
).map(lambda parts: "".join(word + after for word, after in parts))
"""Texts of every script, with and without spaces between words."""


def wordpiece(**options: Any) -> Tokenizer:
    return Tokenizer.from_pieces(PIECES, **options)


def with_added(words: list[AddedToken]) -> Tokenizer:
    tokenizer = wordpiece()
    backend = Backend.from_str(tokenizer.backend.to_str())
    backend.add_tokens(words)
    return tokenizer.with_backend(backend)


def unigram(normalizer: Any, splitter: Any) -> Tokenizer:
    letters = sorted({*"abcdefghijklmnopqrstuvwxyzABC中国北京的。，0123456789!"})
    rows = [
        ("[UNK]", 0.0),
        ("[CLS]", 0.0),
        ("[SEP]", 0.0),
        ("[MASK]", 0.0),
        ("▁", -3.0),
        *((one, -5.0) for one in letters),
    ]
    rows += [("▁the", -2.0), ("▁w", -2.5), ("alking", -3.5), ("▁中", -4.0), ("北京", -4.0), ("at", -3.0), ("▁1", -3.0)]
    backend = Backend(models.Unigram(rows, 0))
    backend.normalizer, backend.pre_tokenizer = normalizer, splitter
    backend.post_processor = processors.TemplateProcessing(
        single="[CLS] $A [SEP]", special_tokens=[("[CLS]", 1), ("[SEP]", 2)]
    )
    backend.add_special_tokens([AddedToken(name, lstrip=name == "[MASK]") for name in ("[CLS]", "[SEP]", "[MASK]")])
    return Tokenizer(backend)


def bytes_with(**options: Any) -> Tokenizer:
    vocabulary, merges = byte_level(tuple(ROBERTA))
    backend = Backend(models.BPE(vocabulary, merges))
    backend.normalizer, backend.pre_tokenizer = normalizers.NFC(), pre_tokenizers.ByteLevel(**options)
    ends = ("</s>", 2), ("<s>", 0)
    backend.post_processor = processors.RobertaProcessing(*ends, trim_offsets=True, **options)
    backend.add_special_tokens([AddedToken(name, lstrip=name == "<mask>") for name in ROBERTA])
    return Tokenizer(backend)


SPACES = normalizers.Replace(Regex(" {2,}"), " ")
TOKENIZERS: dict[str, Callable[[], Tokenizer]] = {
    "wordpiece": wordpiece,
    "wordpiece, cased": lambda: wordpiece(lower=False),
    "wordpiece, accents": lambda: wordpiece(strip_accents=False),
    "wordpiece, no chinese": lambda: wordpiece(split_cjk=False),
    "wordpiece, added": lambda: with_added([AddedToken("C++"), AddedToken("naive"), AddedToken("é!", normalized=True)]),
    "wordpiece, taking spaces": lambda: with_added([AddedToken("京", lstrip=True, rstrip=True), AddedToken("ing", single_word=True)]),
    "bpe": lambda: bytes_with(add_prefix_space=False),
    "bpe, prefix": lambda: bytes_with(add_prefix_space=True),
    "unigram": lambda: unigram(normalizers.Sequence([normalizers.NFKC(), SPACES]), pre_tokenizers.Metaspace()),
    "unigram, strip": lambda: unigram(
        normalizers.Sequence([normalizers.Strip(), normalizers.NFKD(), normalizers.StripAccents(), normalizers.Lowercase()]),
        pre_tokenizers.Metaspace(prepend_scheme="first"),
    ),
    "unigram, words": lambda: unigram(
        normalizers.Nmt(), pre_tokenizers.Sequence([pre_tokenizers.WhitespaceSplit(), pre_tokenizers.Metaspace()])
    ),
    "unigram, quotes": lambda: unigram(
        normalizers.Sequence([normalizers.Replace("``", '"'), normalizers.NFD()]), pre_tokenizers.Metaspace(prepend_scheme="never")
    ),
}  # fmt: skip
MADE = {name: make() for name, make in TOKENIZERS.items()}


@pytest.fixture
def short_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pieces, "PIECE", 24)
    monkeypatch.setattr(pieces, "_NEAR", (8, 16))
    monkeypatch.setattr(plain_ids, "LONG", 24)
    monkeypatch.setattr(token_ids, "LONG", 24)


def same_as_whole(tokenizer: Tokenizer, text: str) -> int:
    """Compares a text in pieces with the whole, and returns the number of pieces."""
    whole = tokenizer.raw_batch([text], specials=False)[0]
    found = PlainIds(tokenizer).any_length([text], has_offsets=True)
    assert found.ids.tolist() == whole.ids
    assert found.offsets is not None
    assert found.offsets.tolist() == list(map(list, whole.offsets))
    return sum(1 for _ in PlainIds(tokenizer).cutter.pieces([text]))


@pytest.mark.parametrize("name", TOKENIZERS)
@settings(max_examples=40, suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
@given(text=WIDE)
def test_pieces_have_the_tokens_of_the_whole(short_pieces: None, name: str, text: str) -> None:
    same_as_whole(MADE[name], text.encode(errors="replace").decode())


@pytest.mark.parametrize("name", TOKENIZERS)
def test_texts_are_cut(short_pieces: None, name: str) -> None:
    """Else the comparison above would compare the whole with itself."""
    text = " ".join(["the cat walking over C++ [MASK] Paris 1,234.56 don't x!"] * 20)
    assert same_as_whole(MADE[name], text) > 20


@pytest.mark.parametrize("name", TOKENIZERS)
def test_long_texts_and_pairs_among_others(short_pieces: None, name: str) -> None:
    tokenizer, long = MADE[name], "the cat walking over Paris " * 9
    texts: list[Any] = ["the", long, "", long + "北京"]
    if "unigram" not in name:  # their template has no pairs
        texts += [("the", long), (long, long), ("a", "b")]
    found, whole = TokenIds(tokenizer, True)(texts, has_offsets=True), tokenizer.raw_batch(texts)
    assert found.sequences.ids.tolist() == [id for one in whole for id in one.ids]
    assert found.sequences.lengths.tolist() == list(map(len, whole))
    assert found.offsets is not None
    assert found.offsets.tolist() == [list(place) for one in whole for place in one.offsets]
    if found.sequences.segments is not None:
        assert found.sequences.segments.tolist() == [segment for one in whole for segment in one.type_ids]


def test_a_text_without_a_place_to_cut_is_read_whole_up_to_a_limit(
    short_pieces: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pieces, "LONGEST_WHOLE", 400)
    tokenizer = MADE["wordpiece"]
    assert same_as_whole(tokenizer, "a" * 400) == 1
    with refused("too-long"):
        PlainIds(tokenizer).any_length(["a" * 401])
    unknown = Backend.from_str(tokenizer.backend.to_str())
    unknown.pre_tokenizer = pre_tokenizers.Split(Regex("cat the"), "isolated")
    assert same_as_whole(tokenizer.with_backend(unknown), "the cat " * 40) == 1
    with refused("too-long"):
        PlainIds(tokenizer.with_backend(unknown)).any_length(["the cat " * 60])


# ---------------------------------------------------------------------- windows that stream


@pytest.fixture
def streaming(short_pieces: None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(long_reader, "STREAMED", 200)
    monkeypatch.setattr(long_reader, "_WINDOWS", 3)


def classifier(tokenizer: Tokenizer) -> Model:
    shape = replace(TINY, positions=Learned(64), vocab_size=tokenizer.size)
    base = Model.new(ModelConfig(shape, ("pooler",)), tokenizer)
    model = with_task(base, TaskConfig("classify", options=ClassifyOptions()), ("a", "b", "c"), seed=1)
    make_loud(model)
    return model


TEXTS = ["the cat", "the cat walking over Paris 北京 don't " * 40, "", "of cats " * 90, "Paris " * 13]


@pytest.mark.parametrize("pool", ["mean", "cls", "max", "lasttoken", "weightedmean", "mean_sqrt_len_tokens"])
@pytest.mark.parametrize("long", ["window", "cut"])
def test_vectors_of_texts_that_stream(request: pytest.FixtureRequest, pool: Any, long: Any) -> None:
    model, prompt = model_of("bert"), "walking over "
    engine, tallies, rows = Engine(model), [Tally(), Tally()], []
    recipe = text_recipe(model, Features(long=long), [pool], prompt, None)
    for tally, fixture in zip(tallies, ("tokenizer", "streaming"), strict=True):
        request.getfixturevalue(fixture)
        rows.append(np.concatenate(list(encode_blocks(TEXTS, engine, recipe, tally))))
    assert tallies[0].cut + tallies[0].in_windows >= 2
    assert tallies[0].windows > 10 or long == "cut"
    assert vars(tallies[1]) == vars(tallies[0])
    np.testing.assert_allclose(rows[1], rows[0], rtol=1e-5, atol=1e-5)


def test_a_text_that_streams_is_refused_with_its_length(streaming: None) -> None:
    model = model_of("bert")
    length = len(model.require_tokenizer()(TEXTS[1]))
    with refused("too-long", (2, length)):
        encode(TEXTS, model)


@pytest.mark.parametrize("long", ["window", "cut"])
def test_labels_of_texts_that_stream(request: pytest.FixtureRequest, tokenizer: Tokenizer, long: Any) -> None:
    answers, tallies = [], []
    for fixture in ("tokenizer", "streaming"):
        request.getfixturevalue(fixture)
        predictor = Predictor(classifier(tokenizer), long=long)
        decoded = predictor.decode_all(map(predictor.example, TEXTS))
        answers.append([(item.example.texts, item.windows, item.is_cut, scores) for item, scores in decoded])
        tallies.append(vars(predictor.tally))
    for whole, streamed in zip(*answers, strict=True):
        assert whole[:3] == streamed[:3]
        np.testing.assert_allclose(streamed[3], whole[3], rtol=1e-5)
    assert max(windows for _, windows, _, _ in answers[0]) > 6 or long == "cut"
    assert tallies[0] == tallies[1]


# ---------------------------------------------------------------------- lines


@pytest.fixture
def short_lines(monkeypatch: pytest.MonkeyPatch) -> None:
    for module in (long_text, streams):
        monkeypatch.setattr(module, "LONGEST_LINE", 50_000)
    monkeypatch.setattr(streams, "_LONG_PART", 7_000)


@pytest.mark.parametrize("end", ["\n", "\r\n"])
def test_long_lines_come_whole_or_are_refused(tmp_path: Path, short_lines: None, end: str) -> None:
    lines = ["short", "long 北京 é " * 30_000, "", "x" * 49_000, "y" * 200_000, "last"]
    file = tmp_path / "a.txt"
    file.write_bytes(end.join(lines).encode())
    found = list(streams.read_any_lines(file))
    assert [line if isinstance(line, str) else "".join(line.blocks()) for line in found] == lines
    assert [isinstance(line, str) for line in found] == [True, False, True, True, False, True]
    with refused("too-long-line", f"{file}, line 2"):
        list(streams.read_lines(file))


def test_a_line_has_a_largest_size(tmp_path: Path, short_lines: None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(long_text, "LONGEST_TEXT", 80_000)
    (tmp_path / "a.txt").write_text("x" * 90_000)
    with refused("too-long-line"):
        list(streams.read_any_lines(tmp_path / "a.txt"))


def test_files_that_are_read_whole_have_a_largest_size(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "a.json"
    file.write_text(json.dumps([{"text": "x" * 60, "label": "a"}]))
    assert len(list(read_texts_labelled(file))) == 1
    monkeypatch.setattr(streams.read_whole, "__defaults__", (50,))
    with refused("too-long-file", file):
        list(read_texts_labelled(file))


def test_predict_and_encode_read_lines_of_any_length(
    tmp_path: Path, tokenizer: Tokenizer, streaming: None, short_lines: None, run: Run
) -> None:
    text = tmp_path / "a.txt"
    text.write_text("the cat\n" + "the cat sat " * 6_000 + "\nParis\n")
    checkpoint.save(classifier(tokenizer), tmp_path / "model")
    plain = run("predict", text, "--model", tmp_path / "model", "--device", "cpu").stdout.splitlines()
    assert [line.split("\t")[1].rstrip() for line in plain] == text.read_text().replace(" \n", "\n").splitlines()
    done = run("encode", text, "--model", tmp_path / "model", "--long", "cut", "--out", tmp_path / "v.npy", "--json")
    assert json.loads(done.stdout)["rows"] == 3
    assert json.loads(done.stdout)["tokens_cut"] > 10_000
    refused_ = run("predict", text, "--model", tmp_path / "model", "--out", tmp_path / "a.jsonl")
    assert refused_.returncode == 1
    assert "line 2" in refused_.stderr


def test_passages_of_a_very_long_document(short_pieces: None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(passages, "LONG", 24)
    text = "the cat walking over Paris " * 30
    found = passages.PassageSplitter(wordpiece(), 20)([text, "the cat"])
    assert found[1] == [(0, 7)]
    covered = {place for start, end in found[0] for place in range(start, end)}
    assert all(place in covered or text[place] == " " for place in range(len(text)))


# ---------------------------------------------------------------------- memory


@pytest.mark.parametrize(
    "error", [MemoryError(), RuntimeError("[enforce fail] DefaultCPUAllocator: can't allocate memory: you tried")]
)
def test_a_failed_allocation_ends_in_one_sentence(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], error: Exception
) -> None:
    def fail() -> None:
        raise error

    monkeypatch.setattr(cli, "app", fail)
    with pytest.raises(SystemExit) as stopped:
        cli.main()
    assert stopped.value.code == 1
    assert len(capsys.readouterr().err.splitlines()) == 1


@pytest.mark.slow
def test_memory_does_not_grow_with_the_length_of_a_line(tmp_path: Path) -> None:
    """Of a line of 30 MB, which took 6 GB when it was tokenized whole."""
    checkpoint.save(model_of("bert"), tmp_path / "model")
    peaks = []
    for name, size in (("short", 1), ("long", 30_000_000 // 27)):
        file = tmp_path / f"{name}.txt"
        file.write_text("the cat walking over Paris " * size + "\n")
        words = ["encode", file, "--model", tmp_path / "model", "--long", "cut", "--out", tmp_path / "v.npy"]
        child = subprocess.Popen([sys.executable, "-m", "bothways", *map(str, words)], stderr=subprocess.DEVNULL)
        _, status, used = os.wait4(child.pid, 0)
        child.returncode = os.waitstatus_to_exitcode(status)
        assert child.returncode == 0
        peaks.append(used.ru_maxrss * (1 if sys.platform == "darwin" else 2**10))
    assert peaks[1] - peaks[0] < 200 * 2**20
