"""Files of other tools as labelled data and raw text: Excel, datasets, Label Studio, spaCy, brat, CoNLL-U."""

import json
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgpack
import numpy as np
import openpyxl
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bothways.data.docbin import NUMBERS, hash_of, unpack
from bothways.data.examples import Tagged
from bothways.data.notes import Notes
from bothways.data.questions import read_questions
from bothways.data.sources import find_sources
from bothways.data.tagged import KINDS, read_tagged
from bothways.data.texts import read_texts_labelled
from bothways.doctor.check_data import check_data, guess_task
from bothways.scale.units import estimate_rows
from bothways.text.columns import Columns
from bothways.text.excel import read_sheet
from bothways.text.files import Meter, find_files, read_documents, read_texts
from helpers import refused
from helpers.cli import Run, is_one_error

ZH, EN = "张三在北京工作。", "Ann Lee works in Paris."


def texts(path: Path, columns: Columns | None = None, notes: Notes | None = None) -> list[tuple[str, Any]]:
    return [(one.texts[0], one.gold) for one in read_texts_labelled(path, columns or Columns(), notes=notes)]


def entities(examples: list[Tagged]) -> list[list[tuple[str, str]]]:
    """What is marked in each text, with its type."""
    found = []
    for one in examples:
        marked: list[tuple[str, str]] = []
        for (start, end), tag in zip(one.words, one.gold or ["O"] * len(one.words), strict=True):
            if tag.startswith("B-"):
                marked.append((one.text[start:end], tag[2:]))
            elif tag.startswith("I-"):
                before = one.text.index(marked[-1][0])
                marked[-1] = (one.text[before:end], tag[2:])
        found.append(marked)
    return found


def tagged(path: Path, column: str | None = None, notes: Notes | None = None) -> list[list[tuple[str, str]]]:
    return entities(list(read_tagged(path, column, notes)))


ANN_AND_PARIS = [("Ann Lee", "PER"), ("Paris", "LOC")]
ZHANG_AND_BEIJING = [("张三", "PER"), ("北京", "LOC")]


# ---------------------------------------------------------------------- Excel


def write_excel(path: Path, rows: list[list[Any]], sheet: str = "Sheet") -> Path:
    book = openpyxl.Workbook()
    page = book.active
    assert page is not None
    page.title = sheet
    for row in rows:
        page.append(row)
    book.save(path)
    return path


@pytest.mark.filterwarnings("ignore:.*cannot read")  # a Chinese row: the model that checks tokens reads English
def test_excel(tmp_path: Path) -> None:
    rows: list[list[Any]] = [
        ["Review", "Stars", None],
        [EN, 4, None],
        [None, None, None],
        [ZH, 4.5, None],
        [2024, True, None],
    ]
    path = write_excel(tmp_path / "a.XLSX", rows)
    notes = Notes()
    assert texts(path, notes=notes) == [(EN, "4"), (ZH, "4.5"), ("2024", "true")]
    assert notes.columns == "text = Review, label = Stars"
    assert [one.where for one in read_texts_labelled(path)][1] == f"{path}, row 4"
    assert list(read_texts(path)) == list(read_documents(path)) == [EN, ZH, "2024"]
    assert find_files([tmp_path]) == [path]
    meter = Meter()
    assert list(read_texts(path, "stars", meter)) == ["4", "4.5", "true"]
    assert meter.bytes == path.stat().st_size
    assert estimate_rows(path) == 4
    assert guess_task(str(path)).name == "classify"
    assert check_data([path]).columns == notes.columns


def test_excel_without_a_header_and_with_missing_cells(tmp_path: Path) -> None:
    path = write_excel(tmp_path / "a.xlsx", [["pos", EN, "x"], ["neg", ZH], ["neg"]])
    assert texts(path, Columns("2", label="1")) == [(EN, "pos"), (ZH, "neg"), ("", "neg")]
    assert list(read_texts(path, "2")) == [EN, ZH, ""]


