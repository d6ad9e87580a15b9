"""Reads texts and documents: .txt, .jsonl, .csv, .tsv, plain or .gz / .xz, .parquet, and standard input.

Everything streams in constant memory.
"""

import csv
import glob
import itertools
import json
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any, Literal, get_args

from bothways.errors import BothwaysError, require_choice
from bothways.text.streams import COMPRESSED, note_place, peek_stdin, read_blocks, read_whole_lines
from bothways.text.streams import STDIN as STDIN
from bothways.text.streams import Meter as Meter
from bothways.text.streams import name_of as name_of
from bothways.text.streams import read_lines as read_lines

Each = Literal["paragraphs", "lines"]
"""The documents of .txt: the lines up to an empty one, or each line."""

_SPLIT: dict[Each, Callable[[str], list[Any]]] = {
    "paragraphs": re.compile(r"\n\s*\n").split,
    "lines": partial(str.split, sep="\n"),
}
_LARGEST_CELL = 2**24  # characters; without a limit, an unclosed quote would fill the memory
_RETURNS = re.compile(r"(?<!\r)\r++\n")
_QUOTED = re.compile(r'"[^"]*(?:"|$)')
_SURROGATES = re.compile("[\ud800-\udfff]")


def find_files(paths: Iterable[Path | str]) -> list[Path]:
    """Every file that these paths stand for: files, folders, and patterns such as `books/**/*.gz`.

    Folders and patterns give their files of a known kind, sorted, without hidden ones; a file named twice comes once.
    `-` is standard input.
    """
    found: dict[Path, Path] = {}
    for path in map(Path, paths):
        some = [path]
        if path != STDIN and path.is_dir():
            some = _known_files(path)
        elif path != STDIN and not path.exists() and glob.has_magic(str(path)):
            matches = [Path(name) for name in glob.glob(str(path), recursive=True)]
            files = [file for match in matches for file in (_known_files(match) if match.is_dir() else [match])]
            some = sorted(file for file in files if _kind(file))
        if not some:
            raise BothwaysError(
                f"there is no file of a known kind in {path}: expected {_known()}", "no-known-files", path
            )
        for file in some:
            found.setdefault(file.resolve(), file)
    return require_files(found.values())


def no_text(files: Sequence[Path | str]) -> BothwaysError:
    """The error for files without any text."""
    return BothwaysError(f"no text was found in {', '.join(map(str, files))}", "no-text", tuple(files))


def find_rereadable(files: Sequence[Path | str]) -> list[Path]:
    """Every file that these names stand for, as in `find_files`; standard input is refused."""
    found = find_files(files)
    if STDIN in found:
        raise BothwaysError(
            "this needs several readings of the text, and standard input allows one: put it into a file", "stdin-once"
        )
    return found


def require_files(paths: Iterable[Path]) -> list[Path]:
    """The same paths, after a check that each exists and is of a known kind, so that a long job fails at once."""
    found = list(paths)
    if not found:
        raise BothwaysError("no input file was given", "no-input")
    for path in found:
        if path == STDIN:
            continue
        if path.is_dir():
            raise BothwaysError(
                f"{path} is a folder: name the files in it, for example {path}/*.txt", "is-a-folder", path
            )
        if not path.exists():
            raise BothwaysError(f"there is no file {path}", "no-file", path)
        if _require_kind(path) == ".parquet":
            _pyarrow()
    return found


def read_texts(path: Path, field: str = "text", meter: Meter | None = None) -> Iterator[str]:
    """Stream the texts of a file: the lines of .txt, or `field` of each row of all other kinds.

    Empty lines of .txt are empty texts, so that results can be matched to lines; those of .jsonl, .csv and .tsv are
    skipped. A missing value of .parquet is an empty text. `-` is standard input: .jsonl if it begins with a brace, else
    .txt.
    """
    rows = _ROWS.get(_require_kind(path))
    yield from rows(path, field, meter or Meter()) if rows else read_lines(path, meter)


def read_documents(
    path: Path,
    *,
    field: str = "text",
    each: Each = "paragraphs",
    longest: int = 1_000_000,
    meter: Meter | None = None,
) -> Iterator[str]:
    """Stream the documents of a file, each one string with "\\n" between its paragraphs; empty ones are skipped.

    In .txt an empty line ends a document, as in BERT's own data, or every line does: see `each`. In other kinds every
    row is a document. White space around a document is dropped. A document of more than `longest` characters is split
    at a line end, else at white space, else anywhere; `meter.split` counts these documents.
    """
    require_choice("each", each, get_args(Each))
    if longest < 1:
        raise BothwaysError(
            f"a document must have room for 1 or more characters, not {longest}", "out-of-range", longest
        )
    meter = meter or Meter()
    rows = _ROWS.get(_require_kind(path))
    if rows is None:
        yield from _txt_documents(path, each, longest, meter)
        return
    for text in rows(path, field, meter):
        parts = _parts(text, longest)
        meter.split += len(parts) > 1
        yield from parts


