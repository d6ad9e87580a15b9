"""Packed text is the text: every token, word, sentence and document, whatever was damaged or interrupted on the way."""

import gzip
import itertools
import json
import lzma
import math
import os
import random
import shutil
import signal
import subprocess
import sys
import threading
import time
import tracemalloc
import types
import zlib
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tokenizers
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import decoders, models, pre_tokenizers, trainers

from bothways.errors import BothwaysError
from bothways.prefetch import prefetch
from bothways.pretraining import pack as packing
from bothways.pretraining import tokenized
from bothways.pretraining.pack import PackReport, pack, parse_share
from bothways.pretraining.sampler import SpecialIds, make_sampler
from bothways.pretraining.select import select
from bothways.pretraining.shards import PARTS, Corpus, Packed, open_packed
from bothways.text import files, streams
from bothways.text.files import Each
from bothways.text.tokenizer import Tokenizer
from helpers import PIECES, refused
from helpers.cli import GUARDED, Run, write_rows

Sentence = tuple[list[int], list[bool]]
"""Its ids, and whether a word starts at each."""

ENGLISH = [
    ["The cat sleeps in the big house.", "Unbelievably, 2 dogs walked!", "Talking is talking."],
    ["Paris is the capital of France."],
    ["A black dog runs.", "It reads?", "The tree writes 31 walkers."],
]
CHINESE = [["北京是中国的首都。", "巴黎是法国的首都！", "猫，狗。"], ["日本的猫runs。"]]
MIXED = [*ENGLISH, *CHINESE]


def text_of(documents: Sequence[Sequence[str]]) -> str:
    """A .txt of them: sentences on one line, an empty line between documents."""
    return "\n\n".join(" ".join(sentences) for sentences in documents) + "\n"


def write(path: Path, documents: Sequence[Sequence[str]]) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text_of(documents), encoding="utf-8")
    return path


def made_up(count: int, seed: int = 0) -> list[list[str]]:
    """Documents of words from the test vocabulary; all differ."""
    draws = random.Random(seed)
    words = ["cat", "dog", "house", "tree", "walking", "sleeps", "unbelievable", "北京", "paris"]

    def sentence() -> str:
        return ("the " + " ".join(draws.choices(words, k=draws.randint(1, 8)))).capitalize() + "."

    names = [f"{seed}k{i}".translate(str.maketrans("0123456789", "abcdefghij")) for i in range(count)]
    return [[f"The {name}.", *(sentence() for _ in range(draws.randint(0, 3)))] for name in names]


def said_by(tokenizer: Tokenizer, documents: Sequence[Sequence[str]]) -> list[list[Sentence]]:
    """What packing must come to: each sentence alone, and a word wherever the number of the word changes."""
    found = []
    for document in documents:
        raw = [tokenizer.backend.encode(sentence, add_special_tokens=False) for sentence in document]
        starts = [[n == 0 or r.word_ids[n] != r.word_ids[n - 1] for n in range(len(r))] for r in raw]
        found.append([(r.ids, own) for r, own in zip(raw, starts, strict=True)])
    return found


def read_corpus(corpus: Corpus) -> list[list[Sentence]]:
    starts = corpus.sentence_starts(np.arange(corpus.sentences + 1))
    bounds = corpus.document_sentences.tolist()
    found = []
    for first, last in itertools.pairwise(bounds):
        taken = [corpus.take(starts[s : s + 1], starts[s + 1 : s + 2] - starts[s : s + 1]) for s in range(first, last)]
        found.append([(ids.tolist(), words.tolist()) for ids, words in taken])
    return found


def read(folder: Path, split: str = "train", source: str | None = None) -> list[list[Sentence]]:
    """The documents of a packed folder, of all sources unless one is named."""
    corpora = open_packed(folder).corpora(split)
    return [d for name, shards in corpora.items() if source in (None, name) for d in read_corpus(Corpus(shards))]


def contents(folder: Path) -> dict[str, bytes]:
    return {file.name: file.read_bytes() for file in folder.iterdir()}


def wait_until(happened: Callable[[], bool], seconds: float = 30) -> None:
    deadline = time.monotonic() + seconds
    while not happened():
        assert time.monotonic() < deadline, "it did not happen"


# ---------------------------------------------------------------------- tokenizers

SPECIALS = ["<s>", "<pad>", "</s>", "<unk>", "<mask>"]


def byte_level() -> Tokenizer:
    backend = tokenizers.Tokenizer(models.BPE())
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    backend.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(
        vocab_size=300, special_tokens=SPECIALS, initial_alphabet=alphabet, show_progress=False
    )
    backend.train_from_iterator([text_of(MIXED)] * 3, trainer)
    return Tokenizer(backend)


def unigram() -> Tokenizer:
    backend = tokenizers.Tokenizer(models.Unigram())
    backend.pre_tokenizer = pre_tokenizers.Metaspace()
    trainer = trainers.UnigramTrainer(
        vocab_size=110,
        special_tokens=SPECIALS,
        unk_token="<unk>",
        initial_alphabet=list("<>/ksmnpu"),
        show_progress=False,
    )
    backend.train_from_iterator([text_of(MIXED)] * 3, trainer)
    return Tokenizer(backend)


def word_piece() -> Tokenizer:
    return Tokenizer.from_pieces([*PIECES, "[", "]"])


KINDS = {"WordPiece": word_piece, "BPE": byte_level, "Unigram": unigram}


@pytest.fixture(scope="session", params=KINDS)
def any_kind(request: pytest.FixtureRequest) -> Tokenizer:
    made = KINDS[request.param]()
    assert made.kind == request.param
    return made


# ---------------------------------------------------------------------- what is read back


def test_tokens_words_sentences_and_documents_are_those_of_the_text(tmp_path: Path, any_kind: Tokenizer) -> None:
    report = pack([write(tmp_path / "a.txt", MIXED)], any_kind, tmp_path / "out")
    expected = said_by(any_kind, MIXED)
    assert read(tmp_path / "out") == expected
    words = [start for document in expected for _, starts in document for start in starts]
    assert not all(words)  # there are words of several tokens, or this test would say nothing
    assert report.words == sum(words) > report.sentences == sum(map(len, MIXED))
    assert all(starts[0] for document in expected for _, starts in document)


@given(
    documents=st.lists(st.lists(st.sampled_from([s for d in MIXED for s in d]), min_size=1, max_size=4), min_size=1),
    shard=st.integers(1, 200),
    chunk=st.integers(1, 200),
)
@settings(max_examples=40)
def test_whatever_the_shards_and_chunks(
    documents: list[list[str]],
    shard: int,
    chunk: int,
    tokenizer: Tokenizer,
    tmp_path_factory: pytest.TempPathFactory,
) -> None:
    folder = tmp_path_factory.mktemp("property")
    file = write(folder / "a.txt", documents)
    with pytest.MonkeyPatch.context() as patch:
        whole = pack([file], tokenizer, folder / "whole")
        patch.setattr("bothways.pretraining.shards._SHARD", shard)
        patch.setattr(tokenized, "_CHUNK", chunk)
        assert pack([file], tokenizer, folder / "parts") == whole
    assert read(folder / "whole") == read(folder / "parts") == said_by(tokenizer, documents)
    rows = open_packed(folder / "parts").manifest["shards"]
    assert len(rows) == 1 or all(row["tokens"] <= shard or row["documents"] == 1 for row in rows)
    assert all(one["tokens"] + two["tokens"] > shard for one, two in itertools.pairwise(rows))
    shutil.rmtree(folder)


