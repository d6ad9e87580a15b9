"""Temperatures, reliability and the worst errors."""

import math
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import optimize, special  # type: ignore[import-untyped]

from bothways.scoring.calibration import COLDEST, HOTTEST, bin_of, fit_temperature
from bothways.scoring.classification import Classes
from bothways.scoring.worst import Worst
from helpers import refused

SEEDS = st.integers(0, 2**32 - 1)


def loss(logits: Any, gold: Any, temperature: float) -> float:
    return float(-special.log_softmax(logits / temperature, axis=1)[np.arange(len(gold)), gold].mean())


@settings(max_examples=60)
@given(seed=SEEDS, rows=st.integers(1, 80), size=st.integers(1, 5), scale=st.sampled_from([0.05, 1.0, 30.0]))
def test_no_temperature_has_a_smaller_loss(seed: int, rows: int, size: int, scale: float) -> None:
    draws = np.random.default_rng(seed)
    gold = draws.integers(0, size, rows)
    logits = draws.normal(size=(rows, size))
    logits[np.arange(rows), gold] += draws.choice([-1.0, 0.5, 3.0])
    logits *= scale
    found = fit_temperature(logits, gold)
    assert COLDEST <= found <= HOTTEST
    bounds = (math.log(COLDEST), math.log(HOTTEST))
    best = optimize.minimize_scalar(lambda t: loss(logits, gold, math.exp(t)), bounds=bounds, method="bounded").fun
    assert loss(logits, gold, found) <= best + 1e-9


def test_a_temperature_that_was_put_in_is_found_again() -> None:
    draws = np.random.default_rng(0)
    logits = draws.normal(size=(200_000, 3)) * 2
    gold = (logits + draws.gumbel(size=logits.shape)).argmax(1)  # drawn from the softmax
    assert fit_temperature(logits * 2.5, gold) == pytest.approx(2.5, rel=0.02)


def test_log_odds_are_two_classes() -> None:
    draws = np.random.default_rng(0)
    odds, gold = draws.normal(size=50), draws.integers(0, 2, 50)
    assert fit_temperature(odds, gold) == pytest.approx(fit_temperature(np.stack([0 * odds, odds], 1), gold))


def test_logits_that_say_nothing_keep_their_temperature() -> None:
    assert fit_temperature([[2.0, 2.0], [1.0, 1.0]], [0, 1]) == 1


def test_without_an_error_it_is_as_cold_as_it_gets() -> None:
    assert fit_temperature([[0.01, 0.0], [0.0, 0.01]], [0, 1]) == pytest.approx(COLDEST, rel=1e-6)
    assert fit_temperature([[0.0, 500.0]], [0]) == pytest.approx(HOTTEST, rel=1e-6)


@pytest.mark.parametrize(
    ("logits", "gold", "code"),
    [
        ([[1.0, 2.0]], [2], "out-of-range"),
        ([[1.0, 2.0]], [-1], "out-of-range"),
        ([[1.0, float("inf")]], [0], "not-finite"),
        ([[1.0, 2.0]], [0, 1], "shape-mismatch"),
        ([], [], "shape-mismatch"),
    ],
)
def test_what_cannot_be_fitted_is_refused(logits: Any, gold: Any, code: str) -> None:
    with refused(code):
        fit_temperature(logits, gold)


def test_reliability_is_what_the_calibration_error_adds_up() -> None:
    draws = np.random.default_rng(0)
    probabilities = special.softmax(draws.normal(size=(300, 4)) * 2, axis=1)
    gold = draws.integers(0, 4, 300)
    classes = Classes(list("abcd"))
    classes.add(gold, probabilities)
    table = classes.reliability()
    assert sum(one.count for one in table) == 300
    error = sum(one.count * abs(one.accuracy - one.confidence) for one in table if one.count) / 300
    assert classes.scores()["calibration_error"] == pytest.approx(error)


def test_a_bin_holds_its_upper_edge() -> None:
    assert bin_of(np.array([0.0, 0.5, 0.51, 1.0]), bins=2).tolist() == [0, 0, 1, 1]


@given(st.lists(st.sampled_from([0.0, 0.5, 1.0, 2.0, math.inf, math.nan]), max_size=30), st.integers(0, 6))
def test_the_worst_are_the_first_of_the_sorted(losses: list[float], size: int) -> None:
    worst = Worst[dict[str, int]](size)  # dicts cannot be compared, and need not be
    for i, value in enumerate(losses):
        worst.add(value, {"row": i})
    filled = [math.inf if math.isnan(value) else value for value in losses]
    expected = sorted(range(len(losses)), key=lambda i: -filled[i])[:size]
    assert worst.items() == [(filled[i], {"row": i}) for i in expected]


def test_a_negative_number_of_errors_is_refused() -> None:
    with refused("out-of-range", -1):
        Worst[str](-1)