def _txt_documents(path: Path, each: Each, longest: int, meter: Meter) -> Iterator[str]:
    split = _SPLIT[each]
    rest, given = "", 0  # the start of an unfinished document, and the number of its parts already yielded
    # The blocks are large, because an unfinished document is searched again with each block.
    for block in read_blocks(path, meter, max(2**15, longest // 4)):
        text = rest + block
        *documents, rest = split(_RETURNS.sub("\n", text) if "\r" in text else text)
        for document in documents:
            if given or len(document) > longest:
                parts = _parts(document, longest)
                meter.split += given + len(parts) > 1
                yield from parts
                given = 0
            elif document := document.strip():  # a fast path: 1.4 × as fast where every line is a document
                yield document
        if not given:
            rest = rest.lstrip()
        if len(rest) > longest:
            # White space at the end is kept: it may be the start of an empty line.
            body = rest.rstrip()
            *parts, last = _cut(body, longest)
            given += len(parts)
            rest = last + rest[len(body) :]
            yield from parts
    parts = _parts(rest, longest)
    meter.split += given + len(parts) > 1
    yield from parts


def _parts(text: str, longest: int) -> list[str]:
    """The parts of a document, each of at most `longest` characters; none if it is empty."""
    text = text.strip()
    if len(text) <= longest:
        return [text] if text else []
    return _cut(text, longest)


def _cut(text: str, longest: int) -> list[str]:
    """Split a stripped text into stripped pieces of at most `longest` characters."""
    pieces, start = [], 0
    while len(text) - start > longest:
        head = text[start : start + longest + 1]
        end = head.rfind("\n")
        if end < 0:
            words = head.rsplit(maxsplit=1)
            end = len(words[0]) if len(words) == 2 and not head[-1].isspace() else longest
        pieces.append(head[:end].rstrip())
        start += end
        while text[start].isspace():
            start += 1
    return [*pieces, text[start:]]


def replace_surrogates(text: str) -> str:
    """The text with U+FFFD for each lone surrogate: JSON can hold one, but it is not valid Unicode."""
    return text if text.isascii() else _SURROGATES.sub("\ufffd", text)


def parse_jsonl(path: Path, lines: Iterable[str]) -> Iterator[tuple[int, Any]]:
    """The JSON value of each line, with the line number; empty lines are skipped."""
    for number, line in enumerate(lines, 1):
        if not line.strip():
            continue
        try:
            yield number, json.loads(line)
        except (ValueError, RecursionError) as error:
            where = f"{name_of(path)}, line {number}"
            raise BothwaysError(f"{where} is not JSON: {error}", "not-json", where) from error


def find_separator(header: str) -> str:
    """The separator of a .csv file: a comma, unless there are more semicolons or tabs outside of quotes.

    >>> find_separator("text,label"), find_separator("text;label"), find_separator('"a; b; c",label')
    (',', ';', ',')
    """
    unquoted = _QUOTED.sub("", header)
    return max(",;\t", key=unquoted.count)


def parse_csv(path: Path, lines: Iterable[str], separator: str = ",") -> Iterator[tuple[int, list[str]]]:
    """The cells of each row, with the number of its last line. A quoted cell may contain line ends."""
    csv.field_size_limit(max(csv.field_size_limit(), _LARGEST_CELL))
    rows = csv.reader((line + "\n" for line in lines), delimiter=separator, strict=True)
    try:
        for row in rows:
            if row:
                yield rows.line_num, row
    except csv.Error as error:
        where = f"{name_of(path)}, line {rows.line_num}"
        hint = "is a quote before it not closed, or not doubled?"
        raise BothwaysError(f"{where} is not CSV: {error}; {hint}", "not-csv", where) from error


def parse_tsv(path: Path, lines: Iterable[str]) -> Iterator[tuple[int, list[str]]]:
    """The cells of each line, without quoting: in .tsv files such as GLUE's, quotes are text."""
    for number, line in enumerate(lines, 1):
        if line := line.removesuffix("\r"):
            yield number, line.split("\t")


def read_parquet(path: Path) -> Iterator[tuple[int, dict[str, Any]]]:
    """The rows of a .parquet file with all columns, numbered from 1."""
    rows = (row for _, rows in _batches(path, None, Meter()) for row in rows)
    return enumerate(rows, 1)


def _batches(path: Path, columns: list[str] | None, meter: Meter) -> Iterator[tuple[Any, list[dict[str, Any]]]]:
    """The batches of a .parquet file with their rows, of these columns or of all."""
    pyarrow = _pyarrow()
    done, before = 0, meter.bytes
    note_place(path, 0)
    try:
        # Read page by page: 5 MB in memory for a row group of 400 MB, instead of all of it.
        with pyarrow.parquet.ParquetFile(path, buffer_size=2**20, pre_buffer=False) as file:
            for column in columns or []:
                _require_column(path, column, file.schema_arrow.names)
            count, size = file.metadata.num_rows, path.stat().st_size
            for batch in file.iter_batches(batch_size=64, columns=columns, use_threads=False):
                yield batch, batch.to_pylist()
                done += len(batch)
                place = size * done // count  # estimated from the share of rows: other columns are not read
                meter.bytes = before + place
                note_place(path, place)
    except (pyarrow.ArrowException, OSError, UnicodeDecodeError) as error:
        reason = str(error).partition("\n")[0]
        raise BothwaysError(
            f"{path} cannot be read as .parquet after row {done}: {reason}", "damaged-file", path
        ) from error


def _jsonl(path: Path, field: str, meter: Meter) -> Iterator[str]:
    for number, row in parse_jsonl(path, read_whole_lines(path, meter)):
        value = row if isinstance(row, str) else row.get(field) if isinstance(row, dict) else None
        if (
            value is None and isinstance(row, dict) and field in row
        ):  # null is an empty text, as an empty cell of a table
            value = ""
        if not isinstance(value, str):
            where = f"{name_of(path)}, line {number}"
            if isinstance(row, dict) and field in row:
                raise BothwaysError(
                    f"{where} has {str(value)[:80]} under {field!r}: expected a text", "not-text", where
                )
            has = ", ".join(map(str, row)) if isinstance(row, dict) and row else "none"
            raise BothwaysError(f"{where} has no text under {field!r}: its fields are {has}", "not-text", where)
        yield replace_surrogates(value)


def _csv(path: Path, field: str, meter: Meter) -> Iterator[str]:
    lines = read_whole_lines(path, meter)
    header = next(lines, "")
    return _column(path, field, parse_csv(path, itertools.chain([header], lines), find_separator(header)))


def _tsv(path: Path, field: str, meter: Meter) -> Iterator[str]:
    return _column(path, field, parse_tsv(path, read_whole_lines(path, meter)))


def _column(path: Path, field: str, rows: Iterator[tuple[int, list[str]]]) -> Iterator[str]:
    """One column of a table with a header."""
    _, header = next(rows, (0, list[str]()))
    _require_column(path, field, header)
    column = header.index(field)
    for number, row in rows:
        if len(row) != len(header):
            where = f"{path}, line {number}"
            raise BothwaysError(
                f"{where} has {len(row)} columns, and its first line names {len(header)}", "wrong-cell-count", where
            )
        yield row[column]


def _parquet(path: Path, field: str, meter: Meter) -> Iterator[str]:
    for batch, rows in _batches(path, [field], meter):
        for row in rows:
            text = row[field]
            if not isinstance(text, str | None):
                raise BothwaysError(
                    f"{path} has no text in column {field!r}: found {batch.schema[0].type}", "not-text", field
                )
            yield text or ""


_ROWS: dict[str, Callable[[Path, str, Meter], Iterator[str]]] = {
    ".jsonl": _jsonl,
    ".ndjson": _jsonl,
    ".csv": _csv,
    ".tsv": _tsv,
    ".parquet": _parquet,
}


def _require_column(path: Path, field: str, names: list[str]) -> None:
    if field not in names:
        raise BothwaysError(
            f"{path} has no column {field!r}: its columns are {', '.join(names) or 'none'}", "no-column", field
        )


def _pyarrow() -> Any:
    try:
        import pyarrow.parquet
    except ImportError:
        raise BothwaysError(
            "reading .parquet needs pyarrow: pip install 'bothways[parquet]'", "missing-package", "pyarrow"
        ) from None
    return pyarrow


def visible_files(folder: Path) -> list[Path]:
    """The files in a folder and its subfolders, sorted, without hidden ones."""
    files = (file for file in folder.rglob("*") if file.is_file())
    return sorted(file for file in files if not any(p.startswith(".") for p in file.relative_to(folder).parts))


def _known_files(folder: Path) -> list[Path]:
    return [file for file in visible_files(folder) if _kind(file)]


def _kind(path: Path) -> str:
    """.txt, .jsonl and so on, without the suffix of a compression; empty for an unknown kind."""
    if path == STDIN:
        return ".jsonl" if peek_stdin().startswith("{") else ".txt"
    suffixes = [s.lower() for s in path.suffixes]
    if suffixes and suffixes[-1] in COMPRESSED and ".parquet" not in suffixes[-2:]:
        suffixes.pop()
    kind = suffixes[-1] if suffixes else ""
    return kind if kind == ".txt" or kind in _ROWS else ""


def _require_kind(path: Path) -> str:
    kind = _kind(path)
    if not kind:
        raise BothwaysError(f"{path} is not of a known kind: expected {_known()}", "unknown-file-kind", path)
    return kind


def _known() -> str:
    *texts, parquet = [".txt", *_ROWS]
    return f"{', '.join(texts)}, each optionally .gz or .xz, or {parquet}"
