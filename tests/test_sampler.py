"""Sequences out of documents: which tokens stand in them, what stands around them, and what B has to do with A.

Every token of the texts here has an id of its own, so a sequence says where it came from.
"""

import bisect
import itertools
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, fields

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray
from scipy import stats  # type: ignore[import-untyped]

from bothways.hash_rng import Keys, mix
from bothways.pretraining.sampler import (
    DocumentParts,
    RawSequences,
    Sampler,
    SamplingKind,
    SentencePairs,
    Spans,
    SpecialIds,
    Stream,
    make_sampler,
)
from bothways.pretraining.shards import Corpus, Shard
from bothways.text.tokenizer import Tokenizer
from helpers import refused

# Every key below is fixed, so no test is ever unlucky; the bound says how unlucky fair draws would have to be.
FAIR = 1e-4
MARKS = SpecialIds(cls=1, sep=2)
FIRST = 10
"""The id of the first token of a text; that of token T is FIRST + T."""
KINDS: tuple[SamplingKind, ...] = ("documents", "stream", "next", "order")

Document = list[int]
"""The lengths of its sentences."""


@dataclass(frozen=True)
class Text:
    """A corpus, and the same as plain lists. Places count through all of its tokens."""

    corpus: Corpus
    documents: list[range]
    sentences: list[list[range]]
    """By document."""
    words: list[bool]

    @property
    def starts(self) -> set[int]:
        """Where sentences start; and the end."""
        return {s.start for document in self.sentences for s in document} | {len(self.words)}

    def document_of(self, place: int) -> int:
        found = bisect.bisect(self.documents, place, key=lambda places: places.start) - 1
        assert place in self.documents[found]
        return found


def make_text(documents: Sequence[Document], shards: int = 3, seed: int = 0) -> Text:
    """Documents in about equal shares of `shards`, as words of one to three tokens."""
    shards = min(shards, len(documents))
    draws = np.random.default_rng(seed)
    total = sum(map(sum, documents))
    words = (draws.random(total) < 0.6).tolist()
    cuts = np.linspace(0, len(documents), shards + 1).astype(int).tolist()
    parts, base = [], 0
    for name, (first, last) in enumerate(itertools.pairwise(cuts)):
        lengths = [n for document in documents[first:last] for n in document]
        size = sum(lengths)
        parts.append(
            Shard(
                name=str(name),
                source="text",
                tokens=np.arange(FIRST + base, FIRST + base + size, dtype=np.uint32),
                words=np.packbits(words[base : base + size]),
                sentences=np.cumsum([0, *lengths]).astype(np.int32),
                documents=np.cumsum([0, *map(len, documents[first:last])]).astype(np.int32),
            )
        )
        base += size
    ends = itertools.accumulate(n for document in documents for n in document)
    sentences = iter([range(end - n, end) for end, n in zip(ends, itertools.chain(*documents), strict=True)])
    grouped = [list(itertools.islice(sentences, len(document))) for document in documents]
    whole = [range(group[0].start, group[-1].stop) for group in grouped]
    return Text(Corpus(parts), whole, grouped, words)


def random_documents(count: int, seed: int = 0, most: int = 12, longest: int = 15) -> list[Document]:
    draws = np.random.default_rng(seed)
    return [draws.integers(1, longest + 1, draws.integers(1, most + 1)).tolist() for _ in range(count)]


DOCUMENTS = st.lists(st.lists(st.integers(1, 12), min_size=1, max_size=8), min_size=2, max_size=9)
TEXTS = st.builds(make_text, DOCUMENTS, st.integers(1, 4), st.integers(0, 99))


def keys_for(places: NDArray[np.int64], seed: int = 0) -> Keys:
    return mix(seed, places)


def epoch(made: Sampler, seed: int = 0) -> tuple[Spans, RawSequences]:
    """All sequences of one epoch."""
    places = np.arange(made.size)
    spans = made.plan(places, keys_for(places, seed))
    return spans, made.build(spans)


