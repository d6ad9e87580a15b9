"""What a model is asked: which tokens, what it reads in their place, and how wrong it was, against slow references."""

import functools
import itertools
import math
from collections import Counter, defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import transformers
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray
from scipy import stats  # type: ignore[import-untyped]
from torch import Tensor, nn
from torch.nn import functional as F

import bothways
from bothways.hash_rng import mix
from bothways.model.batch import Batch
from bothways.model.config import ModelConfig
from bothways.model.encoder import Activations
from bothways.model.model import Model
from bothways.pretraining import objectives as folder
from bothways.pretraining.loader import Loader, Mixture, collate
from bothways.pretraining.objective import BatchBuilder, Capacity, LossTerm, MaskingVocabulary, Objective
from bothways.pretraining.objectives import OBJECTIVES, make_objectives
from bothways.pretraining.objectives.mlm import MaskedLM, MaskedLMSettings, cross_entropy
from bothways.pretraining.objectives.sbo import SpanBoundaryObjective
from bothways.pretraining.pseudo import pseudo_perplexity
from bothways.pretraining.recipe import PretrainModel, PretrainRecipe
from bothways.pretraining.sampler import RawSequences, SamplingKind, SpecialIds, make_sampler
from bothways.pretraining.select import _ORDER, Selection, Unit, geometric, select
from bothways.pretraining.shards import Corpus, Shard
from bothways.pretraining.trainable import PretrainingModule
from bothways.text.tokenizer import Tokenizer
from bothways.text.train_vocab import FIRST_PIECES
from bothways.train.protocol import MicroBatch
from bothways.train.ranks import Ranks
from helpers import PIECES, TINY, make_loud, refused
from helpers.runs import CLS, MASK, SEP, Numbers, Sequenced, make_rows, vocabulary

# Every key below is fixed, so no test is ever unlucky; the bound says how unlucky fair draws would have to be.
FAIR = 1e-4
CLOSE = 1e-4
"""How far a sum of losses may be from the slow reference, of 1."""
STRANGE = 60_000
"""An id that is never drawn: where it stands, nothing was done."""
UNITS: tuple[Unit, ...] = ("token", "word", "span")
NAMES = tuple(
    sorted(
        file.stem
        for file in Path(folder.__file__).parent.glob("*.py")
        if file.stem not in ("__init__", "rtd", "distill")  # test_rtd.py, test_distill.py
    )
)


def make_capacity(tokens: int, sequences: int, length: int) -> Capacity:
    """For at most so many tokens in at most so many sequences."""
    return Capacity(tokens, sequences, length)


WIDE = make_capacity(tokens=1 << 30, sequences=1 << 20, length=1 << 20)


def random_sequences(count: int, seed: int = 0, words: int = 12, pieces: int = 3, texts: int = 2) -> list[Sequenced]:
    draws = np.random.default_rng(seed)
    return [
        [draws.integers(1, pieces + 1, draws.integers(1, words + 1)).tolist() for _ in range(texts)]
        for _ in range(count)
    ]


SEQUENCES = st.lists(
    st.lists(st.lists(st.integers(1, 5), min_size=1, max_size=30), min_size=1, max_size=2), min_size=1, max_size=6
)
RATES = st.floats(0.01, 0.9)


def alone(rows: RawSequences, b: int) -> RawSequences:
    """Sequence b by itself."""
    start, end = rows.cu_seqlens[b : b + 2].tolist()
    follows = None if rows.pair_labels is None else rows.pair_labels[b : b + 1]
    tokens = [x[start:end] for x in (rows.ids, rows.segments)]
    flags = [x[start:end] for x in (rows.word_starts, rows.special)]
    return RawSequences(
        tokens[0], tokens[1], np.array([0, end - start]), flags[0], flags[1], rows.keys[b : b + 1], follows
    )


def budgets(rows: RawSequences, rate: float) -> list[int]:
    """max(1, round half up), written down."""
    sizes = [int((~rows.special[start:end]).sum()) for start, end in itertools.pairwise(rows.cu_seqlens.tolist())]
    return [max(1, math.floor(rate * size + 0.5)) for size in sizes]


def asked_in(selection: Selection, rows: RawSequences) -> list[list[int]]:
    """By sequence, the places of the asked tokens in it."""
    parts = np.split(selection.tokens, np.searchsorted(selection.tokens, rows.cu_seqlens[1:-1]))
    return [(part - start).tolist() for part, start in zip(parts, rows.cu_seqlens[:-1], strict=True)]


def words_of(row: RawSequences) -> list[range]:
    """The words of a single sequence: a word begins at its bit, and after a special; a special ends it."""
    found: list[range] = []
    for place, (starts, special) in enumerate(zip(row.word_starts.tolist(), row.special.tolist(), strict=True)):
        if special:
            continue
        if starts or row.special[place - 1]:
            found.append(range(place, place + 1))
        else:
            found[-1] = range(found[-1].start, place + 1)
    return found


# ---------------------------------------------------------------------- which tokens


@pytest.mark.parametrize("unit", UNITS)
@given(sequences=SEQUENCES, rate=RATES)
@settings(max_examples=40)
def test_what_is_asked_is_text_and_in_order(unit: Unit, sequences: list[Sequenced], rate: float) -> None:
    rows = make_rows(sequences)
    chosen = select(rows, unit, rate)
    asked = chosen.tokens.tolist()
    assert asked == sorted(set(asked))
    assert not rows.special[chosen.tokens].any()
    assert asked == [i for s, e in zip(chosen.start.tolist(), chosen.end.tolist(), strict=True) for i in range(s, e)]
    assert chosen.unit.tolist() == [u for u, size in enumerate(chosen.sizes.tolist()) for _ in range(size)]
    counts = [len(places) for places in asked_in(chosen, rows)]
    most = budgets(rows, rate)
    assert all(count <= budget for count, budget in zip(counts, most, strict=True))
    if unit == "token":
        assert counts == most
        assert (chosen.sizes == 1).all()


@pytest.mark.parametrize(
    ("tokens", "rate", "expected"),
    [
        (1, 0.15, 1),
        (3, 0.15, 1),
        (9, 0.15, 1),
        (10, 0.15, 2),
        (126, 0.15, 19),
        (509, 0.15, 76),
        (510, 0.15, 77),
        (6, 0.25, 2),
        (10, 0.4, 4),
        (2, 0.9, 2),
    ],
)
def test_fifteen_percent_are_so_many_tokens(tokens: int, rate: float, expected: int) -> None:
    assert len(select(make_rows([[[1] * tokens]] * 3), "token", rate).tokens) == 3 * expected


