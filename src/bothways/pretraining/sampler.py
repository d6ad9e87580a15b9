"""Turn a corpus into the sequences that a model reads.

Every sampler is a pure function from a number to a sequence: `plan` decides which tokens (and so the length), `build`
reads them and adds [CLS] and [SEP]. Both work on a whole batch at once: B sequences, N tokens.

    documents   a document, or an equal part of one that is too long
    stream      running text, documents separated by [SEP], every sequence full (RoBERTa's full sentences)
    next        A and B: B follows A, or comes from another document (BERT)
    order       A and B follow one another, or are swapped (ALBERT)
"""

from dataclasses import dataclass, replace
from typing import Literal, Protocol

import numpy as np
from numpy.typing import NDArray

from bothways.errors import BothwaysError
from bothways.hash_rng import Keys, below, mix, uniform
from bothways.pretraining.shards import Corpus, Numbers, ranges
from bothways.text.tokenizer import Tokenizer

SamplingKind = Literal["documents", "stream", "next", "order"]

# The purpose of a random draw is part of its key, so that two draws for one sequence are independent.
_SHORT, _TARGET, _CUT, _COIN, _DOCUMENT, _SENTENCE, _FRONT_A, _FRONT_B, _ANYWHERE = range(100, 109)


@dataclass(frozen=True)
class SpecialIds:
    """The ids of [CLS] and [SEP]."""

    cls: int
    sep: int

    @classmethod
    def of(cls, tokenizer: Tokenizer) -> "SpecialIds":
        missing = [role for role in ("cls_token", "sep_token") if role not in tokenizer.roles]
        if missing:
            raise BothwaysError(
                f"this tokenizer has no {' and no '.join(missing)}: pretraining needs both",
                "no-special-token",
                tuple(missing),
            )
        return cls(tokenizer.id(tokenizer.roles["cls_token"]), tokenizer.id(tokenizer.roles["sep_token"]))


@dataclass(frozen=True)
class RawSequences:
    """Sequences before masking, concatenated."""

    ids: Numbers
    """(N,)"""
    segments: Numbers
    """(N,)"""
    cu_seqlens: Numbers
    """(B+1,) where each sequence starts, and the end."""
    word_starts: NDArray[np.bool_]
    """(N,) True where a word starts, and at special tokens."""
    special: NDArray[np.bool_]
    """(N,) True for [CLS] and [SEP]."""
    keys: Keys
    """(B,) the random key of each sequence."""
    pair_labels: Numbers | None = None
    """(B,) of pairs: 0 if B follows A, 1 if not."""

    @property
    def sequence(self) -> Numbers:
        """(N,) the number of the sequence that each token is in."""
        return np.repeat(np.arange(len(self.cu_seqlens) - 1), np.diff(self.cu_seqlens))

    @property
    def positions(self) -> Numbers:
        """(N,) the position of each token in its sequence."""
        positions: Numbers = np.arange(len(self.ids)) - np.repeat(self.cu_seqlens[:-1], np.diff(self.cu_seqlens))
        return positions


@dataclass(frozen=True)
class Spans:
    """The stretches of text of each sequence: A, and B for pairs. Lengths in tokens."""

    keys: Keys
    a: Numbers
    a_length: Numbers
    b: Numbers | None = None
    b_length: Numbers | None = None
    pair_labels: Numbers | None = None

    @property
    def lengths(self) -> Numbers:
        """(B,) with special tokens."""
        return self.a_length + 2 if self.b_length is None else self.a_length + self.b_length + 3

    def slice(self, start: int, end: int) -> "Spans":
        """The sequences start … end-1."""
        return Spans(*(None if x is None else x[start:end] for x in vars(self).values()))  # type: ignore[arg-type]


class Sampler(Protocol):
    """`size` sequences in one epoch, each a function of its number."""

    size: int

    def plan(self, places: Numbers, keys: Keys) -> Spans: ...

    def build(self, spans: Spans) -> RawSequences: ...


