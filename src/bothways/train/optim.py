"""Optimisers and learning rates.

Decay as in BERT: all matrices and tables, no bias and no norm. `muon` moves the hidden matrices of the blocks by
orthogonalised momentum and leaves the rest to AdamW.
"""

import math
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from bothways.errors import BothwaysError, require_choice

Schedule = Literal["linear", "cosine", "wsd", "constant"]


@dataclass(frozen=True)
class OptimSettings:
    """The `[optim]` part of a recipe; the defaults are BERT's."""

    name: Literal["adamw", "muon"] = "adamw"
    lr: float = 1e-4
    betas: tuple[float, float] = (0.9, 0.999)
    eps: float = 1e-6
    weight_decay: float = 0.01
    clip: float = 1.0
    """The gradient is scaled down to this norm if it is larger; 0 leaves it alone."""
    schedule: Schedule = "linear"
    warmup: float = 0.1
    """The rate rises for so many steps, or for this share of the run if it is below 1."""
    cooldown: float = 0.2
    """For wsd: the share of the run in which the rate falls to zero."""
    head_lr: float = 0.0
    """The rate of everything that is not the encoder; 0: the same."""
    layer_decay: float = 1.0
    """The rate of the last layer is so much of lr (and of muon_lr), that of the layer below so much of this, down to
    the embeddings."""
    muon_lr: float = 0.02
    muon_momentum: float = 0.95
    muon_weight_decay: float = 0.1
    """Muon's steps are as large however small the gradient is. With a tenth of this (and of AdamW's decay, which
    was 0.1 too) matrices grew four times as large: the encoder guessed words as well and fine-tuned badly."""

    def __post_init__(self) -> None:
        require_choice("optim.name", self.name, ("adamw", "muon"))
        require_choice("optim.schedule", self.schedule, ("linear", "cosine", "wsd", "constant"))
        for name in ("lr", "eps", "muon_lr"):
            if not getattr(self, name) > 0:
                raise BothwaysError(f"optim.{name} must be above 0, not {getattr(self, name)}")
        for name in ("weight_decay", "muon_weight_decay", "clip", "warmup", "head_lr"):
            if not getattr(self, name) >= 0:
                raise BothwaysError(f"optim.{name} must be 0 or more, not {getattr(self, name)}")
        if not (len(self.betas) == 2 and all(0 <= beta < 1 for beta in self.betas)):
            raise BothwaysError(f"optim.betas are two numbers from 0 up to 1, not {self.betas}")
        if not 0 < self.layer_decay <= 1:
            raise BothwaysError(f"optim.layer_decay is a number above 0, at most 1, not {self.layer_decay}")
        if not 0 < self.cooldown <= 1:
            raise BothwaysError(f"optim.cooldown is a share of the run above 0, not {self.cooldown}")


def rate(settings: OptimSettings, step: int, done: float) -> float:
    """What the learning rate is multiplied with: `step` counts from 0, `done` is the share of the run behind us.

    >>> from bothways.train.optim import OptimSettings, rate
    >>> [round(rate(OptimSettings(warmup=0.5), step, step / 4), 2) for step in range(5)]
    [0.0, 0.5, 1.0, 0.5, 0.0]
    """
    in_steps = settings.warmup >= 1
    warm = min(1.0, (step + 1) / settings.warmup if in_steps else _share(done, settings.warmup))
    if settings.schedule == "constant":
        return warm
    if settings.schedule == "wsd":
        return min(warm, _share(1 - done, settings.cooldown))
    # Where the rise ends: known as a share, or, in steps, when it has come to an end.
    start = 0.0 if in_steps else settings.warmup
    if in_steps and step:
        start = settings.warmup * done / step
    if warm < 1:
        return warm
    left = _share(1 - done, 1 - start)
    return left if settings.schedule == "linear" else 0.5 - 0.5 * math.cos(math.pi * left)


def _share(part: float, whole: float) -> float:
    return min(max(part / whole, 0.0), 1.0) if whole > 0 else 1.0


def make_optimizers(trained: Mapping[str, nn.Parameter], settings: OptimSettings) -> list[Optimizer]:
    """One optimiser, or two with Muon. Every parameter is in exactly one group of one of them."""
    matrices = {name: p for name, p in trained.items() if settings.name == "muon" and _is_hidden(name, p)}
    rest = {name: p for name, p in trained.items() if name not in matrices}
    layers = 1 + max((int(found[1]) for found in map(_BLOCK.search, trained) if found), default=-1)
    groups: dict[tuple[float, float], list[nn.Parameter]] = {}
    for name, p in rest.items():
        decay = settings.weight_decay if p.ndim >= 2 else 0.0
        groups.setdefault((_peak(name, layers, settings), decay), []).append(p)
    fused = all(p.device.type in ("cuda", "cpu") for p in rest.values())
    adamw = torch.optim.AdamW(
        [{"params": group, "lr": lr, "weight_decay": decay} for (lr, decay), group in groups.items()],
        lr=settings.lr,
        betas=settings.betas,
        eps=settings.eps,
        fused=fused,
    )
    found: list[Optimizer] = [adamw]
    if matrices:
        rates = {name: settings.muon_lr * _layer_share(name, layers, settings) for name in matrices}
        found.append(
            Muon(matrices.items(), rates, momentum=settings.muon_momentum, weight_decay=settings.muon_weight_decay)
        )
    for optimizer in found:
        for group in optimizer.param_groups:
            group["peak"] = group["lr"]
    return found


