"""Reads the SentencePiece models of ALBERT, DeBERTa and XLM-RoBERTa, without the SentencePiece library.

The file is a protocol buffer with the pieces, their scores and types, and the settings of the normaliser.
"""

import struct
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import tokenizers
from tokenizers import decoders, normalizers, pre_tokenizers
from tokenizers.models import Unigram
from tokenizers.normalizers import Normalizer
from tokenizers.pre_tokenizers import PreTokenizer

from bothways.errors import BothwaysError
from bothways.json_files import read_json_file
from bothways.text.specials import add_specials, switch

SENTENCEPIECE = ("spm.model", "spiece.model", "sentencepiece.bpe.model")
"""The file names of DeBERTa, ALBERT and XLM-RoBERTa."""

_UNIGRAM = 1
_NORMAL, _UNKNOWN, _CONTROL, _UNUSED = 1, 2, 3, 5
_FAIRSEQ = [("<s>", 0.0), ("<pad>", 0.0), ("</s>", 0.0), ("<unk>", 0.0)]
_CAMEMBERT = [("<s>NOTUSED", 0.0), ("<pad>", 0.0), ("</s>NOTUSED", 0.0), ("<unk>", 0.0), ("<unk>NOTUSED", -100.0)]


def read_sentencepiece(path: Path, settings: Mapping[str, Any]) -> tokenizers.Tokenizer:
    """The tokenizer of a file; its name decides which family's rules apply."""
    if path.name not in SENTENCEPIECE:
        says = f"{path} should be called one of {', '.join(SENTENCEPIECE)}: the name tells its family"
        raise BothwaysError(says, "unknown-file-kind", path)
    model = _read(path)
    pieces = [(piece, score) for piece, score, _ in model.pieces]
    unknown = [kind for _, _, kind in model.pieces].index(_UNKNOWN)
    if path.name == "sentencepiece.bpe.model":  # with the ids of fairseq
        if [piece for piece, _ in pieces[:3]] != ["<unk>", "<s>", "</s>"]:
            raise BothwaysError(f"{path} should begin with <unk>, <s> and </s>, as XLM-RoBERTa's", "no-specials", path)
        first, rest = (_CAMEMBERT, pieces[1:]) if _is_camembert(path.parent) else (_FAIRSEQ, pieces[3:])
        pieces, unknown = [*first, *rest, ("<mask>", 0.0)], 3
    elif not {"[CLS]", "[SEP]"} <= {piece for piece, _ in pieces}:
        raise BothwaysError(
            f"{path} has no [CLS] and [SEP], as files of this name have: is it another family's?", "no-specials", path
        )
    if path.name == "spiece.model":  # ALBERT splits a comma off a number
        pieces = [(piece, score - 100 * _is_number_with_comma(piece)) for piece, score in pieces]
    before = _before(path, settings)
    try:
        backend = tokenizers.Tokenizer(Unigram(pieces, unknown, model.has_bytes))
        backend.normalizer = normalizers.Sequence([*before, *model.normalizers()])
    except Exception as error:  # the Rust library raises bare Exception
        raise BothwaysError(f"{path} is damaged: {error}", "damaged-file", path) from error
    apart = [pre_tokenizers.Punctuation()] if switch(settings, "split_by_punct", False, path.parent) else []
    backend.pre_tokenizer = pre_tokenizers.Sequence([*apart, *model.pre_tokenizers()])
    backend.decoder = decoders.Metaspace(prepend_scheme="always" if model.prefix else "never")
    if path.name == "spm.model" and backend.token_to_id("[MASK]") is None:
        backend.add_special_tokens(["[MASK]"])  # DeBERTa's mask has the first id after those of the file
    backend.add_special_tokens([piece for piece, _, kind in model.pieces if kind == _CONTROL])
    return add_specials(backend, path)


def _read(path: Path) -> "_Model":
    try:
        model = _parse(path.read_bytes())
    except OSError as error:
        raise BothwaysError(f"{path} cannot be read: {error}", "unreadable-file", path) from error
    except (ValueError, IndexError, KeyError, TypeError, struct.error) as error:
        raise BothwaysError(f"{path} is damaged, or not a SentencePiece model", "damaged-file", path) from error
    kinds = {kind for _, _, kind in model.pieces}
    if _UNKNOWN not in kinds:
        raise BothwaysError(f"{path} has no piece for unknown characters", "no-specials", path)
    reason = "has pieces of the type unused" if _UNUSED in kinds else ""
    reason = "is not of the type Unigram" if model.kind != _UNIGRAM else reason
    reason = "marks the ends of words" if model.suffixed else reason
    if reason:
        raise BothwaysError(f"{path} {reason}: convert it to a tokenizer.json", "unsupported-tokenizer", path)
    return model


