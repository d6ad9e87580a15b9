"""Sentence vectors (bi-encoders): texts that belong together get vectors with a high cosine.

S texts of a step · B examples · W width.
"""

import zlib
from collections import Counter, deque
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray
from torch import Tensor
from torch.nn import functional as F

from bothways.data.columns import Columns
from bothways.data.examples import Related
from bothways.data.findings import DataCounts
from bothways.data.label_checks import by_count
from bothways.data.notes import Notes
from bothways.data.related import from_inference, is_inference, read_related
from bothways.engine.reader import WindowSettings
from bothways.errors import BothwaysError
from bothways.hash_rng import mix, permute
from bothways.model.batch import Batch
from bothways.model.model import Model
from bothways.model.pooling import Pooling
from bothways.model.pooling_modes import PoolingMode
from bothways.model.sentence import Normalize, Sentence
from bothways.scoring.similarity import Similarity
from bothways.tasks.task import EncodedChunk, EncodedExample, Outputs, Sample, Targets, Task, TaskConfig
from bothways.tasks.text_task import intervals, not_numbers
from bothways.tasks.vector_losses import Groups, in_batch_negatives, matryoshka, ranked_pairs, scored_pairs, triplets

Loss = Literal["auto", "in-batch", "cosent", "cosine", "triplet"]
Vectors = NDArray[np.float32]
_NAMED = ("positive", "negative", "hard_neg")
_PATIENCE = 4
"""A step ends early if so many times its examples repeat a text of it."""


@dataclass(frozen=True)
class EmbedSettings:
    """The `[embed]` part of a recipe."""

    loss: Loss = "auto"
    """in-batch: each anchor is told from all other texts of the step (MNRL). cosent: pairs with a higher score become
    more similar than others. cosine: the cosine becomes the score. triplet: a positive is nearer than a negative.
    auto: cosent for scored pairs, else in-batch."""
    scale: float = 20.0
    """Cosines are multiplied by it, in the losses in-batch and cosent: 1 / temperature."""
    symmetric: bool = False
    """in-batch: also tell each positive's anchor from all other anchors."""
    margin: float = 5.0
    """triplet: how much nearer the positive should be, in Euclidean distance."""
    matryoshka: tuple[int, ...] = ()
    """Also train the first so many numbers of each vector, so that vectors can be shortened."""
    pooling: Literal["", "cls", "mean", "max"] = ""
    """How the states of tokens become a vector. By default as the model's folder says, else mean."""
    normalize: bool = True
    """Whether a new model returns vectors of length 1."""
    query_prompt: str = ""
    """Put before anchors, and saved in the folder under the name query."""
    document_prompt: str = ""
    """Put before positives and negatives, and saved under the name document."""


@dataclass(frozen=True)
class EmbedOptions:
    """What config.json stores for sentence vectors."""

    kind: Literal["related", "scored"] = "related"
    pooling: tuple[PoolingMode, ...] = ()
    normalize: bool = True
    query_prompt: str = ""
    document_prompt: str = ""


