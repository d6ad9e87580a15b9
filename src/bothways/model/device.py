"""The device and the precision of inference, from the names that users write."""

import sys
from functools import cache
from typing import Literal, Union

from bothways.errors import BothwaysError
from bothways.lazy import torch

DTYPES = ("fp32", "bf16", "fp16")
Device = Union["torch.device", str]
Precision = Union["torch.dtype", Literal["auto", "fp32", "bf16", "fp16"], str]


def dtype_of(name: str) -> "torch.dtype":
    """torch's type for one of DTYPES."""
    found: torch.dtype = {"fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}[name]
    return found


def find_device(device: Device) -> "torch.device":
    """A device that is there: auto, cpu, cuda, cuda:1, mps. "auto" is a CUDA GPU if there is one."""
    if device == "auto":
        device = "cuda" if torch.cuda.is_available() else "cpu"
    try:
        found = torch.device(device)
    except (RuntimeError, TypeError):
        found = torch.device("meta")
    if found.type == "meta" or (found.type == "cpu" and found.index):  # cpu:3 is no device: there is one CPU
        raise BothwaysError(
            f"`device` cannot be {device!r}: expected auto, cpu, cuda, cuda:1 or mps", "unknown-choice", device
        )
    if found.type == "cuda" and (found.index or 0) >= torch.cuda.device_count():
        raise BothwaysError(f"`device` is {device}, and torch finds no such GPU", "no-gpu", str(device))
    if found.type == "mps" and not torch.backends.mps.is_available():
        raise BothwaysError("`device` is mps, and torch finds no Apple GPU", "no-gpu", str(device))
    if found.type == "cuda" and found.index is None:
        found = torch.device("cuda", torch.cuda.current_device())
    return found


def find_dtype(dtype: Precision, device: "torch.device") -> "torch.dtype":
    """The precision to compute in: auto, fp32, bf16, fp16, or a dtype of torch.

    "auto" is bf16 on a GPU that computes in it, and fp32, the reference, elsewhere. A CPU computes in bf16 on request.
    """
    if isinstance(dtype, torch.dtype):
        if dtype.is_floating_point:
            return dtype
    elif dtype == "auto":
        # Older GPUs emulate bf16, which is slower than fp32.
        is_native = device.type == "cuda" and torch.cuda.get_device_capability(device) >= (8, 0)
        return torch.bfloat16 if is_native else torch.float32
    elif dtype in DTYPES:
        return dtype_of(dtype)
    raise BothwaysError(f"`dtype` cannot be {dtype!r}: expected auto, {', '.join(DTYPES)}", "unknown-choice", dtype)


def announce(device: "torch.device", dtype: "torch.dtype") -> None:
    """Say once on standard error what "auto" chose, if it is not the CPU in fp32."""
    if device.type == "cpu" and dtype == torch.float32:
        return
    _say_once(device, dtype)


@cache
def _say_once(device: "torch.device", dtype: "torch.dtype") -> None:
    name = torch.cuda.get_device_name(device) if device.type == "cuda" else device.type
    short = next((short for short in DTYPES if dtype_of(short) == dtype), str(dtype).removeprefix("torch."))
    reference = "" if dtype == torch.float32 else "; fp32 is the reference (`dtype`)"
    sys.stderr.write(f"bothways computes on {name} in {short}{reference}\n")
