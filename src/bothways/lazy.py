"""Modules that are imported when they are first used: answers from exported folders need no torch.

`torch`, `F` (torch.nn.functional) and `Tensor` are for files that answers from graphs pass through, and that compute
with torch only where a model with weights is used. Files that are about such models import torch themselves.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from bothways.errors import BothwaysError, needs

if TYPE_CHECKING:
    import torch as torch
    from torch import Tensor as Tensor
    from torch.nn import functional

    F = functional


class Lazy:
    """Stands for a module until an attribute of it is used.

    >>> numbers = Lazy("math")
    >>> numbers.pi
    3.141592653589793
    """

    def __init__(self, name: str) -> None:
        self._name = name

    def __getattr__(self, name: str) -> Any:
        found = getattr(imported(self._name), name)
        setattr(self, name, found)
        return found


def imported(name: str) -> Any:
    """A module that imports torch, or torch; without torch an error that says what to install."""
    try:
        return import_module(name)
    except ModuleNotFoundError as error:
        raise without_torch(error) from None


def fill() -> None:
    """Give `torch` and `F` all attributes now: an import in a compiled function would break it in two."""
    for lazy in (torch, F):
        name = vars(lazy)["_name"]
        vars(lazy).update({**vars(import_module(name)), "_name": name})


def without_torch(error: ModuleNotFoundError) -> Exception:
    """The error about a missing torch; an error about another module as it is."""
    if (error.name or "").partition(".")[0] != "torch":
        return error
    says = f"{needs('this', 'torch')}; without it, predict, evaluate, fill, encode, rerank and serve open folders of"
    return BothwaysError(f"{says} `bothways export`", "missing-package", "torch")


if not TYPE_CHECKING:
    torch, F = Lazy("torch"), Lazy("torch.nn.functional")
    Tensor = Any
