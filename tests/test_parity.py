"""The same numbers as transformers, for the body and every head, in both directions.

Each comparison is also run with bugs planted in our model: a comparison that a bug does not break proves nothing.
"""

from collections.abc import Callable
from pathlib import Path

import pytest
import torch
import transformers
from torch import Tensor
from torch.nn import functional as F

from bothways.model.batch import Batch
from bothways.model.checkpoint import save
from bothways.model.load import load
from bothways.model.model import Model
from helpers import TINY, make_loud

LIMIT = 1e-5
LABELS = ("no", "maybe", "yes")

# Their class, the heads we must find in its folder, and how each of their outputs is had from ours.
CASES: dict[str, tuple[str, ...]] = {
    "BertModel": ("pooler",),
    "BertForMaskedLM": ("masked",),
    "BertForPreTraining": ("pooler", "masked", "next"),
    "BertForNextSentencePrediction": ("pooler", "next"),
    "BertForSequenceClassification": ("pooler", "sequence"),
    "BertForTokenClassification": ("token",),
    "BertForQuestionAnswering": ("span",),
    "BertForMultipleChoice": ("pooler", "choice"),
}

# Ragged on purpose: padding is what packing must not see. Two segments, ids over the whole vocabulary.
LENGTHS = (7, 48, 1, 20)


def their_config() -> transformers.BertConfig:
    return transformers.BertConfig(
        vocab_size=TINY.vocab_size,
        hidden_size=TINY.width,
        num_hidden_layers=TINY.layers,
        num_attention_heads=TINY.num_heads,
        intermediate_size=TINY.hidden,
        max_position_embeddings=TINY.positions.rows,
        id2label=dict(enumerate(LABELS)),
        label2id={label: i for i, label in enumerate(LABELS)},
    )


def theirs(name: str) -> torch.nn.Module:
    config = their_config()
    if name == "BertForQuestionAnswering":
        config.num_labels = 2
    model: torch.nn.Module = getattr(transformers, name)(config)
    make_loud(model)
    return model.eval()