def test_several_shards_are_one_corpus(tmp_path: Path, tokenizer: Tokenizer, monkeypatch: pytest.MonkeyPatch) -> None:
    file = write(tmp_path / "a.txt", made_up(60))
    pack([file], tokenizer, tmp_path / "one")
    monkeypatch.setattr("bothways.pretraining.shards._SHARD", 150)
    pack([file], tokenizer, tmp_path / "many")
    [one], [many] = (open_packed(tmp_path / name).corpora("train").values() for name in ("one", "many"))
    assert (len(one), len(many) > 4) == (1, True)
    assert [shard.name for shard in many][:2] == ["train-many-00000", "train-many-00001"]
    a, b = Corpus(one), Corpus(many)
    for room, shards in ((a.tokens, 1), (a.tokens - 1, 2)):
        monkeypatch.setattr("bothways.pretraining.shards._SHARD", room)
        pack([file], tokenizer, tmp_path / "full")
        assert len(open_packed(tmp_path / "full").shards) == shards
    assert (a.tokens, a.sentences, a.documents) == (b.tokens, b.sentences, b.documents)
    assert a.documents == 60
    sentences, places = np.arange(a.sentences + 1), np.arange(a.tokens + 3)
    starts = np.random.default_rng(0).integers(0, a.tokens - 50, 40)
    lengths = np.random.default_rng(1).integers(0, 50, 40)
    views: list[Callable[[Corpus], Any]] = [
        lambda c: c.document_starts,
        lambda c: c.document_sentences,
        lambda c: c.sentence_starts(sentences),
        lambda c: c.sentences_from(places),
        lambda c: c.take(starts, lengths)[0],
        lambda c: c.take(starts, lengths)[1],
        lambda c: c.take(starts[:0], lengths[:0])[0],
    ]
    assert all(np.array_equal(view(a), view(b)) for view in views)
    # And both are right, seen from the sentences themselves.
    sizes = [len(ids) for document in said_by(tokenizer, made_up(60)) for ids, _ in document]
    bounds = np.cumsum([0, *sizes])
    assert np.array_equal(b.sentence_starts(sentences), bounds)
    assert np.array_equal(b.document_starts, bounds[b.document_sentences])
    firsts = [next((s for s, start in enumerate(bounds) if start >= p), a.sentences) for p in places.tolist()]
    assert b.sentences_from(places).tolist() == firsts


@pytest.mark.parametrize("kind", KINDS)
def test_specials_in_raw_text_are_letters(tmp_path: Path, kind: str) -> None:
    """Somebody writes about BERT: that must not mask anything, nor end a segment."""
    tokenizer = KINDS[kind]()
    names = [tokenizer.pieces[i] for i in sorted(tokenizer.special_ids)]
    text = "the " + " a ".join([*names, "".join(names)])
    (tmp_path / "a.txt").write_text(text)
    report = pack([tmp_path / "a.txt"], tokenizer, tmp_path / "out")
    [[(ids, _)]] = read(tmp_path / "out")
    assert [tokenizer.pieces[i] for i in ids if i in tokenizer.special_ids] == []
    assert report.unknown == 0
    if kind == "WordPiece":
        assert tokenizer.decode(ids).replace(" ", "") == text.replace(" ", "").lower()
        assert "m ##a ##s ##k ]" in " ".join(tokenizer.pieces[i] for i in ids)
    if kind == "BPE":
        assert tokenizer.decode(ids) == text
    assert tokenizer("[MASK]" if kind == "WordPiece" else "<mask>").ids.count(tokenizer.id(tokenizer.mask or "")) == 1


@pytest.mark.parametrize("mark", ["##", "@@"])
def test_a_word_starts_where_the_vocabulary_says(tmp_path: Path, mark: str) -> None:
    """Pieces inside a word can be marked in another way, and a text can begin with that mark."""
    pieces = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "walk", f"{mark}ing", f"{mark}s"]
    vocabulary = {piece: i for i, piece in enumerate(pieces)}
    backend = tokenizers.Tokenizer(models.WordPiece(vocabulary, unk_token="[UNK]", continuing_subword_prefix=mark))
    backend.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    (tmp_path / "a.txt").write_text(f"{mark}ing walking walks\n{mark}s walk")
    pack([tmp_path / "a.txt"], Tokenizer(backend), tmp_path / "out")
    [[(_, first), (_, second)]] = read(tmp_path / "out")
    assert (first, second) == ([True, True, False, True, False], [True, True])


@pytest.mark.parametrize(("pieces", "kind"), [(1 << 16, np.uint16), ((1 << 16) + 1, np.uint32)])
def test_large_vocabularies(tmp_path: Path, pieces: int, kind: type[np.unsignedinteger[Any]]) -> None:
    tokenizer = Tokenizer.from_pieces([*PIECES, *(f"q{i}" for i in range(pieces - len(PIECES)))])
    last = tokenizer.pieces[-1]
    (tmp_path / "a.txt").write_text(f"the {last} cat")
    pack([tmp_path / "a.txt"], tokenizer, tmp_path / "out")
    assert read(tmp_path / "out")[0][0][0] == [tokenizer.id("the"), pieces - 1, tokenizer.id("cat")]
    assert open_packed(tmp_path / "out").shards[0][1].tokens.dtype == kind


@pytest.mark.parametrize("name", ["long.txt", "long.jsonl"])
def test_a_very_long_document_comes_in_parts(tmp_path: Path, tokenizer: Tokenizer, name: str) -> None:
    long, short = "The dog runs and the cat sleeps. " * 36_000, "The cat."
    if name == "long.txt":
        (tmp_path / name).write_text(f"{short}\n\n{long}\n\n{short}")
    else:
        (tmp_path / name).write_text("".join(json.dumps({"text": text}) + "\n" for text in (short, long, short)))
    report = pack([tmp_path / name], tokenizer, tmp_path / "out")
    assert (report.split, report.documents, report.sentences, report.tokens) == (1, 4, 36_002, 288_006)
    packed = open_packed(tmp_path / "out")
    [shards] = packed.corpora("train").values()
    sizes = np.diff(Corpus(shards).document_starts).tolist()
    assert sizes[0] == sizes[3] == 3
    assert 240_000 < sizes[1] < 1_000_000 / 33 * 8  # just under a million characters
    assert set(np.diff(Corpus(shards).sentence_starts(np.arange(36_003))).tolist()) == {3, 8}  # none is cut in two


def test_documents_without_tokens_are_left_out(tmp_path: Path, tokenizer: Tokenizer) -> None:
    """Control characters are text to a file and nothing to BERT."""
    (tmp_path / "a.txt").write_text("\x01\x02\n\nThe cat.\n\x01\nA dog.\n\n\x01\n\nParis.")
    report = pack([tmp_path / "a.txt"], tokenizer, tmp_path / "out")
    assert read(tmp_path / "out") == said_by(tokenizer, [["The cat.", "A dog."], ["Paris."]])
    assert (report.documents, report.sentences) == (2, 3)


# ---------------------------------------------------------------------- sources, held-out text, copies


def test_sources_have_names(tmp_path: Path, tokenizer: Tokenizer, monkeypatch: pytest.MonkeyPatch) -> None:
    english, chinese = write(tmp_path / "e.txt", ENGLISH), write(tmp_path / "c.txt", CHINESE)
    extra = write(tmp_path / "more" / "x.txt", made_up(40))
    monkeypatch.setattr("bothways.pretraining.shards._SHARD", 100)
    pack({"wiki": [english, extra.parent], "中文": [chinese]}, tokenizer, tmp_path / "out", valid=0.3)
    packed = open_packed(tmp_path / "out")
    assert packed.manifest["sources"] == {"wiki": ["e.txt", "x.txt"], "中文": ["c.txt"]}
    assert {shard.source for _, shard in packed.shards} == {"wiki", "中文"}
    both = read(tmp_path / "out", source="wiki") + read(tmp_path / "out", "valid", source="wiki")
    assert sorted(both) == sorted(said_by(tokenizer, [*ENGLISH, *made_up(40)]))
    both = read(tmp_path / "out", source="中文") + read(tmp_path / "out", "valid", source="中文")
    assert sorted(both) == sorted(said_by(tokenizer, CHINESE))
    for split, shard in packed.shards:
        assert shard.name.startswith(f"{split}-{shard.source}-")
    assert sum(row["source"] == "wiki" for row in packed.manifest["shards"]) > 3
    pack([english], tokenizer, tmp_path / "plain")
    assert list(open_packed(tmp_path / "plain").corpora("train")) == ["plain"]


