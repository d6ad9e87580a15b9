"""`predict --out`: the columns of the input and the answers, as .jsonl, .csv and .parquet."""

import csv
import json
from pathlib import Path
from typing import Any

import pandas
import pyarrow.parquet as pq
import pytest

from bothways.predict.predictor import Predictor
from bothways.scale import predict_files
from bothways.text.tokenizer import Tokenizer
from helpers import refused
from helpers.cli import Run, is_one_error
from helpers.tasks import named, their_folder

TEXTS = ["the cat runs", "北京 is small", "the " * 80, "a dog"]


@pytest.fixture
def classifier(tmp_path: Path, tokenizer: Tokenizer) -> Path:
    labels = named(["good", "bad", "so, so"])
    return their_folder(tmp_path / "classifier", tokenizer, "BertForSequenceClassification", **labels)


@pytest.fixture
def table(tmp_path: Path) -> Path:
    path = tmp_path / "rows.csv"
    with path.open("w", encoding="utf-8", newline="") as stream:
        writer = csv.writer(stream, delimiter=";")
        writer.writerow(["id", "review", "stars"])
        writer.writerows([f"r{i}", text, i] for i, text in enumerate(TEXTS))
    return path


def read(path: Path) -> list[dict[str, Any]]:
    if path.suffix == ".csv":
        with path.open(encoding="utf-8", newline="") as stream:
            return [dict(row) for row in csv.DictReader(stream)]
    if path.suffix == ".parquet":
        found: list[dict[str, Any]] = pq.read_table(path).to_pylist()
        return found
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]


@pytest.mark.parametrize("kind", ["jsonl", "csv", "parquet"])
def test_every_column_comes_back_beside_the_answers(kind: str, classifier: Path, table: Path, tmp_path: Path) -> None:
    out = tmp_path / f"out.{kind}"
    predict_files(table, out, classifier, probabilities=True, rows_per_part=2, long="window")
    rows = read(out)
    shares = ["probability_good", "probability_bad", "probability_so, so"]
    assert list(rows[0]) == [
        "input_row", "id", "review", "stars", "predicted_label", "predicted_score", *shares, "windows", "cut",
    ]  # fmt: skip
    assert [row["id"] for row in rows] == ["r0", "r1", "r2", "r3"]
    assert [row["review"] for row in rows] == TEXTS
    assert [int(row["input_row"]) for row in rows] == [1, 2, 3, 4]
    assert [int(row["windows"]) > 1 for row in rows] == [False, False, True, False]
    expected = Predictor.load(classifier, long="window")(TEXTS)
    assert [row["predicted_label"] for row in rows] == [answer["label"] for answer in expected]
    for row, answer in zip(rows, expected, strict=True):
        assert sum(float(row[name]) for name in shares) == pytest.approx(1, abs=1e-5)
        assert float(row["predicted_score"]) == pytest.approx(answer["score"], abs=1e-5)
        assert float(row[f"probability_{answer['label']}"]) == float(row["predicted_score"])


def test_excel_gets_a_byte_order_mark(classifier: Path, table: Path, tmp_path: Path, run: Run) -> None:
    asked = ("predict", table, "--model", classifier, "--long", "cut", "--bom", "--out")
    assert run(*asked, tmp_path / "with.csv").returncode == 0
    predict_files(table, tmp_path / "without.csv", classifier, long="cut")
    assert (tmp_path / "with.csv").read_bytes() == b"\xef\xbb\xbf" + (tmp_path / "without.csv").read_bytes()
    assert pandas.read_csv(tmp_path / "with.csv").columns[0] == "input_row"
    assert is_one_error(run(*asked, tmp_path / "with.jsonl").stderr, "--bom")


def test_what_was_cut_is_marked_in_its_row(classifier: Path, table: Path, tmp_path: Path) -> None:
    report = predict_files(table, tmp_path / "out.jsonl", classifier, long="cut", rows_per_part=3)
    assert [row["cut"] for row in read(tmp_path / "out.jsonl")] == [False, False, True, False]
    assert report.tally.cut == 1


