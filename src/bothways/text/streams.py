"""Decompresses and decodes files in blocks, and counts the bytes read; all text readers build on it."""

import codecs
import gzip
import io
import lzma
import os
import sys
import warnings
import zlib
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

from bothways.errors import BothwaysError
from bothways.text.frames import frame_name, is_frame
from bothways.text.guess_encoding import SAMPLE, binary_kind, guess_encoding, marked_encoding
from bothways.text.long_text import LONGEST_LINE, LONGEST_WHOLE, LongText, line_too_long

STDIN = Path("-")
_BLOCK = 2**15  # bytes
_LONG_PART = 2**20  # characters
_OPEN_COMPRESSED: dict[str, Callable[[Any], Any]] = {".gz": gzip.open, ".xz": lzma.open}
COMPRESSED = tuple(_OPEN_COMPRESSED)


def name_of(path: Path) -> str:
    """The name of a file in messages."""
    if path == STDIN:
        return "standard input"
    return frame_name(path) if is_frame(path) else str(path)


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
    # Not path.is_file(), which fails at a text in the place of a name if it is too long for one.
    sizes = [path.stat().st_size for path in paths if os.path.isfile(path) and ".json" not in path.suffixes[-2:]]
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
    """The lines of a text file without their \\n, but with a \\r before it. One that is too long is refused."""
    return refuse_long(path, _lines(path, meter))


def refuse_long(path: Path, lines: Iterable[object]) -> Iterator[str]:
    """The lines of a file; an error at one that is too long."""
    for number, line in enumerate(lines, 1):
        if not isinstance(line, str):
            raise line_too_long(f"{name_of(path)}, line {number}")
        yield line


def read_whole(path: Path, longest: int = LONGEST_WHOLE) -> str:
    """The text of a file that something needs whole."""
    held, size = list[str](), 0
    for block in read_blocks(path, Meter()):
        held.append(block)
        size += len(block)
        if size > longest:
            raise BothwaysError(
                f"{name_of(path)} has more than {longest:,} characters, and a file of its kind is read as a whole, of "
                "at most that many: divide it into several, or save its rows as .jsonl, which streams",
                "too-long-file",
                path,
            )
    return "".join(held)


def read_any_lines(path: Path, meter: Meter | None = None) -> Iterator[str | LongText]:
    """The lines of a text file, of any length, without their line ends."""
    long: LongText | None = None
    for line in _lines(path, meter or Meter()):
        if isinstance(line, _Part):
            if long is None:
                long = LongText(line.text)
            else:
                long.add(line.text)
        elif long is not None:
            long.add(line)
            yield long
            long = None
        else:
            yield line.removesuffix("\r")


class _Part(NamedTuple):
    """The beginning of a line that is too long, or a further part of it: its end comes as the next line."""

    text: str


def _lines(path: Path, meter: Meter) -> Iterator[str | _Part]:
    """The lines of a file without their \\n."""
    begun: list[str] = []  # joined once, so that a very long line is not copied again and again
    size, is_long = 0, False
    for block in read_blocks(path, meter):
        first, *others = block.split("\n")
        begun.append(first)
        size += len(first)
        if size > LONGEST_LINE or (is_long and size > _LONG_PART):
            yield _Part("".join(begun))
            begun, size, is_long = [], 0, True
        if others:
            yield "".join(begun)
            begun = [others.pop()]
            size, is_long = len(begun[0]), False
            yield from others
    if (last := "".join(begun)) or is_long:
        yield last


def read_blocks(path: Path, meter: Meter, size: int = 0) -> Iterator[str]:
    """The text of a file or of standard input, in blocks of `size` bytes, or as soon as some can be read."""
    text = _Decoder(path)
    try:
        with _Counted(path, meter) as file, io.BufferedReader(file, _BLOCK) as raw:
            decompress = _OPEN_COMPRESSED.get(path.suffix.lower())
            plain = decompress(raw) if decompress else raw
            read = partial(plain.read, size) if size else partial(plain.read1, _BLOCK)
            for block in iter(read, b""):
                yield text.decode(block, plain)
            if last := text.decode(b"", plain):
                yield last
    except (EOFError, lzma.LZMAError, gzip.BadGzipFile, zlib.error) as error:
        says = f"{name_of(path)} is damaged or cut short after line {text.lines}: {error}"
        raise BothwaysError(says, "damaged-file", path) from error
    except OSError as error:
        says = f"{name_of(path)} cannot be read: {error.strerror or error}"
        raise BothwaysError(says, "unreadable-file", path) from error


# ---------------------------------------------------------------------- encodings

_NO_CHARSETS = ("idna", "punycode", "raw-unicode-escape", "undefined", "unicode-escape")
"""Codecs of Python that no file is written in; some have errors of their own."""
_named = [""]
"""The encoding of each `read_as` that is open; empty: UTF-8, or what is guessed."""
_told: set[tuple[Path, str]] = set()
"""Files of which a guess was told: most are read several times."""


