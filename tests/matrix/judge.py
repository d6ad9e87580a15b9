"""One model of theirs and one of ours, on the same ragged sequences.

Weights are loud: matrices and biases have a standard deviation of 0.5, norms are 1 ± 0.5, so that every term shows.
Distances are relative to the largest output if that is above 1. Two things must hold:

- in float32, ours and theirs differ by at most 2e-5; where the attention is so sharp that float32 itself loses those
  digits, ours may be at most four times as far from their float64 outputs as their own float32 outputs are;
- in float64, they differ by at most `Row.exact`, 1e-9 for most. Only this tells an eps of 1e-12 from one of 1e-7.
"""

import copy
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
import transformers
from torch import Tensor

from bothways.model.batch import Batch
from bothways.model.model import Model
from matrix.table import NONE, Row

LIMIT = 2e-5
SHORT, LONG = (7, 40, 1, 20), (900, 300)
"""The lengths of the sequences, each list a padded batch for their class."""
NAMES = ("no", "maybe", "yes")
ENDINGS = {
    "Model": "",
    "ForMaskedLM": "masked",
    "ForPreTraining": "",
    "ForNextSentencePrediction": "next",
    "ForSequenceClassification": "sequence",
    "ForTokenClassification": "token",
    "ForQuestionAnswering": "span",
    "ForMultipleChoice": "choice",
    "ForCausalLM": "masked",
    "LMHeadModel": "masked",
}
"""The endings of their classes, and the head of ours that each has."""
UNREAD = {("splinter", "ForPreTraining"), ("splinter", "ForQuestionAnswering")}
"""Classes whose heads we do not read: their folders are opened as bodies."""


class TheirsRaisesError(Exception):
    """Their class cannot build, open or compute it."""


def brief(error: BaseException) -> str:
    """An exception as one line."""
    lines = str(error).strip().splitlines() or [""]
    return f"{type(error).__name__}: {lines[0][:200]}"


def endings_of(row: Row) -> tuple[str, ...]:
    """The classes of a family that transformers has."""
    return tuple(e for e in ENDINGS if hasattr(transformers, row.classes + e) and (row.family, e) not in UNREAD)


def make_loud(module: torch.nn.Module, seed: int = 0) -> None:
    """Weights of the matrix. What is not learned, such as a table of sinusoids, stays."""
    draws = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for name, parameter in module.named_parameters():
            if parameter.requires_grad:
                noise = 0.5 * torch.randn(parameter.shape, generator=draws)
                parameter.copy_(1 + noise if "norm" in name.lower() and name.endswith("weight") else noise)


def config_of(row: Row, ending: str, settings: dict[str, Any]) -> Any:
    """Their config, with three named labels unless the settings or the class have others."""
    if not {"num_labels", "id2label"} & set(settings) and ending not in ("ForQuestionAnswering", "ForPreTraining"):
        settings = {**settings, "id2label": dict(enumerate(NAMES)), "label2id": {n: i for i, n in enumerate(NAMES)}}
    return getattr(transformers, f"{row.classes}Config")(**settings)


def theirs(row: Row, ending: str, settings: dict[str, Any]) -> Any:
    """Their class with these settings and loud weights."""
    try:
        model = getattr(transformers, row.classes + ending)(config_of(row, ending, settings))
    except Exception as error:
        raise TheirsRaisesError(brief(error)) from error
    make_loud(model)
    return model.eval()


# ---------------------------------------------------------------------- the inputs


@dataclass(frozen=True)
class Inputs:
    """Ragged sequences of token ids and of segment ids."""

    ids: list[list[int]]
    segments: list[list[int]]
    pad: int


