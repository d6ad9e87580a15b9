"""Several labels of one text: every way to write them gives the same examples, thresholds, and weights."""

import csv
import json
import shlex
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import datasets
import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from sklearn import metrics  # type: ignore[import-untyped]

from bothways.data.notes import Notes
from bothways.data.several_labels import evident_separator, find_separator, list_cell
from bothways.data.texts import read_texts_labelled
from bothways.doctor.check_data import check_data
from bothways.model.load import load
from bothways.predict.evaluation import evaluate
from bothways.predict.predictor import Predictor
from bothways.scoring.classification import Classes
from bothways.scoring.many_labels import ManyLabels
from bothways.tasks.classify import ClassifySettings
from bothways.tasks.finetune import finetune
from bothways.tasks.recipe import FinetuneData, FinetuneRecipe
from bothways.tasks.registry import task_config
from bothways.text.columns import Columns
from bothways.train.settings import LoraSettings
from helpers import refused
from helpers.cli import Run
from helpers.tasks import quiet, recipe_for

TEXTS = ["the cat runs.", "a dog sleeps", "北京是中国的首都", "the big tree", "unbelievable", "the dog talks"]
GOLDS: list[tuple[str, ...]] = [("joy", "awe"), ("joy",), (), ("awe", "fear"), ("fear",), ("fear", "joy")]
NAMES = ("joy", "awe", "fear")


def write_csv(path: Path, cells: list[str]) -> Path:
    with path.open("w", encoding="utf-8", newline="") as stream:
        csv.writer(stream).writerows([("text", "label"), *zip(TEXTS, cells, strict=True)])
    return path


def write_json(path: Path, rows: list[dict[str, Any]]) -> Path:
    path.write_text("".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows), encoding="utf-8")
    return path


def lists() -> dict[str, Any]:
    return {"text": TEXTS, "label": [list(gold) for gold in GOLDS]}


def bits(yes: object = 1, no: object = 0) -> dict[str, Any]:
    return {"text": TEXTS, **{name: [yes if name in gold else no for gold in GOLDS] for name in NAMES}}


def rows(columns: dict[str, Any]) -> list[dict[str, Any]]:
    return [dict(zip(columns, values, strict=True)) for values in zip(*columns.values(), strict=True)]


def class_labels() -> Any:
    numbers = [[NAMES.index(name) for name in gold] for gold in GOLDS]
    kind = datasets.Features(
        {"text": datasets.Value("string"), "label": datasets.Sequence(datasets.ClassLabel(names=list(NAMES)))}
    )
    return datasets.Dataset.from_dict({"text": TEXTS, "label": numbers}, features=kind)


def parquet(path: Path, columns: dict[str, Any]) -> Path:
    pq.write_table(pa.table(columns), path)
    return path


# By name: what makes the data in a folder, and how they are read.
SEVERAL = ClassifySettings(kind="multi")
FORMS: dict[str, tuple[Callable[[Path], Any], dict[str, Any]]] = {
    "bars": (lambda d: write_csv(d / "a.csv", ["|".join(gold) for gold in GOLDS]), {"settings": SEVERAL}),
    "semicolons": (lambda d: write_csv(d / "a.csv", ["; ".join(gold) for gold in GOLDS]), {"settings": SEVERAL}),
    "commas": (lambda d: write_csv(d / "a.csv", [",".join(gold) for gold in GOLDS]), {"settings": SEVERAL}),
    "Chinese commas": (lambda d: write_csv(d / "a.csv", ["、".join(gold) for gold in GOLDS]), {"settings": SEVERAL}),
    "lists": (lambda d: write_csv(d / "a.csv", [str(list(gold)) for gold in GOLDS]), {}),
    "lists and a kind": (lambda d: write_csv(d / "a.csv", [str(list(g)) for g in GOLDS]), {"settings": SEVERAL}),
    "JSON in cells": (lambda d: write_csv(d / "a.csv", [json.dumps(gold) for gold in GOLDS]), {}),
    "numpy in cells": (lambda d: write_csv(d / "a.csv", [str(np.array(gold)) for gold in GOLDS]), {}),
    "an empty cell": (lambda d: write_csv(d / "a.csv", [str(list(gold)) if gold else "" for gold in GOLDS]), {}),
    "jsonl": (lambda d: write_json(d / "a.jsonl", rows(lists())), {}),
    "parquet": (lambda d: parquet(d / "a.parquet", lists()), {}),
    "pandas": (lambda d: pd.DataFrame(lists()), {}),
    "pandas, sets": (lambda d: pd.DataFrame({"text": TEXTS, "label": [set(gold) for gold in GOLDS]}), {}),
    "pandas, arrays": (lambda d: pd.DataFrame({"text": TEXTS, "label": [np.array(gold) for gold in GOLDS]}), {}),
    "polars": (lambda d: pl.DataFrame(lists()), {}),
    "datasets": (lambda d: datasets.Dataset.from_dict(lists()), {}),
    "classes of datasets": (lambda d: class_labels(), {}),
    "columns": (lambda d: write_json(d / "a.jsonl", rows(bits())), {"data": FinetuneData(label="joy+awe+fear")}),
    "columns of a table": (
        lambda d: parquet(d / "a.parquet", bits(True, False)), {"data": FinetuneData(label="joy+awe+fear")},
    ),
    "columns of pandas": (lambda d: pd.DataFrame(bits(1.0, 0.0)), {"data": FinetuneData(label="joy+awe+fear")}),
}  # fmt: skip


