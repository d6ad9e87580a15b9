"""Adapters and their outputs, ours and PEFT's."""

from pathlib import Path
from typing import Any

import peft
import torch
import transformers
from torch import Tensor

from bothways.model.batch import Batch
from bothways.model.load import load
from bothways.model.model import Model
from bothways.tasks.folder import with_task
from helpers import config_for, make_loud
from helpers.tasks import LIMIT

IDS = [[101, 7, 30, 102], [101, 40, 41, 42, 43, 44, 45, 102], [101, 102]]


def classifier(base: Path) -> Model:
    """The base's encoder under a loud head of three labels."""
    model = with_task(load(base), config_for("classify", kind="single"), ("bad", "good", "so-so"))
    make_loud(model.heads, 5)
    return model.eval()


def outputs(model: Model, head: str = "sequence") -> Tensor:
    batch = Batch.pack(IDS, [[0] * len(row) for row in IDS])
    with torch.no_grad():
        return model.logits(head, model.encoder(batch), batch)


def their_outputs(model: Any) -> Tensor:
    """Padding removed: (B, C), or (N, C)."""
    longest = max(map(len, IDS))
    grid = torch.tensor([row + [0] * (longest - len(row)) for row in IDS])
    mask = torch.tensor([[1] * len(row) + [0] * (longest - len(row)) for row in IDS])
    model.eval()
    with torch.no_grad():
        logits: Tensor = model(input_ids=grid, attention_mask=mask).logits
    return logits[mask.bool()] if logits.dim() == 3 else logits


def distance(one: Tensor, other: Tensor) -> float:
    assert one.shape == other.shape
    return float((one - other).abs().max())


def compare_spans(opened: Any, ours: Tensor) -> None:
    rows = []
    for ids in IDS:
        with torch.no_grad():
            out = opened.eval()(input_ids=torch.tensor([ids]))
        rows.append(torch.stack([out.start_logits[0], out.end_logits[0]], -1))
    assert distance(torch.cat(rows), ours) <= LIMIT


def peft_adapter(base: Path, folder: Path, kind: str = "SequenceClassification", **config: Any) -> Any:
    """An adapter as PEFT trains and saves it: every trained weight loud."""
    model = getattr(transformers, f"AutoModelFor{kind}").from_pretrained(base)
    settings = {"r": 4, "lora_alpha": 6, "target_modules": ["query", "value"], **config}
    wrapped = peft.get_peft_model(model, peft.LoraConfig(**settings))
    train_loud(wrapped)
    wrapped.save_pretrained(str(folder))
    return wrapped.eval()


def train_loud(wrapped: torch.nn.Module) -> None:
    """As if training had been long."""
    draws = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for parameter in wrapped.parameters():
            if parameter.requires_grad:
                parameter.copy_(0.3 * torch.randn(parameter.shape, generator=draws))
