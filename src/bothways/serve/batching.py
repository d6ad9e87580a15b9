"""Continuous batching: what arrives while a batch computes becomes the next one, under a token budget, without a timer.

One thread computes for each model. A batch takes an item of each waiting request in turn, so that a single text does
not wait for a request with thousands; a request that does not fit goes on in the next batch.
"""

import asyncio
import time
from collections import deque
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass, field
from threading import Condition, Thread
from typing import Any

Run = Callable[[Sequence[Any]], Sequence[Any]]
OnBatch = Callable[[str, int, int, float], None]
"""Called after each batch with the model, its items, its tokens and its seconds."""


@dataclass(frozen=True)
class Work:
    """The items of a request, and what answers them."""

    key: Hashable
    """Items of works with equal keys may be computed together."""
    run: Run
    """Items → one result each, in order."""
    items: Sequence[Any]
    costs: Sequence[int]
    """Tokens of each item."""


@dataclass(eq=False)
class Job:
    """A work on its way, and its results."""

    work: Work
    loop: asyncio.AbstractEventLoop
    future: "asyncio.Future[list[Any]]"
    since: float = field(default_factory=time.monotonic)
    taken: int = 0
    """Items that were given to a batch."""
    done: int = 0
    results: list[Any] = field(default_factory=list)
    is_over: bool = False
    """Nobody waits for it any more, or it failed."""
    waited: float = 0.0
    """Seconds until its first item was taken."""

    def drop(self) -> None:
        """Give up what was not computed yet."""
        self.is_over = True
        self.future.cancel()

    def add(self, results: Sequence[Any]) -> None:
        """Further results, in order; with the last ones the job is done."""
        self.results.extend(results)
        self.done += len(results)
        if self.done == len(self.work.items):
            self._tell(lambda: self.future.set_result(self.results))

    def fail(self, error: Exception) -> None:
        self.is_over = True
        self._tell(lambda: self.future.set_exception(error))

    def _tell(self, finish: Callable[[], None]) -> None:
        """Finish the future in its own thread, unless the one who asked is gone."""
        try:
            self.loop.call_soon_threadsafe(lambda: None if self.future.done() else finish())
        except RuntimeError:  # the loop is closed
            self.is_over = True


class Batcher:
    """The queue of a model and the thread that computes for it."""

    def __init__(self, name: str, budget: int, on_batch: OnBatch = lambda *_: None) -> None:
        self.name, self.budget, self._on_batch = name, budget, on_batch
        self._queue: deque[Job] = deque()
        self._changed, self._is_closed = Condition(), False
        self._thread = Thread(target=self._compute, name=f"bothways-{name}", daemon=True)
        self._thread.start()

    @property
    def is_alive(self) -> bool:
        return self._thread.is_alive() and not self._is_closed

    @property
    def waiting(self) -> tuple[int, int]:
        """Requests and tokens that wait."""
        with self._changed:
            left = [sum(job.work.costs[job.taken :]) for job in self._queue if not job.is_over]
        return len(left), sum(left)

    def submit(self, work: Work) -> Job:
        """Queue a work. To be called in a running event loop."""
        loop = asyncio.get_running_loop()
        job = Job(work, loop, loop.create_future())
        if not work.items:
            job.future.set_result([])
            return job
        with self._changed:
            if self._is_closed:
                raise RuntimeError(f"the queue of {self.name} is closed")
            self._queue.append(job)
            self._changed.notify()
        return job

    def close(self, seconds: float | None = None) -> None:
        """Compute what was accepted, then end the thread."""
        with self._changed:
            self._is_closed = True
            self._changed.notify()
        self._thread.join(seconds)

    # ------------------------------------------------------------------ in the thread

    def _compute(self) -> None:
        while batch := self._next():
            started, tokens = time.monotonic(), sum(sum(job.work.costs[first:last]) for job, first, last in batch)
            _run_batch(batch)
            count = sum(last - first for _, first, last in batch)
            self._on_batch(self.name, count, tokens, time.monotonic() - started)
            del batch  # its results are not kept while the thread waits for the next one

    def _next(self) -> "list[_Part]":
        """The parts of the next batch; waits for one. Empty once the queue is closed and done."""
        with self._changed:
            while True:
                while self._queue and self._queue[0].is_over:
                    self._queue.popleft()
                if self._queue:
                    return self._take()
                if self._is_closed:
                    return []
                self._changed.wait()

    def _take(self) -> "list[_Part]":
        """In turn an item of each request like the first one, up to the budget."""
        key = self._queue[0].work.key
        jobs = [job for job in self._queue if not job.is_over and job.work.key == key]
        firsts, left = {id(job): job.taken for job in jobs}, self.budget
        open_jobs, is_first = jobs, True
        while open_jobs:
            still = []
            for job in open_jobs:
                cost = job.work.costs[job.taken]
                if cost <= left or is_first:  # what is longer than the budget is a batch of its own
                    job.taken, left, is_first = job.taken + 1, left - cost, False
                    if job.taken < len(job.work.items):
                        still.append(job)
            open_jobs = still
        batch = [(job, firsts[id(job)], job.taken) for job in jobs if job.taken > firsts[id(job)]]
        self._requeue(batch)
        return batch

    def _requeue(self, batch: "list[_Part]") -> None:
        """Requests that were begun and are not through go to the end, so that others come in between."""
        now, begun = time.monotonic(), {id(job) for job, _, _ in batch}
        for job, first, _ in batch:
            if first == 0:
                job.waited = now - job.since
        rest = [job for job in self._queue if not job.is_over and id(job) not in begun]
        self._queue = deque([*rest, *(job for job, _, last in batch if last < len(job.work.items))])


_Part = tuple[Job, int, int]
"""A job, and its items in a batch: the first, and the one after the last."""


def _run_batch(batch: Sequence[_Part]) -> None:
    """Compute a batch. If it fails, each request is computed by itself, so that only the faulty one fails."""
    items = [item for job, first, last in batch for item in job.work.items[first:last]]
    try:
        results = batch[0][0].work.run(items)
        if len(results) != len(items):
            raise ValueError(f"{len(results)} results for {len(items)} items")
    except Exception as error:  # of whatever kind: the thread must live on
        if len(batch) == 1:
            batch[0][0].fail(error)
        else:
            for part in batch:
                _run_batch([part])
        return
    place = 0
    for job, first, last in batch:
        job.add(results[place : place + last - first])
        place += last - first
