"""Texts with labels out of the files people have: GLUE's as they are downloaded, tables, JSON, fastText's lines."""

import gzip
import json
import lzma
import re
import tracemalloc
from collections import Counter
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import bothways
from bothways.data.examples import Text
from bothways.data.labels import as_kind, label_kind, label_names
from bothways.data.notes import SENTENCES, Notes
from bothways.data.texts import read_texts_labelled
from bothways.errors import BothwaysError
from bothways.text.columns import Columns
from bothways.text.files import read_texts
from helpers import refused


def write(path: Path, *lines: str, end: str = "\n", mark: str = "") -> Path:
    path.write_bytes((mark + "".join(line + end for line in lines)).encode())
    return path


def write_json(path: Path, *rows: object) -> Path:
    return write(path, *(json.dumps(row, ensure_ascii=False) for row in rows))


def pairs(path: Path, columns: Columns = Columns(), notes: Notes | None = None) -> list[tuple[tuple[str, ...], object]]:  # noqa: B008
    return [(example.texts, example.gold) for example in read_texts_labelled([path], columns, notes=notes)]


MNLI = "index\tpromptID\tpairID\tgenre\tsentence1_binary_parse\tsentence2_binary_parse\tsentence1_parse\tsentence2_parse\tsentence1\tsentence2\tlabel1\tgold_label"
GLUE: dict[str, tuple[list[str], list[tuple[tuple[str, ...], str | None]]]] = {
    "CoLA": (
        ["gj04\t1\t\tOne more \"pseudo and I'm giving up.", "gj04\t0\t*\tThey drank the pub."],
        [(("One more \"pseudo and I'm giving up.",), "1"), (("They drank the pub.",), "0")],
    ),
    "CoLA, another one first": (["gj04\t0\t*\tThey drank the pub."], [(("They drank the pub.",), "0")]),
    "CoLA test": (["index\tsentence", "0\tBill whistled."], [(("Bill whistled.",), None)]),
    "SST-2": (["sentence\tlabel", "hide new secretions \t0"], [(("hide new secretions ",), "0")]),
    "SST-2 test": (["index\tsentence", "0\tuneasy mishmash ."], [(("uneasy mishmash .",), None)]),
    "MRPC": (
        ["Quality\t#1 ID\t#2 ID\t#1 String\t#2 String", '1\t702876\t702977\tcalled " the witness "\t" Amrozi', '0\t1\t2\ta\t"b"'],
        [(('called " the witness "', '" Amrozi'), "1"), (("a", '"b"'), "0")],
    ),
    "MRPC test": (["index\t#1 ID\t#2 ID\t#1 String\t#2 String", "0\t1\t2\ta\tb"], [(("a", "b"), None)]),
    "STS-B": (
        ["index\tgenre\tfilename\tyear\told_index\tsource1\tsource2\tsentence1\tsentence2\tscore", "0\tmain-captions\tMSRvid\t2012test\t0001\tnone\tnone\tA plane.\tAn air plane.\t5.000"],
        [(("A plane.", "An air plane."), "5.000")],
    ),
    "QQP": (["id\tqid1\tqid2\tquestion1\tquestion2\tis_duplicate", "1\t2\t3\tHow?\tWhy?\t0"], [(("How?", "Why?"), "0")]),
    "MNLI": (
        [MNLI, "0\t1\t2\tfiction\t( a )\t( b )\t(S a)\t(S b)\ta\tb\tneutral\tneutral"],
        [(("a", "b"), "neutral")],
    ),
    "MNLI dev": (
        [MNLI.replace("label1", "label1\tlabel2\tlabel3\tlabel4\tlabel5"), "0\t1\t2\tf\t( a )\t( b )\t(S a)\t(S b)\ta\tb\tneutral\tneutral\tentailment\tneutral\tneutral\tneutral"],
        [(("a", "b"), "neutral")],
    ),
    "MNLI test": ([MNLI.removesuffix("\tlabel1\tgold_label"), "0\t1\t2\tf\t( a )\t( b )\t(S a)\t(S b)\ta\tb"], [(("a", "b"), None)]),
    "QNLI": (["index\tquestion\tsentence\tlabel", "0\tWhen?\tThen.\tentailment"], [(("When?", "Then."), "entailment")]),
    "QNLI test": (["index\tquestion\tsentence", "0\tWhen?\tThen."], [(("When?", "Then."), None)]),
    "RTE": (["index\tsentence1\tsentence2\tlabel", "0\tNo.\tYes.\tnot_entailment"], [(("No.", "Yes."), "not_entailment")]),
    "WNLI": (["index\tsentence1\tsentence2\tlabel", "0\tIt fell.\tIce fell.\t1"], [(("It fell.", "Ice fell."), "1")]),
}  # fmt: skip


