"""The device, its precision and speed, and the signals that end a run."""

import math
import os
import signal
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch

from bothways.errors import BothwaysError
from bothways.train.ranks import Ranks


def pick_device(wanted: str, ranks: Ranks) -> torch.device:
    """The device to train on; "auto": a GPU if there is one."""
    if wanted == "cuda" and not torch.cuda.is_available():
        raise BothwaysError("run.device is cuda, but torch finds no GPU: set run.device to cpu", "no-gpu", wanted)
    kind = wanted if wanted != "auto" else "cuda" if torch.cuda.is_available() else "cpu"
    return torch.device(kind, ranks.local) if kind == "cuda" else torch.device(kind)


def pick_precision(wanted: str, device: torch.device) -> str:
    """The precision to train in; "auto": bf16 on a GPU that supports it, fp32 elsewhere."""
    if wanted != "auto":
        return wanted
    return "bf16" if device.type == "cuda" and torch.cuda.is_bf16_supported() else "fp32"


def measure_ceiling(device: torch.device, dtype: torch.dtype) -> float:
    """Floating-point operations per second of a matrix product: the best of several in about a second."""
    size = 4096 if device.type == "cuda" else 512
    a, b = (torch.randn(size, size, device=device, dtype=dtype) for _ in range(2))
    best, first = math.inf, time.perf_counter()
    for _ in range(6 if device.type == "cuda" else 30):  # the CPU may be busy with something else
        if time.perf_counter() - first > 1:  # a CPU without 16-bit support takes a second for each product
            break
        _wait(device)
        begin = time.perf_counter()
        torch.mm(a, b)
        _wait(device)
        best = min(best, time.perf_counter() - begin)
    return 2 * size**3 / best


def _wait(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)


@contextmanager
def deterministic(wanted: bool) -> Iterator[None]:
    """Use only deterministic kernels in this block."""
    filling: Any = torch.utils.deterministic
    before = torch.are_deterministic_algorithms_enabled(), filling.fill_uninitialized_memory
    if wanted:
        os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")  # without it cuBLAS refuses
        torch.use_deterministic_algorithms(True)
        filling.fill_uninitialized_memory = False  # a debugging aid that costs time and changes no result
    try:
        yield
    finally:
        torch.use_deterministic_algorithms(before[0])
        filling.fill_uninitialized_memory = before[1]


@contextmanager
def interruptible() -> Iterator[threading.Event]:
    """SIGTERM and the first Ctrl-C set the event, so that the loop saves and stops; a second one ends the process."""
    requested = threading.Event()
    if threading.current_thread() is not threading.main_thread():
        yield requested
        return
    usual = {kind: signal.getsignal(kind) for kind in (signal.SIGINT, signal.SIGTERM)}

    def request(kind: int, frame: object) -> None:
        requested.set()
        signal.signal(kind, usual[signal.Signals(kind)])

    for kind in usual:
        signal.signal(kind, request)
    try:
        yield requested
    finally:
        for kind, handler in usual.items():
            signal.signal(kind, handler)
