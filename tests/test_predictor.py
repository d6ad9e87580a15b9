"""Predictor: the answer to an input depends on that input alone, and comes in its place, as it is asked for."""

import itertools
import json
import random
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from bothways.data.examples import Choice, Question, Tagged, Text
from bothways.engine.reader import WindowSettings
from bothways.errors import BothwaysError
from bothways.model.checkpoint import save
from bothways.model.config import ModelConfig
from bothways.model.load import load
from bothways.model.model import Model
from bothways.predict.evaluation import calibrate, compare_models, evaluate
from bothways.predict.picture import draw_evaluation
from bothways.predict.predictor import Predictor
from bothways.tasks.folder import with_task
from bothways.tasks.registry import TASKS
from bothways.text.tokenizer import Tokenizer
from helpers import config_for, make_loud, refused
from helpers.tasks import (
    EXAMPLES,
    KINDS,
    LABELS,
    SINGLE,
    SMALL,
    near,
    written,
)

WORDS = ["the", "cat", "unbelievable", "Paris", "中", "国", "walks", "in", "Berlin", ",", "dog", "talking"]


def predictor_for(tokenizer: Tokenizer, name: str, seed: int = 0, **config: Any) -> Predictor:
    """A loud model for a kind of task; windows are short, so that many texts need some."""
    task, kind, labels = KINDS[name]
    base = Model.new(ModelConfig(SMALL, ("pooler",)), tokenizer)
    model = with_task(base, config_for(task, kind, window=WindowSettings(32, 8), **config), labels)
    make_loud(model, seed)
    return Predictor(model)


SURE = ("tag", "score", "embed")  # tasks that have no second answer


def inputs_for(name: str, count: int, seed: int = 0) -> list[Any]:
    """From nothing to several windows."""
    draws = random.Random(seed)

    def text(most: int = 70) -> str:
        return " ".join(draws.choices(WORDS, k=draws.choice([0, 1, 5, 12, most])))

    make: dict[str, Callable[[], Any]] = {
        "score": lambda: (text(10), text()),
        "embed": lambda: (text(10), text()),
        "answer": lambda: {"question": text(8), "context": text()},
        "choose": lambda: {"context": text(), "question": text(4), "options": [text(6) for _ in range(3)]},
        "tag": text,
    }
    return [make.get(KINDS[name][0], lambda: draws.choice([text(), (text(9), text())]))() for _ in range(count)]


def test_every_task_is_here() -> None:
    assert {task for task, _, _ in KINDS.values()} == set(TASKS)


@pytest.mark.filterwarnings("ignore:.*cut:UserWarning")  # the texts of sentence vectors
@pytest.mark.parametrize("name", KINDS)
def test_an_answer_does_not_depend_on_its_neighbours(name: str, tokenizer: Tokenizer) -> None:
    predictor = predictor_for(tokenizer, name)
    given, top = inputs_for(name, 50), 1 if KINDS[name][0] in SURE else 3
    among = predictor(given, top=top)
    assert predictor.tally.in_windows > 0 or (name == "embed" and predictor.tally.cut > 0)
    assert len({json.dumps(one) for one in among}) > 25  # answers that can be told apart
    for place in range(0, 50, 6):
        assert near(predictor(given[place], top=top), among[place]), given[place]
    order = random.Random(1).sample(range(50), 50)
    for place, one in zip(order, predictor([given[i] for i in order], top=top), strict=True):
        assert near(one, among[place])


@pytest.mark.parametrize("name", KINDS)
def test_one_input_gives_one_answer_and_a_list_a_list(name: str, tokenizer: Tokenizer) -> None:
    predictor = predictor_for(tokenizer, name)
    (one,) = inputs_for(name, 1, seed=5)
    assert near([predictor(one)], predictor([one]))
    assert predictor([]) == []
    if KINDS[name][0] in SURE:
        with refused("one-answer", 2):
            predictor(one, top=2)
    else:
        assert isinstance(predictor(one, top=2), list)
    with refused("out-of-range", 0):
        predictor(one, top=0)


