"""Watch the numbers of a training run and say in plain words what goes wrong.

Each problem is reported once. A healthy run is reported nothing: its loss may rest at the unigram plateau, jump at a
new phase, and be as noisy as small batches make it. All measurements restart with every phase.
"""

import math
from collections import deque
from dataclasses import dataclass, field
from statistics import fmean

from bothways.errors import BothwaysError
from bothways.train.protocol import Evaluated, Event, Started, Stepped

_FIRST = 8
"""Number of steps that count as the beginning of a run."""
SETTLED = 50
"""Steps to wait after the start, a new phase or the warm-up; a problem must also last this many steps."""
NEAR_PLATEAU, SMALL_DROP = 0.03, 0.005
"""Relative to the plateau: the distance that counts as being at it, and the smallest drop that counts as progress."""
STUCK_STEPS, STUCK_SHARE = 300, 0.2
"""Steps, and share of the run, at the plateau after which it is reported: healthy runs are past it by then."""


class MovingAverage:
    """Exponential moving average over about the last `span` numbers, without bias towards 0 at the start."""

    def __init__(self, span: int) -> None:
        self._keep, self._sum, self._weight = 1 - 2 / (span + 1), 0.0, 0.0

    def add(self, value: float) -> float:
        """Add a number and return the average; numbers that are not finite are ignored."""
        if math.isfinite(value):
            self._sum = self._keep * self._sum + value
            self._weight = self._keep * self._weight + 1
        return self.value

    @property
    def value(self) -> float:
        return self._sum / self._weight if self._weight else math.nan


@dataclass
class _Phase:
    """Measurements since the phase began."""

    number: int
    steps: int = 0
    loss: MovingAverage = field(default_factory=lambda: MovingAverage(50))
    """Of the watched loss."""
    total: MovingAverage = field(default_factory=lambda: MovingAverage(50))
    noise: MovingAverage = field(default_factory=lambda: MovingAverage(200))
    """Squared deviation of single steps."""
    lowest: float = math.inf
    above: int = 0
    """Consecutive steps with a loss clearly above the lowest."""
    anchor: Stepped | None = None
    """The step since which the loss has stayed at the plateau."""
    anchor_loss: float = math.inf
    """The loss at that step."""
    norm: MovingAverage = field(default_factory=lambda: MovingAverage(50))
    """Logarithm of the gradient norm."""
    clipped: MovingAverage = field(default_factory=lambda: MovingAverage(200))
    lowest_norm: float = math.inf
    growing: int = 0
    best: tuple[float, int, float] | None = None
    """The best evaluation: validation loss, step, training loss."""
    worse: int = 0
    """Consecutive evaluations that were clearly worse."""


