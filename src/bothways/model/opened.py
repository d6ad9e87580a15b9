"""Opens any model folder to answer with it: one with weights, or an exported graph, for which torch is not imported."""

from pathlib import Path
from typing import TYPE_CHECKING, Union

from bothways.errors import BothwaysError
from bothways.lazy import imported
from bothways.model.box import model_folder
from bothways.model.exported import ExportedModel, graph_file

if TYPE_CHECKING:
    from bothways.model.model import Model

AnsweringModel = Union["Model", ExportedModel]


def open_exported(folder: Path | str | None) -> ExportedModel | None:
    """The graph of an exported folder, given by its path or as the path of one of its files; None for other folders."""
    graph = graph_file(model_folder(folder))
    return None if graph is None else ExportedModel(graph)


def open_model(folder: Path | str | None = None, base: Path | str | None = None) -> AnsweringModel:
    """A model with weights in fp32 on the CPU, or an exported one. `base`: as in `load`."""
    if (found := open_exported(folder)) is None:
        opened: Model = imported("bothways.model.load").load(folder, base=base)
        return opened
    if base is not None:
        raise BothwaysError(
            f"`base` is {base}, and {found.file} is a graph with its base in it: leave it out", "exported-graph", base
        )
    return found
