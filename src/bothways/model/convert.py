"""A model from one layout of files into another."""

from pathlib import Path
from typing import Literal, get_args

import torch

from bothways import atomic
from bothways.errors import BothwaysError, require_choice
from bothways.model import checkpoint, fairseq, google
from bothways.model.load import load
from bothways.model.model import Model
from bothways.text.dictionary import read_dictionary

Layout = Literal["hf", "google"]
_UNKNOWN_TO_GOOGLE = ("token", "choice")
"""Heads for which Google's programs have no name."""


def convert(source: Path | str, target: Path | str, *, to: Layout = "hf", dtype: torch.dtype = torch.float32) -> Model:
    """Write the model in `source` to the folder `target`, in Hugging Face's layout or in Google's, and return it.

    `source` is any model folder, or a RoBERTa of fairseq: its .pt file, or the folder that holds this one alone.
    Google's checkpoints are BERT's and in float32; `dtype` is for Hugging Face's.
    """
    source, target = Path(source), Path(target)
    require_choice("to", to, get_args(Layout))
    if source.resolve() == target.resolve():
        raise BothwaysError(f"{target} is what is read: name another folder to write to")
    if to == "google" and dtype != torch.float32:
        raise BothwaysError("Google's checkpoints are in float32: another precision is for --to hf")
    model = _open(source)
    if to == "hf":
        checkpoint.save(model, target, dtype=dtype)
    else:
        _save_as_google(model, target)
    return model


def _open(source: Path) -> Model:
    path = fairseq.find(source)
    if path is None:
        return load(source)
    raw, tensors = fairseq.read(path)
    return checkpoint.assemble(raw, tensors, read_dictionary(path.parent, raw["vocab_size"]), path)


def _save_as_google(model: Model, folder: Path) -> None:
    if model.config.family != "bert":
        raise BothwaysError(f"Google's checkpoints are BERT's, and this is {model.config.family}: --to hf writes it")
    if homeless := [name for name in model.config.heads if name in _UNKNOWN_TO_GOOGLE]:
        raise BothwaysError(f"Google's checkpoints have no place for the {homeless[0]} head: --to hf writes it")
    with atomic.new_folder(folder, replaces=google.FILES) as fresh:
        google.write(fresh, checkpoint.describe(model), checkpoint.tensors_of(model), model.tokenizer)
