"""Search over a corpus: the answers of numpy, whatever was added, deleted or killed."""

import json
import os
import random
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import bothways
from bothways import atomic
from bothways.engine.reader import Tally
from bothways.errors import BothwaysError
from bothways.model import box
from bothways.model.checkpoint import save
from bothways.model.config import ModelConfig
from bothways.model.load import load
from bothways.model.model import Model
from bothways.model.pooling import Pooling
from bothways.model.sentence import Normalize, Sentence
from bothways.predict.rerank import Reranker
from bothways.scale import index_workers
from bothways.search import Index, SearchHit
from bothways.search.embed import Embedder
from bothways.search.manifest import read_manifest
from bothways.search.search_options import Mode
from bothways.tasks.folder import with_task
from bothways.text.tokenizer import Tokenizer
from helpers import TINY, config_for, make_loud, refused
from helpers.cli import Run, is_one_error

SOME = "the capital of france paris germany berlin china beijing cat dog runs sleeps black white big small house"
WORDS = SOME.split()
CHINESE = "中国的首都是北京巴黎法猫狗日本"
QUERIES = ["the capital of france", "中国的首都", "a black dog", "the cat sleeps in the big house"]
MODES: tuple[Mode, ...] = ("dense", "bm25", "fused")
MAX_LENGTH = 48


def texts(count: int, seed: int = 0, longest: int = 12) -> list[str]:
    """Short texts, English and Chinese."""
    draws = random.Random(seed)
    return [
        "".join(draws.choices(CHINESE, k=draws.randint(2, longest)))
        if draws.random() < 0.3
        else " ".join(draws.choices(WORDS, k=draws.randint(2, longest)))
        for _ in range(count)
    ]


def write_corpus(path: Path, documents: dict[str, str]) -> Path:
    """A corpus in BEIR's format."""
    lines = [json.dumps({"_id": id, "text": text}, ensure_ascii=False) + "\n" for id, text in documents.items()]
    path.write_text("".join(lines), encoding="utf-8")
    return path


def build(corpus: Path, out: Path, model: Any, **options: Any) -> Index:
    return Index.build(corpus, out, model, device="cpu", dtype="fp32", **options)


def answers(index: Index, k: int = 8) -> dict[tuple[Mode, str], list[SearchHit]]:
    """The hits of all modes and queries."""
    return {(mode, query): index.search(query, k, mode=mode) for mode in MODES for query in QUERIES}


def same(found: dict[tuple[Mode, str], list[SearchHit]], expected: dict[tuple[Mode, str], list[SearchHit]]) -> bool:
    """The same documents and passages in the same order. Scores may be rounded otherwise in another batch."""
    plain = [[[replace(hit, score=0.0) for hit in hits] for hits in some.values()] for some in (found, expected)]
    scores = [[hit.score for hits in some.values() for hit in hits] for some in (found, expected)]
    return plain[0] == plain[1] and scores[0] == pytest.approx(scores[1], abs=1e-5)


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory, tokenizer: Tokenizer) -> Path:
    made = Model.new(ModelConfig(TINY, ()), tokenizer, seed=1)
    make_loud(made)
    folder = tmp_path_factory.mktemp("search") / "model"
    save(made, folder)
    return folder


@pytest.fixture(scope="module")
def documents() -> dict[str, str]:
    """Two hundred different texts."""
    return {f"d{i}": text for i, text in enumerate(list(dict.fromkeys(texts(300)))[:200])}


# ---------------------------------------------------------------------- answers


@pytest.mark.parametrize("similarity", ["cosine", "dot"])
def test_dense_answers_are_those_of_numpy(
    similarity: str, model: Path, documents: dict[str, str], tmp_path: Path
) -> None:
    index = build(write_corpus(tmp_path / "c.jsonl", documents), tmp_path / "i", model, similarity=similarity)
    vectors = bothways.encode(list(documents.values()), model, device="cpu", dtype="fp32").astype(np.float64)
    queries = bothways.encode(QUERIES, model, device="cpu", dtype="fp32").astype(np.float64)
    if similarity == "cosine":
        vectors, queries = (matrix / np.linalg.norm(matrix, axis=1, keepdims=True) for matrix in (vectors, queries))
    ids = list(documents)
    for query, scores in zip(QUERIES, queries @ vectors.T, strict=True):
        hits = index.search(query, 20)
        order = np.argsort(-scores.astype(np.float32), kind="stable")[:20]
        assert np.allclose([hit.score for hit in hits], scores[order], rtol=1e-5)
        assert sum(hit.id == ids[place] for hit, place in zip(hits, order, strict=True)) >= 18  # equal but for rounding
        assert [hit.passage for hit in hits] == [documents[hit.id] for hit in hits]
        assert all((hit.start, hit.end) == (0, len(hit.passage)) for hit in hits)


