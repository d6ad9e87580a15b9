"""Questions and their answers out of SQuAD, CMRC 2018 and rows of JSON or .parquet."""

import json
import lzma
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

from bothways.data.examples import Question
from bothways.data.notes import Notes
from bothways.data.questions import read_questions
from bothways.doctor.check_data import check_data
from bothways.errors import BothwaysError
from bothways.text.columns import Columns
from helpers import refused

CONTEXT = "The Normans gave their name to Normandy, a region in France. The Normans came by sea."
CHINESE = "范廷颂枢机，圣名保禄，1963年被任为主教；1990年被擢升。"


def squad(*paragraphs: tuple[str, list[dict[str, Any]]], version: str = "1.1") -> dict[str, Any]:
    articles = [
        {"title": "t", "paragraphs": [{"context": context, "qas": questions}]} for context, questions in paragraphs
    ]
    return {"version": version, "data": articles}


def write(path: Path, value: object) -> Path:
    path.write_text(json.dumps(value, ensure_ascii=False), encoding="utf-8")
    return path


def answer(text: str, start: int) -> dict[str, Any]:
    return {"text": text, "answer_start": start}


def test_squad_1(tmp_path: Path) -> None:
    item = {
        "id": "56",
        "question": "Where is it?",
        "answers": [answer("France", 53), answer("in France", 50), answer("France", 53)],
    }
    path = write(tmp_path / "train.json", squad((CONTEXT, [item])))
    notes = Notes()
    where = f"{path}, article 1, question 56"
    expected = Question("56", "Where is it?", CONTEXT, (("France", 53), ("in France", 50), ("France", 53)), where)
    assert list(read_questions([path], notes)) == [expected]
    assert not notes


def test_squad_2_and_questions_nobody_has_answered(tmp_path: Path) -> None:
    items: list[dict[str, Any]] = [
        {"id": "1", "question": "Who?", "is_impossible": False, "answers": [answer("Normans", 4)]},
        {
            "id": "2",
            "question": "When?",
            "is_impossible": True,
            "answers": [],
            "plausible_answers": [answer("sea", 81)],
        },
        {"id": "3", "question": "Why?"},
        {"id": "4", "question": "How?", "is_impossible": True, "answers": [answer("sea", 81)]},
    ]
    path = tmp_path / "dev.json.xz"
    path.write_bytes(lzma.compress(json.dumps(squad((CONTEXT, items), version="v2.0")).encode()))
    assert [question.gold for question in read_questions(path)] == [(("Normans", 4),), (), None, ()]


def test_cmrc_2018_whose_places_are_sometimes_wrong(tmp_path: Path) -> None:
    answers = [answer("1963年", 11), answer("1963年", 12), answer("被擢升", 0), answer("没有", 3), answer("保禄", -1)]
    item = {"id": "TRAIN_186_QUERY_0", "question": "何时？", "answers": answers}
    notes = Notes()
    (question,) = read_questions(write(tmp_path / "cmrc.json", squad((CHINESE, [item]))), notes)
    assert question.gold == (("1963年", 11), ("1963年", 11), ("被擢升", 27), ("没有", -1), ("保禄", 8))
    assert notes.counts == {
        "answer-moved": 3,
        "answer-not-found": 1,
    }
    assert notes.values == {"answer-moved": "1963年", "answer-not-found": "没有"}
    assert set(notes.first.values()) == {f"{tmp_path / 'cmrc.json'}, article 1, question TRAIN_186_QUERY_0"}


def clue(*questions: dict[str, Any]) -> list[dict[str, Any]]:
    """CMRC 2018 as CLUE gives it."""
    return [{"context_id": "TRAIN_186", "context_text": CHINESE, "title": "范廷颂", "qas": list(questions)}]


def test_cmrc_2018_as_clue_gives_it(tmp_path: Path) -> None:
    """The answers are texts: each is found in the context."""
    asked = {"query_id": "TRAIN_186_QUERY_0", "query_text": "何时任主教？"}
    items: list[dict[str, Any]] = [
        {**asked, "answers": ["1963年", "年", "没有"]},
        {**asked, "query_id": "TRAIN_186_QUERY_1"},
    ]
    path, notes = write(tmp_path / "cmrc.json", clue(*items)), Notes()
    first, second = read_questions(path, notes)
    assert first.gold == (("1963年", 11), ("年", 15), ("没有", -1))
    assert (first.id, first.question, first.context) == ("TRAIN_186_QUERY_0", "何时任主教？", CHINESE)
    assert first.where == f"{path}, item 1, question TRAIN_186_QUERY_0"
    assert (second.id, second.gold) == ("TRAIN_186_QUERY_1", None)
    assert notes.counts == {
        "ambiguous-answer": 1,
        "answer-not-found": 1,
    }
    with refused("unknown-layout", f"{path}, item 1"):
        list(read_questions(write(path, clue({"query_id": "1"}))))


