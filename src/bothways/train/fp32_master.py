"""What the optimiser updates: the module's own parameters, or fp32 master weights of 16-bit ones.

In bf16 on a GPU the module computes with bf16 weights, and every tensor between its layers is bf16: 5 % faster than
casting fp32 weights in each step (benchmarks/pretrain_speed.py). An optimiser step is smaller than bf16 can resolve,
so it updates fp32 master weights, and the module gets rounded copies. Gradients are summed in fp32.
"""

import torch
from torch import Tensor, nn


class MasterWeights:
    """The parameters by name, as the optimiser updates them."""

    def __init__(self, module: nn.Module, half: torch.dtype | None) -> None:
        own = {_unwrapped(name): p for name, p in module.named_parameters()}
        self.named: dict[str, nn.Parameter] = own
        self._rounded: list[nn.Parameter] = []
        if half is None:
            return
        self.named = {name: nn.Parameter(p.detach().clone(), requires_grad=p.requires_grad) for name, p in own.items()}
        module.to(half)
        self._rounded = list(own.values())

    @property
    def is_own(self) -> bool:
        """Whether these are the module's own parameters rather than master weights."""
        return not self._rounded

    @property
    def trained(self) -> dict[str, nn.Parameter]:
        return {name: p for name, p in self.named.items() if p.requires_grad}

    def gather(self) -> None:
        """Move the gradients of a backward pass from the module to the master weights, adding them up."""
        pairs = [(m, p) for m, p in zip(self.named.values(), self._rounded, strict=False) if p.grad is not None]
        if not pairs:
            return
        grads = [torch.empty_like(master) for master, _ in pairs]
        torch._foreach_copy_(grads, [_gradient(rounded) for _, rounded in pairs])
        later = [(master, grad) for (master, _), grad in zip(pairs, grads, strict=True) if master.grad is not None]
        for (master, rounded), grad in zip(pairs, grads, strict=True):
            if master.grad is None:
                master.grad = grad
            rounded.grad = None
        if later:
            torch._foreach_add_([_gradient(master) for master, _ in later], [grad for _, grad in later])

    def publish(self) -> None:
        """Copy the rounded master weights into the module."""
        if self._rounded:
            with torch.no_grad():
                torch._foreach_copy_([*self._rounded], [*self.named.values()])


def _gradient(parameter: nn.Parameter) -> Tensor:
    assert parameter.grad is not None
    return parameter.grad


def _unwrapped(name: str) -> str:
    """The parameter's name without the prefixes of torch.compile and DDP."""
    return name.replace("_orig_mod.", "").removeprefix("module.")
