"""What is computed for many texts at once equals what is computed one by one."""

import copy
import itertools
import random
import re
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pytest
import tokenizers
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays
from tokenizers import normalizers

from bothways.data.examples import Choice, Question
from bothways.data.words import _split, _split_ascii, _unbroken_in, _unbroken_spans
from bothways.engine.reader import Reader, WindowSettings
from bothways.engine.token_ids import TokenIds
from bothways.predict.fill import fill
from bothways.predict.predictor import Predictor
from bothways.tasks.folder import with_task
from bothways.tasks.registry import make_task
from bothways.tasks.spans import among_next
from bothways.tasks.tag_paths import best_paths, transitions
from bothways.tasks.word_tokens import first_tokens, first_tokens_of
from bothways.text import word_cache
from bothways.text.encode_batch import BatchEncoder
from bothways.text.encoding import Encoding
from bothways.text.tokenizer import Tokenizer, kept_lengths
from bothways.text.word_cache import hashes_of, kinds_of_characters, words_in
from helpers import PIECES, config_for, make_loud, model_of, refused, tokenizer_of

WORDS = [
    "don't",
    "can't",
    "cat",
    "the",
    "北京",
    "Paris",
    "!",
    "...",
    "\u200b",
    "  ",
    "x",
    "unbelievable",
    "日本的",
    "é",
]
TAGS = ("O", "B-A", "I-A", "B-B", "I-B")


def drawn(seed: int, count: int, longest: int = 7) -> list[str]:
    draws = random.Random(seed)
    return ["", *(" ".join(draws.choices(WORDS, k=draws.randint(0, longest))) for _ in range(count))]


# ---------------------------------------------------------------------- reading


@pytest.mark.parametrize("family", ["bert", "roberta", "xlm-roberta", "albert", "deberta-v2"])
def test_ids_without_offsets_are_the_same(family: str) -> None:
    tokenizer = tokenizer_of(family)
    texts: list[Any] = [*drawn(1, 40), *zip(drawn(2, 20), drawn(3, 20), strict=True)]
    whole, fast = (tokenizer.raw_batch(texts, has_offsets=way) for way in (True, False))
    for a, b in zip(whole, fast, strict=True):
        assert (a.ids, a.type_ids, a.sequence_ids) == (b.ids, b.type_ids, b.sequence_ids)
    before, after = tokenizer.around
    assert before + after == tokenizer.specials_around(1)


def plain_texts_of(*, lower: bool = True, added: Sequence[str] = (), normalizer: Any = None) -> Tokenizer:
    backend = Tokenizer.from_pieces(PIECES, lower=lower).backend
    backend.add_tokens(list(added))
    if normalizer is not None:
        backend.normalizer = normalizer
    return Tokenizer(backend)


@pytest.mark.parametrize(("options", "is_used"), [
    ({}, True),
    ({"lower": False}, True),
    ({"added": ["<Cat>", "@Paris"]}, True),
    ({"added": ["Paris"]}, False),  # which any text may contain
    ({"normalizer": normalizers.Sequence([normalizers.NFC(), normalizers.Lowercase()])}, True),
    ({"normalizer": normalizers.NFKD()}, True),
    ({"normalizer": normalizers.Replace("a", "b")}, False),
])  # fmt: skip
@pytest.mark.parametrize("has_offsets", [True, False])
def test_plain_texts_are_tokenized_as_any(options: dict[str, Any], is_used: bool, has_offsets: bool) -> None:
    """Without a normaliser, among texts that need it, and beside added tokens, which are matched in capitals."""
    tokenizer = plain_texts_of(**options)
    assert (BatchEncoder(tokenizer.backend).without is not None) == is_used
    draws = random.Random(0)
    some = [
        *WORDS,
        "Cat",
        "[MASK]",
        "[mask]",
        "<Cat>",
        "<cat>",
        "@Paris",
        "@paris",
        "THE",
        "a\tb",
        "~^`",
        "\x7f",
        "[CLS]",
    ]
    texts: list[Any] = ["".join(draws.choices([*some, " ", " "], k=draws.randint(0, 9))) for _ in range(400)]
    texts += zip(texts[::2], texts[1::2], strict=True)
    for specials in (True, False):
        encode = tokenizer.backend.encode_batch if has_offsets else tokenizer.backend.encode_batch_fast
        wanted = encode(texts, add_special_tokens=specials)
        found = tokenizer.raw_batch(texts, specials=specials, has_offsets=has_offsets)
        for a, b in zip(found, wanted, strict=True):
            assert (a.ids, a.type_ids, a.tokens) == (b.ids, b.type_ids, b.tokens)
            assert (a.offsets, a.word_ids) == (b.offsets, b.word_ids)
            assert (a.sequence_ids, a.special_tokens_mask) == (b.sequence_ids, b.special_tokens_mask)


