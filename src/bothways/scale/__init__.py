"""Bulk work on many files: split into parts, over several processes, GPUs or machines."""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from bothways.scale.bulk import encode_files as encode_files
    from bothways.scale.bulk import predict_files as predict_files
    from bothways.scale.indexing import index_workers as index_workers

_HOMES = {"encode_files": "bulk", "predict_files": "bulk", "index_workers": "indexing"}


def __getattr__(name: str) -> Any:
    """The functions are imported when first used, so that the command line's help stays fast."""
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from importlib import import_module

    return getattr(import_module(f"bothways.scale.{_HOMES[name]}"), name)
