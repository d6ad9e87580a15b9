"""Reads and writes Google's original BERT folders: bert_config.json, vocab.txt, bert_model.ckpt.*"""

import json
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from torch import Tensor

from bothways.errors import BothwaysError
from bothways.model import bundle
from bothways.text.tokenizer import Tokenizer

FILES = (
    "bert_config.json",
    "vocab.txt",
    "tokenizer_config.json",
    "bert_model.ckpt.index",
    "bert_model.ckpt.data-00000-of-00001",
)
"""What `write` writes."""

# From Google's names to Hugging Face's: all substitutions, in this order.
_NAMES = (
    (r"^output_(?=(weights|bias)$)", "classifier/output_"),  # run_classifier.py
    (r"^cls/squad/", "qa_outputs/"),  # run_squad.py
    (r"/output_(?=(weights|bias)$)", "/"),
    (r"/(weights|kernel|gamma)$", "/weight"),
    (r"/beta$", "/bias"),
    (r"_embeddings$", "_embeddings/weight"),
    (r"/layer_(\d+)/", r"/layer/\1/"),
    (r"/", "."),
)
# From Hugging Face's names to Google's.
_THEIR_NAMES = (
    (r"^(?!bert\.|cls\.|classifier\.|qa_outputs\.)", "bert."),  # Hugging Face's files of a body alone have no prefix
    (r"^classifier\.", "output_"),
    (r"^qa_outputs\.", "cls.squad.output_"),
    (r"^cls\.(predictions|seq_relationship)\.(?=(weight|bias)$)", r"cls.\1.output_"),
    (r"output_weight$", "output_weights"),
    (r"LayerNorm\.weight$", "LayerNorm.gamma"),
    (r"LayerNorm\.bias$", "LayerNorm.beta"),
    (r"_embeddings\.weight$", "_embeddings"),
    (r"\.weight$", ".kernel"),
    (r"\.layer\.(\d+)\.", r".layer_\1."),
    (r"\.", "/"),
)
# The optimizer's state: adam_m, adam_v, lamb_m, AdamWeightDecayOptimizer_1, …
_OPTIMIZER = re.compile(r"(^|/)(global_step|beta[12]_power|(adam|lamb)(_\w+|\w*optimizer\w*)?)(/|$)", re.IGNORECASE)
# Settings that Google's code fixes, or of which it has these values only.
_FIXED: dict[str, tuple[Any, ...]] = {
    "layer_norm_eps": (1e-12,),
    "is_decoder": (False,),
    "hidden_act": ("gelu", "relu", "tanh"),
}
_TOKENS = ("pad_token_id", "cls_token_id", "sep_token_id", "bos_token_id", "eos_token_id")
_HF_ONLY = ("model_type", "architectures", "dtype", *_TOKENS, "layer_norm_eps", "is_decoder")
"""Settings of config.json that bert_config.json does not have."""


def read(folder: Path, raw: dict[str, Any]) -> tuple[dict[str, Any], dict[str, Tensor]]:
    """The config and the tensors of a checkpoint under Hugging Face's names; `raw` is its bert_config.json."""
    try:
        tensors = _read_tensors(_find_index(folder))
    except OSError as error:
        path = Path(error.filename or folder)
        raise BothwaysError(f"{path} cannot be read: {error.strerror}", "unreadable-file", path) from error
    # "gelu" stays the exact one: these models were trained with it, and Hugging Face reads the same files so. Google's
    # code changed to the tanh approximation later.
    return {"model_type": "bert", "layer_norm_eps": 1e-12} | raw, tensors


def write(folder: Path, raw: Mapping[str, Any], tensors: Mapping[str, Tensor], tokenizer: Tokenizer | None) -> None:
    """Write a BERT into an empty folder. `raw` is its config.json, `tensors` have Hugging Face's names."""
    for key, allowed in _FIXED.items():
        if raw[key] not in allowed:
            raise BothwaysError(
                f"this model has {key} = {raw[key]}, and Google's code only {' or '.join(map(str, allowed))}: set `to` "
                f"to hf",
                "unsupported-setting",
                (key, raw[key]),
            )
    _write_json(folder / "bert_config.json", {key: value for key, value in raw.items() if key not in _HF_ONLY})
    if tokenizer is not None:
        _write_vocabulary(folder, tokenizer)
    bundle.write(folder / "bert_model.ckpt.index", dict(_theirs(name, tensor) for name, tensor in tensors.items()))


def _theirs(name: str, tensor: Tensor) -> tuple[str, Tensor]:
    for pattern, replacement in _THEIR_NAMES:
        name = re.sub(pattern, replacement, name)
    return name, tensor.T if name.endswith("/kernel") else tensor


def _write_vocabulary(folder: Path, tokenizer: Tokenizer) -> None:
    """vocab.txt, and tokenizer_config.json for do_lower_case, which Google's programs take on the command line."""
    switches = tokenizer.switches
    if tokenizer.kind != "WordPiece" or not switches:
        raise BothwaysError(
            f"Google's code needs BERT's WordPiece tokenizer, and this one is {tokenizer.kind}: set `to` to hf",
            "unsupported-tokenizer",
            tokenizer.kind,
        )
    added = tokenizer.backend.get_added_tokens_decoder()
    words = [t.content for i, t in added.items() if not t.special and i not in tokenizer.special_ids]
    if words:
        raise BothwaysError(
            f"the vocabulary has added words, such as {words[0]!r}, and Google's vocab.txt cannot hold them: set `to` "
            f"to hf",
            "added-words",
            tuple(words),
        )
    (folder / "vocab.txt").write_text("".join(f"{piece}\n" for piece in tokenizer.pieces), encoding="utf-8")
    _write_json(folder / "tokenizer_config.json", switches)


def _write_json(path: Path, value: Mapping[str, Any]) -> None:
    path.write_text(json.dumps(value, indent=2, ensure_ascii=False, sort_keys=True) + "\n", encoding="utf-8")


def _find_index(folder: Path) -> Path:
    usual, latest = folder / "bert_model.ckpt.index", folder / "checkpoint"
    if usual.exists():
        return usual
    found = sorted(folder.glob("*.ckpt*.index")) or sorted(folder.glob("*.index"))
    if len(found) > 1 and latest.exists():  # names the latest checkpoint, perhaps by a path on another machine
        named = re.search(r'"(?:.*/)?(.+)"', latest.read_text(encoding="utf-8", errors="replace"))
        found = [path for path in found if named and path.name == f"{named[1]}.index"] or found
    if len(found) == 1:
        return found[0]
    if not found:
        raise BothwaysError(f"{folder} has no weights: expected {usual.name}", "no-weights", folder)
    names = tuple(path.name for path in found)
    raise BothwaysError(
        f"{folder} holds several checkpoints: keep one of {', '.join(names)}", "several-checkpoints", names
    )


def _read_tensors(index: Path) -> dict[str, Tensor]:
    tensors: dict[str, Tensor] = {}
    for variable, tensor in bundle.read(index, skip=_OPTIMIZER):
        name = variable
        for pattern, replacement in _NAMES:
            name = re.sub(pattern, replacement, name)
        if name in tensors:
            raise BothwaysError(f"{index} holds two variables for the tensor {name}", "duplicate-tensor", name)
        # TensorFlow's kernels are (in, out), PyTorch's weights (out, in).
        is_kernel = variable.endswith("/kernel") and tensor.ndim == 2
        tensors[name] = tensor.T.contiguous() if is_kernel else tensor
    return tensors
