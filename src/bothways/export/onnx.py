"""A model as an ONNX graph: the encoder, one of its heads, or the vectors of texts.

N tokens in the batch · B sequences · L the longest of them · W width · V vocabulary.
"""

from dataclasses import dataclass

import onnx
from onnx import TensorProto
from torch import nn

from bothways.errors import BothwaysError
from bothways.export.activations import activate
from bothways.export.encoder_graph import Packing, encode, pack, to_grid
from bothways.export.graph import Graph, Precision
from bothways.model.activations import ACTIVATIONS
from bothways.model.exported import FAMILY, OUTPUT, PRECISION
from bothways.model.families import FAMILIES
from bothways.model.heads import DenseHead, LinearHead, MaskedLMHead, Pooler
from bothways.model.model import Model
from bothways.model.pooling import Pooling
from bothways.model.sentence import ACTIVATION_NAMES, Dense, Normalize


@dataclass(frozen=True)
class GraphSettings:
    """How a graph is written."""

    precision: Precision = "fp32"
    """How matrices are stored."""
    tables: Precision | None = None
    """How embedding tables are stored; by default as matrices."""
    attentions: bool = False
    """Whether the attention weights of every layer are outputs too."""


def build(model: Model, output: str, settings: GraphSettings | None = None) -> onnx.ModelProto:
    """The graph of a model for one of its heads, or for its hidden states ("states"), the vectors of texts
    ("vectors", sentence-transformers) or of their tokens ("tokens", ColBERT).

    Inputs, as in transformers: input_ids and attention_mask (B, L), and token_type_ids if the model has segments. For
    multiple choice they are (B, choices, L).
    """
    settings = settings or GraphSettings()
    g = Graph(settings.precision, settings.tables)
    shape = model.config.encoder
    axes = ("batch", "choices", "length") if output == "choice" else ("batch", "length")
    names = ["input_ids", "attention_mask", *(["token_type_ids"] if shape.segments else [])]
    given = [g.input(name, TensorProto.INT64, axes) for name in names]
    if output == "choice":
        choices = g.add("Slice", g.add("Shape", given[0]), g.constant([1]), g.constant([2]))
        length = g.add("Slice", g.add("Shape", given[0]), g.constant([2]), g.constant([3]))
        given = [g.shaped(name, -1, length) for name in given]
    ids, mask, segments = (*given, "")[:3]
    p = pack(g, shape, ids, mask, segments)
    states, maps = encode(g, model.encoder, p, attentions=settings.attentions)
    match output:
        case "states":
            g.output("last_hidden_state", _padded(g, states, p, shape.width), ("batch", "length", shape.width))
        case "vectors":
            g.output("last_hidden_state", _padded(g, states, p, shape.width), ("batch", "length", shape.width))
            vectors, width = _vectors(g, model, states, p)
            g.output("sentence_embedding", vectors, ("batch", width))
        case "tokens":
            vectors, width = _token_vectors(g, model, states)
            g.output("token_embeddings", _padded(g, vectors, p, width), ("batch", "length", width))
        case "masked":
            logits, width = _masked(g, model, states), shape.vocab_size
            g.output("logits", _padded(g, logits, p, width), ("batch", "length", width))
        case "choice":
            logits, _ = _logits(g, model, output, states, p)
            g.output("logits", g.shaped(logits, -1, choices), ("batch", "choices"))
        case "span":
            logits, _ = _logits(g, model, output, states, p)
            parts = g.split("Split", _padded(g, logits, p, 2), outputs=2, axis=-1)
            for name, part in zip(("start_logits", "end_logits"), parts, strict=True):
                g.output(name, g.add("Squeeze", part, g.constant([-1])), ("batch", "length"))
        case _:
            logits, width = _logits(g, model, output, states, p)
            if _reads(model, output).startswith("tokens"):
                g.output("logits", _padded(g, logits, p, width), ("batch", "length", width))
            else:
                g.output("logits", logits, ("batch", width))
    for layer, weights in enumerate(maps):
        g.output(f"attentions.{layer}", weights, ("batch", shape.num_heads, "length", "length"))
    return g.model({OUTPUT: output, FAMILY: model.config.family, PRECISION: settings.precision})


def _padded(g: Graph, x: str, p: Packing, width: int) -> str:
    """(N, width) → (B, L, width), with zeros for padding."""
    return g.add("Mul", to_grid(g, x, p, width), g.add("Unsqueeze", p.real, g.constant([2])))


# ---------------------------------------------------------------------- heads


def _reads(model: Model, head: str) -> str:
    if head not in model.heads:
        has = ", ".join([*model.heads, "states", "vectors"])
        raise BothwaysError(f"this model has no {head!r} head to export: expected {has}", "no-such-head", head)
    return FAMILIES[model.config.family].heads[head].reads_in(model.config)


def _logits(g: Graph, model: Model, head: str, states: str, p: Packing) -> tuple[str, int]:
    """The output of a head: (B, outputs) or (N, outputs), and the number of outputs. As `Model.logits`."""
    reads, module = _reads(model, head), model.heads[head]
    match reads:
        case "tokens":
            return _head(g, module, states)
        case "tokens + first":
            first = g.add("Gather", states, p.first)
            owners = g.add("Div", p.rows, g.add("Squeeze", p.longest))
            return _head(g, module, g.add("Add", states, g.add("Gather", first, owners)))
        case "first":
            return _head(g, module, g.add("Gather", states, p.first))
        case "mean":
            return _head(g, module, _mean(g, states, p, model.config.encoder.width))
        case "pooled":
            first = g.add("Gather", states, p.first)
            return _head(g, module, _head(g, model.heads["pooler"], first)[0] if "pooler" in model.heads else first)
        case "late":
            logits, width = _head(g, module, states)
            return _mean(g, logits, p, width), width
    raise AssertionError(reads)


