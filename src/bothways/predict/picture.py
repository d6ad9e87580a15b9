"""An evaluation as a picture: scores, confusion matrix, reliability diagram, F1 by label."""

from pathlib import Path
from typing import Any

from bothways.plots import BLUE, RED, bars, new_figure, require_picture_name, save_figure
from bothways.predict.evaluation import Evaluation
from bothways.printable import counted
from bothways.scoring.classification import shown_name


def draw_evaluation(found: Evaluation, labels: tuple[str, ...], path: Path) -> bool:
    """The panels that this task has, as .png, .svg or .pdf. False without matplotlib."""
    require_picture_name(path)
    panels = [_scores]
    panels += [_confusion] if found.confusion and len(labels) <= 30 else []
    panels += [_reliability] if found.reliability else []
    panels += [_details] if 1 < len(found.details) <= 30 else []
    figure = new_figure(5 * len(panels), 4.4)
    if figure is None:
        return False
    for panel, axes in zip(panels, figure.subplots(1, len(panels), squeeze=False)[0], strict=True):
        panel(axes, found, labels)
    save_figure(figure, path)
    return True


def _scores(axes: Any, found: Evaluation, labels: tuple[str, ...]) -> None:
    names = [name for name, value in found.scores.items() if -1 <= value <= 1][:12]
    low, high = found.interval
    ends = [high if name == found.metric else found.scores[name] for name in names]
    values = [found.scores[name] for name in names]
    bars(axes, [shown_name(name, labels) for name in names], values, [f"{value:.3f}" for value in values], ends)
    if found.metric in names:
        axes.plot([low, high], [names.index(found.metric)] * 2, color=RED, linewidth=3)
    axes.set_title(f"Scores on {counted(found.examples, 'example')} (red: 95 % interval)", loc="left", fontsize=10)


def _confusion(axes: Any, found: Evaluation, labels: tuple[str, ...]) -> None:
    assert found.confusion is not None
    shares = [[cell / max(sum(row), 1) for cell in row] for row in found.confusion]
    axes.imshow(shares, cmap="Blues", vmin=0, vmax=1)
    for i, row in enumerate(found.confusion if len(labels) <= 12 else []):
        for j, cell in enumerate(row):
            axes.text(j, i, cell, ha="center", va="center", color="white" if shares[i][j] > 0.7 else "black")
    axes.set_xticks(range(len(labels)), labels, rotation=45, ha="right")
    axes.set_yticks(range(len(labels)), labels)
    axes.set_xlabel("predicted label")
    axes.set_ylabel("gold label")
    axes.set_title("Confusion matrix", loc="left", fontsize=10)


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
    axes.plot([bin.confidence for bin in bins], [bin.accuracy for bin in bins], color=BLUE, marker="o")
    axes.set_xlim(0, 1)
    axes.set_ylim(0, 1.02)
    axes.set_xlabel("confidence (grey: share of examples)")
    axes.set_ylabel("accuracy")
    axes.set_title("Reliability diagram", loc="left", fontsize=10)


def _details(axes: Any, found: Evaluation, labels: tuple[str, ...]) -> None:
    values = [detail["f1"] for detail in found.details.values()]
    bars(axes, list(found.details), values, [f"{value:.3f}" for value in values], values)
    axes.set_title("F1 by label", loc="left", fontsize=10)
