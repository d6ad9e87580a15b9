"""Makes a tokenizer of fairseq's dict.txt: a symbol and its count on each line, in the order of the ids."""

import re
import warnings
from collections.abc import Sequence
from pathlib import Path

import tokenizers
from tokenizers import Regex, decoders, pre_tokenizers
from tokenizers.models import WordLevel

from bothways.errors import BothwaysError
from bothways.text.merges import byte_level, read_pieces, read_text
from bothways.text.specials import add_specials
from bothways.text.tokenizer import Tokenizer

_SPECIALS = ("<s>", "<pad>", "</s>", "<unk>")
"""fairseq puts these before the symbols of the file."""
_MASK = "<mask>"
_FILLER = re.compile(r"madeupword\d+")  # rounds the number of symbols up to a multiple of eight


def read_dictionary(folder: Path, rows: int) -> Tokenizer | None:
    """The tokenizer of a model with `rows` token embeddings. None, with a warning, if the files are not enough.

    Symbols of one character: each character is a token. Symbols that are numbers are GPT-2's ids: byte-level BPE, if
    GPT-2's encoder.json and vocab.bpe are beside dict.txt.
    """
    try:
        return _tokenizer(folder, rows)
    except _NoTokenizerError as reason:
        warnings.warn(f"{reason}: the model has no tokenizer", stacklevel=2)
        return None


class _NoTokenizerError(Exception):
    """Why the files are not enough to make a tokenizer."""


def _tokenizer(folder: Path, rows: int) -> Tokenizer:
    path = folder / "dict.txt"
    if not path.exists():
        raise _NoTokenizerError(f"there is no {path}")
    symbols = _read_symbols(path)
    pieces = [*_SPECIALS, *symbols]
    if _MASK not in pieces and len(pieces) < rows:  # fairseq's masked language modelling task adds it last
        pieces.append(_MASK)
    if len(pieces) != rows:
        says = f"{path} makes {len(pieces)} tokens, specials included, and the model has {rows}: it is another model's"
        raise BothwaysError(says, "vocabulary-mismatch", (len(pieces), rows))
    real = [symbol for symbol in symbols if not _FILLER.fullmatch(symbol)]
    if all(symbol.isdigit() for symbol in real) and (folder / "encoder.json").exists():
        return _bytes_tokenizer(folder, pieces)
    if all(len(symbol) == 1 for symbol in real):
        return _character_tokenizer(path, pieces)
    if all(symbol.isdigit() for symbol in real):
        raise _NoTokenizerError(f"{path} holds GPT-2's numbers, and encoder.json and vocab.bpe are not beside it")
    raise _NoTokenizerError(f"the symbols of {path} are neither characters nor GPT-2's numbers")


def _read_symbols(path: Path) -> list[str]:
    symbols = []
    for number, line in enumerate(read_text(path).split("\n"), 1):
        if not line:
            continue
        symbol, _, count = line.rstrip().removesuffix(" #fairseq:overwrite").rpartition(" ")
        if not symbol or not count.isdigit():
            where = f"{path}, line {number}"
            raise BothwaysError(f"{where}: expected a symbol and its count, not {line!r}", "damaged-file", where)
        symbols.append(symbol)
    return symbols


def _ids_by_piece(path: Path, pieces: Sequence[str]) -> dict[str, int]:
    numbered = {piece: i for i, piece in enumerate(pieces)}
    if len(numbered) < len(pieces):
        twice = next(piece for i, piece in enumerate(pieces) if numbered[piece] != i)
        raise BothwaysError(f"{path} lists {twice!r} twice", "repeated-piece", twice)
    return numbered


def _character_tokenizer(path: Path, pieces: Sequence[str]) -> Tokenizer:
    """Every character is a token, and spaces are dropped: fairseq uses them to separate symbols."""
    backend = tokenizers.Tokenizer(WordLevel(_ids_by_piece(path, pieces), unk_token="<unk>"))
    characters = pre_tokenizers.Split(Regex("."), "isolated")
    backend.pre_tokenizer = pre_tokenizers.Sequence([pre_tokenizers.WhitespaceSplit(), characters])
    backend.decoder = decoders.Fuse()
    return Tokenizer(add_specials(backend, path))


def _bytes_tokenizer(folder: Path, pieces: Sequence[str]) -> Tokenizer:
    """GPT-2's byte-level BPE, with the ids of dict.txt."""
    names = {str(number): piece for piece, number in read_pieces(folder / "encoder.json").items()}
    if not (folder / "vocab.bpe").exists():
        raise _NoTokenizerError(f"{folder} has an encoder.json and no vocab.bpe")
    numbered = _ids_by_piece(folder / "dict.txt", [names.get(piece, piece) for piece in pieces])
    if missing := len(set(names.values()) - set(numbered) - {"<|endoftext|>"}):
        raise _NoTokenizerError(f"{folder / 'dict.txt'} lacks {missing:,} of GPT-2's pieces")
    return Tokenizer(byte_level(numbered, folder / "vocab.bpe"))
