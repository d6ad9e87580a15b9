"""A run's log read back, and drawn."""

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from bothways.plots import BAND, BLUE, FAINT, GREY, LINES, RED, new_figure, save_figure

if TYPE_CHECKING:
    from matplotlib.axes import Axes

Numbers = NDArray[np.float64]

POINTS = 5_000
"""Of longer runs, neighbours are averaged while they are read."""


def entries(path: Path) -> Iterator[tuple[bytes, dict[str, Any]]]:
    """The lines of a metrics.jsonl and what they say, without those that a kill left in pieces."""
    with path.open("rb") as file:
        for line in file:
            try:
                entry = json.loads(line)
            except ValueError:
                continue
            if line.endswith(b"\n") and isinstance(entry, dict) and isinstance(entry.get("step"), int):
                yield line, entry


class Thinned:
    """Rows of numbers; whenever there are too many, neighbours become their mean."""

    def __init__(self, width: int) -> None:
        self._rows: list[list[float]] = []
        self._sums, self._count = [0.0] * width, 0
        self.stride = 1
        """How many rows are one by now."""

    def add(self, row: Sequence[float]) -> None:
        self._sums = [total + value for total, value in zip(self._sums, row, strict=True)]
        self._count += 1
        if self._count < self.stride:
            return
        self._rows.append([total / self._count for total in self._sums])
        self._sums, self._count = [0.0] * len(row), 0
        if len(self._rows) == POINTS:
            pairs = zip(self._rows[::2], self._rows[1::2], strict=True)
            self._rows = [[(a + b) / 2 for a, b in zip(one, two, strict=True)] for one, two in pairs]
            self.stride *= 2

    def table(self) -> Numbers:
        """(rows, width)"""
        rest = [[total / self._count for total in self._sums]] if self._count else []
        return np.array(self._rows + rest, dtype=np.float64).reshape(-1, len(self._sums))


@dataclass
class _Run:
    steps: Thinned = field(default_factory=lambda: Thinned(4))
    """Step, loss, learning rate, tokens."""
    valid: dict[str, Thinned] = field(default_factory=dict)
    """Step and score."""
    phases: dict[int, int] = field(default_factory=dict)
    """The first step of each."""
    last: tuple[int, int] = (0, 0)
    """Step and tokens at the end."""


def _read(metrics: Path) -> _Run:
    run = _Run()
    for _, entry in entries(metrics):
        if "valid" in entry:
            for name, score in entry["valid"].items():
                if score is not None:
                    run.valid.setdefault(name, Thinned(2)).add((entry["step"], score))
        else:
            run.phases.setdefault(entry["phase"], entry["step"])
            run.last = (entry["step"], entry["tokens"])
            if entry["loss"] is not None:
                run.steps.add((entry["step"], entry["loss"], entry["lr"], entry["tokens"]))
    return run


def draw_curve(metrics: Path, picture: Path, plateau: float | None = None) -> bool:
    """Draw a metrics.jsonl as a PNG of 1000 x 700; False if matplotlib is not installed. No steps, no picture."""
    figure = new_figure(10, 7)
    if figure is None:
        return False
    from matplotlib.ticker import MaxNLocator

    run = _read(metrics)
    table = run.steps.table()
    if not len(table):
        return True
    # Those of single sources, named source/…, would be clutter.
    accuracies = {name: t.table() for name, t in run.valid.items() if name.endswith("_accuracy") and "/" not in name}
    heights = [5.0, 1.3, *([1.7] if accuracies else [])]
    panels: list[Axes] = list(figure.subplots(len(heights), 1, sharex=True, squeeze=False, height_ratios=heights)[:, 0])
    for panel in panels:
        _dress(panel, run)
    _draw_loss(panels[0], run, table, plateau)
    panels[1].plot(table[:, 0], table[:, 2], color=GREY, linewidth=1.5)
    panels[1].set_ylabel("learning rate")
    panels[1].set_ylim(bottom=0)
    panels[1].ticklabel_format(axis="y", style="sci", scilimits=(-2, 3), useMathText=True)
    if accuracies:
        _draw_accuracies(panels[2], accuracies)
    panels[-1].set_xlabel("step")
    panels[-1].xaxis.set_major_locator(MaxNLocator(integer=True))
    panels[-1].xaxis.set_major_formatter("{x:,.0f}")
    _tokens_on_top(panels[0], run.last, table)
    figure.align_ylabels(panels)
    save_figure(figure, picture, dpi=100)
    return True


def _dress(panel: "Axes", run: _Run) -> None:
    """What all panels share: a light grid, no box, a band for every second phase."""
    panel.set_xlim(0, run.last[0])
    panel.grid(color="#dddddd", linewidth=0.6)
    panel.set_axisbelow(True)
    panel.spines[["top", "right"]].set_visible(False)
    panel.tick_params(labelsize=9)
    ends = [*_starts(run), run.last[0]]
    for begin, end in list(zip(run.phases.values(), ends, strict=True))[1::2]:
        panel.axvspan(begin, end, color=BAND, zorder=0, linewidth=0)


