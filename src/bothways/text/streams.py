"""Decompresses and decodes files in blocks, and counts the bytes read; all text readers build on it."""

import codecs
import gzip
import io
import lzma
import os
import sys
import zlib
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from bothways.errors import BothwaysError

STDIN = Path("-")
_BLOCK = 2**15  # bytes
_OPEN_COMPRESSED: dict[str, Callable[[Any], Any]] = {".gz": gzip.open, ".xz": lzma.open}
COMPRESSED = tuple(_OPEN_COMPRESSED)


def name_of(path: Path) -> str:
    """The name of a file in messages."""
    return "standard input" if path == STDIN else str(path)


@dataclass
class Meter:
    """Counts what has been read, for progress bars and reports."""

    bytes: int = 0
    """Bytes on disk; of compressed files, the compressed size."""
    split: int = 0
    """Documents that were too long and were split."""


_followed: list[dict[Path, int]] = []
"""For each `follow` that is open: the bytes read of each file by its last reader."""


@contextmanager
def follow(files: Iterable[Path | str]) -> Iterator[Callable[[], float | None]]:
    """A function that tells the share of these files that was read since, from 0 to 1, by the last reader of each.

    It is None for standard input and folders, and for .json, which is read as a whole before its first item.
    """
    paths = set(map(Path, files))
    sizes = [path.stat().st_size for path in paths if path.is_file() and ".json" not in path.suffixes[-2:]]
    total = sum(sizes) if len(sizes) == len(paths) else 0
    places: dict[Path, int] = {}
    _followed.append(places)
    try:
        yield lambda: min(1.0, sum(places.values()) / total) if total else None
    finally:
        _followed[:] = [other for other in _followed if other is not places]


def note_place(path: Path, place: int) -> None:
    """Tell that a file has been read up to this byte."""
    for places in _followed:
        places[path] = place


def read_lines(path: Path, meter: Meter | None = None) -> Iterator[str]:
    """The lines of a text file without their line ends."""
    for line in read_whole_lines(path, meter or Meter()):
        yield line.removesuffix("\r")


def read_whole_lines(path: Path, meter: Meter) -> Iterator[str]:
    """The lines of a text file without their \\n, but with a \\r before it."""
    begun: list[str] = []  # joined once, so that a very long line is not copied again and again
    for block in read_blocks(path, meter):
        first, *others = block.split("\n")
        begun.append(first)
        if others:
            yield "".join(begun)
            begun = [others.pop()]
            yield from others
    if last := "".join(begun):
        yield last


def read_blocks(path: Path, meter: Meter, size: int = 0) -> Iterator[str]:
    """The text of a file or of standard input, in blocks of `size` bytes, or as soon as some can be read."""
    decoder = codecs.getincrementaldecoder("utf-8-sig")()
    lines = 0
    try:
        with _Counted(path, meter) as file, io.BufferedReader(file, _BLOCK) as raw:
            decompress = _OPEN_COMPRESSED.get(path.suffix.lower())
            plain = decompress(raw) if decompress else raw
            read = partial(plain.read, size) if size else partial(plain.read1, _BLOCK)
            for block in iter(read, b""):
                text = decoder.decode(block)
                lines += text.count("\n")
                yield text
            decoder.decode(b"", final=True)
    except UnicodeDecodeError as error:
        line = lines + 1 + error.object.count(b"\n", 0, error.start)
        is_utf16 = line == 1 and error.object.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE))
        encoding = "UTF-16 -t UTF-8" if is_utf16 else "NAME -t UTF-8, where NAME is its encoding, such as GBK or LATIN1"
        says = f"{name_of(path)} is not UTF-8 text in line {line} ({error.reason}): convert it first, for example with"
        raise BothwaysError(f"{says} iconv -f {encoding}", "not-utf8", f"{name_of(path)}, line {line}") from error
    except (EOFError, lzma.LZMAError, gzip.BadGzipFile, zlib.error) as error:
        says = f"{name_of(path)} is damaged or cut short after line {lines}: {error}"
        raise BothwaysError(says, "damaged-file", path) from error
    except OSError as error:
        says = f"{name_of(path)} cannot be read: {error.strerror or error}"
        raise BothwaysError(says, "unreadable-file", path) from error


_peeked = bytearray()
"""Bytes of standard input that `peek_stdin` has read, and that the next reader gets first."""


def peek_stdin() -> str:
    """The first characters of standard input after white space; the next reader gets them again."""
    while sys.stdin is not None and not bytes(_peeked).strip():
        block = os.read(sys.stdin.fileno(), _BLOCK)
        if not block:
            break
        _peeked.extend(block)
    return bytes(_peeked).decode(errors="replace").lstrip("\ufeff \t\r\n")[:8]


class _Counted(io.FileIO):
    """A file that counts the bytes read in a meter."""

    def __init__(self, path: Path, meter: Meter) -> None:
        if path != STDIN:
            super().__init__(path)
        elif sys.stdin is None:
            raise BothwaysError("standard input is closed: there is no text to read", "no-input")
        else:
            # Not closed here: a caller may read standard input again, and tests replace it.
            super().__init__(sys.stdin.fileno(), closefd=False)
        self.meter, self.path, self.place = meter, path, 0

    def readinto(self, buffer: Any) -> int:
        if self.path == STDIN and _peeked:
            count = min(len(buffer), len(_peeked))
            buffer[:count] = _peeked[:count]
            del _peeked[:count]
        else:
            count = super().readinto(buffer) or 0
        self.meter.bytes += count
        self.place += count
        note_place(self.path, self.place)
        return count