def inputs_for(row: Row, config: Any, lengths: Sequence[int]) -> Inputs:
    """Sequences that this model can read: within its table, over its vocabulary and segments, without padding."""
    pad = config.pad_token_id if isinstance(config.pad_token_id, int) else 0
    longest = config.max_position_embeddings - (pad + 1 if row.counts_from_pad else row.offset)
    draws = torch.Generator().manual_seed(3)
    first = getattr(config, "question_token_id", None)
    taken = {pad, first, 0, 1, 2}
    words = torch.tensor([i for i in range(config.vocab_size) if i not in taken])
    kinds = max(getattr(config, "type_vocab_size", 0) or 0, 1)
    ids, segments = [], []
    for n in (min(n, longest) for n in lengths):
        one = words[torch.randint(len(words), (n,), generator=draws)].tolist()
        if first is not None:
            one[n // 3] = first
        ids.append(one)
        segments.append(torch.randint(kinds, (n,), generator=draws).tolist())
    return Inputs(ids, segments, pad)


def _grid(rows: list[list[int]], filler: int) -> Tensor:
    longest = max(map(len, rows))
    return torch.tensor([row + [filler] * (longest - len(row)) for row in rows])


PER_TOKEN = {"last_hidden_state", "start_logits", "end_logits", "prediction_logits"}
READ = (*sorted(PER_TOKEN), "logits", "pooler_output", "seq_relationship_logits", "sop_logits")


def their_outputs(model: Any, ending: str, inputs: Inputs) -> dict[str, Tensor]:
    """What their class returns for the padded sequences, padding removed."""
    real = _grid([[1] * len(row) for row in inputs.ids], 0)
    grid = {"input_ids": _grid(inputs.ids, inputs.pad), "attention_mask": real}
    if getattr(model.config, "type_vocab_size", 0) and "DistilBert" not in type(model).__name__:
        grid["token_type_ids"] = _grid(inputs.segments, 0)
    if ending == "ForMultipleChoice":
        grid = {key: value[None] for key, value in grid.items()}
    try:
        with torch.no_grad():
            outputs = model(**grid, return_dict=True)
    except Exception as error:
        raise TheirsRaisesError(brief(error)) from error
    per_token = set(PER_TOKEN)
    if ending in ("ForMaskedLM", "ForCausalLM", "LMHeadModel", "ForTokenClassification") or (
        ending == "ForPreTraining" and "Electra" in type(model).__name__
    ):
        per_token.add("logits")
    found = {key: outputs[key] for key in READ if outputs.get(key) is not None}
    found = {key: value[real.bool()] if key in per_token else value for key, value in found.items()}
    if not all(bool(value.isfinite().all()) for value in found.values()):
        raise TheirsRaisesError("their outputs are not finite")
    return found


def our_outputs(model: Model, ending: str, inputs: Inputs) -> dict[str, Tensor]:
    """The same from ours, under their names."""
    batch = Batch.pack(inputs.ids, inputs.segments)
    with torch.no_grad():
        states = model.encoder(batch)
        match ending:
            case "Model" if "pooler" in model.heads:
                return {"last_hidden_state": states, "pooler_output": model.summary(states, batch)}
            case "Model":
                return {"last_hidden_state": states}
            case "ForMaskedLM" | "ForCausalLM" | "LMHeadModel":
                return {"logits": model.masked(states)}
            case "ForPreTraining" if "replaced" in model.heads:
                return {"logits": model.logits("replaced", states, batch)[:, 0]}
            case "ForPreTraining":
                name = "sop_logits" if model.config.family == "albert" else "seq_relationship_logits"
                return {"prediction_logits": model.masked(states), name: model.logits("next", states, batch)}
            case "ForQuestionAnswering":
                start, end = model.logits("span", states, batch).unbind(-1)
                return {"start_logits": start, "end_logits": end}
            case "ForMultipleChoice":
                return {"logits": model.logits("choice", states, batch).view(1, -1)}
        return {"logits": model.logits(ENDINGS[ending], states, batch)}


# ---------------------------------------------------------------------- the comparison


def distance(ours: dict[str, Tensor], theirs: dict[str, Tensor]) -> float:
    """The largest difference, relative to the largest output where that is above 1; infinite if outputs are missing."""
    if {key: value.shape for key, value in ours.items()} != {key: value.shape for key, value in theirs.items()}:
        return float("inf")
    gaps = [
        float((ours[key].double() - theirs[key].double()).abs().max() / theirs[key].double().abs().max().clamp(min=1))
        for key in ours
    ]
    return max((gap if gap == gap else float("inf")) for gap in gaps)


def compare(row: Row, ours: Model, model: Any, ending: str, lengths: Sequence[Sequence[int]]) -> str:
    """Why the outputs are not equal, in one sentence; empty if they are.

    Batches after the first are compared in float64 only if float32 does not settle it: they take long.
    """
    ours64, model64 = copy.deepcopy(ours).double(), copy.deepcopy(model).double()
    for i, inputs in enumerate(inputs_for(row, model.config, one) for one in lengths):
        o, t = our_outputs(ours, ending, inputs), their_outputs(model, ending, inputs)
        if o.keys() != t.keys():
            return f"ours has the outputs {sorted(o)}, theirs {sorted(t)}"
        gap, where = distance(o, t), f"on up to {max(map(len, inputs.ids))} tokens"
        if gap <= LIMIT and (i or row.exact == NONE):
            continue
        truth = their_outputs(model64, ending, inputs)
        exact = distance(our_outputs(ours64, ending, inputs), truth)
        if exact > row.exact:
            return f"float64 differs by {exact:.1e} (float32 by {gap:.1e}) {where}"
        if gap > LIMIT and distance(o, truth) > 4 * distance(t, truth) + LIMIT:
            return f"float32 differs by {gap:.1e} (float64 by {exact:.1e}) {where}"
    return ""