@pytest.mark.parametrize("form", FORMS)
def test_every_way_to_write_them_is_the_same(form: str, tmp_path: Path, base: Path) -> None:
    """Down to the bits of the model: the labels, their order, and which text has which."""
    make, parts = FORMS[form]
    recipe = recipe_for("classify", base, run=quiet(steps=1), **parts)
    given = make(tmp_path)
    if isinstance(given, Path):
        recipe, given = _with_file(recipe, given), None
    found = finetune(recipe, tmp_path / "out", train=given, dev=[])
    assert found.labels == ("awe", "fear", "joy")
    assert found.examples == 6
    own = load(found.folder)
    assert task_config(own).options.kind == "multi"
    expected = finetune(
        recipe_for("classify", base, run=quiet(steps=1)),
        tmp_path / "expected",
        train=list(read_texts_labelled(write_json(tmp_path / "expected.jsonl", rows(lists())))),
        dev=[],
    )
    theirs = load(expected.folder).state_dict()
    assert all((tensor == theirs[name]).all() for name, tensor in own.state_dict().items())


def _with_file(recipe: FinetuneRecipe, file: Path) -> FinetuneRecipe:
    return replace(recipe, data=replace(recipe.data, train=(str(file),)))


def test_the_separator_that_was_taken_is_said(tmp_path: Path) -> None:
    notes = Notes()
    file = write_csv(tmp_path / "a.csv", [";".join(gold) for gold in GOLDS])
    assert next(read_texts_labelled(file, kind="multi", notes=notes)).gold == GOLDS[0]
    assert notes.columns == "text = text, label = label, separated by ;"
    assert next(read_texts_labelled(file, kind="multi", separator="|")).gold == ("joy;awe",)
    longer = write_csv(tmp_path / "b.csv", [" and ".join(gold) for gold in GOLDS])
    assert [row.gold for row in read_texts_labelled(longer, kind="multi", separator=" and ")] == GOLDS


@pytest.mark.parametrize(
    ("cells", "mark"),
    [
        (["a", "b"], ""),
        (["a|b"], "|"),
        (["a, b", "c"], ","),
        (["Comedy, dark;Drama", "Drama", "Comedy, dark"], ";"),
        (["R;D, ops", "ops"], ","),
        (["joy/awe", "joy", "awe"], "/"),
        (["sci-fi/fantasy", "drama"], ""),
        (["sci-fi/fantasy, drama", "drama"], ","),
    ],
)
def test_the_separator_leaves_no_label_that_looks_like_several(cells: list[str], mark: str) -> None:
    assert find_separator(cells) == mark


def test_two_separators_are_refused() -> None:
    with refused("ambiguous-separator", ("|", ",")):
        find_separator(["joy|awe", "joy, fear", "awe"])


