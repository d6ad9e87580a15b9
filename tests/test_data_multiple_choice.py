"""Questions with options out of RACE, DREAM, C3, SWAG, CommonsenseQA and rows of their kind."""

import json
from functools import partial
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from bothways.data.examples import Choice
from bothways.data.multiple_choice import read_choices
from bothways.data.notes import Notes
from bothways.errors import BothwaysError
from bothways.tasks.registry import TASKS
from bothways.text.columns import Columns
from helpers import refused


def write(path: Path, *values: object) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(json.dumps(value, ensure_ascii=False) + "\n" for value in values), encoding="utf-8")
    return path


def test_race_is_a_folder_of_texts_that_hold_json(tmp_path: Path) -> None:
    one = {
        "answers": ["D", "A"],
        "options": [["B", "D", "x", "y"], ["p", "q", "r", "s"]],
        "questions": ["Who _ ?", "Why?"],
        "article": "Tom ran.",
        "id": "high1.txt",
    }
    write(tmp_path / "train/high/1.txt", one)
    write(tmp_path / "train/middle/2.txt", {**one, "answers": []})
    notes = Notes()
    found = list(read_choices(tmp_path / "train", notes))
    where = f"{tmp_path / 'train/high/1.txt'}, question"
    assert found[:2] == [
        Choice("Tom ran.", "Who _ ?", ("B", "D", "x", "y"), 3, f"{where} 1"),  # the letter D, not the option "D"
        Choice("Tom ran.", "Why?", ("p", "q", "r", "s"), 0, f"{where} 2"),
    ]
    assert [choice.gold for choice in found[2:]] == [None, None]
    assert not notes


def test_dream_and_c3(tmp_path: Path) -> None:
    dream = [
        [["M: I run.", "W: Why?"], [{"question": "Who runs?", "choice": ["A", "The man", "B"], "answer": "B"}], "4-1"]
    ]
    (choice,) = read_choices(write(tmp_path / "dream.json", dream))
    assert choice == Choice("M: I run.\nW: Why?", "Who runs?", ("A", "The man", "B"), 2, f"{tmp_path / 'dream.json'}, item 1, question 1")  # fmt: skip
    c3 = [
        [
            ["男：去看电影吧?"],
            [
                {"question": "去哪?", "choice": ["电影", "家"], "answer": "电影"},
                {"question": "谁?", "choice": ["男", "女", "都"], "answer": ""},
            ],
            "1",
        ]
    ]
    assert [(c.options, c.gold) for c in read_choices(write(tmp_path / "c3-d.json", c3))] == [
        (("电影", "家"), 0),
        (("男", "女", "都"), None),
    ]


def test_swag(tmp_path: Path) -> None:
    header = ",video-id,fold-ind,startphrase,sent1,sent2,gold-source,ending0,ending1,ending2,ending3,label"
    row = '0,anet,1,"He stands, Then he","He stands,",Then he,gold,"sits, again",runs,"says ""hi""",sleeps'
    path = tmp_path / "train.csv"
    path.write_text(f"{header}\n{row},2\n")
    options = ("sits, again", "runs", 'says "hi"', "sleeps")
    assert list(read_choices(path)) == [Choice("He stands,", "Then he", options, 2, f"{path}, line 2")]
    path.write_text(f"{header.removesuffix(',label')}\n{row}\n")
    assert list(read_choices(path)) == [Choice("He stands,", "Then he", options, None, f"{path}, line 2")]
    path.write_text("startphrase,ending0,ending1,label\nHe,a,b,1\n")
    assert list(read_choices(path)) == [Choice("He", "", ("a", "b"), 1, f"{path}, line 2")]


def test_commonsense_qa(tmp_path: Path) -> None:
    choices = [{"label": "A", "text": "shop"}, {"label": "B", "text": "house"}, {"label": "C", "text": "A"}]
    row = {"answerKey": "B", "id": "1", "question": {"stem": "Where is a lantern?", "choices": choices}}
    test = {key: value for key, value in row.items() if key != "answerKey"}
    path = write(tmp_path / "a.jsonl", row, test, {**row, "answerKey": "A"})
    first, second, third = read_choices(path)
    assert first == Choice("", "Where is a lantern?", ("shop", "house", "A"), 1, f"{path}, line 1")
    assert second.gold is None
    assert third.gold == 0
    flat = {"question": "Where?", "choices": {"label": ["1", "2"], "text": ["shop", "house"]}, "answerKey": "2"}
    pq.write_table(pa.Table.from_pylist([flat]), tmp_path / "a.parquet")
    (choice,) = read_choices(tmp_path / "a.parquet")
    assert (choice.options, choice.gold) == (("shop", "house"), 1)