@pytest.mark.parametrize("end", ["\n", "\r\n"])
@pytest.mark.parametrize("mark", ["", "\ufeff"])
@pytest.mark.parametrize("task", GLUE)
def test_glue_as_it_is_downloaded(tmp_path: Path, task: str, mark: str, end: str) -> None:
    lines, expected = GLUE[task]
    notes = Notes()
    assert pairs(write(tmp_path / "a.tsv", *lines, end=end, mark=mark), notes=notes) == expected
    assert notes.counts == ({"no-label-column": 1} if "test" in task else {})


@pytest.mark.filterwarnings("ignore:.* of another kind")
def test_packed_files_and_many_of_them(tmp_path: Path) -> None:
    plain = b"sentence\tlabel\ngood\t1\n"
    (tmp_path / "a.tsv.gz").write_bytes(gzip.compress(plain))
    (tmp_path / "b.TSV.xz").write_bytes(lzma.compress(plain))
    (tmp_path / ".hidden").mkdir()
    for name in (".hidden.tsv", ".hidden/a.tsv", "readme.md"):
        (tmp_path / name).write_bytes(plain)
    write_json(tmp_path / "c.jsonl", {"text": "坏", "label": 0})
    found = list(read_texts_labelled(str(tmp_path)))
    assert [(example.texts[0], example.gold) for example in found] == [("good", "1"), ("good", "1"), ("坏", "0")]
    assert found[0].where == f"{tmp_path / 'a.tsv.gz'}, line 2"
    assert found[2].where == f"{tmp_path / 'c.jsonl'}, line 1"
    assert list(read_texts_labelled([tmp_path / "a.tsv.gz", str(tmp_path / "c.jsonl")])) == [found[0], found[2]]


def test_damaged_rows_are_counted(tmp_path: Path) -> None:
    header = "id\tqid1\tqid2\tquestion1\tquestion2\tis_duplicate"
    path = write(
        tmp_path / "qqp.tsv", header, "1\t2\t3\ta\tb\t0", "4\t5\t6\tcut here", "and here\tb\t1", "", "7\t8\t9\tc\td\t1"
    )
    notes = Notes()
    assert pairs(path, notes=notes) == [(("a", "b"), "0"), (("c", "d"), "1")]
    assert (notes.counts, notes.first, notes.values) == (
        {"wrong-cell-count": 2},
        {"wrong-cell-count": f"{path}, line 3"},
        {"wrong-cell-count": 6},
    )
    write(path, header, "1\t2\t3\ta\tb\t0", "4\t5", "6\t7")
    with refused("wrong-cell-count", f"{path}, line 3"):
        pairs(path)


def test_who_is_to_answer_every_row_leaves_none_out(tmp_path: Path) -> None:
    path = write(tmp_path / "a.tsv", "text\tlabel", "good\tx", "no tab", "bad\ty")
    with refused("wrong-cell-count", f"{path}, line 3"):
        pairs(path, notes=Notes(whole=True))


def test_columns_without_a_name_may_be_many(tmp_path: Path) -> None:
    path = write(tmp_path / "spam.csv", "v1,v2,,,", "ham,Ok lar,,,", "spam,Win,,,")
    assert pairs(path, Columns(text="v2", label="v1")) == [(("Ok lar",), "ham"), (("Win",), "spam")]


def test_a_tsv_that_was_written_with_quotes_is_noted(tmp_path: Path) -> None:
    path = write(tmp_path / "a.tsv", "text\tlabel", '"The ""cat"" sleeps."\tx', '"Quoted," he said\ty', '"All"\ty')
    notes = Notes()
    assert pairs(path, notes=notes)[0] == (('"The ""cat"" sleeps."',), "x")
    assert notes.counts == {"quoted-cells": 1}


