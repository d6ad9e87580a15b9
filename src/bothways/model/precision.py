"""Inference in 16 bits: matrices are stored and multiplied in 16 bits, everything else is computed in fp32.

That is what `torch.autocast` does in training. The residual stream, norms and softmaxes stay in fp32, so that rounding
errors do not add up from layer to layer.
"""

from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext

import torch
from torch import nn

from bothways.model.model import Model

HALF = (torch.bfloat16, torch.float16)


def in_precision(model: Model, dtype: torch.dtype) -> Model:
    """The model itself, to be run in this precision: for 16 bits only its matrices are converted."""
    model.to(torch.float32 if dtype in HALF else dtype)
    if dtype in HALF:
        for part in model.modules():
            if isinstance(part, nn.Linear):
                part.to(dtype)
    return model


def matrix_dtype(model: Model) -> torch.dtype:
    """The dtype of the encoder's matrices."""
    return next(
        (part.weight.dtype for part in model.encoder.blocks.modules() if isinstance(part, nn.Linear)), model.dtype
    )


def autocast(model: Model) -> AbstractContextManager[None]:
    """The precision of a model from `in_precision`: to be entered around its computations."""
    dtype = matrix_dtype(model)
    return nullcontext() if dtype == model.dtype else torch.autocast(model.device.type, dtype)


@contextmanager
def exact_sums() -> Iterator[None]:
    """Sum products of 16-bit numbers in fp32 throughout: by default cuBLAS may add partial sums in 16 bits.

    It does so for small matrices, so that a text alone would get another answer than among others.
    """
    settings = torch.backends.cuda.matmul
    before = settings.allow_bf16_reduced_precision_reduction, settings.allow_fp16_reduced_precision_reduction
    settings.allow_bf16_reduced_precision_reduction = settings.allow_fp16_reduced_precision_reduction = False
    try:
        yield
    finally:
        settings.allow_bf16_reduced_precision_reduction, settings.allow_fp16_reduced_precision_reduction = before
