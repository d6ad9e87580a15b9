"""Vectors of documents and of queries, each with the prompt of its role.

W width of the vectors.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import Any, cast, get_args

import numpy as np
import torch
from numpy.typing import NDArray

from bothways.data.notes import row_error
from bothways.data.retrieval import Document
from bothways.engine.engine import Engine
from bothways.engine.reader import Tally
from bothways.errors import BothwaysError
from bothways.model.device import Device, Precision
from bothways.model.load import load
from bothways.model.model import Model
from bothways.model.static import StaticModel, is_static, load_static
from bothways.predict.encode import encode_blocks
from bothways.predict.features import Features, TextRecipe, text_recipe
from bothways.predict.roles import PROMPT_NAMES, Role, similarity_of
from bothways.search.documents import hashes_of
from bothways.search.manifest import Settings
from bothways.search.passages import PassageSplitter, Span
from bothways.search.search_options import Similarity
from bothways.search.segment import DocumentBlock, line_of

Vectors = NDArray[np.float32]
_PROBE = "The model that read this text is known by its vector. 识别模型"
_SAME = 0.99
"""The least cosine of two vectors of the probe by one model: 16-bit numbers change it in the third digit."""


Source = Engine | StaticModel
"""What makes vectors: an encoder, or a static model."""


def open_source(
    model: Model | StaticModel | Path | str | None,
    base: Path | str | None = None,
    device: Device | None = None,
    dtype: Precision | None = None,
) -> Source:
    """A model, or the model in a folder; by default the one in the box."""
    if isinstance(model, StaticModel):
        return model
    if isinstance(model, Path | str) and base is None and is_static(Path(model)):
        return load_static(model)
    if isinstance(model, Model) or base is None:
        return Engine(model, device=device, dtype=dtype)
    return Engine(load(model, base=base), device=device or "auto", dtype=dtype or "auto")


def searchable_similarity(source: Source) -> Similarity:
    """What the model's folder compares vectors by, if it is cosine or dot."""
    named = "cosine" if isinstance(source, StaticModel) else similarity_of(source.model)
    if named in get_args(Similarity):
        return cast(Similarity, named)
    raise BothwaysError(
        f"the model's folder compares vectors by {named!r}: give `similarity` cosine or dot",
        "unsupported-setting",
        ("similarity_fn_name", named),
    )


def _recipe(model: Model, role: Role, prompt: str | None, long: Any) -> TextRecipe:
    features = Features(long=long)
    known = model.sentence.prompts if model.sentence is not None else {}
    name = next((name for name in PROMPT_NAMES[role] if name in known), None) if prompt is None else None
    return text_recipe(model, features, None, prompt, name)


class Embedder:
    """A model that makes the vectors of an index."""

    def __init__(self, source: Source, settings: Settings) -> None:
        self._source, self.settings, self._split = source, settings, None
        self._queries: TextRecipe | None = None
        self._documents: TextRecipe | None = None
        if isinstance(source, StaticModel):  # it reads texts of any length, and knows no prompts
            if settings.query_prompt or settings.document_prompt:
                raise BothwaysError("a static model takes no `query_prompt` or `document_prompt`", "bad-combination")
            self.width, self.device = source.width, torch.device("cpu")
            return
        model, self.device = source.model, source.device
        # Nothing of a query is lost; and a passage may have some tokens more alone than inside its document.
        self._queries = _recipe(model, "query", settings.query_prompt, "window")
        long = settings.long
        self._documents = _recipe(model, "document", settings.document_prompt, long)
        self.width = self._documents.width(model.config.encoder)
        if long == "window":
            max_length = self._documents.max_length or model.config.encoder.max_length
            self._split = PassageSplitter(model.require_tokenizer(), max_length, self._documents.prompt)

    def queries(self, texts: Sequence[str]) -> Vectors:
        """(queries, W)."""
        return self._vectors(texts, self._queries, Tally())

    def probe(self) -> list[float]:
        """The vector of a fixed text, by which the model is known again."""
        found: list[float] = self._vectors([_PROBE], self._documents, Tally())[0].tolist()
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
            vectors = self._vectors([texts[i][start:end] for i, start, end in rows], self._documents, counts)
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

    def _vectors(self, texts: Sequence[str], recipe: TextRecipe | None, tally: Tally) -> Vectors:
        if recipe is None or isinstance(self._source, StaticModel):
            assert isinstance(self._source, StaticModel)
            blocks = [self._source.encode(texts)]
        else:
            blocks = list(encode_blocks(texts, self._source, recipe, tally))
        vectors = np.concatenate([np.zeros((0, self.width), np.float32), *blocks])
        if self.settings.similarity == "dot":
            return vectors
        # In float64: the same length 1 whatever the machine rounds.
        lengths = np.linalg.norm(vectors.astype(np.float64), axis=1, keepdims=True)
        found: Vectors = (vectors / np.maximum(lengths, np.finfo(np.float32).tiny)).astype(np.float32)
        return found


def _whole(text: str) -> list[Span]:
    return [(0, len(text))] if text.strip() else []