def make_sampler(
    kind: SamplingKind, corpus: Corpus, special_ids: SpecialIds, length: int, short: float = 0.0
) -> Sampler:
    """A sampler of this kind for sequences of up to `length` tokens, special tokens included."""
    if kind == "stream":
        return Stream(corpus, special_ids, length)
    if kind == "documents":
        return DocumentParts(corpus, special_ids, length)
    return SentencePairs(corpus, special_ids, length, kind, short)


class DocumentParts:
    """A document, or equal parts of one that is too long."""

    def __init__(self, corpus: Corpus, special_ids: SpecialIds, length: int) -> None:
        self.corpus, self.special_ids, self.text_length = corpus, special_ids, length - 2
        self.counts = -(-np.diff(corpus.document_starts) // self.text_length)
        self.starts = np.concatenate([[0], np.cumsum(self.counts)])
        self.size = int(self.starts[-1])

    def plan(self, places: Numbers, keys: Keys) -> Spans:
        document = np.searchsorted(self.starts, places, side="right") - 1
        part, parts = places - self.starts[document], self.counts[document]
        begin, end = self.corpus.document_starts[document], self.corpus.document_starts[document + 1]
        cuts = [begin + (end - begin) * number // parts for number in (part, part + 1)]
        return Spans(keys, cuts[0], cuts[1] - cuts[0])

    def build(self, spans: Spans) -> RawSequences:
        return _assemble(self.corpus, self.special_ids, spans)


class Stream:
    """Running text cut into full sequences, with a [SEP] between documents."""

    def __init__(self, corpus: Corpus, special_ids: SpecialIds, length: int) -> None:
        self.corpus, self.special_ids, self.text_length = corpus, special_ids, length - 2
        # With the separators, document d starts d tokens later.
        self.starts = corpus.document_starts + np.arange(corpus.documents + 1)
        self.size = int(self.starts[-1]) // self.text_length
        if not self.size:
            raise BothwaysError(
                f"the text has only {corpus.tokens} tokens, less than one sequence of {length}: add text, or set "
                "shorter phases",
                "too-little-text",
                corpus.tokens,
            )

    def plan(self, places: Numbers, keys: Keys) -> Spans:
        return Spans(keys, places * self.text_length, np.full(places.shape, self.text_length))

    def build(self, spans: Spans) -> RawSequences:
        begin = spans.a[:, None] + np.arange(self.text_length)
        document = np.searchsorted(self.starts, begin, side="right") - 1
        between = begin + 1 == self.starts[document + 1]
        text = (begin - document)[~between]
        rows = _assemble(self.corpus, self.special_ids, replace(spans, a_length=(~between).sum(1)), text)
        # The text so far lacks the separators: distribute it over full sequences.
        full = np.pad(~between, ((0, 0), (1, 1)), constant_values=True).ravel()
        columns = np.full(full.shape, self.special_ids.sep), np.ones(full.shape, bool), np.ones(full.shape, bool)
        for target, source in zip(columns, (rows.ids, rows.word_starts, rows.special), strict=True):
            target[full] = source
        cu_seqlens = np.arange(len(spans.a) + 1) * (self.text_length + 2)
        return RawSequences(columns[0], np.zeros_like(columns[0]), cu_seqlens, columns[1], columns[2], spans.keys)


class SentencePairs:
    """Two stretches of whole sentences: [CLS] A [SEP] B [SEP].

    BERT's procedure as a function of the sequence number. A chunk of sentences fills the sequence (or, with probability
    `short`, a random shorter length) and is cut in two at a random sentence. For "next", B is the second half or, with
    probability 1/2, a stretch from another document; for "order", the halves are swapped with probability 1/2. A pair
    that is too long loses tokens of the longer text, each at its front or its back with probability 1/2.

    BERT walks through a document and puts the second half back when it was not used. Here chunk j begins with the
    first sentence after j · text_length tokens, so that any chunk is found directly; what one epoch leaves out, another
    uses. If that sentence is more than a chunk away, the chunk begins with the sentence at that point. A text that
    loses more than a sequence holds, as such a sentence does, loses a uniformly random part of it at the front:
    independent choices would always leave the middle.
    """

    def __init__(self, corpus: Corpus, special_ids: SpecialIds, length: int, kind: SamplingKind, short: float) -> None:
        self.corpus, self.special_ids, self.text_length = corpus, special_ids, length - 3
        self.kind, self.short = kind, short
        lengths = np.diff(corpus.document_starts)
        self.counts = np.where(
            lengths > 1, -(-lengths // self.text_length), 0
        )  # one token cannot be split into two texts
        self.starts = np.concatenate([[0], np.cumsum(self.counts)])
        self.size = int(self.starts[-1])
        if not self.size:
            raise BothwaysError(
                "pairs need documents of two tokens or more, but every document has one", "no-pairs", kind
            )
        if kind == "next":
            if corpus.documents < 2:
                raise BothwaysError(
                    "pairs of different documents need two documents or more, but this text is one document",
                    "no-pairs",
                    kind,
                )
            if np.diff(corpus.document_sentences).max() < 2:
                raise BothwaysError(
                    "pairs of consecutive sentences need documents of two sentences or more, but every document has "
                    "one: pack the text again with empty lines between documents, or change objectives",
                    "no-pairs",
                    kind,
                )

    def plan(self, places: Numbers, keys: Keys) -> Spans:
        corpus = self.corpus
        document = np.searchsorted(self.starts, places, side="right") - 1
        opening, last = corpus.document_sentences[document], corpus.document_sentences[document + 1]
        begin, end = corpus.document_starts[document], corpus.document_starts[document + 1]
        place = begin + (places - self.starts[document]) * self.text_length
        from_ = corpus.sentences_from(place)
        from_ -= (
            np.where(from_ < last, corpus.sentence_starts(np.minimum(from_, last - 1)), end) - place > self.text_length
        )
        from_ = np.maximum(opening, np.minimum(from_, last - 2))
        is_short = uniform(mix(keys, _SHORT)) < self.short
        target = np.where(is_short, 2 + below(mix(keys, _TARGET), self.text_length - 1), self.text_length)
        a = corpus.sentence_starts(from_)
        to = np.minimum(np.maximum(corpus.sentences_from(a + target), from_ + 2), last)
        stop = np.where(to == last, end, corpus.sentence_starts(to))
        # Cut before a random sentence other than the first; a single sentence is cut at a random token.
        middle = corpus.sentence_starts(np.minimum(from_ + 1 + below(mix(keys, _CUT), to - from_ - 1), last - 1))
        alone = to - from_ < 2
        middle = np.where(alone, a + 1 + below(mix(keys, _CUT), stop - a - 1), middle)
        coin = uniform(mix(keys, _COIN)) < 0.5
        if self.kind == "order":
            first, second = (a, middle - a), (middle, stop - middle)
            # (start, length) of both texts, swapped where the coin is True.
            head, tail = (
                [np.where(coin, x, y) for x, y in zip(*order, strict=True)]
                for order in ((second, first), (first, second))
            )
            return self._cut(Spans(keys, head[0], head[1], tail[0], tail[1], coin.astype(np.int64)))
        coin |= alone  # a single sentence has no next one
        middle = np.where(alone, stop, middle)
        b, b_stop = self._elsewhere(document, target - (middle - a), keys)
        b, b_stop = np.where(coin, b, middle), np.where(coin, b_stop, stop)
        return self._cut(Spans(keys, a, middle - a, b, b_stop - b, coin.astype(np.int64)))

    def _elsewhere(self, document: Numbers, wanted: Numbers, keys: Keys) -> tuple[Numbers, Numbers]:
        """A stretch of about `wanted` tokens from a random sentence of another document."""
        corpus = self.corpus
        other = below(mix(keys, _DOCUMENT), corpus.documents - 1)
        other += other >= document
        first, last = corpus.document_sentences[other], corpus.document_sentences[other + 1]
        from_ = first + below(mix(keys, _SENTENCE), last - first)
        begin = corpus.sentence_starts(from_)
        to = np.maximum(corpus.sentences_from(begin + np.maximum(wanted, 1)), from_ + 1)
        return begin, np.where(to >= last, corpus.document_starts[other + 1], corpus.sentence_starts(to))

    def _cut(self, spans: Spans) -> Spans:
        """Cut pairs to the text length: always from the longer text, from B when they are equal."""
        assert spans.b is not None
        assert spans.b_length is not None
        a, b = spans.a_length, spans.b_length
        excess = np.maximum(a + b - self.text_length, 0)
        gap = np.abs(a - b)
        rest = np.maximum(excess - gap, 0)
        first = np.minimum(excess, gap)  # what the longer text loses before both are equal
        from_a = np.where(a > b, first, 0) + rest // 2
        from_b = np.where(a > b, 0, first) + rest - rest // 2
        return replace(
            spans,
            a=spans.a + self._front(mix(spans.keys, _FRONT_A), from_a),
            a_length=a - from_a,
            b=spans.b + self._front(mix(spans.keys, _FRONT_B), from_b),
            b_length=b - from_b,
        )

    def _front(self, keys: Keys, lost: Numbers) -> Numbers:
        """How many of the lost tokens are at the front of a text."""
        is_much = lost > self.text_length
        return np.where(is_much, below(mix(keys, _ANYWHERE), lost + 1), _heads(keys, np.where(is_much, 0, lost)))

    def build(self, spans: Spans) -> RawSequences:
        return _assemble(self.corpus, self.special_ids, spans)


def _heads(keys: Keys, flips: Numbers) -> Numbers:
    """The number of heads in `flips` coin flips."""
    heads = np.zeros(flips.shape, np.int64)
    for word in range(0, int(flips.max(initial=0)), 64):
        bits = np.clip(flips - word, 0, 64).astype(np.uint64)
        coins = np.where(bits > 0, mix(keys, word) >> (np.uint64(64) - np.maximum(bits, 1)), 0)
        heads += np.bitwise_count(coins.astype(np.uint64))
    return heads


def _assemble(corpus: Corpus, special_ids: SpecialIds, spans: Spans, text: Numbers | None = None) -> RawSequences:
    """[CLS] A [SEP], or [CLS] A [SEP] B [SEP]. `text`: the positions of A's tokens, if they are not consecutive."""
    cu_seqlens = np.concatenate([[0], np.cumsum(spans.lengths)])
    is_text = np.ones(int(cu_seqlens[-1]), bool)
    is_text[cu_seqlens[:-1]] = False
    is_text[cu_seqlens[:-1] + 1 + spans.a_length] = False
    segments = np.zeros(len(is_text), np.int64)
    starts, lengths = spans.a, spans.a_length
    if spans.b is not None and spans.b_length is not None:
        is_text[cu_seqlens[1:] - 1] = False
        in_b = spans.b_length + 1
        segments[ranges(cu_seqlens[1:] - in_b, in_b)] = 1
        starts = np.stack([spans.a, spans.b], 1).ravel()
        lengths = np.stack([spans.a_length, spans.b_length], 1).ravel()
    if text is not None:
        starts, lengths = text, np.ones_like(text)
    ids = np.full(len(is_text), special_ids.sep)
    ids[cu_seqlens[:-1]] = special_ids.cls
    words = np.ones(len(is_text), bool)
    ids[is_text], words[is_text] = corpus.take(starts, lengths)
    return RawSequences(ids, segments, cu_seqlens, words, ~is_text, spans.keys, spans.pair_labels)