def test_words_that_the_vocabulary_lacks_are_told(tokenizer: Tokenizer) -> None:
    """A Chinese table given to an English model was learned from as well as could be, without a word."""
    predictor = predictor_for(tokenizer, "single")
    predictor("the cat in 北京 , " * 12 + "ꙮ")  # two in a hundred may be
    assert predictor.tally.unknown == 1
    assert "%" not in str(predictor.tally)
    predictor("ꙮ ꙮ 北京")
    assert predictor.tally.unknown == 3
    share = round(100 * 3 / predictor.tally.tokens)
    assert f" {share}% " in str(predictor.tally)


def test_several_chunks_keep_the_order(tokenizer: Tokenizer, monkeypatch: pytest.MonkeyPatch) -> None:
    """The engine takes some at a time and sorts them by length: nobody may notice."""
    predictor = predictor_for(tokenizer, "single")
    given = inputs_for("single", 40)
    whole = predictor(given)
    monkeypatch.setattr("bothways.engine.chunks._TEXTS", {"cpu": 7})
    monkeypatch.setattr("bothways.engine.engine.TOKENS_AT_ONCE", {"cpu": 40})
    assert all(map(near, predictor(given), whole))
    monkeypatch.setattr("bothways.engine.chunks._CHARACTERS", {"cpu": 1})
    assert all(map(near, predictor(given), whole))


def test_a_stream_reads_no_further_ahead_than_a_chunk(tokenizer: Tokenizer) -> None:
    """From something endless: a thousand short texts at a time, or a few long ones."""
    predictor = predictor_for(tokenizer, "single")
    read = 0

    def endless(text: str) -> Iterator[Text]:
        nonlocal read
        for _ in itertools.count():
            read += 1
            yield Text((text,))

    stream = predictor.stream(endless("the cat"))
    assert read == 0
    assert next(stream)["label"] in predictor.labels
    assert 1 <= read <= 1_024
    assert len(list(itertools.islice(stream, 1_030))) == 1_030
    assert read <= 2_048
    read = 0
    next(predictor_for(tokenizer, "single", seed=1).stream(endless("x" * 500_000)))
    assert read <= 4


@pytest.mark.parametrize(
    ("name", "given", "same"),
    [
        ("single", {"text": "the cat"}, "the cat"),
        ("single", {"text": "the cat", "text_pair": "a dog"}, ("the cat", "a dog")),
        ("single", Text(("the cat",)), "the cat"),
        ("score", {"text": "the cat", "text_pair": "a dog"}, ("the cat", "a dog")),
        ("tag", ("Paris", "walks", "北", "京"), "Paris walks 北京"),
        ("tag", Tagged("Paris", ((0, 5),)), "Paris"),
        ("answer", ("who?", "the cat"), {"question": "who?", "context": "the cat"}),
        ("answer", Question("1", "who?", "the cat"), ("who?", "the cat")),
        ("choose", ("who?", ["a", "b"]), {"question": "who?", "options": ["a", "b"], "context": ""}),
        ("choose", Choice("", "who?", ("a", "b")), {"question": "who?", "options": ["a", "b"]}),
    ],
)
def test_inputs_can_be_written_in_several_ways(name: str, given: Any, same: Any, tokenizer: Tokenizer) -> None:
    predictor = predictor_for(tokenizer, name)
    assert near(predictor(given), predictor(same))


def test_a_list_of_words_is_one_input_of_a_tagger_among_others(tokenizer: Tokenizer) -> None:
    predictor = predictor_for(tokenizer, "tag")
    assert near(predictor([["Paris", "walks"], "the cat"]), [predictor("Paris walks"), predictor("the cat")])


class Series:
    """What a column of pandas is to us: it gives its values one by one."""

    def __init__(self, values: Sequence[Any]) -> None:
        self.values = values

    def __iter__(self) -> Iterator[Any]:
        return iter(self.values)

    def __len__(self) -> int:
        return len(self.values)