def sides(folder: Path) -> tuple[Counter[str], Counter[str]]:
    """The documents to train on and those held out, as texts."""
    packed = open_packed(folder)
    found = []
    for split in ("train", "valid"):
        documents = [[packed.tokenizer.decode(ids) for ids, _ in document] for document in read(folder, split)]
        found.append(Counter(map(" ".join, documents)))
    return found[0], found[1]


def test_held_out_documents_depend_on_their_text_alone(tmp_path: Path, tokenizer: Tokenizer) -> None:
    one, two = write(tmp_path / "1.txt", made_up(300, 1)), write(tmp_path / "2.txt", made_up(300, 2))
    report = pack([one, two], tokenizer, tmp_path / "a", valid="5%")
    train, valid = sides(tmp_path / "a")
    assert train.total() + valid.total() == report.documents == 600
    assert 15 <= valid.total() == report.valid_documents <= 50
    assert report.valid_tokens == Corpus(open_packed(tmp_path / "a").corpora("valid")["a"]).tokens
    # Written as a number, in another order of the files, beside copies and others: always the same ones.
    assert pack([one, two], tokenizer, tmp_path / "b", valid=0.05) == report
    pack([two, one], tokenizer, tmp_path / "c", valid=0.05)
    assert sides(tmp_path / "b") == sides(tmp_path / "c") == (train, valid)
    pack(
        {"x": [one], "y": [two, write(tmp_path / "3.txt", made_up(300, 2)[::-1])]},
        tokenizer,
        tmp_path / "d",
        valid="5%",
    )
    pack([write(tmp_path / "4.txt", made_up(300, 2))], tokenizer, tmp_path / "e", valid="5%")
    assert set(sides(tmp_path / "d")[1]) == set(valid)
    assert not set(sides(tmp_path / "d")[0]) & set(valid)
    assert set(sides(tmp_path / "e")[1]) < set(valid)
    # A larger share holds out the same ones and more.
    pack([one, two], tokenizer, tmp_path / "f", valid=0.2)
    assert set(valid) < set(sides(tmp_path / "f")[1])
    pack([one, two], tokenizer, tmp_path / "g")
    assert sides(tmp_path / "g")[1] == {}


def test_files_are_held_out(tmp_path: Path, tokenizer: Tokenizer) -> None:
    train, valid = write(tmp_path / "t.txt", ENGLISH), write(tmp_path / "v.txt", CHINESE)
    report = pack({"x": [train], "y": [train]}, tokenizer, tmp_path / "out", valid_files=[valid])
    assert read(tmp_path / "out", "valid") == said_by(tokenizer, CHINESE)
    assert read(tmp_path / "out") == said_by(tokenizer, [*ENGLISH, *ENGLISH])
    assert (report.documents, report.valid_documents) == (2 * len(ENGLISH) + len(CHINESE), len(CHINESE))


def test_a_held_out_file_among_the_inputs_is_not_trained_on(tmp_path: Path, tokenizer: Tokenizer) -> None:
    write(tmp_path / "corpus" / "t.txt", ENGLISH)
    valid = write(tmp_path / "corpus" / "v.txt", CHINESE)
    pack([tmp_path / "corpus"], tokenizer, tmp_path / "out", valid_files=[valid])
    assert read(tmp_path / "out", "valid") == said_by(tokenizer, CHINESE)
    assert read(tmp_path / "out") == said_by(tokenizer, ENGLISH)


def test_copies_are_dropped_when_asked(tmp_path: Path, tokenizer: Tokenizer) -> None:
    a = write(tmp_path / "a.txt", [*ENGLISH, ENGLISH[0]])
    b = write(tmp_path / "b.txt", [CHINESE[0], ENGLISH[1], CHINESE[1], CHINESE[0]])
    v = write(tmp_path / "v.txt", [ENGLISH[2]])
    kept = pack({"x": [a], "y": [b]}, tokenizer, tmp_path / "kept")
    assert (kept.documents, kept.duplicates) == (8, 3 / 8)
    dropped = pack({"x": [a], "y": [b]}, tokenizer, tmp_path / "dropped", dedup=True)
    assert (dropped.documents, dropped.duplicates) == (5, 3 / 8)
    assert read(tmp_path / "dropped", source="x") == said_by(tokenizer, ENGLISH)  # the first one stays
    assert read(tmp_path / "dropped", source="y") == said_by(tokenizer, CHINESE)
    report = pack({"x": [a], "y": [b]}, tokenizer, tmp_path / "out", dedup=True, valid_files=[v])
    assert read(tmp_path / "out", "valid") == said_by(tokenizer, [ENGLISH[2]])
    assert read(tmp_path / "out", source="x") == said_by(tokenizer, ENGLISH[:2])
    assert (report.documents, report.duplicates) == (5, 4 / 9)


def test_copies_are_found_among_very_many(monkeypatch: pytest.MonkeyPatch) -> None:
    draws = random.Random(0)
    numbers = [draws.getrandbits(64) for _ in range(75_000)]
    numbers += [0, 2**64 - 1, 2**63, *draws.choices(numbers, k=5_000), 0, 2**64 - 1]
    seen, known = packing._Seen(), set[int]()
    for number in numbers:
        assert seen.add(number) == (number in known)
        known.add(number)
    assert len(seen._new) < len(known)  # some were moved to where they take eight bytes


# ---------------------------------------------------------------------- the report and the manifest


def test_the_report_is_exact(tmp_path: Path, tokenizer: Tokenizer) -> None:
    documents = [*MIXED, *made_up(40), ["Ωδ cat Ω."], MIXED[0]]  # Greek is unknown to this vocabulary
    report = pack([write(tmp_path / "a.txt", documents)], tokenizer, tmp_path / "out", valid=0.3)
    expected = said_by(tokenizer, documents)
    ids = [i for document in expected for own, _ in document for i in own]
    sizes = [sum(len(own) for own, _ in document) for document in expected]
    shares = [n / len(ids) for n in Counter(ids).values()]
    histogram = Counter(math.floor(math.log2(size)) for size in sizes)
    valid = read(tmp_path / "out", "valid")
    assert 0 < len(valid) < len(documents)
    words = sum(sum(starts) for document in expected for _, starts in document)
    unknown = ids.count(tokenizer.id("[UNK]"))
    assert unknown >= 2
    assert report == PackReport(
        documents=len(documents),
        sentences=sum(map(len, documents)),
        tokens=len(ids),
        words=words,
        tokens_per_word=len(ids) / words,
        unknown=unknown / len(ids),
        duplicates=1 / len(documents),
        valid_documents=len(valid),
        valid_tokens=sum(len(own) for document in valid for own, _ in document),
        split=0,
        lengths={f"{2**k} to {2 ** (k + 1) - 1}": histogram[k] for k in sorted(histogram)},
        entropy=report.entropy,
    )
    assert report.entropy == pytest.approx(-sum(share * math.log(share) for share in shares), rel=1e-12)
    assert sum(report.lengths.values()) == report.documents


