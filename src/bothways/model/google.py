"""Google's original BERT folders, read and written: bert_config.json, vocab.txt, bert_model.ckpt.*"""

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

# Google's names into Hugging Face's: all of these, one after the other.
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
# And back.
_THEIR_NAMES = (
    (r"^(?!bert\.|cls\.|classifier\.|qa_outputs\.)", "bert."),  # a body alone has no prefix at Hugging Face
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
# What only serves to go on training: adam_m, adam_v, lamb_m, AdamWeightDecayOptimizer_1, …
_OPTIMISER = re.compile(r"(^|/)(global_step|beta[12]_power|(adam|lamb)(_\w+|\w*optimizer\w*)?)(/|$)", re.IGNORECASE)
# What Google's code takes for granted, or of which it knows these only.
_FIXED: dict[str, tuple[Any, ...]] = {
    "layer_norm_eps": (1e-12,),
    "is_decoder": (False,),
    "hidden_act": ("gelu", "relu", "tanh"),
}
_TOKENS = ("pad_token_id", "cls_token_id", "sep_token_id", "bos_token_id", "eos_token_id")
_UNSAID = ("model_type", "architectures", "dtype", *_TOKENS, "layer_norm_eps", "is_decoder")
"""Settings of config.json that bert_config.json never has."""


def read(folder: Path, raw: dict[str, Any]) -> tuple[dict[str, Any], dict[str, Tensor]]:
    """A checkpoint's config and tensors in Hugging Face's terms; `raw` is what bert_config.json says."""
    try:
        tensors = _read_tensors(_find_index(folder))
    except OSError as error:
        raise BothwaysError(f"{error.filename or folder} cannot be read: {error.strerror}") from error
    # "gelu" stays, and means erf: so it was computed when these models were trained, and so Hugging Face reads the
    # same files. Google's code turned to the tanh approximation only later.
    return {"model_type": "bert", "layer_norm_eps": 1e-12} | raw, tensors


def write(folder: Path, raw: Mapping[str, Any], tensors: Mapping[str, Tensor], tokenizer: Tokenizer | None) -> None:
    """Write a BERT into an empty folder; `raw` is its config.json and `tensors` are under Hugging Face's names."""
    for key, allowed in _FIXED.items():
        if raw[key] not in allowed:
            said = " or ".join(map(str, allowed))
            raise BothwaysError(f"Google's BERT has {key} = {said} and this model {raw[key]}: --to hf keeps it")
    _write_json(folder / "bert_config.json", {key: value for key, value in raw.items() if key not in _UNSAID})
    if tokenizer is not None:
        _write_vocabulary(folder, tokenizer)
    bundle.write(folder / "bert_model.ckpt.index", dict(_theirs(name, tensor) for name, tensor in tensors.items()))


def _theirs(name: str, tensor: Tensor) -> tuple[str, Tensor]:
    for pattern, replacement in _THEIR_NAMES:
        name = re.sub(pattern, replacement, name)
    return name, tensor.T if name.endswith("/kernel") else tensor


def _write_vocabulary(folder: Path, tokenizer: Tokenizer) -> None:
    """vocab.txt, and beside it what Google's programs are told by --do_lower_case: they do not mind the file."""
    switches = tokenizer.switches
    if tokenizer.kind != "WordPiece" or not switches:
        raise BothwaysError(f"Google's BERT reads WordPiece with BERT's rules, and this tokenizer is {tokenizer.kind}")
    added = tokenizer.backend.get_added_tokens_decoder()
    if any(not token.special and number not in tokenizer.special_ids for number, token in added.items()):
        raise BothwaysError(
            "words were added to this vocabulary, and Google's vocab.txt has no place for such: --to hf"
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
    if len(found) > 1 and latest.exists():  # TensorFlow's note of what it wrote last; the path may be another machine's
        named = re.search(r'"(?:.*/)?(.+)"', latest.read_text(encoding="utf-8", errors="replace"))
        found = [path for path in found if named and path.name == f"{named[1]}.index"] or found
    if len(found) == 1:
        return found[0]
    names = ", ".join(path.name for path in found) or "none"
    raise BothwaysError(f"{folder} should hold one checkpoint, {usual.name}, and holds {names}")


def _read_tensors(index: Path) -> dict[str, Tensor]:
    tensors: dict[str, Tensor] = {}
    for variable, tensor in bundle.read(index, leave=_OPTIMISER):
        name = variable
        for pattern, replacement in _NAMES:
            name = re.sub(pattern, replacement, name)
        if name in tensors:
            raise BothwaysError(f"{index} holds two variables that would both be called {name}")
        # TensorFlow multiplies from the other side: its kernels are (in, out) and ours (out, in).
        is_kernel = variable.endswith("/kernel") and tensor.ndim == 2
        tensors[name] = tensor.T.contiguous() if is_kernel else tensor
    return tensors
