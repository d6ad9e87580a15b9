"""Texts of many times the model's length: every token is read, every word answered for once, nothing is moved.

Most models here are planted: what they say of a token depends on that token alone, so that the right answer for a
text of any length is known without any window.
"""

import itertools
import random
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal

import numpy as np
import pytest
import torch
import transformers
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from bothways.data.examples import Choice, Question, Tagged, Text
from bothways.data.words import join_words, split_words
from bothways.engine.engine import TOKENS_AT_ONCE
from bothways.engine.reader import Reader, WindowSettings
from bothways.model.batch import Batch
from bothways.model.checkpoint import save
from bothways.model.config import Learned, ModelConfig
from bothways.model.model import Model
from bothways.predict.predictor import Predictor
from bothways.tasks.answer import AnswerSettings, QuestionAnswering
from bothways.tasks.answering import decode_all
from bothways.tasks.folder import with_task
from bothways.tasks.registry import task_config, with_config
from bothways.tasks.tag import TokenClassification
from bothways.tasks.task import Task
from bothways.text.tokenizer import Tokenizer
from bothways.text.windows import windows
from helpers import config_for, make_loud, model_of, refused, task_of
from helpers.tasks import LIMIT, SMALL

FILL = ["the", "cat", "walks", "in", "Black", "house", "unbelievable", "猫", "狗", ",", "talking"]
LONG = WindowSettings()


def words(count: int, seed: int = 0) -> list[str]:
    return random.Random(seed).choices(FILL, k=count)


def model_for(
    tokenizer: Tokenizer, task: str, labels: Sequence[str] = (), window: WindowSettings = LONG, limit: int = 48
) -> Model:
    kind: Any = "single" if task == "classify" else ""
    base = Model.new(ModelConfig(replace(SMALL, positions=Learned(limit)), ("pooler",)), tokenizer)
    model = with_task(base, config_for(task, kind, window=window), labels)
    make_loud(model)
    return model


def plant(model: Model, head: str, chosen: Sequence[str]) -> Model:
    """Output i is highest, 8, on the token chosen[i], whatever stands around it, and below 8 on every other."""
    assert model.tokenizer is not None
    with torch.no_grad():
        embeddings = model.encoder.embeddings
        embeddings.positions.rows.weight.zero_()  # type: ignore[union-attr]
        assert embeddings.segments is not None
        embeddings.segments.weight.zero_()
        for block in model.encoder.blocks:
            for layer in (block.attention.out, block.feed_forward.down):  # type: ignore[union-attr]
                layer.weight.zero_()  # type: ignore[union-attr, operator]
                layer.bias.zero_()  # type: ignore[union-attr, operator]
        for part in model.modules():
            if isinstance(part, torch.nn.LayerNorm):
                part.weight.fill_(1)
                part.bias.zero_()
        rows = torch.nn.functional.layer_norm(embeddings.tokens.weight, (SMALL.width,))
        linear: Any = model.heads[head].linear
        linear.weight.copy_(8 / SMALL.width * rows[[model.tokenizer.id(token) for token in chosen]])
        linear.bias.zero_()
    return model


# ---------------------------------------------------------------------- the windows themselves


@given(st.integers(0, 300), st.integers(1, 60), st.data())
def test_every_token_is_answered_for_once(length: int, room: int, data: st.DataObject) -> None:
    overlap = data.draw(st.integers(0, room - 1))
    found = windows(length, room, overlap)
    owned = [token for w in found for token in range(w.own, w.own_end)]
    assert owned == list(range(length))
    assert all(w.start <= w.own <= w.own_end <= w.end <= w.start + room for w in found)
    for before, after in itertools.pairwise(found):
        assert before.end - after.start == overlap