class SentenceVectors(Task):
    """Pairs, triplets, scored pairs and natural language inference; all examples of a step are compared."""

    name = "embed"
    title = "sentence vectors, bi-encoder"
    aliases = ("sentence-vectors", "bi-encoder", "sentence-transformer", "similarity")
    needs_offsets = False
    has_ranking = False
    whole_step = True
    epochs = 1
    Settings = EmbedSettings
    Options = EmbedOptions

    # ------------------------------------------------------------------ files and inputs

    @classmethod
    def read(cls, files: Sequence[str], columns: Columns, notes: Notes, known: Any = None) -> Iterator[Related]:
        return read_related(files, columns, notes)

    @classmethod
    def parse(cls, given: Any) -> Related:
        texts = tuple(given) if isinstance(given, tuple | list) else ()
        if len(texts) < 2 or not all(isinstance(text, str) for text in texts):
            raise BothwaysError(f"expected two texts or more, and {given!r} was given", "bad-input", given)
        return Related(texts)

    @classmethod
    def assemble(cls, examples: Sequence[Related]) -> list[Related]:
        """Entailments with the contradictions of their premise; other examples as they are."""
        return from_inference(examples) if is_inference(examples) else list(examples)

    # ------------------------------------------------------------------ from data to a model

    @classmethod
    def plan(
        cls, settings: EmbedSettings, window: WindowSettings, examples: Sequence[Related], max_length: int
    ) -> tuple[TaskConfig, tuple[str, ...]]:
        is_scored = [isinstance(example.gold, float) for example in examples if example.gold is not None]
        if any(is_scored) != all(is_scored):
            raise BothwaysError("some examples have a score and some have none: give one kind", "mixed-golds")
        kind: Literal["related", "scored"] = "scored" if all(is_scored) else "related"
        needs = {"cosent": "scored", "cosine": "scored", "in-batch": "related", "triplet": "related"}.get(settings.loss)
        if needs not in (None, kind):
            raise BothwaysError(
                f"embed.loss is {settings.loss}, which needs {needs} texts, and the examples are {kind}",
                "bad-combination",
                settings.loss,
            )
        pooling: tuple[PoolingMode, ...] = (settings.pooling,) if settings.pooling else ()
        options = EmbedOptions(kind, pooling, settings.normalize, settings.query_prompt, settings.document_prompt)
        return TaskConfig(cls.name, window, options=options), ()

    @classmethod
    def prepare(cls, model: Model, base: Model, config: TaskConfig) -> None:
        """The modules of `base`, if it has them and no other pooling is asked for; else new ones."""
        options: EmbedOptions = config.options
        prompts = {"query": options.query_prompt, "document": options.document_prompt}
        if base.sentence is not None and not options.pooling:
            model.sentence = base.sentence
            prompts = {name: text or base.sentence.prompts.get(name, "") for name, text in prompts.items()}
        else:
            modules = [Normalize()] if options.normalize else []
            model.sentence = Sentence(Pooling(options.pooling or ("mean",)), modules)
        if config.window.length:
            model.sentence.max_length = config.window.length
        model.sentence.settings = {"similarity_fn_name": "cosine", **model.sentence.settings, "prompts": prompts}

    @classmethod
    def infer(cls, model: Model) -> TaskConfig | None:
        """Any folder of sentence-transformers."""
        return None if model.sentence is None else TaskConfig(cls.name, options=EmbedOptions())

    def __init__(self, model: Model, config: TaskConfig, settings: Any = None, golds: Sequence[Any] = ()) -> None:
        if config.window.long == "window":  # the default: here a text is one sequence
            config = replace(config, window=replace(config.window, long="cut"))
        super().__init__(model, config, settings, golds)
        if model.sentence is None:
            raise BothwaysError("this model has no pooling for the vectors of texts", "no-task-head", "sentence")
        self.metric = "spearman" if self.options.kind == "scored" else "mrr@10"
        self.prompts = model.sentence.prompts

    # ------------------------------------------------------------------ training

    def encode(self, examples: Sequence[Related], before: int = 0) -> EncodedChunk:
        first, rest = (self.prompts.get(name, "") for name in ("query", "document"))
        if self.options.kind == "scored":
            first = rest = ""  # both texts have the same part
        texts = [(rest if i else first) + text for example in examples for i, text in enumerate(example.texts)]
        sizes = np.array([len(example.texts) for example in examples], np.int64)
        return EncodedChunk(examples, self.reader(texts, before), sizes)

    def check(self, example: Related) -> None:
        """Development data may be of another kind than training data: their own score selects the best model."""
        self.metric = "spearman" if isinstance(example.gold, float) else "mrr@10"

    def samples(self, item: EncodedExample) -> list[Sample]:
        sample = Sample.of(item.views, None)
        keys = tuple(zlib.crc32(ids.tobytes()) for ids in sample.ids)  # equal for equal texts
        return [replace(sample, target=(item.example.gold, item.example.group, keys))]

    def collate(self, samples: Sequence[Sample], batch: Batch) -> tuple[dict[str, Tensor], float]:
        return {}, float(len(samples))

    def epoch_steps(self, samples: Sequence[Sample], batch: int, seed: ArrayLike) -> list[NDArray[np.int64]]:
        """Steps of one file each, in random order, in which no text occurs twice as far as that is possible."""
        order = permute(np.arange(len(samples)), len(samples), seed)
        groups: dict[int, list[int]] = {}
        for i in order.tolist():
            groups.setdefault(samples[i].target[1], []).append(i)
        found = [step for some in groups.values() for step in _without_repeats(samples, some, batch)]
        return [found[i] for i in permute(np.arange(len(found)), len(found), mix(seed, 1)).tolist()]

    def note(self, samples: Sequence[Sample], batch: int) -> str:
        """How many texts each anchor is compared with."""
        if self._loss != "in-batch":
            return ""
        texts = sum(len(sample.ids) - 1 for sample in samples) / len(samples)
        negatives = round(min(batch, len(samples)) * texts) - 1
        return f"each anchor is told from {negatives:,} other texts of its step: more examples in a step are harder"

    @property
    def _loss(self) -> str:
        if self.settings.loss != "auto":
            return str(self.settings.loss)
        return "cosent" if self.options.kind == "scored" else "in-batch"

    def step_targets(self, samples: Sequence[Sample]) -> tuple[dict[str, Tensor], float]:
        sizes = np.array([len(sample.ids) for sample in samples])
        anchors = np.cumsum(sizes) - sizes
        documents = np.delete(np.arange(int(sizes.sum())), anchors)
        positives = anchors - np.arange(len(samples))
        arrays = {"anchors": anchors, "documents": documents, "positives": positives, "sizes": sizes}
        targets = {name: torch.from_numpy(array) for name, array in arrays.items()}
        if self.options.kind == "scored":
            targets["gold"] = torch.tensor([float(sample.target[0]) for sample in samples])
        elif (hidden := _repeats(samples, anchors, documents, positives)) is not None:
            targets["hidden"] = torch.from_numpy(hidden)
        return targets, 1.0 if self._loss == "cosent" else float(len(samples))

    def step_loss(self, vectors: Tensor, targets: Targets) -> Tensor:
        if sizes := self.settings.matryoshka:
            return matryoshka(lambda some: self._step_loss(some, targets), vectors, sizes)
        return self._step_loss(vectors, targets)

    def _step_loss(self, vectors: Tensor, targets: Targets) -> Tensor:
        settings: EmbedSettings = self.settings
        groups = Groups(targets["anchors"], targets["documents"], targets["positives"])
        if self._loss == "in-batch":
            return in_batch_negatives(vectors, groups, settings.scale, settings.symmetric, targets.get("hidden"))
        anchors, positives = vectors[groups.anchors], vectors[groups.documents[groups.positives]]
        if self._loss == "triplet":
            return self._triplets(vectors, groups, targets["sizes"])
        similar = F.cosine_similarity(anchors, positives)
        if self._loss == "cosine":
            return scored_pairs(similar, targets["gold"])
        return ranked_pairs(similar, targets["gold"], settings.scale)

    def _triplets(self, vectors: Tensor, groups: Groups, sizes: Tensor) -> Tensor:
        """Each negative with the anchor and the positive of its example."""
        owner = torch.arange(len(sizes), device=sizes.device).repeat_interleave(sizes - 1)
        is_negative = torch.ones_like(groups.documents, dtype=torch.bool)
        is_negative[groups.positives] = False
        owner, negatives = owner[is_negative], vectors[groups.documents[is_negative]]
        positives = groups.documents[groups.positives]
        return triplets(vectors[groups.anchors][owner], vectors[positives][owner], negatives, self.settings.margin)

    # ------------------------------------------------------------------ answers and scores

    def outputs(self, model: Model, states: Tensor, batch: Batch) -> Tensor:
        sentence = model.sentence
        assert sentence is not None
        pooled = sentence.pooling(states, batch)
        vectors: Tensor = sentence(pooled.to(next(sentence.parameters(), pooled).dtype))
        return vectors

    def decode(self, item: EncodedExample, outputs: Sequence[Outputs]) -> Vectors:
        return np.stack(outputs).astype(np.float32)

    def decode_chunk(self, items: EncodedChunk, outputs: Outputs) -> Iterable[Vectors]:
        ends = np.cumsum(items.counts).tolist()
        return (outputs[start:end] for start, end in zip([0, *ends], ends, strict=False))

    def answer(self, item: EncodedExample, decoded: Vectors, top: int = 1) -> Any:
        """{"label": "similarity", "score": the cosine of the first two texts}."""
        first, second = decoded[0].astype(np.float64), decoded[1].astype(np.float64)
        length = max(float(np.linalg.norm(first) * np.linalg.norm(second)), 1e-12)
        return {"label": "similarity", "score": float(first @ second) / length}

    def new_scores(self) -> Similarity:
        return Similarity()

    def count(self, scores: Any, item: EncodedExample, decoded: Vectors) -> None:
        gold = item.example.gold if isinstance(item.example.gold, float) else None
        scores.add(item.example.texts, decoded, gold)

    def error(self, item: EncodedExample, decoded: Vectors) -> float:
        similarity: float = self.answer(item, decoded)["score"]
        return 1 - similarity if not isinstance(item.example.gold, float) else abs(item.example.gold - similarity)

    # ------------------------------------------------------------------ checks of labelled data

    @classmethod
    def looks_like(cls, path: Path, rows: Sequence[Any]) -> bool:
        """Whether a row names a positive or a negative."""
        return any(isinstance(row, dict) and any(str(name).lower().startswith(_NAMED) for name in row) for row in rows)

    @classmethod
    def survey(cls, example: Related, counts: DataCounts) -> None:
        for text in example.texts:
            counts.measure("characters in a text", len(text), example.where)
        if example.gold is not None:
            counts.golds[example.gold] += 1

    @classmethod
    def data_kind(cls, counts: DataCounts) -> str:
        return "regression" if counts.golds and not not_numbers(counts) else "related"

    @classmethod
    def label_counts(cls, counts: DataCounts, kind: str) -> dict[str, int]:
        """Scores in five intervals, or relations."""
        return intervals(counts.golds) if kind == "regression" else by_count(Counter(counts.golds))

    @classmethod
    def exemplars(cls, counts: DataCounts) -> list[Related]:
        return [Related((), gold) for gold in counts.golds] or [Related(())]


