"""From outputs to answers, whatever the outputs are: against trying everything."""

import itertools
import math
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import Phase, given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays
from numpy.typing import NDArray

from bothways.data.examples import Choice, Question, Tagged, Text
from bothways.data.words import join_words
from bothways.engine.reader import WindowSettings
from bothways.model.config import ModelConfig
from bothways.model.model import Model
from bothways.tasks.answer import NULL, QuestionAnswering
from bothways.tasks.choose import MultipleChoice
from bothways.tasks.classify import TextClassification
from bothways.tasks.folder import with_task
from bothways.tasks.spans import SpanScores
from bothways.tasks.tag import TokenClassification, tag_names
from bothways.tasks.task import EncodedExample, TaskConfig
from bothways.text.tokenizer import Tokenizer
from helpers import PIECES, config_for, task_of
from helpers.tasks import SMALL

TOKENIZER = Tokenizer.from_pieces(PIECES)
WINDOW = WindowSettings(length=24, overlap=6)


_MADE: dict[str, Model] = {}


def model_of(config: TaskConfig, labels: Sequence[str] = ()) -> Model:
    key = f"{config} {labels}"
    if key not in _MADE:
        _MADE[key] = with_task(Model.new(ModelConfig(SMALL, ("pooler",)), TOKENIZER), config, labels)
    return _MADE[key]


def quick(examples: int) -> settings:
    """Without looking for the smallest failing tables, which takes minutes."""
    return settings(max_examples=examples, phases=(Phase.explicit, Phase.reuse, Phase.generate))


def numbers(*shape: int) -> st.SearchStrategy[NDArray[np.float32]]:
    """Logits from everyday ones to absurd ones, with many ties."""
    some = st.one_of(st.integers(-3, 3).map(float), st.floats(-80, 80, width=32))
    return arrays(np.float32, shape, elements=some)


# ---------------------------------------------------------------------- tags

BIO = ("O", "B-LOC", "I-LOC", "B-PER", "I-PER")
TAGGERS = {
    "as we write it": BIO,
    "another order": ("I-PER", "B-PER", "O", "I-LOC", "B-LOC"),
    "one type": ("B-X", "I-X", "O"),
}
PLAIN = ("ADJ", "NOUN", "VERB")
WORDS = ["the", "dog", "unbelievable", "Paris", "北", "京", "walks", "."]


def decide_tags(
    task: TokenClassification, count: int, logits: NDArray[np.float32]
) -> tuple[list[str], NDArray[np.float64]]:
    """Tags for words whose first tokens have these logits, everything else being noise that must not count."""
    item = task.encode([Tagged(*join_words(WORDS[:count]))])[0]
    read = item.reads[0]
    rows = np.full((len(read), len(task.labels)), 1e3, np.float32)
    rows[:, ::2] *= -1
    begins = {start for start, _ in item.example.words}
    first = [i for i in read.inside if read.offsets[i][0] in begins]
    rows[first] = logits
    tags, chances = task.decode(item, [rows])
    return [task.labels[tag] for tag in tags], chances


def is_bio(tags: Sequence[str]) -> bool:
    for before, tag in zip(["O", *tags], tags, strict=False):
        if tag.startswith("I-") and before not in (f"B-{tag[2:]}", tag):
            return False
    return True


@pytest.mark.parametrize("name", TAGGERS)
@quick(40)
@given(data=st.data())
def test_tags_are_the_likeliest_that_are_valid(name: str, data: st.DataObject) -> None:
    labels = TAGGERS[name]
    task = task_of(TokenClassification, model_of(config_for("tag"), labels))
    count = data.draw(st.integers(1, 4))
    logits = data.draw(numbers(count, len(labels)))
    found, chances = decide_tags(task, count, logits)
    assert is_bio(found)
    logs = logits.astype(np.float64) - np.logaddexp.reduce(logits.astype(np.float64), axis=1, keepdims=True)
    worth = {
        path: sum(logs[i, labels.index(tag)] for i, tag in enumerate(path))
        for path in itertools.product(labels, repeat=count)
        if is_bio(path)
    }
    assert worth[tuple(found)] == pytest.approx(max(worth.values()), abs=1e-5)
    assert chances == pytest.approx([math.exp(logs[i, labels.index(tag)]) for i, tag in enumerate(found)], abs=1e-9)


@quick(30)
@given(data=st.data())
def test_long_tag_output_is_valid_whatever_the_logits(data: st.DataObject) -> None:
    task = task_of(TokenClassification, model_of(config_for("tag"), BIO))
    found, _ = decide_tags(task, len(WORDS), data.draw(numbers(len(WORDS), len(BIO))))
    assert len(found) == len(WORDS)
    assert is_bio(found)