@pytest.mark.parametrize("part", ["longer", "second"])
def test_windows_hold_the_text_as_it_is(tokenizer: Tokenizer, part: Literal["longer", "second"]) -> None:
    """Each sequence is [CLS] … [SEP] around a piece of the text, and with a pair the shorter part whole in each."""
    text, beside = " ".join(words(200)), "the dog reads"
    limit = 48
    model = model_for(tokenizer, "score", ("score",))
    assert model.config.encoder.max_length == limit
    for texts in ((beside, text), (text, beside)) if part == "longer" else ((beside, text),):
        read = Reader(model, WindowSettings(overlap=10), part)([texts])[0]
        inside = [int(read.ids[i]) for i in read.inside]
        assert inside == tokenizer(text).ids[1:-1]
        whole = tokenizer(beside).ids[1:-1]
        seen: set[int] = set()
        for view in read.views:
            assert len(view) <= limit
            piece = read.ids[view.window.start : view.window.end].tolist()
            cls, sep = tokenizer.id("[CLS]"), tokenizer.id("[SEP]")
            both = [whole, piece] if texts[0] == beside else [piece, whole]
            assert view.ids.tolist() == [cls, *both[0], sep, *both[1], sep]
            assert view.segments.tolist() == [0] * (len(both[0]) + 2) + [1] * (len(both[1]) + 1)
            seen |= set(range(view.window.start, view.window.end))
            for token in range(view.window.start, view.window.end):
                assert view.ids[token - view.shift] == read.ids[token]
        assert seen == set(read.inside)


# ---------------------------------------------------------------------- tag

TAGS = {"O": "the", "B-LOC": "paris", "I-LOC": "beijing", "B-PER": "dog", "I-PER": "tree"}


