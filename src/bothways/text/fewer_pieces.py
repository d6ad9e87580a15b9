"""A tokenizer without the pieces that a text does not use.

Texts made of pieces that stay are cut as before:

    WordPiece   the longest match at each place is still there, and no new one came
    BPE         a merge stays if its result does, and with it both its parts: so every merge that made a piece that
                stays is still there, still the first in rank, and no new one came
    Unigram     the best path is still there with the same score, and its rivals are fewer
"""

import json
import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import tokenizers
from numpy.typing import NDArray

from bothways.errors import BothwaysError
from bothways.text.new_words import OnBytes, read_batches
from bothways.text.tokenizer import Tokenizer

_KINDS = ("WordPiece", "BPE", "Unigram")
_BYTE = re.compile(r"<0x[0-9A-F]{2}>")


def count_pieces(
    files: Sequence[Path | str], tokenizer: Tokenizer, *, field: str = "text", on_bytes: OnBytes | None = None
) -> NDArray[np.int64]:
    """How often the text uses each piece, by id."""
    counts = np.zeros(tokenizer.size, np.int64)
    for texts in read_batches(files, field, on_bytes):
        encodings = tokenizer.backend.encode_batch_fast(texts, add_special_tokens=False)
        ids = [i for encoding in encodings for i in encoding.ids]
        counts += np.bincount(np.array(ids, np.int64), minlength=len(counts))
    if not counts.any():
        raise BothwaysError(f"no text was found in {', '.join(map(str, files))}")
    return counts


def choose_pieces(
    tokenizer: Tokenizer,
    counts: NDArray[np.int64],
    *,
    minimum: int = 1,
    count: int | None = None,
    always: Collection[int] = (),
) -> list[int]:
    """The ids that stay, in order: those in `always`, the specials, all single characters, pieces with a character that
    is no piece by itself, and what the text uses `minimum` times or more; the most used first, up to `count` in all."""
    if tokenizer.kind not in _KINDS:
        raise BothwaysError(f"a {tokenizer.kind} vocabulary cannot be made smaller here: expected {', '.join(_KINDS)}")
    if minimum < 1:
        raise BothwaysError(f"pieces used {minimum} times or more are all: expected a minimum of 1 or more")
    merges = _Merges(tokenizer)
    kept: set[int] = set()
    for i in (*always, *tokenizer.special_ids, *tokenizer("", "").ids, *_characters(tokenizer)):
        kept |= merges.below(i)
    if count is not None and count < len(kept):
        raise BothwaysError(f"{count:,} pieces are too few: the specials and single characters alone are {len(kept):,}")
    used = np.flatnonzero(counts >= minimum)
    for i in used[np.argsort(-counts[used], kind="stable")].tolist():
        needed = merges.below(i)
        if count is None or len(kept | needed) <= count:
            kept |= needed
    return sorted(kept)


def keep_pieces(tokenizer: Tokenizer, kept: Sequence[int]) -> Tokenizer:
    """A tokenizer with these pieces only, numbered from 0 in the order of their old ids."""
    new = {tokenizer.piece(old): i for i, old in enumerate(sorted(kept))}
    told = json.loads(tokenizer.backend.to_str())
    model, places = told["model"], sorted(kept)
    if tokenizer.kind == "Unigram":
        if model["unk_id"] is not None:
            model["unk_id"] = new[tokenizer.piece(model["unk_id"])]
        model["vocab"] = [model["vocab"][i] for i in places if i < len(model["vocab"])]
    else:
        model["vocab"] = {piece: new[piece] for piece in model["vocab"] if piece in new}
    if tokenizer.kind == "BPE":
        joined = _Merges(tokenizer).joined
        model["merges"] = [pair for pair in model["merges"] if joined(pair) in new]
    told["added_tokens"] = [
        {**token, "id": new[token["content"]]} for token in told["added_tokens"] if token["content"] in new
    ]
    told["post_processor"] = _renumbered(told["post_processor"], new)
    smaller = tokenizer.with_backend(tokenizers.Tokenizer.from_str(json.dumps(told, ensure_ascii=False)))
    assert smaller.pieces == [tokenizer.piece(i) for i in places]
    return smaller


def _characters(tokenizer: Tokenizer) -> list[int]:
    """What must stay so that any word can still be spelt: single characters, and pieces that have no such spelling.

    For Unigram also the piece with the lowest score: what an unknown character costs is reckoned from it.
    """
    told = json.loads(tokenizer.backend.to_str())["model"]
    inside = told.get("continuing_subword_prefix") or ""
    ending = told.get("end_of_word_suffix") or ""
    names = set(tokenizer.pieces)
    spare = tokenizer.wordless_ids - tokenizer.special_ids
    added = tokenizer.backend.get_added_tokens_decoder()
    found = []
    for i, piece in enumerate(tokenizer.pieces):
        if i in spare or i in added:
            continue
        letters = piece.removeprefix(inside).removesuffix(ending)
        starts = inside and not piece.startswith(inside)
        spelt = [letter if starts and place == 0 else inside + letter for place, letter in enumerate(letters)]
        is_short = len(letters) == 1 or _BYTE.fullmatch(piece)
        if is_short or (tokenizer.kind != "BPE" and not names.issuperset(spelt)):
            found.append(i)
    if (unknown := told.get("unk_token")) in names:
        found.append(tokenizer.id(unknown))
    if tokenizer.kind == "Unigram":
        if told["unk_id"] is not None:
            found.append(told["unk_id"])
        found.append(min(range(len(told["vocab"])), key=lambda i: told["vocab"][i][1]))
    return found


class _Merges:
    """What each piece of a BPE vocabulary is made of; pieces of other kinds are made of nothing."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        told = json.loads(tokenizer.backend.to_str())["model"]
        self.inside = told.get("continuing_subword_prefix") or ""
        self.id = tokenizer.id
        self.parts: dict[int, set[int]] = {}
        for pair in told.get("merges", ()):
            self.parts.setdefault(self.id(self.joined(pair)), set()).update(map(self.id, _pair(pair)))

    def joined(self, pair: Any) -> str:
        left, right = _pair(pair)
        return left + right.removeprefix(self.inside)

    def below(self, piece: int) -> set[int]:
        """The piece and all that it is merged from, in whatever way."""
        found, left = {piece}, [piece]
        while left:
            more = self.parts.get(left.pop(), set()) - found
            found |= more
            left += more
        return found


def _pair(written: Any) -> Iterable[str]:
    """A merge is written as a list of two, or in older files as a text with a space."""
    return written.split(" ") if isinstance(written, str) else written


def _renumbered(part: Any, new: Mapping[str, int]) -> Any:
    """A post-processor with new ids: they stand beside the special tokens' names."""
    if not isinstance(part, dict):
        return part
    part = dict(part)
    for role in ("sep", "cls"):  # BERT's and RoBERTa's
        if role in part:
            part[role] = [part[role][0], new[part[role][0]]]
    if part.get("type") == "TemplateProcessing":
        part["special_tokens"] = {
            name: {**token, "ids": [new[piece] for piece in token["tokens"]]}
            for name, token in part["special_tokens"].items()
        }
    if part.get("type") == "Sequence":
        part["processors"] = [_renumbered(one, new) for one in part["processors"]]
    return part
