"""Dropout whose random numbers are cheap enough to be recomputed in the backward pass."""

import torch
from torch import Tensor, nn
from torch.nn import functional as F


class Dropout(nn.Dropout):
    """Sets each number to 0 with probability p and scales the rest by 1 / (1 - p); the identity in evaluation mode.

    Under torch.compile on a GPU, torch's own dropout runs ten rounds of Philox for each number, in the forward and in
    the backward pass: a tenth of BERT's training step (benchmarks/pretrain_speed.py). Here a hash of (seed, index)
    decides, with one seed per call, drawn from torch's generator.
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
    return torch.where(_random_bits(x, seed) >= int(p * 2**31), x * (1 / (1 - p)), 0)


def hashed_uniform(like: Tensor, seed: Tensor) -> Tensor:
    """Uniform fp32 numbers in (0, 1), in the shape of `like`."""
    return (_random_bits(like, seed).float() + 0.5) * 2**-31


def _random_bits(like: Tensor, seed: Tensor) -> Tensor:
    """A random integer in [0, 2³¹) for each element of `like`."""
    index = torch.arange(like.numel(), device=like.device, dtype=torch.int32).view(like.shape)
    # The seed is used twice: used once, two seeds would give permutations of the same mask.
    return _hash(index ^ _hash(seed, 0), seed) & 0x7FFFFFFF


def _hash(x: Tensor, key: Tensor | int) -> Tensor:
    """A 32-bit hash with low bias (lowbias32 by Chris Wellons). The masks make the shifts unsigned."""
    x = (x ^ ((x >> 16) & 0xFFFF)) * 0x7FEB352D ^ key
    x = (x ^ ((x >> 15) & 0x1FFFF)) * (0x846CA68B - 2**32)
    return x ^ ((x >> 16) & 0xFFFF)
