"""The lines of the table: what was tried, how large and fast it is, and what it scores."""

import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

TABLE = "compress.json"
"""In the folder that is written: the table and the settings."""


@dataclass(frozen=True)
class CompressionStep:
    """One model that was tried."""

    name: str
    """What it is, such as "6 layers, int8"."""
    layers: int
    pieces: int
    """Pieces of its vocabulary."""
    precision: str
    """That of its ONNX graph; "" for a folder with weights."""
    bytes: int
    """All files of its folder but the card and the table."""
    parameters: int
    texts_per_second: float
    """Of development data, on the CPU: the median of several passes."""
    speed: float
    """As a multiple of the original, which was timed in turns with it: the median."""
    score: float
    """On the development data, by the metric of the table."""
    difference: float
    """Its score minus that of the original."""
    keeps: bool
    """Whether it keeps the score that was named."""


@dataclass(frozen=True)
class Compressed:
    """The result of `compress`."""

    folder: Path
    """The smallest model that keeps the score."""
    task: str
    metric: str
    """The score of the table."""
    needed: float
    """The score to keep."""
    interval: tuple[float, float] | None
    """The 95 % confidence interval of the original's score; None if it cannot be resampled."""
    examples: int
    """Examples of the development data."""
    keep: str
    """What was to be kept: a share of the original's score, or a score."""
    chosen: str
    """The name of the step that is in `folder`."""
    steps: tuple[CompressionStep, ...]
    """The original first."""
    unseen_pieces: float | None = None
    """The original's score on the development data with the pieces of the other texts alone; None if not measured."""

    @property
    def best(self) -> CompressionStep:
        """The step that is in `folder`."""
        return next(step for step in self.steps if step.name == self.chosen)

    def as_table(self) -> dict[str, Any]:
        """All of it but the folder, as values that JSON can hold: nan is null."""
        found: dict[str, Any] = _finite({name: value for name, value in asdict(self).items() if name != "folder"})
        return found


def _finite(value: Any) -> Any:
    if isinstance(value, dict):
        return {name: _finite(one) for name, one in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(one) for one in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


def smallest(steps: Sequence[CompressionStep]) -> CompressionStep:
    """The smallest step that keeps the score; of equally large ones the first."""
    return min((step for step in steps if step.keeps), key=lambda step: step.bytes)


def megabytes(size: int) -> str:
    """A size in MB, with three digits if it is small.

    >>> megabytes(27_965), megabytes(57_965_000), megabytes(1_340_000_000)
    ('0.0280', '58.0', '1,340')
    """
    mb = size / 1e6
    return f"{mb:,.0f}" if mb >= 1_000 else f"{mb:.1f}" if mb >= 10 else f"{mb:#.3g}"
