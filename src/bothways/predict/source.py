"""What makes vectors of texts: an encoder, or a static model."""

from pathlib import Path

from bothways.engine.engine import Engine
from bothways.model.box import model_for_vectors
from bothways.model.device import Device, Precision
from bothways.model.opened import AnsweringModel, open_model
from bothways.model.static import StaticModel, is_static, load_static

AnyModel = AnsweringModel | StaticModel | Path | str | None
"""A model, a static model, or the folder of one; None: the model for vectors in the box."""
Source = Engine | StaticModel


def open_source(
    model: AnyModel,
    base: Path | str | None = None,
    device: Device | None = None,
    dtype: Precision | None = None,
) -> Source:
    """A model, or the model in a folder. `base`: the base of an adapter. For `device` and `dtype` see `encode`."""
    if base is None:
        model = model_for_vectors(model)
    if isinstance(model, StaticModel):
        return model
    if isinstance(model, Path | str) and base is None and is_static(model):
        return load_static(model)
    if base is None or not (model is None or isinstance(model, Path | str)):
        return Engine(model, device=device, dtype=dtype)
    return Engine(open_model(model, base), device=device or "auto", dtype=dtype or "auto")