def _head(g: Graph, module: nn.Module, x: str) -> tuple[str, int]:
    """The output of a head's module, and its width."""
    match module:
        case Pooler():
            return activate(g, g.layer(x, module.dense), module.activation), module.dense.out_features
        case LinearHead():
            return g.layer(x, module.linear), module.linear.out_features
        case DenseHead():
            if module.norm is not None and module.norm_first:
                x = g.layer(x, module.norm)
            x = activate(g, g.layer(x, module.dense), module.activation)
            if module.norm is not None and not module.norm_first:
                x = g.layer(x, module.norm)
            return g.layer(x, module.linear), module.linear.out_features
    raise BothwaysError(
        f"a head of the kind {type(module).__name__} cannot be exported", "unsupported-head", type(module).__name__
    )


def _masked(g: Graph, model: Model, states: str) -> str:
    """Logits over the vocabulary for every token: (N, V)."""
    _reads(model, "masked")
    head, x = model.heads["masked"], states
    assert isinstance(head, MaskedLMHead)
    if head.dense is not None and head.norm is not None:
        x = g.layer(activate(g, g.layer(x, head.dense), head.activation), head.norm)
    table = model.encoder.embeddings.tokens.weight if head.decoder is None else head.decoder.weight
    return g.linear(x, table, head.bias)


# ---------------------------------------------------------------------- vectors


def _mean(g: Graph, x: str, p: Packing, width: int) -> str:
    """The mean over each sequence: (N, width) → (B, width)."""
    return g.add("Div", _sum(g, x, p, width), g.add("Max", p.counts, g.constant(1.0)))


def _sum(g: Graph, x: str, p: Packing, width: int) -> str:
    return g.add("ReduceSum", _padded(g, x, p, width), g.constant([1]), keepdims=0)


def _vectors(g: Graph, model: Model, states: str, p: Packing) -> tuple[str, int]:
    """The vectors of texts, as the folder says; without that, the mean of all tokens."""
    sentence, width = model.sentence, model.config.encoder.width
    if sentence is None:
        return _mean(g, states, p, width), width
    if not sentence.include_prompt and any(sentence.prompts.values()):
        raise BothwaysError(
            "this model leaves its prompt out of the pooling, which a graph cannot know: export its hidden states",
            "unsupported-setting",
            "include_prompt",
        )
    pooled = _pooled(g, sentence.pooling, states, p, width)
    pooled, _ = _steps(g, sentence.steps, pooled, width * len(sentence.pooling.modes))
    full = sentence.width(width)
    if sentence.settings.get("truncate_dim"):
        pooled = g.sliced(pooled, g.constant([0]), g.constant([full]), 1)
    return pooled, full


def _token_vectors(g: Graph, model: Model, states: str) -> tuple[str, int]:
    if model.late is None:
        raise BothwaysError("this model has no vectors of tokens: it is no ColBERT", "no-such-head", "tokens")
    return _steps(g, model.late.steps, states, model.config.encoder.width)


def _steps(g: Graph, steps: nn.ModuleList, x: str, width: int) -> tuple[str, int]:
    """Dense layers and normalising, in order."""
    for step in steps:
        match step:
            case Dense():
                x, width = g.layer(x, step.linear), step.linear.out_features
                x = activate(g, x, ACTIVATIONS[ACTIVATION_NAMES[step.activation]])
            case Normalize():
                norm = g.add("ReduceL2", x, axes=[-1], keepdims=1)
                x = g.add("Div", x, g.add("Max", norm, g.constant(1e-12)))
    return x, width


def _pooled(g: Graph, pooling: Pooling, states: str, p: Packing, width: int) -> str:
    """The vectors of each pooling mode, one after the other: (N, W) → (B, modes · W)."""
    found = []
    for mode in pooling.modes:
        match mode:
            case "cls":
                found.append(g.add("Gather", states, p.first))
            case "lasttoken":
                counts = g.add("Cast", g.add("Squeeze", p.counts, g.constant([1])), to=TensorProto.INT64)
                last = g.add("Sub", g.add("Add", p.first, counts), g.number(1))
                found.append(g.add("Gather", states, last))
            case "mean":
                found.append(_mean(g, states, p, width))
            case "mean_sqrt_len_tokens":
                root = g.add("Sqrt", g.add("Max", p.counts, g.constant(1.0)))
                found.append(g.add("Div", _sum(g, states, p, width), root))
            case "weightedmean":
                places = g.add("Cast", g.add("Add", p.positions, g.number(1)), to=TensorProto.FLOAT)
                weights = g.shaped(places, -1, 1)
                total = g.add("Max", _sum(g, weights, p, 1), g.constant(1.0))
                found.append(g.add("Div", _sum(g, g.add("Mul", states, weights), p, width), total))
            case "max":
                grid = to_grid(g, states, p, width)  # padding has the values of a token of the same text, or of none
                hidden = g.add("Mul", g.add("Sub", g.constant(1.0), p.real), g.constant(-1e30))
                grid = g.add("Add", grid, g.add("Unsqueeze", hidden, g.constant([2])))
                found.append(g.add("ReduceMax", grid, axes=[1], keepdims=0))
    return found[0] if len(found) == 1 else g.add("Concat", *found, axis=1)
