"""Scores of tagged sentences: what conlleval and seqeval say."""

import math
import warnings

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from seqeval import metrics as seqeval  # type: ignore[import-untyped]
from seqeval.metrics.sequence_labeling import get_entities  # type: ignore[import-untyped]
from sklearn import metrics  # type: ignore[import-untyped]

from bothways.scoring.entities import Entities, Tags, entities
from helpers import refused

TAG = st.sampled_from(["O", "O", "B-PER", "I-PER", "B-LOC", "I-LOC", "B-my-type", "I-my-type"])
PAIRS = st.integers(0, 9).flatmap(lambda n: st.tuples(*[st.lists(TAG, min_size=n, max_size=n)] * 2))
TEXT = st.lists(PAIRS, min_size=1, max_size=8)


def added(sentences: list[tuple[list[str], list[str]]]) -> Entities:
    tagged = Entities()
    for gold, predicted in sentences:
        tagged.add(gold, predicted)
    return tagged


@settings(max_examples=150)
@given(st.lists(TAG, max_size=12))
def test_entities_are_read_as_seqeval_reads_them(tags: list[str]) -> None:
    assert entities(tags) == [(kind, start, last + 1) for kind, start, last in get_entities(tags)]


@settings(max_examples=80)
@given(TEXT)
def test_strict_scores_are_those_of_seqeval(sentences: list[tuple[list[str], list[str]]]) -> None:
    gold, predicted = [list(column) for column in zip(*sentences, strict=True)]
    tagged = added(sentences)
    scores = tagged.scores()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for name in ("precision", "recall", "f1"):
            expected = getattr(seqeval, f"{name}_score")(gold, predicted, zero_division=0)
            assert scores[name] == pytest.approx(expected), name
        if tagged.per_type():
            report = seqeval.classification_report(gold, predicted, output_dict=True, zero_division=0)
            assert scores["macro_f1"] == pytest.approx(report["macro avg"]["f1-score"])
            for kind, detail in tagged.per_type().items():
                theirs = [report[kind][key] for key in ("precision", "recall", "f1-score", "support")]
                assert [detail.precision, detail.recall, detail.f1, detail.support] == pytest.approx(theirs)
        words = [tag for tags in gold for tag in tags]
        if words:
            assert scores["token_accuracy"] == pytest.approx(seqeval.accuracy_score(gold, predicted))
        else:
            assert math.isnan(scores["token_accuracy"])


@settings(max_examples=100)
@given(TEXT)
def test_lenient_scores_are_never_below_the_strict(sentences: list[tuple[list[str], list[str]]]) -> None:
    scores = added(sentences).scores()
    for name in ("precision", "recall", "f1"):
        assert scores[f"overlap_{name}"] >= scores[name] - 1e-12
        assert scores[f"boundary_{name}"] >= scores[name] - 1e-12


# Of the output.txt that is published with conlleval, with the figures that a port of it gives (kaniblu/conlleval).
ROCKWELL = """
Rockwell B-NP I-NP | International I-NP I-NP | Corp. I-NP I-NP | 's B-NP B-NP | Tulsa I-NP I-NP | unit I-NP I-NP
said B-VP B-VP | it B-NP B-NP | signed B-VP B-VP | a B-NP B-NP | tentative I-NP I-NP | agreement I-NP I-NP
extending B-VP B-VP | its B-NP B-NP | contract I-NP I-NP | with B-PP B-PP | Boeing B-NP I-NP | Co. I-NP I-NP
to B-VP B-PP | provide I-VP I-VP | structural B-NP I-NP | parts I-NP I-NP | for B-PP B-PP | Boeing B-NP I-NP
's B-NP B-NP | 747 I-NP I-NP | jetliners I-NP I-NP | . O O
"""