def test_pairs_without_a_gold_label_are_counted_and_have_none(tmp_path: Path) -> None:
    rows = [{"sentence1": "a", "sentence2": "b", "gold_label": label, "annotator_labels": ["neutral"]} for label in ("-", "neutral", "-")]  # fmt: skip
    notes = Notes()
    assert pairs(write_json(tmp_path / "snli.jsonl", *rows), notes=notes) == [
        (("a", "b"), None),
        (("a", "b"), "neutral"),
        (("a", "b"), None),
    ]
    assert notes.counts == {"no-agreement": 2}
    assert notes.first == {"no-agreement": f"{tmp_path / 'snli.jsonl'}, line 1"}
    # One text: here it is a label like +.
    assert pairs(write(tmp_path / "a.csv", "text,label", "good,+", "bad,-")) == [(("good",), "+"), (("bad",), "-")]


def test_empty_texts_and_labels_are_kept_and_counted(tmp_path: Path) -> None:
    rows = [{"text": "a", "label": None}, {"text": "", "label": "x"}, {"text": None, "label": float("nan")}]
    notes = Notes()
    assert pairs(write_json(tmp_path / "a.jsonl", *rows), notes=notes) == [(("a",), None), (("",), "x"), (("",), None)]
    assert notes.counts == {"empty-label": 2, "empty-text": 2}


@pytest.mark.parametrize(
    ("header", "texts", "label"),
    [
        ("text,label", ["text"], "label"),
        ("Sentiment,Text,batch_id", ["Text"], "Sentiment"),
        ("id,REVIEW,stars", ["REVIEW"], "stars"),
        ("label,text_a", ["text_a"], "label"),
        ("label,text_a,text_b", ["text_a", "text_b"], "label"),
        ("pair_ID,sentence_A,sentence_B,relatedness_score", ["sentence_A", "sentence_B"], "relatedness_score"),
        ("premise,hypothesis,label,label0,label1", ["premise", "hypothesis"], "label"),
        ("query,passage,score", ["query", "passage"], "score"),
        ("tweet,class", ["tweet"], "class"),
        ("id, content ,category", [" content "], "category"),
        ("title,text,target", ["text"], "target"),
        ("question,Label", ["question"], "Label"),
    ],
)
def test_usual_names(tmp_path: Path, header: str, texts: list[str], label: str) -> None:
    names = header.split(",")
    path = write(tmp_path / "a.csv", header, ",".join(f"<{name}>" for name in names))
    assert pairs(path) == [(tuple(f"<{name}>" for name in texts), f"<{label}>")]


def test_a_title_and_a_description_are_one_text(tmp_path: Path) -> None:
    path = write_json(tmp_path / "a.jsonl", {"label": 3, "title": "Fears", "description": "Unions say"})
    assert pairs(path) == [(("Fears Unions say",), "3")]
    assert pairs(path, Columns(text="title", pair="description")) == [(("Fears", "Unions say"), "3")]
    assert pairs(path, Columns(text="description+Title")) == [(("Unions say Fears",), "3")]


def test_columns_by_name_and_by_number(tmp_path: Path) -> None:
    path = write(tmp_path / "a.csv", "a,b,C,label", "1,2,3,4")
    assert pairs(path, Columns(text="b")) == [(("2",), "4")]
    assert pairs(path, Columns(text="c", pair="a", label="B")) == [(("3", "1"), "2")]
    headless = write(tmp_path / "b.tsv", "ham\tOk lar", "spam\tWin")
    assert pairs(headless, Columns(text="2", label="1")) == [(("Ok lar",), "ham"), (("Win",), "spam")]
    news = write(tmp_path / "news.csv", '"3","Fears","Unions, say"')
    assert pairs(news, Columns(text="2+3", label="1")) == [(("Fears Unions, say",), "3")]


ERRORS: dict[str, tuple[str, Columns, str, object]] = {
    "two texts": ("text,comment,label", Columns(), "ambiguous-column", ("text", "comment")),
    "two pairs": ("sentence1,sentence2,premise,hypothesis", Columns(), "ambiguous-column", ("sentence1 with sentence2", "premise with hypothesis")),
    "a pair and a text": ("review,premise,hypothesis", Columns(), "ambiguous-column", ("premise with hypothesis", "review")),
    "one name in two cases": ("text,Text", Columns(), "ambiguous-column", ("text", "Text")),
    "two labels": ("text,relatedness_score,entailment_judgment", Columns(), "ambiguous-column", ("relatedness_score", "entailment_judgment")),
    "no text": ("id,words,label", Columns(), "no-text-column", ("id", "words", "label")),
    "another text": ("id,text", Columns(text="body"), "no-column", "body"),
    "another pair": ("id,text", Columns(text="text", pair="other"), "no-column", "other"),
    "another label": ("id,text", Columns(label="gold"), "no-column", "gold"),
    "a pair alone": ("id,text", Columns(pair="id"), "pair-without-text", None),
    "one name twice": ("text,label,label", Columns(), "repeated-column", None),
}  # fmt: skip


