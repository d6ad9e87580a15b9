"""What the optimiser moves: the module's own parameters, or fp32 masters of 16-bit ones.

In bf16 on a GPU the module computes with bf16 weights, and every tensor between its layers is bf16: 5 % faster than
casting fp32 weights in each step (benchmarks/pretrain_speed.py). A step of the optimiser is smaller than bf16 can
resolve, so it moves fp32 masters, of which the module gets rounded copies. Gradients are summed in fp32.
"""

import torch
from torch import Tensor, nn


class MasterWeights:
    """The parameters by name, as the optimiser sees them."""

    def __init__(self, module: nn.Module, half: torch.dtype | None) -> None:
        own = {_plain(name): p for name, p in module.named_parameters()}
        self.named: dict[str, nn.Parameter] = own
        self._rounded: list[nn.Parameter] = []
        if half is None:
            return
        self.named = {name: nn.Parameter(p.detach().clone(), requires_grad=p.requires_grad) for name, p in own.items()}
        module.to(half)
        self._rounded = list(own.values())

    @property
    def is_own(self) -> bool:
        """Whether these are the module's own parameters, and not masters."""
        return not self._rounded

    @property
    def trained(self) -> dict[str, nn.Parameter]:
        return {name: p for name, p in self.named.items() if p.requires_grad}

    def gather(self) -> None:
        """Add the gradients that a backward pass left in the module to those of the masters."""
        pairs = [(m, p) for m, p in zip(self.named.values(), self._rounded, strict=False) if p.grad is not None]
        if not pairs:
            return
        fresh = [torch.empty_like(master) for master, _ in pairs]
        torch._foreach_copy_(fresh, [_gradient(rounded) for _, rounded in pairs])
        later = [(master, grad) for (master, _), grad in zip(pairs, fresh, strict=True) if master.grad is not None]
        for (master, rounded), grad in zip(pairs, fresh, strict=True):
            if master.grad is None:
                master.grad = grad
            rounded.grad = None
        if later:
            torch._foreach_add_([_gradient(master) for master, _ in later], [grad for _, grad in later])

    def publish(self) -> None:
        """Give the module rounded copies of the masters."""
        if self._rounded:
            with torch.no_grad():
                torch._foreach_copy_([*self._rounded], [*self.named.values()])


def _gradient(parameter: nn.Parameter) -> Tensor:
    assert parameter.grad is not None
    return parameter.grad


def _plain(name: str) -> str:
    """The name it had before anything was wrapped around the module."""
    return name.replace("_orig_mod.", "").removeprefix("module.")