def test_the_manifest_says_what_is_there(tmp_path: Path, any_kind: Tokenizer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("bothways.pretraining.shards._SHARD", 100)
    file = write(tmp_path / "a.txt", MIXED * 4)
    report = pack({"src": [file]}, any_kind, tmp_path / "out", valid=0.4)
    packed = open_packed(tmp_path / "out")
    manifest = json.loads((tmp_path / "out" / "manifest.json").read_text(encoding="utf-8"))
    assert packed.manifest == manifest
    assert manifest["format"] == 1
    assert {"fingerprint": any_kind.fingerprint, "pieces": any_kind.size}.items() <= manifest["tokenizer"].items()
    assert packed.tokenizer.fingerprint == any_kind.fingerprint
    assert PackReport(**manifest["report"]) == report
    rows = manifest["shards"]
    for count in ("documents", "sentences", "tokens"):
        assert sum(row[count] for row in rows) == getattr(report, count)
    assert sum(row["tokens"] for row in rows if row["split"] == "valid") == report.valid_tokens
    found = {f"{row['name']}.{part}.npy" for row in rows for part in row["files"]}
    for row in rows:
        assert tuple(row["files"]) == PARTS
        for part, said in row["files"].items():
            content = (tmp_path / "out" / f"{row['name']}.{part}.npy").read_bytes()
            assert said == {"bytes": len(content), "crc32": zlib.crc32(content)}
    rest = set(contents(tmp_path / "out")) - found
    assert rest - {"vocab.txt"} == {
        "manifest.json",
        "tokenizer.json",
        "tokenizer_config.json",
        "special_tokens_map.json",
    }


def test_the_same_text_gives_the_same_bytes(tmp_path: Path, tokenizer: Tokenizer) -> None:
    file = write(tmp_path / "a.txt", made_up(50))
    for name in ("one", "two"):
        pack([file], tokenizer, tmp_path / name / "out", valid=0.2)
    assert contents(tmp_path / "one" / "out") == contents(tmp_path / "two" / "out")


def test_progress_is_told(tmp_path: Path, tokenizer: Tokenizer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tokenized, "_CHUNK", 100)
    monkeypatch.setattr(files, "read_blocks", lambda path, meter, size: streams.read_blocks(path, meter, 100))
    inputs = [write(tmp_path / "a.txt", made_up(400)), tmp_path / "b.txt.gz"]
    inputs[1].write_bytes(gzip.compress(text_of(made_up(40, 1)).encode()))
    told: list[tuple[int, int]] = []
    pack([inputs[0]], tokenizer, tmp_path / "out", valid_files=[inputs[1]], on_bytes=lambda *now: told.append(now))
    total = sum(file.stat().st_size for file in inputs)
    assert told[0][0] < total / 2
    assert {whole for _, whole in told} == {total}
    assert [done for done, _ in told] == sorted(done for done, _ in told)
    assert told[-1] == (total, total)


# ---------------------------------------------------------------------- damage


@pytest.fixture(scope="session")
def packed_once(tmp_path_factory: pytest.TempPathFactory, tokenizer: Tokenizer) -> Path:
    folder = tmp_path_factory.mktemp("packed")
    pack([write(folder / "a.txt", made_up(40))], tokenizer, folder / "out", valid=0.4)
    assert {split for split, _ in open_packed(folder / "out").shards} == {"train", "valid"}
    return folder / "out"


@pytest.fixture
def packed_folder(tmp_path: Path, packed_once: Path) -> Path:
    return Path(shutil.copytree(packed_once, tmp_path / "out"))


@pytest.mark.parametrize("split", ["train", "valid"])
@pytest.mark.parametrize("part", PARTS)
def test_damage_to_a_shard_is_found(packed_folder: Path, split: str, part: str) -> None:
    [file] = packed_folder.glob(f"{split}-*.{part}.npy")
    whole = file.read_bytes()
    for place in (0, 7, 40, 127, 128, len(whole) // 2, len(whole) - 1):
        for bit in (1, 128):
            file.write_bytes(whole[:place] + bytes([whole[place] ^ bit]) + whole[place + 1 :])
            with refused("damaged-file", file):
                open_packed(packed_folder)
    for cut in (whole[:-1], whole[: len(whole) // 2], b"", whole + b"\0"):
        file.write_bytes(cut)
        for verify in (True, False):
            with refused("damaged-file", file):
                open_packed(packed_folder, verify=verify)
    file.unlink()
    with refused("no-file", file):
        open_packed(packed_folder, verify=False)
    file.write_bytes(whole)
    assert isinstance(open_packed(packed_folder), Packed)


def test_shards_cannot_be_exchanged(packed_folder: Path) -> None:
    [train], [valid] = packed_folder.glob("train-*.tokens.npy"), packed_folder.glob("valid-*.tokens.npy")
    content = train.read_bytes()
    train.write_bytes(valid.read_bytes())
    valid.write_bytes(content)
    with refused("damaged-file"):
        open_packed(packed_folder)


BAD_MANIFESTS: dict[str, Callable[[str], str]] = {
    "empty": lambda whole: "",
    "cut": lambda whole: whole[:-30],
    "not JSON": lambda whole: whole.replace(":", ";", 1),
    "a list": lambda whole: "[]",
    "null": lambda whole: "null",
    "without shards": lambda whole: whole.replace('"shards"', '"shoals"'),
    "without names": lambda whole: whole.replace('"name"', '"game"'),
    "without splits": lambda whole: whole.replace('"split": "', '"spilt": "'),
    "without sources": lambda whole: whole.replace('"source":', '"sauce":'),
    "without files": lambda whole: whole.replace('"files"', '"piles"'),
    "without sizes": lambda whole: whole.replace('"bytes"', '"bites"'),
    "without checksums": lambda whole: whole.replace('"crc32"', '"crc33"'),
    "without a fingerprint": lambda whole: whole.replace('"fingerprint"', '"footprint"'),
    "shards that are none": lambda whole: json.dumps({**json.loads(whole), "shards": 5}),
    "shards that are text": lambda whole: json.dumps({**json.loads(whole), "shards": "abc"}),
}


@pytest.mark.parametrize("what", BAD_MANIFESTS)
def test_a_damaged_manifest_is_found(packed_folder: Path, what: str) -> None:
    file = packed_folder / "manifest.json"
    whole = file.read_text(encoding="utf-8")
    file.write_text(BAD_MANIFESTS[what](whole), encoding="utf-8")
    assert file.read_text(encoding="utf-8") != whole
    with pytest.raises(BothwaysError) as caught:
        open_packed(packed_folder)
    assert (caught.value.code, caught.value.value) == ("damaged-file", file)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    "name", ["manifest.json", "tokenizer.json", "tokenizer_config.json", "special_tokens_map.json"]
)
def test_a_flipped_bit_anywhere_is_found(packed_folder: Path, name: str) -> None:
    """Also one that leaves good JSON: another split, another source, another mask token."""
    file = packed_folder / name
    whole = file.read_bytes()
    for place in random.Random(0).sample(range(len(whole)), 60):
        damaged = bytearray(whole)
        damaged[place] ^= 1 << place % 7
        file.write_bytes(damaged)
        with pytest.raises(BothwaysError) as caught:
            open_packed(packed_folder)
        assert str(packed_folder) in str(caught.value)
    file.write_bytes(whole)
    assert isinstance(open_packed(packed_folder), Packed)


@pytest.mark.parametrize("part", PARTS)
def test_a_damaged_beginning_is_found_without_verifying(packed_folder: Path, part: str) -> None:
    [file] = packed_folder.glob(f"train-*.{part}.npy")
    whole = file.read_bytes()
    for place in range(0, 119, 3):  # up to the line end that numpy's description ends with
        file.write_bytes(whole[:place] + bytes([whole[place] ^ 1 << place % 8]) + whole[place + 1 :])
        try:
            open_packed(packed_folder, verify=False)
        except BothwaysError as error:
            assert error.value == file  # noqa: PT017 - some are in spaces, which mean nothing


def test_another_tokenizer_is_refused(packed_folder: Path, tokenizer: Tokenizer) -> None:
    Tokenizer.from_pieces([*PIECES[:-2], PIECES[-1], PIECES[-2]]).save(packed_folder)
    for other in (None, Tokenizer.from_pieces(PIECES, lower=False)):
        if other:
            other.save(packed_folder)
        with pytest.raises(BothwaysError) as caught:
            open_packed(packed_folder)
        assert caught.value.code == "damaged-file"
        assert str(packed_folder) in str(caught.value)
    tokenizer.save(packed_folder)
    assert open_packed(packed_folder).tokenizer.fingerprint == tokenizer.fingerprint
    (packed_folder / "tokenizer.json").write_text("{")
    with refused("damaged-file", packed_folder / "tokenizer.json"):
        open_packed(packed_folder)
    (packed_folder / "tokenizer.json").unlink()
    (packed_folder / "vocab.txt").unlink()
    with refused("damaged-file"):
        open_packed(packed_folder)


def test_another_format_is_refused(packed_folder: Path) -> None:
    file = packed_folder / "manifest.json"
    file.write_text(file.read_text(encoding="utf-8").replace('"format": 1', '"format": 99'), encoding="utf-8")
    with refused("unknown-format", 99):
        open_packed(packed_folder)


def test_what_is_not_a_packed_folder_is_refused(tmp_path: Path) -> None:
    for folder in (tmp_path, tmp_path / "none"):
        with refused("not-a-packed-folder", folder):
            open_packed(folder)


# ---------------------------------------------------------------------- interruptions, older folders, memory


def our_threads(before: set[threading.Thread]) -> list[threading.Thread]:
    return [thread for thread in threading.enumerate() if thread not in before]


@pytest.mark.parametrize("kind", [RuntimeError, KeyboardInterrupt, SystemExit])
@pytest.mark.parametrize("older", [False, True])
def test_an_interruption_leaves_what_was_there(
    kind: type[BaseException], older: bool, tmp_path: Path, tokenizer: Tokenizer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tokenized, "_CHUNK", 1000)
    monkeypatch.setattr("bothways.pretraining.shards._SHARD", 500)
    out = tmp_path / "place" / "out"
    if older:
        pack([write(tmp_path / "old.txt", CHINESE)], tokenizer, out)
    before = contents(out) if older else {}
    hidden: list[Path] = []
    threads = set(threading.enumerate())

    def interrupt(done: int, total: int) -> None:
        hidden.extend(out.parent.glob(".out.*/*.npy"))
        if hidden:
            raise kind("in the middle")

    with pytest.raises(kind, match="in the middle") as held:
        pack([write(tmp_path / "a.txt", made_up(400))], tokenizer, out, on_bytes=interrupt)
    assert hidden
    assert out.parent.exists() == older
    assert not older or [file.name for file in out.parent.iterdir()] == ["out"]
    assert (contents(out) if older else {}) == before
    # Also while somebody holds the exception, as a notebook does.
    wait_until(lambda: held.value is not None and not our_threads(threads), 5)


def test_a_failure_of_reading_comes_through(
    tmp_path: Path, tokenizer: Tokenizer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tokenized, "_CHUNK", 1000)
    good = write(tmp_path / "a.txt", made_up(200))
    (tmp_path / "b.jsonl").write_text('{"text": "the cat"}\n{"text": 5}\n')
    with refused("not-text", names=r"b\.jsonl, line 2"):
        pack([good, tmp_path / "b.jsonl"], tokenizer, tmp_path / "place" / "out")
    assert not (tmp_path / "place").exists()


@pytest.mark.filterwarnings("ignore:.* of another kind:UserWarning")  # those of the folder itself
def test_a_folder_inside_its_input_is_not_read(tmp_path: Path, tokenizer: Tokenizer) -> None:
    """A packed folder holds a vocab.txt, which is no text to train on."""
    write(tmp_path / "corpus" / "a.txt", MIXED)
    for _ in range(2):
        report = pack([tmp_path / "corpus"], tokenizer, tmp_path / "corpus" / "packed")
        assert report.documents == len(MIXED)


@pytest.mark.parametrize("name", ["packed text", "wiki (en)", "c++", "日本"])
def test_a_folder_may_be_called_anything(tmp_path: Path, tokenizer: Tokenizer, run: Run, name: str) -> None:
    """Without a name for the source it is called after the folder, or otherwise if that will not do."""
    file, vocabulary = write(tmp_path / "a.txt", MIXED), tmp_path / "vocabulary"
    vocabulary.mkdir()
    tokenizer.save(vocabulary)
    pack([file], tokenizer, tmp_path / name)
    assert read(tmp_path / name) == said_by(tokenizer, MIXED)
    done = run("pack", file, "--model", vocabulary, "--out", tmp_path / name)
    assert done.returncode == 0, done.stderr
    assert read(tmp_path / name) == said_by(tokenizer, MIXED)


def test_an_older_packed_folder_is_replaced(
    tmp_path: Path, tokenizer: Tokenizer, monkeypatch: pytest.MonkeyPatch
) -> None:
    out = tmp_path / "place" / "out"
    with monkeypatch.context() as patch:
        patch.setattr("bothways.pretraining.shards._SHARD", 50)
        pack({"x": [write(tmp_path / "a.txt", made_up(30))]}, tokenizer, out, valid=0.3)
    pack({"y": [write(tmp_path / "b.txt", CHINESE)]}, tokenizer, out)
    assert read(out) == said_by(tokenizer, CHINESE)
    assert not [name for name in contents(out) if "-x-" in name]
    assert list(out.parent.iterdir()) == [out]


@pytest.mark.parametrize(
    "kind", ["nothing else", "beside a packed folder", "a vocabulary", "another manifest", "a file"]
)
def test_foreign_files_are_safe(tmp_path: Path, tokenizer: Tokenizer, packed_once: Path, kind: str) -> None:
    out = tmp_path / "out"
    if kind == "a file":
        out.write_text("precious")
    elif kind == "beside a packed folder":
        shutil.copytree(packed_once, out)
        (out / "notes.txt").write_text("precious")
    else:
        out.mkdir()
        if kind == "a vocabulary":
            tokenizer.save(out)
        else:
            name = "manifest.json" if kind == "another manifest" else "notes.txt"
            (out / name).write_text('{"shards": "precious"}')
    before = contents(out) if out.is_dir() else out.read_bytes()
    with pytest.raises(BothwaysError, match=str(out)):
        pack([write(tmp_path / "a.txt", MIXED)], tokenizer, out)
    assert (contents(out) if out.is_dir() else out.read_bytes()) == before
    assert sorted(file.name for file in tmp_path.iterdir()) == ["a.txt", "out"]


def test_foreign_files_that_came_while_packing_are_safe(tmp_path: Path, tokenizer: Tokenizer) -> None:
    """Packing takes hours, and in the meantime somebody makes a folder of that name."""
    out = tmp_path / "out"

    def meanwhile(done: int, total: int) -> None:
        out.mkdir(exist_ok=True)
        (out / "notes.txt").write_text("precious")

    with refused("other-files", names=r"notes\.txt"):
        pack([write(tmp_path / "a.txt", MIXED)], tokenizer, out, on_bytes=meanwhile)
    assert contents(out) == {"notes.txt": b"precious"}


@pytest.fixture
def held(tmp_path: Path, tokenizer: Tokenizer, monkeypatch: pytest.MonkeyPatch) -> Callable[[str, Each], int]:
    """The most that packing a text holds, step by step: small steps, one after the other, so that it can be repeated."""

    def one_by_one(items: Iterable[Any], depth: int) -> Iterator[Any]:
        assert depth <= 4  # how far it works ahead is another bound: see the tests of `prefetch`
        yield from items

    monkeypatch.setattr(tokenized, "prefetch", one_by_one)
    monkeypatch.setattr(tokenized, "_CHUNK", 1 << 12)
    monkeypatch.setattr(files, "read_blocks", lambda path, meter, size: streams.read_blocks(path, meter, 1 << 12))

    def most(text: str, each: Each) -> int:
        (tmp_path / "a.txt").write_text(text, encoding="utf-8")
        steps: list[int] = []
        tracemalloc.start()
        note = lambda done, total: steps.append(tracemalloc.get_traced_memory()[0])  # noqa: E731
        pack([tmp_path / "a.txt"], tokenizer, tmp_path / "out", each=each, on_bytes=note)
        tracemalloc.stop()
        return max(steps)

    return most


def test_memory_does_not_grow_with_the_text(held: Callable[[str, Each], int], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("bothways.pretraining.shards._SHARD", 1 << 14)  # each has a row in the manifest, which is held
    sentences = [sentence for document in made_up(1200) for sentence in document]
    text = text_of([sentences[i : i + 20] for i in range(0, len(sentences), 20)])
    once, again, longer = (held("\n".join([text] * times), "paragraphs") for times in (1, 1, 4))
    assert longer < 1.25 * min(once, again), (once, again, longer)


def test_a_shard_of_short_documents_is_held_compactly(
    held: Callable[[str, Each], int], monkeypatch: pytest.MonkeyPatch
) -> None:
    """What waits for a shard to be full: two bytes for a token, and not hundreds for a document."""
    taken = []
    for shard in (1 << 8, 1 << 20):
        monkeypatch.setattr("bothways.pretraining.shards._SHARD", shard)
        taken.append(held("the cat\na dog\n" * 2000, "lines"))
    assert taken[1] - taken[0] < 20 * 8000, taken  # 20 bytes for each of 8,000 tokens, in 4,000 documents


# ---------------------------------------------------------------------- bad requests


@pytest.mark.parametrize(("written", "share"), [("0", 0), ("5%", 0.05), (0.05, 0.05), (" 0.5% ", 0.005), ("1e-3", 0.001), (0, 0)])  # fmt: skip
def test_shares(written: float | str, share: float) -> None:
    assert parse_share(written) == share


@pytest.mark.parametrize("written", ["5", "100%", 1, 1.5, -0.1, "-1%", "five", "", "%", "nan", math.nan, math.inf])
def test_wrong_shares(tmp_path: Path, tokenizer: Tokenizer, written: float | str) -> None:
    with pytest.raises(BothwaysError) as caught:
        pack([write(tmp_path / "a.txt", MIXED)], tokenizer, tmp_path / "out", valid=written)
    assert caught.value.code == "out-of-range"
    assert caught.value.value is written
    assert not (tmp_path / "out").exists()


def test_bad_requests(tmp_path: Path, tokenizer: Tokenizer) -> None:
    file = write(tmp_path / "a.txt", MIXED)
    for inputs, options, says in (
        ([], {}, "input"),
        ({}, {}, "input"),
        ({}, {"valid_files": [file]}, "input"),
        ({"x": []}, {}, "input"),
        ([tmp_path / "none.txt"], {}, r"none\.txt"),
        ([file], {"valid_files": [tmp_path / "none.txt"]}, r"none\.txt"),
        ([file], {"each": "words"}, "'words'"),
        ({"a/b": [file]}, {}, "a/b"),  # a source is part of file names
    ):
        with pytest.raises(BothwaysError, match=says):
            pack(inputs, tokenizer, tmp_path / "out", **options)
        assert list(tmp_path.iterdir()) == [file]


def test_one_name_is_not_taken_for_its_letters(
    tmp_path: Path, tokenizer: Tokenizer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A text is a sequence of texts in Python, and "/" would be all there is on the disk."""
    monkeypatch.chdir(tmp_path)
    write(tmp_path / "ab.txt", MIXED)
    for letter in "abtx":
        write(tmp_path / letter / "wrong.txt", CHINESE)
    try:
        pack("ab.txt", tokenizer, "out")
    except BothwaysError as error:
        assert "ab.txt" in str(error)  # noqa: PT017 - to refuse it is as good
    else:
        assert read(tmp_path / "out") == said_by(tokenizer, MIXED)


# ---------------------------------------------------------------------- working ahead


@pytest.mark.parametrize("depth", [1, 2, 7])
def test_ahead_keeps_the_order(depth: int) -> None:
    threads = set(threading.enumerate())
    assert list(prefetch(range(1000), depth)) == list(range(1000))
    assert list(prefetch([], depth)) == []
    assert list(prefetch([None, None], depth)) == [None, None]
    assert list(prefetch(prefetch(range(50), depth), depth)) == list(range(50))
    assert our_threads(threads) == []


@pytest.mark.parametrize("error", [ValueError("here"), KeyboardInterrupt("here"), BothwaysError("here")])
def test_an_exception_comes_out_in_its_place(error: BaseException) -> None:
    def items() -> Iterator[int]:
        yield from range(5)
        raise error

    for made in (prefetch(items(), 2), prefetch(prefetch(items(), 2), 3)):
        found: list[int] = []
        with pytest.raises(type(error), match="here") as caught:
            for item in made:
                found.append(item)
        assert found == [0, 1, 2, 3, 4]
        assert caught.value is error
        assert next(made, "over") == "over"


def test_the_thread_ends_when_nobody_reads_on() -> None:
    threads = set(threading.enumerate())
    made = prefetch(itertools.count(), 2)
    assert [next(made) for _ in range(5)] == [0, 1, 2, 3, 4]
    assert len(our_threads(threads)) == 1
    made.close()
    assert our_threads(threads) == []
    for item in prefetch(prefetch(itertools.count(), 2), 2):
        if item == 7:
            break
    wait_until(lambda: not our_threads(threads))


def test_it_works_ahead_but_not_far() -> None:
    began, far, made = threading.Event(), threading.Event(), []

    def items() -> Iterator[int]:
        for item in range(100):
            made.append(item)
            began.set() if item == 1 else None
            far.set() if item == 4 else None
            yield item

    reader = prefetch(items(), 2)
    assert made == []  # nothing before it is asked
    assert next(reader) == 0
    assert began.wait(300)  # the second is made though nobody asked for it
    assert not far.wait(0.3)  # one is taken, two are waiting, one is in hand
    assert list(reader) == list(range(1, 100))


# ---------------------------------------------------------------------- the command


@pytest.fixture
def vocabulary(tmp_path: Path, tokenizer: Tokenizer) -> Path:
    (tmp_path / "vocabulary").mkdir()
    tokenizer.save(tmp_path / "vocabulary")
    return tmp_path / "vocabulary"


ROWS = [" ".join(sentences) for sentences in MIXED]
SQUEEZE: dict[str, Callable[[bytes], bytes]] = {".gz": gzip.compress, ".xz": lzma.compress}


@pytest.mark.parametrize(
    "name",
    ["a.txt", "a.txt.gz", "a.txt.xz", "a.jsonl", "a.jsonl.gz", "a.csv", "a.csv.xz", "a.tsv", "a.parquet", "folder", "f*/*.t*", "-", "x=a.txt"],
)  # fmt: skip
def test_every_kind_of_input(
    name: str, tmp_path: Path, vocabulary: Path, run: Run, tokenizer: Tokenizer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    file = Path({"x=a.txt": "a.txt", "-": "a.txt"}.get(name, name))
    if ".txt" in file.suffixes:
        file.write_bytes(SQUEEZE.get(file.suffix, bytes)(text_of(MIXED).encode()))
    elif file.suffix in (".t*", ""):
        write(tmp_path / "folder" / "a.txt", MIXED[:2])
        write_rows(tmp_path / "folder" / "b.tsv", ROWS[2:])
    else:
        write_rows(tmp_path / file, ROWS)
    with open("a.txt" if name == "-" else os.devnull, encoding="utf-8") as stream:
        monkeypatch.setattr(sys, "stdin", stream)
        done = run("pack", name, "--model", vocabulary, "--out", "out", "--field", "body")
    assert done.returncode == 0, done.stderr
    assert read(tmp_path / "out") == said_by(tokenizer, MIXED)
    assert list(open_packed("out").corpora("train")) == ["x" if name.startswith("x=") else "out"]


def test_the_table(tmp_path: Path, vocabulary: Path, run: Run) -> None:
    file = write(tmp_path / "a.txt", [*made_up(200), made_up(1)[0]])
    done = run(
        "pack", file, "--model", vocabulary / "vocab.txt", "--out", tmp_path / "out", "--valid", "10%", "--dedup"
    )
    assert done.returncode == 0, done.stderr
    report = open_packed(tmp_path / "out").manifest["report"]
    lines = dict(line.strip().split("  ", 1) for line in done.stdout.splitlines() if "  " in line.strip())
    table = {name.strip(): value.strip() for name, value in lines.items()}
    assert table["documents"] == "200"
    assert table["tokens"] == f"{report['tokens']:,}"
    assert table["sentences"] == f"{report['sentences']:,}"
    assert table["tokens per word"] == f"{report['tokens_per_word']:.2f}"
    assert table["unknown"] == f"{report['unknown']:.3%}"
    assert table["exact duplicates"] == "0.50% dropped"
    assert table["held out"] == f"{report['valid_documents']} documents, {report['valid_tokens']:,} tokens"
    assert table["unigram entropy"].startswith(f"{report['entropy']:.2f} nats")
    for name, count in report["lengths"].items():
        assert table[f"{name} tokens"].split()[0] == str(count)
    assert "▇" * 40 in done.stdout
    assert done.stderr == f"{tmp_path}/out is ready: bothways pretrain tiny --data {tmp_path}/out --out my-run\n"


def test_json_and_lines(tmp_path: Path, vocabulary: Path, run: Run, tokenizer: Tokenizer) -> None:
    (tmp_path / "a.txt").write_text("The cat.\nA dog. It runs.\n\nThe cat.\n")
    cases: list[tuple[Each, int, float]] = [("paragraphs", 2, 0), ("lines", 3, 1 / 3)]
    for each, documents, duplicates in cases:
        out = tmp_path / each
        done = run("pack", tmp_path / "a.txt", "--model", vocabulary, "--out", out, "--each", each, "--json")
        assert done.returncode == 0, done.stderr
        assert "dog" not in done.stderr
        report = json.loads(done.stdout)
        assert (report["documents"], report["duplicates"]) == (documents, duplicates)
        assert report == open_packed(out).manifest["report"]
        assert PackReport(**report) == pack([tmp_path / "a.txt"], tokenizer, tmp_path / "again", each=each)


def test_sources_of_the_command(tmp_path: Path, vocabulary: Path, run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for name in ("a.txt", "b.txt", "x=c.txt"):
        write(tmp_path / name, MIXED)
    inputs = ("a.txt", "wiki=b.txt", "x=c.txt", "wiki=a.txt")
    assert run("pack", *inputs, "--model", vocabulary, "--out", "out").returncode == 0
    sources = open_packed("out").manifest["sources"]
    assert sources == {"out": ["a.txt", "x=c.txt"], "wiki": ["b.txt", "a.txt"]}  # a file is really called x=c.txt


def test_held_out_by_the_command(tmp_path: Path, vocabulary: Path, run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    write(tmp_path / "a.txt", made_up(300))
    write(tmp_path / "v.txt", CHINESE)
    (tmp_path / "v.txt.gz").write_bytes(gzip.compress(text_of(CHINESE).encode()))

    def held_out(*options: str) -> int:
        done = run("pack", "a.txt", "--model", vocabulary, "--out", "out", "--json", *options)
        assert done.returncode == 0, done.stderr
        found: int = json.loads(done.stdout)["valid_documents"]
        return found

    assert held_out() == 0
    assert held_out("--valid", "5%") == held_out("--valid", "0.05") > 0
    assert held_out("--valid", "v.txt") == held_out("--valid", "v.txt.gz") == len(CHINESE)
    assert held_out("--valid", "v.*") == 2 * len(CHINESE)


def test_a_folder_called_0_is_not_held_out_by_itself(
    tmp_path: Path, vocabulary: Path, run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Parts of a corpus are often called 0, 1, 2 …; without --valid nothing is held out."""
    monkeypatch.chdir(tmp_path)
    write(tmp_path / "0" / "a.txt", ENGLISH)
    write(tmp_path / "1" / "a.txt", CHINESE)
    done = run("pack", "1", "--model", vocabulary, "--out", "out", "--json")
    assert done.returncode == 0, done.stderr
    report = json.loads(done.stdout)
    assert (report["documents"], report["valid_documents"]) == (len(CHINESE), 0)


def test_words_for_the_person_at_the_terminal(tmp_path: Path, vocabulary: Path, run: Run) -> None:
    (tmp_path / "one.txt").write_text("The cat.\nA dog.\n")
    done = run("pack", tmp_path / "one.txt", "--model", vocabulary, "--out", tmp_path / "out", "--valid", "0.01%")
    lines = done.stderr.splitlines()
    assert any("--each lines" in line for line in lines)
    assert any("0.01% of 1 " in line for line in lines)
    (tmp_path / "long.txt").write_text("the unbelievable dog " * 50_000)
    done = run("pack", tmp_path / "long.txt", "--model", vocabulary, "--out", tmp_path / "out")
    assert "million characters" in done.stderr


BAD = {
    "no file": (["{tmp}/none.txt"], "{tmp}/none.txt"),
    "no file of a known kind": (["{tmp}/folder"], "{tmp}/folder"),
    "an unknown kind": (["{tmp}/a.docx"], "a.docx"),
    "an empty file": (["{tmp}/empty.txt"], "{tmp}/empty.txt"),
    "blank lines": (["{tmp}/blank.txt"], "{tmp}/blank.txt"),
    "control characters": (["{tmp}/control.txt"], "{tmp}/control.txt"),
    "only held-out text": (["{tmp}/empty.txt", "--valid", "{tmp}/good.txt"], "{tmp}/empty.txt"),
    "only held-out files": (["{tmp}/good.txt", "--valid", "{tmp}/good.txt"], "--valid"),
    "a document that is held out": (["{tmp}/good.txt", "--valid", "99.99%"], "held out"),
    "a damaged file": (["{tmp}/good.txt", "{tmp}/cut.txt.gz"], "{tmp}/cut.txt.gz"),
    "not UTF-8": (["{tmp}/latin.txt"], "line 2"),
    "no parquet": (["{tmp}/bad.parquet"], "{tmp}/bad.parquet"),
    "no column": (["{tmp}/a.csv", "--text", "other"], "id, body"),
    "a source without a file": (["wiki={tmp}/none.txt"], "{tmp}/none.txt"),
    "too large a share": (["{tmp}/good.txt", "--valid", "200%"], "'200%'"),
    "no share": (["{tmp}/good.txt", "--valid", "5.5.5"], "'5.5.5'"),
    "no held-out file": (["{tmp}/good.txt", "--valid", "{tmp}/none.txt"], "{tmp}/none.txt"),
    "no tokenizer": (["{tmp}/good.txt", "--model", "{tmp}"], "{tmp}"),
    "no model": (["{tmp}/good.txt", "--model", "{tmp}/none"], "{tmp}/none"),
    "a full folder": (["{tmp}/good.txt", "--out", "{tmp}"], "a.csv"),
    "a file in its place": (["{tmp}/good.txt", "--out", "{tmp}/good.txt"], "{tmp}/good.txt"),
    "unwritable": (["{tmp}/good.txt", "--out", "/proc/none/out"], "/proc/none"),
}  # fmt: skip


@pytest.mark.parametrize("what", BAD)
def test_bad_input_gets_one_sentence_and_exit_code_1(what: str, tmp_path: Path, vocabulary: Path, run: Run) -> None:
    arguments, says = BAD[what]
    work = tmp_path / "work"
    (work / "folder").mkdir(parents=True)
    write(work / "good.txt", MIXED)
    contents_of = {
        "empty.txt": b"", "blank.txt": b"\n \n\t\n", "control.txt": b"\x01\n\n\x02", "a.docx": b"", "bad.parquet": b"x",
        "cut.txt.gz": gzip.compress(b"the cat\n" * 999)[:40], "latin.txt": b"caf\xc3\xa9\ncaf\xe9\n", "a.csv": b"id,body\n1,a\n",
    }  # fmt: skip
    for name, content in contents_of.items():
        (work / name).write_bytes(content)
    before = {file.name for file in work.iterdir()}
    given = [argument.format(tmp=work) for argument in arguments]
    usual = [("--model", vocabulary), ("--out", work / "out")]
    done = run("pack", *given, *(word for pair in usual if pair[0] not in given for word in pair))
    assert done.returncode == 1, done.stderr
    assert done.stderr.startswith("bothways: ")
    assert says.format(tmp=work) in done.stderr
    assert done.stdout == ""
    assert done.stderr.count("\n") == 1
    assert {file.name for file in work.iterdir()} == before


def test_wrong_usage_is_exit_code_2(tmp_path: Path, vocabulary: Path, run: Run) -> None:
    good = write(tmp_path / "good.txt", MIXED)
    for arguments in (
        ["pack"],
        ["pack", good],
        ["pack", good, "--model", vocabulary],
        ["pack", good, "--model", vocabulary, "--out", tmp_path / "out", "--each", "words"],
    ):
        assert run(*arguments).returncode == 2
    assert "Example: bothways pack" in run("pack", "--help").stdout


# The same command in small steps, so that the middle is soon reached. Who starts tests in the background has the
# interrupt ignored, and programs started by them too.
IN_SMALL_STEPS = f"""
import signal
import bothways.pretraining.pack as packing, bothways.pretraining.tokenized as tokenized
signal.signal(signal.SIGINT, signal.default_int_handler)
tokenized._CHUNK = 1 << 12
{GUARDED}"""


def is_idle(process: int) -> bool:
    """Whether all threads of a process sleep and go on sleeping, where the system can tell."""
    for _ in range(30):
        for thread in Path(f"/proc/{process}/task").glob("*"):
            if (thread / "stat").read_text().rpartition(")")[2].split()[0] != "S":
                return False
    return True


@pytest.mark.slow
@pytest.mark.parametrize(
    ("kind", "busy", "older"),
    [
        (signal.SIGTERM, True, True),
        (signal.SIGTERM, False, False),
        (signal.SIGINT, True, False),
        (signal.SIGINT, False, True),
        (signal.SIGKILL, True, False),
        (signal.SIGKILL, True, True),
    ],
)
def test_a_stopped_command_leaves_what_was_there(
    kind: signal.Signals, busy: bool, older: bool, tmp_path: Path, vocabulary: Path, packed_once: Path
) -> None:
    """Fed without end, or waiting for more: in the middle of the work either way."""
    place = tmp_path / "place"
    place.mkdir()
    if older:
        shutil.copytree(packed_once, place / "out")
    before = contents(place / "out") if older else {}
    command = [
        sys.executable,
        "-c",
        IN_SMALL_STEPS,
        "pack",
        "-",
        "--model",
        str(vocabulary),
        "--out",
        str(place / "out"),
    ]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        assert process.stdin
        pipe, in_the_middle = process.stdin, threading.Event()

        def feed() -> None:
            text = text_of(made_up(500)).encode()
            try:
                for fed in itertools.count() if busy else range(20):
                    pipe.write(text)
                    pipe.flush()
                    if fed == 20:
                        in_the_middle.set()
            except (BrokenPipeError, ValueError):
                return
            in_the_middle.set()

        feeder = threading.Thread(target=feed)
        feeder.start()
        try:
            assert in_the_middle.wait(300)
            wait_until(lambda: busy or is_idle(process.pid))
            assert len(list(place.glob(".out.*"))) == 1
            assert process.poll() is None
            process.send_signal(kind)
            assert process.wait(timeout=300) != 0
        finally:
            process.kill()
            feeder.join()
        assert process.stderr
        assert b"Traceback" not in process.stderr.read()
    left = {file.name for file in place.iterdir()} - {"out"}
    assert all(name.startswith(".out.") for name in left)
    if kind != signal.SIGKILL:
        assert left == set()
    assert (place / "out").exists() == older
    if older:
        assert contents(place / "out") == before
        assert read(place / "out")


def test_the_command_does_not_wait_for_torch(tmp_path: Path, vocabulary: Path) -> None:
    file = write(tmp_path / "a.txt", MIXED)
    script = GUARDED.replace(
        "main()\n", "main.__globals__['app'](standalone_mode=False)\nassert 'torch' not in sys.modules\n"
    )
    arguments = ["pack", file, "--model", vocabulary, "--out", tmp_path / "out", "--json"]
    done = subprocess.run([sys.executable, "-W", "error", "-c", script, *map(str, arguments)], capture_output=True, check=False)  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["documents"] == len(MIXED)


def test_json_on_standard_input_is_known_by_its_brace(
    tmp_path: Path, vocabulary: Path, run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_rows(tmp_path / "rows.jsonl", ROWS)
    shutil.copyfile(tmp_path / "rows.jsonl", tmp_path / "stream")
    told = []
    for name, source in (("-", tmp_path / "stream"), (str(tmp_path / "rows.jsonl"), Path(os.devnull))):
        with source.open(encoding="utf-8") as stream:
            monkeypatch.setattr(sys, "stdin", stream)
            done = run("pack", name, "--model", vocabulary, "--out", tmp_path / "out", "--field", "body", "--json")
        assert done.returncode == 0, done.stderr
        told.append(read(tmp_path / "out"))
    assert told[0] == told[1]


# ---------------------------------------------------------------------- what a word is, in Chinese


def chinese(tmp_path: Path, tokenizer: Tokenizer, text: str, **options: Any) -> tuple[list[str], list[bool]]:
    """The pieces of a text, and whether a word begins at each."""
    (tmp_path / "text.txt").write_text(text, encoding="utf-8")
    pack(tmp_path / "text.txt", tokenizer, tmp_path / "packed", **options)
    packed = open_packed(tmp_path / "packed")
    shard = next(iter(packed.corpora("train").values()))[0]
    bits = np.unpackbits(np.asarray(shard.words), count=len(shard.tokens)).astype(bool)
    return [packed.tokenizer.piece(int(i)) for i in shard.tokens], bits.tolist()


def test_words_of_a_segmenter_are_kept_whole(tmp_path: Path, tokenizer: Tokenizer) -> None:
    words = {"中国的首都是北京。": ["中国", "的", "首都", "是", "北京", "。"], "the unbelievable 狗": ["the", " ", "unbelievable", " ", "狗"]}  # fmt: skip
    pieces, starts = chinese(tmp_path, tokenizer, "\n".join(words), words=lambda sentence: words[sentence])
    plain, every = chinese(tmp_path, tokenizer, "\n".join(words))
    assert pieces == plain
    first = pieces.index("。") + 1
    assert every[:first] == [True] * first  # a character is a word, unless somebody knows better
    assert starts[:first] == [True, False, True, True, False, True, True, False, True]
    assert starts[first:] == every[first:]  # where the pieces say it, they are right


def test_spaces_that_are_there_part_words(tmp_path: Path, tokenizer: Tokenizer) -> None:
    pieces, starts = chinese(tmp_path, tokenizer, "中国 的 首都 是 北京 。", words="spaces")
    assert "".join(pieces) == "中国的首都是北京。"
    assert starts == [True, False, True, True, False, True, True, False, True]


def test_jieba_is_asked_if_it_is_there(tmp_path: Path, tokenizer: Tokenizer, monkeypatch: pytest.MonkeyPatch) -> None:
    fake = types.ModuleType("jieba")
    fake.cut = lambda sentence: iter(["中国", "的首都"])  # type: ignore[attr-defined]
    fake.setLogLevel = lambda level: None  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "jieba", fake)
    _, starts = chinese(tmp_path, tokenizer, "中国的首都", words="jieba")
    assert starts == [True, False, True, False, False]
    monkeypatch.setitem(sys.modules, "jieba", None)
    with refused("missing-package", names=r"pip install 'bothways\[chinese\]'"):
        chinese(tmp_path, tokenizer, "中国的首都", words="jieba")


def test_a_segmenter_that_makes_words_up_is_told(tmp_path: Path, tokenizer: Tokenizer) -> None:
    with refused("bad-segmentation", names=r"'北京'.*'的首都'"):
        chinese(tmp_path, tokenizer, "中国的首都", words=lambda sentence: ["中国", "北京"])
    with refused("unknown-choice", "hanlp"):
        chinese(tmp_path, tokenizer, "中国的首都", words="hanlp")


def test_a_chinese_word_is_masked_whole(tmp_path: Path, tokenizer: Tokenizer) -> None:
    """From the segmenter through the packed folder to what a model is asked for."""
    (tmp_path / "text.txt").write_text("中国 的 首都 是 北京 。\n\n" * 40, encoding="utf-8")
    pack(tmp_path / "text.txt", tokenizer, tmp_path / "packed", words="spaces")
    packed = open_packed(tmp_path / "packed")
    corpus = Corpus(next(iter(packed.corpora("train").values())))
    rows = make_sampler("documents", corpus, SpecialIds.of(tokenizer), 32, 0.0)
    made = rows.build(rows.plan(np.arange(20), np.arange(20).astype(np.uint64)))
    asked = set(select(made, "word", 0.3).tokens.tolist())
    for start in np.flatnonzero(made.word_starts & ~made.special).tolist():
        end = start + 1
        while end < len(made.ids) and not made.word_starts[end] and not made.special[end]:
            end += 1
        assert len({place in asked for place in range(start, end)}) == 1
    assert asked
