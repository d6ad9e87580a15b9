"""The number of CPU threads: one for small work, torch's own for the rest, and what the user says above all."""

import os
import threading
from collections.abc import Iterator
from typing import Any

import pytest
import torch

import bothways
from bothways.engine import threads
from bothways.model.config import ModelConfig
from bothways.model.model import Model
from bothways.text.tokenizer import Tokenizer
from helpers import TINY, refused
from helpers.cli import Run

PER_TOKEN = TINY.layers * TINY.block_weights


@pytest.fixture(autouse=True)
def two_cores(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """A machine with two cores on which nobody chose a number of threads."""
    before = torch.get_num_threads()
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    monkeypatch.setattr(os, "sched_getaffinity", lambda process: {0, 1}, raising=False)
    monkeypatch.setattr(threads, "SMALL", 20.0 * PER_TOKEN)
    torch.set_num_threads(2)
    yield
    bothways.set_threads(None)
    torch.set_num_threads(before)


@pytest.fixture
def seen(tokenizer: Tokenizer, monkeypatch: pytest.MonkeyPatch) -> Any:
    """A function: texts → the number of threads that each of its forward passes had."""
    model = Model.new(ModelConfig(TINY, ()), tokenizer).eval()
    found: list[int] = []
    model.encoder.register_forward_pre_hook(lambda *_: found.append(torch.get_num_threads()))

    def encode(*texts: str) -> list[int]:
        found.clear()
        bothways.encode(list(texts), model)
        return list(found)

    return encode


def test_small_work_gets_one_thread_and_leaves_no_trace(seen: Any) -> None:
    assert seen("the cat") == [1]
    assert torch.get_num_threads() == 2
    assert seen("the cat " * 12) == [2]
    assert seen(*["the cat"] * 9) == [2]


@pytest.mark.parametrize("variable", ["OMP_NUM_THREADS", "MKL_NUM_THREADS"])
def test_a_number_in_the_environment_holds(seen: Any, variable: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(variable, "2")
    assert seen("the cat") == [2]


def test_a_number_that_torch_was_told_holds(seen: Any) -> None:
    most = 3 + torch.get_num_interop_threads()
    torch.set_num_threads(most)
    assert seen("the cat") == [most]
    assert seen("the cat " * 12) == [most]


def test_set_threads_holds_for_all_work_until_it_is_taken_back(seen: Any) -> None:
    bothways.set_threads(3)
    bothways.set_threads(2)
    assert seen("the cat") == [2]
    bothways.set_threads(1)
    assert seen("the cat " * 12) == [1]
    bothways.set_threads(None)
    assert torch.get_num_threads() == 2
    assert seen("the cat") == [1]
    with refused("out-of-range", 10**20):
        bothways.set_threads(10**20)
    with refused("out-of-range", 0):
        bothways.set_threads(0)


def test_a_thread_that_begins_during_small_work_is_not_held_to_one(seen: Any) -> None:
    """torch gives a new thread the number that it has at the moment."""
    later: list[int] = []

    def work() -> None:
        torch.get_num_threads()  # as the first computation of a thread does
        later.extend(seen("the cat " * 12))

    with threads.threads_for(1, TINY):
        thread = threading.Thread(target=work)
        thread.start()
        thread.join()
    assert later == [2]
    assert torch.get_num_threads() == 2


def test_an_error_within_gives_the_threads_back() -> None:
    with pytest.raises(KeyError), threads.threads_for(1, TINY):
        raise KeyError
    assert torch.get_num_threads() == 2


def test_the_option_of_the_command_line(seen: Any, run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    found = []

    def look(*_: Any, **__: Any) -> Any:
        found.append((torch.get_num_threads(), os.environ["OMP_NUM_THREADS"]))
        return iter(())

    monkeypatch.setattr("bothways.predict.likelihood.read_minimal_pairs", look)
    run("blimp", "none.jsonl", "--threads", 3)
    assert found == [(3, "3")]
    assert (torch.get_num_threads(), os.environ.get("OMP_NUM_THREADS")) == (2, None)
