"""Opens what orders documents: a cross-encoder, with weights or exported, or late interaction."""

from pathlib import Path

from bothways.lazy import imported
from bothways.model.box import model_folder
from bothways.model.device import Device, Precision
from bothways.model.opened import open_model
from bothways.predict.encode_options import Long
from bothways.predict.rerank import Ranker, Reranker, folder_limit, reranker_config


def open_ranker(
    folder: Path | str,
    *,
    base: Path | str | None = None,
    device: Device = "auto",
    dtype: Precision = "auto",
    long: Long | None = None,
) -> Ranker:
    """The ranker of a folder: late interaction if it is a ColBERT, else a cross-encoder. `base`: as in `load`."""
    model = open_model(folder, base)
    if model.late is not None:
        kind = imported("bothways.predict.late_interaction").LateInteraction
        found: Ranker = kind(model, device=device, dtype=dtype, long=long or "window")
        return found
    limit = folder_limit(model_folder(folder), reranker_config(model))
    return Reranker(model, device=device, dtype=dtype, long=long, max_length=limit)
