"""Problems of a run are reported, once each, and a healthy run gets no reports."""

import math
import random
from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from functools import partial
from typing import Any

import pytest

from bothways.errors import BothwaysError
from bothways.train.health import HealthMonitor, MovingAverage
from bothways.train.protocol import Evaluated, Event, Finished, Started, Stepped

PLATEAU = 6.9
Curve = Callable[[float], float]


def health(**changed: Any) -> HealthMonitor:
    settings: dict[str, Any] = {"plateau": PLATEAU, "clip": 1.0, "duplicates": 0.0, "tokens_per_epoch": 10_000}
    return HealthMonitor(**(settings | changed))


def healthy(done: float, pace: float = 1.0) -> float:
    """From a blank model (10.3) to the plateau, a while there, and down to 2.4."""
    frequencies = 3.4 * math.exp(-150 * done * pace)
    words = 3.6 / (1 + math.exp(40 * (done * pace - 0.14)))
    return 2.4 + frequencies + words + 0.9 * math.exp(-3 * done)


def run(
    curve: Curve,
    *,
    steps: int = 2000,
    noise: float = 0.15,
    seed: int = 0,
    phases: tuple[float, ...] = (),
    jump: float = 0.0,
    norm: Curve = lambda done: 0.8 + 3 * math.exp(-50 * done),
    warmup: float = 0.1,
    first: int = 0,
) -> Iterator[Stepped]:
    """The steps of a run whose loss follows the curve, with the noise of batches: heavy tails, single outliers."""
    draws = random.Random(seed)
    for step in range(first, steps):
        done = step / steps
        phase = sum(done >= start for start in phases)
        begun = max((start for start in phases if done >= start), default=0.0)
        off = noise * draws.gauss(0, 1) * (1 + (draws.random() < 0.02) * 3)
        loss = curve(done) + off + (jump * (0.4 + 0.6 * math.exp(-30 * (done - begun))) if phase else 0.0)
        next_loss = 0.69 - 0.5 * done + 0.05 * draws.random()
        lr = 1e-4 * min(done / warmup if warmup else 1.0, (1 - done) / (1 - warmup))
        size = norm(done) * math.exp(0.4 * draws.gauss(0, 1))
        losses = {"mlm": loss, "next": next_loss}
        yield Stepped(step + 1, phase, loss + next_loss, losses, lr, size, 100 * (step + 1), 1e4, 1e9, done, step * 0.1)


def reports(monitor: HealthMonitor, events: Iterable[Event]) -> list[tuple[str, str]]:
    """(kind, sentence) of every problem."""
    return [found for event in events for found in monitor(event).items()]


def refused_as_not_finite(monitor: HealthMonitor, event: Stepped) -> tuple[str, str]:
    """What is not finite, and the kind of cause that the error names."""
    with pytest.raises(BothwaysError) as caught:
        monitor(event)
    assert caught.value.code == "not-finite"
    assert f"at step {event.step}" in str(caught.value)
    found: Any = caught.value.value
    name, cause = found
    return name, cause


# ------------------------------------------------------------------ healthy


@pytest.mark.parametrize("noise", [0.0, 0.1, 0.3, 0.6])
@pytest.mark.parametrize("steps", [60, 400, 2500])
def test_a_healthy_run_gets_no_reports(noise: float, steps: int) -> None:
    for seed, (pace, jump) in enumerate([(1.0, 0.6), (0.6, -0.5), (2.0, 1.5), (0.45, 3.0)]):
        monitor, curve = health(), partial(healthy, pace=pace)
        events = run(curve, noise=noise, steps=steps, seed=seed, phases=(0.7, 0.9), jump=jump)
        assert reports(monitor, [Started(0, 1, "cpu", "fp32", 1e11), *events, Finished(steps, 1.0, True)]) == []


def test_a_run_without_warm_up_or_plateau_gets_no_reports() -> None:
    assert reports(health(plateau=None, clip=0.0), run(healthy, warmup=0.0)) == []


def test_a_long_noisy_flat_end_is_no_rise() -> None:
    """The lowest of many noisy values is lower than the next ones, and means nothing."""
    for seed in range(3):
        assert reports(health(plateau=None), run(lambda done: 2.0, noise=0.5, steps=5000, seed=seed)) == []


