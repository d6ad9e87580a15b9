"""Search, similar pairs, groups and hard negatives, from vectors."""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from bothways.search.index import Index as Index
    from bothways.search.ranking import SearchHit as SearchHit


def __getattr__(name: str) -> Any:
    """The names are imported when first used, so that the command line's help stays fast."""
    from importlib import import_module

    homes = {"Index": "index", "SearchHit": "ranking"}
    if name not in homes:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"bothways.search.{homes[name]}"), name)