def inputs() -> tuple[list[list[int]], list[list[int]]]:
    draws = torch.Generator().manual_seed(3)
    ids = [torch.randint(TINY.vocab_size, (n,), generator=draws).tolist() for n in LENGTHS]
    segments = [[int(i >= n // 2) for i in range(n)] for n in LENGTHS]
    return ids, segments


def their_outputs(model: torch.nn.Module, name: str) -> list[Tensor]:
    """Everything their class returns for the padded grid, padding removed: (N, …) or (B, …)."""
    ids, segments = inputs()
    longest = max(LENGTHS)
    grid = {
        "input_ids": torch.tensor([row + [0] * (longest - len(row)) for row in ids]),
        "token_type_ids": torch.tensor([row + [0] * (longest - len(row)) for row in segments]),
        "attention_mask": torch.tensor([[1] * len(row) + [0] * (longest - len(row)) for row in ids]),
    }
    if name == "BertForMultipleChoice":
        grid = {key: value[None] for key, value in grid.items()}
    with torch.no_grad():
        outputs = model(**grid, return_dict=True)
    real = grid["attention_mask"].bool()
    per_token = {"last_hidden_state", "start_logits", "end_logits"}
    if name in ("BertForMaskedLM", "BertForTokenClassification"):
        per_token.add("logits")
    per_token.add("prediction_logits")
    return [value[real] if key in per_token else value for key, value in outputs.items()]


def our_outputs(model: Model, name: str) -> list[Tensor]:
    """The same outputs from ours, in the same order."""
    batch = Batch.pack(*inputs())
    with torch.no_grad():
        states = model.encoder(batch)
        parts: dict[str, Callable[[], list[Tensor]]] = {
            "BertModel": lambda: [states, model.summary(states, batch)],
            "BertForMaskedLM": lambda: [model.masked(states)],
            "BertForPreTraining": lambda: [model.masked(states), model.logits("next", states, batch)],
            "BertForNextSentencePrediction": lambda: [model.logits("next", states, batch)],
            "BertForSequenceClassification": lambda: [model.logits("sequence", states, batch)],
            "BertForTokenClassification": lambda: [model.logits("token", states, batch)],
            "BertForQuestionAnswering": lambda: list(model.logits("span", states, batch).unbind(-1)),
            "BertForMultipleChoice": lambda: [model.logits("choice", states, batch).view(1, -1)],
        }
        return parts[name]()


def distance(ours: list[Tensor], theirs: list[Tensor]) -> float:
    assert [o.shape for o in ours] == [t.shape for t in theirs]
    return max(float((o - t).abs().max()) for o, t in zip(ours, theirs, strict=True))


@pytest.mark.parametrize("name", CASES)
def test_we_compute_what_they_compute(name: str, tmp_path: Path) -> None:
    model = theirs(name)
    model.save_pretrained(tmp_path)
    ours = load(tmp_path)
    assert ours.config.heads == CASES[name]
    assert distance(our_outputs(ours, name), their_outputs(model, name)) <= LIMIT


@pytest.mark.parametrize("name", CASES)
def test_they_open_what_we_write(name: str, tmp_path: Path) -> None:
    model = theirs(name)
    model.save_pretrained(tmp_path / "theirs")
    ours = load(tmp_path / "theirs")
    make_loud(ours, seed=5)  # weights that never were in their file
    save(ours, tmp_path / "ours")
    opened, report = getattr(transformers, name).from_pretrained(tmp_path / "ours", output_loading_info=True)
    assert not report["missing_keys"]
    assert not report["unexpected_keys"]
    assert not report["mismatched_keys"]
    assert distance(our_outputs(ours, name), their_outputs(opened.eval(), name)) <= LIMIT


@pytest.mark.parametrize("name", CASES)
def test_a_round_trip_changes_no_bit(name: str, tmp_path: Path) -> None:
    model = theirs(name)
    model.save_pretrained(tmp_path / "theirs")
    save(load(tmp_path / "theirs"), tmp_path / "ours")
    again = getattr(transformers, name).from_pretrained(tmp_path / "ours")
    before, after = model.state_dict(), again.state_dict()
    assert before.keys() == after.keys()
    assert all(torch.equal(before[key], after[key]) for key in before)
    assert again.config.id2label == model.config.id2label
    assert again.config.architectures == [name]


# ---------------------------------------------------------------------- planted bugs


def _first_block(model: Model) -> torch.nn.Module:
    return model.encoder.blocks[0]


def _swap_segments(model: Model) -> None:
    weight = model.encoder.embeddings.segments.weight
    weight.data = weight.data.flip(0)


def _shift_positions(model: Model) -> None:
    rows = model.encoder.embeddings.positions.rows.weight
    rows.data = rows.data.roll(1, 0)


def _tanh_gelu(model: Model) -> None:
    for block in model.encoder.blocks:
        block.feed_forward.activation = lambda x: F.gelu(x, approximate="tanh")


def _larger_eps(model: Model) -> None:
    for part in model.modules():
        if isinstance(part, torch.nn.LayerNorm):
            part.eps = 1e-3


def _swap_norms(model: Model) -> None:
    block = _first_block(model)
    block.attention_norm, block.feed_forward_norm = block.feed_forward_norm, block.attention_norm


def _swap_query_and_key(model: Model) -> None:
    q, k, v = _first_block(model).attention.qkv.bias.data.chunk(3)
    _first_block(model).attention.qkv.bias.data = torch.cat([k, q, v])


def _no_scale(model: Model) -> None:
    for block in model.encoder.blocks:
        block.attention.scale = 1.0


def _drop_output_bias(model: Model) -> None:
    _first_block(model).attention.out.bias.data.zero_()


def _left_to_right(model: Model) -> None:
    from bothways.model import blocks

    original = blocks.attend
    for block in model.encoder.blocks:
        block.attention.forward = lambda x, plan, positions, asks=None, a=block.attention: a.out(
            original(*a.project(x, plan, positions)[:3], plan, scale=a.scale, window=(-1, 0)).flatten(1)
        )


BUGS = [
    _swap_segments, _shift_positions, _tanh_gelu, _larger_eps, _swap_norms, _swap_query_and_key, _no_scale,
    _drop_output_bias, _left_to_right,
]  # fmt: skip


@pytest.mark.slow
@pytest.mark.parametrize("bug", BUGS, ids=lambda bug: bug.__name__.strip("_"))
@pytest.mark.parametrize("name", CASES)
def test_a_bug_in_the_body_would_show(name: str, bug: Callable[[Model], None], tmp_path: Path) -> None:
    model = theirs(name)
    model.save_pretrained(tmp_path)
    ours = load(tmp_path)
    bug(ours)
    assert distance(our_outputs(ours, name), their_outputs(model, name)) > 3 * LIMIT


def _zero(parameter: str) -> Callable[[Model], None]:
    def bug(model: Model) -> None:
        model.get_parameter(parameter).data.zero_()

    return bug


def _no_tanh(model: Model) -> None:
    pooler = model.heads["pooler"]
    pooler.forward = pooler.dense.forward  # type: ignore[method-assign, union-attr, assignment]


def _no_activation(model: Model) -> None:
    model.heads["masked"].activation = lambda x: x  # type: ignore[assignment]


def _pool_the_second_token(model: Model) -> None:
    original = model.summary
    model.summary = lambda states, batch: original(states.roll(-1, 0), batch)  # type: ignore[method-assign]


HEAD_BUGS = [
    ("BertModel", _no_tanh),
    ("BertModel", _zero("heads.pooler.dense.bias")),
    ("BertModel", _pool_the_second_token),
    ("BertForMaskedLM", _zero("heads.masked.bias")),
    ("BertForMaskedLM", _zero("heads.masked.norm.bias")),
    ("BertForMaskedLM", _no_activation),
    ("BertForPreTraining", _no_tanh),
    ("BertForPreTraining", _zero("heads.next.linear.bias")),
    ("BertForNextSentencePrediction", _zero("heads.next.linear.bias")),
    ("BertForNextSentencePrediction", _no_tanh),
    ("BertForSequenceClassification", _zero("heads.sequence.linear.bias")),
    ("BertForSequenceClassification", _pool_the_second_token),
    ("BertForTokenClassification", _zero("heads.token.linear.bias")),
    ("BertForQuestionAnswering", _zero("heads.span.linear.bias")),
    ("BertForMultipleChoice", _zero("heads.choice.linear.bias")),
    ("BertForMultipleChoice", _pool_the_second_token),
]


@pytest.mark.parametrize(("name", "bug"), HEAD_BUGS)
def test_a_bug_in_a_head_would_show(name: str, bug: Callable[[Model], None], tmp_path: Path) -> None:
    model = theirs(name)
    model.save_pretrained(tmp_path)
    ours = load(tmp_path)
    bug(ours)
    assert distance(our_outputs(ours, name), their_outputs(model, name)) > 3 * LIMIT
