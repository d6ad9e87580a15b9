"""What a training run's numbers mean, told in plain words while it runs.

Each illness is told once. A healthy run is told nothing: it may pass the unigram plateau, jump at a new phase, and be
as noisy as small batches are. What is measured starts anew with every phase.
"""

import math
from collections import deque
from dataclasses import dataclass, field
from statistics import fmean

from bothways.errors import BothwaysError
from bothways.train.protocol import Evaluated, Event, Started, Stepped

_FIRST = 8
"""So many steps are the beginning of a run."""
SETTLED = 50
"""Steps after the beginning, a new phase or the warm-up in which nothing is judged, and for which an illness lasts."""
NEAR_PLATEAU, HARDLY = 0.03, 0.005
"""Shares of the plateau: how near is at it, and a fall that counts as one."""
STUCK_STEPS, STUCK_SHARE = 300, 0.2
"""At the plateau for so many steps and for this share of the run: healthy runs are past it by then."""


class Smooth:
    """A running mean that forgets: the last `span` numbers count most. The first ones are averaged fairly."""

    def __init__(self, span: int) -> None:
        self._keep, self._sum, self._weight = 1 - 2 / (span + 1), 0.0, 0.0

    def add(self, value: float) -> float:
        """The mean, with one more number; one that is not finite is left out."""
        if math.isfinite(value):
            self._sum = self._keep * self._sum + value
            self._weight = self._keep * self._weight + 1
        return self.value

    @property
    def value(self) -> float:
        return self._sum / self._weight if self._weight else math.nan


@dataclass
class _Phase:
    """What has been seen since the phase began."""

    number: int
    steps: int = 0
    loss: Smooth = field(default_factory=lambda: Smooth(50))
    """The watched one."""
    total: Smooth = field(default_factory=lambda: Smooth(50))
    noise: Smooth = field(default_factory=lambda: Smooth(200))
    """The square of what single steps are off by."""
    lowest: float = math.inf
    above: int = 0
    """Steps in a row in which the loss was clearly above its lowest."""
    anchor: Stepped | None = None
    """Since then the loss is at the plateau and has hardly fallen …"""
    anchor_loss: float = math.inf
    """… from here."""
    norm: Smooth = field(default_factory=lambda: Smooth(50))
    """Its logarithm."""
    clipped: Smooth = field(default_factory=lambda: Smooth(200))
    lowest_norm: float = math.inf
    growing: int = 0
    best: tuple[float, int, float] | None = None
    """The best evaluation: its loss, its step, the training loss then."""
    worse: int = 0
    """Evaluations in a row that were clearly worse."""