@pytest.mark.parametrize(
    ("names", "mark"),
    [
        (["joy", "awe", "joy|awe"], "|"),
        (["joy", "awe|new", "joy|awe"], "|"),
        (["joy", "awe", "joy;awe"], ";"),
        (["joy", "awe", "joy;awe;new"], ""),
        (["Paris, France", "Lyon, France", "Rome, Italy"], ""),
        (["Paris, France", "Lyon, France", "France"], ""),
        (["joy/awe", "joy", "awe"], "/"),
        (["joy / awe", "fear", "joy", "awe"], "/"),
        (["sci-fi/fantasy", "fantasy/sci-fi", "drama"], ""),
        (["AC/DC", "N/A", "A"], ""),
        (["1/2", "1", "2"], ""),
        (["joy, awe", "joy", "awe", "awe, fear", "fear", "joy, fear", "fear, joy", "awe, joy", "fear, rare"], ","),
    ],
)
def test_cells_that_look_like_several(names: list[str], mark: str) -> None:
    assert evident_separator(dict.fromkeys(names, 5)) == mark


def test_they_are_never_taken_for_one_label(tmp_path: Path, base: Path) -> None:
    joined = write_csv(tmp_path / "a.csv", ["joy|awe", "joy", "awe", "awe|fear", "fear", "fear|joy"])
    recipe = _with_file(recipe_for("classify", base), joined)
    with refused("several-labels", "joy|awe"):
        finetune(recipe, tmp_path / "auto")
    one = _with_file(recipe_for("classify", base, settings=ClassifySettings(kind="single"), run=quiet(steps=1)), joined)
    assert len(finetune(one, tmp_path / "single").labels) == 6
    cells = write_csv(tmp_path / "b.csv", [str(list(gold)) for gold in GOLDS])
    with refused("several-labels", f"{cells}, line 2"):
        finetune(_with_file(one, cells), tmp_path / "lists")


@pytest.mark.parametrize("cell", ["[joy, awe]", "['joy', awe]", "['joy'", "['joy']['awe']", "[joy|awe]"])
def test_a_list_that_cannot_be_read_is_refused(cell: str) -> None:
    if cell.endswith("]"):
        with refused("bad-label", "a.csv, line 2"):
            list_cell(cell, "a.csv, line 2")
    else:
        assert list_cell(cell, "") is None


def test_names_in_brackets_and_with_quotes() -> None:
    assert list_cell("[other]", "") is None
    assert list_cell(r"""["it's", 'say \'no\'', "a, b"]""", "") == ["it's", "say 'no'", "a, b"]
    assert list_cell("[2 16]", "") == ["2", "16"]


@pytest.mark.parametrize("cell", [[0, 1, 0], [1.0, 0.0, 1.0], "[0, 1, 1]", [True, False, False]])
def test_a_vector_of_zeros_and_ones_has_no_names(cell: Any, tmp_path: Path) -> None:
    file = write_json(tmp_path / "a.jsonl", [{"text": "a", "label": cell}])
    with refused("one-hot-list", f"{file}, line 1"):
        list(read_texts_labelled(file))


def test_missing_and_odd_cells_of_columns(tmp_path: Path) -> None:
    columns = Columns(label="joy+awe")
    rows: list[dict[str, Any]] = [{"text": "a", "joy": "1", "awe": None}, {"text": "b", "joy": "0", "awe": "0"}, {"text": "c", "joy": "2", "awe": "1"}]  # fmt: skip
    notes, found = Notes(), read_texts_labelled(write_json(tmp_path / "a.jsonl", rows), columns)
    assert [next(found).gold, next(found).gold] == [None, ()]
    with refused("not-zero-or-one", f"{tmp_path / 'a.jsonl'}, line 3"):
        next(found)
    list(read_texts_labelled(write_json(tmp_path / "b.jsonl", rows[:2]), columns, notes=notes))
    assert notes.counts == {"empty-label": 1}
    assert notes.columns == "text = text, label = joy + awe"
    with refused("no-column", "fear"):
        list(read_texts_labelled(tmp_path / "b.jsonl", Columns(label="joy+fear")))


# ---------------------------------------------------------------------- doctor


def many(count: int = 40) -> tuple[list[str], list[tuple[str, ...]]]:
    texts = [f"{TEXTS[i % 6]} {'the cat ' * (i % 4)}{i}" for i in range(count)]
    return texts, [GOLDS[i % 6] for i in range(count)]