@quick(30)
@given(data=st.data())
def test_plain_tags_are_the_likeliest_of_each_word(data: st.DataObject) -> None:
    task = task_of(TokenClassification, model_of(config_for("tag"), PLAIN))
    logits = data.draw(numbers(len(WORDS), len(PLAIN)))
    found, _ = decide_tags(task, len(WORDS), logits)
    chosen = [logits[word, PLAIN.index(tag)] for word, tag in enumerate(found)]
    assert chosen == pytest.approx(logits.max(1), abs=1e-6)  # closer ones are ties


def test_entities_are_listedwith_their_words_and_mean_chance() -> None:
    task = task_of(TokenClassification, model_of(config_for("tag"), BIO))
    item = task.encode([Tagged(*join_words(["Paris", "walks", "北", "京", "!"]))])[0]
    chances = np.array([0.9, 0.5, 0.8, 0.6, 0.7])
    assert task.answer(item, ([1, 0, 1, 2, 0], chances)) == [
        {"entity_group": "LOC", "score": pytest.approx(0.9), "word": "Paris", "start": 0, "end": 5},
        {"entity_group": "LOC", "score": pytest.approx(0.7), "word": "北京", "start": 12, "end": 14},
    ]
    twice = task.answer(item, ([1, 1, 2, 0, 3], chances))
    assert [(one["entity_group"], one["word"]) for one in twice] == [
        ("LOC", "Paris"),
        ("LOC", "walks 北"),
        ("PER", "!"),
    ]


@pytest.mark.parametrize(("labels", "kind"), [(("B", "I"), "word"), (("O", "B-NOUN", "I-NOUN"), "NOUN")])
def test_segmented_words_are_put_together(labels: tuple[str, ...], kind: str) -> None:
    """Each character was an answer of its own."""
    task = task_of(TokenClassification, model_of(config_for("tag"), labels))
    item = task.encode([Tagged(*join_words(["北", "京", "dog"]))])[0]
    begin = labels.index("B") if "B" in labels else 1
    found = task.answer(item, ([begin, begin + 1, begin], np.ones(3)))
    assert [(one["entity_group"], one["word"]) for one in found] == [(kind, "北京"), (kind, "dog")]
    logits = np.zeros((3, len(labels)), np.float32)
    logits[:, begin + 1] = 5  # words do not begin in their middle
    assert decide_tags(task, 3, logits)[0] == [labels[begin], labels[begin + 1], labels[begin + 1]]
    scores = task.new_scores()
    scores.add([labels[begin], labels[begin + 1], labels[begin]], [labels[begin]] * 3)
    assert scores.scores()["f1"] == pytest.approx(0.4)  # one of 3 words, which are 2


def test_the_labels_of_a_tagger_come_from_its_data() -> None:
    """O first; every type with both of its tags, though one of them never came; plain tags as they are."""
    assert tag_names([["O", "B-PER"], ["I-LOC", "O"]]) == ("O", "B-LOC", "I-LOC", "B-PER", "I-PER")
    assert tag_names([["VERB", "ADJ"], ["NOUN"]]) == ("ADJ", "NOUN", "VERB")
    assert tag_names([["O", "NOUN"]]) == ("NOUN", "O")
    assert tag_names([["B", "I", "B"]]) == ("O", "B", "I")
    assert tag_names([["B-NOUN", "I-NOUN"], ["B-X"]]) == ("O", "B-NOUN", "I-NOUN", "B-X", "I-X")


# ---------------------------------------------------------------------- answers

SHORT = Question("1", "who?", "Paris is unbelievable, the 北京 dog runs")
LONG = Question("2", "who?", " ".join(["the black cat of Paris", "unbelievable 北京 talks"] * 5))


def answers(longest: int, **config: Any) -> Any:
    return task_of(
        QuestionAnswering, model_of(config_for("answer", window=WINDOW, max_answer_length=longest, **config))
    )


def all_spans(item: EncodedExample, rows: Sequence[NDArray[np.float32]], longest: int) -> dict[tuple[int, int], float]:
    """Every span of the context by its tokens, with the score that the window of its first token gives it."""
    found = {}
    for view, table in zip(item.views, rows, strict=True):
        for first in range(view.window.own, view.window.own_end):
            for last in range(first, min(first + longest, view.window.end)):
                ends = float(table[first - view.shift, 0]), float(table[last - view.shift, 1])
                found[first, last] = sum(ends)
    return found