@pytest.mark.parametrize("what", ERRORS)
def test_what_is_not_certain_is_asked(tmp_path: Path, what: str) -> None:
    header, columns, code, value = ERRORS[what]
    path = write(tmp_path / "a.csv", header, ",".join("x" for _ in header.split(",")))
    with refused(code, str(path) if code == "repeated-column" else value):
        pairs(path, columns)


def test_a_column_that_is_named_is_no_longer_in_doubt(tmp_path: Path) -> None:
    path = write(tmp_path / "a.csv", "text,comment,score,label", "a,b,1,x")
    assert pairs(path, Columns(text="comment", label="score")) == [(("b",), "1")]
    assert pairs(path, Columns(label="comment", text="text")) == [(("a",), "b")]
    assert pairs(path, Columns(text="score", label=None)) == [(("1",), "x")]
    assert pairs(write(tmp_path / "b.csv", "text,comment", "a,b"), Columns(label="comment")) == [(("a",), "b")]
    assert pairs(write(tmp_path / "c.csv", "text_a,text_b", "a,b"), Columns(label="text_b")) == [(("a",), "b")]


BAD: dict[str, tuple[str, str, str, str]] = {
    "no JSON": ("a.jsonl", '{"text": "a"}\n{"text\n', "not-json", "{path}, line 2"),
    "no object": ("a.jsonl", '{"text": "a"}\n["b"]\n', "not-an-object", "{path}, line 2"),
    "no text": ("a.jsonl", '\n{"text": 5, "label": 1}\n', "not-text", "{path}, line 2"),
    "a label of objects": ("a.jsonl", '{"text": "a", "label": {"x": 1}}', "bad-label", "{path}, line 1"),
    "another row": ("a.jsonl", '{"text": "a"}\n{"body_text": "b"}\n', "no-text-column", "('body_text',)"),
    "an open quote": ("a.csv", 'text,label\n"a,1\n', "not-csv", "{path}, line 2"),
    "nothing": ("a.tsv", "", "empty-file", "{path}"),
    "no whole JSON": ("a.json", '{"text": ', "not-json", "{path}"),
    "no file": ("b.tsv", "", "no-file", "{path}"),
}  # fmt: skip


@pytest.mark.parametrize("what", BAD)
def test_errors_name_the_place(tmp_path: Path, what: str) -> None:
    name, content, code, value = BAD[what]
    (tmp_path / name.replace("b.", "a.")).write_text(content)
    with pytest.raises(BothwaysError) as caught:
        pairs(tmp_path / name)
    assert (caught.value.code, str(caught.value.value)) == (code, value.format(path=tmp_path / name))
    assert str(tmp_path) in str(caught.value)
    assert "\n" not in str(caught.value)


def test_labels_of_json(tmp_path: Path) -> None:
    labels = [1, "x ", True, 4.5, 3.0, ["a", 2], [], "北\ud800"]
    path = tmp_path / "a.jsonl"
    path.write_text("".join(json.dumps({"text": "t", "label": label}) + "\n" for label in labels))
    assert [gold for _, gold in pairs(path)] == ["1", "x", "true", 4.5, 3.0, ("a", "2"), (), "北\ufffd"]


@pytest.mark.parametrize("name", ["a.jsonl", "a.csv"])
@pytest.mark.parametrize("value", ["Infinity", "-Infinity", "1e999"])
def test_a_score_without_end_is_refused_with_its_line(tmp_path: Path, name: str, value: str) -> None:
    """Trained on, it would make all weights NaN."""
    rows = ["0.5", "1.25", value]
    lines = ["text,label", *(f"t,{row}" for row in rows)]
    if name == "a.jsonl":
        lines = [f'{{"text": "t", "label": {row}}}' for row in rows]
    found = list(read_texts_labelled(write(tmp_path / name, *lines)))
    assert label_kind(example.gold for example in found) == "regression"
    number = len(lines)
    with refused("not-finite", f"{tmp_path / name}, line {number}"):
        [as_kind(example, "regression") for example in found]
    with refused("not-finite", "a.jsonl, line 1"):
        as_kind(Text(("t",), float("inf"), "a.jsonl, line 1"), "single")


