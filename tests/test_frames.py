"""Tables in memory go in wherever files do, and predictions come back as tables of the same kind."""

from pathlib import Path
from typing import Any, cast

import datasets
import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pytest

import bothways
from bothways.data.notes import Notes
from bothways.data.texts import read_texts_labelled
from bothways.model.load import load
from bothways.text.frames import as_files, frame_kind, is_frame, rows_of_frame, with_columns
from bothways.text.tokenizer import Tokenizer
from helpers import refused
from helpers.tasks import quiet, recipe_for

ROWS: dict[str, Any] = {
    "id": [7, 8, 9, 10],
    "review": ["the cat runs", "the dog sleeps", "北京 is small", "a small tree"],
    "stars": ["good", "bad", "good", "bad"],
}
MAKE: dict[str, Any] = {
    "pandas": pd.DataFrame,
    "polars": pl.DataFrame,
    "datasets": datasets.Dataset.from_dict,
    "pyarrow": pa.table,
}


@pytest.fixture(params=list(MAKE))
def kind(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture(scope="module")
def tuned(tmp_path_factory: pytest.TempPathFactory, base: Path) -> Path:
    table = pd.DataFrame(ROWS)
    found = bothways.finetune(
        recipe_for("classify", base, run=quiet(epochs=1.0, batch_size=2)), tmp_path_factory.mktemp("t") / "run",
        train=table, dev=table,
    )  # fmt: skip
    assert (found.examples, found.labels) == (4, ("bad", "good"))
    return found.folder


def plain(table: Any) -> list[dict[str, Any]]:
    return list(rows_of_frame(table))


def test_the_rows_of_every_kind_are_equal(kind: str) -> None:
    table = MAKE[kind](ROWS)
    assert frame_kind(table) == kind
    assert plain(table) == plain(pd.DataFrame(ROWS))
    with as_files(table, "my table") as names:
        assert is_frame(names[0])
        found = list(read_texts_labelled(names))
    assert not is_frame(names[0])
    assert [(row.texts, row.gold, row.where) for row in found[:2]] == [
        (("the cat runs",), "good", "my table, row 1"), (("the dog sleeps",), "bad", "my table, row 2"),
    ]  # fmt: skip


def test_predictions_come_back_as_the_same_kind_of_table(kind: str, tuned: Path) -> None:
    predictor, table = bothways.Predictor.load(tuned), MAKE[kind](ROWS)
    found = predictor(table)
    assert frame_kind(found) == kind
    rows = plain(found)
    assert list(rows[0]) == ["id", "review", "stars", "predicted_label", "predicted_score"]
    assert [row["id"] for row in rows] == ROWS["id"]
    expected = predictor(ROWS["review"])
    assert [row["predicted_label"] for row in rows] == [one["label"] for one in expected]
    assert [row["predicted_score"] for row in rows] == pytest.approx([one["score"] for one in expected], abs=1e-6)
    assert len(plain(table)[0]) == 3  # the input stays as it was
    with refused("repeated-column", "predicted_label"):
        predictor(found)


def test_rows_without_a_text_are_said(tuned: Path) -> None:
    with pytest.warns(UserWarning, match="row 2"):
        found = bothways.Predictor.load(tuned)(pd.DataFrame({"review": ["the cat", None]}))
    assert len(found) == 2


def test_vectors_of_a_table_are_those_of_its_texts(kind: str, base: Path) -> None:
    vectors = bothways.encode(MAKE[kind](ROWS), base)
    np.testing.assert_allclose(vectors, bothways.encode(ROWS["review"], base), atol=1e-6)


def test_texts_of_a_table_are_compared_and_grouped(kind: str, base: Path) -> None:
    """A table is an iterable of the names of its columns, which were compared instead."""
    table, texts = MAKE[kind](ROWS), ROWS["review"]
    assert bothways.similar_pairs(table, base) == bothways.similar_pairs(texts, base)
    assert bothways.near_duplicates(table, base, text="stars", threshold=1.0) == [[0, 2], [1, 3]]
    assert bothways.cluster(table, base, k=2) == bothways.cluster(texts, base, k=2)
    for use in (
        lambda: bothways.mine_hard_negatives([("a", "b")], base, corpus=table),
        lambda: bothways.bert_score(table, table, base),
    ):
        with refused("bad-input", names="one of its columns"):
            use()


@pytest.mark.parametrize("missing", [None, np.nan, pd.NA])
def test_a_missing_text_of_a_column_is_said_to_be_missing(missing: Any, base: Path) -> None:
    with refused("bad-input", names="fill missing texts"):
        bothways.encode(pd.Series(["the cat", missing], dtype=object), base)


def test_the_only_column_of_a_table_is_its_text(kind: str, base: Path) -> None:
    """As ColumnTransformer gives it, whatever its name; the first line of a file could be a text."""
    table = MAKE[kind]({"body (en)": ROWS["review"]})
    assert np.array_equal(bothways.encode(table, base), bothways.encode(ROWS["review"], base))
    with as_files(table) as names:
        assert [one.texts[0] for one in read_texts_labelled(names)] == ROWS["review"]


def test_a_table_is_scored_and_checked_as_its_file_is(tuned: Path, base: Path, tmp_path: Path) -> None:
    table, file = pd.DataFrame(ROWS), tmp_path / "rows.csv"
    table.to_csv(file, index=False)
    assert bothways.evaluate(table, tuned).scores == bothways.evaluate([str(file)], tuned).scores
    assert bothways.compare_models(table, tuned, tuned).difference == 0
    ours, theirs = (bothways.check_data(some, some, model=base) for some in (table, file))
    assert (ours.rows, ours.task, ours.labels) == (theirs.rows, theirs.task, theirs.labels)
    assert [finding.what for finding in ours.findings] == [finding.what for finding in theirs.findings]
    assert "--train FILE" in ours.command


def test_a_table_is_packed_and_tables_may_have_names(kind: str, tokenizer: Tokenizer, tmp_path: Path) -> None:
    table = MAKE[kind]({"text": ROWS["review"] * 5})
    assert bothways.pack(table, tokenizer, tmp_path / "one").documents == 20
    report = bothways.pack({"first": table, "second": table}, tokenizer, tmp_path / "two", valid=0.3)
    assert report.documents + report.valid_documents >= 40


def test_a_classifier_takes_a_table_of_texts(base: Path) -> None:
    table = pd.DataFrame(ROWS)
    classifier = bothways.Classifier(base, epochs=1).fit(table[["id", "review"]], table["stars"])
    found = classifier.predict_proba(table)
    np.testing.assert_allclose(found, classifier.predict_proba(ROWS["review"]), atol=1e-6)
    assert classifier.score(table, table["stars"]) == classifier.score(ROWS["review"], ROWS["stars"])


def test_unusual_columns_are_named_by_text_and_label_everywhere(
    kind: str, tuned: Path, base: Path, tmp_path: Path
) -> None:
    """As the error says: name it with `text`."""
    odd = MAKE[kind]({"id": ROWS["id"], "was": ROWS["review"], "wie": ROWS["stars"]})
    usual = MAKE[kind](ROWS)
    with refused("no-text-column", ("id", "was", "wie")):
        bothways.encode(odd, base)
    np.testing.assert_allclose(bothways.encode(odd, base, text="was"), bothways.encode(usual, base), atol=1e-6)
    assert len(bothways.encode_tokens(odd, base, text="was")) == 4
    assert bothways.evaluate(odd, tuned, text="was", label="wie").scores == bothways.evaluate(usual, tuned).scores
    assert bothways.compare_models(odd, tuned, tuned, text="was", label="wie").difference == 0
    predictor = bothways.Predictor.load(tuned)
    expected = [row["predicted_label"] for row in plain(predictor(usual))]
    assert [row["predicted_label"] for row in plain(predictor(odd, text="was"))] == expected
    recipe = recipe_for("classify", base, run=quiet(epochs=1.0, batch_size=2))
    made = bothways.finetune(recipe, tmp_path / "run", train=odd, dev=odd, text="was", label="wie")
    assert (made.examples, made.labels) == (4, ("bad", "good"))
    assert bothways.pack(odd, load(base).require_tokenizer(), tmp_path / "packed", text="was").documents == 4


def test_estimators_take_the_names_of_columns(kind: str, base: Path) -> None:
    odd = MAKE[kind]({"id": ROWS["id"], "was": ROWS["review"], "wie": ROWS["stars"], "wieviel": [1.0, 2.0, 3.0, 4.0]})
    usual = bothways.Classifier(base, epochs=1).fit(ROWS["review"], ROWS["stars"])
    named = bothways.Classifier(base, epochs=1).fit(odd, text="was", label="wie")
    np.testing.assert_allclose(named.predict_proba(odd), usual.predict_proba(ROWS["review"]), atol=1e-6)
    np.testing.assert_allclose(named.predict_proba(ROWS["review"]), usual.predict_proba(ROWS["review"]), atol=1e-6)
    assert named.score(odd, ROWS["stars"]) == usual.score(ROWS["review"], ROWS["stars"])
    assert bothways.Regressor(base, epochs=1).fit(odd, text="was", label="wieviel").predict(odd).shape == (4,)
    for settings, code, value in (
        ({"y": ROWS["stars"], "label": "wie"}, "bad-combination", "wie"),
        ({"label": "nichts"}, "no-column", "nichts"),
    ):
        with refused(code, value):
            bothways.Classifier(base).fit(odd, text="was", **settings)
    with refused("no-table"):
        bothways.Classifier(base).fit(ROWS["review"], ROWS["stars"], text="was")


def test_entities_are_lists_in_one_column(tmp_path: Path, base: Path) -> None:
    train = pd.DataFrame({"tokens": [["Anna", "runs"], ["the", "cat"]], "tags": [["B-PER", "O"], ["O", "O"]]})
    found = bothways.finetune(recipe_for("tag", base, run=quiet(epochs=1.0)), tmp_path / "run", train=train)
    table = pd.DataFrame({"review": ["Anna runs", "the cat"]})
    predictor = bothways.Predictor.load(found.folder)
    rows = predictor(table)
    assert list(rows.columns) == ["review", "predicted_entities"]
    assert rows["predicted_entities"].tolist() == predictor(list(table["review"]))
    assert predictor(table.rename(columns={"review": "said"}), text="said")["predicted_entities"].tolist() == (
        rows["predicted_entities"].tolist()
    )


def test_missing_values_and_types_of_pandas() -> None:
    table = pd.DataFrame(
        {"text": ["a", None, "c"], "label": [1, None, 3], "score": [0.5, float("nan"), 1.0], "words": [["x"], ["y"], None]},
        index=[5, 5, 9],
    )  # fmt: skip
    assert plain(table) == [
        {"text": "a", "label": 1, "score": 0.5, "words": ["x"]},
        {"text": None, "label": None, "score": None, "words": ["y"]},
        {"text": "c", "label": 3, "score": 1.0, "words": None},
    ]
    added = with_columns(table, {"found": [[1], [2], [3]]})
    assert added["found"].tolist() == [[1], [2], [3]]  # though the index has a value twice
    assert read_golds(table) == ["1", None, "3"]


def read_golds(table: pd.DataFrame) -> list[Any]:
    with as_files(table[["text", "label"]]) as names:
        return [row.gold for row in read_texts_labelled(names, notes=Notes())]


def test_names_of_classes_are_the_labels() -> None:
    features = datasets.Features({"text": datasets.Value("string"), "label": datasets.ClassLabel(names=["no", "yes"])})
    table = datasets.Dataset.from_dict({"text": ["a", "b"], "label": [1, 0]}, features=features)
    assert [row["label"] for row in plain(table)] == ["yes", "no"]


def test_what_is_no_single_table_is_refused(base: Path) -> None:
    table = datasets.Dataset.from_dict(ROWS)
    with refused("not-a-table"):
        bothways.encode(datasets.DatasetDict({"train": table, "test": table}), base)
    with refused("not-a-table"):
        bothways.encode(cast(Any, pl.DataFrame(ROWS).lazy()), base)
    with refused("ambiguous-column"):
        bothways.encode(pd.DataFrame({"review": ["a"], "comment": ["b"]}), base)
    with refused("repeated-column"):
        bothways.encode(pd.DataFrame([["a", "b"]], columns=["text", "text"]), base)


def test_a_second_column_that_may_be_the_label_does_not_matter_to_predictions(tuned: Path, base: Path) -> None:
    table = pd.DataFrame({"review": ROWS["review"], "label": ROWS["stars"], "category": ROWS["stars"]})
    predictor = bothways.Predictor.load(tuned)
    assert list(predictor(table)["predicted_label"]) == [one["label"] for one in predictor(ROWS["review"])]
    classifier = bothways.Classifier(base, epochs=1).fit(table, label="category")
    assert len(classifier.predict(table)) == len(table)
    with refused("ambiguous-column"):
        bothways.check_data(table)


def test_a_classifier_takes_several_columns_of_labels(kind: str, base: Path) -> None:
    """As --label joy+awe does of a file."""
    bits = {"joy": [1, 0, 1, 0], "awe": [1, 1, 0, 0]}
    table = MAKE[kind]({"review": ROWS["review"], **bits})
    usual = bothways.Classifier(base, epochs=1).fit(ROWS["review"], pd.DataFrame(bits))
    named = bothways.Classifier(base, epochs=1).fit(table, label="joy+awe")
    order = [list(named.classes_).index(name) for name in usual.classes_]
    np.testing.assert_allclose(named.predict_proba(table)[:, order], usual.predict_proba(ROWS["review"]), atol=1e-6)
    with refused("no-column", "fear"):
        bothways.Classifier(base).fit(table, label="joy+fear")


def test_cells_that_are_lists_are_several_labels(base: Path) -> None:
    """As in files: `['joy']` was learned as one class of this name."""
    rows: list[list[str]] = [["joy", "awe"], ["awe"], ["joy"], []]
    table = pd.DataFrame({"review": ROWS["review"], "labels": [str(row) for row in rows]})
    usual = bothways.Classifier(base, epochs=1).fit(ROWS["review"], rows)
    for cells in (
        bothways.Classifier(base, epochs=1).fit(table, label="labels"),
        bothways.Classifier(base, epochs=1).fit(table["review"], table["labels"]),
    ):
        assert list(cells.classes_) == ["awe", "joy"]
        np.testing.assert_allclose(cells.predict_proba(table), usual.predict_proba(ROWS["review"]), atol=1e-6)
        assert cells.score(table, table["labels"]) == usual.score(ROWS["review"], rows)


def test_nothing_predicted_is_said(base: Path) -> None:
    classifier = bothways.Classifier(base, epochs=1, lr=1e-9).fit(ROWS["review"], [["joy"], [], [], ["awe"]])
    task: Any = classifier.predictor_.task
    task.threshold = lambda name: 2.0
    with pytest.warns(UserWarning, match="no label was predicted for any of 4 texts"):
        assert classifier.predict(ROWS["review"]) == [[], [], [], []]