@pytest.mark.parametrize("options", [{}, {"lower": False}, {"added": ["<Cat>"]}, {"added": ["cat"]}])
@pytest.mark.parametrize("has_segments", [True, False])
def test_ids_from_a_cache_of_words_are_the_same(options: dict[str, Any], has_segments: bool) -> None:
    """Of texts in any company, before and after their words are known; the last are neither texts nor pairs only."""
    tokenizer = plain_texts_of(**options)
    assert (tokenizer.words is None) == (options.get("added") == ["cat"])
    draws = random.Random(1)
    marks = "“”‘’–—…·、。，！？；：（）《》〈〉「」『』【】~!@#$%^&*()_+-=[]\\{}|;:,./<>?`'"
    some = [*WORDS, "CAT", "<Cat>", "[MASK]", "[mask]", "a\tb", "\n", "㐀龥", "x" * 150, "a-" * 30, *marks, *[" "] * 20]
    some += [
        *"éÉ\u0301\u0327\x00\x7f\u200b\u00a0\u3000\ufffdßİıΣςﬁ①½€°«가か😀\U00020000\uf900KÅñ\u0338",
        "e\u0301",
        "Cafés",
    ]
    texts = ["".join(draws.choices(some, k=draws.randint(0, 12))) for _ in range(300)]
    token_ids = TokenIds(tokenizer, has_segments)
    ascii = [text.encode("ascii", "ignore").decode() for text in texts]
    pairs = list(zip(texts[::2], texts[1::2], strict=True))
    given: list[list[Any]] = [
        ascii,
        texts[:150],
        texts,
        texts[::-1],
        pairs,
        pairs[::-1],
        [*texts[:9], *pairs[:9]],
        texts[:3],
    ]
    for inputs in given:
        tokens, wanted = token_ids(inputs, has_offsets=True), tokenizer.backend.encode_batch(inputs)
        assert tokens.offsets is not None
        assert list(map(tuple, tokens.offsets.tolist())) == [place for one in wanted for place in one.offsets]
        found = token_ids(inputs).sequences
        assert found.ids.tolist() == tokens.sequences.ids.tolist()
        assert found.lengths.tolist() == [len(one) for one in wanted]
        assert found.ids.tolist() == [id for one in wanted for id in one.ids]
        segments = [segment for one in wanted for segment in one.type_ids]
        if found.segments is not None:
            assert found.segments.tolist() == segments
        else:
            assert not has_segments or not any(segments)


