"""Late interaction (ColBERT, Khattab and Zaharia 2020): rank documents by the vectors of their tokens.

    score(q, d) = Σ over tokens i of the query of max over tokens j of the document of q_i · d_j

Each query and each document is encoded once, apart from the other: cheaper than a cross-encoder where a text occurs in
several pairs.

N tokens of all sequences · S sequences · P pairs · D dimensions of a vector.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import islice
from pathlib import Path
from typing import get_args

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from bothways.engine.engine import Engine, one_per_token
from bothways.engine.reader import Tally
from bothways.engine.sequences import Indices, Sequences, on_device
from bothways.errors import BothwaysError, require_choice
from bothways.model.batch import Batch
from bothways.model.device import Device, Precision
from bothways.model.late import Expansion, Late, Side
from bothways.model.maxsim import PackedTexts, maxsim
from bothways.model.model import Model
from bothways.predict.encode import TextChunk, text_chunks, warn_of_losses
from bothways.predict.encode_options import Long
from bothways.predict.features import Features
from bothways.predict.given_texts import require_several
from bothways.predict.rerank import (
    Hit,
    Pair,
    Scores,
    Watch,
    as_pair,
    by_score,
    several,
)
from bothways.progress import in_notebook
from bothways.text.tokenizer import Tokenizer

_PAIRS = 4_096
"""Pairs whose texts are encoded and held together."""
_SHARE = 0.125
"""Vectors of tokens take more memory than those of texts: their chunks are smaller."""


@dataclass(frozen=True)
class _Marked:
    """Sequences with their markers and expansion."""

    sequences: Sequences
    counts: NDArray[np.bool_]
    """(N,) whether the vector of a token counts."""
    real: Indices
    """(S,) tokens of each sequence without its expansion, which come first."""
    sizes: Indices
    """Sequences of each text."""


class LateInteraction:
    """A ColBERT folder: of Stanford, of PyLate, or of sentence-transformers' MultiVectorEncoder.

    It has the methods of `Reranker`. Thread-safe.
    """

    def __init__(
        self,
        model: Model | Path | str,
        *,
        device: Device | None = None,
        dtype: Precision | None = None,
        long: Long = "window",
    ) -> None:
        """`long`: documents longer than the folder's maximum length, which is often 180 to 300 tokens.

        In windows, the vectors of all their tokens count, and longer queries are kept whole. "cut" drops the rest, as
        sentence-transformers does, with a warning; "error" refuses. For `device` and `dtype` see `encode`.
        """
        require_choice("`long`", long, get_args(Long))
        self.engine = Engine(model, device=device, dtype=dtype)
        self.model, self.long, self.tally = self.engine.weights("late interaction"), long, Tally()
        if self.model.late is None:
            raise self.model.sentence_error or BothwaysError(
                "this model is no ColBERT: it has no projection for the vectors of its tokens", "not-a-colbert"
            )
        self.late: Late = self.model.late
        tokenizer = self.model.require_tokenizer()
        self._expansion = _expansion_id(self.late.settings.expansion, tokenizer)
        self._sides = {side: _side_of(side, self.late, tokenizer) for side in get_args(Side)}

    def scores(self, pairs: Iterable[Pair], *, watch: Watch = in_notebook) -> Scores:
        """One score for each pair (query, document): the sum over the tokens of the query, or their mean if the folder
        says so."""
        require_several(pairs)
        lost, found = self.tally.cut, self.raw_scores(watch(pairs, "scoring"))
        if self.tally.cut > lost:
            warn_of_losses(self.tally)
        return found

    def raw_scores(self, pairs: Iterable[Pair]) -> Scores:
        """As `scores`. Cut texts are counted in `tally`, without a warning."""
        found, stream = [np.zeros(0, np.float32)], (as_pair(pair).texts for pair in pairs)
        while some := list(islice(stream, _PAIRS)):
            found.append(self._matched(some))
        return np.concatenate(found)

    def rank(
        self, query: str, documents: Sequence[str], top: int | None = None, *, watch: Watch = in_notebook
    ) -> list[Hit]:
        """As `Reranker.rank`."""
        scores = self.scores([(query, text) for text in several(documents, top)], watch=watch)
        return [Hit(i, float(scores[i]), documents[i]) for i in by_score(scores, top)]

    def vectors(self, texts: Iterable[str], side: Side) -> Iterator[tuple[NDArray[np.float32], Indices]]:
        """The vectors of the tokens that count, (N, D), and their number for each text: those of some texts at a time.

        `side`: whether the texts are queries or documents.
        """
        require_choice("`side`", side, get_args(Side))
        own = self._sides[side]
        prompted = (own.prompt + text for text in texts)
        length, long = self._limit(side)
        chunks = text_chunks(prompted, self.model, Features(long=long), self.tally, 0, length, share=_SHARE)
        for chunk, rows in self.engine.run((self._marked(one, side) for one in chunks), self._forward, one_per_token):
            owners = np.repeat(np.repeat(np.arange(len(chunk.sizes)), chunk.sizes), chunk.sequences.lengths)
            yield rows[chunk.counts], np.bincount(owners[chunk.counts], minlength=len(chunk.sizes))

    def _matched(self, pairs: Sequence[Sequence[str]]) -> Scores:
        """The scores of some pairs, whose different texts are encoded once."""
        numbers, packed = np.zeros((len(pairs), 2), np.int64), []
        for column, side in enumerate(get_args(Side)):
            places: dict[str, int] = {}
            numbers[:, column] = [places.setdefault(pair[column], len(places)) for pair in pairs]
            vectors, lengths = zip(*self.vectors(places, side), strict=True)
            packed.append(PackedTexts(on_device(np.concatenate(vectors), self.model.device), np.concatenate(lengths)))
        found: Scores = maxsim(packed[0], packed[1], numbers).cpu().numpy()
        if self.late.settings.is_mean:
            found /= np.maximum(packed[0].lengths[numbers[:, 0]], 1)
        return found

    def _forward(self, batch: Batch, chunk: _Marked, picked: Indices) -> Tensor:
        if not (chunk.real[picked] < chunk.sequences.lengths[picked]).any():
            return self._projected(self.engine.states(batch))
        real = on_device(chunk.real[picked], batch.ids.device)
        expansion = self.late.settings.expansion
        if expansion is not None and not expansion.attend:
            batch = replace(batch, attended=batch.positions < real[batch.owners])
        return self._projected(self.model.encoder(batch))

    def _projected(self, states: Tensor) -> Tensor:
        found: Tensor = self.late(states)
        return found.float()

    def _limit(self, side: Side) -> tuple[int, Long]:
        """The maximum tokens that the tokenizer may give, and what happens to longer texts."""
        settings, most = self.late.settings, self.model.config.encoder.max_length
        room = int(self._sides[side].marker is not None)
        if side == "document":
            return min(settings.document_length or most, most) - room, self.long
        expansion = settings.expansion
        fixed = expansion.length if expansion is not None and expansion.strategy == "fixed" else None
        length = min(fixed or settings.query_length or most, most)
        # A query is one sequence: windows of it would each be expanded.
        return (most - room, "error") if self.long == "window" else (length - room, self.long)

    def _marked(self, chunk: TextChunk, side: Side) -> _Marked:
        """The sequences of a chunk with the marker of their side; queries are expanded."""
        first, stop, _ = chunk.kept
        places = chunk.sequences
        inside = np.arange(len(places.ids)) - np.repeat(places.starts, places.lengths)
        counts = (inside >= np.repeat(first, places.lengths)) & (inside < np.repeat(stop, places.lengths))
        own = self._sides[side]
        counts &= ~np.isin(places.ids, own.skipped)
        sequences = Sequences(places.ids, places.lengths)
        if own.marker is not None:
            before = places.starts + self.model.require_tokenizer().around[0]
            # Later windows begin with the marker too, but it counts once.
            counts = np.insert(counts, before, first == 0)
            sequences = Sequences(np.insert(places.ids, before, own.marker), places.lengths + 1)
        real, expansion = sequences.lengths, self.late.settings.expansion
        if side == "query" and expansion is not None and self._expansion is not None:
            length = min(expansion.length, self.model.config.encoder.max_length)
            missing = np.maximum(length - real, 0)
            ends = np.repeat(np.cumsum(real), missing)
            counts = np.insert(counts, ends, True)
            sequences = Sequences(np.insert(sequences.ids, ends, self._expansion), real + missing)
        return _Marked(sequences, counts, real, chunk.reads.counts)


@dataclass(frozen=True)
class _SideOf:
    """What is put before the texts of a side, and which of their tokens do not count."""

    marker: int | None
    """A token id after [CLS]."""
    prompt: str
    skipped: NDArray[np.int64]


def _side_of(side: Side, late: Late, tokenizer: Tokenizer) -> _SideOf:
    settings = late.settings
    prompt = settings.query if side == "query" else settings.document
    words = settings.skipped if side in settings.skipped_in else ()
    ids = [found for word in words if (found := tokenizer.backend.token_to_id(word)) is not None]
    specials = {tokenizer.piece(i): i for i in tokenizer.special_ids}
    marker = max((name for name in specials if prompt.startswith(name)), key=len, default=None)
    skipped = np.array(ids, np.int64)
    if marker is None:
        return _SideOf(None, prompt, skipped)
    return _SideOf(specials[marker], prompt.removeprefix(marker), skipped)


def _expansion_id(expansion: Expansion | None, tokenizer: Tokenizer) -> int | None:
    if expansion is None:
        return None
    token = expansion.token or tokenizer.mask or tokenizer.roles.get("eos_token") or tokenizer.roles.get("sep_token")
    if token is None:
        raise BothwaysError("this ColBERT expands queries, and its tokenizer has no mask token", "no-mask-token")
    return tokenizer.id(token)
