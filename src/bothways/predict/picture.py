"""An evaluation as a picture: what is taken for what, how sure against how right, how good on each label."""

from pathlib import Path
from typing import Any

from bothways import atomic
from bothways.errors import BothwaysError
from bothways.predict.evaluation import Evaluation
from bothways.scoring.classification import shown_name

_BLUE, _RED = "#1f4e8c", "#c8384a"


def require_picture(path: Path) -> None:
    """Refuse a name whose ending is no kind of picture that can be drawn."""
    try:
        from matplotlib.backend_bases import FigureCanvasBase
    except ImportError:
        return
    if _ending(path) not in FigureCanvasBase.filetypes:
        raise BothwaysError(f"{path} cannot be drawn: expected a name that ends in .png, .svg or .pdf")


def draw_evaluation(found: Evaluation, labels: tuple[str, ...], path: Path) -> bool:
    """The panels that this task has, as .png, .svg or .pdf. False without matplotlib."""
    require_picture(path)
    try:
        from matplotlib.figure import Figure
    except ImportError:
        return False
    panels = [_scores]
    panels += [_confusion] if found.confusion and len(labels) <= 30 else []
    panels += [_reliability] if found.reliability else []
    panels += [_details] if 1 < len(found.details) <= 30 else []
    figure = Figure(figsize=(5 * len(panels), 4.4), layout="constrained")
    for panel, axes in zip(panels, figure.subplots(1, len(panels), squeeze=False)[0], strict=True):
        panel(axes, found, labels)
    with atomic.new_file(path) as fresh:
        figure.savefig(fresh, format=_ending(path), dpi=120)
    return True


def _ending(path: Path) -> str:
    return path.suffix.lower().removeprefix(".")


def _scores(axes: Any, found: Evaluation, labels: tuple[str, ...]) -> None:
    names = [name for name, value in found.scores.items() if -1 <= value <= 1][:12]
    low, high = found.interval
    ends = [high if name == found.metric else found.scores[name] for name in names]
    _bars(axes, [shown_name(name, labels) for name in names], [found.scores[name] for name in names], ends)
    if found.metric in names:
        axes.plot([low, high], [names.index(found.metric)] * 2, color=_RED, linewidth=3)
    axes.set_title(f"{found.examples:,} examples (red: 95 %)", loc="left", fontsize=10)


def _confusion(axes: Any, found: Evaluation, labels: tuple[str, ...]) -> None:
    assert found.confusion is not None
    shares = [[cell / max(sum(row), 1) for cell in row] for row in found.confusion]
    axes.imshow(shares, cmap="Blues", vmin=0, vmax=1)
    for i, row in enumerate(found.confusion if len(labels) <= 12 else []):
        for j, cell in enumerate(row):
            axes.text(j, i, cell, ha="center", va="center", color="white" if shares[i][j] > 0.5 else "black")
    axes.set_xticks(range(len(labels)), labels, rotation=45, ha="right")
    axes.set_yticks(range(len(labels)), labels)
    axes.set_xlabel("predicted")
    axes.set_title("gold (rows) taken for", loc="left", fontsize=10)


def _reliability(axes: Any, found: Evaluation, labels: tuple[str, ...]) -> None:
    bins = [bin for bin in found.reliability if bin.count]
    most = max(bin.count for bin in bins)
    axes.bar(
        [(bin.low + bin.high) / 2 for bin in bins],
        [bin.count / most for bin in bins],
        width=1 / len(found.reliability),
        color="#d5dce6",
    )
    axes.plot([0, 1], [0, 1], color="black", linewidth=0.8, linestyle=":")
    axes.plot([bin.confidence for bin in bins], [bin.accuracy for bin in bins], color=_BLUE, marker="o")
    axes.set_xlim(0, 1)
    axes.set_ylim(0, 1.02)
    axes.set_xlabel("how sure (grey: how often)")
    axes.set_title("how right", loc="left", fontsize=10)


def _details(axes: Any, found: Evaluation, labels: tuple[str, ...]) -> None:
    values = [detail["f1"] for detail in found.details.values()]
    _bars(axes, list(found.details), values, values)
    axes.set_title("F1 by label", loc="left", fontsize=10)


def _bars(axes: Any, names: list[str], values: list[float], ends: list[float]) -> None:
    """Each with its number behind the place where it ends."""
    axes.barh(range(len(names)), values, color=_BLUE, height=0.6)
    for place, (value, end) in enumerate(zip(values, ends, strict=True)):
        axes.text(max(end, 0) + 0.01, place, f"{value:.3f}", va="center", fontsize=8)
    axes.set_yticks(range(len(names)), names, fontsize=8)
    axes.set_xlim(min(0, *values), 1.15)
    axes.invert_yaxis()
    axes.spines[["top", "right"]].set_visible(False)