def test_the_cache_of_words_stays_small(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("bothways.text.word_table.MOST", 120)
    tokenizer = Tokenizer.from_pieces(PIECES)
    assert tokenizer.words is not None
    for chunk in range(9):
        # The last chunk has more words than are ever kept.
        texts = [f"cat{chunk} dog{chunk * i} {'y' * i}" for i in range(400 if chunk == 8 else 40)]
        ids, lengths, _ = tokenizer.words.ids(texts)
        wanted = tokenizer.backend.encode_batch(texts, add_special_tokens=False)
        assert lengths.tolist() == [len(one) for one in wanted]
        assert ids.tolist() == [id for one in wanted for id in one.ids]
        assert tokenizer.words.table.size <= 120
    copied = copy.deepcopy(tokenizer)
    assert copied.words is not None
    assert tokenizer.words.table.size > 0 == copied.words.table.size


def test_no_word_takes_the_place_of_another(monkeypatch: pytest.MonkeyPatch) -> None:
    """These words share a hash for a base that everybody knows, so the base is another in each process."""
    chosen = ["happy", "pihlmwfpqoqikpkrkm", "not", "hptllnoflpjpmlwlon", "free", "fvnlloomrffoiiqnqp"]
    codes, ends = np.frombuffer("".join(chosen).encode(), np.uint8), np.cumsum(list(map(len, chosen)))
    places = ends - list(map(len, chosen)), ends
    assert len(set(hashes_of(codes, *places).tolist())) == 6
    word_cache._powers.cache_clear()
    monkeypatch.setattr(word_cache, "_BASE", 0x5851F42D4C957F2D)
    assert len(set(hashes_of(codes, *places).tolist())) == 3
    word_cache._powers.cache_clear()


def test_long_words_are_not_kept() -> None:
    """Words of this kind share a hash for any base, if they are long enough (Thue and Morse)."""
    tokenizer = Tokenizer.from_pieces([*PIECES, "«", "»"])
    morse, other = "«", str.maketrans("«»", "»«")
    for _ in range(11):
        morse += morse.translate(other)
    texts = [morse, morse.translate(other), "the cat", "x" * 99] * 8
    wanted = [one.ids for one in tokenizer.backend.encode_batch(texts, add_special_tokens=False)]
    assert wanted[0] != wanted[1]
    assert tokenizer.words is not None
    for has_offsets in (True, False):
        found = tokenizer.words.ids(texts, has_offsets)
        assert found.ids.tolist() == list(itertools.chain.from_iterable(wanted))
        assert found.lengths.tolist() == list(map(len, wanted))


def test_a_mask_that_takes_spaces_has_them_in_its_span() -> None:
    tokenizer = Tokenizer.from_pieces(PIECES)
    tokenizer.backend.add_special_tokens([tokenizers.AddedToken("[MASK]", lstrip=True, rstrip=True, special=True)])
    texts = ["the  [MASK]  cat", "paris", "[MASK] the"] * 8
    found, wanted = TokenIds(tokenizer, True)(texts, has_offsets=True), tokenizer.backend.encode_batch(texts)
    assert found.offsets is not None
    assert list(map(tuple, found.offsets.tolist())) == [place for one in wanted for place in one.offsets]


def test_the_place_of_an_empty_text_is_the_same_in_any_company() -> None:
    token_ids = TokenIds(Tokenizer.from_pieces(PIECES), True)
    pairs = [("", "the cat"), ("the cat", ""), ("", "")]
    assert token_ids(pairs).ranges.tolist() == token_ids(pairs * 6).ranges[:3].tolist()


def test_threads_share_a_cache_of_words() -> None:
    tokenizer = Tokenizer.from_pieces(PIECES)
    assert tokenizer.words is not None
    texts = [[f"cat{i * j % 997} paris{i} the {'x' * (i % 9)}" for i in range(200)] for j in range(24)]
    wanted = [[one.ids for one in tokenizer.backend.encode_batch(some, add_special_tokens=False)] for some in texts]
    with ThreadPoolExecutor(4) as pool:
        for (ids, lengths, _), rows in zip(pool.map(tokenizer.words.ids, texts), wanted, strict=True):
            assert lengths.tolist() == list(map(len, rows))
            assert ids.tolist() == list(itertools.chain.from_iterable(rows))


@given(st.lists(st.text("ab1. 中\n", max_size=12), min_size=1, max_size=5))
def test_words_in_arrays_are_words(texts: list[str]) -> None:
    joined = "".join(texts)
    codes = np.array([ord(character) for character in joined], np.uint32)
    begins, ends = words_in(kinds_of_characters("", True)[codes])
    found = [joined[begin:end] for begin, end in zip(begins, ends, strict=True)]
    assert found == re.findall("[a-z0-9]+|[^a-z0-9 \\n]", joined)
    hashes = hashes_of(codes, begins, ends)
    assert len(set(hashes.tolist())) == len(set(found)) == len(set(zip(found, hashes.tolist(), strict=True)))


@pytest.mark.parametrize("family", ["bert", "roberta", "albert"])
def test_cutting_ids_equals_cutting_texts(family: str) -> None:
    """Texts are cut in arrays, without being tokenized again."""
    model = model_of(family)
    texts: list[tuple[str, ...]] = [(text,) for text in drawn(4, 30, 20)]
    if model.config.encoder.segments != 1:
        texts += zip(drawn(5, 30, 12), drawn(6, 30, 12), strict=True)
    settings = WindowSettings(16, long="cut")
    reader, tokenizer = Reader(model, settings), model.require_tokenizer()
    found = reader(texts)
    given: list[Any] = [text if len(text) > 1 else text[0] for text in texts]
    wanted = [
        tokenizer.cut([text], 16)[0] if len(whole) > 16 else Encoding(whole)
        for text, whole in zip(given, tokenizer.raw_batch(given), strict=True)
    ]
    for one, cut, whole in zip(found, wanted, tokenizer.raw_batch(given), strict=True):
        places = list(map(tuple, one.offsets.tolist()))
        assert set(places) <= set(whole.offsets)
        assert cut.raw.n_sequences == 2 or places[:-1] == whole.offsets[: len(places) - 1]
        assert one.ids.tolist() == cut.ids
        assert found.sequences.segments is None or one.segments.tolist() == cut.segments
        assert one.in_texts == len(one) - tokenizer.specials_around(cut.raw.n_sequences)
        assert not any(cut.raw.special_tokens_mask[one.inside.start : one.inside.stop])
        assert len(one.inside) >= one.in_texts / 2
    assert [one.ids for one in found.encodings] == [cut.ids for cut in wanted]
    plain = Reader(model, settings, has_offsets=False)
    assert plain(texts).sequences.ids.tolist() == found.sequences.ids.tolist()
    assert vars(plain.tally) == vars(reader.tally)
    assert reader.tally.cut > 10
    assert reader.tally.tokens == len(found.sequences.ids)
    assert not found.has_windows


@given(st.lists(st.integers(1, 40), min_size=1, max_size=2), st.integers(2, 60))
def test_the_longer_text_loses_tokens_first(lengths: list[int], room: int) -> None:
    left = list(lengths)
    while sum(left) > room:
        left[0 if len(left) == 1 or left[0] > left[1] else 1] -= 1
    if sum(lengths) > room:
        assert kept_lengths(lengths, room, 99) == left
    with refused("out-of-range", 99):
        kept_lengths([3, 3], 1, 99)


@given(st.text("ab1.,'!?-:)(/ @tnsOD_*#~", max_size=16))
def test_words_of_plain_text_are_split_as_those_of_any(text: str) -> None:
    spans = _unbroken_spans(text)
    assert _split_ascii(text, spans) == _split(text, spans)


@given(st.lists(st.text("ab1.,'’!?-:)(/ @tnscanotOD_*#~Mr\u0301\u3000\t", max_size=12), max_size=4))
def test_words_with_punctuation_are_found_part_by_part(parts: list[str]) -> None:
    """A text is searched between its spaces; the same is found if it is searched as a whole."""
    text = " ".join([*parts, "cannot"])
    assert _unbroken_spans(text) == dict(_unbroken_in.__wrapped__(text))


# ---------------------------------------------------------------------- tags


@pytest.mark.parametrize("family", ["bert", "roberta", "xlm-roberta", "deberta-v2"])
def test_first_tokens_of_many_texts(family: str) -> None:
    tuned = with_task(model_of(family, ()), config_for("tag"), TAGS)
    make_loud(tuned.heads, 3)
    predictor = Predictor(tuned)
    draws = random.Random(7)
    texts = drawn(7, 40, 6)
    words = [tuple(draws.choices(WORDS[:8], k=draws.randint(1, 5))) for _ in range(20)]
    chunk = predictor.task.encode([predictor.example(one) for one in (*texts, *words)])
    assert not chunk.reads.views
    assert chunk.reads.parted or family == "bert"  # some tokens spanned two words
    found, counts = first_tokens_of(chunk)
    assert found.tolist() == [int(i) for item in chunk for i in first_tokens(item)]
    assert counts.tolist() == [len(item.example.words) for item in chunk]
    for one, alone in zip(predictor(texts), map(predictor, texts), strict=True):
        assert [(e["word"], e["entity_group"]) for e in one] == [(e["word"], e["entity_group"]) for e in alone]


@given(st.data())
def test_the_best_paths_are_the_best_of_all(data: st.DataObject) -> None:
    labels = data.draw(st.sampled_from([TAGS, ("O", "I-A", "I-B"), ("B-A", "I-A", "O")]))
    counts = np.array(data.draw(st.lists(st.integers(0, 4), min_size=1, max_size=6)))
    logs = data.draw(arrays(np.float64, (int(counts.sum()), len(labels)), elements=st.floats(-9, 0)))
    steps = transitions(labels)
    found = best_paths(logs, steps, counts)
    begin = 0
    for count in counts.tolist():
        own = logs[begin : begin + count]

        def score(path: Any, own: Any = own) -> float:
            before = [len(labels), *path[:-1]]
            return float(sum(own[i, tag] + steps[before[i], tag] for i, tag in enumerate(path)))

        every = itertools.product(range(len(labels)), repeat=count)
        assert score(found[begin : begin + count].tolist()) == pytest.approx(max(map(score, every), default=0.0))
        begin += count


# ---------------------------------------------------------------------- spans and options


@given(arrays(np.float64, st.integers(1, 40), elements=st.floats(-9, 9)), st.integers(1, 40))
def test_neighbours_are_added_and_compared(values: Any, count: int) -> None:
    count = min(count, len(values))
    for combine in (np.add, np.maximum):
        wanted = [combine.reduce(values[i : i + count]) for i in range(len(values) - count + 1)]
        assert among_next(values, count, combine).tolist() == pytest.approx(wanted)


@pytest.mark.parametrize("scale", [1.0, 1e4])
def test_answers_of_many_contexts_are_those_of_each(scale: float) -> None:
    """Also where exponentials would be 0: the best start comes after the best end, both far above the others."""
    config = config_for("answer", window=WindowSettings(24), max_answer_length=5)
    task = make_task(with_task(model_of("bert", ()), config, ()))
    contexts = ["", *drawn(8, 12, 4), *drawn(9, 6, 20)]
    chunk = task.encode([Question("", "who?", context) for context in contexts])
    assert chunk.reads.has_windows
    rows = np.random.default_rng(0).normal(0, scale, (int(chunk.sequences.lengths.sum()), 2)).astype(np.float32)
    ends = np.cumsum(chunk.sequences.lengths)
    views = iter(zip(ends - chunk.sequences.lengths, ends, strict=True))
    for item, found in zip(chunk, task.decode_chunk(chunk, rows), strict=True):
        own = [rows[slice(*next(views))] for _ in item.views]
        spans = [
            float(part[first - view.shift, 0]) + float(part[last - view.shift, 1])
            for view, part in zip(item.views, own, strict=True)
            for first in range(view.window.own, view.window.own_end)
            for last in range(first, min(first + 5, view.window.end))
        ]
        if item.example.context.strip("\u200b "):
            assert found.everything == pytest.approx(np.logaddexp.reduce(spans))
            assert found.top == pytest.approx(max(spans))
        alone = task.decode(item, own)
        assert (found.best(3), found.margin) == (alone.best(3), alone.margin)
        if spans:
            assert found.best() == found.best(2)[:1]


def test_choices_of_many_questions_are_those_of_each() -> None:
    task = make_task(with_task(model_of("bert", ()), config_for("choose", window=WindowSettings(32)), ()))
    draws = random.Random(3)
    asked = [Choice("", text, tuple(draws.choices(drawn(4, 9, 15), k=draws.randint(1, 5)))) for text in drawn(5, 12, 4)]
    chunk = task.encode(asked)
    assert chunk.reads.has_windows
    rows = np.random.default_rng(0).normal(size=(len(chunk.sequences), 1)).astype(np.float32)
    left = iter(rows)
    for item, found in zip(chunk, task.decode_chunk(chunk, rows), strict=True):
        alone = task.decode(item, [next(left) for _ in item.views])
        assert len(found) == len(item.example.options)
        assert found.tolist() == pytest.approx(alone.tolist())
        assert found.sum() == pytest.approx(1)


# ---------------------------------------------------------------------- masks


def test_many_masked_texts_are_filled_as_each_alone() -> None:
    model = model_of("bert")
    texts = ["the [MASK] sleeps", "a [MASK] [MASK] runs in paris", "[MASK]", "walk[MASK] the dog", "[MASK][MASK] big"]
    together = fill(texts, model, top=3)
    for text, found in zip(texts, together, strict=True):
        alone = fill(text, model, top=3)
        assert [one.text for one in found] == [one.text for one in alone]
        assert [one.score for one in found] == pytest.approx([one.score for one in alone], rel=1e-4)
    assert fill([], model) == []
    with refused("no-mask", "nothing here", names="text 2"):
        fill(["a [MASK]", "nothing here"], model)
