"""The choices of `encode`, in a file that does not import torch, so that the command line's help stays fast."""

from typing import Literal

Combine = Literal["concat", "sum", "mean"]
Pool = Literal["mean", "max", "cls"]
Per = Literal["token", "word"]
Unit = Literal["text", "token", "word"]
Long = Literal["error", "cut", "window"]
