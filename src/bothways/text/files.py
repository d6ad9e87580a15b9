"""Reads texts and documents: .txt, .jsonl, tables of every kind, saved data sets, and standard input.

Everything streams in constant memory.
"""

import glob
import re
import warnings
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any, Literal, get_args

from bothways.errors import BothwaysError, name_list, require_choice
from bothways.text.arrow import dataset_folder, pyarrow
from bothways.text.columns import Columns, find_text, names_without_header
from bothways.text.excel import require_openpyxl
from bothways.text.frames import is_frame
from bothways.text.long_text import LongText
from bothways.text.streams import COMPRESSED, peek_stdin, read_any_lines, read_blocks, read_whole_lines
from bothways.text.streams import STDIN as STDIN
from bothways.text.streams import Meter as Meter
from bothways.text.streams import name_of as name_of
from bothways.text.streams import read_lines as read_lines
from bothways.text.tables import BINARY, TABLES, WITH_HEADER, Strict, kind_of, parse_jsonl, table_rows

Each = Literal["paragraphs", "lines"]
"""The documents of .txt: the lines up to an empty one, or each line."""

_SPLIT: dict[Each, Callable[[str], list[Any]]] = {
    "paragraphs": re.compile(r"\n\s*\n").split,
    "lines": partial(str.split, sep="\n"),
}
_RETURNS = re.compile(r"(?<!\r)\r++\n")
_SURROGATES = re.compile("[\ud800-\udfff]")
_JSON_LINES = (".jsonl", ".ndjson")
_KINDS = (".txt", *_JSON_LINES, *TABLES)
_KINDS_NAMED = 5


def find_files(paths: Iterable[Path | str]) -> list[Path]:
    """Every file that these paths stand for: files, folders, and patterns such as `books/**/*.gz`.

    Folders and patterns give their files of a known kind, sorted, without hidden ones; a file named twice comes once.
    `-` is standard input.
    """
    found: list[Path] = []
    for path in map(Path, paths):
        some = [path]
        if path != STDIN and path.is_dir() and not dataset_folder(path):
            some = _known_files(path)
        elif is_pattern(path):
            some = files_of_pattern(path, _kind)
        if not some:
            raise no_known_files(path, _known())
        found += some
    return require_files(each_once(found))


def is_pattern(path: Path) -> bool:
    """Whether this is a pattern such as `books/**/*.gz`: a file or folder of that very name comes first."""
    return path != STDIN and glob.has_magic(str(path)) and not path.exists()


def no_known_files(path: Path, kinds: str) -> BothwaysError:
    """The error for a folder or pattern without a file that can be read."""
    if path.is_dir() or any(glob.iglob(str(path), recursive=True)):
        return BothwaysError(f"there is no file of a known kind in {path}: expected {kinds}", "no-known-files", path)
    return BothwaysError(f"no file matches {path}", "no-file", path)


def files_of_pattern(pattern: Path, is_known: Callable[[Path], object]) -> list[Path]:
    """The files of a known kind that a pattern describes, and those in the folders that it describes, sorted."""
    matches = [Path(name) for name in glob.glob(str(pattern), recursive=True)]
    files = [file for match in matches for file in (files_of_kinds(match, is_known) if match.is_dir() else [match])]
    return sorted({file for file in files if is_known(file)})


def each_once(files: Iterable[Path]) -> list[Path]:
    """The files in order, without those that came already, maybe by another name such as ./a.txt or a link."""
    found: dict[Path, Path] = {}
    for file in files:
        found.setdefault(file.resolve(), file)
    return list(found.values())


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
        if path == STDIN or is_frame(path):
            continue
        if path.is_dir() and not dataset_folder(path):
            raise BothwaysError(
                f"{path} is a folder: name the files in it, for example {path}/*.txt", "is-a-folder", path
            )
        if not path.exists():
            raise BothwaysError(f"there is no file {path}", "no-file", path)
        if (kind := _require_kind(path)) in BINARY:
            (require_openpyxl if kind == ".xlsx" else pyarrow)()
    return found


def read_texts(path: Path, field: str | None = None, meter: Meter | None = None) -> Iterator[str]:
    """Stream the texts of a file: the lines of .txt, or one column of the rows of all other kinds.

    The column is `field`, or the one with a usual name, such as text or review; `title+body` joins two.

    Empty lines of .txt are empty texts, so that results can be matched to lines; those of .jsonl, .csv and .tsv are
    skipped. A missing value of .parquet is an empty text. `-` is standard input: .jsonl if it begins with a brace, else
    .txt.
    """
    kind = _require_kind(path)
    yield from read_lines(path, meter) if kind == ".txt" else _row_texts(path, kind, field, meter or Meter())


def read_any_texts(path: Path, field: str | None = None, meter: Meter | None = None) -> Iterator[str | LongText]:
    """As `read_texts`, with lines of .txt of any length."""
    yield from read_any_lines(path, meter) if _require_kind(path) == ".txt" else read_texts(path, field, meter)


