"""Shrinks a vocabulary to the pieces that a text uses.

A text made of kept pieces is tokenized as before:

    WordPiece   the longest match at each position is kept, and there is no new one
    BPE         a merge is kept if its result is, and so are both its parts: every merge that made a kept piece is still
                there in the same rank, and there is no new one
    Unigram     the best path is kept with the same score, and it has fewer competitors
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
from bothways.text.files import no_text
from bothways.text.new_words import OnBytes, read_batches
from bothways.text.tokenizer import READS_SCRIPTS, Tokenizer

_KINDS = ("WordPiece", "BPE", "Unigram")
_BYTE = re.compile(r"<0x[0-9A-F]{2}>")


def count_pieces(
    files: Sequence[Path | str], tokenizer: Tokenizer, *, field: str | None = None, on_bytes: OnBytes | None = None
) -> NDArray[np.int64]:
    """How often the text uses each piece, by id."""
    counts = np.zeros(tokenizer.size, np.int64)
    for texts in read_batches(files, field, on_bytes):
        encodings = tokenizer.backend.encode_batch_fast(texts, add_special_tokens=False)
        ids = [i for encoding in encodings for i in encoding.ids]
        counts += np.bincount(np.array(ids, np.int64), minlength=len(counts))
    if not counts.any():
        raise no_text(files)
    return counts


def choose_pieces(
    tokenizer: Tokenizer,
    counts: NDArray[np.int64],
    *,
    minimum: int = 1,
    count: int | None = None,
    always: Collection[int] = (),
) -> list[int]:
    """The ids to keep, in order.

    Always kept: `always`, the specials, all single characters, and pieces with a character that is not a piece itself.
    Of the others those that the text uses `minimum` times or more, the most frequent first, up to `count` in all.
    """
    if tokenizer.kind not in _KINDS:
        says = f"a {tokenizer.kind} vocabulary cannot be made smaller: expected {', '.join(_KINDS)}"
        raise BothwaysError(says, "unsupported-tokenizer", tokenizer.kind)
    if minimum < 1:
        raise BothwaysError(f"`minimum` is {minimum}: expected a minimum of 1 or more", "out-of-range", minimum)
    merges = _Merges(tokenizer)
    kept: set[int] = set()
    for i in (*always, *tokenizer.special_ids, *tokenizer("", "").ids, *_characters(tokenizer)):
        kept |= merges.below(i)
    if count is not None and count < len(kept):
        says = f"{count:,} pieces are too few: the specials and single characters alone are {len(kept):,}"
        raise BothwaysError(says, "out-of-range", count)
    used = np.flatnonzero(counts >= minimum)
    for i in used[np.argsort(-counts[used], kind="stable")].tolist():
        needed = merges.below(i)
        if count is None or len(kept | needed) <= count:
            kept |= needed
    return sorted(kept)


def keep_pieces(tokenizer: Tokenizer, kept: Sequence[int]) -> Tokenizer:
    """A tokenizer with these pieces only, numbered from 0 in the order of their old ids."""
    old_ids = sorted(kept)
    new = {tokenizer.piece(old): i for i, old in enumerate(old_ids)}
    state = json.loads(tokenizer.backend.to_str())
    model = state["model"]
    if tokenizer.kind == "Unigram":
        if model["unk_id"] is not None:
            model["unk_id"] = new[tokenizer.piece(model["unk_id"])]
        model["vocab"] = [model["vocab"][i] for i in old_ids if i < len(model["vocab"])]
    else:
        model["vocab"] = {piece: new[piece] for piece in model["vocab"] if piece in new}
    if tokenizer.kind == "BPE":
        joined = _Merges(tokenizer).joined
        model["merges"] = [pair for pair in model["merges"] if joined(pair) in new]
    state["added_tokens"] = [
        {**token, "id": new[token["content"]]} for token in state["added_tokens"] if token["content"] in new
    ]
    state["post_processor"] = _renumbered(state["post_processor"], new)
    smaller = tokenizer.with_backend(tokenizers.Tokenizer.from_str(json.dumps(state, ensure_ascii=False)))
    assert smaller.pieces == [tokenizer.piece(i) for i in old_ids]
    if smaller.scripts >= tokenizer.scripts:
        return smaller
    # Few words are left: the model still reads what it was trained on.
    settings = {**smaller.extra_settings, READS_SCRIPTS: sorted(smaller.scripts | tokenizer.scripts)}
    return Tokenizer(smaller.backend, smaller.roles, settings)


def _characters(tokenizer: Tokenizer) -> list[int]:
    """The ids needed to spell any word: single characters, and pieces with a character that is not a piece itself.

    For Unigram also the piece with the lowest score, because the score of an unknown character depends on it.
    """
    state = json.loads(tokenizer.backend.to_str())["model"]
    inside = state.get("continuing_subword_prefix") or ""
    ending = state.get("end_of_word_suffix") or ""
    names = set(tokenizer.pieces)
    unused = tokenizer.wordless_ids - tokenizer.special_ids
    added = tokenizer.backend.get_added_tokens_decoder()
    found = []
    for i, piece in enumerate(tokenizer.pieces):
        if i in unused or i in added:
            continue
        letters = piece.removeprefix(inside).removesuffix(ending)
        starts = inside and not piece.startswith(inside)
        spelling = [letter if starts and place == 0 else inside + letter for place, letter in enumerate(letters)]
        is_short = len(letters) == 1 or _BYTE.fullmatch(piece)
        if is_short or (tokenizer.kind != "BPE" and not names.issuperset(spelling)):
            found.append(i)
    if (unknown := state.get("unk_token")) in names:
        found.append(tokenizer.id(unknown))
    if tokenizer.kind == "Unigram":
        if state["unk_id"] is not None:
            found.append(state["unk_id"])
        found.append(min(range(len(state["vocab"])), key=lambda i: state["vocab"][i][1]))
    return found


class _Merges:
    """The parts of each piece of a BPE vocabulary; other kinds have no merges."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        state = json.loads(tokenizer.backend.to_str())["model"]
        self.inside = state.get("continuing_subword_prefix") or ""
        self.id = tokenizer.id
        self.parts: dict[int, set[int]] = {}
        for pair in state.get("merges", ()):
            self.parts.setdefault(self.id(self.joined(pair)), set()).update(map(self.id, _pair(pair)))

    def joined(self, pair: Any) -> str:
        left, right = _pair(pair)
        return left + right.removeprefix(self.inside)

    def below(self, piece: int) -> set[int]:
        """The piece and all pieces that any sequence of merges makes it of."""
        found, todo = {piece}, [piece]
        while todo:
            more = self.parts.get(todo.pop(), set()) - found
            found |= more
            todo += more
        return found


def _pair(written: Any) -> Iterable[str]:
    """The two parts of a merge: a list, or in older files a text with a space."""
    return written.split(" ") if isinstance(written, str) else written


def _renumbered(part: Any, new: Mapping[str, int]) -> Any:
    """A post-processor with the new ids of the special tokens."""
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