_BLOCK = re.compile(r"\bblocks\.(\d+)\.")


def _peak(name: str, layers: int, settings: OptimSettings) -> float:
    """The rate of one parameter at the top of the schedule."""
    if "encoder." not in name:
        return settings.head_lr or settings.lr
    return settings.lr * _layer_share(name, layers, settings)


def _layer_share(name: str, layers: int, settings: OptimSettings) -> float:
    """What layer-wise decay leaves of the rate of an encoder's parameter."""
    block = _BLOCK.search(name)
    below_top = layers - int(block[1]) if block else layers + 1
    return settings.layer_decay**below_top


def set_rate(optimizers: Iterable[Optimizer], factor: float) -> None:
    """Set every group's learning rate to `factor` times its peak."""
    for optimizer in optimizers:
        for group in optimizer.param_groups:
            group["lr"] = group["peak"] * factor


def _is_hidden(name: str, parameter: nn.Parameter) -> bool:
    return ".blocks." in f".{name}" and parameter.ndim == 2


class Muon(Optimizer):
    """Momentum, orthogonalised: every update turns a matrix's singular directions by the same amount.

    Jordan et al. 2024. The stacked query-key-value matrix counts as three. All matrices of one shape are
    orthogonalised together, in a few batched products. `lr`: one rate, or that of each name.
    """

    def __init__(
        self,
        named: Iterable[tuple[str, nn.Parameter]],
        lr: float | Mapping[str, float],
        momentum: float = 0.95,
        weight_decay: float = 0.0,
    ) -> None:
        groups: dict[float, list[nn.Parameter]] = {}
        self._parts: dict[nn.Parameter, int] = {}
        for name, p in named:
            groups.setdefault(lr[name] if isinstance(lr, Mapping) else lr, []).append(p)
            self._parts[p] = 3 if name.endswith("qkv.weight") else 1
        defaults: dict[str, Any] = {"momentum": momentum, "weight_decay": weight_decay}
        super().__init__([{"params": group, "lr": own} for own, group in groups.items()], defaults)

    @torch.no_grad()
    def step(self, closure: Callable[[], float] | None = None) -> None:  # type: ignore[override]
        assert closure is None
        groups = [(group, [p for p in group["params"] if p.grad is not None]) for group in self.param_groups]
        ahead: dict[nn.Parameter, Tensor] = {}
        for group, parameters in groups:
            if not parameters:
                continue
            for p in parameters:
                if "momentum" not in self.state[p]:
                    self.state[p]["momentum"] = torch.zeros_like(p)
            momenta = [self.state[p]["momentum"] for p in parameters]
            gradients = [p.grad for p in parameters]
            torch._foreach_lerp_(momenta, gradients, 1 - group["momentum"])
            # Nesterov: look one step ahead along the momentum.
            seen = torch._foreach_lerp(gradients, momenta, group["momentum"])
            ahead.update(zip(parameters, seen, strict=True))
        updates = _orthogonal(ahead, self._parts)
        for group, parameters in groups:
            if parameters:
                torch._foreach_mul_(parameters, 1 - group["lr"] * group["weight_decay"])
                torch._foreach_add_(parameters, [updates[p] for p in parameters], alpha=-group["lr"])


def _orthogonal(updates: dict[nn.Parameter, Tensor], parts: dict[nn.Parameter, int]) -> dict[nn.Parameter, Tensor]:
    """Each update with its singular values made about 1, scaled so that tall matrices move as much as wide ones."""
    by_shape: dict[torch.Size, list[tuple[nn.Parameter, Tensor]]] = {}
    for p, update in updates.items():
        piece = update.unflatten(0, (parts[p], -1))
        by_shape.setdefault(piece.shape[1:], []).append((p, piece))
    found: dict[nn.Parameter, Tensor] = {}
    for (rows, columns), members in by_shape.items():
        stacked = newton_schulz(torch.cat([piece for _, piece in members]))
        scale = max(1.0, rows / columns) ** 0.5
        done = stacked.split([len(piece) for _, piece in members])
        for (p, _), result in zip(members, done, strict=True):
            found[p] = result.flatten(0, 1).to(p.dtype) * scale
    return found


def newton_schulz(x: Tensor, steps: int = 5) -> Tensor:
    """The nearest matrices with singular values near 1 (0.7 to 1.2), by five products. x: (matrices, rows, columns).

    In 16 bit on a GPU: the iteration mends its own rounding.
    """
    a, b, c = 3.4445, -4.7750, 2.0315
    y = x.bfloat16() if x.is_cuda else x
    wide = y.shape[-2] > y.shape[-1]
    y = y.mT if wide else y
    y = y / (y.norm(dim=(-2, -1), keepdim=True) + 1e-7)
    for _ in range(steps):
        square = y @ y.mT
        y = a * y + (b * square + c * square @ square) @ y
    turned: Tensor = y.mT if wide else y
    return turned
