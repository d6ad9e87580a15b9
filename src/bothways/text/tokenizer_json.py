"""Reads tokenizer.json with the Rust library of tokenizers, whose errors become ours."""

import base64
import binascii
import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import tokenizers

from bothways.errors import BothwaysError
from bothways.text.added_words import read_words_beside
from bothways.text.settings import CLASSES, obey, read_class

_CHARSMAP = re.compile(rb'"precompiled_charsmap"\s*:\s*"([^"]*)"')


@contextmanager
def rust_errors(says: str, value: object = None) -> Iterator[None]:
    """A block in which an error of the Rust library, or its panic, ends in a sentence that begins with `says`."""
    try:
        yield
    except (BothwaysError, MemoryError):
        raise
    except BaseException as error:
        if not isinstance(error, Exception) and type(error).__name__ != "PanicException":
            raise  # Ctrl-C
        raise BothwaysError(f"{says}: {error}", "damaged-file", value) from error


def read_tokenizer_json(path: Path, settings: dict[str, Any]) -> tokenizers.Tokenizer:
    """The tokenizer of a whole file, with the settings that stand beside it."""
    name = read_class(settings, path.parent, "tokenizer.json")
    with rust_errors(f"{path} cannot be read as a tokenizer", path):
        _require_charsmap(path)
        backend = tokenizers.Tokenizer.from_file(str(path))
        backend.no_padding()  # `obey` looks at what stands around a text
        backend.no_truncation()
        backend = obey(backend, settings, name, path.parent)
        read_words_beside(backend, path.parent, settings, is_rebuilt=name in CLASSES)
    return backend


def _require_charsmap(path: Path) -> None:
    """Refuse a table of characters that the Rust library panics at: its size, a trie of 32-bit numbers, and texts."""
    for found in _CHARSMAP.finditer(path.read_bytes()):
        try:
            table = base64.b64decode(found[1], validate=True)
            size = int.from_bytes(table[:4], "little")
            is_right = len(table) >= 4 + size and size % 4 == 0
            table[4 + size :].decode()
        except (binascii.Error, UnicodeDecodeError):
            is_right = False
        if not is_right:
            raise ValueError("its precompiled_charsmap is damaged")