@pytest.mark.parametrize("unit", ["token", "word"])
def test_every_set_of_tokens_is_as_likely(unit: Unit) -> None:
    """Two of six: fifteen sets. Of tokens, and of words of two tokens each."""
    size = 1 if unit == "token" else 2
    rows = make_rows([[[size] * 2, [size] * 4]] * 6_000)
    chosen = select(rows, unit, 1 / 3)
    sets = Counter(
        tuple((part - start).tolist())
        for part, start in zip(
            np.split(chosen.start, np.searchsorted(chosen.start, rows.cu_seqlens[1:-1])),
            rows.cu_seqlens[:-1],
            strict=True,
        )
    )
    assert len(sets) == 15
    assert stats.chisquare(list(sets.values())).pvalue > FAIR


def test_every_place_of_a_long_sequence_is_as_likely() -> None:
    count, size, most = 1_500, 60, 9
    rows = make_rows([[[1] * 20, [1] * 40]] * count)
    places = asked_in(select(rows, "token", 0.15), rows)
    counts = np.bincount([i for some in places for i in some], minlength=size + 3)
    assert not counts[[0, 21, 62]].any()
    counts = np.delete(counts, [0, 21, 62])
    expected = count * most / size
    # Of one sequence no place is drawn twice, which makes the counts a little more even than chance.
    statistic = ((counts - expected) ** 2 / expected).sum() * (size - 1) / (size - most)
    assert FAIR < stats.chi2.sf(statistic, size - 1) < 1 - FAIR


def greedy(row: RawSequences, budget: int) -> list[range]:
    """Whole-word masking as BERT has it: words in random order, each taken if it still fits."""
    taken: list[range] = []
    for word in sorted(words_of(row), key=lambda word: int(mix(row.keys[0], word.start, _ORDER))):
        if sum(map(len, taken)) + len(word) <= budget:
            taken.append(word)
    return sorted(taken, key=lambda word: word.start)


@given(sequences=SEQUENCES, rate=RATES, seed=st.integers(0, 1000))
@settings(max_examples=60)
def test_words_are_taken_one_after_the_other_while_they_fit(sequences: list[Sequenced], rate: float, seed: int) -> None:
    rows = make_rows(sequences, seed)
    chosen = select(rows, "word", rate)
    expected = [
        range(word.start + int(rows.cu_seqlens[b]), word.stop + int(rows.cu_seqlens[b]))
        for b, budget in enumerate(budgets(rows, rate))
        for word in greedy(alone(rows, b), budget)
    ]
    found = [range(s, e) for s, e in zip(chosen.start.tolist(), chosen.end.tolist(), strict=True)]
    assert found == expected


@given(bits=st.lists(st.booleans(), min_size=3, max_size=40), cut=st.integers(1, 38), rate=RATES)
@settings(max_examples=60)
def test_the_bits_alone_say_where_words_start(bits: list[bool], cut: int, rate: float) -> None:
    """Any tokenizer: nothing is read out of pieces. A text may begin in the middle of a word (a cut, or BPE)."""
    cut = min(cut, len(bits) - 1)
    plain = make_rows([[[1] * cut, [1] * (len(bits) - cut)]])
    words = np.array([True, *bits[:cut], True, *bits[cut:], True])
    rows = replace(plain, word_starts=words)
    chosen = select(rows, "word", rate)
    found = [range(s, e) for s, e in zip(chosen.start.tolist(), chosen.end.tolist(), strict=True)]
    assert found == greedy(rows, budgets(rows, rate)[0])
    assert set(found) <= set(words_of(rows))
    spans = select(rows, "span", rate)
    starts, ends = {word.start for word in words_of(rows)}, {word.stop for word in words_of(rows)}
    assert set(spans.start.tolist()) <= starts
    assert set(spans.end.tolist()) <= ends


def test_a_word_larger_than_the_share_is_left_for_smaller_ones() -> None:
    """Ten tokens, so two may be asked for: never the word of eight, always the two of one."""
    rows = make_rows([[[1, 8, 1]]] * 50)
    assert asked_in(select(rows, "word", 0.2), rows) == [[1, 10]] * 50
    rows = make_rows([[[3]]] * 5)
    assert len(select(rows, "word", 0.15).tokens) == 0


# ---------------------------------------------------------------------- spans


@given(sequences=SEQUENCES, rate=RATES, longest=st.integers(1, 10), seed=st.integers(0, 1000))
@settings(max_examples=80)
def test_spans_are_whole_words_apart_from_one_another(
    sequences: list[Sequenced], rate: float, longest: int, seed: int
) -> None:
    rows = make_rows(sequences, seed)
    chosen = select(rows, "span", rate, geometric(3.0, longest))
    for b in range(len(sequences)):
        row, base = alone(rows, b), int(rows.cu_seqlens[b])
        words = words_of(row)
        inside = (chosen.start >= base) & (chosen.start < rows.cu_seqlens[b + 1])
        spans = [range(s - base, e - base) for s, e in zip(chosen.start[inside], chosen.end[inside], strict=True)]
        for span in spans:
            covered = [word for word in words if word.start in span]
            assert [i for word in covered for i in word] == list(span)  # whole words, no special between them
            assert 1 <= len(covered) <= longest
        for left, right in itertools.pairwise(spans):
            assert right.start > left.stop  # SBO reads the token between


ALBERT = (6.0, 3.0, 2.0)


def slow_spans(words: int, budget: int, draws: np.random.Generator, mean: float, longest: int) -> list[range]:
    """SpanBERT's draw, for words of one token: lengths geometric, redrawn above `longest`; places uniform."""
    taken: list[range] = []
    while left := budget - sum(map(len, taken)):
        length = longest + 1
        while length > longest:
            length = int(draws.geometric(1 / mean))
        start = int(draws.integers(words))
        span = range(start, min(start + length, words, start + left))
        if all(span.stop < other.start or other.stop < span.start for other in taken):
            taken.append(span)
    return taken


