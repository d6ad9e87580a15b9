"""What all pictures share: matplotlib if it is there, colours, bars with their numbers, files that appear whole."""

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from bothways import atomic
from bothways.errors import BothwaysError
from bothways.fonts import fonts_for

if TYPE_CHECKING:
    from matplotlib.figure import Figure

BLUE, FAINT, RED, GREY, BAND = "#1f4e8c", "#a9c1de", "#c8384a", "#666666", "#f2f4f7"
LINES = ("#2a7f62", "#b5651d", "#6a4c93", "#3a86a8", "#8d6b94", "#7a7a3a")


def new_figure(width: float, height: float) -> "Figure | None":
    """An empty picture, in inches; None if matplotlib is not installed."""
    try:
        from matplotlib.figure import Figure
    except ImportError:
        return None
    return Figure(figsize=(width, height), layout="constrained", facecolor="white")


def require_picture_name(path: Path) -> None:
    """Refuse a file name whose ending is no format that can be drawn."""
    try:
        from matplotlib.backend_bases import FigureCanvasBase
    except ImportError:
        return
    if _format(path) not in FigureCanvasBase.filetypes:
        raise BothwaysError(
            f"{path} cannot be drawn: expected a name that ends in .png, .svg or .pdf", "unknown-format", path
        )


def save_figure(figure: "Figure", path: Path, dpi: int = 120) -> None:
    """Write a picture; the same one has the same bytes, for it holds no date and no random name."""
    from matplotlib import rc_context

    require_picture_name(path)
    kind = _format(path)
    dates = {_DATES[kind]: None} if kind in _DATES else {}
    with atomic.new_file(path) as fresh, rc_context({"svg.hashsalt": "bothways"}), fonts_for(figure):
        figure.savefig(fresh, format=kind, dpi=dpi, metadata=dates)


_DATES = {"svg": "Date", "pdf": "CreationDate"}
"""Where matplotlib writes the time, by format."""


def bars(
    axes: Any,
    names: Sequence[str],
    values: Sequence[float],
    texts: Sequence[str],
    ends: Sequence[float],
    most: float = 1.0,
    **style: Any,
) -> None:
    """Horizontal bars, the first on top, each with its text behind the place where it ends. `most`: the full length."""
    axes.barh(range(len(names)), values, color=BLUE, height=0.6, **style)
    gap = 0.01 * most
    for place, (text, end) in enumerate(zip(texts, ends, strict=True)):
        axes.text(max(end, 0) + gap, place, text, va="center", fontsize=8)
    axes.set_yticks(range(len(names)), names, fontsize=8)
    axes.set_xlim(min(0.0, *values) * 1.1, 1.15 * most)
    axes.invert_yaxis()
    axes.spines[["top", "right"]].set_visible(False)


def _format(path: Path) -> str:
    return path.suffix.lower().removeprefix(".")