def test_the_sheet_is_named(tmp_path: Path, run: Run) -> None:
    path = write_excel(tmp_path / "a.xlsx", [["text", "label"], *([f"the {n}", "ab"[n % 2]] for n in range(20))])
    book = openpyxl.load_workbook(path)
    for row in (["text", "label"], *([f"a dog {n}", "xy"[n % 2]] for n in range(30))):
        book.create_sheet("二月") if "二月" not in book else None
        book["二月"].append(row)
    book.save(path)
    refusal = run("doctor", path)
    assert is_one_error(refusal.stderr, "name the one to be read with --sheet")
    found = run("doctor", path, "--sheet", "二月", "--json")
    assert found.returncode == 0, found.stderr
    report = json.loads(found.stdout)
    assert (report["rows"], {one["name"] for one in report["labels"]}) == (30, {"x", "y"})
    assert "--sheet 二月" in report["command"].replace("'", "")
    with read_sheet("Sheet"):
        assert len(texts(path)) == 20
    with refused("several-sheets", ("Sheet", "二月")):
        texts(path)
    with read_sheet("nothing"), refused("no-sheet", "nothing"):
        texts(path)


def test_excel_that_cannot_be_read(tmp_path: Path) -> None:
    path = write_excel(tmp_path / "a.xlsx", [["text"], [EN, "too much"]])
    with refused("wrong-cell-count", f"{path}, row 2"):
        list(read_texts(path))
    book = openpyxl.load_workbook(path)
    book.create_sheet("more").append(["text"])
    book.save(path)
    with refused("several-sheets", ("Sheet", "more")):
        list(read_texts(path))
    (tmp_path / "b.xlsx").write_bytes(b"PK")
    with refused("damaged-file", tmp_path / "b.xlsx"):
        texts(tmp_path / "b.xlsx")
    with refused("empty-file"):
        texts(write_excel(tmp_path / "c.xlsx", []))


