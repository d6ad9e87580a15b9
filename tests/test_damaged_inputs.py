"""Damaged and odd inputs, one of each kind that was once answered with a traceback, a hang or a wrong result."""

import base64
import io
import json
import os
import shutil
import struct
import subprocess
import sys
import zipfile
import zlib
from collections.abc import Callable
from pathlib import Path

import numpy as np
import openpyxl
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from bothways.cli.output import with_options
from bothways.data.notes import Notes
from bothways.data.tagged import read_tagged
from bothways.data.texts import read_texts_labelled
from bothways.doctor.check_data import check_data
from bothways.errors import BothwaysError
from bothways.model.adapter_config import base_of
from bothways.model.box import model_folder
from bothways.model.identify import read_labels
from bothways.model.weights import read_json
from bothways.search.index import Index
from bothways.tasks.recipe import finetune_recipe
from bothways.text import streams
from bothways.text.files import read_texts
from bothways.text.streams import read_as
from bothways.text.tokenizer import Tokenizer
from helpers import PIECES, refused
from helpers.cli import Run


def labels(path: Path) -> list[object]:
    return [one.gold for one in read_texts_labelled(path)]


def workbook() -> bytes:
    book, stream = openpyxl.Workbook(), io.BytesIO()
    for row in (["text", "label"], ["the cat", "a"]):
        book.active.append(row)
    book.save(stream)
    return stream.getvalue()


def with_part(archive: bytes, name: str, content: bytes) -> bytes:
    """A zip archive with one of its files replaced."""
    old, stream = zipfile.ZipFile(io.BytesIO(archive)), io.BytesIO()
    with zipfile.ZipFile(stream, "w") as new:
        for one in old.namelist():
            new.writestr(one, content if one == name else old.read(one))
    return stream.getvalue()


def parquet(table: pa.Table) -> bytes:
    stream = io.BytesIO()
    pq.write_table(table, stream)
    return stream.getvalue()


SHEET = (
    b"<worksheet xmlns='http://schemas.openxmlformats.org/spreadsheetml/2006/main'><sheetData><row><c t='s'><v>99</v>"
)
UNREADABLE = {
    "deep.jsonl": (b"[" * 100_000, "not-json", "nested too deeply"),
    "long-number.jsonl": (b'{"text": "a", "label": ' + b"9" * 5_000 + b"}", "not-json", "more than 4,300 digits"),
    "empty.json": (b"", "not-json", "is empty"),
    "twice.jsonl": (b'{"text": "a", "text": "b", "label": "c"}', "repeated-column", "'text' twice"),
    "twice-spaced.jsonl": (b'{"text": "a", "text" : "b"}', "repeated-column", "'text' twice"),
    "twice.json": (b'[{"text": "a", "label": "b", "label": "c"}]', "repeated-column", "'label' twice"),
    "twice.parquet": (parquet(pa.table([["a"], ["b"]], names=["text", "text"])), "repeated-column", "text, text"),
    "long-cell.parquet": (parquet(pa.table({"text": ["a" * 9_000_000]})), "too-long-line", "8,388,608"),
    "categories.json": (b'[["a", {"cats": {"x": "yes"}}]]', "unknown-layout", "item 1 has cats"),
    "not-a-number.json": (b'[["a", {"cats": {"x": NaN}}]]', "unknown-layout", "item 1 has cats"),
    "deep.spacy": (zlib.compress(b"\x91" * 100_000), "damaged-file", "not a .spacy file"),
    "cut.spacy": (zlib.compress(b"\x80")[:-3], "damaged-file", "not a .spacy file"),
    "packed.xlsx.gz": (workbook(), "compressed-file", "decompress it"),
    "packed.parquet.gz": (b"PAR1", "compressed-file", "decompress it"),
    "no-sheets.xlsx": (with_part(workbook(), "xl/workbook.xml", b"<a/>"), "damaged-file", "cannot be read|no sheets"),
    "no-string.xlsx": (
        with_part(workbook(), "xl/worksheets/sheet1.xml", SHEET + b"</c></row></sheetData></worksheet>"),
        "damaged-file",
        "after row 0",
    ),
    "return.csv": (b"text,label\na\rb,c\n", "not-csv", "carriage return"),
    "ragged.csv": (b"text,label\na\n", "wrong-cell-count", "line 2 does not have the 2 columns"),
}