@dataclass(frozen=True)
class Row:
    """One sequence, taken apart."""

    ids: list[int]
    segments: list[int]
    words: list[bool]
    special: list[bool]
    follows: int | None

    def stretches(self) -> list[range]:
        """Where its tokens come from: the runs between specials. Fails if one is not consecutive."""
        found = []
        for is_mark, run in itertools.groupby(self.ids, lambda i: i < FIRST):
            if not is_mark:
                places = [i - FIRST for i in run]
                assert places == list(range(places[0], places[-1] + 1))
                found.append(range(places[0], places[-1] + 1))
        return found


def apart(rows: RawSequences) -> list[Row]:
    assert rows.cu_seqlens[0] == 0
    assert rows.cu_seqlens[-1] == len(rows.ids) == len(rows.segments) == len(rows.word_starts) == len(rows.special)
    found = []
    for b, (start, end) in enumerate(itertools.pairwise(rows.cu_seqlens.tolist())):
        ids, segments, words, special = (
            x[start:end].tolist() for x in (rows.ids, rows.segments, rows.word_starts, rows.special)
        )
        found.append(Row(ids, segments, words, special, None if rows.pair_labels is None else int(rows.pair_labels[b])))
    return found


def check_marks(row: Row, text: Text) -> None:
    """Specials are flagged as such, and the word bits are those of the text."""
    assert row.special == [i < FIRST for i in row.ids]
    assert row.words == [True if i < FIRST else text.words[i - FIRST] for i in row.ids]


# ---------------------------------------------------------------------- documents