def test_options_are_no_windows(tokenizer: Tokenizer, tmp_path: Path) -> None:
    folder = their_folder(tmp_path / "chooser", tokenizer, "BertForMultipleChoice")
    for context in ("the cat", "the " * 80):
        row = {"context": context, "question": "what?", "options": ["a dog", "a cat", "paris"]}
        (tmp_path / "rows.jsonl").write_text(json.dumps(row) + "\n", encoding="utf-8")
        predict_files(tmp_path / "rows.jsonl", tmp_path / "out.jsonl", folder, long="window")
        (found,) = read(tmp_path / "out.jsonl")
        # The text is read in several windows for each option; that with most tells how many.
        assert found["windows"] == 1 if context == "the cat" else 1 < found["windows"] < 6


def test_only_some_columns_are_kept(classifier: Path, table: Path, tmp_path: Path) -> None:
    predict_files(table, tmp_path / "some.jsonl", classifier, keep=["id"], long="cut")
    assert list(read(tmp_path / "some.jsonl")[0]) == [
        "input_row", "id", "predicted_label", "predicted_score", "windows", "cut",
    ]  # fmt: skip
    predict_files(table, tmp_path / "none.jsonl", classifier, keep=[], long="cut")
    assert "id" not in read(tmp_path / "none.jsonl")[0]
    with refused("no-column", "name"):
        predict_files(table, tmp_path / "bad.jsonl", classifier, keep=["name"], long="cut")


def test_rows_that_differ_have_all_columns(classifier: Path, tmp_path: Path) -> None:
    """JSON lines need not have the same fields; the third has a list, and the second part a number for a text."""
    lines: list[dict[str, Any]] = [
        {"text": "a dog", "n": 1}, {"text": "the cat", "when": None}, {"text": "a", "tags": ["x", "y"]}, {"text": "b", "n": 0.5},
    ]  # fmt: skip
    file = tmp_path / "rows.jsonl"
    file.write_text("".join(json.dumps(line) + "\n" for line in lines), encoding="utf-8")
    for kind in ("csv", "parquet"):
        predict_files(file, tmp_path / f"out.{kind}", classifier, rows_per_part=2)
    parquet, plain = read(tmp_path / "out.parquet"), read(tmp_path / "out.csv")
    assert [row["n"] for row in parquet] == [1.0, None, None, 0.5]
    assert parquet[2]["tags"] == ["x", "y"]
    assert json.loads(plain[2]["tags"]) == ["x", "y"]
    assert [row["n"] for row in plain] == ["1", "", "", "0.5"]


@pytest.mark.parametrize("kind", ["csv", "parquet", "jsonl"])
def test_no_rows_are_a_table_that_opens(kind: str, classifier: Path, tmp_path: Path) -> None:
    (tmp_path / "none.csv").write_text("text,label\n")
    predict_files(tmp_path / "none.csv", tmp_path / f"out.{kind}", classifier)
    assert read(tmp_path / f"out.{kind}") == []
    if kind == "csv":
        assert (tmp_path / "out.csv").read_text().split() == ["input_row"]
    if kind == "parquet":
        assert pq.read_table(tmp_path / "out.parquet").column_names == ["input_row"]


def test_json_files_keep_their_columns(classifier: Path, tmp_path: Path) -> None:
    """The rows of a list, and the numbers of Label Studio's tasks."""
    rows = [{"no": 7, "text": "a dog"}, {"no": 8, "text": "the cat"}]
    tasks = [{"id": row["no"], "data": {"text": row["text"]}, "annotations": []} for row in rows]
    for name, value, column in (("rows", rows, "no"), ("tasks", tasks, "id")):
        (tmp_path / f"{name}.json").write_text(json.dumps(value), encoding="utf-8")
        predict_files(tmp_path / f"{name}.json", tmp_path / f"{name}.jsonl", classifier)
        assert [(row[column], row["text"]) for row in read(tmp_path / f"{name}.jsonl")] == [
            (7, "a dog"),
            (8, "the cat"),
        ]
    predict_files(tmp_path / "tasks.json", tmp_path / "kept.jsonl", classifier, keep=["id"])
    assert [(row["id"], "text" in row) for row in read(tmp_path / "kept.jsonl")] == [(7, False), (8, False)]


