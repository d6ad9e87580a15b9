"""fairseq's dict.txt as a tokenizer: a symbol and its count on each line, in the order of the ids."""

import re
import warnings
from collections.abc import Sequence
from pathlib import Path

import tokenizers
from tokenizers import Regex, decoders, pre_tokenizers
from tokenizers.models import WordLevel

from bothways.errors import BothwaysError
from bothways.text.merges import byte_level, read_pieces, read_text
from bothways.text.specials import put_around
from bothways.text.tokenizer import Tokenizer

_FIRST = ("<s>", "<pad>", "</s>", "<unk>")
"""What fairseq puts before the symbols of the file."""
_MASK = "<mask>"
_FILLER = re.compile(r"madeupword\d+")  # rounds the number of symbols up to a multiple of eight


def read_dictionary(folder: Path, rows: int) -> Tokenizer | None:
    """The tokenizer of a model with so many rows in its token table. None, with a warning, if the files do not tell.

    Symbols of one character: each character is a token. Symbols that are numbers, GPT-2's ids: its byte-level BPE, if
    GPT-2's encoder.json and vocab.bpe lie beside dict.txt.
    """
    try:
        return _tokenizer(folder, rows)
    except _UntoldError as reason:
        warnings.warn(f"{reason}: the model has no tokenizer", stacklevel=2)
        return None


class _UntoldError(Exception):
    """Why files do not tell how a text becomes symbols."""


def _tokenizer(folder: Path, rows: int) -> Tokenizer:
    path = folder / "dict.txt"
    if not path.exists():
        raise _UntoldError(f"there is no {path}")
    symbols = _read_symbols(path)
    pieces = [*_FIRST, *symbols]
    if _MASK not in pieces and len(pieces) < rows:  # added last, by the task that fairseq trained
        pieces.append(_MASK)
    if len(pieces) != rows:
        raise BothwaysError(
            f"{path} makes {len(pieces)} tokens, specials included, and the model has {rows}: it is another model's"
        )
    real = [symbol for symbol in symbols if not _FILLER.fullmatch(symbol)]
    if all(symbol.isdigit() for symbol in real) and (folder / "encoder.json").exists():
        return _bytes_tokenizer(folder, pieces)
    if all(len(symbol) == 1 for symbol in real):
        return _character_tokenizer(path, pieces)
    if all(symbol.isdigit() for symbol in real):
        raise _UntoldError(f"{path} holds GPT-2's numbers, and its encoder.json and vocab.bpe do not lie beside it")
    raise _UntoldError(f"the symbols of {path} are neither characters nor GPT-2's numbers")


def _read_symbols(path: Path) -> list[str]:
    symbols = []
    for number, line in enumerate(read_text(path).split("\n"), 1):
        if not line:
            continue
        symbol, _, count = line.rstrip().removesuffix(" #fairseq:overwrite").rpartition(" ")
        if not symbol or not count.isdigit():
            raise BothwaysError(f"{path}, line {number}: expected a symbol and its count, not {line!r}")
        symbols.append(symbol)
    return symbols


def _numbered(path: Path, pieces: Sequence[str]) -> dict[str, int]:
    numbered = {piece: i for i, piece in enumerate(pieces)}
    if len(numbered) < len(pieces):
        twice = next(piece for i, piece in enumerate(pieces) if numbered[piece] != i)
        raise BothwaysError(f"{path} lists {twice!r} twice")
    return numbered


def _character_tokenizer(path: Path, pieces: Sequence[str]) -> Tokenizer:
    """Every character is a token, and spaces are nothing: fairseq wants them between symbols."""
    backend = tokenizers.Tokenizer(WordLevel(_numbered(path, pieces), unk_token="<unk>"))
    each = pre_tokenizers.Split(Regex("."), "isolated")
    backend.pre_tokenizer = pre_tokenizers.Sequence([pre_tokenizers.WhitespaceSplit(), each])
    backend.decoder = decoders.Fuse()
    return Tokenizer(put_around(backend, path))


def _bytes_tokenizer(folder: Path, pieces: Sequence[str]) -> Tokenizer:
    """GPT-2's byte-level BPE, with the ids of dict.txt."""
    names = {str(number): piece for piece, number in read_pieces(folder / "encoder.json").items()}
    if not (folder / "vocab.bpe").exists():
        raise _UntoldError(f"{folder} has an encoder.json and no vocab.bpe")
    numbered = _numbered(folder / "dict.txt", [names.get(piece, piece) for piece in pieces])
    if missing := len(set(names.values()) - set(numbered) - {"<|endoftext|>"}):
        raise _UntoldError(f"{folder / 'dict.txt'} lacks {missing:,} of GPT-2's pieces")
    return Tokenizer(byte_level(numbered, folder / "vocab.bpe"))