@pytest.mark.parametrize("name", UNREADABLE)
def test_what_is_wrong_with_a_file_is_said_in_plain_words(name: str, tmp_path: Path) -> None:
    content, code, says = UNREADABLE[name]
    (tmp_path / name).write_bytes(content)
    with refused(code, names=says):
        labels(tmp_path / name)


def test_a_spacy_file_does_not_fill_the_memory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("bothways.data.docbin.LARGEST", 1_000_000)
    (tmp_path / "bomb.spacy").write_bytes(zlib.compress(b"\0" * 2_000_000))
    with refused("too-long-file", names="1,000,000 bytes"):
        list(read_tagged(tmp_path / "bomb.spacy", None, Notes()))


@pytest.mark.parametrize("name", ["a.tsv", "a.jsonl", "a.txt", "a.conll"])
def test_carriage_returns_alone_end_lines(name: str, tmp_path: Path) -> None:
    lines = {
        ".tsv": ["text\tlabel", "the cat\ta", "a dog\tb"],
        ".jsonl": [json.dumps({"text": text, "label": "a"}) for text in ("the cat", "a dog")],
        ".txt": ["the cat", "a dog"],
        ".conll": ["the O", "cat B-X", "", "a O", "dog O"],
    }[Path(name).suffix]
    path = tmp_path / name
    path.write_bytes("\r".join(lines).encode())
    with pytest.warns(UserWarning, match="carriage returns and no line feeds"):
        found = list(read_tagged(path, None, Notes())) if name == "a.conll" else list(read_texts(path))
    assert len(found) == 2
    path.write_bytes("\r\n".join(lines).encode() + b"\r\r\n")
    assert len(list(streams.read_lines(path))) == len(lines)


def test_long_lists_of_names_are_cut(tmp_path: Path) -> None:
    names = ",".join(f"c{i}" for i in range(10_000))
    (tmp_path / "wide.csv").write_text(f"{names}\n{names}\n")
    with refused("no-text-column", names="c1, c2.* and 9,9.. more"):
        labels(tmp_path / "wide.csv")


def test_the_largest_numbers_are_labels(tmp_path: Path) -> None:
    (tmp_path / "a.jsonl").write_text('{"text": "a", "label": 1e308}\n{"text": "b", "label": -1e308}\n')
    assert check_data(tmp_path / "a.jsonl").rows == 2


@pytest.mark.parametrize("name", ["punycode", "undefined", "idna", "unicode_escape", "a\0b"])
def test_a_codec_of_no_files_is_no_encoding(name: str) -> None:
    with refused("unknown-encoding", name), read_as(name):
        pass


@pytest.mark.parametrize(
    ("key", "value"), [("run", 5), ("optim", "x"), ("distill", []), ("model", 1.5), ("model", {"init": 7})]
)
def test_a_part_of_a_recipe_of_another_type_is_refused(key: str, value: object) -> None:
    with refused("wrong-type", names=key):
        finetune_recipe({"task": "classify", key: value})


# ---------------------------------------------------------------------- model folders


@pytest.fixture
def vocabulary(tmp_path: Path) -> Path:
    (tmp_path / "vocabulary").mkdir()
    Tokenizer.from_pieces(PIECES).save(tmp_path / "vocabulary")
    return tmp_path / "vocabulary"


@pytest.mark.parametrize("name", ["config.json", "tokenizer.json", "model.safetensors"])
def test_pipes_and_devices_in_a_model_folder_are_refused(name: str, vocabulary: Path) -> None:
    (vocabulary / name).unlink(missing_ok=True)
    os.mkfifo(vocabulary / name)
    with refused("not-a-file", vocabulary / name):
        model_folder(vocabulary)
    with refused("not-a-file", vocabulary / name):
        Tokenizer.load(vocabulary)
    (vocabulary / name).unlink()
    (vocabulary / name).symlink_to("/dev/zero")
    with refused("not-a-file", vocabulary / name):
        model_folder(vocabulary)