def test_an_entity_may_begin_with_i_as_in_conlleval() -> None:
    rows = [row.split() for line in ROCKWELL.split("\n") for row in line.split("|") if row.strip()]
    tagged = added([([row[1] for row in rows], [row[2] for row in rows])])
    scores, details = tagged.scores(), tagged.per_type()
    assert [scores["precision"], scores["recall"]] == pytest.approx([0.875, 0.9333333333333333])
    assert scores["f1"] == pytest.approx(0.9032258064516129)
    assert scores["token_accuracy"] == pytest.approx(0.8214285714285714)
    assert {kind: detail.support for kind, detail in details.items()} == {"NP": 9, "PP": 2, "VP": 4}
    # I-NP after another type begins a chunk, so all noun phrases are found; "to provide" is broken in two.
    assert (details["NP"].precision, details["NP"].recall) == (1, 1)
    assert (details["VP"].precision, details["VP"].recall) == (3 / 4, 3 / 4)
    assert (details["PP"].precision, details["PP"].recall) == (2 / 3, 1)


def test_overlap_and_boundaries_by_hand() -> None:
    tagged = Entities()
    gold = ["B-PER", "I-PER", "I-PER", "I-PER", "O", "B-LOC", "O", "B-ORG"]
    #        two predictions within one gold;        the wrong type;  nothing
    predicted = ["B-PER", "O", "B-PER", "I-PER", "O", "B-ORG", "O", "O"]
    tagged.add(gold, predicted)
    scores = tagged.scores()
    assert scores["f1"] == 0
    assert (scores["overlap_precision"], scores["overlap_recall"]) == (2 / 3, 1 / 3)
    assert scores["overlap_f1"] == pytest.approx(4 / 9)
    assert (scores["boundary_precision"], scores["boundary_recall"]) == (1 / 3, 1 / 3)


def test_entities_that_only_touch_do_not_overlap() -> None:
    tagged = Entities()
    tagged.add(["B-PER", "I-PER", "O"], ["O", "O", "B-PER"])
    assert tagged.scores()["overlap_f1"] == 0


def test_entities_of_two_sentences_are_not_joined() -> None:
    tagged = Entities()
    tagged.add(["O", "B-PER"], ["O", "B-PER"])
    tagged.add(["I-PER", "O"], ["I-PER", "O"])
    assert tagged.per_type()["PER"].support == 2


def test_without_sentences_there_is_no_score() -> None:
    assert all(math.isnan(value) for value in Entities().scores().values())
    assert all(math.isnan(value) for value in Tags().scores().values())
    assert Entities().per_type() == Tags().per_tag() == {}


@pytest.mark.parametrize("tag", ["S-PER", "PER", "M", "B-", "", "o", "E-LOC"])
def test_what_is_not_bio_is_refused(tag: str) -> None:
    with refused("bad-tag", tag):
        Entities().add(["O"], [tag])


def test_every_word_has_both_tags() -> None:
    for scorer in (Entities(), Tags()):
        with refused("count-mismatch", (1, 2)):
            scorer.add(["O"], ["O", "O"])


WORDS = st.integers(0, 9).flatmap(
    lambda n: st.tuples(*[st.lists(st.sampled_from("NVADX"), min_size=n, max_size=n)] * 2)
)


@settings(max_examples=40)
@given(st.lists(WORDS, min_size=1, max_size=6))
def test_plain_tags_are_scored_as_scikit_learn_does(sentences: list[tuple[list[str], list[str]]]) -> None:
    tags = Tags()
    for gold, predicted in sentences:
        tags.add(gold, predicted)
    scores = tags.scores()
    every_gold, every_predicted = ([tag for pair in sentences for tag in pair[i]] for i in (0, 1))
    assert scores["sentence_accuracy"] == pytest.approx(sum(g == p for g, p in sentences) / len(sentences))
    if not every_gold:
        assert math.isnan(scores["accuracy"])
        return
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        assert scores["accuracy"] == pytest.approx(metrics.accuracy_score(every_gold, every_predicted))
        expected = metrics.f1_score(every_gold, every_predicted, average="macro", zero_division=0)
        assert scores["macro_f1"] == pytest.approx(expected)
        names = list(tags.per_tag())
        columns = metrics.precision_recall_fscore_support(every_gold, every_predicted, labels=names, zero_division=0)
    for i, detail in enumerate(tags.per_tag().values()):
        assert [detail.precision, detail.recall, detail.f1, detail.support] == pytest.approx([c[i] for c in columns])
