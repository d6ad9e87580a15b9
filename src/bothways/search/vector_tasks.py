"""How each kind of evaluation set is scored: vectors of its texts, and what is done with them."""

from collections import deque
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field

import numpy as np
import torch

from bothways.data.notes import Notes
from bothways.data.retrieval import Collection, Document, read_collection
from bothways.data.vector_sets import (
    Kind,
    LabelledTexts,
    VectorSet,
    read_candidates,
    read_clusterings,
    read_labelled,
    read_scored_pairs,
)
from bothways.predict.encode import Vectors
from bothways.predict.kmeans import kmeans
from bothways.predict.linear_probe import fit_probe
from bothways.predict.roles import Role, RoleEncoder
from bothways.progress import Watch
from bothways.scoring.accumulator import Accumulator, Floats
from bothways.scoring.averages import MeanOverGroups, MeanOverRuns
from bothways.scoring.classification import Classes
from bothways.scoring.clustering import Clustering
from bothways.scoring.ranking import Ranking
from bothways.scoring.regression import Regression
from bothways.scoring.retrieval import Retrieval
from bothways.search.top_documents import TopDocuments

SEEDS = range(5)
"""Of the clusterings, whose mean counts."""
METRICS: dict[Kind, tuple[str, ...]] = {
    "sts": ("spearman", "pearson"),
    "retrieval": ("ndcg@10", "mrr@10", "map@100", "recall@100"),
    "reranking": ("map", "mrr@10"),
    "clustering": ("v_measure",),
    "classification": ("accuracy", "macro_f1"),
}
"""The scores of each kind; the first is the main one."""


@dataclass(frozen=True)
class Scored:
    """The scores of a model on one set."""

    accumulator: Accumulator
    counts: dict[str, int] = field(default_factory=dict)
    """Of pairs, queries, documents, texts, labels."""


@dataclass(frozen=True)
class Setting:
    """A model and what goes with it."""

    encoder: RoleEncoder
    notes: Notes
    watch: Watch


def score_set(one: VectorSet, setting: Setting) -> Scored:
    """Score a model on a set, as its kind asks for."""
    return _SCORERS[one.kind](one, setting)


def _score_sts(one: VectorSet, setting: Setting) -> Scored:
    """Cosines of pairs against their scores."""
    pairs, gold = read_scored_pairs(one.path, setting.notes)
    vectors = _Lookup(one, setting, [text for pair in pairs for text in pair])
    regression = Regression()
    first, second = (_unit(vectors[[pair[i] for pair in pairs]]) for i in (0, 1))
    regression.add(gold, np.einsum("nw,nw->n", first, second))
    return Scored(regression, {"pairs": len(pairs)})


def _score_retrieval(one: VectorSet, setting: Setting) -> Scored:
    """The best 100 documents of the whole corpus for each query.

    As in BEIR, a document with the id of the query is left out: in ArguAna and Quora it is the query itself. One that
    is judged to be relevant is kept, since then the two ids are equal by accident.
    """
    collection = read_collection(one.path, one.split, setting.notes)
    found = _search(one, collection, setting)
    retrieval, own = Retrieval(cutoffs=(10, 100)), 0
    for number, query in enumerate(collection.queries):
        judged, (ids, scores) = collection.judgements[query], found.of(number)
        if query in ids and judged.get(query, 0) < 1:
            place, own = ids.index(query), own + 1
            del ids[place], scores[place]
        retrieval.add(query, judged, ids, scores)
    counts = {"queries": len(collection.queries), "documents": len(found)}
    return Scored(retrieval, counts | ({"own documents left out": own} if own else {}))


def _search(one: VectorSet, collection: Collection, setting: Setting) -> TopDocuments:
    """The best documents of each query: one more than needed, since its own may be among them."""
    encoder, waiting = setting.encoder, deque[str]()

    def texts(documents: Iterable[Document]) -> Iterator[str]:
        for document in documents:
            waiting.append(document.id)
            yield document.text

    asked = setting.watch(list(collection.queries.values()), f"encoding the queries of {one.name}")
    found = TopDocuments(encoder.encode(asked, "query"), 101, encoder.similarity_name, str(encoder.device))
    read = collection.documents(setting.notes)
    watched = setting.watch(read, f"searching {one.name}", [str(collection.corpus_file)])
    for vectors in encoder.blocks(texts(watched), "document"):
        found.add([waiting.popleft() for _ in range(len(vectors))], vectors)
    return found


