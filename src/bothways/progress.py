"""Progress of long work: a bar on a terminal, an element in a notebook, else a line now and then on standard error.

Nothing is shown of work that ends within two seconds.
"""

import os
import sys
import threading
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence, Sized
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from time import monotonic
from types import TracebackType
from typing import Protocol, TypeVar

from bothways.progress_displays import Display, Notebook, Plain, Snapshot, Terminal, in_jupyter

T = TypeVar("T")
Clock = Callable[[], float]
Share = Callable[[], float | None]

PATIENCE = 2.0
"""Seconds before anything is shown."""
_CHECK_SECONDS = 0.05  # between two looks at the clock
_MAX_UNCHECKED = 64  # items; if they suddenly become slow, the display is late by this many of them at most
_BEAT_SECONDS = 0.5  # between two refreshes while no item comes


class Watch(Protocol):
    """Passes items on, showing progress. `files`: those that the items are read from."""

    def __call__(self, items: Iterable[T], what: str, files: Sequence[str] = ()) -> Iterable[T]: ...


def watch_nothing(items: Iterable[T], what: str, files: Sequence[str] = ()) -> Iterable[T]:
    """The items, without progress."""
    return items


_lock = threading.RLock()
_open: list["Progress | _Screen"] = []
"""What draws on the screen in this process, innermost last: only the last one is shown."""


@dataclass(frozen=True)
class _Place:
    """How far the work is: items, and the share of the whole if it is known."""

    done: float = 0.0
    share: float | None = None

    def toward(self, other: "_Place", part: float) -> "_Place":
        """The place at this part of the way to another."""
        share = None if other.share is None else (self.share or 0.0) + (other.share - (self.share or 0.0)) * part
        return _Place(self.done + (other.done - self.done) * part, share)


class Progress:
    """The progress of one piece of work, shown while the `with` block runs.

    `total` is the number of items, if it is known. `share` may tell the share of the work that is done instead, such as
    that of the bytes read. `unit` is what is counted; "bytes" are shown as MB. A bar inside another one replaces it
    until it ends. Without any count, the time so far is shown.

    >>> with Progress("adding", total=3) as bar:
    ...     sum(bar.over([1, 2, 3]))
    6
    """

    def __init__(
        self,
        what: str,
        total: float | None = None,
        unit: str = "",
        *,
        share: Share = lambda: None,
        clock: Clock | None = None,
        display: Callable[[], Display | None] | None = None,
    ) -> None:
        self._what, self._total, self._unit, self._share = what, total, unit, share
        self._clock, self._new_display = clock or monotonic, display or _find_display
        self._began = self._checked = self._clock()
        self._first: tuple[float, _Place] | None = None
        """When the first items came, and where that was: loading a model before it does not count for the rate."""
        self._count = 0
        self._place = _Place()
        self._ahead: tuple[_Place, _Place] | None = None
        """What was finished and what was read when the engine began with what it has read ahead."""
        self._display: Display | None = None
        self._ended = threading.Event()

    def __enter__(self) -> "Progress":
        with _lock:
            _open.append(self)
        self._display = self._new_display()
        if self._display is not None:
            threading.Thread(target=self._beat, daemon=True).start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._ended.set()
        with _lock:
            if self._display is not None:
                is_whole = kind is None or issubclass(kind, GeneratorExit)
                if is_whole and self._ahead is not None:
                    self._place = _Place(self._count, self._share())
                with suppress(OSError, ValueError):  # standard error is closed
                    self._display.end(self._snapshot(self._clock(), "in all" if is_whole else "until it stopped"))
                self._display = None
            _open.remove(self)

    def over(self, items: Iterable[T]) -> Iterator[T]:
        """The items. An item counts as done when the next one is asked for."""
        return self._over(items) if self._display is not None else iter(items)

    def _over(self, items: Iterable[T]) -> Generator[T, None, None]:
        self._start()
        due = every = 1
        for item in items:
            yield item
            self._count += 1
            if self._count >= due:
                every = self._check(every)
                due = self._count + every
        self._check(every)

    def at(self, done: float, total: float | None = None) -> None:
        """Tell how far the work is, for example in bytes."""
        self._total = total or self._total
        if self._place.done > done:  # another pass over the files
            self._first = None
        self._place = _Place(done)
        self._start()
        self._refresh(self._clock())

    def tick(self, finished: int, read: int) -> None:
        """Tell that `finished` of the `read` sequences that were read ahead are computed."""
        if not self._count:  # it does not count the items that are read
            return
        place = _Place(self._count, self._share())
        if self._ahead is None:
            self._ahead = _Place(), place
        elif self._ahead[1] != place:
            self._ahead = self._ahead[1], place
        self._place = self._ahead[0].toward(self._ahead[1], finished / read)
        self._refresh(self._clock())

    def _start(self) -> None:
        if self._first is None:
            self._first = self._clock(), self._place

    def _check(self, every: int) -> int:
        """Look at the clock, and return the number of items until the next look."""
        now = self._clock()
        if self._ahead is None:
            self._place = _Place(self._count, self._share())
        self._refresh(now)
        seconds, self._checked = now - self._checked, now
        affordable = every * _CHECK_SECONDS / seconds if seconds > 0 else _MAX_UNCHECKED
        return int(max(1, min(affordable, 2 * every, _MAX_UNCHECKED)))

    def _refresh(self, now: float) -> None:
        if now - self._began < PATIENCE or self._display is None:
            return
        with _lock:
            if self._display is None or not _open or _open[-1] is not self:
                return
            for other in _open[:-1]:
                other.hide()
            with suppress(OSError, ValueError):
                self._display.show(self._snapshot(now))

    def _beat(self) -> None:
        while not self._ended.wait(_BEAT_SECONDS):
            self._refresh(self._clock())

    def hide(self) -> None:
        """Leave the screen to another bar for a while."""
        with _lock:
            if self._display is not None:
                self._display.hide()

    def _snapshot(self, now: float, end: str = "") -> Snapshot:
        since, first = self._first or (now, _Place())
        share = self._place.done / self._total if self._total else self._place.share
        before = first.done / self._total if self._total else first.share or 0.0
        seconds, gained = now - since, self._place.done - first.done
        left = None
        if share is not None and before < share < 1 and seconds > 0:
            left = (1 - share) * seconds / (share - before)
        rate = gained / seconds if gained > 0 and seconds > 0 else None
        return Snapshot(
            self._what, self._place.done, self._total, self._unit, share, rate, now - self._began, left, end
        )