@pytest.mark.parametrize(
    ("row", "gold"),
    [
        ({"options": ["a", "b"], "label": 1}, 1),
        ({"choices": ["a", "b"], "label": "1"}, 1),
        ({"endings": ["a", "b"], "label": "0"}, 0),
        ({"options": ["a", "b", "c"], "answer": "C"}, 2),
        ({"options": ["a", "b"], "answer": "b"}, 1),
        ({"options": ["2", "1", "0"], "answer": "2"}, 0),
        ({"options": ["2", "1", "0"], "answer": 2}, 2),
        ({"options": ["2", "1", "0"], "label": "2"}, 2),
        ({"options": [" yes ", "no"], "answer": "yes"}, 0),
        ({"options": ["a", "b"], "answer": 1}, 1),
        ({"options": ["a", "b"], "label": None}, None),
        ({"options": ["a", "b"]}, None),
        ({"choice1": "a", "choice2": "b", "label": 0}, 0),
    ],
)
def test_general_rows(tmp_path: Path, row: dict[str, Any], gold: int | None) -> None:
    notes = Notes()
    (choice,) = read_choices(write(tmp_path / "a.jsonl", {"context": "c", "question": "q", **row}), notes)
    assert (choice.context, choice.question, choice.gold) == ("c", "q", gold)
    assert not notes


@pytest.mark.parametrize("name", ["a.csv", "a.jsonl"])
def test_columns_with_other_names(name: str, tmp_path: Path) -> None:
    """`text` is the question, `pair` the context and `label` the right option; the usual names of others stay."""
    row = {
        "Frage": "Who?",
        "startphrase": "no",
        "absatz": "It runs.",
        "ending0": "1",
        "ending1": "2",
        "right": "1",
        "label": "1",
    }
    path = tmp_path / name
    path.write_text(json.dumps(row) if name == "a.jsonl" else "\n".join(map(",".join, (row, row.values()))))
    read = partial(read_choices, path)
    notes = Notes()
    (found,) = read(notes, Columns("frage", "Absatz", "right"))
    assert (found.question, found.context, found.options, found.gold) == ("Who?", "It runs.", ("1", "2"), 0)
    assert notes.columns == "text = frage, pair = Absatz, label = right"
    (found,) = read(None, Columns("startphrase", None, "label"))
    assert (found.question, found.context, found.gold) == ("no", "", 1)
    with refused("no-column", "Fragen"):
        list(read(None, Columns("Fragen")))
    task = TASKS["choose"]
    (found,) = task.read_inputs(str(path), Columns("Frage", None, "none"), Notes())
    assert found.question == "Who?"
    (found,) = task.read([str(path)], Columns("Frage", None, "right"), Notes())
    assert (found.question, found.gold) == ("Who?", 0)


def test_an_answer_that_is_no_option(tmp_path: Path) -> None:
    rows = [{"question": "q", "options": ["a", "b"], "answer": answer} for answer in ("z", 2, "C", -1)]
    notes = Notes()
    assert [choice.gold for choice in read_choices(write(tmp_path / "a.jsonl", *rows), notes)] == [None] * 4
    assert notes.counts == {"answer-not-an-option": 4}
    assert notes.first == {"answer-not-an-option": f"{tmp_path / 'a.jsonl'}, line 1"}
    assert notes.values == {"answer-not-an-option": "z"}


BAD: dict[str, tuple[str, str, str, str]] = {
    "no options": ("a.jsonl", '{"question": "q", "label": 1}', "no-options", "{path}, line 1"),
    "one option": ("a.jsonl", '\n{"question": "q", "options": ["a"]}', "no-options", "{path}, line 2"),
    "options that are numbers": ("a.jsonl", '{"question": "q", "options": [1, 2]}', "no-options", "{path}, line 1"),
    "too few answers": ("a.json", '{"article": "a", "questions": ["q", "r"], "options": [["a", "b"]], "answers": ["A"]}', "count-mismatch", "(2, 1, 1)"),
    "a number": ("a.json", "[5]", "unknown-layout", "{path}, item 1"),
    "plain text": ("a.txt", "Who?", "unknown-file-kind", "{path}"),
}  # fmt: skip


@pytest.mark.parametrize("what", BAD)
def test_errors_name_the_place(tmp_path: Path, what: str) -> None:
    name, content, code, value = BAD[what]
    (tmp_path / name).write_text(content)
    with pytest.raises(BothwaysError) as caught:
        list(read_choices(tmp_path / name))
    assert (caught.value.code, str(caught.value.value)) == (code, value.format(path=tmp_path / name))
    assert str(caught.value).startswith(str(tmp_path / name))
    assert "\n" not in str(caught.value)


def test_nothing_to_read(tmp_path: Path) -> None:
    for paths, code in (([], "no-input"), ([tmp_path], "no-known-files"), ([tmp_path / "a"], "no-file")):
        with refused(code, paths[0] if paths else None):
            list(read_choices(paths))