def _score_reranking(one: VectorSet, setting: Setting) -> Scored:
    """The given documents of each query, ranked by similarity."""
    rows = list(read_candidates(one.path, setting.notes))
    queries = _Lookup(one, setting, [row.query for row in rows], "query")
    documents = _Lookup(one, setting, [text for row in rows for text in (*row.positives, *row.negatives)], "document")
    ranking = Ranking(10)
    for row in rows:
        texts = [*row.positives, *row.negatives]
        gold = [1] * len(row.positives) + [0] * len(row.negatives)
        first, second = (torch.from_numpy(vectors) for vectors in (queries[[row.query]], documents[texts]))
        # One by one: a matrix product may give equal vectors scores that differ in their last bit.
        ranking.add(gold, setting.encoder.similarity_pairwise(first.expand_as(second), second).numpy())
    counts = {"queries": len(rows), "documents": sum(len(row.positives) + len(row.negatives) for row in rows)}
    return Scored(ranking, counts | ({"without a positive": left} if (left := ranking.without_relevant) else {}))


def _score_clustering(one: VectorSet, setting: Setting) -> Scored:
    """k-means with as many clusters as there are labels, with several seeds."""
    groups = read_clusterings(one.path, setting.notes)
    vectors = _Lookup(one, setting, [text for group in groups for text in group.texts])
    rounds = setting.watch([(group, seed) for group in groups for seed in SEEDS], f"clustering {one.name}")
    runs = [_clustered(group, vectors, seed) for group, seed in rounds]
    found = [MeanOverRuns(runs[first : first + len(SEEDS)]) for first in range(0, len(runs), len(SEEDS))]
    labels = {label for group in groups for label in group.labels}
    counts = {"texts": sum(len(group.texts) for group in groups), "labels": len(labels)}
    if len(groups) == 1:
        return Scored(found[0], counts)
    return Scored(MeanOverGroups(found), counts | {"groups": len(groups)})


def _clustered(group: LabelledTexts, vectors: "_Lookup", seed: int) -> Clustering:
    clustering = Clustering()
    clusters = kmeans(vectors[group.texts], len(set(group.labels)), seed)
    clustering.add(group.labels, clusters.tolist())
    return clustering


def _score_classification(one: VectorSet, setting: Setting) -> Scored:
    """A linear probe, fitted on the vectors of the training file."""
    assert one.train is not None
    (texts, labels), (unseen, gold) = (read_labelled(path, setting.notes) for path in (one.train, one.path))
    vectors = _Lookup(one, setting, [*texts, *unseen])
    names = sorted(set(labels))
    places = {name: place for place, name in enumerate([*names, *sorted(set(gold) - set(names))])}
    probe = fit_probe(vectors[texts], np.array([places[label] for label in labels]), len(names), watch=setting.watch)
    probabilities = np.zeros((len(unseen), len(places)))
    probabilities[:, : len(names)] = probe.probabilities(vectors[unseen])
    classes = Classes(list(places))
    classes.add([places[label] for label in gold], probabilities)
    return Scored(classes, {"training texts": len(texts), "texts": len(unseen), "labels": len(places)})


_SCORERS: dict[Kind, Callable[[VectorSet, Setting], Scored]] = {
    "sts": _score_sts,
    "retrieval": _score_retrieval,
    "reranking": _score_reranking,
    "clustering": _score_clustering,
    "classification": _score_classification,
}


class _Lookup:
    """The vectors of texts, each different text encoded once."""

    def __init__(self, one: VectorSet, setting: Setting, texts: Iterable[str], role: Role | None = None) -> None:
        self._places = {text: place for place, text in enumerate(dict.fromkeys(texts))}
        self._vectors = setting.encoder.encode(setting.watch(list(self._places), f"encoding {one.name}"), role)

    def __getitem__(self, texts: list[str]) -> Vectors:
        return self._vectors[[self._places[text] for text in texts]]


def _unit(vectors: Vectors) -> Floats:
    """Vectors of length 1, in 64 bits."""
    wide = vectors.astype(np.float64)
    unit: Floats = wide / np.maximum(np.linalg.norm(wide, axis=1, keepdims=True), 1e-12)
    return unit
