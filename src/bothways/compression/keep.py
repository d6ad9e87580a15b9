"""The score that a compressed model must keep: a share of the original's, or a score."""

import math
from dataclasses import dataclass

from bothways.errors import BothwaysError
from bothways.tasks.trainable import selection_loss

_EPSILON = 1e-9


@dataclass(frozen=True)
class Keep:
    """What must be kept: a share of the original's score, or a score in the unit of the metric."""

    value: float
    is_share: bool

    @classmethod
    def of(cls, given: "str | float | Keep") -> "Keep":
        """From "98%", 0.91 or "0.91".

        >>> Keep.of("98%"), Keep.of(0.91)
        (Keep(value=0.98, is_share=True), Keep(value=0.91, is_share=False))
        """
        if isinstance(given, Keep):
            return given
        text = str(given).strip()
        is_share = text.endswith(("%", "％"))
        try:
            value = float(text.rstrip("%％"))
        except ValueError:
            value = math.nan
        if math.isnan(value) or math.isinf(value):
            raise BothwaysError(
                f"`keep` is {given!r}: expected a share of the original score such as 98%, or a score such as 0.91",
                "bad-number",
                given,
            )
        if is_share and not 0 < value <= 100:
            raise BothwaysError(f"`keep` is {text}: expected a share above 0% and up to 100%", "out-of-range", given)
        return cls(value / 100 if is_share else value, is_share)

    def __str__(self) -> str:
        return f"{100 * self.value:g}%" if self.is_share else f"{self.value:g}"

    def score(self, original: float, metric: str) -> float:
        """The score that is needed, from that of the original."""
        if not self.is_share:
            return self.value
        if not original > 0:
            raise BothwaysError(
                f"the original has {metric} {original:.4f}, of which {self} is no measure: name a score, such as "
                "0.5, with `keep`",
                "no-share",
                original,
            )
        return original / self.value if is_loss(metric) else original * self.value


def is_loss(metric: str) -> bool:
    """Whether lower scores are better."""
    return selection_loss({metric: 1.0}, metric) > 0


def reaches(score: float, needed: float, metric: str) -> bool:
    """Whether a score is as good as needed; nan never is."""
    losses = (selection_loss({metric: one}, metric) for one in (score, needed))
    own, most = losses
    return own <= most + _EPSILON and not math.isinf(own)
