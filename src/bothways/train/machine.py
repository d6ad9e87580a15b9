"""The device, its precision and speed, and the signals that end a run."""

import math
import os
import re
import signal
import threading
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


_PEAKS = {
    "B200": 2250e12,
    "GH200": 989e12,
    "H200": 989e12,
    "H100 NVL": 835e12,
    "H100 PCIe": 756e12,
    "H100": 989e12,
    "H800": 989e12,
    "A100": 312e12,
    "A800": 312e12,
    "A40": 149.7e12,
    "A30": 165e12,
    "A10": 125e12,
    "L40S": 362e12,
    "L40": 181e12,
    "L4": 121e12,
}
"""Dense 16-bit operations per second of a GPU, as its data sheet says; of names that match, the first."""


def peak_flops(device: torch.device, precision: str) -> float:
    """Floating-point operations per second that the device can do at most; nan if that is not known.

    >>> peak_flops(torch.device("cpu"), "fp32")
    nan
    """
    if device.type != "cuda" or precision not in ("bf16", "fp16"):
        return math.nan
    name = torch.cuda.get_device_name(device)
    return next((peak for known, peak in _PEAKS.items() if re.search(rf"\b{known}\b", name)), math.nan)


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
