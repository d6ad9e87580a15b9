"""Search over a corpus: by vectors, by words (BM25), or by both."""

from collections.abc import Iterable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import get_args

from bothways.data.sources import Paths
from bothways.engine.reader import Tally
from bothways.errors import BothwaysError, require_choice, require_range
from bothways.model.box import DEFAULT, lasting_name, model_for_vectors
from bothways.model.device import Device, Precision
from bothways.model.model import Model
from bothways.model.static import StaticModel
from bothways.predict.encode import warn_of_losses
from bothways.predict.encode_options import Long
from bothways.predict.given_texts import require_several
from bothways.predict.rerank import Ranker, Reranker
from bothways.predict.source import open_source
from bothways.progress import Watch, watch_nothing
from bothways.search import ingest
from bothways.search.embed import Embedder, searchable_similarity
from bothways.search.hnsw import require_usearch
from bothways.search.lexical import has_bm25s
from bothways.search.manifest import Settings
from bothways.search.ranking import Ranked, Rankings, SearchHit, fused
from bothways.search.search_options import Mode, Quantize, Similarity
from bothways.text.same_text import is_blank

_IN_ORDER = ingest.InOrder()
DEPTH = 100
"""Documents that are reranked, and of each ranking fused."""


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
        model: Model | StaticModel | Path | str | None = None,
        *,
        base: Path | str | None = None,
        device: Device | None = None,
        dtype: Precision | None = None,
    ) -> None:
        """As `open`."""
        self.home = Path(home)
        self._model, self._base, self._device, self._dtype = model, base, device, dtype
        self._made: Embedder | None = None
        self._reload()

    def _reload(self) -> None:
        self._manifest = ingest.require_manifest(self.home)
        self._segments = ingest.open_segments(self.home, self._manifest)
        self._rankings = Rankings(self.home, self._segments, self._manifest.changes)

    # ------------------------------------------------------------------ making and changing

    @classmethod
    def open(
        cls,
        home: Path | str,
        model: Model | StaticModel | Path | str | None = None,
        *,
        base: Path | str | None = None,
        device: Device | None = None,
        dtype: Precision | None = None,
    ) -> "Index":
        """Open an index. The model is loaded when it is needed.

        `model` and `base`: those that made the index, if their folders have moved. For `device` and `dtype` see
        `encode`.
        """
        return cls(home, model, base=base, device=device, dtype=dtype)

    @classmethod
    def build(
        cls,
        corpus: Paths,
        out: Path | str,
        model: Model | StaticModel | Path | str | None = None,
        *,
        base: Path | str | None = None,
        text: str | None = None,
        long: Long = "window",
        similarity: Similarity | None = None,
        query_prompt: str | None = None,
        document_prompt: str | None = None,
        quantize: Quantize | None = None,
        ann: bool | None = None,
        device: Device | None = None,
        dtype: Precision | None = None,
        watch: Watch = watch_nothing,
        make_parts: ingest.PartMaker = _IN_ORDER,
    ) -> "Index":
        """Build an index of a corpus in the folder `out`. If interrupted, the same call resumes.

        `corpus`: .txt (a document on each line), .jsonl, .csv, .tsv, .xlsx or .parquet with `_id` or `id`, `title` and
        `text` (the name of the column), a folder in BEIR's layout, or a folder of .txt, .md, .html and .pdf files.
        `long`: a document longer than the model's maximum length is split into passages ("window"), cut, or refused.
        `similarity`: cosine or dot, by default as the model's folder says. Prompts are put before queries and
        documents, by default those that the folder names query and document. `quantize`: also store int8 or binary
        vectors, which find candidates faster. `ann`: make an HNSW graph with usearch; by default beyond a million
        passages, if usearch is installed. `make_parts`: see `bothways.scale.index_workers`.
        """
        _require_choices(long, similarity, quantize, ann)
        model = model if base else model_for_vectors(model)
        made = open_source(model, base, device, dtype)
        settings = Settings(
            model="" if isinstance(model, Model | StaticModel) else lasting_name(model),
            base=lasting_name(base),
            similarity=similarity or searchable_similarity(made),
            long=long,
            query_prompt=query_prompt,
            document_prompt=document_prompt,
            quantize=quantize,
            ann=ann,
        )
        embedder = Embedder(made, settings)
        ingest.build(Path(out), corpus, settings, embedder, text, watch, make_parts)
        index = cls(out, model, base=base, device=device, dtype=dtype)
        index._made = embedder
        index._prepare_bm25(watch)
        warn_of_losses(index.tally)
        return index

    def add(
        self,
        corpus: Paths,
        *,
        text: str | None = None,
        watch: Watch = watch_nothing,
        make_parts: ingest.PartMaker = _IN_ORDER,
    ) -> None:
        """Add documents. Those that the index has are not embedded again. If interrupted, the same call resumes.

        Documents without an id are numbered from the last number on.
        """
        ingest.add(self.home, corpus, self._embedder(), text, watch, make_parts)
        self._reload()
        self._prepare_bm25(watch)
        warn_of_losses(self._segments[-1].tally)

    def delete(self, ids: Iterable[str]) -> None:
        """Delete documents by id: all of them, or none if the index lacks one. `compact` frees their space."""
        require_several(ids)
        ingest.delete(self.home, list(ids))
        self._reload()

    def compact(self) -> None:
        """Free the space of deleted documents, and join what was added later to one matrix."""
        ingest.compact(self.home)
        self._reload()

    # ------------------------------------------------------------------ searching

    def search(
        self,
        query: str,
        k: int = 10,
        *,
        mode: Mode = "dense",
        exact: bool = False,
        rerank: Ranker | Path | str | None = None,
        depth: int = DEPTH,
    ) -> list[SearchHit]:
        """The k best documents, best first. See `search_many`."""
        return self.search_many([query], k, mode=mode, exact=exact, rerank=rerank, depth=depth)[0]

    def search_many(
        self,
        queries: Sequence[str],
        k: int = 10,
        *,
        mode: Mode = "dense",
        exact: bool = False,
        rerank: Ranker | Path | str | None = None,
        depth: int = DEPTH,
    ) -> list[list[SearchHit]]:
        """The k best documents for each query, best first. A document comes once, with its best passage.

        `mode`: by vectors (dense), by words (bm25), or by the mean of both scores, scaled (fused). `exact`: compare all
        vectors, even if the index has a faster way. `rerank`: a cross-encoder that reranks the best `depth`;
        as many of both rankings are fused.
        """
        require_several(queries)
        if any(map(is_blank, queries)):
            raise BothwaysError("a query is empty", "no-text", "")
        require_choice("`mode`", mode, get_args(Mode))
        require_range("`k`", k, k > 0, "1 or more")
        require_range("`depth`", depth, depth > 0, "1 or more")
        many = max(k, depth) if rerank is not None or mode == "fused" else k
        ranked = self._ranked(queries, many, mode, exact, depth)
        if rerank is not None:
            if isinstance(rerank, Path | str):
                rerank = Reranker(rerank, device=self._device, dtype=self._dtype)
            ranked = [_reranked(query, hits, rerank) for query, hits in zip(queries, ranked, strict=True)]
        return [hits[:k] for hits in ranked]

    def __len__(self) -> int:
        """The number of documents."""
        return sum(int(segment.live.sum()) for segment in self._segments)

    @property
    def passages(self) -> int:
        """The number of passages, those of deleted documents included."""
        return sum(len(segment.vectors) for segment in self._segments)

    @property
    def model(self) -> str | None:
        """The name of the model that made it, as `load` takes it; "" if it was given in Python, None is en."""
        return self._manifest.settings.model

    @property
    def width(self) -> int:
        """The width of the vectors."""
        return self._manifest.width

    @property
    def tally(self) -> Tally:
        """What was read to make it: how many documents were cut, divided or empty."""
        total = Tally()
        for segment in self._segments:
            total.add(segment.tally)
        return total

    def _ranked(self, queries: Sequence[str], k: int, mode: Mode, exact: bool, depth: int) -> list[list[SearchHit]]:
        dense: list[list[Ranked]] = [[] for _ in queries]
        if mode != "bm25":
            embedder = self._embedder()
            vectors, device = embedder.queries(queries), embedder.device
            dense = self._rankings.dense(vectors, k, is_exact=exact, device=device)
        if mode == "dense":
            found = dense
        else:
            words = [self._rankings.bm25(query, k) for query in queries]
            found = words if mode == "bm25" else [fused(*both, depth) for both in zip(dense, words, strict=True)]
        hit = self._rankings.hit
        return [[hit(query, each) for each in one[:k]] for query, one in zip(queries, found, strict=True)]

    def _embedder(self) -> Embedder:
        """The model that made the index."""
        if self._made is None:
            settings = self._manifest.settings
            model, base = self._model, self._base
            if model is None:
                if settings.model == "":
                    says = f"{self.home} was made by a model that was given in Python: give it as `model`"
                    raise BothwaysError(says, "no-model", self.home)
                model, base = settings.model or DEFAULT, base or settings.base
            made = Embedder(open_source(model, base, self._device, self._dtype), settings)
            made.require_same(self._manifest.probe, self.home)
            self._made = made
        return self._made

    def _prepare_bm25(self, watch: Watch) -> None:
        """Make the BM25 index now, so that the first search need not wait for it."""
        if has_bm25s():
            self._rankings.lexical(watch)


def _reranked(query: str, hits: Sequence[SearchHit], ranker: Ranker) -> list[SearchHit]:
    """The hits in the order of another score; equal ones keep their order."""
    order = ranker.rank(query, [hit.passage for hit in hits]) if hits else []
    return [replace(hits[each.index], score=each.score) for each in order]


def _require_choices(long: str, similarity: str | None, quantize: str | None, ann: bool | None) -> None:
    require_choice("`long`", long, get_args(Long))
    if similarity is not None:
        require_choice("`similarity`", similarity, get_args(Similarity))
    if quantize is not None:
        require_choice("`quantize`", quantize, get_args(Quantize))
    if ann:
        require_usearch()
        if quantize is not None:
            says = f"`quantize` is {quantize} and `ann` is on: give one of them"
            raise BothwaysError(says, "bad-combination", quantize)
