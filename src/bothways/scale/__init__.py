"""Bulk work on many files: split into parts, over several processes, GPUs or machines."""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from bothways.scale.bulk import encode_files as encode_files
    from bothways.scale.bulk import predict_files as predict_files


def __getattr__(name: str) -> Any:
    """The two functions are imported when first used, so that the command line's help stays fast."""
    if name not in ("encode_files", "predict_files"):
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from bothways.scale import bulk

    return getattr(bulk, name)
