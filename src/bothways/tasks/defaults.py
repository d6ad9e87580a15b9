"""The settings that a fine-tuning recipe leaves open: learning rate, batch size and epochs, by the model and the data.

Measured on data sets of English and three models by benchmarks/defaults.py.
"""

import math
from dataclasses import replace

from bothways.model.config import EncoderConfig
from bothways.printable import counted
from bothways.tasks.recipe import LORA_FACTOR, FinetuneRecipe
from bothways.tasks.registry import TASKS

_BASE_LR, _BASE_WIDTH = 2.5e-5, 768
"""Within the range of BERT's paper for its base model, 2e-5 to 5e-5. Narrower models need more: see `learning_rate`."""
_FEW_LABELS, _MOST_FOR_LABELS = 30, 2.0
"""The head of more labels than `_FEW_LABELS` learns from few examples of each: the rate rises with them, so many times
at most."""
_LEAST, _MOST = 2e-5, 5e-4
_HEAD_LR = 1e-3
"""If the encoder is frozen: of a head on fixed features."""
_SMALL, _SMALL_BATCH, _BATCH = 2_000, 16, 32
"""Fewer examples than `_SMALL` get smaller batches, hence more steps."""
_STEPS, _STEPS_PER_LABEL, _MOST_EPOCHS = 1_200, 20, 10
"""Steps that small data should get, since few steps leave the model underfitted and its seeds far apart (Mosbach et al.
2021, Zhang et al. 2021); every label needs some of its own."""


def learning_rate(recipe: FinetuneRecipe, shape: EncoderConfig, labels: int = 0) -> float:
    """The peak learning rate for this model: it falls with the square of the width, as published rates do.

    >>> from bothways import EncoderConfig, FinetuneRecipe
    >>> shapes = [EncoderConfig(width=width, num_heads=4) for width in (128, 256, 384, 768, 1024)]
    >>> [learning_rate(FinetuneRecipe(), shape) for shape in shapes]
    [0.0005, 0.00023, 0.0001, 2.5e-05, 2e-05]
    """
    if recipe.model.freeze == "encoder":
        return _HEAD_LR
    lr = _BASE_LR * (_BASE_WIDTH / shape.width) ** 2 * min(max(labels / _FEW_LABELS, 1.0), _MOST_FOR_LABELS)
    lr = min(max(lr, _LEAST), _MOST)
    return float(f"{lr * (LORA_FACTOR if recipe.lora.rank else 1):.1e}")


def settled(recipe: FinetuneRecipe, shape: EncoderConfig, examples: int, labels: int) -> tuple[FinetuneRecipe, str]:
    """The recipe with what it leaves open, and a sentence about that: "" if it leaves nothing open."""
    run, optim, found = recipe.run, recipe.optim, []
    if not optim.lr:
        optim = replace(optim, lr=learning_rate(recipe, shape, labels))
        found.append(f"learning rate {optim.lr:g} for a model {shape.width} wide")
    if not run.batch_size:
        is_small = examples < _SMALL and not TASKS[recipe.task].whole_step
        run = replace(run, batch_size=_SMALL_BATCH if is_small else _BATCH)
        found.append(f"batch size {run.batch_size}")
    if not run.has_length:
        run = replace(run, epochs=_epochs(recipe.task, examples, labels, run.batch_size))
        found.append(f"{run.epochs:g} epoch{'s' * (run.epochs != 1)} for {counted(examples, 'example')}")
        if labels:
            found[-1] += f" with {counted(labels, 'label')}"
    return replace(recipe, run=run, optim=optim), f"chosen: {', '.join(found)}" if found else ""


def _epochs(task: str, examples: int, labels: int, batch: int) -> float:
    """At least those of BERT's paper, and more if the data are small or have many labels."""
    needed = (_STEPS + _STEPS_PER_LABEL * labels) / math.ceil(examples / batch)
    return float(min(max(math.ceil(needed), TASKS[task].epochs), _MOST_EPOCHS))