class HealthMonitor:
    """Listens to the events of a run and returns the problems it finds: a sentence for the user by kind.

    >>> from bothways.train.health import HealthMonitor
    >>> from bothways.train.protocol import Started
    >>> monitor = HealthMonitor(plateau=6.9, clip=1.0, duplicates=0.12, tokens_per_epoch=None)
    >>> monitor(Started(0, 1000, "cpu", "fp32", 1e11))["duplicates"][:34]
    '12 % of the documents are copies o'
    """

    def __init__(
        self,
        plateau: float | None,
        *,
        loss_name: str = "mlm",
        clip: float,
        duplicates: float,
        tokens_per_epoch: int | None,
        scaled: bool = False,
    ) -> None:
        """plateau: the unigram entropy of the training text in nats, with which losses[loss_name] is compared.

        duplicates: share of the documents that are exact copies. scaled: fp16 loss scaling, which makes an overflowing
        gradient normal.
        """
        self._plateau, self._loss_name, self._clip = plateau, loss_name, clip
        self._duplicates, self._tokens_per_epoch, self._scaled = duplicates, tokens_per_epoch, scaled
        self._reported: set[str] = set()
        self._recent: deque[Stepped] = deque(maxlen=60)
        self._phase = _Phase(0)
        self._highest = plateau if plateau is not None else -math.inf
        """The highest smoothed loss so far."""
        self._first_loss, self._above_first, self._precision = 0.0, 0, ""
        """The loss of the first steps; the number of consecutive steps clearly above it."""
        self._warm_step, self._lr = 0, 0.0
        """The step at which the learning rate last rose, and its value."""

    def __call__(self, event: Event) -> dict[str, str]:
        """New problems: kind → sentence. Raises if a loss or the gradient is not finite, since the run cannot go on."""
        found: dict[str, str | None] = {}
        match event:
            case Started():
                self._precision = event.precision
                found["duplicates"] = self._duplicated()
            case Stepped():
                self._require_finite(event)
                self._follow(event)
                found["plateau"] = self._stuck(event)
                found["learning-rate"] = self._rising(event) or self._clipping(event)
            case Evaluated():
                found["overfitting"] = self._overfitting(event)
        new = {kind: sentence for kind, sentence in found.items() if sentence and kind not in self._reported}
        self._reported |= new.keys()
        return new

    def _watched(self, event: Stepped) -> float:
        return event.losses.get(self._loss_name, event.loss)

    def _follow(self, event: Stepped) -> None:
        if event.phase != self._phase.number:
            self._phase = _Phase(event.phase)
        if event.lr > self._lr:
            self._warm_step = event.step
        self._lr = event.lr
        self._recent.append(event)
        self._phase.steps += 1
        self._phase.total.add(event.loss)

    def _is_settled(self, event: Stepped) -> bool:
        return self._phase.steps >= SETTLED and event.step - self._warm_step >= SETTLED

    # ------------------------------------------------------------------ not finite

    def _require_finite(self, event: Stepped) -> None:
        loss = next((v for v in (event.loss, *event.losses.values()) if not math.isfinite(v)), None)
        norm = event.norm if not (math.isfinite(event.norm) or self._scaled) else None
        if loss is None and norm is None:
            return
        name, number = ("loss", loss) if loss is not None else ("gradient norm", norm)
        what = f"the {name} became {number} at step {event.step}"
        if not self._recent:
            raise BothwaysError(
                f"{what}, the first of this session: the initial weights, or this precision, give no finite numbers; "
                "try run.precision = 'fp32', or another model.init",
                "not-finite",
                (name, "first-step"),
            )
        last = self._recent[-1]
        parts = "".join(f", {part} {value:.4g}" for part, value in last.losses.items() if len(last.losses) > 1)
        before = f"at step {last.step} the loss was {last.loss:.4g}{parts}, the gradient norm {last.norm:.3g}"
        cause, advice = self._cause()
        raise BothwaysError(f"{what}; {before}, the learning rate {last.lr:.3g}. {advice}", "not-finite", (name, cause))

    def _cause(self) -> tuple[str, str]:
        """The probable cause of a number that is not finite: its kind, and advice."""
        losses = [event.loss for event in self._recent]
        norms = [event.norm for event in self._recent if math.isfinite(event.norm)]
        rising = [
            name for name, row, factor in (("loss", losses, 1.05), ("gradient norm", norms, 2.0)) if _grew(row, factor)
        ]
        if rising:
            return "rising", (
                f"The {' and the '.join(rising)} had been rising, so the learning rate is probably too high: "
                "try half of optim.lr, or a longer optim.warmup"
            )
        if len(losses) < _FIRST or self._precision == "fp32":
            return "learning-rate", (
                "The learning rate is probably far too high: try a tenth of optim.lr, or a longer optim.warmup"
            )
        precision = "bf16, which does not overflow" if self._scaled else "fp32"
        return "precision", (
            "Neither the loss nor the gradient norm had been rising, so one bad batch or the precision is the probable "
            f"cause: try run.precision = {precision}, or a lower optim.lr"
        )

    # ------------------------------------------------------------------ not learning

    def _stuck(self, event: Stepped) -> str | None:
        """The loss stays at the unigram plateau for too long."""
        seen, value = self._phase, self._watched(event)
        loss = seen.loss.add(value)
        plateau = self._plateau
        if plateau is None or self._loss_name not in event.losses:
            return None
        if abs(loss - plateau) > NEAR_PLATEAU * plateau:
            seen.anchor = None
            return None
        if seen.anchor is None or loss < seen.anchor_loss - SMALL_DROP * plateau:
            seen.anchor, seen.anchor_loss = event, loss
        steps, share = event.step - seen.anchor.step, event.done - seen.anchor.done
        if steps < STUCK_STEPS or share < STUCK_SHARE or not self._is_settled(event):
            return None
        return (
            f"The {self._loss_name} loss has stayed at {loss:.2f} for {steps:,} steps. A model that knows only token "
            f"frequencies reaches {plateau:.2f}. Usually the learning rate is too high or the warm-up too short: try a "
            "third of optim.lr or a longer optim.warmup; if that does not help, try three times optim.lr."
        )

    # ------------------------------------------------------------------ learning rate

    def _rising(self, event: Stepped) -> str | None:
        """The loss rises again."""
        seen, loss = self._phase, self._phase.loss.value
        if event.step <= _FIRST:
            self._first_loss = max(self._first_loss, self._watched(event))
        # A model that learns is never worse than it was at the start.
        self._above_first = self._above_first + 1 if self._first_loss > 0 and loss > 1.1 * self._first_loss else 0
        if self._above_first >= _FIRST:
            return (
                f"The loss is {loss:.4g}, above the {self._first_loss:.4g} of the first steps. Usually the learning "
                f"rate (now {event.lr:.2g}) is far too high: try a tenth of optim.lr, or a longer optim.warmup."
            )
        self._highest = max(self._highest, loss)
        if seen.steps < SETTLED:
            return None
        seen.lowest = min(seen.lowest, loss)
        # A resumed run has not seen the highest loss, hence the threshold relative to the lowest. The deviation of
        # single steps is seven times that of the smoothed loss, so the lowest of many noisy values stays below it.
        rise = max(0.1 * (self._highest - seen.lowest), 0.05 * abs(seen.lowest)) + math.sqrt(seen.noise.value)
        if not loss > seen.lowest + rise:
            seen.above = 0
            seen.noise.add((self._watched(event) - loss) ** 2)
            return None
        seen.above += self._is_settled(event)
        if seen.above < SETTLED:
            return None
        return (
            f"The loss has risen from {seen.lowest:.2f} to {loss:.2f}. Usually the learning rate (now {event.lr:.2g}) "
            "is too high: try half of optim.lr, or a longer optim.warmup."
        )

    def _clipping(self, event: Stepped) -> str | None:
        """The gradient is always clipped, far above the threshold, and grows."""
        seen = self._phase
        if not self._clip or not self._is_settled(event):
            return None
        norm = math.exp(seen.norm.add(math.log(max(event.norm, 1e-12))))
        seen.lowest_norm = min(seen.lowest_norm, norm)
        always = seen.clipped.add(event.norm > self._clip) > 0.95
        grows = always and norm > 10 * self._clip and norm > 5 * seen.lowest_norm
        seen.growing = seen.growing + 1 if grows else 0
        if seen.growing < SETTLED:
            return None
        return (
            f"The gradient norm has grown from {seen.lowest_norm:.2g} to {norm:.2g} and is clipped in nearly every "
            f"step (optim.clip is {self._clip:g}). Usually the learning rate is too high: try half of optim.lr, or a "
            "longer optim.warmup."
        )

    # ------------------------------------------------------------------ data

    def _duplicated(self) -> str | None:
        if not self._duplicates > 0.05:
            return None
        return (
            f"{100 * self._duplicates:.0f} % of the documents are copies of others, and a model memorises copies: pack "
            "the text with `dedup`."
        )

    def _overfitting(self, event: Evaluated) -> str | None:
        """The validation loss rises while the training loss falls."""
        seen, loss = self._phase, event.scores.get("loss", math.nan)
        train = seen.total.value
        if not (math.isfinite(loss) and math.isfinite(train)):
            return None
        if seen.best is None or loss < seen.best[0]:
            seen.best, seen.worse = (loss, event.step, train), 0
            return None
        best, step, train_then = seen.best
        seen.worse = seen.worse + 1 if loss > 1.05 * best and train < train_then else 0
        if seen.worse < 2:
            return None
        epochs = ""
        if self._tokens_per_epoch and self._recent:
            epochs = f" after {self._recent[-1].tokens / self._tokens_per_epoch:.1f} epochs"
        return (
            f"The validation loss has risen from {best:.3g} at step {step:,} to {loss:.3g} while the training loss "
            f"fell: the model overfits{epochs}. Try fewer steps, more text or more dropout."
        )


def _grew(row: list[float], factor: float) -> bool:
    """Whether the last values are clearly above those before: by this factor, and by more than noise."""
    size = min(10, len(row) // 4)
    if size == 0:
        return False
    before, after = row[:-size], fmean(row[-size:])
    mean = fmean(before)
    deviation = math.sqrt(fmean((value - mean) ** 2 for value in before))
    return after > mean * factor and after > mean + 2 * deviation / math.sqrt(size)
