"""Iterators that work ahead in a background thread."""

import queue
import threading
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Generic, TypeVar

T = TypeVar("T")
R = TypeVar("R")
_POLL_SECONDS = 0.05  # between two checks whether the other side has stopped


class prefetch(Iterator[T], Generic[T]):  # noqa: N801 - used like map and zip
    """The same items, up to `depth` of them produced in advance.

    An exception is raised where its item would have come. `close`, from any thread, ends both sides: the consumer gets
    no more items, and the thread stops after its current item.

    >>> from bothways.prefetch import prefetch
    >>> list(prefetch(range(3), depth=2))
    [0, 1, 2]
    """

    def __init__(self, items: Iterable[T], depth: int) -> None:
        self._queue: queue.Queue[tuple[T | None, BaseException | None]] = queue.Queue(depth)
        self._stop = threading.Event()
        # The thread has no reference to this object, so that it can be garbage-collected while the thread runs.
        self._thread = threading.Thread(target=_produce, args=(items, self._queue, self._stop), daemon=True)

    def __next__(self) -> T:
        if self._thread.ident is None and not self._stop.is_set():  # the thread starts with the first request
            self._thread.start()
        while not self._stop.is_set():
            try:
                item, error = self._queue.get(timeout=_POLL_SECONDS)
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
        """Stop, and wait a second for the thread: no longer, because it may be blocked in a read."""
        self._stop.set()
        if self._thread.ident is not None and self._thread is not threading.current_thread():
            self._thread.join(1)

    def __del__(self) -> None:
        self._stop.set()


def _produce(
    items: Iterable[T], into: "queue.Queue[tuple[T | None, BaseException | None]]", stop: threading.Event
) -> None:
    def put(item: T | None, error: BaseException | None) -> None:
        while not stop.is_set():
            try:
                into.put((item, error), timeout=_POLL_SECONDS)
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


def map_ahead(function: Callable[[T], R], items: Iterable[T], depth: int, threads: int = 1) -> Iterator[R]:
    """`map`, in background threads and up to `depth` results ahead. Items are drawn in the caller's thread.

    >>> from bothways.prefetch import map_ahead
    >>> list(map_ahead(abs, [-1, 2, -3], depth=2))
    [1, 2, 3]
    """
    pool, waiting = ThreadPoolExecutor(threads), deque[Future[R]]()
    try:
        for item in items:
            waiting.append(pool.submit(function, item))
            if len(waiting) > depth:
                yield waiting.popleft().result()
        while waiting:
            yield waiting.popleft().result()
    finally:
        pool.shutdown(wait=False, cancel_futures=True)
