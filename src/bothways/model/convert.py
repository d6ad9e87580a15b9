"""Convert a model from one checkpoint format into another."""

from pathlib import Path
from typing import Literal, get_args

import torch

from bothways import atomic
from bothways.errors import BothwaysError, require_choice
from bothways.model import checkpoint, fairseq, google
from bothways.model.adapter_config import base_of
from bothways.model.box import model_folder
from bothways.model.load import load
from bothways.model.model import Model
from bothways.text.dictionary import read_dictionary

Layout = Literal["hf", "google"]
_NOT_GOOGLES = ("token", "choice")
"""Heads that Google's code does not have."""


def convert(
    source: Path | str,
    target: Path | str,
    *,
    base: Path | str | None = None,
    to: Layout = "hf",
    dtype: torch.dtype = torch.float32,
) -> Model:
    """Write the model in `source` to the folder `target`, in Hugging Face's format or in Google's, and return it.

    `source` is a model as in `load`, or a fairseq RoBERTa: its .pt file, or the folder with that single .pt file.
    Google's format is for BERT in float32 only; `dtype` applies to Hugging Face's. An adapter is merged into its base
    model; `base`: as in `load`.
    """
    source, target = model_folder(source), Path(target)
    require_choice("to", to, get_args(Layout))
    if source.resolve() == target.resolve():
        raise BothwaysError(f"{target} is both source and target: name another target folder", "same-folder", target)
    if to == "google" and dtype != torch.float32:
        raise BothwaysError(
            f"Google's format has float32 only, not {dtype}: set `dtype` to float32, or `to` to hf",
            "unsupported-dtype",
            dtype,
        )
    model = _open(source, base)
    if to == "hf":
        checkpoint.save(model, target, dtype=dtype)
    else:
        _save_as_google(model, target)
    return model


def _open(source: Path, base: Path | str | None) -> Model:
    path = fairseq.find(source)
    if path is None:
        return load(source, base=base)
    base_of(source, base)  # which refuses a base
    raw, tensors = fairseq.read(path)
    return checkpoint.assemble(raw, tensors, read_dictionary(path.parent, raw["vocab_size"]), path)


def _save_as_google(model: Model, folder: Path) -> None:
    if model.config.family != "bert":
        raise BothwaysError(
            f"Google's format is for BERT only, and this model is {model.config.family}: set `to` to hf",
            "unsupported-family",
            model.config.family,
        )
    if heads := [name for name in model.config.heads if name in _NOT_GOOGLES]:
        raise BothwaysError(
            f"Google's format has no {heads[0]} head: set `to` to hf to keep it", "unsupported-head", heads[0]
        )
    with atomic.new_folder(folder, replaces=google.FILES) as fresh:
        google.write(fresh, checkpoint.describe(model), checkpoint.tensors_of(model), model.tokenizer)
