"""The three ways to show progress: a bar on a terminal, an element in a notebook, lines on standard error."""

import html
import importlib
import math
import sys
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

from bothways.printable import printable

if TYPE_CHECKING:
    from rich.console import Console, RenderableType
    from rich.live import Live

_REDRAW_SECONDS = 0.2
_FIRST_GAP, _LAST_GAP = 10.0, 60.0
"""Seconds between two lines: doubled after each."""


@dataclass(frozen=True)
class Snapshot:
    """How far some work is at one moment."""

    what: str
    done: float
    total: float | None
    unit: str
    share: float | None
    """From 0 to 1, if it is known."""
    rate: float | None
    """Items per second, if there were any."""
    elapsed: float
    left: float | None
    """Seconds, if they can be told."""
    end: str = ""
    """Empty while the work goes on."""

    @property
    def counts(self) -> str:
        """
        >>> Snapshot("encoding", 12_000, 30_000, "", 0.4, 1250.0, 9.6, 14.4).counts
        '12,000 of 30,000 (40 %)'
        """
        if not self.done and not self.total:
            return ""
        of = f" of {amount(self.total, self.unit)}" if self.total else ""
        named = f" {self.unit}" if self.unit not in ("", "bytes") else ""
        # All is read, but work goes on: not yet done.
        known = self.share is not None and (self.total or self.end or self.share < 1)
        share = f" ({min(self.share or 0.0, 1.0):.0%})".replace("%", " %") if known else ""
        return f"{amount(self.done, self.unit)}{of}{named}{share}"

    @property
    def rest(self) -> list[str]:
        """The rate, and the time left or so far."""
        parts = [f"{amount(self.rate, self.unit)}/s"] if self.rate is not None else []
        is_still = not self.done or (self.share is not None and self.share >= 1)
        if self.end:
            parts.append(f"{duration(self.elapsed)} {self.end}")
        elif self.left is not None:
            parts.append(f"{duration(self.left)} left")
        elif is_still:
            parts.append(f"{duration(self.elapsed)} so far")
        return parts

    @property
    def line(self) -> str:
        """
        >>> Snapshot("encoding", 12_000, 30_000, "", 0.4, 1250.0, 9.6, 14.4).line
        'encoding: 12,000 of 30,000 (40 %), 1,250/s, 14 s left'
        """
        return f"{self.what}: {', '.join([*filter(None, [self.counts]), *self.rest])}"


def amount(value: float, unit: str = "") -> str:
    """
    >>> amount(12_000), amount(0.25), amount(2_500_000, "bytes")
    ('12,000', '0.25', '2.5 MB')
    """
    if unit == "bytes":
        for name, size in (("GB", 1e9), ("MB", 1e6), ("kB", 1e3)):
            if value >= size:
                return f"{value / size:,.1f} {name}"
        return f"{value:.0f} bytes"
    return f"{value:,.0f}" if value >= 10 or value == round(value) else f"{value:.2g}"


def duration(seconds: float) -> str:
    """
    >>> duration(42), duration(60 * 3 + 5), duration(3600 * 7 + 300)
    ('42 s', '3 min 05 s', '7 h 05 min')
    """
    total = round(seconds)
    if total < 60:
        return f"{total} s"
    return f"{total // 60} min {total % 60:02} s" if total < 3600 else f"{total // 3600} h {total % 3600 // 60:02} min"


class Display(Protocol):
    """Shows snapshots; called often, and draws as often as is useful."""

    def show(self, now: Snapshot) -> None: ...

    def hide(self) -> None:
        """Another bar is shown for a while."""

    def end(self, now: Snapshot) -> None: ...


class Plain:
    """Lines on standard error: after 10 seconds, then after 20 more, 40 more and so on up to 60."""

    def __init__(self) -> None:
        self._due = self._gap = _FIRST_GAP

    def show(self, now: Snapshot) -> None:
        if now.elapsed < self._due:
            return
        self._gap = min(2 * self._gap, _LAST_GAP)
        self._due = now.elapsed + self._gap
        self._print(now)

    def hide(self) -> None:
        pass

    def end(self, now: Snapshot) -> None:
        """The last line, if there was one before."""
        if self._gap > _FIRST_GAP:
            self._print(now)

    def _print(self, now: Snapshot) -> None:
        sys.stderr.write(f"{printable(now.line)}\n")
        sys.stderr.flush()


class Terminal:
    """A bar that disappears at the end."""

    def __init__(self, console: "Console | None" = None) -> None:
        self._console, self._drawn = console, -math.inf
        self._live: Live | None = None

    def show(self, now: Snapshot) -> None:
        if now.elapsed - self._drawn < _REDRAW_SECONDS:
            return
        self._drawn = now.elapsed
        if self._live is None:
            self._live = self._started()
        self._live.update(_bar(now), refresh=True)

    def hide(self) -> None:
        if self._live is not None:
            self._live.stop()
            self._live = None

    def end(self, now: Snapshot) -> None:
        self.hide()

    def _started(self) -> "Live":
        from rich.console import Console
        from rich.live import Live

        self._console = self._console or Console(stderr=True, markup=False, highlight=False, emoji=False)
        # Redirected, results would go to standard error, and not into the file or pipe they are meant for.
        live = Live(console=self._console, transient=True, auto_refresh=False, redirect_stdout=sys.stdout.isatty())
        live.start()
        return live


def _bar(now: Snapshot) -> "RenderableType":
    from rich.progress_bar import ProgressBar
    from rich.table import Table

    known = now.share is not None and now.share < 1
    bar = ProgressBar(
        total=1.0 if known else None, completed=now.share or 0.0, width=32, pulse=not known, animation_time=now.elapsed
    )
    row = Table.grid(padding=(0, 1))
    row.add_row(printable(now.what), bar, ", ".join([*filter(None, [now.counts]), *now.rest]), _clock_time(now.elapsed))
    return row


def _clock_time(seconds: float) -> str:
    minutes, rest = divmod(int(seconds), 60)
    return f"{minutes // 60}:{minutes % 60:02}:{rest:02}"


class Notebook:
    """An HTML element below the cell; it needs no widgets."""

    def __init__(self) -> None:
        self._handle: Any = None
        self._drawn = -math.inf

    def show(self, now: Snapshot) -> None:
        if now.elapsed - self._drawn >= _REDRAW_SECONDS:
            self._drawn = now.elapsed
            self._draw(now)

    def hide(self) -> None:
        pass

    def end(self, now: Snapshot) -> None:
        if self._handle is not None:
            self._draw(now)

    def _draw(self, now: Snapshot) -> None:
        ipython = importlib.import_module("IPython.display")  # never a dependency: in a notebook it is there
        element = ipython.HTML(_element(now))
        if self._handle is None:
            self._handle = ipython.display(element, display_id=True)
        else:
            self._handle.update(element)


def _element(now: Snapshot) -> str:
    share = now.share if now.share is not None and now.share < 1 else 1.0 if now.end else None
    value = "" if share is None else f' value="{share:.4f}"'  # an element without a value moves back and forth
    return f'<div><progress max="1"{value} style="width: 16em"></progress> {html.escape(now.line)}</div>'


def in_jupyter() -> bool:
    """Whether this process is the kernel of a notebook."""
    find = getattr(sys.modules.get("IPython"), "get_ipython", None)
    shell = find() if find else None
    return any(kind.__name__ == "ZMQInteractiveShell" for kind in type(shell).__mro__)