@given(TEXTS, st.integers(4, 40))
@settings(max_examples=50)
def test_documents_are_read_whole_and_once(text: Text, length: int) -> None:
    spans, rows = epoch(DocumentParts(text.corpus, MARKS, length))
    parts: dict[int, list[range]] = {}
    for row, planned in zip(apart(rows), spans.lengths.tolist(), strict=True):
        assert len(row.ids) == planned <= length
        assert row.ids[0] == MARKS.cls
        assert row.ids[-1] == MARKS.sep
        assert row.segments == [0] * len(row.ids)
        assert row.follows is None
        check_marks(row, text)
        (stretch,) = row.stretches()
        assert len(stretch) == len(row.ids) - 2
        parts.setdefault(text.document_of(stretch.start), []).append(stretch)
    for d, places in enumerate(text.documents):
        assert [i for part in parts[d] for i in part] == list(places)  # all of it, in order, nothing twice
        sizes = [len(part) for part in parts[d]]
        assert max(sizes) - min(sizes) <= 1
        assert len(sizes) == -(-len(places) // (length - 2))  # no more parts than needed


def test_a_document_that_just_fits_is_one_sequence() -> None:
    text = make_text([[10, 10], [10, 11], [9, 10]])
    _, rows = epoch(DocumentParts(text.corpus, MARKS, length=22))
    assert np.diff(rows.cu_seqlens).tolist() == [22, 12, 13, 21]


# ---------------------------------------------------------------------- stream


@given(TEXTS, st.integers(4, 40))
@settings(max_examples=50)
def test_a_stream_is_the_text_with_a_mark_after_each_document(text: Text, length: int) -> None:
    whole = [i for places in text.documents for i in [*(FIRST + place for place in places), MARKS.sep]]
    if len(whole) < length - 2:
        with refused("too-little-text", text.corpus.tokens):
            Stream(text.corpus, MARKS, length)
        return
    spans, rows = epoch(Stream(text.corpus, MARKS, length))
    made = apart(rows)
    for row, planned in zip(made, spans.lengths.tolist(), strict=True):
        assert len(row.ids) == planned == length
        assert row.ids[0] == MARKS.cls
        assert row.ids[-1] == MARKS.sep
        assert MARKS.cls not in row.ids[1:]
        assert row.segments == [0] * length
        assert row.follows is None
        check_marks(row, text)
    read = [i for row in made for i in row.ids[1:-1]]
    assert read == whole[: len(read)]
    assert len(whole) - len(read) < length - 2  # only what does not fill a sequence is left


# ---------------------------------------------------------------------- pairs, both kinds


def two(row: Row) -> tuple[range, range]:
    """A and B, of a sequence that has the form of a pair."""
    a, b = row.stretches()
    assert len(a) >= 1
    assert len(b) >= 1
    assert [i for i in row.ids if i < FIRST] == [MARKS.cls, MARKS.sep, MARKS.sep]
    assert (row.ids[0], row.ids[1 + len(a)], row.ids[-1]) == (MARKS.cls, MARKS.sep, MARKS.sep)
    assert row.segments == [0] * (len(a) + 2) + [1] * (len(b) + 1)
    return a, b


class Uncut(SentencePairs):
    """Remembers what the pairs were before anything was cut off."""

    uncut: Spans

    def _cut(self, spans: Spans) -> Spans:
        self.uncut = spans
        return super()._cut(spans)


@dataclass(frozen=True)
class Pair:
    a: range
    b: range
    whole_a: range
    """Before it was cut."""
    whole_b: range
    follows: int
    document: int
    """Of the chunk."""


def pairs(text: Text, length: int, kind: SamplingKind, short: float, seed: int = 0) -> list[Pair]:
    """An epoch of pairs, after a check of all that holds for every one."""
    made = Uncut(text.corpus, MARKS, length, kind, short)
    spans, rows = epoch(made, seed)
    before = made.uncut
    assert before.b is not None
    assert before.b_length is not None
    found = []
    for k, (row, planned) in enumerate(zip(apart(rows), spans.lengths.tolist(), strict=True)):
        assert len(row.ids) == planned <= length
        check_marks(row, text)
        a, b = two(row)
        assert row.follows in (0, 1)
        whole_a = range(int(before.a[k]), int(before.a[k] + before.a_length[k]))
        whole_b = range(int(before.b[k]), int(before.b[k] + before.b_length[k]))
        assert set(a) <= set(whole_a)
        assert set(b) <= set(whole_b)
        document = int(np.searchsorted(made.starts, k, side="right")) - 1
        found.append(Pair(a, b, whole_a, whole_b, row.follows, document))
    return found


def bert_lengths(a: int, b: int, room: int) -> tuple[int, int]:
    """BERT's rule, one token after the other."""
    while a + b > room:
        if a > b:
            a -= 1
        else:
            b -= 1
    return a, b


PAIRS: tuple[SamplingKind, ...] = ("next", "order")


@pytest.mark.parametrize("kind", PAIRS)
@given(text=TEXTS, length=st.integers(8, 40), short=st.sampled_from([0.0, 0.3, 1.0]))
@settings(max_examples=40)
def test_pairs_obey_the_rules(kind: SamplingKind, text: Text, length: int, short: float) -> None:
    assume(max(map(len, text.sentences if kind == "next" else text.documents)) > 1)
    room = length - 3
    for pair in pairs(text, length, kind, short):
        assert (len(pair.a), len(pair.b)) == bert_lengths(len(pair.whole_a), len(pair.whole_b), room)
        if len(pair.whole_a) + len(pair.whole_b) <= room:
            assert (pair.a, pair.b) == (pair.whole_a, pair.whole_b)
        own, sentences = text.documents[pair.document], text.sentences[pair.document]
        assert set(pair.whole_a) <= set(own)
        if kind == "next" and pair.follows:
            assert text.document_of(pair.whole_b.start) != pair.document
            assert text.document_of(pair.whole_b.stop - 1) == text.document_of(pair.whole_b.start)
            edges = {pair.whole_a.start, pair.whole_a.stop, pair.whole_b.start, pair.whole_b.stop}
            assert edges <= text.starts
            continue
        first, second = (pair.whole_b, pair.whole_a) if pair.follows else (pair.whole_a, pair.whole_b)
        assert first.stop == second.start
        assert set(second) <= set(own)
        edges = {first.start, second.start, second.stop}
        assert len(edges - text.starts) <= (len(sentences) == 1)  # a lone sentence is cut somewhere inside


@pytest.mark.parametrize("kind", PAIRS)
def test_a_chunk_fills_the_sequence_and_no_more(kind: SamplingKind) -> None:
    """Sentences are added until the sequence is full; one that is not full ends with its document."""
    text, room = make_text(random_documents(60, seed=5)), 40
    for pair in pairs(text, room + 3, kind, short=0.0):
        if kind == "next" and pair.follows:
            chunks = [(pair.whole_b, room - len(pair.whole_a), 1)]
        else:
            chunk = range(min(pair.whole_a.start, pair.whole_b.start), max(pair.whole_a.stop, pair.whole_b.stop))
            chunks = [(chunk, room, 2)]
        for chunk, wanted, least in chunks:
            d = text.document_of(chunk.start)
            inside = [s for s in text.sentences[d] if s.start in chunk]
            if chunk.stop < text.documents[d].stop:
                assert len(chunk) >= wanted
            if len(inside) > least:
                assert len(chunk) - len(inside[-1]) < wanted


@pytest.mark.parametrize("kind", PAIRS)
@given(documents=DOCUMENTS, length=st.integers(8, 30))
@settings(max_examples=30)
def test_an_epoch_starts_in_every_document(kind: SamplingKind, documents: list[Document], length: int) -> None:
    text = make_text([*documents, [3, 3]])
    seen = Counter(pair.document for pair in pairs(text, length, kind, short=0.1))
    for d, places in enumerate(text.documents):
        expected = -(-len(places) // (length - 3)) if len(places) > 1 else 0  # one token cannot be two texts
        assert seen[d] == expected


@pytest.mark.parametrize("kind", PAIRS)
def test_the_chunks_of_a_document_begin_all_over_it(kind: SamplingKind) -> None:
    """Chunk j begins with the first sentence past j · room tokens, unless only one sentence is left there; or with the
    sentence that is there, if that is so long that the next one is more than a chunk away."""
    long = [[10, 300, 20, 20], [300, 5], [4, 90], [30, 60, 90, 1]]
    text, room = make_text([*random_documents(30, seed=2, most=30), *long]), 20
    made = pairs(text, room + 3, kind, short=0.1)
    for d, group in itertools.groupby(made, lambda pair: pair.document):
        starts = [s.start for s in text.sentences[d]]
        allowed = starts[:-1] or starts
        for j, pair in enumerate(group):
            begin = text.documents[d].start + j * room
            ahead = next((start for start in starts if start >= begin), text.documents[d].stop)
            wanted = begin if ahead - begin <= room else max(start for start in starts if start <= begin)
            expected = next((start for start in allowed if start >= wanted), allowed[-1])
            swapped = kind == "order" and pair.follows
            assert (pair.whole_b if swapped else pair.whole_a).start == expected


# Sentences of one token: every cut and every length can be had, so all choices show.
FINE = [[1] * 60 for _ in range(200)]


@pytest.mark.parametrize("kind", PAIRS)
def test_the_cut_is_anywhere_between_sentences(kind: SamplingKind) -> None:
    room = 12
    made = pairs(make_text(FINE), room + 3, kind, short=0.0)
    cuts = []
    for pair in made:
        swapped = kind == "order" and pair.follows == 1
        cuts.append(len(pair.whole_b if swapped else pair.whole_a))
    assert stats.chisquare(np.bincount(cuts, minlength=room)[1:room]).pvalue > FAIR
    assert max(cuts) == room - 1


@pytest.mark.parametrize("kind", PAIRS)
@pytest.mark.parametrize("short", [0.0, 0.1, 0.5, 1.0])
def test_so_many_sequences_are_short(kind: SamplingKind, short: float) -> None:
    text, room = make_text(FINE), 12  # divides the documents, so every chunk could be full
    made = pairs(text, room + 3, kind, short)
    lengths = [
        len(pair.whole_a) + len(pair.whole_b)
        for pair in made
        # Another document must be long enough from where B starts.
        if text.documents[text.document_of(pair.whole_b.start)].stop - pair.whole_b.start >= room
        or not (kind == "next" and pair.follows)
    ]
    assert len(lengths) > 0.8 * len(made)
    # A short target is anything from 2 to the room itself.
    chances = np.full(room - 1, short / (room - 1))
    chances[-1] += 1 - short
    counts = np.bincount(lengths, minlength=room + 1)[2:]
    assert counts.sum() == len(lengths)
    possible = chances > 0
    assert not counts[~possible].any()
    if short:
        assert stats.chisquare(counts, chances * len(lengths)).pvalue > FAIR
        shorter = int(counts[:-1].sum())
        assert stats.binomtest(shorter, len(lengths), short * (room - 2) / (room - 1)).pvalue > FAIR


@pytest.mark.parametrize("kind", PAIRS)
@pytest.mark.parametrize("short", [0.0, 0.1])
def test_half_of_the_labels_are_one(kind: SamplingKind, short: float) -> None:
    documents = [[n + 1 for n in document] * 2 for document in random_documents(300, seed=4)]  # two sentences or more
    made = pairs(make_text(documents), 35, kind, short)
    assert len(made) > 1_000
    assert stats.binomtest(sum(pair.follows for pair in made), len(made)).pvalue > FAIR
    truncated = [pair for pair in made if len(pair.whole_a) + len(pair.whole_b) > 32]
    assert len(truncated) > 300


def test_the_choices_of_a_pair_know_nothing_of_one_another() -> None:
    """Whether it is short, where it is cut and whether it is swapped: each is a draw of its own."""
    made = pairs(make_text(FINE), 15, "order", short=0.5)
    seen = []
    for pair in made:
        size = len(pair.whole_a) + len(pair.whole_b)
        cut = len(pair.whole_b if pair.follows else pair.whole_a)
        if 2 * cut != size:  # before or after the middle, which is as likely whatever the size
            seen.append((pair.follows, size, 2 * cut < size))
    labels, sizes, early = (np.array(column) for column in zip(*seen, strict=True))
    for a, b in ((labels, sizes < 12), (labels, sizes < 6), (labels, early), (early[sizes > 7], sizes[sizes > 7] < 12)):
        table = np.zeros((2, 2), np.int64)
        np.add.at(table, (a.astype(int), b.astype(int)), 1)
        assert stats.chi2_contingency(table).pvalue > FAIR


@pytest.mark.parametrize("kind", PAIRS)
def test_another_key_is_another_choice(kind: SamplingKind) -> None:
    text = make_text(random_documents(60, seed=1))
    first, second = pairs(text, 30, kind, 0.1, seed=0), pairs(text, 30, kind, 0.1, seed=1)
    assert first == pairs(text, 30, kind, 0.1, seed=0)
    assert [pair.document for pair in first] == [pair.document for pair in second]
    labels = [(a.follows, b.follows) for a, b in zip(first, second, strict=True)]
    assert set(labels) == {(0, 0), (0, 1), (1, 0), (1, 1)}


# ---------------------------------------------------------------------- next


def test_a_lone_sentence_is_never_followed() -> None:
    text = make_text([[20] if k % 2 else [10, 10] for k in range(400)])
    made = pairs(text, 43, "next", short=0.1)
    lone = [pair for pair in made if pair.document % 2]
    assert {pair.follows for pair in lone} == {1}
    assert all(pair.whole_a == text.documents[pair.document] for pair in lone)
    others = [pair.follows for pair in made if not pair.document % 2]
    assert stats.binomtest(sum(others), len(others)).pvalue > FAIR


def test_b_comes_from_any_other_document_as_likely() -> None:
    """Small documents as often as large ones, neighbours as often as others, the own one never."""
    count, rounds = 12, 60
    documents = [[2] * (5 + 3 * k) for k in range(count)]
    text = make_text(documents, shards=4)
    drawn = [
        (pair.document, text.document_of(pair.whole_b.start))
        for seed in range(rounds)
        for pair in pairs(text, 23, "next", 0.0, seed)
        if pair.follows
    ]
    assert all(own != other for own, other in drawn)
    offsets = np.bincount([(other - own) % count for own, other in drawn], minlength=count)[1:]
    for own in (0, count - 1):  # the ends are where a skipped number goes wrong
        others = np.bincount([other for d, other in drawn if d == own], minlength=count)
        assert stats.chisquare(np.delete(others, own)).pvalue > FAIR
    assert stats.chisquare(offsets).pvalue > FAIR


def test_b_starts_at_any_sentence_as_likely() -> None:
    text = make_text([[3] * 8 for _ in range(40)])
    begun = [
        text.sentences[text.document_of(pair.whole_b.start)].index(range(pair.whole_b.start, pair.whole_b.start + 3))
        for seed in range(12)
        for pair in pairs(text, 15, "next", 0.0, seed)
        if pair.follows
    ]
    assert stats.chisquare(np.bincount(begun, minlength=8)).pvalue > FAIR


def test_where_b_starts_says_nothing_of_its_document() -> None:
    text = make_text([[1] * 8 for _ in range(8)])
    table = np.zeros((8, 8), np.int64)
    for seed in range(80):
        for pair in pairs(text, 11, "next", 0.0, seed):
            if pair.follows:
                other = text.document_of(pair.whole_b.start)
                table[other, pair.whole_b.start - text.documents[other].start] += 1
    assert stats.chi2_contingency(table).pvalue > FAIR


def test_next_needs_two_documents() -> None:
    with refused("no-pairs", "next"):
        make_sampler("next", make_text([[5, 5, 5]]).corpus, MARKS, 20)
    assert make_sampler("order", make_text([[5, 5, 5]]).corpus, MARKS, 20).size == 1


def test_next_needs_a_document_of_two_sentences() -> None:
    with refused("no-pairs", "next"):
        make_sampler("next", make_text([[5], [50], [7]]).corpus, MARKS, 20)
    assert make_sampler("next", make_text([[5], [50], [7, 1]]).corpus, MARKS, 20).size == 1 + 3 + 1
    assert make_sampler("order", make_text([[5], [50], [7]]).corpus, MARKS, 20).size == 1 + 3 + 1


# ---------------------------------------------------------------------- order


def test_swapped_halves_are_the_same_halves() -> None:
    """The label is told by the order alone: both halves may come first, at any length."""
    made = pairs(make_text(FINE), 15, "order", short=0.1)
    for pair in made:
        assert (pair.a.start > pair.b.start) == bool(pair.follows)
    plain, swapped = (Counter(len(pair.a) for pair in made if pair.follows == label) for label in (0, 1))
    table = np.array([[c[n] for n in range(1, 12)] for c in (plain, swapped)])
    assert stats.chi2_contingency(table).pvalue > FAIR


def test_a_lone_sentence_is_cut_anywhere() -> None:
    made = pairs(make_text([[9] for _ in range(2_000)]), 23, "order", short=0.0)
    cuts = [len(pair.whole_b if pair.follows else pair.whole_a) for pair in made]
    assert stats.chisquare(np.bincount(cuts, minlength=9)[1:]).pvalue > FAIR
    assert stats.binomtest(sum(pair.follows for pair in made), len(made)).pvalue > FAIR


def test_order_needs_a_document_of_two_tokens() -> None:
    with refused("no-pairs", "order"):
        make_sampler("order", make_text([[1], [1], [1]]).corpus, MARKS, 20)


# ---------------------------------------------------------------------- what is cut off


@pytest.mark.parametrize("kind", PAIRS)
def test_tokens_are_cut_off_at_both_ends_by_coin(kind: SamplingKind) -> None:
    """BERT throws a coin for every token: the share in front is binomial, of A and B, if not too many go."""
    documents, room = [[290, 280, 40, 260, 230, 7] for _ in range(200)], 200
    made = pairs(make_text(documents), room + 3, kind, short=0.0)
    fronts: dict[str, list[tuple[int, int]]] = {"a": [], "b": []}
    for pair in made:
        fronts["a"].append((pair.a.start - pair.whole_a.start, len(pair.whole_a) - len(pair.a)))
        fronts["b"].append((pair.b.start - pair.whole_b.start, len(pair.whole_b) - len(pair.b)))
    for thrown in fronts.values():
        some = [(front, gone) for front, gone in thrown if 0 < gone <= room]
        assert any(gone > 128 for _, gone in some)  # more than two machine words of coins
        assert all(0 <= front <= gone for front, gone in some)
        total = sum(gone for _, gone in some)
        assert stats.binomtest(sum(front for front, _ in some), total).pvalue > FAIR
        large = [(front, gone) for front, gone in some if gone >= 30]
        spread = sum((front - gone / 2) ** 2 / (gone / 4) for front, gone in large)
        assert FAIR < stats.chi2.cdf(spread, len(large)) < 1 - FAIR  # each token its own coin
        few = [front for front, gone in some if gone > 64]
        assert min(few) > 8
    lost = [(a, b) for a, b in zip(*fronts.values(), strict=True) if 0 < a[1] <= room and 0 < b[1] <= room]
    off = np.array([[(front - gone / 2) / np.sqrt(gone / 4) for front, gone in pair] for pair in lost])
    assert stats.pearsonr(off[:, 0], off[:, 1]).pvalue > FAIR


def fronts_of_b(gone: int, room: int) -> NDArray[np.int64]:
    """A has 5 tokens, B as many as fill the room, and `gone` more: what goes, goes from B. How much of it in front."""
    chunks = -(-(room + gone) // room)  # of one document, each with a key of its own
    text = make_text([[5, room - 5 + gone] for _ in range(2_000 // chunks)])
    made = [pair for pair in pairs(text, room + 3, "order", short=0.0) if not pair.follows]
    assert {len(pair.whole_b) - len(pair.b) for pair in made} == {gone}
    return np.array([pair.b.start - pair.whole_b.start for pair in made])


@pytest.mark.parametrize("gone", [1, 2, 63, 64, 65, 128, 130])
def test_the_coins_of_so_many_tokens_are_binomial(gone: int) -> None:
    fronts = fronts_of_b(gone, room=130)
    cells = np.unique(stats.binom.ppf(np.linspace(0, 1, 9)[1:-1], gone, 0.5)).astype(int)
    counts = np.bincount(np.searchsorted(cells, fronts, side="left"), minlength=len(cells) + 1)
    chances = np.diff([0, *stats.binom.cdf(cells, gone, 0.5), 1])
    keep = chances > 0
    assert not counts[~keep].any()
    assert stats.chisquare(counts[keep], chances[keep] * len(fronts)).pvalue > FAIR


@pytest.mark.parametrize("gone", [21, 300])
def test_of_more_than_a_sequence_any_part_is_kept(gone: int) -> None:
    fronts = fronts_of_b(gone, room=20)
    counts = np.bincount(fronts * 11 // (gone + 1), minlength=11)
    sizes = np.bincount(np.arange(gone + 1) * 11 // (gone + 1), minlength=11)
    assert stats.chisquare(counts, sizes / sizes.sum() * len(fronts)).pvalue > FAIR
    assert (fronts.min(), fronts.max()) == (0, gone)


@pytest.mark.parametrize("kind", PAIRS)
def test_epoch_after_epoch_all_text_is_read(kind: SamplingKind) -> None:
    """Of sentences longer than a sequence only the middle was, once: nearly half of a text of such."""
    text = make_text([[10, 300, 20, 90], [300], [5, 150, 150], [8, 400]] * 3)
    made = make_sampler(kind, text.corpus, MARKS, 67, short=0.1)
    seen = np.zeros(len(text.words), bool)
    for seed in range(150):
        _, rows = epoch(made, seed)
        seen[rows.ids[~rows.special] - FIRST] = True
    assert seen.mean() > 0.97


# ---------------------------------------------------------------------- in any company


def same(a: Spans | RawSequences, b: Spans | RawSequences) -> bool:
    assert type(a) is type(b)
    values = [(getattr(a, field.name), getattr(b, field.name)) for field in fields(a)]
    return all((x is None and y is None) or np.array_equal(x, y) for x, y in values)


def joined(parts: Sequence[RawSequences]) -> RawSequences:
    def column(name: str) -> NDArray[np.generic]:
        return np.concatenate([getattr(part, name) for part in parts])

    cu_seqlens = np.cumsum([0, *(len(part.ids) for part in parts)])
    follows = None if parts[0].pair_labels is None else column("pair_labels")
    tokens = [column(name) for name in ("ids", "segments", "word_starts", "special")]
    return RawSequences(tokens[0], tokens[1], cu_seqlens, tokens[2], tokens[3], column("keys"), follows)  # type: ignore[arg-type]


@pytest.mark.parametrize("kind", KINDS)
def test_a_sequence_is_the_same_in_any_batch(kind: SamplingKind) -> None:
    """Alone, among all, in another order, and twice."""
    made = make_sampler(kind, make_text(random_documents(40, seed=3)).corpus, MARKS, 30, short=0.3)
    places = np.concatenate([np.random.default_rng(0).permutation(made.size), [3, 3]])
    keys = keys_for(places)
    batch = made.plan(places, keys)
    for k in range(len(places)):
        alone = made.plan(places[k : k + 1], keys[k : k + 1])
        assert same(alone, batch.slice(k, k + 1))
    rows = made.build(batch)
    assert np.array_equal(np.diff(rows.cu_seqlens), batch.lengths)
    assert same(rows, joined([made.build(batch.slice(k, k + 1)) for k in range(len(places))]))
    assert np.array_equal(rows.sequence, np.repeat(np.arange(len(places)), batch.lengths))
    assert rows.positions.tolist() == [i for n in batch.lengths.tolist() for i in range(n)]


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("shards", [2, 5, 40])
def test_how_a_text_is_split_into_shards_does_not_matter(kind: SamplingKind, shards: int) -> None:
    documents = random_documents(40, seed=6)
    one, many = (make_text(documents, shards=n).corpus for n in (1, shards))
    assert len(many.shards) == shards
    whole, split = (epoch(make_sampler(kind, corpus, MARKS, 30, short=0.3)) for corpus in (one, many))
    assert same(whole[0], split[0])
    assert same(whole[1], split[1])


@pytest.mark.parametrize("kind", KINDS)
def test_the_name_of_a_kind_gives_its_sampler(kind: SamplingKind) -> None:
    made = make_sampler(kind, make_text(random_documents(9)).corpus, MARKS, 20, short=0.3)
    assert isinstance(made, {"documents": DocumentParts, "stream": Stream}.get(kind, SentencePairs))
    assert getattr(made, "kind", kind) == kind
    assert getattr(made, "short", 0.3) == 0.3


# ---------------------------------------------------------------------- special tokens


def test_the_marks_are_those_of_the_tokenizer(tokenizer: Tokenizer) -> None:
    assert SpecialIds.of(tokenizer) == SpecialIds(tokenizer.id("[CLS]"), tokenizer.id("[SEP]")) == SpecialIds(101, 102)


def test_a_tokenizer_without_marks_is_refused() -> None:
    import tokenizers

    bare = Tokenizer(tokenizers.Tokenizer(tokenizers.models.WordLevel({"a": 0, "[CLS]": 1}, unk_token="a")))
    with refused("no-special-token", ("sep_token",)):
        SpecialIds.of(bare)
