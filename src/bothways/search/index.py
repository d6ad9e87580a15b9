"""Search over a corpus: by vectors, by words (BM25), or by both."""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import get_args

import numpy as np

from bothways import atomic
from bothways.data.sources import Paths
from bothways.engine.engine import Engine
from bothways.engine.reader import Tally
from bothways.errors import BothwaysError, require_choice, require_range
from bothways.model.device import Device, Precision
from bothways.model.load import load
from bothways.model.model import Model
from bothways.predict.encode import require_several
from bothways.predict.encode_options import Long
from bothways.predict.rerank import Reranker
from bothways.progress import Watch, watch_nothing
from bothways.search import ingest
from bothways.search.dense import nearest_documents
from bothways.search.embed import Embedder, similarity_of
from bothways.search.fuse import reciprocal_rank_fusion
from bothways.search.hnsw import require_usearch
from bothways.search.lexical import Lexical, best_passage, has_bm25s
from bothways.search.manifest import Settings
from bothways.search.search_options import Mode, Quantize, Similarity

FUSED = 100
"""Documents of each ranking that are fused, at least."""
RERANKED = 100
"""Documents that are reranked."""


@dataclass(frozen=True)
class SearchHit:
    """A document that was found."""

    id: str
    score: float
    """A cosine or inner product, a BM25 score, a fused score, or that of the reranker."""
    passage: str
    """The part of the document that fits the query best; of a short document all of it."""
    start: int
    """Where the passage begins in the document."""
    end: int
    """Where it ends."""


class Index:
    """An index on disk. Several processes may search it while one changes it.

    >>> import tempfile
    >>> folder = Path(tempfile.mkdtemp())
    >>> _ = (folder / "corpus.txt").write_text("The cat sleeps.\\nParis is the capital of France.\\n")
    >>> index = Index.build(folder / "corpus.txt", folder / "index", device="cpu")
    >>> index.search("Which city is the capital of France?", k=1)[0].id
    '2'
    """

    def __init__(
        self,
        home: Path | str,
        model: Model | Path | str | None = None,
        *,
        base: Path | str | None = None,
        device: Device | None = None,
        dtype: Precision | None = None,
    ) -> None:
        """Open an index. `model`: the one that made it, if its folder has moved. For the rest see `encode`."""
        self.home = Path(home)
        self._model, self._base, self._device, self._dtype = model, base, device, dtype
        self._made: Embedder | None = None
        self._reload()

    open = classmethod(lambda cls, home, model=None, **options: cls(home, model, **options))

    def _reload(self) -> None:
        self._manifest = ingest.require_manifest(self.home)
        self._segments = ingest.open_segments(self.home, self._manifest)
        self._first = np.cumsum([0, *(len(segment.ids) for segment in self._segments)])
        self._first_row = np.cumsum([0, *(len(segment.vectors) for segment in self._segments)])
        self._lexical: Lexical | None = None