def test_names_that_predictions_need_are_refused(classifier: Path, tmp_path: Path) -> None:
    file = tmp_path / "rows.jsonl"
    file.write_text('{"text": "a dog", "cut": 1}\n', encoding="utf-8")
    with refused("repeated-column", "cut"):
        predict_files(file, tmp_path / "out.jsonl", classifier)
    predict_files(file, tmp_path / "kept.jsonl", classifier, keep=["text"])
    with refused("unknown-format"):
        predict_files(file, tmp_path / "out.xlsx", classifier)


def test_entities_are_written_with_their_rows(tmp_path: Path, tokenizer: Tokenizer) -> None:
    tagger = their_folder(
        tmp_path / "tagger", tokenizer, "BertForTokenClassification", **named(["O", "B-PER", "I-PER"])
    )  # fmt: skip
    file = tmp_path / "rows.csv"
    file.write_text("id,review\n1,Anna runs\n2,the cat\n", encoding="utf-8")
    predict_files(file, tmp_path / "out.parquet", tagger)
    rows = read(tmp_path / "out.parquet")
    expected = Predictor.load(tagger)(["Anna runs", "the cat"])
    assert [row["id"] for row in rows] == ["1", "2"]
    assert [[one["word"] for one in row["predicted_entities"]] for row in rows] == [
        [one["word"] for one in answer] for answer in expected
    ]
    with refused("no-probabilities", "tag"):
        predict_files(file, tmp_path / "bad.jsonl", tagger, probabilities=True)


def test_words_in_columns_are_written_as_sentences(tmp_path: Path, tokenizer: Tokenizer) -> None:
    """A .tsv of words has no row for each sentence, and its first line is no header."""
    labels = named(["O", "B-PER", "I-PER"])
    tagger = their_folder(tmp_path / "tagger", tokenizer, "BertForTokenClassification", **labels)
    words = tmp_path / "words.tsv"
    words.write_text("the\tO\ncat\tB-PER\n\na\tO\ndog\tO\nruns\tO\n")
    predict_files(words, tmp_path / "out.csv", tagger)
    assert [(row["input_row"], row["text"]) for row in read(tmp_path / "out.csv")] == [
        ("1", "the cat"),
        ("2", "a dog runs"),
    ]


SQUAD = {"context": "the cat runs", "qas": [{"id": "q1", "question": "who runs"}, {"id": "q2", "question": "a cat"}]}
CLUE = {
    "context_text": "the cat runs",
    "qas": [{"query_id": "q1", "query_text": "who runs"}, {"query_id": "q2", "query_text": "a cat"}],
}


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("a.json", {"data": [{"paragraphs": [SQUAD]}]}),
        ("a.jsonl", {"paragraphs": [SQUAD]}),
        ("a.jsonl", CLUE),
        ("a.jsonl", {"id": "q1", "question": "who runs", "context": "the cat runs"}),
    ],
)
def test_each_question_of_a_row_has_its_own_columns(
    name: str, value: Any, tmp_path: Path, tokenizer: Tokenizer
) -> None:
    reader = their_folder(tmp_path / "reader", tokenizer, "BertForQuestionAnswering")
    (tmp_path / name).write_text(json.dumps(value) + "\n")
    predict_files(tmp_path / name, tmp_path / "out.jsonl", reader)
    columns = ("id", "question", "context")
    found = [tuple(row[column] for column in columns) for row in read(tmp_path / "out.jsonl")]
    expected = [("q1", "who runs", "the cat runs"), ("q2", "a cat", "the cat runs")]
    assert found == (expected if "question" not in value else expected[:1])
    predict_files(tmp_path / name, tmp_path / "kept.jsonl", reader, keep=["id"])
    assert [row["id"] for row in read(tmp_path / "kept.jsonl")] == [row[0] for row in found]