def test_missing_numbers_of_a_table_are_no_labels(tmp_path: Path) -> None:
    """As pandas writes them; among names, nan and NA are names."""
    cells = ["3", "nan", "NaN", "", "NA", "4.5", "n/a", "inf"]
    notes = Notes()
    path = write(tmp_path / "a.csv", "text,label", *(f"t{i},{cell}" for i, cell in enumerate(cells)))
    golds = [gold for _, gold in pairs(path, notes=notes)]
    assert golds == ["3", None, None, None, None, "4.5", None, float("inf")]
    assert notes.counts == {"empty-label": 5}
    assert notes.first["empty-label"] == f"{path}, line 3"
    stars = write(tmp_path / "b.tsv", "text\tstars", "a\t1", "b\tnan", "c\t5")
    assert [gold for _, gold in pairs(stars)] == ["1", None, "5"]
    names = write(tmp_path / "c.csv", "text,label", "a,NA", "b,nan", "c,EU", "d,inf")
    assert [gold for _, gold in pairs(names)] == ["NA", "nan", "EU", "inf"]
    lone = write(tmp_path / "d.csv", "text,label", "a,NA", "b,NA")
    assert [gold for _, gold in pairs(lone)] == ["NA", "NA"]


def test_tables_with_other_separators(tmp_path: Path) -> None:
    """As Excel writes .csv where the comma is in numbers; quoted separators do not count."""
    expected = [(("good, really",), "1"), (("bad; very",), "0")]
    assert pairs(write(tmp_path / "a.csv", "text;label", "good, really;1", '"bad; very";0')) == expected
    assert pairs(write(tmp_path / "b.csv", "text\tlabel", "good, really\t1", "bad; very\t0")) == expected
    assert pairs(write(tmp_path / "c.csv", '"a; b; c",text,label', 'x,"good, really",1', "x,bad; very,0")) == expected
    # Without a header, marks of the text are not counted.
    headless = write(tmp_path / "d.csv", "good; really; yes,1", "bad,0")
    assert pairs(headless, Columns(text="1", label="2"))[0] == (("good; really; yes",), "1")
    assert pairs(write(tmp_path / "e.csv", "good;1", "bad;0"), Columns(text="1", label="2"))[1] == (("bad",), "0")


def test_a_first_line_that_may_be_a_row_is_asked_about(tmp_path: Path) -> None:
    """Where there can be one: the columns of .parquet and .jsonl always have names."""
    for name, lines, code in (
        ("a.csv", ("what a film,1", "so bad,0"), "no-text-column"),
        ("b.csv", ("1,1,what a film", "1,0,so bad"), "repeated-column"),
    ):
        with pytest.raises(BothwaysError, match="`text` 1 and `label` 2") as caught:
            pairs(write(tmp_path / name, *lines))
        assert caught.value.code == code
    pq.write_table(pa.table({"body_text": ["a"], "label": [1]}), tmp_path / "c.parquet")
    for path in (write_json(tmp_path / "c.jsonl", {"body_text": "a", "label": 1}), tmp_path / "c.parquet"):
        for columns in (Columns(), Columns(text="nowhere"), Columns(text="body_text", label="nowhere")):
            with pytest.raises(BothwaysError) as caught:
                pairs(path, columns)
            assert caught.value.code == ("no-column" if columns.text else "no-text-column")
            assert "`label` 2" not in str(caught.value)


def test_json_in_one_piece_and_json_lines_under_its_name(tmp_path: Path) -> None:
    rows = [{"text": "a", "label": 1}, {"text": "b", "label": 0}]
    (tmp_path / "a.json").write_text(json.dumps(rows, indent=1))
    write_json(tmp_path / "b.json", *rows)
    assert pairs(tmp_path / "a.json") == pairs(tmp_path / "b.json") == [(("a",), "1"), (("b",), "0")]
    assert [example.where for example in read_texts_labelled(tmp_path)] == [f"{tmp_path / name}" for name in ("a.json, item 1", "a.json, item 2", "b.json, line 1", "b.json, line 2")]  # fmt: skip


