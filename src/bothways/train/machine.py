"""The device: which, how fast, how exactly; and the signals that end a run politely."""

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

DTYPES = {"fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}


def pick_device(wanted: str, ranks: Ranks) -> torch.device:
    """The device to train on: a GPU if there is one, unless said."""
    if wanted == "cuda" and not torch.cuda.is_available():
        raise BothwaysError("run.device is cuda, and torch finds no GPU here")
    kind = wanted if wanted != "auto" else "cuda" if torch.cuda.is_available() else "cpu"
    return torch.device(kind, ranks.local) if kind == "cuda" else torch.device(kind)


def pick_precision(wanted: str, device: torch.device) -> str:
    """bf16 on a GPU that has it, fp32 elsewhere, unless said."""
    if wanted != "auto":
        return wanted
    return "bf16" if device.type == "cuda" and torch.cuda.is_bf16_supported() else "fp32"


def measure_ceiling(device: torch.device, dtype: torch.dtype) -> float:
    """Floating-point operations a second of a plain matrix product: the best of a few, within a second or so."""
    size = 4096 if device.type == "cuda" else 512
    a, b = (torch.randn(size, size, device=device, dtype=dtype) for _ in range(2))
    best, first = math.inf, time.perf_counter()
    for _ in range(6 if device.type == "cuda" else 30):  # a CPU's cores may be busy with something else
        if time.perf_counter() - first > 1:  # 16 bit on a CPU that has none: a second for each product
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
    """In this block, only kernels that give the same bits every time."""
    filling: Any = torch.utils.deterministic
    before = torch.are_deterministic_algorithms_enabled(), filling.fill_uninitialized_memory
    if wanted:
        os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")  # without it cuBLAS refuses
        torch.use_deterministic_algorithms(True)
        filling.fill_uninitialized_memory = False  # finds bugs, costs time, changes no result
    try:
        yield
    finally:
        torch.use_deterministic_algorithms(before[0])
        filling.fill_uninitialized_memory = before[1]


@contextmanager
def interruptible() -> Iterator[threading.Event]:
    """SIGTERM and the first Ctrl-C only ask the loop to save and stop; a second one means it."""
    asked = threading.Event()
    if threading.current_thread() is not threading.main_thread():
        yield asked
        return
    usual = {kind: signal.getsignal(kind) for kind in (signal.SIGINT, signal.SIGTERM)}

    def ask(kind: int, frame: object) -> None:
        asked.set()
        signal.signal(kind, usual[signal.Signals(kind)])

    for kind in usual:
        signal.signal(kind, ask)
    try:
        yield asked
    finally:
        for kind, handler in usual.items():
            signal.signal(kind, handler)
