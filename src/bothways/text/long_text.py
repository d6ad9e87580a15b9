"""Lines that are too long to be held in memory: in temporary files, which go when they are read."""

import codecs
import os
import tempfile
from collections.abc import Iterator

from bothways.errors import BothwaysError

LONGEST_LINE = 2**23
"""Characters of a line that is held in memory, and so of a text that something needs whole."""
LONGEST_WHOLE = 2**26
"""Characters of a file that is read as a whole, such as .json."""
LONGEST_TEXT = 2**31
"""Bytes of a text that streams; beyond, a damaged or compressed file would fill the disk."""
_BLOCK = 2**16  # bytes
_BEGINNING = 1_000  # characters


class LongText:
    """A text that streams. It has no other methods of strings, so that nothing takes a part for the whole."""

    def __init__(self, beginning: str) -> None:
        self._file = tempfile.TemporaryFile(prefix="bothways-")  # noqa: SIM115 - closed with this object
        self._bytes = self._characters = 0
        self.beginning = beginning[:_BEGINNING]
        self.add(beginning)

    def __del__(self) -> None:
        self._file.close()

    def add(self, block: str) -> None:
        """Put more text at its end."""
        written = block.encode("utf-8", "surrogatepass")
        if self._bytes + len(written) > LONGEST_TEXT:
            raise BothwaysError(
                f"a line has more than {LONGEST_TEXT:,} bytes, and a text has at most that many: is the file text, and "
                "are its line ends right?",
                "too-long-line",
                LONGEST_TEXT,
            )
        self._file.write(written)
        self._bytes += len(written)
        self._characters += len(block)

    def __len__(self) -> int:
        """Its characters."""
        return self._characters

    def blocks(self) -> Iterator[str]:
        """The text in consecutive parts, from its beginning each time; a line end of Windows after it is left out."""
        self._file.flush()
        decode = codecs.getincrementaldecoder("utf-8")("surrogatepass").decode
        end = self._bytes - (self._bytes > 0 and os.pread(self._file.fileno(), 1, self._bytes - 1) == b"\r")
        for place in range(0, end, _BLOCK):
            yield decode(os.pread(self._file.fileno(), min(_BLOCK, end - place), place))


def beginning_of(text: str | LongText) -> str:
    return text if isinstance(text, str) else text.beginning


def blocks_of(text: str | LongText) -> Iterator[str]:
    """Any text in consecutive parts."""
    return iter([text]) if isinstance(text, str) else text.blocks()


def line_too_long(where: str) -> BothwaysError:
    """The error for a line that something needs whole."""
    return BothwaysError(
        f"{where} has more than {LONGEST_LINE:,} characters, and at most that many are read as one line here: divide "
        "it into lines or rows",
        "too-long-line",
        where,
    )