@pytest.mark.parametrize("family", ["bert", "roberta", "xlm-roberta", "albert", "deberta", "deberta-v2"])
def test_no_token_has_a_part_of_two_words(family: str) -> None:
    """However a tokenizer cuts: here a word begins in the midst of every piece that is longer than a letter."""
    reader = Reader(model_of(family), WindowSettings())
    text = "The virus ran to unbelievable houses, 北京是中国的首都。"
    halves = {(start + end + 1) // 2 for start, end in reader.tokenizer(text).offsets}
    words = [
        part
        for start, end in split_words(text)
        for part in itertools.pairwise([start, *sorted(halves & {*range(start + 1, end)}), end])
    ]

    def torn(places: Sequence[tuple[int, int]]) -> list[int]:
        return [word for word, _ in words for start, end in places if start < word < end and text[start:word].strip()]

    assert len(torn(reader.tokenizer(text).offsets)) > 3
    plain, read = reader.by_words(["The sun", text], [((0, 3), (4, 7)), words])
    assert plain.ids.tolist() == reader.tokenizer("The sun").ids
    assert reader.tally.texts == 2
    places = [(int(start), int(end)) for start, end in read.places()]
    assert torn(places) == []
    read_letters = {i for start, end in places for i in range(start, end) if not text[i].isspace()}
    assert read_letters == {i for i, letter in enumerate(text) if not letter.isspace()}


def test_words_in_one_piece_have_each_their_tag(tokenizer: Tokenizer) -> None:
    assert tokenizer("runs").pieces[1:-1] == ["runs"]
    model = plant(model_for(tokenizer, "tag", ("NOUN", "VERB", "PART")), "token", ["cat", "run", "s"])
    task = task_of(TokenClassification, model)
    example = Tagged("cat runs cat", ((0, 3), (4, 7), (7, 8), (9, 12)), ("NOUN", "VERB", "PART", "NOUN"))
    item, (tags, _) = next(iter(Predictor(model).decode_all([example])))
    assert tuple(task.labels[tag] for tag in tags) == example.gold
    (sample,) = task.samples(item)
    assert sample.target[1].tolist() == tags
    assert len(set(sample.target[0].tolist())) == 4


@pytest.mark.parametrize("overlap", [0, 5, 128])
def test_every_word_of_a_long_text_gets_its_tag(tokenizer: Tokenizer, overlap: int) -> None:
    model = model_for(tokenizer, "tag", tuple(TAGS), WindowSettings(overlap=overlap))
    predictor = Predictor(plant(model, "token", list(TAGS.values())))
    draws = random.Random(overlap)
    long = [w for w in words(700) if w not in ("猫", "狗")]
    for place in range(3, len(long) - 3, 7):
        long[place : place + 3] = draws.choice([["Paris", "Beijing", "the"], ["dog", "tree", "tree"], ["Paris"] * 3])
    text = "  ".join(long)
    places = split_words(text)
    assert [text[a:b] for a, b in places] == long
    item, (tags, chances) = next(iter(predictor.decode_all([Tagged(text, tuple(places))])))
    assert len(item.views) > 15
    assert len(tags) == len(chances) == len(long)
    known = {token: tag for tag, token in TAGS.items()}
    marked = [(place, word) for place, word in enumerate(long) if word.lower() in ("paris", "beijing", "dog", "tree")]
    assert len(marked) > 150
    for place, word in marked:
        assert predictor.labels[tags[place]] == known[word.lower()], place
    for entity in predictor(text):
        assert entity["word"] == text[entity["start"] : entity["end"]]


def test_tags_of_a_long_text_are_those_of_its_words_alone(tokenizer: Tokenizer) -> None:
    """Where the model sees one token at a time, windows can change nothing, not the last digit of a chance."""
    model = plant(model_for(tokenizer, "tag", ("NOUN", "VERB", "DET")), "token", ["cat", "walk", "the"])
    predictor = Predictor(model)
    text = " ".join(words(400))
    long = predictor(text)
    assert [one["word"] for one in long] == [text[a:b] for a, b in split_words(text)]
    for one in random.Random(0).sample(long, 40):
        alone = predictor(one["word"])
        assert alone[0]["entity_group"] == one["entity_group"]
        assert alone[0]["score"] == pytest.approx(one["score"], abs=LIMIT)


@pytest.mark.parametrize("labels", [("O", "B-X", "I-X"), ("B-X", "I-X", "O"), ("B-X", "O", "I-X")])
def test_words_that_the_tokenizer_drops_are_outside(tokenizer: Tokenizer, labels: tuple[str, ...]) -> None:
    """A control character is a word to a file, and nothing to BERT's tokenizer."""
    tokens = {"O": "the", "B-X": "paris", "I-X": "dog"}
    predictor = Predictor(plant(model_for(tokenizer, "tag", labels), "token", [tokens[label] for label in labels]))
    text = "Paris \u0007 the \u200b\u0000 Paris"
    _, (tags, _) = next(iter(predictor.decode_all([Tagged(text, ((0, 5), (6, 7), (8, 11), (12, 14), (15, 20)))])))
    assert [predictor.labels[tag] for tag in tags] == ["B-X", "O", "O", "O", "B-X"]


def test_of_words_that_the_tokenizer_drops_nothing_is_known(tokenizer: Tokenizer) -> None:
    """Where no tag is outside."""
    predictor = Predictor(plant(model_for(tokenizer, "tag", ("ADJ", "NOUN")), "token", ["the", "paris"]))
    found = predictor(("Paris", "\u200b", "", "the"))
    assert [one["entity_group"] for one in (found[0], found[3])] == ["NOUN", "ADJ"]
    assert [one["score"] for one in found[1:3]] == [0.5, 0.5]


def test_every_word_is_taught_once(tokenizer: Tokenizer) -> None:
    """In the window that answers for it, with its own tag, at the token that begins it."""
    task = task_of(
        TokenClassification, model_for(tokenizer, "tag", ("ADJ", "NOUN", "VERB"), WindowSettings(length=20, overlap=6))
    )
    long = words(150)
    tags = random.Random(3).choices(["ADJ", "NOUN", "VERB"], k=len(long))
    text, places = join_words(long)
    item = task.encode([Tagged(text, places, tuple(tags))])[0]
    samples = task.samples(item)
    assert len(samples) == len(item.views) > 5
    taught = [
        (int(sample.ids[0][at]), task.labels[gold])
        for sample in samples
        for at, gold in zip(*sample.target, strict=True)
    ]
    assert taught == [(tokenizer(word).ids[1], tag) for word, tag in zip(long, tags, strict=True)]


# ---------------------------------------------------------------------- answer


@pytest.mark.parametrize("overlap", [8, 128])
def test_the_answer_can_lie_anywhere(tokenizer: Tokenizer, overlap: int) -> None:
    """Through all windows and over all their borders: it begins at "paris" and ends at "beijing"."""
    model = model_for(tokenizer, "answer", window=WindowSettings(length=40, overlap=overlap))
    predictor = Predictor(plant(model, "span", ["paris", "beijing"]))
    filler = [w for w in words(160) if w != "unbelievable"]
    questions, golds = [], []
    for place in range(0, len(filler), 3):
        context = " ".join([*filler[:place], "Paris,", "the", "BEIJING", *filler[place:]])
        golds.append((context.index("Paris"), context.index("BEIJING") + len("BEIJING")))
        questions.append({"question": "where is it?", "context": context})
    found = predictor(questions)
    assert [(one["start"], one["end"]) for one in found] == golds
    assert {one["answer"] for one in found} == {"Paris, the BEIJING"}
    assert predictor.tally.in_windows == len(questions)


def test_the_answer_is_never_in_the_question(tokenizer: Tokenizer) -> None:
    """However long it is beside the text, and however well it fits."""
    predictor = Predictor(plant(model_for(tokenizer, "answer"), "span", ["paris", "beijing"]))
    found = predictor({"question": "is it paris in beijing or the house of the dog?", "context": "cat runs"})
    assert found["answer"] in ("cat", "runs", "cat runs")


def test_every_window_is_a_sample_and_the_answer_is_taught_where_it_is(tokenizer: Tokenizer) -> None:
    """In training: a window that holds all of the answer points at it, every other at [CLS]."""
    model = model_for(tokenizer, "answer", window=WindowSettings(length=24, overlap=6))
    task = task_of(QuestionAnswering, model)
    context = " ".join([*words(60), "the white tree", *words(60, 1)])
    begin = context.index("the white tree")
    item = task.encode([Question("1", "what?", context, (("the white tree", begin),))])[0]
    samples = task.samples(item)
    assert len(samples) == len(item.views) > 5
    wanted = tokenizer("the white tree").ids[1:-1]
    holding = 0
    for sample in samples:
        (ids,), (first, last) = sample.ids, sample.target
        whole = any(ids[i : i + 3].tolist() == wanted for i in range(len(ids)))
        assert (first, last) == (0, 0) if not whole else ids[first : last + 1].tolist() == wanted
        holding += whole
    assert holding >= 1


def test_the_answer_span_is_taught_where_characters_say(tokenizer: Tokenizer) -> None:
    """An answer inside a word takes the pieces that hold it; one that stands twice is the one that is meant."""
    task = task_of(QuestionAnswering, model_for(tokenizer, "answer"))
    context = "Paris is unbelievable, Paris 北京"
    for text, begin, wanted in [
        ("Paris", 23, [("Paris", 23)]),
        ("believ", 11, [("believ", 11)]),
        ("北京", 29, [("北", 29), ("京", 30)]),
        ("京", 30, [("京", 30)]),
        ("unbelievable", 9, [("un", 9), ("believ", 11), ("able", 17)]),
    ]:
        item = task.encode([Question("1", "what?", context, ((text, begin),))])[0]
        (sample,) = task.samples(item)
        offsets = item.reads[0].offsets[sample.target[0] : sample.target[1] + 1]
        assert [(context[a:b], a) for a, b in offsets.tolist()] == wanted


# ---------------------------------------------------------------------- one answer for the whole


def judged(model: Model, folder: Path, kind: str) -> Callable[[Any], Tensor]:
    """transformers' logits for one sequence."""
    save(model, folder)
    theirs = getattr(transformers, kind).from_pretrained(folder).eval()

    def logits(view: Any) -> Tensor:
        grid = torch.tensor([view.ids.tolist()]), torch.tensor([view.segments.tolist()])
        if kind == "BertForMultipleChoice":
            grid = grid[0][None], grid[1][None]
        with torch.no_grad():
            found: Tensor = theirs(grid[0], token_type_ids=grid[1]).logits[0]
        return found

    return logits


def test_a_long_text_is_classified_by_the_mean_of_its_windows(tokenizer: Tokenizer, tmp_path: Path) -> None:
    predictor = Predictor(model_for(tokenizer, "classify", ("a", "b", "c")))
    theirs = judged(predictor.model, tmp_path, "BertForSequenceClassification")
    for texts in [(" ".join(words(300)),), ("the cat", " ".join(words(200))), (" ".join(words(200)), "中国")]:
        item, chances = next(iter(predictor.decode_all([Text(texts)])))
        assert len(item.views) > 4
        mean = torch.stack([theirs(view) for view in item.views]).mean(0)
        assert chances == pytest.approx(mean.softmax(0).numpy(), abs=LIMIT)


def test_a_long_passage_scores_as_its_best_window(tokenizer: Tokenizer, tmp_path: Path) -> None:
    predictor = Predictor(model_for(tokenizer, "score", ("score",)))
    theirs = judged(predictor.model, tmp_path, "BertForSequenceClassification")
    item, found = next(iter(predictor.decode_all([Text(("the cat", " ".join(words(300))))])))
    assert len(item.views) > 4
    assert found == pytest.approx(float(max(theirs(view)[0] for view in item.views).sigmoid()), abs=LIMIT)


def test_a_choice_about_a_long_text_takes_the_mean_of_each_option(tokenizer: Tokenizer, tmp_path: Path) -> None:
    predictor = Predictor(model_for(tokenizer, "choose"))
    theirs = judged(predictor.model, tmp_path, "BertForMultipleChoice")
    example = Choice(" ".join(words(100)), "who?", ("the dog", "the unbelievable cat in the house", "中国"))
    item, found = next(iter(predictor.decode_all([example])))
    logits = [torch.stack([theirs(view)[0] for view in read.views]).mean() for read in item.reads]
    assert found == pytest.approx(torch.stack(logits).softmax(0).numpy(), abs=LIMIT)


SHORT: dict[str, list[Any]] = {
    "classify": [Text(("the cat runs",)), Text(("the dog", "中国的首都")), Text(("",))],
    "score": [Text(("the dog", "中国的首都")), Text(("", "the cat"))],
    "tag": [Tagged("Paris 北京", ((0, 5), (6, 7), (7, 8)))],
    "answer": [Question("1", "who?", "the unbelievable dog runs")],
    "choose": [Choice("the cat", "who?", ("a", "the dog"))],
}


@pytest.mark.parametrize("task", SHORT)
def test_a_short_text_is_one_sequence_as_it_is(task: str, tokenizer: Tokenizer) -> None:
    """Whatever is set for long texts: the same ids in one view, the same decision."""
    labels = {"classify": ("a", "b"), "score": ("score",), "tag": tuple(TAGS)}.get(task, ())
    found = []
    for window in (WindowSettings(), WindowSettings(40, 10), WindowSettings(long="cut"), WindowSettings(long="error")):
        predictor = Predictor(model_for(tokenizer, task, labels, window))
        some = list(predictor.decode_all(SHORT[task]))
        assert all(len(read.views) == 1 for item, _ in some for read in item.reads)
        assert all(read.views[0].ids.tolist() == read.ids.tolist() for item, _ in some for read in item.reads)
        found.append(repr([predictor.task.answer(*one) for one in some]))
    assert len(set(found)) == 1
    assert predictor.tally.in_windows == predictor.tally.cut == 0


# ---------------------------------------------------------------------- cut and error


def test_cut_reads_the_beginning_and_says_what_was_lost(tokenizer: Tokenizer) -> None:
    long = " ".join(words(100))
    count = len(tokenizer(long).ids)
    predictor = Predictor(model_for(tokenizer, "classify", ("a", "b"), WindowSettings(long="cut")))
    item, _ = next(iter(predictor.decode_all([Text((long,))])))
    (view,) = item.views
    assert view.ids.tolist() == [*tokenizer(long).ids[:47], tokenizer.id("[SEP]")]
    assert predictor.tally.cut == 1
    assert predictor.tally.tokens_cut == count - 48
    assert f"{count - 48} tokens lost" in str(predictor.tally)


def test_words_that_were_cut_are_outside(tokenizer: Tokenizer) -> None:
    model = model_for(tokenizer, "tag", tuple(TAGS), WindowSettings(length=10, long="cut"))
    predictor = Predictor(plant(model, "token", list(TAGS.values())))
    text = " ".join(["Paris"] * 30)
    with pytest.warns(UserWarning, match="cut"):
        assert [one["start"] for one in predictor(text)] == [6 * i for i in range(8)]


@pytest.mark.parametrize("task", SHORT)
def test_error_refuses_a_long_text_in_one_sentence(task: str, tokenizer: Tokenizer) -> None:
    labels = {"classify": ("a", "b"), "score": ("score",), "tag": tuple(TAGS)}.get(task, ())
    predictor = Predictor(model_for(tokenizer, task, labels, WindowSettings(long="error")))
    text = " ".join(words(100))
    long: dict[str, Any] = {
        "classify": Text((text,)),
        "score": Text(("the cat", text)),
        "tag": Tagged(text, tuple(split_words(text))),
        "answer": Question("1", "who?", text),
        "choose": Choice(text, "who?", ("a", "b")),
    }
    with refused("too-long", names=r"\b2\b.*\b48\b"):
        list(
            predictor.stream(
                [SHORT[task][0], long[task]] if task != "choose" else [Choice("", "a", ("b",)), long[task]]
            )
        )


def test_a_pair_that_is_long_on_both_sides_is_refused(tokenizer: Tokenizer) -> None:
    predictor = Predictor(model_for(tokenizer, "classify", ("a", "b")))
    with refused("no-room-for-windows", names=r"\b1\b.*\b48\b"):
        predictor((" ".join(words(60)), " ".join(words(60, 1))))
    model = model_for(tokenizer, "classify", ("a", "b"), WindowSettings(long="cut"))
    with pytest.warns(UserWarning, match="cut"):
        assert Predictor(model)((" ".join(words(60)), " ".join(words(60, 1))))["label"] in ("a", "b")


# ---------------------------------------------------------------------- memory


class Stub:
    """In place of the encoder: counts what goes through at once, and says nothing."""

    def __init__(self, width: int, per_token: bool) -> None:
        self.width, self.per_token = width, per_token
        self.sizes: list[int] = []

    def __call__(self, batch: Batch) -> Tensor:
        self.sizes.append(len(batch.ids))
        return torch.zeros(len(batch.ids) if self.per_token else batch.size, self.width)


@pytest.mark.parametrize("task", ["tag", "answer"])
def test_a_document_of_100_000_tokens_goes_through_in_pieces(task: str, tokenizer: Tokenizer) -> None:
    labels = ("O", "B-X", "I-X") if task == "tag" else ()
    made: Task = Predictor(model_for(tokenizer, task, labels, limit=512)).task
    text = " ".join(["the cat runs in paris"] * 20_000)
    example: dict[str, Any] = {
        "tag": Tagged(text, tuple(split_words(text))),
        "answer": Question("1", "who?", text),
    }
    stub = Stub(len(labels) or 2, made.per_token)
    ((_, decision),) = decode_all(made, stub, [example[task]], torch.device("cpu"))
    assert max(stub.sizes) <= TOKENS_AT_ONCE["cpu"]
    assert 100_000 <= sum(stub.sizes) < 150_000  # the overlaps twice
    if task == "tag":
        assert len(decision[0]) == 100_000


def test_an_answer_longer_than_allowed_is_not_given(tokenizer: Tokenizer) -> None:
    model = plant(model_for(tokenizer, "answer"), "span", ["paris", "beijing"])
    task = task_of(QuestionAnswering, with_config(model, replace(task_config(model), options=AnswerSettings(3))))
    forward = lambda batch: task.outputs(model, model.encoder(batch), batch)  # noqa: E731
    example = Question("1", "who?", "the cat paris in the house of beijing runs")
    ((_, found),) = decode_all(task, forward, [example], torch.device("cpu"))
    pieces = [len(tokenizer(example.context[start:end]).ids) - 2 for start, end, _ in found.best(5)]
    assert max(pieces) <= 3
    assert np.isfinite(found.margin)
