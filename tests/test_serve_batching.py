"""Continuous batching: what goes into a batch, in which order, and what happens to what fails or is given up."""

import asyncio
import threading
from collections.abc import Coroutine, Iterator, Sequence
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bothways.serve.batching import Batcher, Job, Work


class Double:
    """Doubles numbers, and remembers the batches. The first waits until it is let go."""

    def __init__(self) -> None:
        self.batches: list[list[int]] = []
        self.begun, self.go = threading.Event(), threading.Event()

    def __call__(self, items: Sequence[int]) -> Sequence[int]:
        self.batches.append(list(items))
        self.begun.set()
        assert self.go.wait(30)
        if -1 in items:
            raise ValueError("-1 is poison")
        return [2 * item for item in items]


@pytest.fixture
def double() -> Iterator[Double]:
    one = Double()
    yield one
    one.go.set()


def run(work: Coroutine[Any, Any, Any]) -> Any:
    return asyncio.run(asyncio.wait_for(work, 30))


async def begin(batcher: Batcher, double: Double) -> Job:
    """A first job that computes until `double.go` is set, so that all others wait together."""
    first = batcher.submit(Work("first", double, [0], [1]))
    await asyncio.to_thread(double.begun.wait, 30)
    return first


def work(double: Double, items: Sequence[int], cost: int = 1, key: str = "a") -> Work:
    return Work(key, double, items, [cost] * len(items))


def test_what_waits_is_one_batch(double: Double) -> None:
    async def scene() -> None:
        batcher = Batcher("m", budget=100)
        await begin(batcher, double)
        jobs = [batcher.submit(work(double, [i, i + 10])) for i in range(1, 4)]
        assert batcher.waiting == (3, 6)
        double.go.set()
        assert [await job.future for job in jobs] == [[2, 22], [4, 24], [6, 26]]
        batcher.close()

    run(scene())
    assert double.batches == [[0], [1, 11, 2, 12, 3, 13]]


def test_the_budget_holds_and_everybody_gets_a_turn(double: Double) -> None:
    """A request of eight items does not hold up one of one item; what is over the budget alone is a batch."""

    async def scene() -> None:
        batcher = Batcher("m", budget=30)
        await begin(batcher, double)
        long = batcher.submit(work(double, range(1, 9), cost=10))
        short = batcher.submit(work(double, [50], cost=10))
        huge = batcher.submit(work(double, [60], cost=99))
        double.go.set()
        await asyncio.gather(long.future, short.future, huge.future)
        assert long.future.result() == [2 * i for i in range(1, 9)]
        batcher.close()

    run(scene())
    assert double.batches[1] == [1, 2, 50]
    assert [60] in double.batches
    assert all(len(batch) <= 3 for batch in double.batches)


def test_works_of_another_kind_are_another_batch_and_come_in_between(double: Double) -> None:
    async def scene() -> None:
        batcher = Batcher("m", budget=2)
        await begin(batcher, double)
        jobs = [batcher.submit(work(double, [1, 2, 3, 4])), batcher.submit(work(double, [9], key="b"))]
        double.go.set()
        await asyncio.gather(*(job.future for job in jobs))
        batcher.close()

    run(scene())
    assert double.batches == [[0], [1, 2], [9], [3, 4]]


def test_only_the_faulty_request_fails(double: Double) -> None:
    async def scene() -> None:
        batcher = Batcher("m", budget=100)
        await begin(batcher, double)
        good, bad, other = (batcher.submit(work(double, items)) for items in ([1, 2], [3, -1], [4]))
        double.go.set()
        assert await good.future == [2, 4]
        assert await other.future == [8]
        with pytest.raises(ValueError, match="poison"):
            await bad.future
        assert batcher.is_alive
        batcher.close()

    run(scene())


def test_what_is_given_up_is_not_computed(double: Double) -> None:
    async def scene() -> None:
        batcher = Batcher("m", budget=100)
        await begin(batcher, double)
        dropped, kept = batcher.submit(work(double, [1])), batcher.submit(work(double, [2]))
        dropped.drop()
        assert batcher.waiting == (1, 1)
        double.go.set()
        assert await kept.future == [4]
        batcher.close()

    run(scene())
    assert double.batches == [[0], [2]]


def test_a_closed_queue_computes_what_it_accepted(double: Double) -> None:
    async def scene() -> None:
        batcher = Batcher("m", budget=1)
        first = await begin(batcher, double)
        later = batcher.submit(work(double, [1, 2, 3]))
        double.go.set()
        await asyncio.to_thread(batcher.close)
        assert (await first.future, await later.future) == ([0], [2, 4, 6])
        with pytest.raises(RuntimeError):
            batcher.submit(work(double, [1]))
        assert not batcher.is_alive

    run(scene())


def test_a_wrong_number_of_results_is_an_error() -> None:
    async def scene() -> None:
        batcher = Batcher("m", budget=10)
        with pytest.raises(ValueError, match="1 results for 2 items"):
            await batcher.submit(Work("a", lambda items: items[:1], [1, 2], [1, 1])).future
        batcher.close()

    run(scene())


jobs = st.lists(
    st.tuples(st.sampled_from("ab"), st.lists(st.integers(0, 40), min_size=1, max_size=6), st.booleans()), max_size=12
)


@settings(max_examples=60)
@given(jobs, st.integers(1, 60))
def test_any_requests_are_answered_in_order_and_within_the_budget(
    given_jobs: list[tuple[str, list[int], bool]], budget: int
) -> None:
    """Costs are the numbers themselves; some requests are given up while they wait."""
    double = Double()

    async def scene() -> None:
        batcher = Batcher("m", budget)
        await begin(batcher, double)
        submitted = [batcher.submit(Work(key, double, items, items)) for key, items, _ in given_jobs]
        for job, (_, _, is_dropped) in zip(submitted, given_jobs, strict=True):
            if is_dropped:
                job.drop()
        double.go.set()
        for job, (_, items, is_dropped) in zip(submitted, given_jobs, strict=True):
            if not is_dropped:
                assert await job.future == [2 * item for item in items]
        await asyncio.to_thread(batcher.close)

    run(scene())
    assert all(sum(batch) <= budget or len([item for item in batch if item]) == 1 for batch in double.batches[1:])
    computed = sorted(item for batch in double.batches[1:] for item in batch)
    assert computed == sorted(item for _, items, is_dropped in given_jobs if not is_dropped for item in items)
