"""Dropout whose random numbers are cheap enough to be computed twice."""

import torch
from torch import Tensor, nn
from torch.nn import functional as F


class Dropout(nn.Dropout):
    """Each number is set to 0 with probability p, the rest is scaled up; nothing happens in evaluation.

    Under torch.compile on a GPU, torch's own dropout runs ten rounds of Philox for each number, forward and again
    backward: a tenth of BERT's training step (benchmarks/pretrain_speed.py). Here a hash of (seed, place) decides,
    with a seed drawn from torch's generator once for each call.
    """

    def forward(self, x: Tensor) -> Tensor:
        if not self.training or not self.p:
            return x
        if not (torch.compiler.is_compiling() and x.is_cuda):
            return F.dropout(x, self.p)
        seed = torch.randint(-(2**31), 2**31 - 1, (1,), device=x.device, dtype=torch.int32)
        return hashed_dropout(x, self.p, seed)


def hashed_dropout(x: Tensor, p: float, seed: Tensor) -> Tensor:
    """Dropout as a function of a seed, an int32 tensor of one number."""
    return torch.where(_draws(x, seed) >= int(p * 2**31), x * (1 / (1 - p)), 0)


def hashed_uniform(like: Tensor, seed: Tensor) -> Tensor:
    """Numbers between 0 and 1, neither included, of the shape of `like`, in fp32: finest near 0."""
    return (_draws(like, seed).float() + 0.5) * 2**-31


def _draws(like: Tensor, seed: Tensor) -> Tensor:
    """Whole numbers from 0 up to 2³¹, one for each place."""
    place = torch.arange(like.numel(), device=like.device, dtype=torch.int32).view(like.shape)
    # The seed comes in twice: with the first time alone, two seeds would give one mask in two orders.
    return _scramble(place ^ _scramble(seed, 0), seed) & 0x7FFFFFFF


def _scramble(x: Tensor, key: Tensor | int) -> Tensor:
    """A 32-bit hash with hardly any bias (lowbias32 of Chris Wellons). Shifts are made unsigned by the masks."""
    x = (x ^ ((x >> 16) & 0xFFFF)) * 0x7FEB352D ^ key
    x = (x ^ ((x >> 15) & 0x1FFFF)) * (0x846CA68B - 2**32)
    return x ^ ((x >> 16) & 0xFFFF)