@pytest.mark.parametrize("name", ["single", "tag"])
def test_inputs_come_from_anything_that_holds_or_makes_them(name: str, tokenizer: Tokenizer) -> None:
    predictor = predictor_for(tokenizer, name)
    texts = ["the cat", "北京", "a dog runs"]
    expected = predictor(texts)
    for given in (
        np.array(texts),
        np.array(texts, object),
        Series(texts),
        (text for text in texts),
        dict.fromkeys(texts).keys(),
    ):
        found = predictor(given)
        assert isinstance(found, list)
        assert near(found, expected)
    assert near(list(predictor.stream(iter(texts))), expected)
    assert predictor(iter([])) == []


def test_rows_of_an_array_are_pairs(tokenizer: Tokenizer) -> None:
    predictor = predictor_for(tokenizer, "score")
    pairs = [("the cat", "a dog"), ("北京", "paris")]
    assert near(predictor(np.array(pairs)), predictor(pairs))


def test_a_generator_is_not_read_ahead(tokenizer: Tokenizer) -> None:
    read = 0

    def endless() -> Iterator[str]:
        nonlocal read
        for _ in itertools.count():
            read += 1
            yield "the cat"

    assert next(predictor_for(tokenizer, "single").stream(endless()))["label"]
    assert read <= 1_024


# ---------------------------------------------------------------------- what is not an input


@pytest.mark.parametrize(
    ("name", "given"),
    [
        ("single", 7),
        ("single", None),
        ("single", ("a", "b", "c")),
        ("single", {"sentence": "the cat"}),
        ("score", {"sentence": "the cat"}),
        ("tag", 7),
        ("tag", ("a", 7)),
        ("answer", "who?"),
        ("answer", {"question": "who?"}),
        ("answer", ("who?", 7)),
        ("choose", {"question": "who?", "options": []}),
        ("choose", {"question": "who?", "options": "ab"}),
        ("choose", {"question": "who?", "options": ["a", 7]}),
    ],
)
def test_what_is_no_input_is_refused_in_one_sentence(name: str, given: Any, tokenizer: Tokenizer) -> None:
    with pytest.raises(BothwaysError) as caught:
        predictor_for(tokenizer, name)(given)
    assert caught.value.code == "bad-input"
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("given", ["the cat", {"text": "the cat"}, Text(("the cat",))])
def test_a_cross_encoder_needs_pairs(given: Any, tokenizer: Tokenizer) -> None:
    with refused("wrong-text-count"):
        predictor_for(tokenizer, "score")(given)


@pytest.mark.parametrize("name", KINDS)
def test_empty_texts_get_an_answer(name: str, tokenizer: Tokenizer) -> None:
    predictor = predictor_for(tokenizer, name)
    empty: dict[str, Any] = {
        "score": ("", ""),
        "embed": ("", ""),
        "answer": {"question": "", "context": ""},
        "choose": {"question": "", "options": ["", ""]},
    }
    found = predictor(empty.get(name, ""))
    if name == "tag":
        assert found == []
    if name == "answer":
        assert found["answer"] == ""
    if name == "choose":
        assert found["score"] == pytest.approx(0.5)


def test_wrong_folders_are_told_apart(tokenizer: Tokenizer, tmp_path: Path) -> None:
    codes = []
    (tmp_path / "empty").mkdir()
    save(Model.new(ModelConfig(SMALL, ("pooler", "masked")), tokenizer), tmp_path / "base")
    save(Model.new(ModelConfig(SMALL, ("token",), ("O", "B-X"))), tmp_path / "mute")
    for name in ("nowhere", "empty", "base", "mute"):
        with pytest.raises(BothwaysError) as caught:
            Predictor.load(tmp_path / name)
        codes.append(caught.value.code)
        assert str(tmp_path / name) in str(caught.value) or name in ("base", "mute")
    assert (codes[0], codes[2]) == ("no-folder", "no-task-head")