def test_parquet(tmp_path: Path) -> None:
    table = {"sentence": ["好", "坏"], "label": [1, 0], "idx": [0, 1]}
    pq.write_table(pa.table(table), tmp_path / "a.parquet")
    assert pairs(tmp_path / "a.parquet") == [(("好",), "1"), (("坏",), "0")]
    assert [example.where for example in read_texts_labelled(tmp_path)] == [
        f"{tmp_path}/a.parquet, row {i}" for i in (1, 2)
    ]


def test_the_kinds_of_labels(tmp_path: Path) -> None:
    cells = write(tmp_path / "a.tsv", "text\tlabels", "a\tjoy|awe", "b\tjoy| fear", "c\t", "d\tawe")
    assert [e.gold for e in read_texts_labelled(cells, kind="multi")] == [("joy", "awe"), ("joy", "fear"), (), ("awe",)]
    assert [e.gold for e in read_texts_labelled(cells)][:2] == ["joy|awe", "joy| fear"]
    scores = write(tmp_path / "b.tsv", "text\tscore", "a\t5.000", "b\t3")
    assert [e.gold for e in read_texts_labelled(scores, kind="regression")] == [5.0, 3.0]
    assert [e.gold for e in read_texts_labelled(scores, kind="single")] == ["5.000", "3"]
    with refused("not-a-number", f"{cells}, line 2"):
        list(read_texts_labelled(cells, kind="regression"))
    lists = write_json(tmp_path / "c.jsonl", {"text": "a", "labels": ["x"]}, {"text": "b", "labels": ["x", "y"]})
    with refused("several-labels", f"{lists}, line 2"):
        list(read_texts_labelled(lists, kind="single"))
    with refused("unknown-choice", "both"):
        list(read_texts_labelled(lists, kind="both"))  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("golds", "kind"),
    [
        (["0", "1"], "single"),
        (["1", "2", "5", None], "single"),
        (["0.0", "1.0"], "single"),
        ([0.0, 1.0], "single"),
        (["0", "0.5"], "regression"),
        ([5.0, 4.75], "regression"),
        (["5.000", "3.800"], "regression"),
        (["-1.5", "2", "1e-3"], "regression"),
        (["1.5", "x"], "single"),
        (["nan", "inf"], "single"),
        (["1.5", ()], "multi"),
        ([("a",)], "multi"),
    ],
)
def test_label_kind(golds: list[str | tuple[str, ...] | float | None], kind: str) -> None:
    assert label_kind(golds) == kind
    assert label_kind(iter(golds)) == kind


def test_no_label_at_all() -> None:
    with refused("no-labels"):
        label_kind([None, None])


def test_label_names() -> None:
    def names(*golds: str | tuple[str, ...] | float | None) -> tuple[str, ...]:
        return label_names(Text(("",), gold) for gold in golds)

    assert names("10", "9", "-1", None, "9") == ("-1", "9", "10")
    assert names("b", "a", "10", "9") == ("10", "9", "a", "b")
    assert names(("b", "10"), (), ("2",)) == ("10", "2", "b")
    assert names(1.0, 0.0) == ("0", "1")
    assert names() == ()


def test_as_kind() -> None:
    example = Text(("a",), 1.0, "a.csv, line 3")
    assert as_kind(example, "single") == Text(("a",), "1", "a.csv, line 3")
    assert as_kind(Text(("a",), "x"), "multi").gold == ("x",)
    assert as_kind(Text(("a",), ("x",)), "single").gold == "x"
    assert as_kind(Text(("a",)), "regression").gold is None


def test_lines_of_text_and_of_fasttext(tmp_path: Path) -> None:
    path = write(tmp_path / "a.txt", "a film", "", "一部 电影", end="\r\n")
    assert pairs(path) == [(("a film",), None), (("",), None), (("一部 电影",), None)]
    marked = ["__label__good  a film", "", "__label__bad __label__long 一部 电影", "no label"]
    notes = Notes()
    found = pairs(write(tmp_path / "b.txt", *marked), notes=notes)
    assert found == [(("a film",), "good"), (("一部 电影",), ("bad", "long")), (("no label",), None)]
    assert not notes


