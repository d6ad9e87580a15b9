"""Open any folder that holds a model: one of its own, or an adapter beside its base model."""

from pathlib import Path

import torch

from bothways.errors import BothwaysError
from bothways.model.box import boxed
from bothways.model.checkpoint import load_model
from bothways.model.lora import base_of, with_adapter
from bothways.model.model import Model


def load(folder: Path | str | None = None, *, dtype: torch.dtype = torch.float32) -> Model:
    """Open a model folder, in evaluation mode. Without a folder, open the model in the box.

    Whatever precision the file has, the model computes in `dtype`.
    """
    folder = boxed() if folder is None else Path(folder)
    if not folder.is_dir():
        what = f"{folder} is not a folder" if folder.exists() else f"there is no folder {folder}"
        raise BothwaysError(what, "no-folder", folder)
    if base := base_of(folder):
        return with_adapter(load(base), folder).to(dtype)
    return load_model(folder, dtype)
