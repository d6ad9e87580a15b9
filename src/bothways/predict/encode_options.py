"""The choices of `encode`, in a file that does not import torch, so that the command line's help stays fast."""

from typing import Literal

from bothways.model.pooling_modes import PoolingMode

Combine = Literal["concat", "sum", "mean"]
Pool = PoolingMode
Per = Literal["token", "word"]
Unit = Literal["text", "token", "word"]
Long = Literal["error", "cut", "window"]