def test_equal_documents_come_in_order(model: Path, tmp_path: Path) -> None:
    (tmp_path / "c.txt").write_text("a dog runs\n" * 40 + "the cat sleeps\n", encoding="utf-8")
    hits = build(tmp_path / "c.txt", tmp_path / "i", model).search("a dog runs", 20)
    assert [hit.id for hit in hits] == [str(number) for number in range(1, 21)]
    assert len({hit.score for hit in hits}) == 1


def test_a_query_has_one_answer_alone_and_among_others(model: Path, documents: dict[str, str], tmp_path: Path) -> None:
    index = build(write_corpus(tmp_path / "c.jsonl", documents), tmp_path / "i", model)
    many = [*QUERIES, *texts(30, seed=5, longest=30)]
    for mode in MODES:
        together = index.search_many(many, 7, mode=mode)
        alone = {(mode, query): index.search(query, 7, mode=mode) for query in many}
        assert same({(mode, query): hits for query, hits in zip(many, together, strict=True)}, alone)


def test_prompts_go_by_role(tokenizer: Tokenizer, tmp_path: Path, documents: dict[str, str]) -> None:
    made = Model.new(ModelConfig(TINY, ()), tokenizer, seed=1)
    make_loud(made)
    prompts = {"prompts": {"query": "the cat reads: ", "passage": "is big: "}, "similarity_fn_name": "dot"}
    made.sentence = Sentence(Pooling(("mean",)), [Normalize()], max_length=40, settings=prompts)
    save(made, tmp_path / "model")
    corpus = write_corpus(tmp_path / "c.jsonl", documents)
    index = build(corpus, tmp_path / "i", tmp_path / "model")

    def encoded(some: list[str], name: str) -> Any:
        return bothways.encode(some, tmp_path / "model", prompt_name=name, device="cpu", dtype="fp32")

    scores = encoded(QUERIES[:1], "query") @ encoded(list(documents.values()), "passage").T
    assert index.search(QUERIES[0], 5)[0].score == pytest.approx(float(scores.max()), rel=1e-5)
    settings = json.loads((tmp_path / "i" / "manifest.json").read_text())["settings"]
    assert settings["similarity"] == "dot"
    without = build(corpus, tmp_path / "j", tmp_path / "model", query_prompt="", document_prompt="")
    assert without.search(QUERIES[0], 5)[0].score != pytest.approx(float(scores.max()), rel=1e-3)


@pytest.mark.parametrize("depth", [100, 7])
def test_fused_answers_rank_by_both(model: Path, documents: dict[str, str], tmp_path: Path, depth: int) -> None:
    """Each ranking from 0 to 1: from its last, or from no word in common where that many have none."""
    index = build(write_corpus(tmp_path / "c.jsonl", documents), tmp_path / "i", model)
    lengths = set()
    for query in QUERIES:
        expected: dict[str, float] = {}
        for mode in ("dense", "bm25"):
            found = index.search(query, depth, mode=mode)
            low = 0.0 if mode == "bm25" and len(found) < depth else found[-1].score
            for hit in found:
                expected[hit.id] = expected.get(hit.id, 0) + (hit.score - low) / (found[0].score - low) / 2
            lengths.add((mode, len(found) < depth))
        hits = index.search(query, 5, mode="fused", depth=depth)
        assert [hit.score for hit in hits] == pytest.approx(sorted(expected.values(), reverse=True)[:5], abs=1e-6)
        assert all(hit.score == pytest.approx(expected[hit.id], abs=1e-6) for hit in hits)
        for more in (8, 60, 1000):
            assert index.search(query, more, mode="fused", depth=depth)[:5] == hits
    assert ("bm25", depth == 100) in lengths


