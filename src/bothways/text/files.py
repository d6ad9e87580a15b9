"""Texts out of the files people have: .txt and .jsonl, plain or .gz / .xz, and standard input.

Everything streams: memory does not grow with the file.
"""

import gzip
import json
import lzma
import sys
import zlib
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import TextIO

from bothways.errors import BothwaysError

STDIN = Path("-")
_COMPRESSED = (".gz", ".xz")
_KINDS = (".txt", ".jsonl")


def read_texts(path: Path, field: str = "text") -> Iterator[str]:
    """The texts of a file, one after the other: a line of .txt, or `field` of a line of .jsonl.

    Empty lines of .txt come as empty texts, so that results can be matched to lines; those of .jsonl
    are left out. `-` is standard input, read as .txt.
    """
    if _kind(path) == ".jsonl":
        for number, line in enumerate(read_lines(path), 1):
            if line.strip():
                yield _field(line, field, f"{path}, line {number}")
    else:
        yield from read_lines(path)


def read_lines(path: Path) -> Iterator[str]:
    """The lines of a text file without their line ends."""
    number = 0
    try:
        with _open(path) as stream:
            for line in stream:
                number += 1
                yield line.removesuffix("\n").removesuffix("\r")
    except UnicodeDecodeError as error:
        raise BothwaysError(
            f"{path} is not UTF-8 text after line {number} ({error.reason}): convert it first, "
            f"for example with iconv -t UTF-8"
        ) from error
    except (EOFError, lzma.LZMAError, gzip.BadGzipFile, zlib.error) as error:
        raise BothwaysError(f"{path} is damaged or cut short after line {number}: {error}") from error
    except OSError as error:
        raise BothwaysError(f"{path} cannot be read: {error.strerror or error}") from error


def require_files(paths: Iterable[Path]) -> list[Path]:
    """The same paths, once each is known to be a readable kind of file; so a long job fails at once."""
    found = list(paths)
    if not found:
        raise BothwaysError("no input file was given")
    for path in found:
        if path == STDIN:
            continue
        if path.is_dir():
            raise BothwaysError(f"{path} is a folder: name the files in it, for example {path}/*.txt")
        if not path.exists():
            raise BothwaysError(f"there is no file {path}")
        _kind(path)
    return found


def _kind(path: Path) -> str:
    """.txt or .jsonl, whatever compression follows it."""
    if path == STDIN:
        return ".txt"
    suffixes = [s.lower() for s in path.suffixes]
    if suffixes and suffixes[-1] in _COMPRESSED:
        suffixes.pop()
    kind = suffixes[-1] if suffixes else ""
    if kind not in _KINDS:
        raise BothwaysError(
            f"{path} is not a kind of text file known here: expected .txt or .jsonl, optionally .gz or .xz"
        )
    return kind


def _open(path: Path) -> TextIO:
    if path == STDIN:
        # Not closed with us: a caller may read standard input again, a test may put its own there.
        if sys.stdin is None:
            raise BothwaysError("standard input is closed, and texts were to be read from it")
        return open(sys.stdin.fileno(), encoding="utf-8-sig", newline="\n", closefd=False)
    if path.suffix.lower() == ".gz":
        return gzip.open(path, "rt", encoding="utf-8-sig", newline="\n")
    if path.suffix.lower() == ".xz":
        return lzma.open(path, "rt", encoding="utf-8-sig", newline="\n")
    return open(path, encoding="utf-8-sig", newline="\n")


def _field(line: str, field: str, where: str) -> str:
    try:
        row = json.loads(line)
    except (ValueError, RecursionError) as error:
        raise BothwaysError(f"{where} is not JSON: {error}") from error
    value = row if isinstance(row, str) else row.get(field) if isinstance(row, dict) else None
    if not isinstance(value, str):
        has = ", ".join(map(str, row)) if isinstance(row, dict) and row else "none"
        raise BothwaysError(f"{where} has no text under {field!r}: its fields are {has}")
    return mended(value)


def mended(text: str) -> str:
    """The text with half characters replaced: JSON can hold one of a surrogate pair, which is not Unicode."""
    if text.isascii():
        return text
    return "".join("\ufffd" if "\ud800" <= letter <= "\udfff" else letter for letter in text)
