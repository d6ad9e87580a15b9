"""The choices that `encode` offers. Apart, so that the command line can show them without loading torch."""

from typing import Literal

Combine = Literal["concat", "sum", "mean"]
Pool = Literal["mean", "max", "cls"]
Per = Literal["token", "word"]
Unit = Literal["text", "token", "word"]
Long = Literal["error", "cut", "window"]
