"""The number of CPU threads of a forward pass, chosen by its size.

torch takes all cores for every matrix product. For one short text that gains little on two idle cores; on busy ones
each product waits for the slowest thread, and a text that takes 20 ms with one thread takes 300 to 480 with two.
"""

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from threading import Lock

from bothways.errors import require_range
from bothways.lazy import torch
from bothways.model.config import EncoderConfig

SMALL = 1e9
"""Multiplications of a forward pass that one thread does: at most some 60 ms, of which a second core, if it is idle,
would save a quarter to two fifths (benchmarks/threads.py)."""
_LOCK = Lock()
_WANTED: list[int] = []
"""What `set_threads` was told."""
_BEFORE: list[int] = []
"""The number of threads before that."""
_USUAL: list[int] = []
"""The number outside of small work, while a thread of this process does some. torch gives a new thread the number that
it has at the moment, so one that begins to compute meanwhile would keep one thread for all it does."""


def set_threads(number: int | None) -> None:
    """Compute on this many CPU threads, whatever the size of the work; None: one thread for small work, as by default.

    `torch.set_num_threads` with another number than that of the cores, and OMP_NUM_THREADS, hold too: bothways then
    changes nothing.
    """
    if number is not None:
        require_range("threads", number, 1 <= number <= 4_096, "from 1 to 4,096")
    with _LOCK:
        if number is not None:
            _WANTED[:] = [number]
        else:
            _WANTED.clear()
    if "torch" in sys.modules:
        use_wanted_threads()


def use_wanted_threads() -> None:
    """Tell torch what `set_threads` was told, perhaps before torch was imported."""
    with _LOCK:
        if _WANTED:
            if not _BEFORE:
                _BEFORE.append(torch.get_num_threads())
            torch.set_num_threads(_WANTED[0])
        elif _BEFORE:
            torch.set_num_threads(_BEFORE[0])
            _BEFORE.clear()


def threads_of_graph(tokens: int, shape: EncoderConfig) -> int:
    """The number of threads of ONNX Runtime for a forward pass of this many tokens: chosen as for torch."""
    if _WANTED:
        return _WANTED[0]
    chosen = os.environ.get("OMP_NUM_THREADS", "")
    if chosen.isdigit() and int(chosen):
        return int(chosen)
    return 1 if _is_small(tokens, shape) else _cores()


def _is_small(tokens: int, shape: EncoderConfig) -> bool:
    return tokens * shape.layers * shape.block_weights < SMALL


def _cores() -> int:
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


@contextmanager
def threads_for(tokens: int, shape: EncoderConfig) -> Iterator[None]:
    """Do a forward pass of this many tokens in this block, with one thread if it is small."""
    usual = _threads_of_this()
    if not _is_small(tokens, shape) or usual == 1 or not _is_free(usual):
        yield
        return
    with _LOCK:
        _USUAL.append(usual)
        torch.set_num_threads(1)
    try:
        yield
    finally:
        with _LOCK:
            torch.set_num_threads(_USUAL.pop())


def _threads_of_this() -> int:
    """The number of threads that this one computes with."""
    with _LOCK:
        wanted = _WANTED or _USUAL[:1]
        if wanted and torch.get_num_threads() != wanted[0]:  # it began to compute during small work of another
            torch.set_num_threads(wanted[0])
        return torch.get_num_threads()


def _is_free(usual: int) -> bool:
    """Whether nobody chose a number of threads: it is torch's own, the number of cores."""
    if _WANTED or os.environ.get("OMP_NUM_THREADS") or os.environ.get("MKL_NUM_THREADS"):
        return False
    return usual in (_cores(), torch.get_num_interop_threads())  # logical or physical ones