def test_a_table_under_the_name_of_text(tmp_path: Path) -> None:
    """SentEval's MRPC and SICK are such."""
    path = write(tmp_path / "msr_paraphrase_train.txt", *GLUE["MRPC"][0], mark="\ufeff")
    assert pairs(path) == GLUE["MRPC"][1]
    with refused("no-column", "body"):
        pairs(write(tmp_path / "b.txt", "a film", "b"), Columns(text="body"))
    assert pairs(write(tmp_path / "c.txt", "ham\tOk"), Columns(text="2", label="1")) == [(("Ok",), "ham")]
    assert pairs(write(tmp_path / "a.txt", "a line\twith a tab", "b")) == [
        (("a line\twith a tab",), None),
        (("b",), None),
    ]


@pytest.mark.parametrize(
    ("content", "expected"),
    [
        ('{"text": "a", "label": 1}\n', [(("a",), "1")]),
        ("sentence\tlabel\na\t1\n", [(("a",), "1")]),
        ("\nplain words\n", [(("",), None), (("plain words",), None)]),
        ("", []),
    ],
)
def test_standard_input(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, content: str, expected: object) -> None:
    (tmp_path / "in").write_text(content)
    with (tmp_path / "in").open() as stdin:
        monkeypatch.setattr("sys.stdin", stdin)
        found = list(read_texts_labelled("-"))
    assert [(example.texts, example.gold) for example in found] == expected
    assert all(example.where.startswith("standard input, line ") for example in found)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["a.tsv", "a.csv", "a.jsonl", "a.txt"])
def test_memory_does_not_grow_with_the_file(tmp_path: Path, name: str) -> None:
    tab = "," if name == "a.csv" else "\t"
    row = json.dumps({"text": "some words " * 20, "label": 1}) if name == "a.jsonl" else f"{'some words ' * 20}{tab}1"
    header = [] if name in ("a.jsonl", "a.txt") else [f"text{tab}label"]
    path = write(tmp_path / name, *header, *[row] * 10_000)
    tracemalloc.start()
    counts = Counter(example.gold for example in read_texts_labelled(path))
    highest = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert counts == {None if name == "a.txt" else "1": 10_000}
    assert highest < 1_000_000  # of 2.3 MB


def test_notes() -> None:
    notes = Notes()
    assert not notes
    assert str(notes) == ""
    for line in range(1, 1235):
        notes.add("empty-text", f"a.tsv, line {line}", line)
    notes.add("wrong-cell-count", "b.tsv", 77)
    assert notes
    assert notes.counts == {"empty-text": 1234, "wrong-cell-count": 1}
    assert notes.values == {"empty-text": 1, "wrong-cell-count": 77}
    first, second = str(notes).splitlines()
    assert "1,234" in first
    assert "a.tsv, line 1." in first
    assert "77" in second
    assert "b.tsv" in second


def test_every_note_has_a_sentence() -> None:
    """Of every code that a reader uses, and of no other."""
    source = "".join(file.read_text(encoding="utf-8") for file in Path(bothways.__file__).parent.rglob("*.py"))
    used = set(re.findall(r'notes\.add\(\s*"([a-z-]+)"', source))
    assert used == set(SENTENCES)


@pytest.mark.parametrize(
    ("header", "texts", "label"),
    [
        ("编号,评论,标签", ("a",), "b"),
        ("编号,文本,类别", ("a",), "b"),
        ("标题,内容,情感", ("a",), "b"),
        ("序号,标题,标签", ("a",), "b"),
        ("序号,问题,意图", ("a",), "b"),
        ("句子1,句子2,标签", ("x", "a"), "b"),
        ("句子１,句子２,标签", ("x", "a"), "b"),
        ("前提,假设,关系", ("x", "a"), "b"),
        ("編號,評論內容,標籤", ("a",), "b"),
        ("標題,訊息,類別", ("a",), "b"),
        ("前提,假設,關係", ("x", "a"), "b"),
        ("No.,Review Text,Gold-Label", ("a",), "b"),
    ],
)
def test_chinese_columns_are_known(header: str, texts: tuple[str, ...], label: str, tmp_path: Path) -> None:
    file = write(tmp_path / "a.csv", header, "x,a,b")
    assert [(example.texts, example.gold) for example in read_texts_labelled(file)] == [(texts, label)]
    if len(texts) == 1:
        assert list(read_texts(file)) == list(texts)


def test_two_chinese_texts_are_ambiguous(tmp_path: Path) -> None:
    with refused("ambiguous-column", ("内容", "评论")):
        list(read_texts_labelled(write(tmp_path / "a.csv", "评论,内容,标签", "x,a,b")))
