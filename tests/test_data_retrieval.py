"""Retrieval collections out of folders in BEIR's layout."""

import gzip
import json
import lzma
from pathlib import Path
from typing import Any

import pytest

from bothways.data.notes import Notes
from bothways.data.retrieval import Collection, Document, read_collection
from bothways.scoring.retrieval import score_results
from helpers import refused

CORPUS: list[dict[str, Any]] = [
    {"_id": "d1", "title": "Paris", "text": "The capital of France.", "metadata": {"url": "x"}},
    {"_id": "d2", "title": "", "text": " no title "},
    {"_id": "北京", "title": "北京", "text": "中国的首都。"},
    {"_id": "d3", "text": "no title at all"},
]
QUERIES: list[dict[str, Any]] = [
    {"_id": "q2", "text": "首都是哪里"},
    {"_id": "unjudged", "text": "nobody judged this"},
    {"_id": "q1", "text": "capital of France"},
]
QRELS = "query-id\tcorpus-id\tscore\nq1\td1\t2\nq1\td2\t0\nq2\t北京\t1\n"
JUDGED = {"q1": {"d1": 2, "d2": 0}, "q2": {"北京": 1}}
TREC = "q1 0 d1 2\nq1 0  d2 0\r\n\nq2\t0 北京 1\n"


def lines(rows: list[dict[str, Any]]) -> str:
    return "".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows)


def folder(path: Path, **files: str) -> Path:
    """A folder in BEIR's layout, with other contents for some of its files: corpus, queries, qrels."""
    (path / "qrels").mkdir(exist_ok=True)
    contents = {"corpus": lines(CORPUS), "queries": lines(QUERIES), "qrels": QRELS, **files}
    (path / "corpus.jsonl").write_text(contents["corpus"], encoding="utf-8")
    (path / "queries.jsonl").write_text(contents["queries"], encoding="utf-8")
    (path / "qrels" / "test.tsv").write_text(contents["qrels"], encoding="utf-8", newline="")
    return path


def test_a_folder_in_beirs_layout(tmp_path: Path) -> None:
    """Title and text are joined by a space; queries that nobody judged are left out."""
    notes = Notes()
    found = read_collection(str(folder(tmp_path)), notes=notes)
    assert list(found.queries.items()) == [("q2", "首都是哪里"), ("q1", "capital of France")]
    assert found.judgements == JUDGED
    assert list(found.documents(notes)) == [
        Document("d1", "Paris The capital of France.", f"{tmp_path / 'corpus.jsonl'}, line 1"),
        Document("d2", "no title", f"{tmp_path / 'corpus.jsonl'}, line 2"),
        Document("北京", "北京 中国的首都。", f"{tmp_path / 'corpus.jsonl'}, line 3"),
        Document("d3", "no title at all", f"{tmp_path / 'corpus.jsonl'}, line 4"),
    ]
    assert not notes
    assert [document.id for document in found.documents()] == ["d1", "d2", "北京", "d3"], "it can be read again"


def test_a_collection_is_scored_as_it_was_read(tmp_path: Path) -> None:
    found = read_collection(folder(tmp_path))
    results = {
        query: {document.id: float(document.id == "d2") for document in found.documents()} for query in found.queries
    }
    scores = score_results(found.judgements, results, [1, 2]).by_query()
    assert (scores["q1"]["recall@1"], scores["q2"]["recall@2"]) == (0.0, 1.0)


@pytest.mark.parametrize(
    "qrels",
    [
        QRELS.split("\n", 1)[1],  # no header
        QRELS.replace("\n", "\r\n"),
        QRELS.replace("\t", " "),
        QRELS.replace("\t2\n", "\t2.0\n"),
        "\ufeff" + QRELS,
        "score\tquery-id\tannotator\tcorpus-id\n2\tq1\tme\td1\n0\tq1\tme\td2\n1\tq2\t我\t北京\n",
        TREC,
        TREC.replace("  ", " ").replace(" ", "\t"),
        TREC.replace(" 0 ", " Q0 "),
    ],
)
def test_judgements_in_every_form(tmp_path: Path, qrels: str) -> None:
    assert read_collection(folder(tmp_path, qrels=qrels)).judgements == JUDGED


def test_compressed_files_another_split_and_the_flat_name(tmp_path: Path) -> None:
    (tmp_path / "corpus.jsonl.gz").write_bytes(gzip.compress(lines(CORPUS).encode()))
    (tmp_path / "queries.jsonl.xz").write_bytes(lzma.compress(lines(QUERIES).encode()))
    (tmp_path / "qrels_dev.tsv.xz").write_bytes(lzma.compress(QRELS.encode()))
    found = read_collection(tmp_path, split="dev")
    assert found.judgements == JUDGED
    assert len(list(found.documents())) == 4
    with refused("no-file", tmp_path / "qrels/test.tsv"):
        read_collection(tmp_path)


def test_the_corpus_is_streamed(tmp_path: Path) -> None:
    """A document is there before the next line is parsed."""
    found = read_collection(folder(tmp_path, corpus=lines(CORPUS[:1]) + "{broken\n")).documents()
    assert next(found).id == "d1"
    with refused("not-json", f"{tmp_path / 'corpus.jsonl'}, line 2"):
        next(found)