def test_excel_without_openpyxl(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = write_excel(tmp_path / "a.xlsx", [["text"], [EN]])
    monkeypatch.setitem(__import__("sys").modules, "openpyxl", None)
    with refused("missing-package", "openpyxl", names=r"bothways\[xlsx\]"):
        texts(path)


# ---------------------------------------------------------------------- Hugging Face datasets

CLASS = {"names": ["neg", "pos"], "_type": "ClassLabel"}
FEATURES: dict[str, Any] = {
    "text": {"dtype": "string", "_type": "Value"},
    "label": CLASS,
    "tags": {"feature": CLASS, "_type": "List"},
    "old_tags": {"feature": CLASS, "length": -1, "_type": "Sequence"},
    "older_tags": [CLASS],
}


def write_dataset(folder: Path, columns: dict[str, list[Any]], files: int = 2) -> Path:
    """As `Dataset.save_to_disk` does: streams of record batches with the features in the schema, and state.json."""
    folder.mkdir(parents=True)
    table = pa.table(columns).replace_schema_metadata({"huggingface": json.dumps({"info": {"features": FEATURES}})})
    names = [f"data-{i:05}-of-{files:05}.arrow" for i in range(files)]
    size = -(-len(table) // files)
    for i, name in enumerate(names):
        with pa.OSFile(str(folder / name), "wb") as sink, pa.ipc.new_stream(sink, table.schema) as writer:
            writer.write_table(table.slice(i * size, size), max_chunksize=1)
    (folder / "state.json").write_text(json.dumps({"_data_files": [{"filename": name} for name in names]}))
    (folder / "dataset_info.json").write_text(json.dumps({"features": FEATURES}))
    (folder / "cache-1.arrow").write_bytes(b"left over")
    return folder


def test_saved_data_set(tmp_path: Path) -> None:
    folder = write_dataset(tmp_path / "a.b", {"text": [EN, ZH, "x"], "label": [1, 0, -1]})
    assert texts(folder) == [(EN, "pos"), (ZH, "neg"), ("x", None)]
    assert [one.where for one in read_texts_labelled(folder)] == [f"{folder}, row {i}" for i in (1, 2, 3)]
    assert list(read_texts(folder)) == list(read_documents(folder)) == [EN, ZH, "x"]
    assert find_files([folder]) == [folder]
    assert find_sources(folder, KINDS) == [folder]
    assert estimate_rows(folder) == 3


def test_splits_are_named(tmp_path: Path) -> None:
    for split in ("train", "test"):
        write_dataset(tmp_path / "both" / split, {"text": [split], "label": [1]}, 1)
    (tmp_path / "both" / "dataset_dict.json").write_text('{"splits": ["train", "test"]}')
    for read in (texts, lambda path: find_files([path])):
        with refused("several-splits", ("train", "test"), names="both/train"):
            read(tmp_path / "both")
    assert texts(tmp_path / "both" / "test") == [("test", "pos")]
    write_dataset(tmp_path / "one" / "train", {"text": ["only"], "label": [0]}, 1)
    (tmp_path / "one" / "dataset_dict.json").write_text('{"splits": ["train"]}')
    assert texts(tmp_path / "one") == [("only", "neg")]


@pytest.mark.parametrize("field", ["tags", "old_tags", "older_tags"])
@pytest.mark.parametrize("kind", ["folder", ".arrow", ".parquet"])
def test_classes_have_their_names(tmp_path: Path, field: str, kind: str) -> None:
    folder = write_dataset(tmp_path / "a", {"tokens": [["a", "b"]], field: [[1, 0]]}, 1)
    path = folder
    if kind != "folder":
        table = pa.ipc.open_stream((folder / "data-00000-of-00001.arrow").read_bytes()).read_all()
        path = tmp_path / f"a{kind}"
        if kind == ".parquet":
            pq.write_table(table, path)
        else:
            with pa.OSFile(str(path), "wb") as sink, pa.ipc.new_file(sink, table.schema) as writer:
                writer.write_table(table)
    assert [one.gold for one in read_tagged(path, field)] == [("pos", "neg")]


def test_damaged_data_sets(tmp_path: Path) -> None:
    folder = write_dataset(tmp_path / "a", {"text": [EN]}, 1)
    (folder / "data-00000-of-00001.arrow").write_bytes(b"nothing")
    with refused("damaged-file", folder / "data-00000-of-00001.arrow"):
        texts(folder)
    (folder / "state.json").write_text("{")
    with refused("damaged-file", folder / "state.json"):
        texts(folder)
    (folder / "state.json").write_text('{"_indices_data_files": [{"filename": "i.arrow"}]}')
    with refused("unknown-layout", folder):
        texts(folder)


# ---------------------------------------------------------------------- Label Studio


def region(start: int, end: int, text: str, label: str, **more: Any) -> dict[str, Any]:
    value = {"start": start, "end": end, "text": text, "labels": [label]}
    return {"type": "labels", "from_name": "label", "to_name": "text", "value": value, **more}


def choice(*names: str, control: str = "sentiment") -> dict[str, Any]:
    return {"type": "choices", "from_name": control, "to_name": "text", "value": {"choices": list(names)}}


def task(text: str, *results: dict[str, Any], **more: Any) -> dict[str, Any]:
    return {"id": 1, "data": {"text": text}, "annotations": [{"id": 7, "result": list(results)}], **more}


EN_REGIONS = region(0, 7, "Ann Lee", "PER"), region(17, 22, "Paris", "LOC")
ZH_REGIONS = region(3, 5, "北京", "LOC"), region(0, 2, "张三", "PER")


def write_json(path: Path, value: Any) -> Path:
    path.write_text(json.dumps(value, ensure_ascii=False), encoding="utf-8")
    return path


def test_label_studio_entities(tmp_path: Path) -> None:
    tasks = [
        task(EN, *EN_REGIONS),
        task(ZH, *ZH_REGIONS),
        task("none"),
        {"id": 4, "data": {"text": "new"}, "annotations": []},
    ]
    path = write_json(tmp_path / "a.json", tasks)
    found = list(read_tagged(path))
    assert entities(found) == [ANN_AND_PARIS, ZHANG_AND_BEIJING, [], []]
    assert [one.gold for one in found[2:]] == [("O",), None]
    assert found[1].where == f"{path}, item 2"
    assert guess_task(str(path)).name == "tag"


def test_label_studio_counts_in_utf_16(tmp_path: Path) -> None:
    tasks = [task(f"😀😀 {EN}", region(5, 12, "Ann Lee", "PER"), region(22, 27, "Paris", "LOC"))]
    assert tagged(write_json(tmp_path / "a.json", tasks)) == [ANN_AND_PARIS]


def test_label_studio_choices(tmp_path: Path) -> None:
    tasks = [task(EN, choice("pos")), task(ZH, choice("neg", "sad")), task("none")]
    path = write_json(tmp_path / "a.json", tasks)
    assert texts(path) == [(EN, "pos"), (ZH, ("neg", "sad")), ("none", None)]
    assert guess_task(str(path)).name == "classify"
    rated = [task(EN, {"type": "rating", "from_name": "r", "value": {"rating": 4}})]
    assert texts(write_json(tmp_path / "b.json", rated)) == [(EN, 4.0)]


def test_label_studio_with_both(tmp_path: Path) -> None:
    path = write_json(tmp_path / "a.json", [task(EN, *EN_REGIONS, choice("pos")), task(ZH, choice("neg"))])
    assert texts(path) == [(EN, "pos"), (ZH, "neg")]
    assert tagged(path) == [ANN_AND_PARIS, []]
    other = write_json(tmp_path / "b.json", [task(EN, choice("pos"), choice("long", control="length"))])
    assert texts(other, Columns(label="length")) == [(EN, "long")]


def test_label_studio_takes_one_annotation_and_says_what_it_left_out(tmp_path: Path) -> None:
    three = [{"was_cancelled": True, "result": []}, {"result": [choice("pos")]}, {"result": [choice("neg")]}]
    truth = [{"result": [choice("pos")]}, {"ground_truth": True, "result": [choice("neg")]}]
    tasks = [{"data": {"review": EN}, "annotations": three}, {"data": {"review": ZH}, "annotations": truth}]
    tasks.append({"data": {"review": "x"}, "annotations": [{"result": [{"type": "brush"}]}]})
    notes = Notes()
    assert texts(write_json(tmp_path / "a.json", tasks), notes=notes) == [(EN, "pos"), (ZH, "neg"), ("x", None)]
    assert notes.counts == {"several-annotations": 2, "unread-annotation": 1, "empty-label": 1}


@pytest.mark.parametrize(
    "result",
    [region(0, 7, "Bob Lee", "PER"), {**EN_REGIONS[0], "value": {"start": 0, "end": 7, "labels": ["A", "B"]}}],
)
def test_label_studio_regions_that_cannot_be_read(tmp_path: Path, result: dict[str, Any]) -> None:
    path = write_json(tmp_path / "a.json", [task(ZH), task(EN, result)])
    with refused("bad-entity", f"{path}, item 2"):
        tagged(path)


def test_label_studio_json_min(tmp_path: Path) -> None:
    more = {"annotator": 1, "annotation_id": 2, "lead_time": 3.5}
    rows = [
        {"id": 1, "text": EN, "who": [one["value"] for one in EN_REGIONS], **more},
        {"id": 2, "text": "none", **more},
    ]
    path = write_json(tmp_path / "a.json", rows)
    found = list(read_tagged(path))
    assert entities(found) == [ANN_AND_PARIS, []]
    assert found[1].gold == ("O",)
    assert guess_task(str(path)).name == "tag"
    rows = [{"text": EN, "sentiment": "pos", **more}, {"text": ZH, "sentiment": {"choices": ["neg", "sad"]}, **more}]
    assert texts(write_json(tmp_path / "b.json", rows)) == [(EN, "pos"), (ZH, ("neg", "sad"))]


# ---------------------------------------------------------------------- spaCy


def test_spacy_training_json(tmp_path: Path) -> None:
    rows = [[EN, {"entities": [[0, 7, "PER"], [17, 22, "LOC"]]}], [ZH, {"entities": [[0, 2, "PER"], [3, 5, "LOC"]]}]]
    path = write_json(tmp_path / "a.json", rows)
    assert tagged(path) == [ANN_AND_PARIS, ZHANG_AND_BEIJING]
    assert guess_task(str(path)).name == "tag"
    lines = tmp_path / "a.jsonl"
    lines.write_text("".join(json.dumps(row) + "\n" for row in rows))
    assert tagged(lines) == [ANN_AND_PARIS, ZHANG_AND_BEIJING]
    rows = [
        [EN, {"cats": {"A": 1.0, "B": 0.0}}],
        [ZH, {"cats": {"A": 1.0, "B": 1.0}}],
        ["x", {"cats": {"A": 0, "B": 0}}],
    ]
    assert texts(write_json(tmp_path / "b.json", rows)) == [(EN, "A"), (ZH, ("A", "B")), ("x", ())]


def test_spacy_2_json(tmp_path: Path) -> None:
    tokens = [
        {"orth": word, "ner": tag, "tag": "-"}
        for word, tag in zip(EN.split(), ["B-PER", "L-PER", "O", "-", "U-LOC"], strict=True)
    ]
    value = [{"id": 0, "paragraphs": [{"raw": EN, "sentences": [{"tokens": tokens, "brackets": []}]}]}]
    path = write_json(tmp_path / "a.json", value)
    assert tagged(path) == [[("Ann Lee", "PER"), ("Paris.", "LOC")]]
    assert next(read_tagged(path)).where == f"{path}, item 1, paragraph 1, sentence 1"
    value[0]["paragraphs"] = [
        {"raw": ZH, "sentences": [], "cats": [{"label": "A", "value": 1}, {"label": "B", "value": 0}]}
    ]
    assert texts(write_json(path, value)) == [(ZH, "A")]
    value[0]["paragraphs"] = [{"sentences": [{"words": []}]}]
    with refused("unknown-layout", f"{path}, item 1, paragraph 1"):
        tagged(write_json(path, value))
    squad = {"data": [{"paragraphs": [{"context": EN, "qas": [{"id": "1", "question": "Who?", "answers": []}]}]}]}
    assert [one.question for one in read_questions(write_json(path, squad))] == ["Who?"]


def write_docbin(
    path: Path, documents: list[tuple[list[str], list[bool], list[str], dict[str, float]]], **more: Any
) -> Path:
    """The bytes of `DocBin.to_bytes` (spacy/tokens/_serialize.py), made without spaCy.

    A msgpack mapping inside zlib. `attrs` are the numbers of spaCy's symbols, ORTH first: ORTH 65, ENT_IOB 77, ENT_TYPE
    78 (and TAG 75 here, which is not read). `tokens` is a uint64 array (tokens, attrs); a text is its symbol's number or
    MurmurHash64A with seed 1. ENT_IOB is 3 for B, 1 for I, 2 for O, 0 for not annotated.
    """
    attributes, strings, rows = [65, 75, 77, 78], set[str](), list[list[int]]()
    for words, _, tags, _ in documents:
        for word, tag in zip(words, tags, strict=True):
            letter, _, kind = tag.partition("-")
            strings |= {word, kind}
            mark = {"B": 3, "I": 1, "O": 2, "": 0}[letter]
            rows.append([symbol(word), 0, mark, symbol(kind)])
    packed = {
        "version": "0.1",
        "attrs": attributes,
        "tokens": np.array(rows, np.uint64).tobytes(),
        "spaces": np.array([[gap] for _, gaps, _, _ in documents for gap in gaps], bool).tobytes(),
        "lengths": np.array([len(words) for words, _, _, _ in documents], np.int32).tobytes(),
        "strings": sorted(strings),
        "cats": [cats for *_, cats in documents],
        "flags": [{"has_unknown_spaces": False} for _ in documents],
        "span_groups": [b"" for _ in documents],
        **more,
    }
    path.write_bytes(zlib.compress(msgpack.packb(packed)))
    return path


def symbol(text: str) -> int:
    return 0 if not text else NUMBERS.get(text) or hash_of(text)


EN_DOC = (
    ["Ann", "Lee", "works", "in", "\n", "Paris", "."],
    [True, True, True, True, False, False, False],
    ["B-PERSON", "I-PERSON", "O", "O", "O", "B-地点", "O"],
)
ZH_DOC = (list(ZH), [False] * 8, ["B-PERSON", "I-PERSON", "O", "B-ORG", "I-ORG", "O", "O", "O"])


def test_docbin(tmp_path: Path) -> None:
    blank = (["the", "number", "DATE", "X"], [True] * 4, [""] * 4)
    path = write_docbin(tmp_path / "a.spacy", [(*EN_DOC, {}), (*ZH_DOC, {}), (*blank, {})])
    found = list(read_tagged(path))
    assert entities(found) == [[("Ann Lee", "PERSON"), ("Paris", "地点")], [("张三", "PERSON"), ("北京", "ORG")], []]
    assert [one.text for one in found] == ["Ann Lee works in \nParis.", ZH, "the number DATE X "]
    assert [found[0].text[start:end] for start, end in found[0].words] == ["Ann", "Lee", "works", "in", "Paris", "."]
    assert (found[1].where, found[2].gold) == (f"{path}, document 2", None)
    assert guess_task(str(path)).name == "tag"
    cats = [(*blank, {"A": 1.0, "B": 0.0}), (*blank, {"A": 0.0, "B": 1.0})]
    path = write_docbin(tmp_path / "b.spacy", cats)
    assert texts(path) == [("the number DATE X ", "A"), ("the number DATE X ", "B")]
    assert guess_task(str(path)).name == "classify"


def test_docbins_that_cannot_be_read(tmp_path: Path) -> None:
    path = tmp_path / "a.spacy"
    for content in (
        b"nothing",
        zlib.compress(b"\xc1"),
        zlib.compress(msgpack.packb({"attrs": [65]})),
        zlib.compress(b"\xd9\x09ab"),
    ):
        path.write_bytes(content)
        with refused("damaged-file", path):
            tagged(path)
    write_docbin(path, [(*EN_DOC, {})], strings=["Ann"])
    with refused("damaged-file", f"{path}, document 1"):
        tagged(path)


def test_the_symbols_of_spacy() -> None:
    """Some of spacy/symbols.pxd, counted there."""
    known = {"ID": 64, "ORTH": 65, "ENT_IOB": 77, "ENT_TYPE": 78, "ADJ": 84, "SPACE": 103, "PERSON": 380, "ORG": 383}
    known |= {"LAW": 390, "CARDINAL": 397, "acomp": 398, "ENT_KB_ID": 452, "_": 456}
    assert {name: NUMBERS[name] for name in known} == known


def test_the_hash_of_spacy() -> None:
    """From spacy/tests/vocab_vectors/test_stringstore.py."""
    assert hash_of("apple") == 8566208034543834098
    assert hash_of("\U0001f499") == 11841826740069053588


LEAVES = (
    st.none() | st.booleans() | st.integers(-(2**63), 2**64 - 1) | st.floats(allow_nan=False) | st.text() | st.binary()
)


@pytest.mark.slow
@settings(max_examples=40)
@given(st.recursive(LEAVES, lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner)))
def test_msgpack_as_its_own_package_writes_it(value: Any) -> None:
    assert unpack(msgpack.packb(value)) == value


@pytest.mark.parametrize("size", [15, 16, 31, 32, 255, 256, 65_535, 65_536])
def test_msgpack_of_every_size(size: int) -> None:
    for value in ("x" * size, b"x" * size, [0] * size, {str(i): i for i in range(size)}):
        assert unpack(msgpack.packb(value)) == value


# ---------------------------------------------------------------------- brat


def write_brat(folder: Path) -> Path:
    folder.mkdir()
    (folder / "en.txt").write_bytes(f"Title\r\n{EN}\n".encode())
    (folder / "en.ann").write_text(
        "T1\tPER 7 14\tAnn Lee\nR1\tIn Arg1:T1 Arg2:T2\nT2\tLOC 24 29\tParis\n#1\tNote T1\tx\n"
    )
    (folder / "zh.txt").write_text(ZH, encoding="utf-8")
    (folder / "zh.ann").write_text("T1\tPER 0 2\t张三\nT3\tLOC 3 5\t北京\nT4\tX 0 1;3 4\t张 北\n", encoding="utf-8")
    return folder


def test_brat(tmp_path: Path) -> None:
    folder, notes = write_brat(tmp_path / "a"), Notes()
    assert tagged(folder, notes=notes) == [ANN_AND_PARIS, ZHANG_AND_BEIJING]
    assert notes.counts == {"split-entity": 1}
    assert tagged(folder / "zh.ann") == [ZHANG_AND_BEIJING]
    assert guess_task(str(folder)).name == guess_task(str(folder / "en.ann")).name == "tag"
    assert check_data([folder]).labels[0].name == "LOC"


@pytest.mark.parametrize(("line", "code"), [("T1\tPER 0 x\tAnn", "bad-entity"), ("T1\tPER 1 3\t张三", "bad-entity")])
def test_brat_that_cannot_be_read(tmp_path: Path, line: str, code: str) -> None:
    folder = write_brat(tmp_path / "a")
    (folder / "zh.ann").write_text(f"#1\tnote\n{line}\n", encoding="utf-8")
    with refused(code, f"{folder / 'zh.ann'}, line 2"):
        tagged(folder)
    (folder / "zh.txt").unlink()
    with refused("no-file", folder / "zh.txt"):
        tagged(folder)


# ---------------------------------------------------------------------- CoNLL-U

PAD = "\t_\t_\t_\t_\t_\t_\t_\t"
HEADER = "# global.columns = ID FORM NE\n"
CONLLU = {
    "ner": ("".join(f"{i}\t{w}{PAD}{m}\n" for i, w, m in [(1, "Ann", "NER=B-PER"), (2, "Lee", "SpaceAfter=No|NER=I-PER"), (3, ",", "_"), (4, "Paris", "Ner=B-LOC")]), [("Ann Lee", "PER"), ("Paris", "LOC")]),
    "entity": ("# global.Entity = eid-etype-head-other\n" + "".join(f"{i}\t{w}{PAD}{m}\n" for i, w, m in [(1, "Ann", "Entity=(e1-person-1-"), (2, "Lee", "Entity=(e2-name-1)e1)"), (3, "in", "_"), (4, "Paris", "Entity=(e3-place-1)")]), [("Ann Lee", "person"), ("Paris", "place")]),
    "ne": (f"{HEADER}1\tAnn\tB-PER\n2\tLee\tI-PER\n3\tin\t*\n4\tParis\tB-LOC\n", [("Ann Lee", "PER"), ("Paris", "LOC")]),
}  # fmt: skip


@pytest.mark.parametrize("column", CONLLU)
def test_conllu_entities(tmp_path: Path, column: str) -> None:
    text, expected = CONLLU[column]
    path, notes = tmp_path / "a.conllup", Notes()
    path.write_text(text)
    assert tagged(path, column.upper(), notes) == [expected]
    assert ("overlapping-entity" in notes.counts) == (column == "entity")
    with refused("no-column", "other"):
        tagged(path, "other")


def test_conllu_words_written_as_one(tmp_path: Path) -> None:
    path = tmp_path / "a.conllu"
    path.write_text(f"1-2\tdu{PAD}_\n1\tde{PAD}NER=O\n2\tle{PAD}NER=B-LOC\n3\tMans{PAD}NER=I-LOC\n")
    assert tagged(path, "ner") == [[("du Mans", "LOC")]]


def test_conllu_entities_that_cross(tmp_path: Path) -> None:
    path = tmp_path / "a.conllu"
    path.write_text(f"1\tAnn{PAD}Entity=(e1-person(e2-pair\n2\tLee{PAD}Entity=e1)\n3\tBob{PAD}Entity=e2)\n")
    assert tagged(path, "entity") == [[("Ann Lee Bob", "pair")]]


@pytest.mark.parametrize("value", ["Entity=(e1", "Entity=e1)", "Entity=(e1-person"])
def test_conllu_brackets_that_do_not_match(tmp_path: Path, value: str) -> None:
    path = tmp_path / "a.conllu"
    path.write_text(f"1\tAnn{PAD}{value}\n")
    with refused("bad-entity", f"{path}, line 1"):
        tagged(path, "entity")


# ---------------------------------------------------------------------- columns of raw text


@pytest.mark.parametrize(
    ("header", "field", "expected"),
    [
        ("id,Review", None, "b"), ("text,headline", None, "a"), ("title,description", None, "a b"), ("a,b", "b", "b"),
        ("a,b", "a+b", "a b"), ("x,y", "2", "b"),
    ],
)  # fmt: skip
def test_raw_texts_find_their_column_as_labelled_ones_do(
    tmp_path: Path, header: str, field: str | None, expected: str
) -> None:
    (tmp_path / "a.csv").write_text(f"{header}\na,b\n")
    assert list(read_texts(tmp_path / "a.csv", field))[-1] == expected


VERBS: list[tuple[str, Callable[[Path, Path], list[object]]]] = [
    ("encode", lambda file, out: [file, "--model", "{model}", "--out", out / "v.npy"]),
    ("pack", lambda file, out: [file, "--model", "{model}", "--out", out / "packed"]),
    ("similar", lambda file, out: [file, "--model", "{model}"]),
]


@pytest.mark.parametrize(("verb", "arguments"), VERBS)
def test_text_is_the_option_and_field_its_old_name(
    tmp_path: Path, run: Run, model_folder: Path, verb: str, arguments: Callable[[Path, Path], list[object]]
) -> None:
    file = write_excel(tmp_path / "a.xlsx", [["review", "other"], ["the cat", "a house"], ["the dog", "a virus"]])
    out = []
    for option in ([], ["--text", "review"], ["--field", "review"], ["--text", "none"]):
        (tmp_path / "out").mkdir()
        words = [str(word).replace("{model}", str(model_folder)) for word in arguments(file, tmp_path / "out")]
        out.append(run(verb, *words, *option))
        (tmp_path / "out").rename(tmp_path / f"out{len(out)}")
    assert [one.returncode for one in out] == [0, 0, 0, 1], out[-1].stderr
    assert out[0].stdout == out[1].stdout == out[2].stdout
    assert "--field" not in run(verb, "--help").stdout


def test_doctor_and_predict_say_their_columns(tmp_path: Path, run: Run) -> None:
    (tmp_path / "a.csv").write_text("Review,Stars\ngood,5\nbad,1\n")
    assert "columns: text = Review, label = Stars\n" in run("doctor", tmp_path / "a.csv").stderr
    (tmp_path / "a.conll").write_text("Ann B-PER\nruns O\n")
    assert "columns:" not in run("doctor", tmp_path / "a.conll").stderr
    done = run("predict", tmp_path / "a.csv", "--task", "emotion")
    assert done.stderr.startswith("columns: text = Review\n")
    done = run("predict", tmp_path / "a.csv", "--task", "emotion", "--out", tmp_path / "a.jsonl")
    assert "columns: text = Review\n" in done.stderr


@pytest.mark.parametrize("task", ["emotion", "ner"])
def test_predictions_do_not_ask_which_column_the_label_is(task: str, tmp_path: Path, run: Run) -> None:
    """Two columns may be the label; in one of them nobody could read one. For tags as for labels."""
    rows = [{"id": i, "review": text, "label": {"by": "Ann"}, "stars": i} for i, text in enumerate(["good", "bad"])]
    (tmp_path / "a.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    (tmp_path / "a.json").write_text(json.dumps(rows))
    (tmp_path / "a.csv").write_text("review,label,stars\ngood,pos,5\nbad,-,1\n")
    (tmp_path / "a.tsv").write_text("review\tlabel\tstars\ngood one\tpos\t5\nbad\t-\t1\n")
    pq.write_table(pa.table({"review": ["good", "bad"], "label": ["a", "b"], "stars": [1, 2]}), tmp_path / "a.parquet")
    for name in ("a.csv", "a.tsv", "a.jsonl", "a.json", "a.parquet"):
        for option in ([], ["--text", "review"]):
            out = tmp_path / f"{name}{len(option)}.out.jsonl"
            done = run("predict", tmp_path / name, "--task", task, *option, "--out", out)
            assert done.returncode == 0, done.stderr
            assert len(out.read_text().splitlines()) == 2
            assert "columns: text = review\n" in done.stderr


@pytest.mark.parametrize("name", ["a.html", "a.md", "a.pdf", "a.xhtml"])
def test_documents_are_no_rows(name: str, tmp_path: Path, run: Run) -> None:
    """Each line of a page, with its tags, got a label."""
    folder = tmp_path / "pages"
    folder.mkdir()
    (folder / name).write_text("<html>\n<p>I love it.</p>\n", encoding="utf-8")
    for verb in ("predict", "evaluate"):
        assert is_one_error(run(verb, folder / name, "--task", "emotion").stderr, f"{name} is a document")
    assert is_one_error(run("doctor", folder / name, "--task", "classify").stderr, f"{name} is a document")
    assert "documents, of which it has 1, hold no rows" in run("doctor", folder, "--task", "classify").stderr


@pytest.mark.parametrize(
    ("start", "says"),
    [
        (b"PK\x03\x04", ".xlsx"),
        (b"\xd0\xcf\x11\xe0", "Excel"),
        (b"PAR1", ".parquet"),
        (b"\x1f\x8b\x08", ".gz"),
        (b"%PDF-1.7", "PDF"),
    ],
)
def test_files_that_are_no_text_say_what_they_are(start: bytes, says: str, tmp_path: Path) -> None:
    """Not that their first line must be repaired."""
    (tmp_path / "a.dat").write_bytes(start + bytes(range(128, 256)) * 4)
    with refused("binary-file", names=says):
        list(read_texts_labelled(tmp_path / "a.dat"))