def _is_camembert(folder: Path) -> bool:
    try:
        return bool(read_json_file(folder / "config.json")["model_type"] == "camembert")
    except (BothwaysError, KeyError, TypeError):
        return False


def _is_number_with_comma(piece: str) -> bool:
    return len(piece) > 1 and piece[-1] == "," and piece[-2].isdigit()


def _before(path: Path, settings: Mapping[str, Any]) -> list[Normalizer]:
    """The normalisation that a family applies before SentencePiece's own."""
    is_albert = path.name == "spiece.model"
    steps: list[Normalizer] = []
    if is_albert:
        steps += [normalizers.Replace("``", '"'), normalizers.Replace("''", '"')]
        if not switch(settings, "keep_accents", False, path.parent):
            steps += [normalizers.NFKD(), normalizers.StripAccents()]
    if switch(settings, "do_lower_case", is_albert, path.parent):
        steps.append(normalizers.Lowercase())
    return steps


@dataclass
class _Model:
    """The contents of a file."""

    pieces: list[tuple[str, float, int]] = field(default_factory=list)
    kind: int = _UNIGRAM
    characters: bytes = b""
    """The compiled map of the normaliser."""
    has_bytes: bool = False
    splits: bool = True
    """Whether no piece contains a space inside."""
    suffixed: bool = False
    """Whether the space mark follows a word instead of preceding it."""
    prefix: bool = True
    """Whether a text is read as if after a space."""
    one_space: bool = True
    """Whether repeated spaces count as one, and those around a text are dropped."""

    @property
    def by_words(self) -> bool:
        """Whether a text is tokenized word by word, whatever its spacing."""
        return self.splits and self.prefix and self.one_space

    def normalizers(self) -> list[Normalizer]:
        steps: list[Normalizer] = [normalizers.Precompiled(self.characters)] if self.characters else []
        if self.one_space and not self.by_words:
            steps += [normalizers.Replace(tokenizers.Regex(" {2,}"), " ")]
            steps += [normalizers.Replace(tokenizers.Regex(r"\A | \z"), "")]
        elif self.prefix and not self.one_space:  # Metaspace would add it only where there is no space
            steps.append(normalizers.Prepend("▁"))
        return steps

    def pre_tokenizers(self) -> list[PreTokenizer]:
        """Words with a space mark before them; where possible, their offsets exclude the space."""
        words = [pre_tokenizers.Split(" ", "removed")] if self.by_words else []
        scheme = "always" if self.prefix and self.one_space else "never"
        return [*words, pre_tokenizers.Metaspace(prepend_scheme=scheme, split=self.splits)]


def _parse(data: bytes) -> _Model:
    """A `ModelProto`: field 1 holds the pieces, field 2 the trainer's settings, field 3 the normaliser's."""
    model = _Model()
    for number, value in _fields(memoryview(data)):
        if number == 1:
            model.pieces.append(_piece(value))
        elif number == 2:
            values = dict(_fields(value))
            model.kind = values.get(3, _UNIGRAM)
            model.splits = bool(values.get(22, True))
            model.suffixed = bool(values.get(24, False))
            model.has_bytes = bool(values.get(35, False))
        elif number == 3:
            values = dict(_fields(value))
            model.characters = bytes(values.get(2, b""))
            model.prefix = bool(values.get(3, True))
            model.one_space = bool(values.get(4, True))
    return model


def _piece(data: memoryview) -> tuple[str, float, int]:
    values = dict(_fields(data))
    (score,) = struct.unpack("<f", values.get(2, bytes(4)))
    return bytes(values[1]).decode(), score, values.get(3, _NORMAL)


def _fields(data: memoryview) -> Iterator[tuple[int, Any]]:
    """Number and value of each field: varints as int, all else as bytes."""
    at = 0
    while at < len(data):
        key, at = _varint(data, at)
        kind = key & 7
        if kind == 0:
            value, at = _varint(data, at)
            yield key >> 3, value
            continue
        if kind == 2:
            size, at = _varint(data, at)
        elif kind in (1, 5):
            size = 8 if kind == 1 else 4
        else:
            raise ValueError(f"there is no wire type {kind}")
        if at + size > len(data):
            raise ValueError("the data is cut short")
        yield key >> 3, data[at : at + size]
        at += size


def _varint(data: memoryview, at: int) -> tuple[int, int]:
    """A varint (seven bits a byte, the lowest first), and the offset after it."""
    found = shift = 0
    while True:
        byte = data[at]
        found |= (byte & 127) << shift
        at, shift = at + 1, shift + 7
        if byte < 128:
            return found, at