def written(path: Path, form: str) -> Path:
    texts, golds = many()
    with path.open("w", encoding="utf-8", newline="") as stream:
        if form == "columns":
            bits = [[int(name in gold) for name in NAMES] for gold in golds]
            table = [
                ("id", "text", *NAMES),
                *((i, text, *b) for i, (text, b) in enumerate(zip(texts, bits, strict=True))),
            ]
        else:
            cells = [str(list(gold)) if form == "lists" else form.join(gold) for gold in golds]
            table = [("id", "text", "label"), *zip(range(len(texts)), texts, cells, strict=True)]
        csv.writer(stream).writerows(table)
    return path


@pytest.mark.parametrize(
    ("form", "options"),
    [
        ("|", "--set classify.kind=multi --set 'classify.separator=|'"),
        (";", "--set classify.kind=multi --set 'classify.separator=;'"),
        (",", "--set classify.kind=multi --set classify.separator=,"),
        ("/", "--set classify.kind=multi --set classify.separator=/"),
        ("lists", ""),
        ("columns", "--label joy+awe+fear"),
    ],
)
def test_doctor_finds_them_and_its_command_runs(form: str, options: str, tmp_path: Path, base: Path, run: Run) -> None:
    train, dev = written(tmp_path / "train.csv", form), written(tmp_path / "dev.csv", form)
    found = check_data([train], [dev], model=base)
    assert (found.task, found.kind, found.labelled) == ("classify", "multi", 40)
    assert {label.name: label.count for label in found.labels} == {"joy": 20, "awe": 14, "fear": 19}
    assert found.lengths["labels of a text"].mean == pytest.approx(53 / 40)
    assert any(
        finding.says == "7 of 40 texts have none of the labels, and are learned as such." for finding in found.findings
    )
    assert options in found.command
    command = [*shlex.split(found.command)[1:], "--epochs", "1", "--set", "run.device=cpu"]
    command[command.index("--out") + 1] = str(tmp_path / "out")
    done = run(*command)
    assert done.returncode == 0, done.stderr
    assert "thresholds, chosen on the development data: awe 0." in done.stderr
    told = json.loads(run("evaluate", dev, "--model", tmp_path / "out", "--json").stdout)  # which knows its columns
    assert told["examples"] == 40
    config = task_config(load(tmp_path / "out"))
    assert (config.options.kind, set(config.thresholds)) == ("multi", set(NAMES))