def _draw_loss(panel: "Axes", run: _Run, table: Numbers, plateau: float | None) -> None:
    steps, losses = table[:, 0], table[:, 1]
    smooth = np.concatenate([_smoothed(part) for part in np.split(losses, np.searchsorted(steps, _starts(run)))])
    each = "each step" if run.steps.stride == 1 else f"means of {run.steps.stride} steps"
    panel.plot(steps, losses, color=FAINT, linewidth=0.7, label=f"training, {each}")
    panel.plot(steps, smooth, color=BLUE, linewidth=1.8, label="training, smoothed")
    shown = [smooth]
    if "loss" in run.valid:
        valid = run.valid["loss"].table()
        few = len(valid) <= 60
        size = 5.0 if few else 2.5
        panel.plot(*valid.T, "o", color=RED, markersize=size, markeredgecolor="white", markeredgewidth=0.6 * few,
                   label="validation", zorder=4, clip_on=False)  # fmt: skip
        shown.append(valid[:, 1])
    if plateau is not None:
        panel.axhline(plateau, color=GREY, linewidth=1, linestyle=(0, (5, 4)), label="word frequencies only")
        shown.append(np.array([plateau]))
    # Single spikes may leave the picture: the curve matters more.
    low, high = min(map(np.min, shown)), max(map(np.max, shown))
    room = max(0.06 * (high - low), 1e-3)
    panel.set_ylim(low - room * (1 + (len(run.phases) > 1)), high + room)
    if len(run.phases) > 1:
        for number, begin in run.phases.items():
            panel.annotate(f"phase {number + 1}", (begin, 0), (5, 6), xycoords=panel.get_xaxis_transform(),
                           textcoords="offset points", fontsize=9, color=GREY)  # fmt: skip
    panel.set_ylabel("loss")
    panel.legend(loc="upper right", fontsize=9, frameon=True, framealpha=0.9, edgecolor="none")


def _starts(run: _Run) -> list[int]:
    return list(run.phases.values())[1:]


def _smoothed(row: Numbers) -> Numbers:
    """A centred mean over a fiftieth of the row, narrower at its ends."""
    half = max(len(row) // 100, min(4, len(row) // 8))
    sums = np.concatenate([[0.0], np.cumsum(row)])
    places = np.arange(len(row))
    reach = np.minimum(half, np.minimum(places, len(row) - 1 - places))
    found: Numbers = (sums[places + reach + 1] - sums[places - reach]) / (2 * reach + 1)
    return found


def _draw_accuracies(panel: "Axes", accuracies: dict[str, Numbers]) -> None:
    for i, (name, scores) in enumerate(accuracies.items()):
        label = name.removesuffix("_accuracy")
        panel.plot(scores[:, 0], 100 * scores[:, 1], "o-", color=LINES[i % len(LINES)], markersize=3, linewidth=1.2,
                   label=label, clip_on=False)  # fmt: skip
    panel.set_ylabel("accuracy, %")
    panel.set_ylim(bottom=0)
    panel.legend(loc="best", fontsize=9, frameon=True, framealpha=0.9, edgecolor="none", ncols=len(accuracies))


def _tokens_on_top(panel: "Axes", last: tuple[int, int], table: Numbers) -> None:
    """A title, and under it, over the steps, how many tokens had been read by then."""
    ticks = [tick for tick in panel.get_xticks() if 0 <= tick <= last[0]]
    read = np.interp(ticks, [0.0, *table[:, 0], last[0]], [0.0, *table[:, 3], last[1]])
    top = panel.secondary_xaxis("top")
    top.set_xticks(ticks, [_short(tokens) for tokens in read])
    top.set_xlabel("tokens read", fontsize=9, color=GREY)
    top.tick_params(labelsize=9, labelcolor=GREY, length=0)
    top.spines["top"].set_visible(False)
    title = f"Training loss over {last[0]:,} steps, {_short(last[1])} tokens"
    panel.set_title(title, fontsize=13, loc="left", fontweight="bold", pad=10)


def _short(number: float) -> str:
    """
    >>> [_short(n) for n in (0, 950, 1500, 16_400_000, 999_999_999, 3_140_000_000)]
    ['0', '950', '1.5k', '16M', '1B', '3.1B']
    """
    power = 0
    while float(f"{number:.2g}") >= 1000 and power < 4:
        number, power = number / 1000, power + 1
    return (f"{number:.1f}".removesuffix(".0") if number < 9.95 else f"{number:.0f}") + ("", "k", "M", "B", "T")[power]
