"""Texts and documents out of every kind of file, in flat memory, with errors that name the place."""

import gzip
import itertools
import json
import lzma
import os
import re
import subprocess
import sys
import tracemalloc
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from bothways.data.notes import Notes
from bothways.data.sources import find_sources
from bothways.data.texts import read_texts_labelled
from bothways.doctor.check_data import check_data
from bothways.errors import BothwaysError
from bothways.progress import watch_nothing
from bothways.tasks.finetune import _given
from bothways.tasks.labelled_files import FinetuneData
from bothways.tasks.recipe import FinetuneRecipe
from bothways.tasks.registry import TASKS
from bothways.text import files, streams
from bothways.text.columns import Columns
from bothways.text.files import (
    STDIN,
    Each,
    Meter,
    find_files,
    read_documents,
    read_lines,
    read_texts,
    replace_surrogates,
)
from helpers import refused
from helpers.cli import write_rows

ROWS = ['The cat, "Tom", sleeps.', "", "北京\nis\n\na city", "tab here", "x" * 200_000, " last "]
WITHOUT_LINE_ENDS = [row.replace("\n", " ") for row in ROWS]  # .tsv has no way to write a line end


KINDS = ["a.jsonl", "a.ndjson", "a.csv", "a.tsv", "a.parquet", "a.JSONL"]
PACKED = [f"a.{kind}.{pack}" for kind in ("jsonl", "ndjson", "csv", "tsv") for pack in ("gz", "xz")]


@pytest.mark.parametrize("name", [*KINDS, *PACKED])
def test_every_kind_gives_the_same_texts_and_documents(tmp_path: Path, name: str) -> None:
    rows = WITHOUT_LINE_ENDS if ".tsv" in name else ROWS
    path = write_rows(tmp_path / name, rows)
    assert list(read_texts(path, "body")) == rows
    assert list(read_documents(path, field="body")) == [row.strip() for row in rows if row.strip()]


@pytest.mark.parametrize("name", ["a.parquet"])
def test_a_text_that_is_null_is_an_empty_one(tmp_path: Path, name: str) -> None:
    path = write_rows(tmp_path / name, ["one", None, "two"])  # type: ignore[list-item]
    assert list(read_texts(path, "body")) == ["one", "", "two"]


@pytest.mark.slow
@pytest.mark.parametrize("name", ["a.txt", "a.txt.gz", "a.txt.xz", "a.TXT", "a.TXT.GZ", *KINDS, *PACKED])
def test_the_meter_counts_the_bytes_of_the_file(tmp_path: Path, name: str) -> None:
    path = tmp_path / name
    if ".txt" in name.lower():
        pack: dict[str, Callable[[bytes], bytes]] = {".gz": gzip.compress, ".xz": lzma.compress}
        path.write_bytes(pack.get(path.suffix.lower(), bytes)(os.urandom(300_000).hex().encode()))
    else:
        write_rows(path, [os.urandom(30).hex() for _ in range(5000)])
    size = path.stat().st_size
    readers: list[Callable[[Meter], Iterator[str]]] = [
        lambda meter: read_texts(path, "body", meter),
        lambda meter: read_documents(path, field="body", longest=1000, meter=meter),
    ]
    for read in readers:
        meter = Meter(bytes=7)
        steps = [meter.bytes for _ in read(meter)]
        assert meter.bytes == 7 + size
        assert steps == sorted(steps)
        assert len(steps) == 1 or steps[0] < 7 + size  # it moves while reading