def test_what_is_odd_is_noted(tmp_path: Path) -> None:
    notes = Notes()
    empty = [*CORPUS, {"_id": "e", "title": " ", "text": None}, {"_id": 7, "text": "a number as id"}]
    asked = [*QUERIES, {"_id": "q3", "text": ""}]
    judged = QRELS + "q1\td2\t0\nq3\tlost\t1\nq3\tlost too\t1\n"
    found = read_collection(folder(tmp_path, corpus=lines(empty), queries=lines(asked), qrels=judged), notes=notes)
    assert notes.counts == {"repeated-judgement": 1, "empty-text": 1}
    assert notes.first == {
        "repeated-judgement": f"{tmp_path / 'qrels/test.tsv'}, line 5",
        "empty-text": f"{tmp_path / 'queries.jsonl'}, line 4",
    }
    assert [document.id for document in found.documents(notes)][-2:] == ["e", "7"]
    assert notes.counts == {"repeated-judgement": 1, "empty-text": 2, "unknown-document": 2}
    assert notes.first["unknown-document"] == f"{tmp_path / 'qrels/test.tsv'}, line 6"
    assert notes.values["unknown-document"] == "lost"
    assert found.judgements["q3"] == {"lost": 1, "lost too": 1}, "they count as not retrieved, as in trec_eval"


BAD: dict[str, tuple[str, str, str, str]] = {
    "a document twice": ("corpus", lines([*CORPUS, CORPUS[0]]), "repeated-id", "corpus.jsonl, line 5"),
    "a number and a text as id": ("corpus", lines([{"_id": 7, "text": ""}, {"_id": "7", "text": ""}]), "repeated-id", "corpus.jsonl, line 2"),
    "no id": ("corpus", lines([{"id": "d1", "text": "a"}]), "no-id", "corpus.jsonl, line 1"),
    "an empty id": ("corpus", lines([{"_id": "", "text": "a"}]), "no-id", "corpus.jsonl, line 1"),
    "no text": ("corpus", lines([{"_id": "d1", "body": "a"}]), "not-text", "corpus.jsonl, line 1"),
    "a title that is no text": ("corpus", lines([{"_id": "d1", "title": 5, "text": "a"}]), "not-text", "corpus.jsonl, line 1"),
    "a corpus of lists": ("corpus", "[1]\n", "not-an-object", "corpus.jsonl, line 1"),
    "another corpus": ("corpus", lines([{"_id": "other", "text": "a"}]), "unknown-document", "qrels/test.tsv, line 2"),
    "a query twice": ("queries", lines([*QUERIES, QUERIES[1]]), "repeated-id", "queries.jsonl, line 4"),
    "a query without text": ("queries", lines([{"_id": "q1"}]), "not-text", "queries.jsonl, line 1"),
    "a judged query that is not there": ("queries", lines(QUERIES[:2]), "unknown-query", "qrels/test.tsv, line 2"),
    "two relevances": ("qrels", QRELS + "q1\td1\t1\n", "repeated-judgement", "qrels/test.tsv, line 5"),
    "a relevance that is no number": ("qrels", QRELS + "q1\td3\tyes\n", "bad-relevance", "qrels/test.tsv, line 5"),
    "half a relevance": ("qrels", QRELS + "q1\td3\t0.5\n", "bad-relevance", "qrels/test.tsv, line 5"),
    "a row cut short": ("qrels", QRELS + "q1\td3\n", "wrong-cell-count", "qrels/test.tsv, line 5"),
    "other columns": ("qrels", "query\tdocument\trelevance\nq1\td1\t1\n", "no-column", "qrels/test.tsv, line 2"),
}  # fmt: skip


def read_all(path: Path) -> Collection:
    found = read_collection(path)
    list(found.documents())
    return found


@pytest.mark.parametrize("what", BAD)
def test_errors_name_the_file_and_the_line(tmp_path: Path, what: str) -> None:
    name, content, code, where = BAD[what]
    with refused(code, f"{tmp_path}/{where}", names=f"^{tmp_path}/{where} [^\n]+$"):
        read_all(folder(tmp_path, **{name: content}))


@pytest.mark.parametrize(
    ("name", "content"), [("corpus", ""), ("queries", "\n"), ("qrels", ""), ("qrels", QRELS.split("\n")[0])]
)
def test_empty_files_are_refused(tmp_path: Path, name: str, content: str) -> None:
    with refused("empty-file", names="test.tsv" if name == "qrels" else f"{name}.jsonl"):
        read_all(folder(tmp_path, **{name: content}))


@pytest.mark.parametrize("name", ["corpus.jsonl", "queries.jsonl", "qrels/test.tsv"])
def test_a_missing_file_is_named(tmp_path: Path, name: str) -> None:
    (folder(tmp_path) / name).unlink()
    with refused("no-file", tmp_path / name, names=name):
        read_collection(tmp_path)
    with refused("no-folder", tmp_path / "nowhere"):
        read_collection(tmp_path / "nowhere")
