"""Reads GPT-2's byte-level BPE from vocab.json and merges.txt, for folders without a tokenizer.json."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import tokenizers
from tokenizers import decoders, pre_tokenizers
from tokenizers.models import BPE

from bothways.errors import BothwaysError
from bothways.text.specials import add_specials, switch


def read_merges(folder: Path, settings: Mapping[str, Any]) -> tokenizers.Tokenizer:
    """The tokenizer of a folder with vocab.json and merges.txt, such as RoBERTa's and the first DeBERTa's."""
    for one, other in (("vocab.json", "merges.txt"), ("merges.txt", "vocab.json")):
        if not (folder / one).exists():
            raise BothwaysError(f"{folder} has a {other} and no {one}, which belongs to it", "no-file", folder / one)
    space = switch(settings, "add_prefix_space", False, folder)
    return byte_level(read_pieces(folder / "vocab.json"), folder / "merges.txt", space=space)


def read_pieces(path: Path) -> dict[str, int]:
    """Pieces and their ids, from a JSON object."""
    try:
        found = json.loads(read_text(path))
    except (ValueError, RecursionError):
        found = None
    if not isinstance(found, dict) or not all(type(i) is int and 0 <= i < 2**31 for i in found.values()):
        raise BothwaysError(f"{path} should hold a JSON object of pieces and their ids", "damaged-file", path)
    if len(set(found.values())) < len(found):
        raise BothwaysError(f"{path} gives one id to several pieces", "repeated-id", path)
    return found


def read_text(path: Path, encoding: str = "utf-8") -> str:
    """The text of a file of a tokenizer."""
    try:
        return path.read_text(encoding=encoding)
    except (OSError, UnicodeDecodeError) as error:
        raise BothwaysError(f"{path} cannot be read: {error}", "unreadable-file", path) from error


def byte_level(numbered: dict[str, int], merges: Path, *, space: bool = False) -> tokenizers.Tokenizer:
    """The tokenizer with its special tokens. With `space` the first word of a text is read as if after a space."""
    lines = (line.partition(" ") for line in read_text(merges).split("\n"))
    pairs = [(first, second) for first, _, second in lines if second and first != "#version:"]
    try:
        backend = tokenizers.Tokenizer(BPE(numbered, pairs))
    except Exception as error:  # the Rust library raises bare Exception
        raise BothwaysError(
            f"{merges} does not belong to its pieces: {str(error).splitlines()[0]}", "vocabulary-mismatch", merges
        ) from error
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=space)
    backend.decoder = decoders.ByteLevel()
    return add_specials(backend, merges, space=space)