def test_doctor_leaves_other_columns_alone(tmp_path: Path) -> None:
    """One column of 0 and 1 is a label or something else; two beside a label are no labels."""
    one = write_json(tmp_path / "a.jsonl", [{"text": t, "seen": i % 2} for i, t in enumerate(TEXTS)])
    assert check_data([one]).labelled == 0
    two = [{"text": t, "label": "ab"[i % 2], "x": i % 2, "y": i // 3 % 2} for i, t in enumerate(TEXTS)]
    assert check_data([write_json(tmp_path / "b.jsonl", two)]).kind == "single"


@pytest.mark.parametrize("flag", ["verified", "is_read", "rater_id", "example_very_unclear", "是否审核"])
def test_doctor_proposes_no_flag_as_a_label(flag: str, tmp_path: Path) -> None:
    rows = [{"id": i, "text": t, flag: i % 2, "joy": i // 2 % 2, "awe": i // 3 % 2} for i, t in enumerate(TEXTS)]
    assert check_data([write_json(tmp_path / "a.jsonl", rows)]).columns == "text = text, label = joy + awe"
    apart = [{"open": i % 2, "text": t, "n": i, "joy": i // 2 % 2, "awe": i // 3 % 2} for i, t in enumerate(TEXTS)]
    assert check_data([write_json(tmp_path / "b.jsonl", apart)]).columns == "text = text, label = joy + awe"
    alone = [{"text": t, flag: i % 2, "joy": i // 2 % 2} for i, t in enumerate(TEXTS)]
    assert check_data([write_json(tmp_path / "c.jsonl", alone)]).labelled == 0


def test_doctor_says_that_a_label_has_neighbours(tmp_path: Path) -> None:
    """`quality` is a usual name of a label column, and is one of three labels here."""
    rows = [{"text": t, "quality": i % 2, "price": i // 2 % 2, "staff": i // 3 % 2} for i, t in enumerate(TEXTS)]
    file = write_json(tmp_path / "a.jsonl", rows)
    (finding,) = (found for found in check_data([file]).findings if "price" in found.says)
    assert finding.severity == "warning"
    assert "`label` quality+price+staff" in finding.do
    assert check_data([file], label="quality+price+staff").kind == "multi"
    assert not any("price" in found.says for found in check_data([file], label="quality").findings)


# ---------------------------------------------------------------------- thresholds


def simulated(seed: int, count: int) -> tuple[Any, Any]:
    draws = np.random.default_rng(seed)
    rate = np.array([0.4, 0.1, 0.03, 0.005])
    gold = draws.random((count, 4)) < rate
    logits = np.log(rate / (1 - rate)) + 6 * (gold - 0.5) + 2.5 * draws.normal(size=(count, 4))
    return gold, 1 / (1 + np.exp(-logits))


def test_tuned_thresholds_do_better_on_other_data() -> None:
    """Better than 0.5; and of rare labels better than the best threshold of each."""
    means = np.zeros(3)
    for seed in range(20):
        gold, chances = simulated(seed, 400)
        other, theirs = simulated(1_000 + seed, 8_000)
        scores = ManyLabels("abcd")
        scores.add(gold, chances)
        for place, cuts in enumerate((scores.tuned_thresholds(), scores.best_thresholds(), dict.fromkeys("abcd", 0.5))):
            means[place] += metrics.f1_score(
                other, theirs >= [cuts[name] for name in "abcd"], average="macro", zero_division=0
            )
    assert means[0] > means[1] + 0.1
    assert means[0] > means[2] + 0.1


def test_thresholds_of_frequent_labels_are_their_own_and_of_rare_ones_common() -> None:
    scores = ManyLabels(["often", "once", "never"])
    gold, chances = np.zeros((1_000, 3)), np.full((1_000, 3), 0.01)
    gold[:500, 0], chances[:500, 0] = 1, 0.3
    gold[0, 1], chances[0, 1] = 1, 0.9
    scores.add(gold, chances)
    cuts = scores.tuned_thresholds()
    own = scores.best_thresholds()
    assert cuts["often"] == pytest.approx(own["often"], abs=0.01)
    assert cuts["never"] == pytest.approx(cuts["often"], abs=0.01)
    assert cuts["never"] < cuts["once"] < own["once"] - 0.1
    rescored = scores.rescored(cuts)
    assert rescored is not None
    assert rescored.per_label()["often"].f1 == 1.0
    assert ManyLabels(["a"]).tuned_thresholds() == {"a": pytest.approx(0.5)}


def test_the_thresholds_of_the_best_model_are_saved_and_used(tmp_path: Path, base: Path, run: Run) -> None:
    train, dev = (read_texts_labelled(written(tmp_path / f"{n}.csv", "lists")) for n in ("train", "dev"))
    said: list[str] = []
    recipe = recipe_for("classify", base, run=quiet(steps=4, evaluate_every=2))
    found = finetune(recipe, tmp_path / "out", train=list(train), dev=list(dev), say=said.append)
    config = task_config(load(found.folder))
    assert config.thresholds == found.thresholds
    assert set(found.thresholds) == set(NAMES)
    assert 0.5 not in found.thresholds.values()
    assert any(words.startswith("thresholds, chosen on the development data: awe ") for words in said)
    again = evaluate([str(tmp_path / "dev.csv")], found.folder)
    assert again.scores == pytest.approx(found.scores)  # those that selected the model
    assert again.thresholds == pytest.approx(found.thresholds)
    predictor = Predictor.load(found.folder)
    chances = {one["label"]: one["score"] for one in predictor(TEXTS[0], top=3)}
    assert {one["label"] for one in predictor(TEXTS[0])} == {n for n in NAMES if chances[n] >= found.thresholds[n]}
    card = (found.folder / "README.md").read_text(encoding="utf-8")
    assert "chosen on" in card
    assert "the thresholds were selected on these data" in card
    assert finetune(recipe, tmp_path / "out", train=list(read_texts_labelled(tmp_path / "train.csv")), dev=list(read_texts_labelled(tmp_path / "dev.csv"))).thresholds == found.thresholds  # fmt: skip


@pytest.mark.parametrize("parts", [{"settings": ClassifySettings(tune_thresholds=False)}, {"dev": []}], ids=str)
def test_without_tuning_they_are_a_half(parts: dict[str, Any], tmp_path: Path, base: Path) -> None:
    data = list(read_texts_labelled(written(tmp_path / "a.csv", "lists")))
    dev = parts.pop("dev", data)
    found = finetune(recipe_for("classify", base, run=quiet(steps=2), **parts), tmp_path / "out", train=data, dev=dev)
    assert found.thresholds == {}
    task = Predictor.load(found.folder).task
    assert {task.threshold(name) for name in NAMES} == {0.5}  # type: ignore[attr-defined]


def test_thresholds_of_an_adapter(tmp_path: Path, base: Path) -> None:
    data = list(read_texts_labelled(written(tmp_path / "a.csv", "lists")))
    recipe = recipe_for("classify", base, run=quiet(steps=2), lora=LoraSettings(rank=2))
    found = finetune(recipe, tmp_path / "out", train=data, dev=data)
    assert found.thresholds
    for folder in ("model", "adapter"):
        assert task_config(load(tmp_path / "out" / folder)).thresholds == found.thresholds


def test_thresholds_beyond_what_is_kept_in_memory(tmp_path: Path, base: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The development data are then read twice, for the same scores."""
    data = list(read_texts_labelled(written(tmp_path / "a.csv", "lists")))
    recipe = recipe_for("classify", base, run=quiet(steps=1))
    kept = finetune(recipe, tmp_path / "kept", train=data, dev=data)
    monkeypatch.setattr("bothways.scoring.many_labels._MOST_EXACT", 10)
    found = finetune(recipe, tmp_path / "out", train=data, dev=data)
    assert found.thresholds == pytest.approx(kept.thresholds, abs=0.01)
    assert evaluate([str(tmp_path / "a.csv")], found.folder).scores["micro_f1"] == found.scores["micro_f1"]


# ---------------------------------------------------------------------- nothing was predicted


def test_labels_that_are_never_predicted_are_named() -> None:
    several = ManyLabels(["joy", "awe", "fear"])
    several.add([[1, 1, 0], [1, 0, 0]], [[0.9, 0.1, 0.1], [0.8, 0.1, 0.1]])
    assert several.never_predicted() == "never predicted, although the data have it: 'awe'"
    none = ManyLabels(["joy", "awe"])
    none.add([[1, 0]], [[0.1, 0.1]])
    assert none.never_predicted() == "nothing was predicted: no text got a label"
    classes = Classes(["a", "b", "c"])
    classes.add([0, 1, 2], [[0.9, 0.1, 0], [0.8, 0.2, 0], [0.6, 0.4, 0]])
    assert classes.never_predicted() == "never predicted, although the data have them: 'b', 'c'"
    classes.add([1, 2], [[0, 1, 0], [0, 0, 1]])
    assert classes.never_predicted() == ""


def test_it_is_said_after_training_evaluating_and_predicting(tmp_path: Path, base: Path, run: Run) -> None:
    file = written(tmp_path / "a.csv", "lists")
    data = list(read_texts_labelled(file))
    said: list[str] = []
    recipe = recipe_for("classify", base, settings=ClassifySettings(tune_thresholds=False), run=quiet(steps=60))
    few = [example for example in data if not example.gold] * 5 + data[:6]
    found = finetune(recipe, tmp_path / "out", train=few, dev=data, say=said.append)
    (sentence,) = [words.partition(": ")[2] for words in said if words.startswith("on the development data: ")]
    assert sentence in (found.folder / "README.md").read_text(encoding="utf-8")
    done = run("evaluate", file, "--model", found.folder)
    assert sentence in done.stderr
    none = sum(not answer for answer in Predictor.load(found.folder)([example.texts[0] for example in data]))
    assert none > 0
    for options in ((), ("--out", tmp_path / "p.jsonl")):
        done = run("predict", file, "--model", found.folder, *options)
        assert f"Texts got no label, because none reached its threshold: {none}, first in" in done.stderr