@pytest.mark.parametrize("example", [SHORT, LONG], ids=["one window", "windows"])
@quick(25)
@given(data=st.data())
def test_the_best_answer_is_the_best_of_all_spans(example: Question, data: st.DataObject) -> None:
    longest, taught = data.draw(st.integers(1, 9)), data.draw(st.booleans())
    task = answers(longest, thresholds={NULL: 0.0} if taught else {})
    item = task.encode([example])[0]
    assert (len(item.views) > 1) == (example is LONG)
    rows = [data.draw(numbers(len(view), 2)) for view in item.views]
    found = task.decode(item, rows)
    spans = all_spans(item, rows, longest)
    null = min(float(table[0, 0]) + float(table[0, 1]) for table in rows)
    everything = np.logaddexp.reduce([*spans.values(), null] if taught else [*spans.values()])
    best = max(spans.values())
    assert found.none == (pytest.approx(math.exp(null - everything), abs=1e-9) if taught else 0)
    assert found.margin == pytest.approx(null - best, abs=1e-5)
    ((start, end, chance),) = found.best()
    assert chance == pytest.approx(math.exp(best - everything), abs=1e-9)
    offsets = item.reads[0].offsets.tolist()
    winners = {(offsets[i][0], offsets[j][1]) for (i, j), score in spans.items() if score >= best - 1e-9}
    assert (start, end) in winners


@quick(25)
@given(data=st.data())
def test_further_answers_are_the_best_that_overlap_no_better(data: st.DataObject) -> None:
    """Sorted, apart from each other, and with the chance of no answer at most 1 in all."""
    longest = data.draw(st.integers(1, 5))
    task = answers(longest)
    item = task.encode([SHORT])[0]
    rows = [data.draw(arrays(np.float32, (len(item.views[0]), 2), elements=st.floats(-9, 9, width=32)))]
    found = task.decode(item, rows)
    listed = found.best(20)
    chances = [chance for _, _, chance in listed]
    assert chances == sorted(chances, reverse=True)
    assert sum(chances) + found.none <= 1 + 1e-9
    for (a, b, _), (c, d, _) in itertools.combinations(listed, 2):
        assert b <= c or d <= a
    left, expected = all_spans(item, rows, longest), []
    offsets = item.reads[0].offsets.tolist()
    while left:  # take the best, drop all that overlap it, and again
        (i, j), score = max(left.items(), key=lambda one: one[1])
        expected.append(score)
        left = {
            (a, b): s for (a, b), s in left.items() if offsets[b][1] <= offsets[i][0] or offsets[a][0] >= offsets[j][1]
        }
    total = np.logaddexp.reduce([*all_spans(item, rows, longest).values()])
    scores = [math.log(max(chance, 1e-300)) + total for chance in chances]
    assert len(scores) == len(expected[:20])
    assert scores == pytest.approx(expected[:20], abs=1e-3)


def test_a_sure_answer_hides_no_others() -> None:
    """Of the best spans by score, hundreds are the best one with its ends moved: five apart are asked for."""
    task = task_of(QuestionAnswering, model_of(config_for("answer")))
    item = task.encode([Question("1", "who?", "the cat of paris runs " * 8)])[0]
    rows = np.random.default_rng(0).normal(-6, 0.5, (len(item.views[0]), 2)).astype(np.float32)
    rows[18:23, 0] += 6
    rows[20:26, 1] += 6
    found = task.answer(item, task.decode(item, [rows]), top=5)
    assert len(found) == 5


@pytest.mark.parametrize("thresholds", [{}, {NULL: 0.0}])
def test_all_chances_add_up_to_one(thresholds: dict[str, float]) -> None:
    """With answers of one token none overlaps another: those that are given are all there are."""
    task = answers(1, thresholds=thresholds)
    item = task.encode([SHORT])[0]
    rows = np.random.default_rng(0).normal(size=(len(item.views[0]), 2)).astype(np.float32)
    found = task.decode(item, [rows])
    every = found.best(99)
    assert len(every) == len(item.reads[0].inside)
    assert sum(chance for _, _, chance in every) + found.none == pytest.approx(1)


def two_answers(task: QuestionAnswering, margin: float) -> tuple[EncodedExample, SpanScores]:
    """ "Paris" before "北京", and no answer ahead of both by this much."""
    item = task.encode([SHORT])[0]
    offsets = item.reads[0].offsets.tolist()
    rows = np.full((len(item.views[0]), 2), -20, np.float32)
    inside = list(item.reads[0].inside)
    for begin, end, logit in ((0, 5, 2.0), (27, 29, 1.0)):
        rows[next(i for i in inside if offsets[i][0] == begin), 0] = logit
        rows[next(i for i in inside if offsets[i][1] == end), 1] = logit
    rows[0] = 2.0 + margin / 2
    return item, task.decode(item, [rows])


