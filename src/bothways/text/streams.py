"""The characters of a file as they come, unpacked and counted: what all readers of text files stand on."""

import codecs
import gzip
import io
import lzma
import os
import sys
import zlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from bothways.errors import BothwaysError

STDIN = Path("-")
_BLOCK = 2**15  # bytes
_UNPACK: dict[str, Callable[[Any], Any]] = {".gz": gzip.open, ".xz": lzma.open}
PACKED = tuple(_UNPACK)


def name_of(path: Path) -> str:
    """What a file is called when it is spoken of."""
    return "standard input" if path == STDIN else str(path)


@dataclass
class Meter:
    """What has been read so far, for progress bars and reports."""

    bytes: int = 0
    """Of the files as they lie on the disk, so of compressed ones the compressed size."""
    split: int = 0
    """Documents that were longer than allowed and came in parts."""


def read_lines(path: Path, meter: Meter | None = None) -> Iterator[str]:
    """The lines of a text file without their line ends."""
    for line in read_whole_lines(path, meter or Meter()):
        yield line.removesuffix("\r")


def read_whole_lines(path: Path, meter: Meter) -> Iterator[str]:
    """The lines of a text file without the \\n that ends each: a \\r before it stays."""
    begun: list[str] = []  # joined when its end has come, so that a very long line is not copied again and again
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
    """The text of a file, or of standard input: in blocks of `size` bytes, or as soon as there is something to read."""
    decoder = codecs.getincrementaldecoder("utf-8-sig")()
    lines = 0
    try:
        with _Counted(path, meter) as file, io.BufferedReader(file, _BLOCK) as packed:
            unpack = _UNPACK.get(path.suffix.lower())
            plain = unpack(packed) if unpack else packed
            read = partial(plain.read, size) if size else partial(plain.read1, _BLOCK)
            for block in iter(read, b""):
                text = decoder.decode(block)
                lines += text.count("\n")
                yield text
            decoder.decode(b"", final=True)
    except UnicodeDecodeError as error:
        line = lines + 1 + error.object.count(b"\n", 0, error.start)
        is_wide = line == 1 and error.object.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE))
        raise BothwaysError(
            f"{name_of(path)} is not UTF-8 text in line {line} ({error.reason}): convert it first, for example with "
            f"iconv -f {'UTF-16' if is_wide else 'NAME'} -t UTF-8"
            f"{'' if is_wide else ', where NAME is what it is in, such as GBK or LATIN1'}"
        ) from error
    except (EOFError, lzma.LZMAError, gzip.BadGzipFile, zlib.error) as error:
        raise BothwaysError(f"{name_of(path)} is damaged or cut short after line {lines}: {error}") from error
    except OSError as error:
        raise BothwaysError(f"{name_of(path)} cannot be read: {error.strerror or error}") from error


_peeked = bytearray()
"""What was read from standard input to look at, and is still to be given out."""


def peek_stdin() -> str:
    """The first characters of standard input that are not white space; they are read again by whoever reads next."""
    while sys.stdin is not None and not bytes(_peeked).strip():
        block = os.read(sys.stdin.fileno(), _BLOCK)
        if not block:
            break
        _peeked.extend(block)
    return bytes(_peeked).decode(errors="replace").lstrip("\ufeff \t\r\n")[:8]


class _Counted(io.FileIO):
    """A file that tells a meter what is read of it."""

    def __init__(self, path: Path, meter: Meter) -> None:
        if path != STDIN:
            super().__init__(path)
        elif sys.stdin is None:
            raise BothwaysError("standard input is closed, and texts were to be read from it")
        else:
            # Not closed with us: a caller may read standard input again, a test may put its own there.
            super().__init__(sys.stdin.fileno(), closefd=False)
        self.meter, self.is_stdin = meter, path == STDIN

    def readinto(self, buffer: Any) -> int:
        if self.is_stdin and _peeked:
            count = min(len(buffer), len(_peeked))
            buffer[:count] = _peeked[:count]
            del _peeked[:count]
        else:
            count = super().readinto(buffer) or 0
        self.meter.bytes += count
        return count
