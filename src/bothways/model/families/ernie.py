"""ERNIE: BERT with an embedding of the pretraining task, of which inference uses the first."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from bothways.model.config import EncoderConfig
from bothways.model.families import bert
from bothways.model.families.family import KeyRow, architectures, setting


def read_config(raw: Mapping[str, Any]) -> EncoderConfig:
    """Their config.json → ours."""
    tasks = setting(raw, "task_type_vocab_size", 3) if raw.get("use_task_id") else 0
    return replace(bert.read_config(raw), tasks=tasks)


def write_config(config: EncoderConfig) -> dict[str, Any]:
    """Ours → their config.json."""
    tasks = {"task_type_vocab_size": config.tasks} if config.tasks else {}
    return bert.write_config(config) | {"use_task_id": config.tasks > 0} | tasks


FAMILY = replace(
    bert.FAMILY,
    name="ernie",
    prefix="ernie.",
    read_config=read_config,
    write_config=write_config,
    body=(*bert.BODY, KeyRow("embeddings.task_type_embeddings.weight", "encoder.embeddings.tasks.weight")),
    architectures=architectures(
        "Ernie", bert.HEADS, {"PreTraining": {"pooler", "masked", "next"}, "NextSentencePrediction": {"pooler", "next"}}
    ),
)