def test_a_spike_that_heals_is_no_illness() -> None:
    def spike(done: float) -> float:
        return healthy(done) + (4.0 if 0.5 < done < 0.505 else 0.0)

    assert reports(health(), run(spike)) == []


def test_bursts_that_heal_are_no_illness() -> None:
    """However many: each is over before it has lasted."""
    assert reports(health(), run(lambda done: 2.0 + 4.0 * ((2000 * done) % 200 < 20), warmup=0.0)) == []
    assert reports(health(), run(healthy, norm=lambda done: 400.0 if (2000 * done) % 200 < 20 else 12.0)) == []


def test_gradients_that_are_often_not_clipped_are_no_illness() -> None:
    events = run(healthy, norm=lambda done: 20 * math.exp(4 * done))
    assert reports(health(), [replace(event, norm=0.5) if event.step % 8 == 0 else event for event in events]) == []


def test_a_run_that_was_resumed_late_gets_no_reports() -> None:
    for seed in range(5):
        assert reports(health(plateau=None), run(healthy, first=1700, seed=seed, noise=0.3)) == []


def test_large_but_steady_gradients_are_no_illness() -> None:
    assert reports(health(), run(healthy, norm=lambda done: 30.0)) == []
    assert reports(health(), run(healthy, norm=lambda done: 0.3 + 5 * done)) == []
    assert reports(health(), run(healthy, norm=lambda done: 0.5 if done < 0.05 else 30.0)) == []


def test_gradients_that_grow_with_a_new_phase_are_no_illness() -> None:
    assert reports(health(), run(healthy, phases=(0.6,), norm=lambda done: 80.0 if done >= 0.6 else 12.0)) == []


# ------------------------------------------------------------------ not finite


@pytest.mark.parametrize("bad", [math.nan, math.inf])
def test_a_loss_that_is_not_finite_ends_the_run(bad: float) -> None:
    monitor = health()
    *before, last = run(healthy, steps=500)
    assert reports(monitor, before) == []
    with pytest.raises(BothwaysError) as caught:
        monitor(replace(last, loss=bad))
    assert (caught.value.code, caught.value.value) == ("not-finite", ("loss", "precision"))
    known = before[-1]
    numbers = (str(bad), "500", "499", f"{known.loss:.4g}", f"{known.losses['mlm']:.4g}", f"{known.norm:.3g}")
    for number in (*numbers, f"{known.lr:.3g}", "fp32"):
        assert number in str(caught.value)


def test_one_loss_of_several_is_enough() -> None:
    monitor = health()
    first, second, *_ = run(healthy)
    monitor(first)
    assert refused_as_not_finite(monitor, replace(second, losses={"mlm": 3.0, "next": math.nan}))[0] == "loss"


def test_a_loss_that_rose_before_points_to_the_learning_rate() -> None:
    monitor = health()
    for event in run(lambda done: 3.0 + 4 * max(0.0, done - 0.98) / 0.02, steps=500):
        monitor(event)
    assert refused_as_not_finite(monitor, replace(event, loss=math.nan)) == ("loss", "rising")


def test_noise_before_is_no_rise() -> None:
    monitor = health(plateau=None)
    for event in run(healthy, steps=60):
        monitor(replace(event, loss=9.0 if event.step % 2 or event.step > 57 else 1.0))
    assert refused_as_not_finite(monitor, replace(event, loss=math.nan)) == ("loss", "precision")


def test_a_gradient_that_grew_before_points_to_the_learning_rate() -> None:
    monitor = health()
    for event in run(healthy, steps=500, norm=lambda done: 1 + 200 * max(0.0, done - 0.98)):
        monitor(event)
    assert refused_as_not_finite(monitor, replace(event, norm=math.inf)) == ("gradient norm", "rising")


def test_the_first_step_is_not_the_learning_rate() -> None:
    assert refused_as_not_finite(health(), replace(next(run(healthy)), loss=math.nan)) == ("loss", "first-step")