def test_txt_texts_are_lines(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_bytes(b"\xef\xbb\xbfone\r\n\r\n two \nth\rree\n\nend")
    assert list(read_texts(tmp_path / "a.txt")) == ["one", "", " two ", "th\rree", "", "end"]
    assert list(read_lines(tmp_path / "a.txt")) == list(read_texts(tmp_path / "a.txt"))


@pytest.mark.parametrize("end", ["\n", "\r\n"])
def test_txt_documents(tmp_path: Path, end: str) -> None:
    text = "\n \nTitle\nA line. \n  Another.\n\n\nSecond\n \t\u3000\nThird\n\u3000\n"
    (tmp_path / "a.txt").write_bytes(("\ufeff" + text.replace("\n", end)).encode())
    assert list(read_documents(tmp_path / "a.txt")) == ["Title\nA line. \n  Another.", "Second", "Third"]
    lines = ["Title", "A line.", "Another.", "Second", "Third"]
    assert list(read_documents(tmp_path / "a.txt", each="lines")) == lines


LETTERS = st.text(st.sampled_from("ab北é \t\n\r\u3000"), max_size=60)


def documents_of(text: str, each: Each) -> list[str]:
    """What the documents are, said in another way: line by line."""
    found: list[list[str]] = [[]]
    for line in re.sub(r"\r+\n", "\n", text).split("\n"):
        if line.strip():
            found[-1].append(line)
        if not line.strip() or each == "lines":
            found.append([])
    return ["\n".join(lines).strip() for lines in found if lines]


@given(text=LETTERS, each=st.sampled_from(["paragraphs", "lines"]), longest=st.integers(1, 12), block=st.integers(1, 9))
@settings(max_examples=400)
@example(text="a\r\r\na", each="paragraphs", longest=9, block=1)
@example(text="a\r\r\na", each="paragraphs", longest=9, block=9)
@example(text="aaaa\n a", each="lines", longest=1, block=4)
@example(text="aaaa\n\nbbbb", each="paragraphs", longest=4, block=5)
@example(text="aaaa\r\n\r\nbbbb\r\ncc", each="paragraphs", longest=5, block=1)
@example(text="a\n" + " " * 30 + "\nb", each="paragraphs", longest=3, block=4)
def test_documents_whatever_the_blocks_and_the_limit(
    text: str, each: Each, longest: int, block: int, tmp_path_factory: pytest.TempPathFactory
) -> None:
    path = tmp_path_factory.getbasetemp() / "property.txt"
    path.write_bytes(text.encode())
    if "\n" not in text:  # carriage returns alone end lines
        text = text.replace("\r", "\n")
    with pytest.MonkeyPatch.context() as patch, warnings.catch_warnings():
        warnings.simplefilter("ignore")
        patch.setattr(files, "read_blocks", lambda path, meter, size: streams.read_blocks(path, meter, block))
        whole = list(read_documents(path, each=each))
        meter = Meter()
        parts = list(read_documents(path, each=each, longest=longest, meter=meter))
    assert whole == documents_of(text, each)
    assert all(part and part == part.strip() and len(part) <= longest for part in parts)
    expected = [files._parts(document, longest) for document in whole]
    assert parts == [part for some in expected for part in some]
    assert ["".join("".join(some).split()) for some in expected] == ["".join(document.split()) for document in whole]
    assert meter.split == sum(len(document) > longest for document in whole)


@pytest.mark.parametrize(
    ("text", "parts"),
    [
        ("aaa\nbbb\nccc", ["aaa\nbbb", "ccc"]),
        ("aaa bb\nccccc", ["aaa bb", "ccccc"]),
        ("aaaa bb cc", ["aaaa bb", "cc"]),
        ("aaaaaaaa", ["aaaaaaa", "a"]),
        ("aaaaaaa bbb", ["aaaaaaa", "bbb"]),
        ("a\nbbbbbbbbbb cc", ["a", "bbbbbbb", "bbb cc"]),
        ("北京北京北京\u3000北京", ["北京北京北京", "北京"]),
    ],
)
@pytest.mark.parametrize("name", ["a.txt", "a.jsonl"])
def test_too_long_documents_come_in_parts(tmp_path: Path, name: str, text: str, parts: list[str]) -> None:
    path = tmp_path / name
    path.write_text(text + "\n\nshort" if name == "a.txt" else f'{json.dumps(text)}\n"short"', encoding="utf-8")
    meter = Meter()
    assert list(read_documents(path, longest=7, meter=meter)) == [*parts, "short"]
    assert meter.split == 1


def test_standard_input(tmp_path: Path) -> None:
    script = "import os, sys, pathlib\nfrom bothways.text.files import *\nm = Meter()\n"
    script += (
        "print(list(globals()[sys.argv[1]](pathlib.Path('-'), meter=m)), m.bytes)\nos.fstat(0)"  # it is still open
    )
    for name, expected in {"read_texts": ["a", "b", "", "京"], "read_documents": ["a\nb", "京"]}.items():
        done = subprocess.run([sys.executable, "-X", "utf8", "-W", "error", "-c", script, name], input="a\nb\n\n京\n".encode(), capture_output=True, check=True)  # fmt: skip
        assert done.stdout.decode() == f"{expected} 9\n"


def test_lines_come_as_soon_as_they_are_there() -> None:
    """Somebody who types gets an answer to each line."""
    script = "import pathlib\nfrom bothways.text.files import read_texts\nfor text in read_texts(pathlib.Path('-')): print(text.upper(), flush=True)"
    with subprocess.Popen([sys.executable, "-c", script], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdin
        assert process.stdout
        for word in (b"one\n", b"two\n"):
            process.stdin.write(word)
            process.stdin.flush()
            assert process.stdout.readline() == word.upper()


def peak(action: Callable[[], Any]) -> int:
    tracemalloc.start()
    action()
    highest = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    return highest


@pytest.mark.slow
@pytest.mark.parametrize(
    "name", ["a.txt", "a.txt.gz", "a.jsonl", "a.csv.gz", "a.tsv", "one-line.txt", "one-document.txt"]
)
def test_memory_does_not_grow_with_the_file(tmp_path: Path, name: str) -> None:
    path = tmp_path / name
    if name == "one-line.txt":
        path.write_text("word " * 800_000)
    elif name == "one-document.txt":
        path.write_text("a rather long line of words\n" * 140_000)
    elif ".txt" in name:
        text = b"some more words\nthan three in a document\n\n" * 90_000
        path.write_bytes(gzip.compress(text, 1) if ".gz" in name else text)
    else:
        write_rows(path, ["some words in a row " * 20] * 10_000)
    meter = Meter()
    assert peak(lambda: sum(1 for _ in read_documents(path, field="body", longest=10_000, meter=meter))) < 1_000_000
    assert meter.split == name.startswith("one")
    if not name.startswith("one-line"):
        assert peak(lambda: sum(1 for _ in read_texts(path, "body"))) < 1_000_000


def test_memory_does_not_grow_with_a_row_group(tmp_path: Path) -> None:
    rows = [os.urandom(500).hex() for _ in range(20_000)]
    pq.write_table(pa.table({"text": rows}), tmp_path / "a.parquet", use_dictionary=False)
    held = pa.total_allocated_bytes()
    highest = max(pa.total_allocated_bytes() - held for _ in read_documents(tmp_path / "a.parquet"))
    assert highest < 6_000_000  # of 20 MB


def test_parquet_types(tmp_path: Path) -> None:
    path = tmp_path / "a.parquet"
    words = ["a", None, "b"] * 50
    for kind in (pa.string(), pa.large_string(), pa.dictionary(pa.int32(), pa.string())):
        pq.write_table(pa.table({"text": pa.array(words, kind)}), path)
        assert list(read_texts(path)) == ["a", "", "b"] * 50
        assert list(read_documents(path)) == ["a", "b"] * 50
    pq.write_table(pa.table({"text": pa.array([], pa.string())}), path)
    assert list(read_texts(path)) == []
    for values in ([None, 5], [b"a"], [["a"]]):
        pq.write_table(pa.table({"text": values}), path)
        with refused("not-text", f"{path}, row {len(values)}"):
            list(read_texts(path))


@pytest.mark.parametrize("name", ["a.csv", "a.tsv"])
def test_tables_as_they_are(tmp_path: Path, name: str) -> None:
    """With a mark at the start, old line ends, empty lines, and no line end at the end."""
    tab = "," if name == "a.csv" else "\t"
    path = tmp_path / name
    path.write_bytes(f"\ufefftext{tab}id\r\n\r\none{tab}1\r\n\n{tab}2\r\ntw\u2028o{tab}3".encode())
    assert list(read_texts(path)) == ["one", "", "tw\u2028o"]


def test_quotes(tmp_path: Path) -> None:
    """Of .csv they belong to the format; of .tsv, as of GLUE's files, to the text."""
    (tmp_path / "a.csv").write_bytes(b'text,id\n"a ""b"", c\r\nd",1\nit is 5" long,2\n')
    assert list(read_texts(tmp_path / "a.csv")) == ['a "b", c\r\nd', 'it is 5" long']
    (tmp_path / "a.tsv").write_text('text\tid\n"a ""b\t1\nit is 5" long\t2\n"\t3\n')
    assert list(read_texts(tmp_path / "a.tsv")) == ['"a ""b', 'it is 5" long', '"']


def test_lone_surrogates_are_replaced(tmp_path: Path) -> None:
    (tmp_path / "a.jsonl").write_text('{"text": "\\ud800 京 \\ud83d\\ude00"}')
    assert list(read_texts(tmp_path / "a.jsonl")) == ["\ufffd 京 😀"]
    assert replace_surrogates("é\udfff\ud800") == "é\ufffd\ufffd"


BAD: dict[str, tuple[str, bytes, str, str]] = {
    "a damaged byte": ("a.txt", "ok\n好的\n不\n".encode() + b"\xff\nok", "not-utf8", "{path}, line 4"),
    "latin, far": ("a.txt", b"ok\n" * 300_000 + b"\xff", "not-utf8", "{path}, line 300001"),
    "cut inside a character": ("a.txt", b"ok\n\xe5\x8c", "not-utf8", "{path}, line 2"),
    "damaged rows": ("a.csv", "text,id\n水果,1\n".encode() + b"a\xff,2\n", "not-utf8", "{path}, line 3"),
    "cut gz": ("a.jsonl.gz", gzip.compress(b'{"text": "a"}\n' * 1000)[:-20], "damaged-file", "{path}"),
    "cut xz": ("a.csv.xz", lzma.compress(b"text\na\n" * 1000)[:-20], "damaged-file", "{path}"),
    "no gz": ("a.txt.gz", b"text", "damaged-file", "{path}"),
    "no json": ("a.ndjson", b'{"text": "a"}\n\n{"text\n', "not-json", "{path}, line 3"),
    "no field": ("a.jsonl", b'{"text": "a"}\n{"body": "a", "id": 5}\n', "not-text", "{path}, line 2"),
    "no usual field": ("a.jsonl", b'{"id": 5, "url": "a"}\n', "no-text-column", "('id', 'url')"),
    "no fields": ("a.jsonl", b"5\n", "not-text", "{path}, line 1"),
    "no column": ("a.csv", b"id,url\n1,a\n", "no-text-column", "('id', 'url')"),
    "no tsv column": ("a.tsv", b"id\turl\n1\ta\n", "no-text-column", "('id', 'url')"),
    "two texts": ("a.csv", b"review,body\na,b\n", "ambiguous-column", "('review', 'body')"),
    "a pair": ("a.csv", b"premise,hypothesis\na,b\n", "ambiguous-column", "('premise', 'hypothesis')"),
    "no header": ("a.csv", b"", "empty-file", "{path}"),
    "too few cells": ("a.csv", b"id,text\n1,a\n2\n", "wrong-cell-count", "{path}, line 3"),
    "too many cells": ("a.tsv", b"id\ttext\n\n1\ta\tb\n", "wrong-cell-count", "{path}, line 3"),
    "an open quote": ("a.csv", b'text,id\n"a,1\nb,2\n', "not-csv", "{path}, line 3"),
    "a stray quote": ("a.csv", b'text,id\n"a"b,1\n', "not-csv", "{path}, line 2"),
    "a huge cell": ("a.csv", b'text,id\n"' + (b"a" * 1023 + b"\n") * 2**14 + b"a", "not-csv", "{path}, line 8194"),
    "no parquet": ("a.parquet", b"text", "damaged-file", "{path}"),
    "no bytes": ("a.parquet", b"", "damaged-file", "{path}"),
    "unknown": ("a.docx", b"", "unknown-file-kind", "{path}"),
    "unknown, packed": ("a.gz", b"", "unknown-file-kind", "{path}"),
    "packed parquet": ("a.parquet.gz", b"", "unknown-file-kind", "{path}"),
    "no kind": ("a", b"", "unknown-file-kind", "{path}"),
}  # fmt: skip


@pytest.mark.parametrize("what", BAD)
def test_bad_files_get_one_sentence_that_names_the_place(tmp_path: Path, what: str) -> None:
    name, content, code, value = BAD[what]
    (tmp_path / name).write_bytes(content)
    for read in (read_texts, read_documents):
        with pytest.raises(BothwaysError) as caught:
            list(read(tmp_path / name))
        assert (caught.value.code, str(caught.value.value)) == (code, value.format(path=tmp_path / name))
        assert str(caught.value).startswith(str(tmp_path / name))
        assert "\n" not in str(caught.value)


def test_damaged_parquet(tmp_path: Path) -> None:
    path = tmp_path / "a.parquet"
    pq.write_table(
        pa.table({"text": [os.urandom(50).hex() for _ in range(300)]}), path, row_group_size=100, compression="gzip"
    )
    with refused("no-column", "body"):
        list(read_texts(path, "body"))
    whole = path.read_bytes()
    place = pq.ParquetFile(path).metadata.row_group(1).column(0).data_page_offset
    path.write_bytes(whole[: place + 20] + b"\xff" * 2000 + whole[place + 2020 :])
    stream = read_texts(path)
    assert len(list(itertools.islice(stream, 64))) == 64
    with refused("damaged-file", path):
        list(stream)
    path.write_bytes(whole[:-9])
    with refused("damaged-file", path):
        list(read_texts(path))


def test_parquet_that_is_not_utf_8(tmp_path: Path) -> None:
    wrong = pa.array([b"caf\xe9"]).cast(pa.string(), safe=False)
    pq.write_table(pa.table({"text": wrong}), tmp_path / "a.parquet")
    with refused("damaged-file", tmp_path / "a.parquet"):
        list(read_texts(tmp_path / "a.parquet"))


def test_unreadable_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with refused("unreadable-file", tmp_path / "none.txt"):
        list(read_texts(tmp_path / "none.txt"))
    with refused("damaged-file", tmp_path / "none.parquet"):
        list(read_texts(tmp_path / "none.parquet"))
    monkeypatch.setattr(sys, "stdin", None)
    with refused("no-input"):
        list(read_documents(STDIN))


def test_without_pyarrow(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = write_rows(tmp_path / "a.parquet", ["a"])
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    for fails in (lambda: list(read_texts(path)), lambda: find_files([path])):
        with refused("missing-package", "pyarrow"):
            fails()


def test_bad_requests() -> None:
    with refused("unknown-choice", "words"):
        list(read_documents(STDIN, each="words"))  # type: ignore[arg-type]
    with refused("out-of-range", 0):
        list(read_documents(STDIN, longest=0))


@pytest.fixture
def library(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    for name in ("b.txt", "a.jsonl.gz", "c/d/e.csv", "c/[x].txt", "README.md", ".hidden.txt", ".git/f.txt", "c/.g/h.txt", "empty/no.md", "z.txt/i.tsv"):  # fmt: skip
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text("text")
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.mark.filterwarnings("ignore:.* of another kind")
@pytest.mark.parametrize(
    ("asked", "found"),
    [
        (["b.txt"], ["b.txt"]),
        (["."], ["a.jsonl.gz", "b.txt", "c/[x].txt", "c/d/e.csv", "z.txt/i.tsv"]),
        (["c"], ["c/[x].txt", "c/d/e.csv"]),
        (["c/d/e.csv", "b.txt", "c"], ["c/d/e.csv", "b.txt", "c/[x].txt"]),
        (["*.txt"], ["b.txt", "z.txt/i.tsv"]),
        (["*"], ["a.jsonl.gz", "b.txt", "c/[x].txt", "c/d/e.csv", "z.txt/i.tsv"]),
        (["**/*.csv"], ["c/d/e.csv"]),
        (["**"], ["a.jsonl.gz", "b.txt", "c/[x].txt", "c/d/e.csv", "z.txt/i.tsv"]),
        (["?.txt", "[a-b].*"], ["b.txt", "z.txt/i.tsv", "a.jsonl.gz"]),
        (["c/[x].txt"], ["c/[x].txt"]),
        (["-", "b.txt", "-"], ["-", "b.txt"]),
        (["b.txt", "./c/../b.txt"], ["b.txt"]),
        ([".git/f.txt"], [".git/f.txt"]),
        ([".git"], [".git/f.txt"]),
    ],
)
def test_find_files(library: Path, asked: list[str], found: list[str]) -> None:
    assert find_files(asked) == [Path(name) for name in found]
    assert find_files(map(Path, asked)) == [Path(name) for name in found]
    kinds = (".txt", ".jsonl", ".csv", ".tsv")
    assert find_sources(asked, kinds) == find_sources(map(Path, asked), kinds) == [Path(name) for name in found]


@pytest.mark.parametrize(
    ("asked", "code", "value"),
    [
        ([], "no-input", None),
        (["none.txt"], "no-file", Path("none.txt")),
        (["b.txt", "README.md"], "unknown-file-kind", Path("README.md")),
        (["empty"], "no-known-files", Path("empty")),
        (["c", "*.md"], "no-known-files", Path("*.md")),
        (["none/**/*.txt"], "no-file", Path("none/**/*.txt")),
    ],
)
def test_what_is_not_found_is_refused(library: Path, asked: list[str], code: str, value: Path | None) -> None:
    with refused(code, value):
        find_files(asked)
    if code != "unknown-file-kind":  # which the reader of labelled data says
        with refused(code, value):
            find_sources(asked, (".txt", ".csv"))


@pytest.mark.parametrize(
    ("files", "named"),
    [(["a.csv", "a.csv"], "a"), (["./a.csv", "*.csv"], "a"), (["[ab].csv"], "data"), (["link.csv", "a.csv"], "link")],
)
def test_labelled_files_named_twice_are_read_once(
    files: list[str], named: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("a.csv").write_text("text,label\none,x\ntwo,y\n")
    if "link.csv" in files:
        Path("link.csv").symlink_to("a.csv")
    assert [example.texts for example in read_texts_labelled(files)] == [("one",), ("two",)]
    recipe = FinetuneRecipe(data=FinetuneData(train=tuple(files)))
    assert len(_given(recipe, None, "", recipe.data.train, lambda words: None, watch_nothing, {})) == 2
    report = check_data(files)
    assert report.rows == 2
    assert report.command.endswith(f" --out {named}-classify")
    assert [one.texts for one in read_texts_labelled("*.csv")] == [("one",), ("two",)]


def test_the_words_of_several_files(tmp_path: Path) -> None:
    """Patterns of documents whose words tagging reads."""
    for name in ("b.txt", "a.txt"):
        (tmp_path / name).write_text(f"{name[0]} cat\n")
    read = TASKS["tag"].read_inputs(f"{tmp_path}/*.txt", Columns(), Notes())
    assert [example.text for example in read] == ["a cat", "b cat"]


def test_files_of_other_kinds_in_a_folder_are_counted(tmp_path: Path) -> None:
    for name in ("a.txt", "b.md", "c.html", "d.md", ".hidden.md", "sub/e.htm", "notes"):
        (tmp_path / "in" / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "in" / name).write_text("a text\n", encoding="utf-8")
    says = r"5 files are of another kind in .* and not read: \.md 2, \.html 1, notes 1, \.htm 1"
    with pytest.warns(UserWarning, match=says):
        assert [file.name for file in find_files([tmp_path / "in"])] == ["a.txt"]
    with pytest.warns(UserWarning, match=says):
        assert [one.texts for one in read_texts_labelled(tmp_path / "in")] == [("a text",)]
    for name in ("b.md", "c.html", "d.md", "sub/e.htm", "notes"):
        (tmp_path / "in" / name).unlink()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert find_files([tmp_path / "in"])


def test_null_is_no_text(tmp_path: Path) -> None:
    (tmp_path / "a.jsonl").write_text('{"text": ""}\n{"text": null}\n', encoding="utf-8")
    with refused("null-text", f"{tmp_path / 'a.jsonl'}, line 2"):
        list(read_texts(tmp_path / "a.jsonl"))
