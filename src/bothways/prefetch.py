"""An iterator that works ahead in a thread of its own."""

import queue
import threading
from collections.abc import Iterable, Iterator
from typing import Generic, TypeVar

T = TypeVar("T")
_PATIENCE = 0.05  # seconds between two looks at whether the other side has stopped


class prefetch(Iterator[T], Generic[T]):  # noqa: N801 - used like map and zip
    """The same items, up to `depth` of them made before they are asked for.

    An exception comes out where its item would have. `close`, from any thread, ends both sides: the reader gets no
    more items, and the thread makes no more once it is done with the one it is at.

    >>> from bothways.prefetch import prefetch
    >>> list(prefetch(range(3), depth=2))
    [0, 1, 2]
    """

    def __init__(self, items: Iterable[T], depth: int) -> None:
        self._made: queue.Queue[tuple[T | None, BaseException | None]] = queue.Queue(depth)
        self._stop = threading.Event()
        # The thread knows the queue and the flag but not this object, which can so be forgotten while it runs.
        self._thread = threading.Thread(target=_work, args=(items, self._made, self._stop), daemon=True)

    def __next__(self) -> T:
        if self._thread.ident is None and not self._stop.is_set():  # nothing is made before somebody asks
            self._thread.start()
        while not self._stop.is_set():
            try:
                item, error = self._made.get(timeout=_PATIENCE)
            except queue.Empty:
                continue
            if error is None:
                return item  # type: ignore[return-value]
            self.close()
            if isinstance(error, StopIteration):
                break
            raise error
        raise StopIteration

    def close(self) -> None:
        """Stop, and wait a second for the thread: no longer, for it may read from where nothing ever comes."""
        self._stop.set()
        if self._thread.ident is not None and self._thread is not threading.current_thread():
            self._thread.join(1)

    def __del__(self) -> None:
        self._stop.set()


def _work(
    items: Iterable[T], made: "queue.Queue[tuple[T | None, BaseException | None]]", stop: threading.Event
) -> None:
    def put(item: T | None, error: BaseException | None) -> None:
        while not stop.is_set():
            try:
                made.put((item, error), timeout=_PATIENCE)
                return
            except queue.Full:
                continue

    try:
        for item in items:
            put(item, None)
            if stop.is_set():
                return
        put(None, StopIteration())
    except BaseException as error:
        put(None, error)
