"""The kinds of those settings of config.json that families read by name, beside the ones that they map to ours."""

from collections.abc import Iterator, Mapping
from typing import Any

from bothways.errors import BothwaysError
from bothways.model.config import EncoderConfig, Learned, Rotary
from bothways.ranges import Declared, Range, declared

MAPPED = {**declared(Learned), **declared(Rotary), **declared(EncoderConfig)}
"""What our own settings may be, by their names."""
_SIZE, _FROM_0, _BASE = MAPPED["width"], MAPPED["embedding_width"], MAPPED["base"]
_NUMBERS = {
    "num_key_value_heads": _SIZE,
    "head_dim": _SIZE,
    "dim_head": _SIZE,
    "num_hidden_groups": _SIZE,
    "global_attn_every_n_layers": _SIZE,
    "embedding_size": _SIZE,
    "max_trained_positions": MAPPED["max_length"],
    "local_attention": MAPPED["offset"],
    "task_type_vocab_size": _FROM_0,
    "conv_kernel_size": _FROM_0,
    "pad_token_id": Declared(Range(-1, 2**31 - 1), True),
    "max_relative_positions": Declared(Range(-1, 2**24), True),
    "position_buckets": Declared(Range(-1, 2**24), True),
    "rope_theta": _BASE,
    "global_rope_theta": _BASE,
    "local_rope_theta": _BASE,
    "rotary_emb_base": _BASE,
    "factor": _BASE,
    "partial_rotary_factor": _BASE,
}
_TEXTS = ("model_type", "feed_forward_type", "activation_function", "classifier_pooling", "rope_type", "type")
_LISTS = ("architectures", "layer_types")
_TABLES = ("rope_parameters", "rope_scaling", "id2label", "label2id", "bothways")


def _unsupported(key: str, value: object, expected: str) -> BothwaysError:
    return BothwaysError(f"config.json has {key} = {value!r}: expected {expected}", "unsupported-setting", (key, value))


def require_kinds(raw: Mapping[str, Any]) -> None:
    """Refuse a setting of the wrong kind, or a number out of its range, by its key. Null is as if it were missing."""
    for key, value in _settings(raw):
        if value is None:
            continue
        if key in _NUMBERS and _NUMBERS[key].fault(value):
            raise _unsupported(key, value, _NUMBERS[key].expected)
        if key in _TEXTS and not isinstance(value, str):
            raise _unsupported(key, value, "a text")
        if key in _LISTS and not (isinstance(value, list) and all(isinstance(part, str) for part in value)):
            raise _unsupported(key, value, "a list of texts")
        if key in _TABLES and not isinstance(value, dict):
            raise _unsupported(key, value, "an object")


def _settings(raw: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    """All settings, and those of rotary positions, which may be in an object for each kind of layer."""
    yield from raw.items()
    for key in ("rope_parameters", "rope_scaling"):
        if isinstance(inner := raw.get(key), dict):
            for name, value in inner.items():
                if isinstance(value, dict):
                    yield from value.items()
                else:
                    yield name, value
