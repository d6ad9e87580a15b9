"""Intervals and comparisons: they cover what they say, and every score of every accumulator can be drawn again."""

import math
from collections.abc import Callable

import numpy as np
import pytest
from scipy import stats  # type: ignore[import-untyped]

from bothways.scoring.accumulator import Accumulator
from bothways.scoring.answers import Answers
from bothways.scoring.classification import Classes
from bothways.scoring.clustering import Clustering
from bothways.scoring.entities import Entities, Tags
from bothways.scoring.many_labels import ManyLabels
from bothways.scoring.ranking import Accuracy, Ranking
from bothways.scoring.regression import Regression
from bothways.scoring.retrieval import Retrieval
from bothways.scoring.significance import Comparison, compare, interval, summary
from helpers import refused

# What has no rows: a histogram's score, thresholds, a count.
FIXED = {"macro_average_precision", "best_exact_threshold", "best_f1_threshold", "missing"}
UNLUCKY = 1e-4  # how rarely fair draws would fall outside the bounds below; all seeds are fixed


def classes(picks: list[int], seed: int = 0, size: int = 3) -> Classes:
    """Texts whose gold depends on the pick alone, and answers that depend on the seed as well."""
    scorer = Classes([f"c{i}" for i in range(size)])
    for pick in picks:
        gold = np.random.default_rng(pick).integers(size)
        chances = np.random.default_rng([seed, pick]).dirichlet(np.ones(size) + 2 * np.eye(size)[gold])
        scorer.add([gold], [chances])
    return scorer


def two_classes(picks: list[int], seed: int = 0) -> Classes:
    return classes(picks, seed, 2)


def many(picks: list[int], seed: int = 0) -> ManyLabels:
    scorer = ManyLabels(["a", "b", "c"])
    for pick in picks:
        scorer.add([np.random.default_rng(pick).integers(0, 2, 3)], [np.random.default_rng([seed, pick]).random(3)])
    return scorer


def numbers(picks: list[int], seed: int = 0) -> Regression:
    scorer = Regression()
    for pick in picks:
        gold = np.round(np.random.default_rng(pick).normal(), 1)
        scorer.add([gold], [np.round(gold + np.random.default_rng([seed, pick]).normal(), 1)])
    return scorer


def entities(picks: list[int], seed: int = 0) -> Entities:
    scorer = Entities()
    for pick in picks:
        some = np.array(["O", "B-PER", "I-PER", "B-LOC", "I-LOC"])
        gold = some[np.random.default_rng(pick).integers(0, 5, 6)]
        noise = np.random.default_rng([seed, pick])
        scorer.add(list(gold), list(np.where(noise.random(6) < 0.7, gold, noise.choice(some, 6))))
    return scorer


def tags(picks: list[int], seed: int = 0) -> Tags:
    scorer = Tags()
    for pick in picks:
        gold = np.random.default_rng(pick).choice(list("NVAD"), pick % 7)
        noise = np.random.default_rng([seed, pick])
        scorer.add(list(gold), list(np.where(noise.random(len(gold)) < 0.7, gold, "N")))
    return scorer


def answers(picks: list[int], seed: int = 0) -> Answers:
    scorer = Answers(threshold=1.0)
    for i, pick in enumerate(picks):
        gold = [[], ["a b"], ["b c", "d"]][pick % 3]
        noise = np.random.default_rng([seed, pick])
        # The odds are all different, also of a question drawn twice: between equal ones the official search looks too.
        scorer.add(str(i), gold, ["", "b", "x d", "a b"][noise.integers(4)], noise.normal() + 1e-9 * i)
    return scorer


def ranking(picks: list[int], seed: int = 0) -> Ranking:
    scorer = Ranking(3)
    for pick in picks:
        gold = np.append(np.random.default_rng(pick).integers(0, 3, 5), 1)
        scorer.add(gold, np.random.default_rng([seed, pick]).random(6))
    return scorer