class HealthMonitor:
    """Listens to a run and returns the sentences that its user should read now.

    >>> from bothways.train.health import Diagnosis
    >>> from bothways.train.protocol import Started
    >>> look = Diagnosis(plateau=6.9, clip=1.0, duplicates=0.12, tokens_per_epoch=None)
    >>> look(Started(0, 1000, "cpu", "fp32", 1e11))[0][:40]
    '12 % of the documents are copies of othe'
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
        """plateau: the unigram entropy of the training text in nats, to which losses[loss_name] is compared.

        duplicates: the share of documents that are copies. scaled: fp16, in which an overflowing gradient is normal.
        """
        self._plateau, self._loss_name, self._clip = plateau, loss_name, clip
        self._duplicates, self._tokens_per_epoch, self._scaled = duplicates, tokens_per_epoch, scaled
        self._told: set[str] = set()
        self._recent: deque[Stepped] = deque(maxlen=60)
        self._phase = _Phase(0)
        self._highest = plateau if plateau is not None else -math.inf
        """From where the loss came down."""
        self._begin, self._above_begin, self._precision = 0.0, 0, ""
        """The loss of the first steps; how many in a row were clearly above it."""
        self._warm_step, self._lr = 0, 0.0
        """When the learning rate last rose, and what it is."""

    def __call__(self, event: Event) -> list[str]:
        """New sentences. Raises if the run cannot go on: a loss or a gradient is not finite."""
        found: dict[str, str | None] = {}
        match event:
            case Started():
                self._precision = event.precision
                found["copies"] = self._copies()
            case Stepped():
                self._require_finite(event)
                self._follow(event)
                found["plateau"] = self._stuck(event)
                found["rate"] = self._rising(event) or self._clipping(event)
            case Evaluated():
                found["memory"] = self._memorising(event)
        new = {kind: sentence for kind, sentence in found.items() if sentence and kind not in self._told}
        self._told |= new.keys()
        return [sentence for sentence in new.values() if sentence]

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
        what = f"the loss became {loss}" if loss is not None else f"the norm of the gradient became {norm}"
        if not self._recent:
            raise BothwaysError(
                f"{what} in the first step seen, step {event.step}: the weights it started from, or a layer at this "
                "precision, give no finite numbers; try run.precision = 'fp32', or another start"
            )
        last = self._recent[-1]
        parts = "".join(f", {name} {value:.4g}" for name, value in last.losses.items() if len(last.losses) > 1)
        seen = f"at step {last.step} the loss was {last.loss:.4g}{parts}, the norm of the gradient {last.norm:.3g}"
        raise BothwaysError(f"{what} at step {event.step}; {seen}, the learning rate {last.lr:.3g}. {self._cause()}")

    def _cause(self) -> str:
        losses = [event.loss for event in self._recent]
        norms = [event.norm for event in self._recent if math.isfinite(event.norm)]
        rising = [name for name, row, factor in (("loss", losses, 1.05), ("norm", norms, 2.0)) if _grew(row, factor)]
        if rising:
            return (
                f"The {' and the '.join(rising)} had been rising, so the learning rate is probably too high: "
                "try half of optim.lr, or a longer optim.warmup"
            )
        if len(losses) < _FIRST or self._precision == "fp32":
            when = "That was one of the first steps" if len(losses) < _FIRST else "Nothing is more exact than fp32"
            return f"{when}: the learning rate is probably far too high; try a tenth of it, or a longer optim.warmup"
        precision = "bf16, which does not overflow" if self._scaled else "fp32"
        return (
            "Nothing had been rising, which points to one bad batch or to numbers too large for this precision: "
            f"try run.precision = {precision}, or a lower optim.lr"
        )

    # ------------------------------------------------------------------ not learning

    def _stuck(self, event: Stepped) -> str | None:
        """At the unigram plateau, and hardly falling, for too long."""
        seen, value = self._phase, self._watched(event)
        loss = seen.loss.add(value)
        plateau = self._plateau
        if plateau is None or self._loss_name not in event.losses:
            return None
        if abs(loss - plateau) > NEAR_PLATEAU * plateau:
            seen.anchor = None
            return None
        if seen.anchor is None or loss < seen.anchor_loss - HARDLY * plateau:
            seen.anchor, seen.anchor_loss = event, loss
        steps, share = event.step - seen.anchor.step, event.done - seen.anchor.done
        if steps < STUCK_STEPS or share < STUCK_SHARE or not self._is_settled(event):
            return None
        return (
            f"The {self._loss_name} loss has stayed at {loss:.2f} for {steps:,} steps, and {plateau:.2f} is what a "
            "model reaches that only knows how frequent each word is: usually the learning rate is too high or the "
            "warm-up too short, or far too low; try a third of optim.lr, or a longer optim.warmup, and if that "
            "changes nothing three times optim.lr."
        )

    # ------------------------------------------------------------------ learning rate

    def _rising(self, event: Stepped) -> str | None:
        """The loss is on its way back up."""
        seen, loss = self._phase, self._phase.loss.value
        if event.step <= _FIRST:
            self._begin = max(self._begin, self._watched(event))
        # Nothing that learns is ever worse than it was before it learnt anything.
        self._above_begin = self._above_begin + 1 if self._begin > 0 and loss > 1.1 * self._begin else 0
        if self._above_begin >= _FIRST:
            return (
                f"The loss is {loss:.4g}, more than the {self._begin:.4g} it began with: usually the learning rate "
                f"(now {event.lr:.2g}) is far too high; try a tenth of optim.lr, or a longer optim.warmup."
            )
        self._highest = max(self._highest, loss)
        if seen.steps < SETTLED:
            return None
        seen.lowest = min(seen.lowest, loss)
        # A run that was resumed has not seen its way down, hence the share of the loss. The deviation of single steps
        # is seven times that of the smoothed loss: more than the lowest of many is off by.
        rise = max(0.1 * (self._highest - seen.lowest), 0.05 * abs(seen.lowest)) + math.sqrt(seen.noise.value)
        if not loss > seen.lowest + rise:
            seen.above = 0
            seen.noise.add((self._watched(event) - loss) ** 2)
            return None
        seen.above += self._is_settled(event)
        if seen.above < SETTLED:
            return None
        return (
            f"The loss has risen to {loss:.2f} and was as low as {seen.lowest:.2f}: usually the learning rate "
            f"(now {event.lr:.2g}) is too high; try half of optim.lr, or a longer optim.warmup."
        )

    def _clipping(self, event: Stepped) -> str | None:
        """The gradient is clipped all the time, far above the clip, and grows."""
        seen = self._phase
        if not self._clip or not self._is_settled(event):
            return None
        norm = math.exp(seen.norm.add(math.log(max(event.norm, 1e-12))))
        seen.lowest_norm = min(seen.lowest_norm, norm)
        always = seen.clipped.add(event.norm > self._clip) > 0.95
        ill = always and norm > 10 * self._clip and norm > 5 * seen.lowest_norm
        seen.growing = seen.growing + 1 if ill else 0
        if seen.growing < SETTLED:
            return None
        return (
            f"The gradient is clipped in nearly every step, and its norm has grown from {seen.lowest_norm:.2g} to "
            f"{norm:.2g} (optim.clip is {self._clip:g}): usually the learning rate is too high; try half of optim.lr, "
            "or a longer optim.warmup."
        )

    # ------------------------------------------------------------------ data

    def _copies(self) -> str | None:
        if not self._duplicates > 0.05:
            return None
        return (
            f"{100 * self._duplicates:.0f} % of the documents are copies of others: a model learns copies by heart "
            "instead of the language, and held-out text may be among them; prepare the text again with --dedup."
        )

    def _memorising(self, event: Evaluated) -> str | None:
        """The held-out text gets worse while the training text gets better."""
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
        passes = ""
        if self._tokens_per_epoch and self._recent:
            passes = f", after {self._recent[-1].tokens / self._tokens_per_epoch:.1f} passes over it"
        return (
            f"The validation loss has risen to {loss:.3g} from {best:.3g} at step {step:,} while the training loss "
            f"fell: the model is learning its text by heart{passes}; try fewer steps, more text or more dropout."
        )


def _grew(row: list[float], factor: float) -> bool:
    """Whether the end of the row is clearly above what came before, by this factor and by more than noise."""
    size = min(10, len(row) // 4)
    if size == 0:
        return False
    before, after = row[:-size], fmean(row[-size:])
    mean = fmean(before)
    deviation = math.sqrt(fmean((value - mean) ** 2 for value in before))
    return after > mean * factor and after > mean + 2 * deviation / math.sqrt(size)
