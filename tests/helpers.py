"""What several test modules share: small loud models, a small vocabulary, tokenizers of every kind."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import fields
from typing import Any

import pytest
import torch

from bothways.errors import BothwaysError
from bothways.model.config import EncoderConfig, Learned
from bothways.model.model import Model
from bothways.tasks.registry import TASKS, make_task, new_config
from bothways.tasks.task import Task, TaskConfig
from bothways.text.train_vocab import FIRST_PIECES

DEVICES = ["cpu", *(["cuda"] if torch.cuda.is_available() else [])]

WORDS = [
    "the",
    "a",
    "of",
    "is",
    "in",
    "and",
    "to",
    "capital",
    "france",
    "paris",
    "germany",
    "berlin",
    "china",
    "beijing",
    "cat",
    "dog",
    "runs",
    "sleeps",
    "black",
    "white",
    "big",
    "small",
    "house",
    "tree",
    "reads",
    "writes",
    "un",
    "believ",
    "able",
    "walk",
    "talk",
    "run",
    "##s",
    "##ing",
    "##ed",
    "##ly",
    "##er",
    "##able",
    "##believ",
    "!",
    ".",
    ",",
    "?",
    "'",
    "-",
    "0",
    "1",
    "2",
    "3",
    "4",
    "5",
    "6",
    "7",
    "8",
    "9",
    "e",
    "n",
    "t",
    "o",
    "i",
    "r",
    "l",
    "d",
    "h",
    "s",
    "w",
    "k",
    "b",
    "c",
    "p",
    "f",
    "g",
    "m",
    "u",
    "v",
    "y",
    "x",
    "q",
    "j",
    "z",
    "##e",
    "##n",
    "##t",
    "##o",
    "##i",
    "##r",
    "##l",
    "##d",
    "##h",
    "##a",
    "##w",
    "##k",
    "##b",
    "##c",
    "##p",
    "##f",
    "##g",
    "##m",
    "##u",
    "##v",
    "##y",
    "##x",
    "##q",
    "##j",
    "##z",
    "##0",
    "##1",
    "##2",
    "中",
    "国",
    "的",
    "首",
    "都",
    "是",
    "北",
    "京",
    "巴",
    "黎",
    "法",
    "猫",
    "狗",
    "日",
    "本",
    "。",
    "，",
    "😀",
    "é",
    "ñ",
]
PIECES = [*FIRST_PIECES, *WORDS]

TINY = EncoderConfig(
    vocab_size=len(PIECES), width=32, layers=3, num_heads=4, ffn_width=64, positions=Learned(48), init_std=0.02
)


def make_loud(module: torch.nn.Module, seed: int = 0) -> None:
    """Weights so large that every term of every equation shows in the output: a dropped bias, a swapped norm."""
    draws = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for name, parameter in module.named_parameters():
            noise = torch.randn(parameter.shape, generator=draws)
            is_norm = "norm" in name.lower()
            loud = 1 + 0.3 * noise if is_norm and name.endswith("weight") else 0.25 * noise
            parameter.copy_(loud)


def config_for(task: str, kind: str = "", **values: Any) -> TaskConfig:
    """The config of a task; of options that other tasks have, nothing is taken."""
    known = {field.name for field in fields(TASKS[task].Options)} | {"window", "temperature", "thresholds"}
    given = {**values, "kind": kind} if kind else values
    return new_config(task, **{name: value for name, value in given.items() if name in known})


def task_of(kind: type[Task], model: Model) -> Any:
    """The task of a model, as it is for this kind."""
    task = make_task(model)
    assert type(task) is kind
    return task


_ANYTHING = object()


@contextmanager
def refused(code: str, value: object = _ANYTHING) -> Iterator[None]:
    """A block that must end in a BothwaysError of this code, about this value. What its sentence says is free."""
    with pytest.raises(BothwaysError) as caught:
        yield
    assert caught.value.code == code, f"{caught.value.code}: {caught.value}"
    if value is not _ANYTHING:
        assert caught.value.value == value
