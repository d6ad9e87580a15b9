"""Architectures that bothways does not read: refused by their names, not by the first tensor that does not fit."""

from collections.abc import Collection
from pathlib import Path

from bothways.errors import BothwaysError

# The well-known ones by their model_type; others are called by it.
_NAMES = {
    "big_bird": "a BigBird",
    "bigbird_pegasus": "a BigBird-Pegasus",
    "canine": "a CANINE",
    "convbert": "a ConvBERT",
    "esm": "an ESM",
    "flaubert": "a FlauBERT",
    "fnet": "an FNet",
    "funnel": "a Funnel Transformer",
    "gpt2": "a GPT-2",
    "ibert": "an I-BERT",
    "layoutlm": "a LayoutLM",
    "layoutlmv2": "a LayoutLMv2",
    "layoutlmv3": "a LayoutLMv3",
    "lilt": "a LiLT",
    "llama": "a Llama",
    "longformer": "a Longformer",
    "luke": "a LUKE",
    "markuplm": "a MarkupLM",
    "megatron-bert": "a Megatron-BERT",
    "mobilebert": "a MobileBERT",
    "nystromformer": "a Nyströmformer",
    "reformer": "a Reformer",
    "rembert": "a RemBERT",
    "squeezebert": "a SqueezeBERT",
    "t5": "a T5",
    "tapas": "a TAPAS",
    "xlm": "an XLM",
    "xlnet": "an XLNet",
    "xmod": "an X-MOD",
    "yoso": "a YOSO",
}

# Models whose config.json says that they are another: endings of tensor names, and what they are.
_SIGNS = {
    "attention.self.layer_norm_q.weight": "a Jina BERT v2 for code, with normed queries and keys",
    "attention.self.query_global.weight": "a Longformer",
    "embeddings.x_position_embeddings.weight": "a LayoutLM",
}


def unread(kind: object, folder: Path) -> BothwaysError:
    """The error about a `model_type` that no family has."""
    if not isinstance(kind, str) or not kind:
        return BothwaysError(
            f"{folder / 'config.json'} has no model_type, and the names of the weights do not tell the architecture",
            "unknown-family",
            kind,
        )
    what = _NAMES.get(kind, f"a model of the type {kind!r}")
    return BothwaysError(f"{folder}: this is {what}, which bothways does not read", "unknown-family", kind)


def refuse_by_tensors(names: Collection[str], folder: Path) -> None:
    """Refuse architectures that pass for another by their config.json."""
    for ending, what in _SIGNS.items():
        for name in names:
            if name.endswith(ending):
                raise BothwaysError(
                    f"{folder}: this is {what}, which bothways does not read (it has {name})", "unknown-family", name
                )