def progress(items: Iterable[T], what: str, total: float | None = None, unit: str = "") -> Iterator[T]:
    """The items, with their progress shown. An item counts as done when the next one is asked for.

    >>> list(progress(["a", "b"], "reading"))
    ['a', 'b']
    """
    if total is None and isinstance(items, Sized):
        total = len(items)
    with Progress(what, total, unit) as bar:
        yield from bar.over(items)


@dataclass(frozen=True)
class _Screen:
    hide: Callable[[], None]


@contextmanager
def taken_screen(hide: Callable[[], None]) -> Iterator[None]:
    """For another display on standard error, such as that of training: `hide` is called when a bar is shown over it."""
    screen = _Screen(hide)
    with _lock:
        _open.append(screen)
    try:
        yield
    finally:
        with _lock:
            _open.remove(screen)


def hide_bar() -> None:
    """Erase the bar before a message is printed; the next item brings it back."""
    with _lock:
        if _open:
            _open[-1].hide()


def interactive_progress(what: str, total: float | None = None, unit: str = "") -> Progress:
    """As `Progress`, but shown in a notebook or on a terminal only: nothing if standard error goes elsewhere."""

    def find() -> Display | None:
        found = _find_display()
        return None if isinstance(found, Plain) else found

    return Progress(what, total, unit, display=find)


@contextmanager
def notebook_progress(what: str, total: float | None = None, unit: str = "") -> Iterator[Progress]:
    """As `Progress`, but shown in a notebook only: for functions of the library."""
    bar = Progress(what, total, unit)
    if not in_jupyter():
        yield bar  # which was not entered, and so shows nothing
        return
    with bar:
        yield bar


def in_notebook(items: Iterable[T], what: str, total: float | None = None) -> Iterable[T]:
    """The items, with their progress shown if this is a notebook; elsewhere the same object."""
    return progress(items, what, total) if in_jupyter() else items


def tick(finished: int, read: int) -> None:
    """Tell the innermost bar that `finished` of the `read` sequences that were read ahead are computed.

    The inference engine reads far ahead of what it computes, so that the items asked for are not those that are done.
    It calls this before every batch, the first time with 0.
    """
    with _lock:
        listener = _listeners[-1] if _listeners else None
        bar = _open[-1] if _open else None
    if listener is not None:
        listener(finished, read)
    elif isinstance(bar, Progress):
        bar.tick(finished, read)


_listeners: list[Callable[[int, int], None]] = []
"""Those that get every `tick` instead of a bar, innermost last."""


@contextmanager
def hear_ticks(listener: Callable[[int, int], None]) -> Iterator[None]:
    """Inside this block every `tick` goes to the listener: to work whose progress is shown elsewhere."""
    with _lock:
        _listeners.append(listener)
    try:
        yield
    finally:
        with _lock:
            _listeners.remove(listener)


def is_first_process() -> bool:
    """Whether this process is the one that reports: torchrun starts several, which all do and read the same."""
    return os.environ.get("RANK", "0") == "0"


def _find_display() -> Display | None:
    if not is_first_process():
        return None
    if in_jupyter():
        return Notebook()
    if sys.stderr is None:
        return None
    return Terminal() if sys.stderr.isatty() and os.environ.get("TERM") not in ("dumb", "unknown") else Plain()