def test_a_file_of_settings_is_bounded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("bothways.json_files.LARGEST", 100)
    (tmp_path / "config.json").write_text(json.dumps({"a": "b" * 100}))
    with refused("too-long-file"):
        read_json(tmp_path / "config.json")


def test_a_byte_order_mark_before_json_is_no_error(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text("\ufeff{}", encoding="utf-8")
    assert read_json(tmp_path / "config.json") == {}


def test_labels_by_names_instead_of_numbers_are_refused() -> None:
    with refused("bad-labels", names="whose keys are not numbers: x$"):
        read_labels({"id2label": {"x": "a"}})


def changed(vocabulary: Path, part: str, value: object, kind: str = "PreTrainedTokenizerFast") -> Path:
    """A vocabulary's folder with a part of tokenizer.json replaced."""
    state = json.loads((vocabulary / "tokenizer.json").read_text(encoding="utf-8"))
    state[part] = {**state[part], **value} if isinstance(value, dict) and part == "model" else value
    (vocabulary / "tokenizer.json").write_text(json.dumps(state), encoding="utf-8")
    (vocabulary / "tokenizer_config.json").write_text(json.dumps({"tokenizer_class": kind}), encoding="utf-8")
    return vocabulary


def test_an_id_of_billions_takes_no_memory(vocabulary: Path) -> None:
    pieces = {**{piece: i for i, piece in enumerate(PIECES)}, "far": 2**32 - 1}
    tokenizer = Tokenizer.load(changed(vocabulary, "model", {"vocab": pieces}))
    with refused("out-of-range", 2**32 - 1):
        _ = tokenizer.size


@pytest.mark.parametrize("kind", ["PreTrainedTokenizerFast", "BertTokenizer"])
def test_a_vocabulary_without_its_unknown_piece_is_refused(kind: str, vocabulary: Path) -> None:
    folder = changed(vocabulary, "model", {"vocab": {}}, kind)
    with refused("damaged-file", names="WordPiece error|no piece"):
        Tokenizer.load(folder)("北 dog")


@pytest.mark.parametrize("table", [b"", b"abc", struct.pack("<I", 400), struct.pack("<I", 0) + b"\xff"])
def test_a_damaged_table_of_characters_is_refused(table: bytes, vocabulary: Path) -> None:
    charsmap = {"type": "Precompiled", "precompiled_charsmap": base64.b64encode(table).decode()}
    with refused("damaged-file", names="precompiled_charsmap"):
        Tokenizer.load(changed(vocabulary, "normalizer", charsmap))


def test_a_panic_of_the_tokenizer_is_an_error(vocabulary: Path) -> None:
    table = base64.b64encode(struct.pack("<I", 8) + b"\xff" * 8).decode()
    folder = changed(vocabulary, "normalizer", {"type": "Precompiled", "precompiled_charsmap": table})
    with refused("damaged-file", names="cannot be tokenized"):
        Tokenizer.load(folder)("a dog")


def test_a_base_model_whose_name_has_a_nul_is_not_found(tmp_path: Path) -> None:
    shutil.copytree("src/bothways/box/en-spam", tmp_path / "adapter")
    path = tmp_path / "adapter" / "adapter_config.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), "base_model_name_or_path": "a\0b"}))
    with refused("no-base-model"):
        base_of(tmp_path / "adapter")


@pytest.mark.parametrize(
    "command",
    [["doctor", ""], ["finetune", "ner", "--train=", "--out", "x"], ["info", ""], ["fill", "a", "--model", ""]],
)
def test_an_empty_path_is_not_the_current_folder(command: list[str], run: Run) -> None:
    done = run(*command)
    assert done.returncode == 2
    assert "is empty" in done.stderr


def test_links_to_themselves_and_odd_names_are_no_outputs(run: Run, tmp_path: Path) -> None:
    (tmp_path / "loop.jsonl").symlink_to(tmp_path / "loop.jsonl")
    (tmp_path / "a.txt").write_text("a cat\n")
    done = run("similar", tmp_path / "a.txt", "--out", tmp_path / "loop.jsonl")
    assert (done.returncode, "a link" in done.stderr) == (2, True)
    done = run("static", "--out", f"{tmp_path}/a\udcff")
    assert (done.returncode, "UTF-8" in done.stderr) == (2, True)


def test_a_folder_in_the_place_of_the_answers_is_refused_before_the_work(run: Run, tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("a cat\n")
    (tmp_path / "out.jsonl").mkdir()
    done = run("predict", tmp_path / "a.txt", "--task", "spam", "--out", tmp_path / "out.jsonl")
    assert (done.returncode, "is a folder" in done.stderr) == (1, True)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["a.txt", "out.jsonl"]


# ---------------------------------------------------------------------- search indices


@pytest.fixture(scope="module")
def index(tmp_path_factory: pytest.TempPathFactory) -> Path:
    home = tmp_path_factory.mktemp("index")
    (home / "corpus.txt").write_text("The cat sleeps.\nA dog runs.\nParis is big.\n")
    Index.build(home / "corpus.txt", home / "index", device="cpu")
    return home / "index"


def npy(array: object) -> bytes:
    stream = io.BytesIO()
    np.save(stream, np.asarray(array), allow_pickle=True)
    return stream.getvalue()


DAMAGE: dict[str, Callable[[bytes], bytes]] = {
    "empty": lambda old: b"",
    "cut": lambda old: old[:-1],
    "half": lambda old: old[: len(old) // 2],
    "garbage": lambda old: b"\xff\xfe\0garbage",
    "extra": lambda old: old + b"x",
    "objects": lambda old: npy([None, "a"]),
    "texts": lambda old: npy(["a", "b"]),
    "nothing": lambda old: npy(np.zeros(0, np.int64)),
    "negative": lambda old: npy(np.full((3, 3), -1)),
}
PARTS = ("documents.jsonl", "lines.npy", "ids.npy", "passages.npy", "vectors.npy", "counts.json")


@pytest.mark.parametrize("name", [*PARTS, "manifest.json"])
@pytest.mark.parametrize("how", DAMAGE)
def test_a_damaged_index_is_refused_or_answers_as_before(name: str, how: str, index: Path, tmp_path: Path) -> None:
    shutil.copytree(index, tmp_path / "index")
    found = [hit.id for hit in Index.open(index, device="cpu").search("a cat", 3)]
    file = next((tmp_path / "index").rglob(name))
    file.write_bytes(DAMAGE[how](file.read_bytes()))
    try:
        assert [hit.id for hit in Index.open(tmp_path / "index", device="cpu").search("a cat", 3)] == found
    except BothwaysError as error:
        code = error.code
    else:
        return
    assert code == "damaged-file"


@pytest.mark.parametrize("how", DAMAGE)
def test_a_damaged_index_of_words_is_made_again(how: str, index: Path, tmp_path: Path) -> None:
    found = Index.open(index, device="cpu").search("cat", mode="bm25")
    for name in sorted(path.name for path in (index / "bm25").iterdir()):
        shutil.rmtree(tmp_path / "index", ignore_errors=True)
        shutil.copytree(index, tmp_path / "index")
        file = tmp_path / "index" / "bm25" / name
        file.write_bytes(DAMAGE[how](file.read_bytes()))
        assert Index.open(tmp_path / "index", device="cpu").search("cat", mode="bm25") == found, name


def test_a_file_that_cannot_be_read_is_not_called_bad_json(tmp_path: Path) -> None:
    (tmp_path / "config.json").symlink_to("/proc/self/mem")  # a file that its owner cannot read
    with refused("unreadable-file", tmp_path / "config.json", "cannot be read: Input/output error"):
        read_json(tmp_path / "config.json")


def test_messages_that_cannot_be_written_change_no_status(vocabulary: Path) -> None:
    command = [
        sys.executable,
        "-m",
        "bothways",
        "vocab",
        "extend",
        str(vocabulary),
        "--words",
        "nowhere.txt",
        "--out",
        "x",
    ]
    with Path("/dev/full").open("w") as full:
        assert subprocess.run(command, stderr=full, check=False).returncode == 1


def test_words_of_other_libraries_are_no_options() -> None:
    assert with_options("invalid type: integer `5`, expected `F32`") == "invalid type: integer `5`, expected `F32`"