def retrieval(picks: list[int], seed: int = 0) -> Retrieval:
    scorer = Retrieval([1, 3])
    for i, pick in enumerate(picks):
        judged = {
            str(document): int(grade) for document, grade in enumerate(np.random.default_rng(pick).integers(0, 3, 8))
        }
        found = np.random.default_rng([seed, pick]).permutation(10)[:6]
        scorer.add(str(i), judged, list(map(str, found)), np.arange(6) // 2)
    return scorer


def clusters(picks: list[int], seed: int = 0) -> Clustering:
    scorer = Clustering()
    for pick in picks:
        gold = int(np.random.default_rng(pick).integers(3))
        noise = np.random.default_rng([seed, pick])
        scorer.add([gold], [gold if noise.random() < 0.7 else int(noise.integers(4))])
    return scorer


def right(picks: list[int], seed: int = 0) -> Accuracy:
    scorer = Accuracy()
    scorer.add([np.random.default_rng([seed, pick]).random() < 0.7 for pick in picks])
    return scorer


MAKERS: list[Callable[..., Accumulator]] = [
    classes, two_classes, many, numbers, entities, tags, answers, ranking, retrieval, clusters, right,
]  # fmt: skip


@pytest.mark.parametrize("maker", MAKERS)
def test_a_draw_scores_as_if_its_examples_had_been_added(maker: Callable[..., Accumulator]) -> None:
    """The contract: counts of kinds give the score of the examples drawn, for each name and several rounds at once."""
    whole = maker(list(range(40)))
    draws = np.random.default_rng(1).integers(0, 40, (5, 40))
    expected = [maker(draw.tolist()).scores() for draw in draws]
    names = set(whole.scores()) - FIXED
    assert names
    for name in names:
        rows = whole.rows(name)
        size = len(rows.counts())
        assert len(rows.kinds) == 40
        assert (rows.counts() > 0).all()
        counts = np.stack([np.bincount(rows.kinds[draw], minlength=size) for draw in draws]).astype(np.float64)
        assert rows.score(counts) == pytest.approx([one[name] for one in expected], abs=2e-6), name
        assert rows.value() == whole.scores()[name]


@pytest.mark.parametrize("maker", MAKERS)
def test_every_score_has_an_interval_around_it_and_a_comparison(maker: Callable[..., Accumulator]) -> None:
    first, second = maker(list(range(60)), 1), maker(list(range(60)), 2)
    for name, value in first.scores().items():
        if name in FIXED:
            with refused("unknown-score", name):
                interval(first, name)
            continue
        low, high = interval(first, name, rounds=100)
        assert low < high
        assert (low, high) == interval(first, name, rounds=100), "the same seed draws the same"
        # A calibration error is drawn too high: that of few examples is never 0.
        assert low <= value <= high or name == "calibration_error"
        found = compare(first, second, name, rounds=100)
        assert found.difference == pytest.approx(value - second.scores()[name])
        assert found.low <= found.high
        assert 1 / 101 <= found.p <= 1
    with refused("unknown-score", "no such score"):
        interval(first, "no such score")


@pytest.mark.parametrize("maker", MAKERS)
def test_a_model_does_not_differ_from_itself(maker: Callable[..., Accumulator]) -> None:
    first = maker(list(range(30)))
    for name in set(first.scores()) - FIXED:
        assert compare(first, maker(list(range(30))), name, rounds=20) == Comparison(0, 0, 0, 1)


@pytest.mark.parametrize("maker", [maker for maker in MAKERS if maker is not right])
def test_models_with_other_examples_are_not_compared(maker: Callable[..., Accumulator]) -> None:
    name = next(iter(maker(list(range(30))).scores()))
    for others in (list(range(1, 31)), list(range(31)), list(range(30))[::-1]):
        with refused("different-examples", (30, len(others))):
            compare(maker(list(range(30))), maker(others), name)


@pytest.mark.parametrize("maker", MAKERS)
def test_without_examples_there_is_no_interval(maker: Callable[..., Accumulator]) -> None:
    name = next(iter(maker([]).scores()))
    assert all(math.isnan(value) for value in interval(maker([]), name))
    assert math.isnan(compare(maker([]), maker([]), name).p)


def covered(trials: int, truth: float, draw: Callable[[int], tuple[float, float]]) -> bool:
    """Whether the 95 % intervals hold the truth about as often as they say."""
    hits = sum(low <= truth <= high for low, high in map(draw, range(trials)))
    # A percentile interval of a few hundred examples may fall short by 2 points: 93 to 95 % is what is expected.
    return bool(stats.binom.ppf(UNLUCKY, trials, 0.93) <= hits <= stats.binom.ppf(1 - UNLUCKY, trials, 0.95))


def test_intervals_of_accuracy_cover_the_truth() -> None:
    def draw(seed: int) -> tuple[float, float]:
        scorer = Accuracy()
        scorer.add(np.random.default_rng(seed).random(300) < 0.8)
        return interval(scorer, "accuracy", rounds=400, seed=seed)

    assert covered(200, 0.8, draw)


def test_intervals_of_matthews_correlation_cover_the_truth() -> None:
    def draw(seed: int) -> tuple[float, float]:
        generator = np.random.default_rng(seed)
        gold = generator.integers(0, 2, 300)
        said = np.where(generator.random(300) < 0.8, gold, 1 - gold)  # correlation 0.8 - 0.2
        scorer = Classes(["no", "yes"])
        scorer.add(gold, np.eye(2)[said])
        return interval(scorer, "matthews", rounds=400, seed=seed)

    assert covered(200, 0.6, draw)


def test_intervals_of_pearson_cover_the_truth() -> None:
    def draw(seed: int) -> tuple[float, float]:
        gold, noise = np.random.default_rng(seed).normal(size=(2, 300))
        scorer = Regression()
        scorer.add(gold, 0.6 * gold + 0.8 * noise)
        return interval(scorer, "pearson", rounds=300, seed=seed)

    assert covered(200, 0.6, draw)


def test_a_higher_level_gives_a_wider_interval_and_more_examples_a_narrower_one() -> None:
    few, lots = right(list(range(50))), right(list(range(800)))
    narrow, wide = interval(few, "accuracy", level=0.5), interval(few, "accuracy", level=0.99)
    assert wide[0] < narrow[0] <= narrow[1] < wide[1]
    low, high = interval(lots, "accuracy")
    assert high - low == pytest.approx(2 * 1.96 * math.sqrt(0.7 * 0.3 / 800), rel=0.15)


def pair_of(seed: int, better: float) -> tuple[Accuracy, Accuracy]:
    """Two models that err on the same hard examples, the first one `better` by so much."""
    generator = np.random.default_rng(seed)
    hard = generator.random(400)
    models = []
    for shift in (better, 0.0):
        models.append(Accuracy())
        models[-1].add(hard + 0.2 * generator.normal(size=400) < 0.8 + shift)
    return models[0], models[1]


def test_models_that_are_equally_good_differ_significantly_in_five_of_a_hundred() -> None:
    found = [compare(*pair_of(seed, 0.0), "accuracy", rounds=300, seed=seed).p for seed in range(200)]
    low, high = (stats.binom.ppf(chance, 200, 0.05) for chance in (UNLUCKY, 1 - UNLUCKY))
    assert low <= sum(p <= 0.05 for p in found) <= high


def test_a_better_model_is_recognised_and_the_sign_says_which() -> None:
    first, second = pair_of(0, 0.15)
    found = compare(first, second, "accuracy")
    assert 0 < found.low < found.difference < found.high
    assert found.p < 0.01
    turned = compare(second, first, "accuracy")
    assert (turned.difference, turned.low < 0, turned.high < 0) == (-found.difference, True, True)


def test_pairing_sees_what_two_intervals_do_not() -> None:
    """One model is right wherever the other is, and on a few examples more."""
    first, second = Accuracy(), Accuracy()
    first.add([True] * 215 + [False] * 85)
    second.add([True] * 200 + [False] * 100)
    assert interval(first, "accuracy")[0] < interval(second, "accuracy")[1]
    found = compare(first, second, "accuracy")
    assert found.low > 0
    assert found.p < 0.01


def test_no_number_of_rounds_proves_a_difference_beyond_itself() -> None:
    first, second = Accuracy(), Accuracy()
    first.add([True] * 100)
    second.add([False] * 100)
    assert compare(first, second, "accuracy", rounds=100) == Comparison(1, 1, 1, 1 / 101)


def test_a_million_rows_are_drawn_as_a_table() -> None:
    """Not by time, which no test measures, but by what is drawn: nine cells."""
    generator = np.random.default_rng(0)
    scorer = Classes(["a", "b", "c"])
    gold = generator.integers(0, 3, 1_000_000)
    scorer.add(gold, np.eye(3)[np.where(generator.random(1_000_000) < 0.9, gold, 0)])
    assert len(scorer.rows("macro_f1").counts()) == 5
    low, high = interval(scorer, "macro_f1")
    assert 0 < high - low < 0.003


def test_rounds_and_level_are_checked() -> None:
    for level, rounds in ((1.0, 10), (0.0, 10), (0.9, 0)):
        with refused("out-of-range", (level, rounds)):
            interval(right([1]), "accuracy", level, rounds)


def test_several_seeds_are_summed_up() -> None:
    values = [0.81, 0.79, 0.84, 0.8]
    found = summary(values)
    assert [found.mean, found.sd, found.n] == pytest.approx([np.mean(values), np.std(values, ddof=1), 4])
    assert math.isnan(summary([0.5]).sd)
    assert summary([0.5]).mean == 0.5
    with refused("no-scores"):
        summary([])