@given(
    context=st.text(st.sampled_from("ab"), max_size=12),
    text=st.text(st.sampled_from("ab"), min_size=1, max_size=2),
    start=st.integers(-1, 14),
)
def test_the_nearest_place(context: str, text: str, start: int, tmp_path_factory: pytest.TempPathFactory) -> None:
    row = {"question": "", "context": context, "answers": {"text": [text], "answer_start": [start]}}
    (question,) = read_questions(write(tmp_path_factory.getbasetemp() / "property.jsonl", row))
    assert question.gold
    found = question.gold[0][1]
    places = [i for i in range(len(context)) if context.startswith(text, i)]
    assert (found == -1) == (not places)
    if places:
        assert found in places
        assert abs(found - max(start, 0)) == min(abs(place - max(start, 0)) for place in places)


ROW = {"id": "a", "question": "Where?", "context": CONTEXT}
LAYOUTS: dict[str, Any] = {
    "lists": {"text": ["France"], "answer_start": [53]},
    "objects": [answer("France", 53)],
}


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("name", ["a.jsonl", "a.json", "a.parquet"])
def test_rows(tmp_path: Path, layout: str, name: str) -> None:
    rows = [{**ROW, "answers": LAYOUTS[layout]}, {**ROW, "id": "b", "answers": type(LAYOUTS[layout])()}]
    if name == "a.parquet":
        rows[1]["answers"] = {"text": [], "answer_start": []} if layout == "lists" else []
        pq.write_table(pa.Table.from_pylist(rows), tmp_path / name)
    else:
        (tmp_path / name).write_text("".join(json.dumps(row) + "\n" for row in rows))
    found = list(read_questions(tmp_path))
    assert [(question.id, question.question, question.gold) for question in found] == [("a", "Where?", (("France", 53),)), ("b", "Where?", ())]  # fmt: skip
    assert found[1].where == f"{tmp_path / name}, {'row' if name == 'a.parquet' else 'line'} 2"