def test_an_overflowing_gradient_is_normal_in_fp16() -> None:
    monitor = health(scaled=True)
    for event in run(healthy, steps=500):
        assert monitor(replace(event, norm=math.inf) if event.step % 7 == 0 else event) == {}
    with pytest.raises(BothwaysError) as caught:
        monitor(replace(event, loss=math.nan, norm=math.nan))
    assert (caught.value.code, caught.value.value) == ("not-finite", ("loss", "precision"))
    assert "bf16" in str(caught.value)


# ------------------------------------------------------------------ not learning


def test_a_loss_stuck_at_the_plateau() -> None:
    def stuck(done: float) -> float:
        return PLATEAU + 0.05 + 3.4 * math.exp(-60 * done)

    for seed in range(5):
        monitor, seen = health(), []
        for event in run(stuck, seed=seed):
            seen += [(event.done, *found) for found in monitor(event).items()]
        [(done, kind, sentence)] = seen
        assert 0.25 < done < 0.7
        assert kind == "plateau"
        assert all(part in sentence for part in ("mlm", "6.90", "optim.lr"))


def test_a_plateau_during_warm_up_is_judged_after_it() -> None:
    monitor, seen = health(), []
    for event in run(lambda done: PLATEAU, warmup=0.8):
        seen += [event.done for _ in monitor(event)]
    [done] = seen
    assert done >= 0.8


def test_a_loss_that_still_falls_is_not_stuck() -> None:
    assert reports(health(), run(lambda done: PLATEAU + 0.2 - 0.4 * done)) == []


def test_a_short_run_is_not_stuck() -> None:
    assert reports(health(), run(lambda done: PLATEAU, steps=250)) == []


def test_a_run_stuck_elsewhere_is_not_at_the_plateau() -> None:
    for level in (1.04, 0.96):
        assert reports(health(), run(lambda done, x=level: x * PLATEAU)) == []  # type: ignore[misc]


def test_only_the_loss_it_belongs_to_is_compared_with_the_plateau() -> None:
    assert reports(health(loss_name="clm"), run(lambda done: PLATEAU)) == []
    assert len(reports(health(loss_name="next", plateau=0.45), run(lambda done: 1.0, noise=0.0))) == 0
    unnamed = [replace(event, loss=PLATEAU, losses={"other": PLATEAU}) for event in run(healthy)]
    assert reports(health(), unnamed) == []
    flat = [replace(event, losses={"mlm": 3.0, "next": 0.69}) for event in run(healthy)]
    [(kind, sentence)] = reports(health(loss_name="next", plateau=0.69), flat)
    assert kind == "plateau"
    assert "next" in sentence
    assert "0.69" in sentence


# ------------------------------------------------------------------ learning rate


def test_a_loss_that_rises_again() -> None:
    def diverging(done: float) -> float:
        return healthy(done) + 3 * max(0.0, min(0.2, done - 0.5)) / 0.2

    for seed in range(5):
        monitor, seen = health(), []
        for event in run(diverging, seed=seed):
            seen += [(event.done, *found) for found in monitor(event).items()]
        [(done, kind, sentence)] = seen
        assert 0.55 < done < 0.75
        assert kind == "learning-rate"
        assert "optim.lr" in sentence
        assert "optim.clip" not in sentence  # it is the loss that rises


def test_a_loss_that_rises_in_a_later_phase() -> None:
    def diverging(done: float) -> float:
        return healthy(done) + 8 * max(0.0, done - 0.8)

    [(kind, sentence)] = reports(health(), run(diverging, phases=(0.6,), jump=1.0))
    assert kind == "learning-rate"
    assert "optim.clip" not in sentence


def test_a_rise_during_warm_up_is_judged_after_it() -> None:
    def diverging(done: float) -> float:
        return 4.0 + 6 * math.exp(-100 * done) + 8 * max(0.0, min(done, 0.4) - 0.2)

    monitor, seen = health(), []
    for event in run(diverging, warmup=0.4):
        seen += [event.done for _ in monitor(event)]
    [done] = seen
    assert 0.4 + 50 / 2000 < done < 0.5