def test_a_pair_needs_a_model_of_two_segments(tokenizer: Tokenizer) -> None:
    from dataclasses import replace

    base = Model.new(ModelConfig(replace(SMALL, segments=1), ("pooler",)), tokenizer)
    predictor = Predictor(with_task(base, config_for("classify", kind="single"), ("a", "b")))
    assert predictor("the cat")["label"] in ("a", "b")
    with refused("too-few-segments", 1):
        predictor(("the cat", "the dog"))


# ---------------------------------------------------------------------- evaluation


@pytest.mark.parametrize("name", KINDS)
def test_every_task_can_be_evaluated_and_compared(name: str, tokenizer: Tokenizer, tmp_path: Path) -> None:
    """The main score lies in its interval; a model compared with itself differs by nothing."""
    task, kind, labels = KINDS[name]
    base = Model.new(ModelConfig(SMALL, ("pooler",)), tokenizer)
    model = with_task(base, config_for(task, kind=kind, range=(-1.0, 3.0)), LABELS.get(name, labels))
    make_loud(model)
    predictor = Predictor(model)
    path = str(written(tmp_path, name))
    found = evaluate([path], predictor)
    assert found.task == task
    assert found.examples == len(EXAMPLES[name])
    low, high = found.interval
    assert low <= found.scores[found.metric] <= high
    assert [one["error"] for one in found.worst] == sorted((one["error"] for one in found.worst), reverse=True)
    assert json.dumps(found.worst)
    difference = compare_models([path], predictor, predictor)
    assert evaluate([path], predictor, against=predictor).against == difference
    assert difference.difference == 0


def test_scores_are_those_of_the_answers(tokenizer: Tokenizer, tmp_path: Path) -> None:
    """Accuracy against the labels that the predictor gives, and scikit-learn's word for the rest."""
    from sklearn.metrics import confusion_matrix, f1_score  # type: ignore[import-untyped]

    base = Model.new(ModelConfig(SMALL, ("pooler",)), tokenizer)
    model = with_task(base, config_for("classify", kind="single"), LABELS["single"])
    make_loud(model, 3)
    predictor = Predictor(model)
    given = [predictor(example.texts)["label"] for example in SINGLE]
    golds = [str(example.gold) for example in SINGLE]
    found = evaluate([str(written(tmp_path, "single"))], predictor)
    assert found.scores["accuracy"] == sum(a == b for a, b in zip(given, golds, strict=True)) / len(golds)
    assert found.scores["macro_f1"] == pytest.approx(f1_score(golds, given, average="macro", zero_division=0))
    assert found.confusion == confusion_matrix(golds, given, labels=list(LABELS["single"])).tolist()


def test_a_label_that_the_model_does_not_know_is_named(tokenizer: Tokenizer, tmp_path: Path) -> None:
    predictor = predictor_for(tokenizer, "single")
    path = tmp_path / "rows.jsonl"
    path.write_text('{"text": "the cat", "label": "a"}\n{"text": "the dog", "label": "z"}\n')
    with refused("unknown-label", names=r"rows\.jsonl, line 2 .*'z'"):
        evaluate([str(path)], predictor)
    path.write_text('{"text": "the cat"}\n')
    with refused("no-labels"):
        evaluate([str(path)], predictor)


def test_a_predictor_saved_and_opened_answers_the_same(tokenizer: Tokenizer, tmp_path: Path) -> None:
    """With its temperature, thresholds and window."""
    before = predictor_for(tokenizer, "multi", temperature=3.0, thresholds={"a": 0.1, "b": 0.9})
    save(before.model, tmp_path)
    after = Predictor(load(tmp_path))
    with refused("bad-input", str(tmp_path)):
        Predictor(str(tmp_path))  # type: ignore[arg-type]
    given = inputs_for("multi", 20)
    assert near(after(given), before(given))
    assert near(after(given, top=3), before(given, top=3))
    assert not near(predictor_for(tokenizer, "multi")(given), before(given))