def _without_repeats(samples: Sequence[Sample], order: Sequence[int], batch: int) -> Iterator[NDArray[np.int64]]:
    """Steps of at most `batch` samples: what repeats a text of its step waits for the next one.

    In the last step texts may be repeated; they are then hidden from each other.
    """
    waiting = deque(order)
    while waiting:
        step: list[int] = []
        postponed: list[int] = []
        seen: set[int] = set()
        while waiting and len(step) < batch and len(postponed) < _PATIENCE * batch:
            i = waiting.popleft()
            keys = samples[i].target[2]
            if seen.isdisjoint(keys):
                step.append(i)
                seen.update(keys)
            else:
                postponed.append(i)
        waiting.extendleft(reversed(postponed))
        yield np.array(step)
        if 0 < len(waiting) < batch:
            yield np.array(waiting)
            return


def _repeats(
    samples: Sequence[Sample], anchors: NDArray[np.int64], documents: NDArray[np.int64], positives: NDArray[np.int64]
) -> NDArray[np.bool_] | None:
    """(B, D) the documents that are not negatives of an anchor: equal to it, to its positive, or to another positive
    of an equal anchor. None if there are none."""
    keys = np.array([key for sample in samples for key in sample.target[2]], np.int64)
    own, others = keys[anchors], keys[documents]
    if len(np.unique(keys)) == len(keys):
        return None
    hidden: NDArray[np.bool_] = (others == own[:, None]) | (others == others[positives][:, None])
    same_anchor = own[:, None] == own
    hidden[:, positives] |= same_anchor
    hidden[np.arange(len(own)), positives] = False
    return hidden