@contextmanager
def read_as(encoding: str | None) -> Iterator[None]:
    """Inside this block all text files are read in this encoding, such as gb18030; None: UTF-8, or what is guessed.

    It holds for the whole process, because files are read ahead in threads.
    """
    try:
        if codecs.lookup(encoding or "utf-8").name in _NO_CHARSETS:
            raise LookupError
        "".encode(encoding or "utf-8")
    except (LookupError, ValueError):  # ValueError: a NUL in the name
        raise BothwaysError(
            f"there is no encoding {encoding!r}: expected a name such as utf-8, gb18030, big5, cp1252 or utf-16",
            "unknown-encoding",
            encoding,
        ) from None
    _named.append(encoding or _named[-1])
    try:
        yield
    finally:
        _named.pop()


def named_encoding() -> str:
    """The encoding of the innermost `read_as`; empty if there is none."""
    return _named[-1]


class _Decoder:
    """Bytes as text: in the named encoding, else as UTF-8, else as guessed where the first other byte stands."""

    def __init__(self, path: Path) -> None:
        self.path, self.encoding = path, named_encoding()
        self.is_fixed = bool(self.encoding)
        self._start("utf-8-sig" if codecs.lookup(self.encoding or "utf-8").name == "utf-8" else self.encoding)
        self.lines = 0
        """Line ends so far."""
        self.is_begun = False
        self.has_returns: bool | None = None
        """Whether lines end in a carriage return alone; None while nothing tells."""
        self.held = ""

    def _start(self, encoding: str) -> None:
        self.bytes = codecs.getincrementaldecoder(encoding)()

    def decode(self, block: bytes, stream: Any) -> str:
        """The text of the next block; of the last one, which is empty, what is left over."""
        if not self.is_begun and (what := binary_kind(block)):
            raise BothwaysError(f"{name_of(self.path)} is {what}", "binary-file", self.path)
        if not self.is_begun and not self.is_fixed:
            if found := marked_encoding(block):
                self._take(found)
            self.is_fixed = bool(found) or block.startswith(codecs.BOM_UTF8)
        self.is_begun = True
        try:
            text = self.bytes.decode(block, not block)
        except UnicodeDecodeError as error:
            text = self._guess(error, stream)
        # What is not ASCII was decoded as UTF-8 and given away: another encoding would be too late.
        self.is_fixed = self.is_fixed or not text.isascii()
        text = self._with_line_ends(text, not block)
        self.lines += text.count("\n")
        return text

    def _with_line_ends(self, text: str, is_last: bool) -> str:
        """The text; with line feeds for carriage returns if it begins with only those, as Excel on a Mac saves it."""
        if self.has_returns is None:
            text, self.held = self.held + text, ""
            if "\n" in text[:_BLOCK]:
                self.has_returns = False
            elif "\r" in text and len(text) < _BLOCK and not is_last:
                text, self.held = "", text  # a line feed may follow
            elif "\r" in text.rstrip("\r"):
                self.has_returns = True
                if (self.path, "\r") not in _told:
                    _told.add((self.path, "\r"))
                    says = "has carriage returns and no line feeds: each is read as the end of a line"
                    warnings.warn(f"{name_of(self.path)} {says}", stacklevel=2)
        return text.replace("\r", "\n") if self.has_returns else text

    def _take(self, encoding: str) -> None:
        self.encoding = encoding
        self._start(encoding)
        if (self.path, encoding) not in _told:
            _told.add((self.path, encoding))
            warnings.warn(
                f"{name_of(self.path)} is not UTF-8 and is read as {encoding}: if its text looks wrong, name its "
                "`encoding`",
                stacklevel=2,
            )

    def _guess(self, error: UnicodeDecodeError, stream: Any) -> str:
        """The text from the first byte on that is not UTF-8, in another encoding."""
        sample = error.object
        if not self.is_fixed:
            if self.path != STDIN:  # whose next bytes may come late
                sample += stream.read(max(0, SAMPLE - len(sample)))
            if found := guess_encoding(sample):
                self._take(found)
                self.is_fixed = True
                try:
                    return str(self.bytes.decode(sample, len(sample) < SAMPLE and self.path != STDIN))
                except UnicodeDecodeError as other:
                    error = other
        shown = self.encoding or "UTF-8"
        decoded = error.object[: error.start].decode(self.encoding or "utf-8", "ignore")
        where = f"{name_of(self.path)}, line {self.lines + 1 + decoded.count(chr(10))}"
        advice = "repair that line, or name the `encoding` of the file, such as gb18030, big5 or cp1252"
        raise BothwaysError(f"{where} is not {shown} text ({error.reason}): {advice}", "not-utf8", where) from error


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