@pytest.mark.parametrize("options", [{"quantize": "int8"}, {"quantize": "binary"}, {"ann": True}, {"many": 50}])
def test_faster_ways_find_what_exact_search_finds(
    options: dict[str, Any], model: Path, documents: dict[str, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of few documents all are candidates; additions are found too, and an index of many passages gets a graph."""
    monkeypatch.setattr("bothways.search.ingest.MANY", options.get("many", 10**6))
    options = {name: value for name, value in options.items() if name != "many"}
    corpus, more = (
        write_corpus(tmp_path / f"{name}.jsonl", {name + id: text for id, text in list(documents.items())[:95]})
        for name in "ab"
    )
    plain = build(corpus, tmp_path / "plain", model, ann=False)
    index = build(corpus, tmp_path / "i", model, **options)
    for each in (plain, index):
        each.add(more)
        each.delete(["ad3", "bd9"])
    is_graph = options.get("quantize") is None
    assert len(list((tmp_path / "i").rglob("graph.usearch" if is_graph else "codes.npy"))) == 2
    assert not list((tmp_path / "plain").rglob("graph.usearch"))
    assert same(answers(index), answers(plain))
    exact = {("dense", query): index.search(query, 8, exact=True) for query in QUERIES}
    assert same(exact, {("dense", query): plain.search(query, 8) for query in QUERIES})  # type: ignore[arg-type]
    index.compact()
    assert len(list((tmp_path / "i").rglob("graph.usearch" if is_graph else "codes.npy"))) == 1
    with refused("bad-combination"):
        build(corpus, tmp_path / "x", model, quantize="int8", ann=True)


def test_a_cross_encoder_orders_again(
    model: Path, tokenizer: Tokenizer, documents: dict[str, str], tmp_path: Path
) -> None:
    made = Model.new(ModelConfig(TINY, ("pooler",)), tokenizer, seed=3)
    folder = tmp_path / "reranker"
    tuned = with_task(made, config_for("score"), ("score",))
    make_loud(tuned, seed=4)
    save(tuned, folder)
    index = build(write_corpus(tmp_path / "c.jsonl", documents), tmp_path / "i", model)
    first = index.search(QUERIES[0], 30)
    ranker = Reranker(folder, device="cpu", dtype="fp32")
    scores = dict(
        zip([hit.id for hit in first], ranker.scores([(QUERIES[0], hit.passage) for hit in first]), strict=True)
    )
    hits = index.search(QUERIES[0], 5, rerank=folder, depth=30)
    assert [hit.score for hit in hits] == pytest.approx(sorted(scores.values(), reverse=True)[:5], abs=1e-6)
    assert [hit.id for hit in hits] != [hit.id for hit in first[:5]]
    assert index.search(QUERIES[0], 5, rerank=ranker, depth=30) == hits


# ---------------------------------------------------------------------- long documents


def test_long_documents_are_found_by_their_passages(model: Path, tokenizer: Tokenizer, tmp_path: Path) -> None:
    filler = texts(60, seed=9)
    long = ". ".join([*filler[:30], "unbelievable walking talk", *filler[30:]])
    corpus = write_corpus(tmp_path / "c.jsonl", {"long": long, "short": "a dog runs", "chinese": "猫和狗在北京。" * 40})
    index = build(corpus, tmp_path / "i", model)
    assert index.passages > 10
    assert (index.tally.in_windows, index.tally.cut, len(index)) == (2, 0, 3)
    hits = index.search("a dog runs", 10)
    assert sorted(hit.id for hit in hits) == ["chinese", "long", "short"]  # each once
    for hit in hits:
        alone = bothways.encode([hit.passage, "a dog runs"], model, device="cpu", dtype="fp32", long="window")
        cosine = alone[0] @ alone[1] / np.linalg.norm(alone[0]) / np.linalg.norm(alone[1])
        assert hit.score == pytest.approx(float(cosine), rel=1e-5)
    by_words = next(hit for hit in index.search("unbelievable walking", 3, mode="bm25") if hit.id == "long")
    assert "unbelievable walking" in by_words.passage
    assert long[by_words.start : by_words.end] == by_words.passage
    assert len(tokenizer(by_words.passage)) <= MAX_LENGTH


def test_what_is_cut_is_counted_and_what_is_refused_is_named(model: Path, tmp_path: Path) -> None:
    corpus = write_corpus(tmp_path / "c.jsonl", {"a": "a dog runs", "": "", "b": "the cat " * 100} | {"e": ""})
    with refused("no-id", names="c.jsonl, line 2"):
        build(corpus, tmp_path / "x", model)
    corpus = write_corpus(tmp_path / "c.jsonl", {"a": "a dog runs", "b": "the cat " * 100, "e": ""})
    with pytest.warns(UserWarning, match="1 text cut"):
        index = build(corpus, tmp_path / "i", model, long="cut")
    assert (index.tally.cut, index.tally.tokens_cut, index.tally.empty) == (1, 200 + 2 - MAX_LENGTH, 1)
    assert [hit.id for hit in index.search("cat", 5)] in (["a", "b"], ["b", "a"])
    with refused("too-long", names="c.jsonl, line 2 has 202 tokens"):
        build(corpus, tmp_path / "j", model, long="error")


# ---------------------------------------------------------------------- changes


def test_additions_and_deletions_equal_a_fresh_index(model: Path, documents: dict[str, str], tmp_path: Path) -> None:
    documents = documents | {"long": " ".join(texts(40, seed=3))}
    ids = list(documents)
    parts = [{id: documents[id] for id in some} for some in (ids[:90], ids[90:130], ids[130:])]
    gone = [*ids[:7], *ids[100:120], "long"]
    index = build(write_corpus(tmp_path / "0.jsonl", parts[0] | {"other": "a black dog"}), tmp_path / "i", model)
    index.add(write_corpus(tmp_path / "1.jsonl", parts[1]))
    index.delete(["other", *gone[:15]])
    index.add(write_corpus(tmp_path / "2.jsonl", parts[2]))
    index.delete(gone[15:])
    kept = {id: text for id, text in documents.items() if id not in gone}
    fresh = build(write_corpus(tmp_path / "f.jsonl", kept), tmp_path / "f", model)
    expected = answers(fresh, 30)
    assert len(index) == len(fresh) == len(kept)
    assert same(answers(index, 30), expected)
    assert same(answers(Index.open(tmp_path / "i", device="cpu", dtype="fp32"), 30), expected)
    index.compact()
    assert same(answers(index, 30), expected)
    assert index.passages == fresh.passages
    assert sorted(file.name for file in (tmp_path / "i").iterdir()) == ["bm25", "manifest.json", "segments"]
    index.add(write_corpus(tmp_path / "3.jsonl", {id: documents[id] for id in gone[:3]}))  # ids are free again
    assert len(index) == len(kept) + 3


def test_what_is_there_is_not_embedded_again(
    model: Path, documents: dict[str, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    embedded: list[str] = []
    block = Embedder.block

    def counted(self: Embedder, some: Any, tally: Tally) -> Any:
        embedded.extend(document.id for document in some)
        return block(self, some, tally)

    monkeypatch.setattr(Embedder, "block", counted)
    corpus = write_corpus(tmp_path / "c.jsonl", documents)
    index = build(corpus, tmp_path / "i", model)
    assert embedded == list(documents)
    build(corpus, tmp_path / "i", model)
    index.add(write_corpus(tmp_path / "1.jsonl", {"new": "a dog"}))
    index.delete(["d3"])
    index.compact()
    assert embedded == [*documents, "new"]


def test_lines_are_numbered_through_all_files(model: Path, tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("a dog runs\n\nthe cat sleeps\n\n", encoding="utf-8")
    (tmp_path / "b.txt").write_text("paris\nberlin\n", encoding="utf-8")
    index = build(tmp_path / "a.txt", tmp_path / "i", model)
    index.add(tmp_path / "b.txt")
    assert {hit.id: hit.passage for hit in index.search("dog", 9)} == {
        "1": "a dog runs",
        "3": "the cat sleeps",
        "5": "paris",
        "6": "berlin",
    }


def test_a_repeated_id_is_refused_with_both_places(model: Path, documents: dict[str, str], tmp_path: Path) -> None:
    corpus = tmp_path / "c.jsonl"
    corpus.write_text('{"_id": "x", "text": "a"}\n{"_id": 7, "text": "b"}\n{"_id": "x", "text": "c"}\n')
    with refused("repeated-id", names=r"c\.jsonl, line 3 has the id 'x' of .*c\.jsonl, line 1"):
        build(corpus, tmp_path / "i", model)
    index = build(write_corpus(tmp_path / "d.jsonl", documents), tmp_path / "i", model)
    before = answers(index)
    with refused("repeated-id", names=r"e\.jsonl, line 2 has the id 'd5'"):
        index.add(write_corpus(tmp_path / "e.jsonl", {"new": "a dog", "d5": "a cat"}))
    with refused("unknown-document", "nobody"):
        index.delete(["d5", "nobody"])
    assert same(answers(Index.open(tmp_path / "i", device="cpu", dtype="fp32")), before)


def test_another_model_is_refused(model: Path, tokenizer: Tokenizer, documents: dict[str, str], tmp_path: Path) -> None:
    corpus = write_corpus(tmp_path / "c.jsonl", documents)
    index = build(corpus, tmp_path / "i", model)
    other = Model.new(ModelConfig(TINY, ()), tokenizer, seed=2)
    make_loud(other, seed=2)
    with refused("other-model"):
        Index.open(tmp_path / "i", other).search("a dog")
    with refused("other-plan", names="model"):
        build(corpus, tmp_path / "i", other)
    in_memory = build(corpus, tmp_path / "j", load(model))
    assert same(answers(in_memory), answers(index))
    with refused("no-model"):
        Index.open(tmp_path / "j").search("a dog")
    assert len(Index.open(tmp_path / "j").search("a dog", mode="bm25")) == 10  # which needs no model
    assert Index.open(tmp_path / "j", load(model)).search("a dog") == index.search("a dog")


def test_what_is_no_index_is_refused(model: Path, documents: dict[str, str], tmp_path: Path) -> None:
    with refused("no-index"):
        Index.open(tmp_path / "nowhere")
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "thesis.tex").touch()
    corpus = write_corpus(tmp_path / "c.jsonl", documents)
    with refused("other-files", names=r"thesis\.tex"):
        build(corpus, tmp_path / "full", model)
    (tmp_path / "empty.txt").write_text("\n\n")
    with refused("no-text"):
        build(tmp_path / "empty.txt", tmp_path / "x", model)
    index = build(corpus, tmp_path / "i", model)
    for options in ({"mode": "sparse"}, {"k": 0}, {"depth": 0}):
        with refused("unknown-choice" if "mode" in options else "out-of-range"):
            index.search("a dog", **options)
    with refused("bad-input"):
        index.search_many("a dog")
    with refused("other-plan", names="other files"):
        build(write_corpus(tmp_path / "d.jsonl", documents), tmp_path / "i", model)
    for damaged in (
        "{",
        '{"version": 1, "settings": {"strange": 1}}',
        '{"version": 1}',
        '{"version": 1, "strange": 1}',
    ):
        (tmp_path / "i" / "manifest.json").write_text(damaged)
        with refused("damaged-file", names="others" if "version" in damaged else "column"):
            Index.open(tmp_path / "i")


def test_an_index_that_may_only_be_read(
    model: Path, documents: dict[str, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    index = build(write_corpus(tmp_path / "c.jsonl", documents), tmp_path / "i", model)
    expected = answers(index)
    shutil.rmtree(tmp_path / "i" / "bm25")

    def unwritable(*_: Any, **__: Any) -> None:
        raise BothwaysError("no", "unwritable")

    monkeypatch.setattr(atomic, "new_folder", unwritable)
    assert same(answers(Index.open(tmp_path / "i", device="cpu", dtype="fp32")), expected)
    assert not (tmp_path / "i" / "bm25").exists()


def test_few_documents_and_no_queries(model: Path, tmp_path: Path) -> None:
    (tmp_path / "c.txt").write_text("a dog runs\n", encoding="utf-8")
    index = build(tmp_path / "c.txt", tmp_path / "i", model)
    for mode in MODES:
        assert index.search_many([], mode=mode) == []
        assert [hit.id for hit in index.search("dog", 10, mode=mode)] == ["1"]
        with refused("no-text", names="a query is empty"):
            index.search(" ", mode=mode)
    index.delete(["1"])
    assert len(index) == 0
    assert all(index.search("dog", mode=mode) == [] for mode in MODES)
    index.compact()
    assert all(index.search("dog", mode=mode) == [] for mode in MODES)
    index.add(tmp_path / "c.txt")
    assert [hit.id for hit in index.search("dog")] == ["2"]


def test_a_missing_package_is_named(
    model: Path, documents: dict[str, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("bm25s", "usearch", "usearch.index"):
        monkeypatch.setitem(sys.modules, name, None)
    corpus = write_corpus(tmp_path / "c.jsonl", documents)
    index = build(corpus, tmp_path / "i", model)
    assert len(index.search("a dog")) == 10
    with refused("missing-package", "bm25s", names=r"pip install 'bothways\[bm25\]'"):
        index.search("a dog", mode="fused")
    with refused("missing-package", "usearch", names=r"pip install 'bothways\[ann\]'"):
        build(corpus, tmp_path / "j", model, ann=True)


# ---------------------------------------------------------------------- kills


class Killed(BaseException):
    """Stands for a kill, in this process."""


def die_at(monkeypatch: pytest.MonkeyPatch, at: int) -> None:
    """Stop when the `at`-th file or folder is to appear, and whenever one is to appear afterwards."""
    count = 0

    def counted(real: Callable[..., Any]) -> Callable[..., Any]:
        def call(*arguments: Any) -> Any:
            nonlocal count
            count += 1
            if count >= at:
                raise Killed
            return real(*arguments)

        return call

    monkeypatch.setattr("os.replace", counted(os.replace))
    monkeypatch.setattr("os.rename", counted(os.rename))


def change(step: str, home: Path, model: Path, corpus: Path, more: Path) -> list[str]:
    """Build an index or add to it; the ids that were embedded."""
    embedded: list[str] = []
    block = Embedder.block

    def noted(self: Embedder, some: Any, tally: Tally) -> Any:
        embedded.extend(document.id for document in some)
        return block(self, some, tally)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("bothways.engine.chunks._TEXTS", {"cpu": 32})
        patch.setattr(Embedder, "block", noted)
        if step == "build":
            build(corpus, home, model)
        else:
            Index.open(home, device="cpu", dtype="fp32").add(more)
    return embedded


@pytest.mark.parametrize("step", ["build", "add"])
def test_a_stop_at_any_moment_loses_nothing(step: str, model: Path, documents: dict[str, str], tmp_path: Path) -> None:
    """Whatever file or folder was the last to appear: the old answers are there, and the same call does the rest."""
    some = dict(list(documents.items())[:80])  # three parts
    corpus, more = (
        write_corpus(tmp_path / f"{name}.jsonl", {name + id: text for id, text in some.items()}) for name in "ab"
    )
    base = tmp_path / "base"
    change("build", base, model, corpus, more)
    old = answers(Index.open(base, device="cpu", dtype="fp32"))
    shutil.copytree(base, tmp_path / "new")
    change("add", tmp_path / "new", model, corpus, more)
    new = old if step == "build" else answers(Index.open(tmp_path / "new", device="cpu", dtype="fp32"))
    for at in range(1, 100):
        home = tmp_path / f"i{at}"
        if step == "add":
            shutil.copytree(base, home)
        with pytest.MonkeyPatch.context() as patch:
            die_at(patch, at)
            try:
                change(step, home, model, corpus, more)
                break
            except Killed:
                pass
        parts = len(list((home / "parts").glob("part-*")))
        manifest = read_manifest(home)
        is_joined = manifest is not None and manifest.pending is None and at > 1
        if step == "add":
            assert same(answers(Index.open(home, device="cpu", dtype="fp32")), new if is_joined else old)
        elif not is_joined:
            with refused("unfinished" if manifest else "no-index"):
                Index.open(home)
        if not is_joined:
            again = change(step, home, model, corpus, more)
            assert len(again) == 80 - min(32 * parts, 80), "parts that are there are not made again"
        assert same(answers(Index.open(home, device="cpu", dtype="fp32")), new)
        assert not (home / "parts").exists() or is_joined
    assert at > 6


KILLED = """
import os, signal, sys
from pathlib import Path
import bothways.engine.chunks
from bothways.search import Index
bothways.engine.chunks._TEXTS = {"cpu": 32}
corpus, home, model, at = sys.argv[1:]
rename, count = os.rename, 0
def dying(*arguments):
    global count
    count += 1
    if count == int(at):
        os.kill(os.getpid(), signal.SIGKILL)
    rename(*arguments)
os.rename = dying
Index.build(Path(corpus), Path(home), Path(model), device="cpu", dtype="fp32")
"""


def test_a_killed_build_goes_on(model: Path, documents: dict[str, str], tmp_path: Path) -> None:
    corpus, home = write_corpus(tmp_path / "c.jsonl", documents), tmp_path / "i"
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(path or os.getcwd() for path in sys.path)}
    for at in (3, 2):  # the third part, then the second of those that are left
        words = [sys.executable, "-c", KILLED, str(corpus), str(home), str(model), str(at)]
        assert subprocess.run(words, check=False, env=environment).returncode == -signal.SIGKILL
    assert len(list((home / "parts").glob("part-*"))) == 3
    assert list((home / "parts").glob(".*")), "the killed writer left something"
    embedded = change("build", home, model, corpus, corpus)
    assert len(embedded) == len(documents) - 3 * 32
    assert sorted(file.name for file in home.iterdir()) == ["bm25", "manifest.json", "segments"]
    fresh = build(corpus, tmp_path / "fresh", model)
    assert same(answers(Index.open(home, device="cpu", dtype="fp32")), answers(fresh))


def test_an_interrupted_addition_is_finished_or_dropped(model: Path, documents: dict[str, str], tmp_path: Path) -> None:
    corpus = write_corpus(tmp_path / "c.jsonl", documents)
    index = build(corpus, tmp_path / "i", model)
    more = write_corpus(tmp_path / "more.jsonl", {f"m{id}": text for id, text in documents.items()})
    other = write_corpus(tmp_path / "other.jsonl", {"o": "a dog"})
    with pytest.MonkeyPatch.context() as patch:
        die_at(patch, 4)
        with pytest.raises(Killed):
            change("add", tmp_path / "i", model, corpus, more)
    with refused("other-plan", names=r"more\.jsonl"):
        index.add(other)
    shutil.rmtree(tmp_path / "i" / "parts")
    index.add(other)
    assert len(index) == len(documents) + 1


def test_an_included_model_is_found_by_its_name(model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Wherever the library is installed, and wherever somebody works."""
    shutil.copytree(model, tmp_path / "box/en")
    monkeypatch.setattr(box, "BOX", tmp_path / "box")
    (tmp_path / "c.txt").write_text("a dog runs\n", encoding="utf-8")
    Index.build(tmp_path / "c.txt", tmp_path / "i", "en", device="cpu", dtype="fp32")
    (tmp_path / "box").rename(tmp_path / "moved")
    monkeypatch.setattr(box, "BOX", tmp_path / "moved")
    monkeypatch.chdir(tmp_path)
    assert Index.open(tmp_path / "i", device="cpu", dtype="fp32").search("a dog runs", 1)[0].score > 0.999


def test_the_last_addition_is_not_made_twice(model: Path, tmp_path: Path) -> None:
    """A command that was killed after its addition was there is repeated."""
    (tmp_path / "c.txt").write_text("a dog runs\n", encoding="utf-8")
    (tmp_path / "more.txt").write_text("the cat sleeps\n", encoding="utf-8")
    index = build(tmp_path / "c.txt", tmp_path / "i", model)
    index.add(tmp_path / "more.txt")
    index.add(tmp_path / "more.txt")
    assert len(index) == 2
    index.delete(["2"])  # from here on it is another one
    index.add(tmp_path / "more.txt")
    assert (len(index), index.search("the cat sleeps", 1)[0].id) == (2, "3")
    (tmp_path / "more.txt").write_text("the cat walks\n", encoding="utf-8")
    index.add(tmp_path / "more.txt")
    assert len(index) == 3
    rows = tmp_path / "rows.jsonl"
    rows.write_text('{"text": "paris", "body": "berlin"}\n')
    index.add(rows)
    index.add(rows, text="body")  # the same file, and other documents
    assert len(index) == 5


def test_one_writer_at_a_time(model: Path, documents: dict[str, str], tmp_path: Path) -> None:
    index = build(write_corpus(tmp_path / "c.jsonl", documents), tmp_path / "i", model)
    with atomic.only_writer(tmp_path / "i"), refused("already-running"):
        index.delete(["d1"])


# ---------------------------------------------------------------------- workers


def test_workers_make_the_same_index(model: Path, documents: dict[str, str], tmp_path: Path) -> None:
    """Of files with and without ids, stopped after some parts; the same call does the rest."""
    corpus = [write_corpus(tmp_path / "a.jsonl", documents), tmp_path / "b.txt", tmp_path / "notes"]
    (tmp_path / "b.txt").write_text("\n".join(["the cat", "", *texts(30, seed=8, longest=60)]), encoding="utf-8")
    (tmp_path / "notes").mkdir()
    (tmp_path / "notes" / "n.md").write_text("# the capital\n\nof germany is berlin")
    expected = Index.build(corpus, tmp_path / "one", model, device="cpu", dtype="fp32")
    workers = index_workers("cpu:2", rows_per_part=50, dtype="fp32")

    def made() -> Index:
        return Index.build(corpus, tmp_path / "i", model, device="cpu", dtype="fp32", make_parts=workers)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("bothways.search.ingest._join", stop)
        with pytest.raises(Killed):
            made()
    with refused("other-plan"):
        build(corpus[0], tmp_path / "i", model)
    done = sorted((tmp_path / "i" / "parts").glob("part-*.json"))
    assert len(done) == 6
    times = [file.stat().st_mtime_ns for file in done[1:]]
    done[0].unlink()  # a worker was killed before it wrote its counts
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("bothways.search.ingest._join", stop)
        with pytest.raises(Killed):
            made()
    assert [file.stat().st_mtime_ns for file in done[1:]] == times
    index = made()
    assert same(answers(index, 30), answers(expected, 30))
    assert index.tally == expected.tally
    assert len(index) == len(expected) == 200 + 31 + 1
    with refused("no-model"):
        Index.build(corpus[0], tmp_path / "x", load(model), make_parts=workers)


def stop(*_: Any) -> None:
    raise Killed


# ---------------------------------------------------------------------- the command


def test_the_command(run: Run, model: Path, documents: dict[str, str], tmp_path: Path) -> None:
    corpus, home = write_corpus(tmp_path / "c.jsonl", documents), tmp_path / "i"
    where = ["--device", "cpu", "--dtype", "fp32"]
    done = run("search", "build", corpus, "--out", home, "--model", model, *where)
    assert (done.returncode, done.stdout) == (0, "")
    assert f"200 documents, 200 × 32 in {home}" in done.stderr
    found = json.loads(run("search", QUERIES[0], "--index", home, "-k", 3, "--json", *where).stdout)
    hits = Index.open(home, device="cpu", dtype="fp32").search(QUERIES[0], 3)
    assert found["hits"] == [{"rank": rank, **vars(hit)} for rank, hit in enumerate(hits, 1)]
    assert (found["query"], found["mode"], found["documents"]) == (QUERIES[0], "dense", 200)
    table = run("search", "--index", home, "中国的首都", "--mode", "fused", *where)
    assert table.returncode == 0
    assert hits[0].id not in table.stderr
    assert len(table.stdout.splitlines()) >= 12
    added = write_corpus(tmp_path / "d.jsonl", {"new": "beijing is the capital of china"})
    report = json.loads(run("search", "add", home, added, "--json", *where).stdout)
    assert (report["documents"], report["read"]["texts"]) == (201, 201)
    assert run("search", "delete", home, "--id", "new", "--id", "d0").returncode == 0
    assert json.loads(run("search", "compact", home, "--json").stdout)["passages"] == 199
    wrong = run("search", "delete", home, "--id", "new")
    assert wrong.returncode == 1
    assert is_one_error(wrong.stderr, "new")
    assert run("search", "query", "build", "--index", home, "--mode", "bm25").returncode == 0
    assert run("search", "a dog").returncode == 2
    wrong = run("search", "add", home, added, "--devices", "cpu:2", "--device", "cpu")
    assert wrong.returncode == 1
    assert is_one_error(wrong.stderr, "--device is cpu")