def test_rows_with_less(tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl"
    rows = [
        {"question": "?", "context": CONTEXT},
        {**ROW, "answers": ["France"]},
        {**ROW, "answers": None},
        {**ROW, "id": "d", "answers": answer("sea", 81)},
    ]
    path.write_text("\n".join(map(json.dumps, rows)))
    notes = Notes()
    first, second, third, fourth = read_questions(path, notes)
    assert (first.id, first.gold) == (f"{path}, line 1", None)
    assert second.gold == (("France", 53),)
    assert third.gold is None
    assert fourth.gold == (("sea", 81),)
    assert notes.first["repeated-question-id"] == f"{path}, line 3"
    assert notes.values["repeated-question-id"] == second.id
    assert len({first.id, second.id, third.id, fourth.id}) == 4  # else they could not be scored
    assert third.id == f"{second.id} (2)"


def test_standard_input(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = write(tmp_path / "in", squad((CONTEXT, [{"id": "1", "question": "?", "answers": [answer("sea", 81)]}])))
    with path.open() as stdin:
        monkeypatch.setattr("sys.stdin", stdin)
        (question,) = read_questions("-")
    assert question.gold == (("sea", 81),)


BAD: dict[str, tuple[str, str, str, str]] = {
    "no JSON": ("a.json", '{"data": [', "not-json", "{path}"),
    "other fields": ("a.jsonl", '{"text": "a", "label": 1}', "unknown-layout", "{path}, line 1"),
    "a number": ("a.json", "[5]", "unknown-layout", "{path}, item 1"),
    "no questions": ("a.json", '{"data": [{"paragraphs": [{"context": "a"}]}]}', "unknown-layout", "{path}, article 1"),
    "no question": ("a.json", '{"data": [{"paragraphs": [{"context": "a", "qas": [{"id": 1}]}]}]}', "unknown-layout", "{path}, article 1"),
    "an answer without text": ("a.jsonl", '{"question": "a", "context": "b", "answers": [{"start": 1}]}', "bad-answer", "{path}, line 1"),
    "no context": ("a.jsonl", '{"question": "a", "context": 5}', "not-text", "{path}, line 1"),
    "another kind": ("a.docx", "PK", "unknown-file-kind", "{path}"),
}  # fmt: skip


@pytest.mark.parametrize("what", BAD)
def test_errors_name_the_place(tmp_path: Path, what: str) -> None:
    name, content, code, value = BAD[what]
    (tmp_path / name).write_text(content)
    with pytest.raises(BothwaysError) as caught:
        list(read_questions(tmp_path / name))
    assert (caught.value.code, str(caught.value.value)) == (code, value.format(path=tmp_path / name))
    assert str(caught.value).startswith(str(tmp_path / name))
    assert "\n" not in str(caught.value)


# ---------------------------------------------------------------------- tables


@pytest.mark.parametrize(("name", "mark"), [("rows.csv", ","), ("rows.csv", ";"), ("rows.tsv", "\t")])
def test_tables(name: str, mark: str, tmp_path: Path) -> None:
    """With a place or without one; an empty cell is no answer, and says nothing of whether there is one."""
    rows = [
        ("id", "question", "context", "answer", "answer_start", "is_impossible"),
        ("a", "Where?", "It is in France.", "France", "9", "False"),
        ("b", "在哪里", "他在北京。", "北京", "", "0"),
        ("c", "Who?", "It is in France.", "", "", "True"),
        ("d", "Who?", "It is in France.", "", "", ""),
        ("e", "Who?", "It is in France.", "France", " 9.0", ""),
        ("f", "Who?", "It is in France.", "", "", "yes"),
        ("g", "Who?", "It is in France.", "", "", "1"),
        ("h", "Who?", "Is it {France?", "{France", "-1", ""),
    ]
    (tmp_path / name).write_text("".join(mark.join(row) + "\n" for row in rows), encoding="utf-8")
    notes = Notes()
    found = list(read_questions(tmp_path, notes))
    france = (("France", 9),)
    assert [question.gold for question in found] == [
        france,
        (("北京", 2),),
        (),
        None,
        france,
        (),
        (),
        (("{France", 6),),
    ]
    assert "".join(question.id for question in found) == "abcdefgh"
    assert found[1].question == "在哪里"
    assert found[1].where == f"{tmp_path / name}, line 3"
    assert notes.counts == {"answer-moved": 1}


def test_answers_as_json_in_a_cell(tmp_path: Path) -> None:
    (tmp_path / "rows.tsv").write_text(
        "question\tcontext\tanswers\n"
        'Where?\tIn France.\t{"text": ["France"], "answer_start": [3]}\n'
        'Where?\tIn France.\t["In", "France"]\n'
        "Where?\tIn [1].\t[1]\n"
    )
    assert [q.gold for q in read_questions(tmp_path)] == [(("France", 3),), (("In", 0), ("France", 3)), (("[1]", 3),)]


def test_one_answer_in_rows_of_json(tmp_path: Path) -> None:
    rows = [
        {"question": "Where?", "context": "It is in France.", "answers": "France"},
        {"question": "Where?", "context": "It is in France.", "answer": "France", "answer_start": 9},
    ]
    (tmp_path / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    assert [question.gold for question in read_questions(tmp_path)] == [(("France", 9),)] * 2


@pytest.mark.parametrize(
    ("row", "code"),
    [
        ({"answers": 5}, "bad-answer"),
        ({"answers": {"text": ["France"], "answer_start": 3}}, "count-mismatch"),
        ({"answers": {"text": ["In", "France"], "answer_start": [0]}}, "count-mismatch"),
        ({"answers": {"text": ["In"], "answer_start": None}}, "count-mismatch"),
        ({"answers": {"text": None}}, "bad-answer"),
        ({"answers": {"text": 5}}, "bad-answer"),
        ({"answer": "France", "answer_start": "ninth"}, "bad-answer"),
    ],
)
def test_answers_that_are_none(row: dict[str, Any], code: str, tmp_path: Path) -> None:
    (tmp_path / "rows.jsonl").write_text(json.dumps({"question": "Where?", "context": "In France.", **row}) + "\n")
    with refused(code, f"{tmp_path / 'rows.jsonl'}, line 1"):
        list(read_questions(tmp_path))


def test_a_table_without_questions_is_told(tmp_path: Path) -> None:
    (tmp_path / "rows.csv").write_text("text,label\na,b\n")
    with refused("unknown-layout", f"{tmp_path / 'rows.csv'}, line 2"):
        list(read_questions(tmp_path))


def test_chinese_columns_are_those_of_questions(tmp_path: Path) -> None:
    file = tmp_path / "a.csv"
    file.write_text("编号,问题,段落,答案\n7,中国的首都?,首都是北京。,北京\n8,谁?,没有人。,\n", encoding="utf-8")
    found = list(read_questions(file))
    assert [(one.id, one.question, one.context, one.gold) for one in found] == [
        ("7", "中国的首都?", "首都是北京。", (("北京", 3),)), ("8", "谁?", "没有人。", None),
    ]  # fmt: skip
    assert check_data([file]).task == "answer"
    two = tmp_path / "b.jsonl"
    two.write_text('{"问题": "谁?", "段落": "我。", "文章": "别的", "答案": "我"}\n', encoding="utf-8")
    assert [one.context for one in read_questions(two)] == ["我。"]


def test_an_empty_context_is_counted(tmp_path: Path) -> None:
    file, notes = tmp_path / "a.jsonl", Notes()
    file.write_text('{"question": "who?", "context": null}\n{"question": "who?", "context": "we"}\n', encoding="utf-8")
    assert len(list(read_questions(file, notes))) == 2
    assert (notes.counts, notes.first) == ({"empty-text": 1}, {"empty-text": f"{file}, line 1"})


def write_table(path: Path, rows: list[dict[str, str]]) -> None:
    """The rows in the kind of file that the name says."""
    mark = {".csv": ",", ".tsv": "\t"}.get(path.suffix)
    if path.suffix == ".parquet":
        pq.write_table(pa.Table.from_pylist(rows), path)
    elif mark:
        path.write_text("".join(mark.join(line) + "\n" for line in [list(rows[0]), *(row.values() for row in rows)]))
    else:
        path.write_text(json.dumps(rows if path.suffix == ".json" else rows[0]))


@pytest.mark.parametrize("name", ["a.csv", "a.tsv", "a.jsonl", "a.json", "a.parquet"])
def test_columns_with_other_names(name: str, tmp_path: Path) -> None:
    """`text` is the question, `pair` the context and `label` the answers; the usual names of others stay."""
    rows = [{"Frage": "Who?", "absatz": "The cat runs.", "Antwort": "cat", "answer": "no"}]
    write_table(tmp_path / name, rows)
    columns = Columns("frage", "Absatz", "Antwort")
    (found,) = read_questions(tmp_path / name, columns=columns)
    assert (found.question, found.context, found.gold) == ("Who?", "The cat runs.", (("cat", 4),))
    with refused("no-column", "Fragen"):
        list(read_questions(tmp_path / name, columns=Columns("Fragen")))
    rows = [{"question": "Who?", "Absatz": "The cat runs.", "context": "no"}]
    write_table(tmp_path / name, rows)
    (found,) = read_questions(tmp_path / name, columns=Columns("question", "Absatz"))
    assert (found.question, found.context, found.gold) == ("Who?", "The cat runs.", None)


def test_columns_by_number(tmp_path: Path) -> None:
    (tmp_path / "a.tsv").write_text("7\tWho?\tThe cat runs.\tcat\n")
    (found,) = read_questions(tmp_path / "a.tsv", columns=Columns("2", "3", "4"))
    assert (found.question, found.context, found.gold) == ("Who?", "The cat runs.", (("cat", 4),))


@pytest.mark.parametrize("header", ["Question,Context,Answer", "问题,上下文,答案", "問題,上下文,答案"])
def test_columns_of_questions_are_known_in_any_case_and_in_traditional_chinese(header: str, tmp_path: Path) -> None:
    file = tmp_path / "a.csv"
    file.write_text(f"{header}\nWho?,Ann and Bob,Bob\n", encoding="utf-8")
    [found] = read_questions(file)
    assert (found.question, found.context, found.gold) == ("Who?", "Ann and Bob", (("Bob", 8),))
