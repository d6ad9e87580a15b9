"""A graph of neighbours (HNSW) that finds candidates among millions of vectors. Needs the extra ann (usearch)."""

from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from bothways.errors import missing_package
from bothways.search.products import release

GRAPH = "graph.usearch"
MANY = 1_000_000
"""Vectors from which a graph is made without being asked for, if usearch is installed."""
_AT_ONCE = 65_536
_EXPANSION = 256  # neighbours looked at in a search, at least
_SETTINGS: dict[str, Any] = {"metric": "ip", "dtype": "f16", "connectivity": 16, "expansion_add": 128}


def has_usearch() -> bool:
    """Whether the extra is installed."""
    try:
        import usearch.index  # noqa: F401
    except ImportError:
        return False
    return True


def require_usearch() -> None:
    """Refuse to go on without the extra."""
    if not has_usearch():
        raise missing_package("`ann`", "usearch")


def write_graph(folder: Path, vectors: NDArray[np.float32]) -> None:
    """Write the graph of vectors (rows, W)."""
    require_usearch()
    import usearch.index

    graph = usearch.index.Index(ndim=vectors.shape[1], **_SETTINGS)
    for first in range(0, len(vectors), _AT_ONCE):
        some = np.array(vectors[first : first + _AT_ONCE])
        graph.add(np.arange(first, first + len(some), dtype=np.uint64), some)
        release(vectors)
    graph.save(str(folder / GRAPH))


class Graph:
    """The graph of a segment, memory-mapped."""

    def __init__(self, folder: Path, width: int) -> None:
        self._file, self._width = folder / GRAPH, width
        self._graph: Any = None

    def candidates(self, queries: NDArray[np.float32], k: int) -> list[NDArray[np.int64]]:
        """For each query (Q, W) about k rows that are near."""
        graph = self._opened()
        graph.expansion_search = max(_EXPANSION, k)
        count = min(k, len(graph))
        return [np.sort(graph.search(query, count).keys.astype(np.int64)) for query in queries]

    def _opened(self) -> Any:
        if self._graph is None:
            require_usearch()
            import usearch.index

            self._graph = usearch.index.Index(ndim=self._width, **_SETTINGS)
            self._graph.view(str(self._file))
        return self._graph
