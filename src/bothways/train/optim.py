"""Optimisers and learning-rate schedules.

Weight decay as in BERT: matrices and embedding tables, but no biases and norms. `muon` updates the matrices of the
encoder's blocks by orthogonalised momentum and leaves the rest to AdamW.
"""

import math
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Annotated, Any, Literal

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from bothways.errors import require_choice, require_range
from bothways.ranges import Bounded, NotNegative, Positive, Probability, Range

Schedule = Literal["linear", "cosine", "wsd", "constant"]


@dataclass(frozen=True)
class OptimSettings(Bounded):
    """The `[optim]` part of a recipe; the defaults are BERT's."""

    section = "optim"

    name: Literal["adamw", "muon"] = "adamw"
    lr: NotNegative = 1e-4
    """Peak learning rate. 0, in fine-tuning only: chosen by the size of the model."""
    betas: tuple[Probability, Probability] = (0.9, 0.999)
    eps: Positive = 1e-6
    weight_decay: NotNegative = 0.01
    clip: NotNegative = 1.0
    """Maximum gradient norm; 0: no clipping."""
    schedule: Schedule = "linear"
    warmup: NotNegative = 0.1
    """Warm-up: a number of steps, or a share of the run if below 1."""
    cooldown: Annotated[float, Range(0, 1, above=True)] = 0.2
    """For wsd: the share of the run in which the learning rate falls to zero."""
    head_lr: NotNegative = 0.0
    """Learning rate of everything outside the encoder; 0: lr."""
    layer_decay: Annotated[float, Range(0, 1, above=True)] = 1.0
    """Layer-wise decay of lr (and muon_lr): the last layer has lr · layer_decay, the layer below lr · layer_decay², and
    so on down to the embeddings."""
    muon_lr: Positive = 0.02
    muon_momentum: Probability = 0.95
    muon_weight_decay: NotNegative = 0.1
    """Muon's steps do not shrink with the gradient. With a tenth of this (and of AdamW's weight decay, also 0.1)
    matrices grew four times as large: masked language modelling was as good, but fine-tuning was bad."""

    def __post_init__(self) -> None:
        super().__post_init__()
        require_choice("optim.name", self.name, ("adamw", "muon"))
        require_choice("optim.schedule", self.schedule, ("linear", "cosine", "wsd", "constant"))
        require_range("optim.betas", self.betas, len(self.betas) == 2, "two numbers, 0 or more and below 1")


def lr_factor(settings: OptimSettings, step: int, done: float, steps: int = 0) -> float:
    """The factor of the peak learning rate: `step` counts from 0, `done` is the progress from 0 to 1.

    A warm-up that is shorter than one of the `steps` of the run is none: its only step would have the rate 0.

    >>> from bothways.train.optim import OptimSettings, lr_factor
    >>> [round(lr_factor(OptimSettings(warmup=0.5), step, step / 4), 2) for step in range(5)]
    [0.0, 0.5, 1.0, 0.5, 0.0]
    """
    if 0 < settings.warmup * steps < 1 and settings.warmup < 1:
        settings = replace(settings, warmup=0.0)
    in_steps = settings.warmup >= 1
    warm = min(1.0, (step + 1) / settings.warmup if in_steps else _share(done, settings.warmup))
    if settings.schedule == "constant":
        return warm
    if settings.schedule == "wsd":
        return min(warm, _share(1 - done, settings.cooldown))
    # The progress at which the warm-up ends: given as a share, or computed from the steps once it has ended.
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
    """One optimiser, or two with Muon. Each parameter is in exactly one group."""
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
    """The peak learning rate of one parameter."""
    if "encoder." not in name:
        return settings.head_lr or settings.lr
    return settings.lr * _layer_share(name, layers, settings)


def _layer_share(name: str, layers: int, settings: OptimSettings) -> float:
    """The factor of layer-wise decay for an encoder parameter."""
    block = _BLOCK.search(name)
    below_top = layers - int(block[1]) if block else layers + 1
    return settings.layer_decay**below_top


def set_lr(optimizers: Iterable[Optimizer], factor: float) -> None:
    """Set every group's learning rate to `factor` times its peak."""
    for optimizer in optimizers:
        for group in optimizer.param_groups:
            group["lr"] = group["peak"] * factor


def _is_hidden(name: str, parameter: nn.Parameter) -> bool:
    return ".blocks." in f".{name}" and parameter.ndim == 2


class Muon(Optimizer):
    """Orthogonalised momentum: every update changes all singular directions of a matrix equally (Jordan et al. 2024).

    The fused query-key-value matrix counts as three. All matrices of one shape are orthogonalised together, in a few
    batched products. `lr`: one learning rate, or one by parameter name.
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
            # Nesterov momentum.
            seen = torch._foreach_lerp(gradients, momenta, group["momentum"])
            ahead.update(zip(parameters, seen, strict=True))
        updates = _orthogonal(ahead, self._parts)
        for group, parameters in groups:
            if parameters:
                torch._foreach_mul_(parameters, 1 - group["lr"] * group["weight_decay"])
                torch._foreach_add_(parameters, [updates[p] for p in parameters], alpha=-group["lr"])


def _orthogonal(updates: dict[nn.Parameter, Tensor], parts: dict[nn.Parameter, int]) -> dict[nn.Parameter, Tensor]:
    """Updates with singular values near 1, scaled so that tall matrices change as much as wide ones."""
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
    """The nearest matrices with singular values near 1 (0.7 to 1.2), by five iterations. x: (matrices, rows, columns).

    In 16 bit on a GPU: the iteration corrects its own rounding errors.
    """
    a, b, c = 3.4445, -4.7750, 2.0315
    y = x.bfloat16() if x.is_cuda else x
    tall = y.shape[-2] > y.shape[-1]
    y = y.mT if tall else y
    y = y / (y.norm(dim=(-2, -1), keepdim=True) + 1e-7)
    for _ in range(steps):
        square = y @ y.mT
        y = a * y + (b * square + c * square @ square) @ y
    out: Tensor = y.mT if tall else y
    return out