def test_calibrated_a_folder_answers_otherwise_and_better(tokenizer: Tokenizer, tmp_path: Path) -> None:
    """On the very data that it was calibrated on: a lower loss for one label, a higher F1 of each of several."""
    for name in ("single", "multi"):
        base = Model.new(ModelConfig(SMALL, ("pooler",)), tokenizer)
        model = with_task(base, config_for("classify", kind=KINDS[name][1]), LABELS[name])
        make_loud(model, 6)
        folder = tmp_path / name
        save(model, folder)
        path = str(written(tmp_path, name))
        before = evaluate([path], Predictor.load(folder))
        weights = (folder / "model.safetensors").read_bytes()
        config = calibrate(folder, before)
        after = evaluate([path], Predictor.load(folder))
        assert (folder / "model.safetensors").read_bytes() == weights
        if name == "single":
            assert config.temperature == pytest.approx(before.temperature, rel=1e-5)
            assert config.temperature != 1.0
            assert after.scores["negative_log_likelihood"] < before.scores["negative_log_likelihood"]
            assert after.temperature == pytest.approx(before.temperature, rel=1e-3)  # there is nothing left to gain
        else:
            assert set(config.thresholds) == set(LABELS[name])
            assert after.scores["macro_f1"] > before.scores["macro_f1"]


def test_what_has_no_probabilities_is_not_calibrated(tokenizer: Tokenizer, tmp_path: Path) -> None:
    predictor = predictor_for(tokenizer, "regression")
    save(predictor.model, tmp_path / "model")
    found = evaluate([str(written(tmp_path, "regression"))], predictor)
    with refused("not-calibratable", "classify"):
        calibrate(tmp_path / "model", found)


@pytest.mark.parametrize("ending", ["png", "svg", "pdf", "PNG"])
def test_the_ending_says_what_is_drawn(ending: str, tokenizer: Tokenizer, tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    predictor = predictor_for(tokenizer, "score")
    found = evaluate([str(written(tmp_path, "score"))], predictor)
    path = tmp_path / f"found.{ending}"
    assert draw_evaluation(found, predictor.labels, path)
    begins = {"png": b"\x89PNG", "svg": b"<?xml", "pdf": b"%PDF"}[ending.lower()]
    assert path.read_bytes().startswith(begins)
    for name in ("found.foo", "found"):
        with refused("unknown-format", names=name):
            draw_evaluation(found, predictor.labels, tmp_path / name)


@pytest.mark.parametrize("name", ["single", "tag", "score"])
def test_an_evaluation_can_be_drawn(name: str, tokenizer: Tokenizer, tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    task, kind, labels = KINDS[name]
    base = Model.new(ModelConfig(SMALL, ("pooler",)), tokenizer)
    model = with_task(base, config_for(task, kind=kind), LABELS.get(name, labels))
    found = evaluate([str(written(tmp_path, name))], Predictor(model))
    assert draw_evaluation(found, model.config.labels, tmp_path / "found.png")
    assert (tmp_path / "found.png").read_bytes().startswith(b"\x89PNG")


def test_long_texts_are_met_as_asked_whatever_the_folder_says(tokenizer: Tokenizer, tmp_path: Path) -> None:
    """A pair with two long sides leaves no room for windows: the sentence says what to do, and that works."""
    save(predictor_for(tokenizer, "single").model, tmp_path / "folder")
    folder, long = tmp_path / "folder", ("the cat " * 60).strip()
    with refused("no-room-for-windows", (1, 123)):
        Predictor.load(folder)([(long, long)])
    cut = Predictor.load(folder, long="cut")
    for count, given in enumerate(((long, long), [(long, long)]), 1):
        with pytest.warns(UserWarning, match="cut"):
            cut(given)
        assert cut.tally.cut == count
    assert set(cut("the cat")) == {"label", "score"}  # without a warning
    with pytest.raises(BothwaysError, match="`long`") as caught:
        Predictor.load(folder, long="error")([long])
    assert (caught.value.code, caught.value.value) == ("too-long", (1, 122))