@pytest.mark.parametrize(("mean", "longest", "mean_length"), [(5.0, 10, 3.797), (2.0, 3, 11 / 7), (5.0, 4, 2.225)])
def test_span_lengths_are_geometric(mean: float, longest: int, mean_length: float) -> None:
    count, words, budget = 400, 400, 60
    rows = make_rows([[[1] * words]] * count)
    draws = np.random.default_rng(1)
    slow = [slow_spans(words, budget, draws, mean, longest) for _ in range(count)]
    chosen = select(rows, "span", 0.15, geometric(mean, longest))
    table = np.stack(
        [
            np.bincount(chosen.sizes, minlength=longest + 1)[1:],
            np.bincount([len(span) for spans in slow for span in spans], minlength=longest + 1)[1:],
        ]
    )
    assert stats.chi2_contingency(table).pvalue > FAIR
    starts = np.stack(
        [
            np.bincount((chosen.start - rows.cu_seqlens[rows.sequence[chosen.start]] - 1) // 20, minlength=20),
            np.bincount([span.start // 20 for spans in slow for span in spans], minlength=20),
        ]
    )
    assert stats.chi2_contingency(starts).pvalue > FAIR
    per_sequence = np.bincount(rows.sequence[chosen.start])
    assert stats.ttest_ind(per_sequence, [len(spans) for spans in slow]).pvalue > FAIR
    # Rejected and shortened spans pull the mean down a little; SpanBERT's own is 3.8 words.
    assert 0.9 * mean_length < chosen.sizes.mean() < mean_length


def test_the_first_span_of_a_long_sequence_has_spanberts_chances() -> None:
    """Ten tokens are asked for: they are one span only if the first draw was ten, and not at the text's end."""
    count, words = 1_500, 1_000
    rows = make_rows([[[1] * words]] * count)
    chosen, sequence = select(rows, "span", 0.01), rows.sequence
    spans = np.bincount(sequence[chosen.start], minlength=count)
    ten = 0.2 * 0.8**9 / (1 - 0.8**10)
    assert stats.binomtest(int((spans == 1).sum()), count, ten * (1 - 9 / words)).pvalue > FAIR
    assert np.bincount(sequence[chosen.tokens]).tolist() == [10] * count


@pytest.mark.parametrize(
    ("words", "rate", "shares"),
    [
        *((words, 0.15, geometric(5.0, 10)) for words in (40, 125, 500, 4000)),
        (500, 0.4, geometric(5.0, 10)),
        (500, 0.15, ALBERT),
        (500, 0.3, ALBERT),
    ],
)
def test_spans_use_up_their_share(words: int, rate: float, shares: tuple[float, ...]) -> None:
    """However many they must be: it was 2.7 % of a long text once, for a number of attempts that suits a short one."""
    rows = make_rows([[[1] * words]] * max(3, 50_000 // words))
    asked = len(select(rows, "span", rate, shares).tokens)
    assert asked >= 0.995 * sum(budgets(rows, rate))


def test_alberts_spans_have_its_shares() -> None:
    """p(n) is one over n, for one to three words; the last span of a sequence may be shortened."""
    rows = make_rows([[[1] * 1000]] * 40)
    found = np.bincount(select(rows, "span", 0.15, ALBERT).sizes, minlength=4)[1:]
    assert found.sum() > 3_000
    assert (found / found.sum()).tolist() == pytest.approx([6 / 11, 3 / 11, 2 / 11], abs=0.03)
    assert found[0] > 0.5 * found.sum()


# ---------------------------------------------------------------------- what becomes of them


def masked(rows: RawSequences, rate: float | None = None, **changed: object) -> BatchBuilder:
    builder = BatchBuilder(rows, rows.ids)
    MaskedLM(MaskedLMSettings(**changed), vocabulary()).prepare(builder, WIDE, rate)  # type: ignore[arg-type]
    return builder


@functools.cache
def strange_rows() -> RawSequences:
    return make_rows(random_sequences(2_500), ids=STRANGE)


def fates(builder: BatchBuilder) -> list[str]:
    """Of each asked token, of a text of STRANGE tokens only."""
    assert builder.selection is not None
    read = builder.ids[builder.selection.tokens].tolist()
    return ["mask" if i == MASK else "keep" if i == STRANGE else "random" for i in read]


def test_the_lengths_of_spans_are_as_the_settings_say() -> None:
    """Of two words, unless a text ends before that; or of at most three."""
    rows = make_rows([[[1] * 100]] * 30)
    twos = masked(rows, select="span", rate=0.16, span_shares=(0.0, 1.0)).selection
    threes = masked(rows, select="span", rate=0.16, span_mean=5.0, span_longest=3).selection
    assert twos is not None
    assert threes is not None
    assert twos.sizes.max() == 2
    assert (twos.sizes == 2).mean() > 0.9
    assert set(threes.sizes.tolist()) == {1, 2, 3}


def test_only_words_are_drawn_as_words() -> None:
    words = vocabulary()
    assert words.mask == MASK
    assert [PIECES[i] for i in words.ordinary] == PIECES[len(FIRST_PIECES) :]


def test_a_tokenizer_without_a_mask_is_refused() -> None:
    bare = Tokenizer.from_pieces(["[PAD]", "[UNK]", "[CLS]", "[SEP]", "a"])
    assert MaskingVocabulary.of(bare) is None
    with refused("no-mask-token"):
        MaskedLM(MaskedLMSettings(), MaskingVocabulary.of(bare))
    MaskedLM(MaskedLMSettings(), MaskingVocabulary.of(bare), causal=True)


@pytest.mark.parametrize("unit", UNITS)
def test_what_is_not_asked_stays_and_what_is_asked_is_remembered(unit: Unit) -> None:
    rows = make_rows(random_sequences(40))
    before = rows.ids.copy()
    builder = masked(rows, select=unit)
    assert builder.selection is not None
    asked = builder.selection.tokens
    assert np.array_equal(rows.ids, before)
    assert np.array_equal(np.delete(builder.ids, asked), np.delete(before, asked))
    assert builder.targets["predicted"].values.tolist() == asked.tolist()
    assert builder.targets["labels"].values.tolist() == before[asked].tolist()
    assert builder.counts == {"mlm": len(asked)}
    changed = masked(rows, select=unit, mask=1.0, random=0.0)
    assert np.flatnonzero(changed.ids == MASK).tolist() == asked.tolist()


@pytest.mark.parametrize("unit", UNITS)
@pytest.mark.parametrize(("mask", "random"), [(0.8, 0.1), (0.5, 0.2), (1.0, 0.0), (0.0, 1.0), (0.0, 0.0), (0.3, 0.7)])
def test_eighty_ten_ten(unit: Unit, mask: float, random: float) -> None:
    builder = masked(strange_rows(), select=unit, mask=mask, random=random)
    assert builder.selection is not None
    found = fates(builder)
    if unit == "span":  # one draw for each
        found = [found[i] for i in np.flatnonzero(np.diff(builder.selection.unit, prepend=-1))]
    assert len(found) > 4_000
    for fate, share in (("mask", mask), ("random", random), ("keep", round(1 - mask - random, 9))):
        assert stats.binomtest(found.count(fate), len(found), share).pvalue > FAIR


@pytest.mark.parametrize("unit", UNITS)
def test_a_random_word_is_any_word_as_likely(unit: Unit) -> None:
    """Whatever the draw of its fate was, and whatever its neighbour became."""
    builder = masked(strange_rows(), select=unit, rate=0.5, mask=0.5, random=0.5)
    assert builder.selection is not None
    replaced = builder.selection.tokens[builder.ids[builder.selection.tokens] != MASK]
    read = builder.ids[replaced]
    counts = np.bincount(read, minlength=len(PIECES))
    assert len(counts) == len(PIECES)
    assert not counts[: len(FIRST_PIECES)].any()  # no special, no [unused]
    assert stats.chisquare(counts[len(FIRST_PIECES) :]).pvalue > FAIR
    low = (read < len(PIECES) - len(vocabulary().ordinary) // 2).astype(int)
    neighbours = np.diff(replaced) == 1
    table = np.zeros((2, 2), np.int64)
    np.add.at(table, (low[:-1][neighbours], low[1:][neighbours]), 1)
    assert stats.chi2_contingency(table).pvalue > FAIR


def test_a_span_shares_one_fate() -> None:
    rows = make_rows(random_sequences(1_500), ids=STRANGE)
    builder = masked(rows, rate=0.3, select="span", mask=0.4, random=0.3)
    assert builder.selection is not None
    seen: dict[int, set[str]] = defaultdict(set)
    for unit, fate in zip(builder.selection.unit.tolist(), fates(builder), strict=True):
        seen[unit].add(fate)
    assert all(len(fate) == 1 for fate in seen.values())
    assert sum(builder.selection.sizes > 1) > 500
    drawn = [
        builder.ids[s:e] for s, e in zip(builder.selection.start, builder.selection.end, strict=True) if e - s == 4
    ]
    replaced = [ids.tolist() for ids in drawn if MASK not in ids and STRANGE not in ids]
    assert any(len(set(ids)) > 1 for ids in replaced)  # the words themselves are drawn one by one


def test_the_pieces_of_a_word_have_each_their_own_fate() -> None:
    rows = make_rows([[[2] * 10]] * 3_000, ids=STRANGE)
    builder = masked(rows, rate=0.2, select="word", mask=0.5, random=0.25)
    names = ["mask", "random", "keep"]
    found = np.array([names.index(fate) for fate in fates(builder)]).reshape(-1, 2)
    assert len(found) == 6_000
    table = np.zeros((3, 3))
    np.add.at(table, (found[:, 0], found[:, 1]), 1)
    shares = np.array([0.5, 0.25, 0.25])
    assert stats.chisquare(table.ravel(), np.outer(shares, shares).ravel() * len(found)).pvalue > FAIR


@pytest.mark.parametrize("unit", UNITS)
def test_whether_a_token_is_asked_says_nothing_of_its_fate(unit: Unit) -> None:
    """The draws of one token for different purposes are different draws."""
    rows = make_rows([[[1] * 20]] * 3_000, ids=STRANGE)
    few, many = (masked(rows, rate=rate, select=unit, mask=0.5, random=0.0) for rate in (0.1, 0.9))
    for builder in (few, many):
        assert builder.selection is not None
        found = fates(builder)
        if unit == "span":
            found = [found[i] for i in np.flatnonzero(np.diff(builder.selection.unit, prepend=-1))]
        assert stats.binomtest(found.count("mask"), len(found)).pvalue > FAIR


@pytest.mark.parametrize("unit", UNITS)
def test_a_sequence_is_corrupted_the_same_in_any_batch(unit: Unit) -> None:
    rows = make_rows(random_sequences(30, words=20))
    together = masked(rows, rate=0.3, select=unit)
    parts = [masked(alone(rows, b), rate=0.3, select=unit) for b in range(30)]
    assert np.concatenate([part.ids for part in parts]).tolist() == together.ids.tolist()
    asked = [part.targets["predicted"].values + rows.cu_seqlens[b] for b, part in enumerate(parts)]
    assert np.concatenate(asked).tolist() == together.targets["predicted"].values.tolist()


@pytest.mark.parametrize("unit", UNITS)
def test_another_key_corrupts_otherwise(unit: Unit) -> None:
    rows = make_rows(random_sequences(30, words=20))
    first, again, other = (masked(r, select=unit) for r in (rows, rows, replace(rows, keys=mix(rows.keys, 1))))
    assert np.array_equal(first.ids, again.ids)
    assert (first.ids != other.ids).mean() > 0.1


def test_a_phase_may_have_a_rate_of_its_own() -> None:
    rows = make_rows([[[1] * 100]] * 4)
    assert masked(rows).counts == {"mlm": 4 * 15}
    assert masked(rows, rate=0.4).counts == {"mlm": 4 * 40}


@pytest.mark.parametrize(
    ("wrong", "value"),
    [
        ({"rate": 0.0}, 0.0),
        ({"rate": 1.0}, 1.0),
        ({"mask": -0.1}, (-0.1, 0.1)),
        ({"random": -0.1}, (0.8, -0.1)),
        ({"mask": 0.8, "random": 0.3}, (0.8, 0.3)),
        ({"static": -1}, -1),
        ({"span_mean": 1.0}, 1.0),
        ({"span_longest": 0}, 0),
        ({"span_shares": (1.0, -1.0)}, (1.0, -1.0)),
        ({"span_shares": (0.0,)}, (0.0,)),
        ({"select": "letter"}, "letter"),
    ],
)
def test_settings_that_make_no_sense_are_refused(wrong: dict[str, object], value: object) -> None:
    with refused("unknown-choice" if "select" in wrong else "out-of-range", value):
        MaskedLMSettings(**wrong)  # type: ignore[arg-type]


@given(
    lengths=st.lists(st.integers(1, 60), min_size=1, max_size=40),
    rate=st.one_of(RATES, st.sampled_from([0.15, 0.2, 0.25, 0.3, 1 / 3, 0.4, 0.5])),
    specials=st.sampled_from([1, 2]),
)
@settings(max_examples=100)
def test_a_batch_never_asks_for_more_than_its_room_holds(lengths: list[int], rate: float, specials: int) -> None:
    """Compiled models need a bound; it is used even when every sequence is as long as the capacity or has one word."""
    rows = make_rows([[[1] * n] if specials == 1 else [[1] * n, [1]] for n in lengths])
    longest = int(np.diff(rows.cu_seqlens).max())
    for capacity in (
        make_capacity(len(rows.ids), len(lengths), longest),
        make_capacity(len(rows.ids) + 100, len(lengths) + 20, longest + 30),
    ):
        builder = BatchBuilder(rows, rows.ids)
        MaskedLM(MaskedLMSettings(), vocabulary()).prepare(builder, capacity, rate)
        assert all(len(target.values) <= target.most for target in builder.targets.values())
        assert builder.targets["predicted"].most <= capacity.sequences * (rate * capacity.length + 1) + 1


# ---------------------------------------------------------------------- from epoch to epoch


def make_corpus(documents: Sequence[Sequence[int]], shards: int = 2, seed: int = 0, base: int | None = None) -> Corpus:
    """Documents as the lengths of their sentences; random tokens, or each with an id of its own from `base` on."""
    draws = np.random.default_rng(seed)
    parts, used = [], 0
    for name, group in enumerate(np.array_split(np.arange(len(documents)), shards)):
        lengths = [n for d in group for n in documents[d]]
        size = sum(lengths)
        ids = draws.integers(len(FIRST_PIECES), len(PIECES), size) if base is None else base + used + np.arange(size)
        bits = draws.random(size) < 0.7
        sentences = np.cumsum([0, *lengths]).astype(np.int32)
        ends = np.cumsum([0, *(len(documents[d]) for d in group)]).astype(np.int32)
        parts.append(Shard(str(name), "text", ids.astype(np.uint32), np.packbits(bits), sentences, ends))
        used += size
    return Corpus(parts)


def make_mixture(weights: dict[str, float] | None, kind: SamplingKind = "documents") -> Mixture:
    """Two sources whose tokens all differ, so that a sequence is known by them."""
    a = make_corpus([[5, 7, 3], [20], [4, 4], [9, 9, 9, 9]], base=1_000)
    b = make_corpus([[6, 6], [10, 3, 8], [2, 30, 5]], base=5_000)
    special_ids = SpecialIds(CLS, SEP)
    return Mixture(
        {name: make_sampler(kind, c, special_ids, 24, 0.1) for name, c in (("a", a), ("b", b))}, weights, seed=3
    )


def keys_by_text(mixture: Mixture, index: Numbers, static: int) -> dict[tuple[int, ...], list[int]]:
    found: dict[tuple[int, ...], list[int]] = defaultdict(list)
    rows = mixture.build(mixture.plan(index, static))
    for b in range(len(index)):
        found[tuple(alone(rows, b).ids.tolist())].append(int(rows.keys[b]))
    return found


@pytest.mark.parametrize("static", [1, 3, 10])
def test_static_masks_come_back_every_so_many_epochs(static: int) -> None:
    """By epoch: epoch e and epoch e + static have the same, those between have others."""
    mixture = make_mixture(None)
    epochs = [
        keys_by_text(mixture, np.arange(e * mixture.size, (e + 1) * mixture.size), static)
        for e in range(2 * static + 1)
    ]
    for e, seen in enumerate(epochs):
        assert seen.keys() == epochs[0].keys()  # every epoch has all of the text …
        assert all(len(keys) == 1 for keys in seen.values())  # … once
        for other in range(e):
            same = [seen[text] == epochs[other][text] for text in seen]
            assert all(same) if (e - other) % static == 0 else not any(same)
    assert len({key for seen in epochs[:static] for keys in seen.values() for key in keys}) == static * mixture.size


def test_dynamic_masks_never_come_back() -> None:
    mixture = make_mixture(None)
    seen = keys_by_text(mixture, np.arange(20 * mixture.size), static=0)
    assert all(len(keys) == len(set(keys)) == 20 for keys in seen.values())
    assert len({key for keys in seen.values() for key in keys}) == 20 * mixture.size


@pytest.mark.parametrize("static", [0, 4])
def test_sources_by_weight_have_static_masks_too(static: int) -> None:
    seen = keys_by_text(make_mixture({"a": 0.25, "b": 0.75}), np.arange(2_000), static)
    for keys in seen.values():
        assert len(set(keys)) == (static or len(keys))


@pytest.mark.parametrize("static", [0, 2])
@pytest.mark.parametrize("kind", ["documents", "stream", "order"])
def test_the_model_reads_the_same_again_with_static_masks_only(
    static: int, kind: SamplingKind, tokenizer: Tokenizer
) -> None:
    """What matters in the end: the corrupted ids of an epoch, as a set, against those two epochs later."""
    mixture = make_mixture(None, kind)
    objectives = objectives_for(("mlm",), tokenizer, static=static)
    loader = Loader(mixture, list(objectives.values()), 24, None, mixture.size, 1, False, static)
    read = []
    for e in range(3):
        step = loader.step(e * mixture.size, range(1), loader.capacity())
        (micro,) = step.micros
        bounds = micro.batch.cu_seqlens.tolist()
        read.append({tuple(micro.batch.ids[s:t].tolist()) for s, t in itertools.pairwise(bounds)})
    assert (read[0] == read[2]) == bool(static)
    assert read[0] != read[1]


# ---------------------------------------------------------------------- how wrong it was


@dataclass(frozen=True)
class Setting:
    """A loud model with all objectives over it, and a batch."""

    model: Model
    objectives: dict[str, Objective]
    parts: dict[str, nn.Module]
    builder: BatchBuilder

    def losses(self, micro: MicroBatch) -> dict[str, LossTerm]:
        states = self.model.encoder(micro.batch)
        found: dict[str, LossTerm] = {}
        for name, objective in self.objectives.items():
            found |= objective.losses(
                self.model, self.parts.get(name), states, Activations({}, {}), micro.batch, micro.targets
            )
        return found

    def parameters(self) -> dict[str, nn.Parameter]:
        own = {f"{name}.{k}": p for name, part in self.parts.items() for k, p in part.named_parameters()}
        return {**dict(self.model.named_parameters()), **own}

    def gradients(self, loss: Tensor) -> dict[str, Tensor]:
        used = self.parameters()
        found = torch.autograd.grad(loss, list(used.values()), allow_unused=True)
        return {name: torch.zeros(()) if g is None else g for name, g in zip(used, found, strict=True)}


def make_model(causal: bool = False, layers: int = 2) -> Model:
    config = ModelConfig(replace(TINY, causal=causal, layers=layers), ("pooler", "masked", "next"))
    model = Model.new(config, Tokenizer.from_pieces(PIECES))
    make_loud(model)
    return model.eval()


def objectives_for(
    names: Sequence[str], tokenizer: Tokenizer, causal: bool = False, **masked: object
) -> dict[str, Objective]:
    """All of them together, though no recipe may name nsp and sop both."""
    settings: Any = {"mlm": MaskedLMSettings(**masked)}  # type: ignore[arg-type]
    found: dict[str, Objective] = {}
    for name in names:
        plan = PretrainRecipe(tuple(dict.fromkeys(("mlm", name))), settings, model=PretrainModel(causal=causal))
        found |= make_objectives(plan, tokenizer)
    return found


def make_setting(unit: Unit = "span", names: Sequence[str] = NAMES, rows: RawSequences | None = None) -> Setting:
    model = make_model()
    assert model.tokenizer is not None
    objectives = objectives_for(names, model.tokenizer, rate=0.3, select=unit)
    parts = {name: part for name, objective in objectives.items() if (part := objective.attach(model)) is not None}
    for part in parts.values():
        make_loud(part)
    rows = make_rows(random_sequences(7, words=7)) if rows is None else rows
    return Setting(model, objectives, parts, prepared(rows, objectives, WIDE))


def prepared(rows: RawSequences, objectives: dict[str, Objective], capacity: Capacity) -> BatchBuilder:
    builder = BatchBuilder(rows, rows.ids)
    for objective in objectives.values():
        objective.prepare(builder, capacity, None)
    return builder


def states_one_by_one(model: Model, builder: BatchBuilder) -> list[NDArray[np.float64]]:
    """By sequence, each read by itself: (its length, W)."""
    found = []
    for start, end in itertools.pairwise(builder.rows.cu_seqlens.tolist()):
        batch = Batch.pack([builder.ids[start:end].tolist()], [builder.rows.segments[start:end].tolist()])
        with torch.no_grad():
            found.append(model.encoder(batch).double().numpy())
    return found


def weights(module: nn.Module, name: str) -> NDArray[np.float64]:
    found: NDArray[np.float64] = module.get_parameter(name).detach().double().numpy()
    return found


def linear(module: nn.Module, name: str, x: NDArray[np.float64]) -> NDArray[np.float64]:
    found: NDArray[np.float64] = weights(module, f"{name}.weight") @ x + weights(module, f"{name}.bias")
    return found


def gelu(x: NDArray[np.float64]) -> NDArray[np.float64]:
    return np.array([0.5 * v * (1 + math.erf(v / math.sqrt(2))) for v in x.tolist()])


def normed(module: nn.Module, name: str, x: NDArray[np.float64]) -> NDArray[np.float64]:
    centred = x - x.mean()
    scaled = centred / np.sqrt((centred**2).mean() + TINY.norm_eps)
    found: NDArray[np.float64] = scaled * weights(module, f"{name}.weight") + weights(module, f"{name}.bias")
    return found


def surprise(logits: NDArray[np.float64], wanted: int) -> tuple[float, int]:
    """-log softmax(logits)[wanted], and whether it was the largest."""
    highest = float(logits.max())
    total = highest + math.log(np.exp(logits - highest).sum())
    return total - float(logits[wanted]), int(logits.argmax() == wanted)


def word_logits(model: Model, state: NDArray[np.float64]) -> NDArray[np.float64]:
    """What a token table says of a state that a head has made."""
    return weights(model, "encoder.embeddings.tokens.weight") @ state + weights(model, "heads.masked.bias")


def slow_mlm(model: Model, state: NDArray[np.float64], word: int) -> tuple[float, int]:
    seen = normed(model, "heads.masked.norm", gelu(linear(model, "heads.masked.dense", state)))
    return surprise(word_logits(model, seen), word)


def slow_next(model: Model, first: NDArray[np.float64], label: int) -> tuple[float, int]:
    pooled = np.tanh(linear(model, "heads.pooler.dense", first))
    return surprise(linear(model, "heads.next.linear", pooled), label)


def slow_sbo(
    model: Model, part: nn.Module, left: NDArray[np.float64], right: NDArray[np.float64], place: int, word: int
) -> tuple[float, int]:
    x = np.concatenate([left, right, weights(part, "places.weight")[place]])
    x = normed(part, "first_norm", gelu(linear(part, "first", x)))
    x = normed(part, "second_norm", gelu(linear(part, "second", x)))
    return surprise(word_logits(model, x), word)


def slow_losses(setting: Setting) -> dict[str, tuple[float, int, int]]:
    """By objective: the sum, how many were right, how many there were."""
    builder, model = setting.builder, setting.model
    rows, chosen = builder.rows, builder.selection
    assert chosen is not None
    assert rows.pair_labels is not None
    states = states_one_by_one(model, builder)
    terms: dict[str, list[tuple[float, int]]] = defaultdict(list)
    for start, end in zip(chosen.start.tolist(), chosen.end.tolist(), strict=True):
        b = int(rows.sequence[start])
        base = int(rows.cu_seqlens[b])
        for token in range(start, end):
            word = int(rows.ids[token])
            terms["mlm"].append(slow_mlm(model, states[b][token - base], word))
            if "sbo" in setting.parts:
                left, right = states[b][start - 1 - base], states[b][end - base]
                terms["sbo"].append(slow_sbo(model, setting.parts["sbo"], left, right, token - start, word))
    for b, label in enumerate(rows.pair_labels.tolist()):
        for name in ("nsp", "sop"):
            terms[name].append(slow_next(model, states[b][0], label))
    return {
        name: (sum(loss for loss, _ in some), sum(right for _, right in some), len(some))
        for name, some in terms.items()
    }


def test_every_objective_of_the_folder_is_here(tokenizer: Tokenizer) -> None:
    assert set(objectives_for(NAMES, tokenizer)) == set(NAMES)
    assert next(iter(OBJECTIVES)) == "mlm"


@pytest.mark.parametrize("unit", UNITS)
def test_losses_are_those_of_the_slow_reference(unit: Unit) -> None:
    setting = make_setting(unit)
    found, expected = setting.losses(collate(setting.builder, None)), slow_losses(setting)
    assert found.keys() == expected.keys() == setting.builder.counts.keys() == set(NAMES)
    for name, (loss, right, count) in expected.items():
        assert found[name].loss.item() == pytest.approx(loss, rel=CLOSE)
        assert int(found[name].correct) == right
        assert setting.builder.counts[name] == count


def test_right_guesses_are_counted() -> None:
    """Among words that the model itself would say: with random ones hardly any guess is right."""
    setting = make_setting("token")
    micro = collate(setting.builder, None)
    with torch.no_grad():
        guesses = setting.losses(micro)["mlm"].logits.argmax(-1)
        micro.targets["labels"][::2] = guesses[::2]
        labels = setting.losses(micro)["nsp"].logits.argmax(-1)
        micro.targets["pair_labels"][:] = labels
        micro.targets["pair_labels"][:3] = 1 - labels[:3]
        scores = setting.losses(micro)
    by_chance = int((micro.targets["labels"][1::2] == guesses[1::2]).sum())
    assert int(scores["mlm"].correct) == len(guesses[::2]) + by_chance
    assert int(scores["nsp"].correct) == int(scores["sop"].correct) == len(labels) - 3


def close(a: Tensor, b: Tensor) -> bool:
    scale = max(float(a.abs().max()), 1e-3)
    return float((a - b).abs().max()) <= CLOSE * scale


@pytest.mark.parametrize("more_tokens", [0, 1, 5, 200])
@pytest.mark.parametrize("more_sequences", [0, 1, 9])
def test_fillers_change_no_loss_and_no_gradient(more_tokens: int, more_sequences: int) -> None:
    setting = make_setting()
    rows = setting.builder.rows
    capacity = make_capacity(len(rows.ids) + more_tokens, len(rows.keys) + more_sequences, TINY.max_length)
    exact = collate(setting.builder, None)
    filled = collate(prepared(rows, setting.objectives, capacity), capacity)
    assert len(filled.batch.ids) == capacity.tokens
    assert filled.tokens == len(rows.ids)
    assert (
        filled.batch.cu_seqlens[-1] == capacity.tokens
    )  # every filler is in a sequence, or no attention would write it
    alone, among = setting.losses(exact), setting.losses(filled)
    for name in NAMES:
        assert among[name].loss.item() == pytest.approx(alone[name].loss.item(), rel=CLOSE)
        assert int(among[name].correct) == int(alone[name].correct)
    total, expected = (sum((score.loss for score in found.values()), torch.zeros(())) for found in (among, alone))
    gradients = setting.gradients(expected)
    for name, gradient in setting.gradients(total).items():
        assert close(gradients[name], gradient), name


@pytest.mark.parametrize("kind", ["documents", "stream", "next", "order"])
@pytest.mark.parametrize(
    ("tokens", "sequences", "groups"), [(None, 12, 1), (None, 12, 3), (360, None, 1), (360, None, 3)]
)
def test_a_step_is_the_same_whether_its_shape_is_kept_still_or_not(
    kind: SamplingKind, tokens: int | None, sequences: int | None, groups: int
) -> None:
    setting = make_setting(names=("mlm",))
    draws = np.random.default_rng(5)
    corpus = make_corpus([draws.integers(2, 9, draws.integers(2, 6)).tolist() for _ in range(60)])
    made = make_sampler(kind, corpus, SpecialIds(CLS, SEP), 30, 0.1)
    loader = Loader(
        Mixture({"": made}, None, 1), list(setting.objectives.values()), 30, tokens, sequences, groups, False
    )
    sums = []
    for one in (loader, replace(loader, static_shapes=True)):
        step = one.step(0, range(groups), one.capacity())
        with torch.no_grad():
            losses = [setting.losses(micro)["mlm"].loss.item() for micro in step.micros]
        sums.append((step.sequences, step.tokens, step.counts["mlm"], sum(losses)))
    assert sums[0][:3] == sums[1][:3]
    assert sums[1][3] == pytest.approx(sums[0][3], rel=CLOSE)


def test_only_the_asked_places_go_through_the_vocabulary() -> None:
    setting = make_setting()
    seen: list[tuple[int, ...]] = []
    setting.model.heads["masked"].register_forward_hook(lambda _, given, out: seen.append(tuple(given[0].shape)))
    assert setting.builder.selection is not None
    asked = len(setting.builder.selection.tokens)
    scores = setting.losses(collate(setting.builder, None))
    assert seen == [(asked, TINY.width)]
    assert scores["mlm"].logits.shape == scores["sbo"].logits.shape == (asked, TINY.vocab_size)
    assert asked < len(setting.builder.ids) / 2


@pytest.mark.parametrize("unit", UNITS)
def test_gradients_are_those_of_the_whole_sequence_with_the_rest_ignored(unit: Unit) -> None:
    setting = make_setting(unit, names=("mlm",))
    micro = collate(setting.builder, None)
    labels = torch.full_like(micro.batch.ids, -1)
    labels[micro.targets["predicted"]] = torch.from_numpy(setting.builder.rows.ids)[micro.targets["predicted"]]
    logits = setting.model.masked(setting.model.encoder(micro.batch))
    expected = setting.gradients(F.cross_entropy(logits, labels, ignore_index=-1, reduction="sum"))
    found = setting.gradients(setting.losses(micro)["mlm"].loss)
    for name, gradient in expected.items():
        assert close(gradient, found[name]), name
    assert found["encoder.embeddings.tokens.weight"].abs().max() > 0
    assert found["heads.masked.bias"].abs().max() > 0


def test_a_batch_in_which_nothing_is_asked_has_no_loss() -> None:
    """Every word is larger than the share: no not-a-number, no error."""
    setting = make_setting("word", rows=make_rows([[[4], [4]]] * 3))
    for capacity in (None, make_capacity(60, 5, 20)):
        scores = setting.losses(collate(prepared(setting.builder.rows, setting.objectives, capacity or WIDE), capacity))
        assert scores["mlm"].loss.item() == scores["sbo"].loss.item() == 0
        assert int(scores["mlm"].correct) == 0
        assert scores["nsp"].loss.item() > 0


def test_a_long_span_shares_its_last_place() -> None:
    """Ten words of forty pieces: the head has rows for 64 places."""
    rows = make_rows([[[40] * 60]] * 20)
    builder = masked(rows, select="span", rate=0.3)
    SpanBoundaryObjective().prepare(builder, WIDE, None)
    assert builder.selection is not None
    within = builder.selection.tokens - builder.selection.start[builder.selection.unit]
    assert within.max() > 100
    assert builder.targets["place"].values.tolist() == np.minimum(within, 63).tolist()
    part = SpanBoundaryObjective().attach(make_model())
    assert part.get_parameter("places.weight").shape == (64, 200)


def test_a_loss_is_summed_in_single_precision() -> None:
    """Thousands of terms in 16 bits would be rounded to three digits."""
    logits = torch.randn((5_000, 30), generator=torch.Generator().manual_seed(0)).bfloat16()
    wanted = torch.arange(5_000) % 30
    found = cross_entropy(logits, wanted)
    assert found.loss.dtype == found.logits.dtype == torch.float32
    expected = -logits.double().log_softmax(-1)[torch.arange(5_000), wanted].sum()
    assert found.loss.item() == pytest.approx(expected.item(), rel=1e-5)


# ---------------------------------------------------------------------- left to right


def test_a_left_to_right_model_never_looks_ahead() -> None:
    model = make_model(causal=True)
    draws = np.random.default_rng(0)
    lengths = [9, 30, 1, 17]
    texts = [draws.integers(len(FIRST_PIECES), len(PIECES), n).tolist() for n in lengths]
    with torch.no_grad():
        for group in (texts, [texts[1], texts[1][::-1]]):  # ragged, and a grid
            whole = model.encoder(Batch.pack(group)).split([len(text) for text in group])
            for place in (0, 1, 8, 16, 29):
                changed = [[*text[:place], *(len(FIRST_PIECES) + i % 50 for i in text[place:])] for text in group]
                seen = model.encoder(Batch.pack(changed)).split([len(text) for text in group])
                for a, b, text, other in zip(whole, seen, group, changed, strict=True):
                    assert close(a[:place], b[:place]) if place else True
                    if len(text) > place and text != other:
                        first = next(i for i in range(len(text)) if text[i] != other[i])
                        assert (a[first:] - b[first:]).abs().amax(1).min() > 0.01  # and all after it do


def test_the_loss_of_a_left_to_right_model_is_that_of_the_next_token(tokenizer: Tokenizer) -> None:
    model = make_model(causal=True)
    objectives = objectives_for(("mlm",), tokenizer, causal=True)
    rows = make_rows(random_sequences(6, words=7))
    builder = prepared(rows, objectives, WIDE)
    assert np.array_equal(builder.ids, rows.ids)  # nothing is hidden
    expected = [
        slow_mlm(model, states[place - 1], int(rows.ids[start + place]))
        for states, start, end in zip(
            states_one_by_one(model, builder), rows.cu_seqlens[:-1], rows.cu_seqlens[1:], strict=True
        )
        for place in range(1, end - start)
    ]
    assert builder.counts == {"mlm": len(expected)} == {"mlm": len(rows.ids) - 6}
    capacity = make_capacity(len(rows.ids) + 40, 9, TINY.max_length)
    for micro in (collate(builder, None), collate(prepared(rows, objectives, capacity), capacity)):
        with torch.no_grad():
            states = model.encoder(micro.batch)
            found = objectives["mlm"].losses(model, None, states, Activations({}, {}), micro.batch, micro.targets)[
                "mlm"
            ]
        assert found.loss.item() == pytest.approx(sum(loss for loss, _ in expected), rel=CLOSE)
        assert int(found.correct) == sum(right for _, right in expected)


def test_transformers_computes_the_same_left_to_right(tmp_path: Path) -> None:
    model = make_model(causal=True)
    bothways.save(model, tmp_path)
    theirs = transformers.BertLMHeadModel.from_pretrained(tmp_path).eval()
    assert theirs.config.is_decoder
    rows = make_rows(random_sequences(5, words=7))
    texts = [alone(rows, b) for b in range(5)]
    with torch.no_grad():
        batch = Batch.pack([text.ids.tolist() for text in texts], [text.segments.tolist() for text in texts])
        ours = model.masked(model.encoder(batch)).split(batch.lengths.tolist())
        for text, logits in zip(texts, ours, strict=True):
            given = {"input_ids": torch.from_numpy(text.ids), "token_type_ids": torch.from_numpy(text.segments)}
            expected = theirs(**{name: value[None] for name, value in given.items()}).logits[0]
            assert float((logits - expected).abs().max()) <= 1e-5
    assert bothways.load(tmp_path).config.encoder == model.config.encoder


# ---------------------------------------------------------------------- pseudo-perplexity


@dataclass(frozen=True)
class OneOfTwo(Ranks):
    """A rank that nobody answers: it keeps what it would have told the other."""

    told: list[list[float]] = field(default_factory=list)

    def sum(self, numbers: Sequence[float]) -> list[float]:
        self.told.append(list(numbers))
        return list(numbers)


PSEUDO: list[tuple[tuple[str, ...], SamplingKind, Unit]] = [
    (("mlm",), "stream", "word"),
    (("mlm", "nsp"), "next", "token"),
    (("mlm", "sbo"), "documents", "span"),
]


SOME = ((5, 7), (1,), (6, 2, 3), (3, 9), (8, 8))


def held_out(
    names: tuple[str, ...], kind: SamplingKind, unit: Unit, documents: Sequence[Sequence[int]] = SOME
) -> tuple[Loader, PretrainingModule]:
    model = make_model(layers=1)
    assert model.tokenizer is not None
    objectives = objectives_for(names, model.tokenizer, select=unit)
    module = PretrainingModule(model, objectives, seed=0)
    make_loud(module)
    corpus = make_corpus(documents)
    mixture = Mixture({"": make_sampler(kind, corpus, SpecialIds(CLS, SEP), 16, 0.1)}, None, 7)
    return Loader(mixture, list(objectives.values()), 16, 96, None, 1, static_shapes=False), module.eval()


def one_by_one(loader: Loader, model: Model) -> list[float]:
    """The loss of every token of every sequence, in its turn, alone behind [MASK]."""
    losses = []
    for number in range(loader.mixture.size):
        rows = loader.mixture.build(loader.mixture.plan(np.array([number])))
        for place in np.flatnonzero(~rows.special).tolist():
            ids = rows.ids.copy()
            ids[place] = MASK
            (states,) = states_one_by_one(model, BatchBuilder(rows, ids))
            losses.append(slow_mlm(model, states[place], int(rows.ids[place]))[0])
    return losses


@pytest.mark.parametrize(("names", "kind", "unit"), PSEUDO)
def test_pseudo_perplexity_hides_one_token_at_a_time(names: tuple[str, ...], kind: SamplingKind, unit: Unit) -> None:
    loader, module = held_out(names, kind, unit)
    surprises = one_by_one(loader, module.model)
    expected = math.exp(sum(surprises) / len(surprises))

    def forward(micro: MicroBatch) -> Tensor:
        with torch.no_grad():
            out: Tensor = module(micro.batch, micro.targets)
        return out

    for one in (loader, replace(loader, static_shapes=True)):
        for capacity in (make_capacity(96, 20, 16), make_capacity(30, 8, 16)):  # several copies at once, and one or two
            found = pseudo_perplexity(one, forward, capacity, Ranks(), tokens=10**6)
            assert found == pytest.approx(expected, rel=CLOSE)
    ranks = [OneOfTwo(rank, 2) for rank in range(2)]
    for rank in ranks:
        pseudo_perplexity(loader, forward, make_capacity(30, 8, 16), rank, tokens=10**6)
    (loss, count), (other_loss, other_count) = (rank.told[0] for rank in ranks)
    assert min(count, other_count) > 5
    assert count + other_count == len(surprises)
    assert math.exp((loss + other_loss) / len(surprises)) == pytest.approx(expected, rel=CLOSE)


@pytest.mark.parametrize("documents", [[[14]] * 20, [[1]] * 60 + [[14]] * 20, [[1]] * 80 + [[14]] * 3])
@pytest.mark.parametrize("tokens", [30, 70])
def test_pseudo_perplexity_stops_after_so_many_tokens(documents: list[list[int]], tokens: int) -> None:
    """To within a sequence of 16, however long the last one is."""
    loader, _ = held_out(("mlm",), "documents", "token", documents)
    asked = 0

    def forward(micro: MicroBatch) -> Tensor:
        nonlocal asked
        asked += len(micro.targets["labels"])
        return torch.zeros(2)

    assert pseudo_perplexity(loader, forward, make_capacity(96, 20, 16), Ranks(), tokens) == 1.0
    assert tokens - 16 <= asked <= tokens + 16