@pytest.mark.parametrize(("margin", "threshold", "silent"), [(1.0, 0.5, True), (0.5, 0.5, False), (-1.0, -2.0, True)])
def test_no_answer_wins_above_the_threshold(margin: float, threshold: float, silent: bool) -> None:
    """As SQuAD 2 has it: the score of no answer less that of the best one, above the threshold."""
    task = answers(5, thresholds={NULL: threshold})
    item, decision = two_answers(task, margin)
    odds = np.exp([4.0, 2.0, 4.0 + margin])
    paris, beijing, nothing = odds / odds.sum()
    shown = task.answer(item, decision)
    assert shown["answer"] == ("" if silent else "Paris")
    assert (shown["start"], shown["end"]) == ((0, 0) if silent else (0, 5))
    assert shown["score"] == pytest.approx(nothing if silent else paris, abs=1e-3)
    listed = [one["answer"] for one in task.answer(item, decision, top=3)]
    assert listed[:2] == (["", "Paris"] if silent else ["Paris", "北京"])
    chances = {one["answer"]: one["score"] for one in task.answer(item, decision, top=99)}
    assert chances["北京"] == pytest.approx(beijing, abs=1e-3)
    assert chances[""] == pytest.approx(nothing, abs=1e-3)


def test_a_model_that_knows_no_silence_always_answers() -> None:
    task = answers(5)
    item, decision = two_answers(task, 50.0)
    assert decision.margin == pytest.approx(50)
    assert decision.none == 0
    assert task.answer(item, decision)["answer"] == "Paris"
    assert "" not in [one["answer"] for one in task.answer(item, decision, top=99)]


def test_an_empty_context_has_no_answer() -> None:
    task = answers(5)
    item = task.encode([Question("1", "who?", "")])[0]
    found = task.decode(item, [np.ones((len(item.views[0]), 2), np.float32)])
    assert found.best(9) == []
    assert found.none == 0  # nothing was read that could tell
    assert task.answer(item, found)["answer"] == ""


# ---------------------------------------------------------------------- labels, numbers, options


@pytest.mark.parametrize("temperature", [1.0, 2.5])
@quick(30)
@given(rows=st.lists(numbers(3), min_size=1, max_size=4))
def test_chances_of_labels(temperature: float, rows: list[NDArray[np.float32]]) -> None:
    """Of the mean logits over windows: softmax for one label, a sigmoid for each of several, the number itself."""
    mean = np.mean(np.array(rows, np.float64), 0)
    expected: dict[Any, Any] = {
        "single": np.exp(mean / temperature - np.logaddexp.reduce(mean / temperature)),
        "multi": np.exp(-np.logaddexp(0, -mean / temperature)),
        "regression": mean,
    }
    for kind, wanted in expected.items():
        task = task_of(
            TextClassification, model_of(config_for("classify", kind=kind, temperature=temperature), ("a", "b", "c"))
        )
        item = task.encode([Text(("the cat",))])[0]
        assert task.decode(item, rows) == pytest.approx(wanted, abs=1e-9)


def test_several_labels_are_listedby_their_own_thresholds() -> None:
    config = config_for("classify", kind="multi", thresholds={"b": 0.2})
    task = task_of(TextClassification, model_of(config, ("a", "b", "c")))
    item = task.encode([Text(("the cat",))])[0]
    shown = task.answer(item, np.array([0.49, 0.2, 0.5]))
    assert [one["label"] for one in shown] == ["c", "b"]
    assert task.answer(item, np.array([0.1, 0.1, 0.1])) == []
    assert [one["label"] for one in task.answer(item, np.array([0.4, 0.2, 0.5]), top=2)] == ["c", "a"]


def test_a_temperature_moves_no_answer_of_a_chooser_but_its_chance() -> None:
    example = Choice("the cat", "who?", ("a", "b", "c"))
    rows = [np.array([value], np.float32) for value in (1.0, 3.0, 2.0)]
    for temperature in (1.0, 4.0):
        task = task_of(MultipleChoice, model_of(replace(config_for("choose"), temperature=temperature)))
        item = task.encode([example])[0]
        chances = task.decode(item, rows)
        wanted = np.exp(np.array([1, 3, 2]) / temperature)
        assert chances == pytest.approx(wanted / wanted.sum())
        assert task.answer(item, chances)["answer"] == "b"