def read_documents(
    path: Path,
    *,
    field: str | None = None,
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
    kind = _require_kind(path)
    if kind == ".txt":
        yield from _txt_documents(path, each, longest, meter)
        return
    for text in _row_texts(path, kind, field, meter):
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
            *parts, last = cut_text(body, longest)
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
    return cut_text(text, longest)


def cut_text(text: str, longest: int) -> list[str]:
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


def _row_texts(path: Path, kind: str, text: str | None, meter: Meter) -> Iterator[str]:
    """The text of each row: the column that `text` names, or that of the first row with a usual name."""
    column = _Column(name_of(path), text, kind)
    if kind in _JSON_LINES:
        for number, value in parse_jsonl(path, read_whole_lines(path, meter)):
            yield value if isinstance(value, str) else column.of(value, f"{name_of(path)}, line {number}")
        return
    lines = read_whole_lines(path, meter) if kind not in BINARY else ()
    named = partial(names_without_header, Columns(text))
    rows = table_rows(path, kind, lines, Strict(), name_columns=named, choose=column.choose, meter=meter)
    for where, row in rows:
        yield column.of(row, where)


class _Column:
    """The column of a file that holds its texts, or several that are joined."""

    def __init__(self, name: str, text: str | None, kind: str) -> None:
        self.name, self.text, self.is_json = name, text, kind in _JSON_LINES
        self.is_written, self.is_typed = kind in WITH_HEADER, kind in (".parquet", ".arrow")
        self.names: tuple[str, ...] = ()

    def choose(self, names: list[str]) -> list[str]:
        self.names = self.names or find_text(
            self.text, names, self.name, has_header=self.is_written, has_types=self.is_typed
        )
        return list(self.names)

    def of(self, row: Any, where: str) -> str:
        if not isinstance(row, dict):
            raise BothwaysError(f"{where} is neither a text nor a JSON object: found {row!r:.60}", "not-text", where)
        if not self.names:
            self.choose([str(name) for name in row])
        return " ".join(self._value(row, name, where) for name in self.names)

    def _value(self, row: dict[str, Any], name: str, where: str) -> str:
        if name not in row:
            has = name_list(row) or "none"
            raise BothwaysError(f"{where} has no text under {name!r}: its fields are {has}", "not-text", where)
        value = row[name]
        if value is None and self.is_json:
            says = f'{where} has null under {name!r}, and no text: leave the row out, or write an empty text as ""'
            raise BothwaysError(says, "null-text", where)
        if value is None:  # an empty text, as an empty cell of a table
            return ""
        if not isinstance(value, str):
            raise BothwaysError(f"{where} has {str(value)[:80]} under {name!r}: expected a text", "not-text", where)
        return replace_surrogates(value)


def visible_files(folder: Path) -> list[Path]:
    """The files in a folder and its subfolders, sorted, without hidden ones."""
    files = (file for file in folder.rglob("*") if file.is_file())
    return sorted(file for file in files if not any(p.startswith(".") for p in file.relative_to(folder).parts))


def files_of_kinds(folder: Path, is_known: Callable[[Path], object], but: Path | None = None) -> list[Path]:
    """The files in a folder and its subfolders that are of a known kind. Warns of the others, with their number.

    Files in the folder `but` do not count.
    """
    files = [file for file in visible_files(folder) if but is None or but.resolve() not in file.resolve().parents]
    known = [file for file in files if is_known(file)]
    read = set(known)
    if known and (others := Counter(file.suffix or file.name for file in files if file not in read)):
        kinds = ", ".join(f"{kind} {count:,}" for kind, count in others.most_common(_KINDS_NAMED))
        more = ", …" if len(others) > _KINDS_NAMED else ""
        files_are = "1 file is" if others.total() == 1 else f"{others.total():,} files are"
        warnings.warn(f"{files_are} of another kind in {folder} and not read: {kinds}{more}", stacklevel=2)
    return known


def _known_files(folder: Path) -> list[Path]:
    return files_of_kinds(folder, _kind)


def _kind(path: Path) -> str:
    """.txt, .jsonl and so on, without the suffix of a compression; empty for an unknown kind."""
    if path == STDIN:
        return ".jsonl" if peek_stdin().startswith("{") else ".txt"
    if path.suffix.lower() in COMPRESSED and path.with_suffix("").suffix.lower() in BINARY:
        return ""
    return kind if (kind := kind_of(path)) in _KINDS else ""


def _require_kind(path: Path) -> str:
    kind = _kind(path)
    if not kind:
        raise BothwaysError(f"{path} is not of a known kind: expected {_known()}", "unknown-file-kind", path)
    return kind


def _known() -> str:
    texts = [kind for kind in _KINDS if kind not in BINARY]
    return f"{', '.join(texts)}, each optionally .gz or .xz, or {', '.join(BINARY)}"
