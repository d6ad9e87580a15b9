"""An iterator that works ahead in a thread of its own."""

import queue
import threading
from collections.abc import Generator, Iterable
from typing import TypeVar

Item = TypeVar("Item")


def ahead(items: Iterable[Item], depth: int) -> Generator[Item, None, None]:
    """The same items, up to `depth` of them made before they are asked for.

    An exception comes out where its item would have. When the reader stops early, so does the thread,
    as soon as it has made the item it is at.

    >>> from bothways.ahead import ahead
    >>> list(ahead(range(3), depth=2))
    [0, 1, 2]
    """
    made: queue.Queue[tuple[Item | None, BaseException | None]] = queue.Queue(depth)
    stop = threading.Event()

    def put(item: Item | None, error: BaseException | None) -> None:
        while not stop.is_set():
            try:
                made.put((item, error), timeout=0.1)
                return
            except queue.Full:
                continue

    def work() -> None:
        try:
            for item in items:
                put(item, None)
                if stop.is_set():
                    return
            put(None, StopIteration())
        except BaseException as error:
            put(None, error)

    thread = threading.Thread(target=work, daemon=True)
    thread.start()
    try:
        while True:
            item, error = made.get()
            if isinstance(error, StopIteration):
                return
            if error is not None:
                raise error
            yield item  # type: ignore[misc]
    finally:
        stop.set()
        thread.join(1)  # no longer: it may wait for standard input, which may never come
