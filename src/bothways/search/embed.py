"""Vectors of documents and of queries, each with the prompt of its role.

W width of the vectors.
"""

from collections.abc import Sequence
from typing import cast, get_args

import numpy as np
from numpy.typing import NDArray

from bothways.data.notes import row_error
from bothways.data.retrieval import Document
from bothways.engine.reader import Tally
from bothways.errors import BothwaysError
from bothways.model.static import StaticModel
from bothways.predict.roles import RoleEncoder, similarity_of
from bothways.predict.source import Source
from bothways.search.documents import hashes_of
from bothways.search.manifest import Settings
from bothways.search.passages import PassageSplitter, Span
from bothways.search.search_options import Similarity
from bothways.search.segment import DocumentBlock, line_of
from bothways.text.same_text import is_blank

Vectors = NDArray[np.float32]
_PROBE = "The model that read this text is known by its vector. 识别模型"
_SAME = 0.99
"""The least cosine of two vectors of the probe by one model: 16-bit numbers change it in the third digit."""


def searchable_similarity(source: Source) -> Similarity:
    """What the model's folder compares vectors by, if it is cosine or dot."""
    named = similarity_of(source)
    if named in get_args(Similarity):
        return cast(Similarity, named)
    raise BothwaysError(
        f"the model's folder compares vectors by {named!r}: give `similarity` cosine or dot",
        "unsupported-setting",
        ("similarity_fn_name", named),
    )


class Embedder:
    """A model that makes the vectors of an index."""

    def __init__(self, source: Source, settings: Settings) -> None:
        prompts = {"query_prompt": settings.query_prompt, "document_prompt": settings.document_prompt}
        # Nothing of a query is lost; and a passage may have some tokens more alone than inside its document.
        self._queries = RoleEncoder(source, **prompts, long="window")
        self._documents = RoleEncoder(source, **prompts, long=settings.long)
        self.settings, self.width, self.device = settings, self._documents.width, self._documents.device
        self._split = None
        if settings.long == "window" and not isinstance(source, StaticModel):  # which reads texts of any length
            prompt = self._documents.prompt("document") or ""
            limit = self._documents.max_length("document")
            self._split = PassageSplitter(source.model.require_tokenizer(), limit, prompt)

    def queries(self, texts: Sequence[str]) -> Vectors:
        """(queries, W)."""
        return self._of_length_1(self._queries.encode(texts, "query"))

    def probe(self) -> list[float]:
        """The vector of a fixed text, by which the model is known again."""
        found: list[float] = self._of_length_1(self._documents.encode([_PROBE], "document"))[0].tolist()
        return found

    def require_same(self, probe: Sequence[float], home: object) -> None:
        """Refuse a model that is not the one that made an index."""
        mine, theirs = np.array(self.probe()), np.array(probe)
        sizes = np.linalg.norm(mine) * np.linalg.norm(theirs)
        if len(mine) != len(theirs) or mine @ theirs < _SAME * sizes:
            raise BothwaysError(
                f"the vectors of {home} were made by another model, or by other settings of it: give that `model`, or "
                "build the index again",
                "other-model",
                str(home),
            )

    def block(self, documents: Sequence[Document], tally: Tally) -> DocumentBlock:
        """Documents with their passages and vectors."""
        texts = [document.text for document in documents]
        spans = self._split(texts) if self._split else [_whole(text) for text in texts]
        rows = [(i, start, end) for i, own in enumerate(spans) for start, end in own]
        counts = Tally()
        try:
            passages = [texts[i][start:end] for i, start, end in rows]
            vectors = self._of_length_1(self._documents.encode(passages, "document", tally=counts))
        except BothwaysError as error:
            if error.code != "too-long" or not isinstance(error.value, tuple):
                raise
            number, length = error.value
            says = f"has {length:,} tokens and this model reads fewer: set `long` to window or to cut"
            raise row_error(documents[rows[number - 1][0]].where, says, "too-long") from error
        # Counts are those of documents, and a passage is a window of its document.
        counts.texts, counts.empty = len(documents), sum(not own for own in spans)
        counts.in_windows, counts.windows = sum(len(own) > 1 for own in spans), len(rows)
        tally.add(counts)
        lines = [line_of(document.id, document.text) for document in documents]
        return DocumentBlock(lines, hashes_of(documents), np.array(rows, np.int64).reshape(-1, 3), vectors)

    def _of_length_1(self, vectors: Vectors) -> Vectors:
        """The same vectors, unless they are compared by cosine."""
        if self.settings.similarity == "dot":
            return vectors
        # In float64: the same length 1 whatever the machine rounds.
        lengths = np.linalg.norm(vectors.astype(np.float64), axis=1, keepdims=True)
        found: Vectors = (vectors / np.maximum(lengths, np.finfo(np.float32).tiny)).astype(np.float32)
        return found


def _whole(text: str) -> list[Span]:
    return [] if is_blank(text) else [(0, len(text))]