def test_gradients_that_are_clipped_and_grow() -> None:
    monitor = health()
    [(kind, sentence)] = reports(monitor, run(healthy, norm=lambda done: 5 * math.exp(4 * done)))
    assert kind == "learning-rate"
    assert "optim.clip is 1)" in sentence
    assert reports(health(clip=0.0), run(healthy, norm=lambda done: 5 * math.exp(4 * done))) == []


# ------------------------------------------------------------------ data


def test_duplicates() -> None:
    started = Started(0, 1, "cpu", "fp32", 1e11)
    monitor = health(duplicates=0.12)
    [(kind, sentence)] = monitor(started).items()
    assert kind == "duplicates"
    assert "12 %" in sentence
    assert "`dedup`" in sentence
    assert monitor(started) == {}
    assert health(duplicates=0.05)(started) == {}


def evaluated(scores: dict[int, float], train: Curve = healthy) -> Iterator[Event]:
    """A run with a validation loss at some of its steps."""
    for event in run(train):
        yield event
        if event.step in scores:
            yield Evaluated(event.step, {"loss": scores[event.step]}, event.step == 2000)


def test_overfitting() -> None:
    events = [Evaluated(0, {"loss": 11.0}, False), *evaluated({500: 4.0, 1000: 3.5, 1500: 3.8, 2000: 3.9})]
    [(kind, sentence)] = reports(health(), events)
    assert kind == "overfitting"
    assert all(number in sentence for number in ("3.9", "3.5", "1,000", "20.0 epochs"))
    assert "epochs" not in reports(health(tokens_per_epoch=None), events)[0][1]
    assert len(reports(health(), evaluated({500: math.nan, 1000: 3.5, 1500: 3.8, 2000: 3.9}))) == 1


@pytest.mark.parametrize(
    "scores",
    [
        {500: 4.0, 1000: 3.5, 1500: 3.6, 2000: 3.6},  # within 5 %
        {500: 4.0, 1000: 3.5, 1500: 3.4, 2000: 3.9},  # once
        {500: 4.0, 800: 3.5, 1000: 3.9, 1500: 3.5, 2000: 3.9},  # not in a row
        {500: 4.0, 1000: 3.5, 1500: 3.2, 2000: 3.1},
        {1500: math.nan, 2000: math.nan},
    ],
)
def test_evaluations_that_are_no_illness(scores: dict[int, float]) -> None:
    assert reports(health(), evaluated(scores)) == []


def test_a_new_phase_is_measured_by_its_own_best() -> None:
    events: list[Event] = []
    for event in run(healthy, phases=(0.5,)):
        events.append(event)
        if event.step % 200 == 0:
            events.append(Evaluated(event.step, {"loss": 3.0 if event.phase == 0 else 3.6}, False))
    assert reports(health(), events) == []


def test_validation_that_rises_with_the_training_loss_is_not_overfitting() -> None:
    events = evaluated({500: 4.0, 1000: 3.5, 1500: 3.9, 2000: 3.9}, train=lambda done: 3 + 0.9 * done)
    assert "overfitting" not in dict(reports(health(), events))


def test_a_smoothed_row_starts_fair_and_forgets() -> None:
    smooth = MovingAverage(9)
    assert math.isnan(smooth.value)
    assert smooth.add(4.0) == 4.0
    assert smooth.add(math.nan) == 4.0
    assert 4.0 < smooth.add(8.0) < 8.0
    for _ in range(100):
        smooth.add(1.0)
    assert smooth.value == pytest.approx(1.0)


def test_a_loss_above_that_of_the_beginning_is_the_rate() -> None:
    """Exploding before anything has settled, it is measured against its first steps and not against its own ruin."""
    ill = run(lambda done: 7.0 if done < 0.2 else 40.0, steps=60, noise=0.0)
    [(kind, sentence)] = reports(health(clip=0.0), ill)
    assert kind == "learning-rate"
    assert "above the 7 " in sentence


def test_numbers_that_explode_within_a_few_steps_are_not_blamed_on_the_precision() -> None:
    monitor = health()
    monitor(Started(0, 1000, "cpu", "fp32", 1e11))
    first, second = list(run(lambda done: 7.0, steps=2, noise=0.0))
    monitor(first)
    assert refused_as_not_finite(monitor, replace(second, loss=math.nan)) == ("loss", "learning-rate")
