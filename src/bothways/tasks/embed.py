"""Sentence vectors (bi-encoders): texts that belong together get vectors with a high cosine.

S texts of a step · B examples · W width.
"""

import zlib
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

from bothways.data.examples import RELATED, Related
from bothways.data.findings import DataCounts
from bothways.data.label_checks import by_count
from bothways.data.notes import Notes
from bothways.data.related import from_inference, is_inference, read_related
from bothways.engine.reader import WindowSettings
from bothways.errors import BothwaysError
from bothways.hash_rng import mix, permute
from bothways.lazy import F, Tensor, torch
from bothways.model.batch import Batch
from bothways.model.facts import ModelFacts
from bothways.model.pooling import Pooling
from bothways.model.pooling_modes import PoolingMode
from bothways.progress import Watch
from bothways.scoring.similarity import Similarity
from bothways.tasks.embed_settings import (
    LOSSES,
    EmbedOptions,
    EmbedSettings,
    by_source,
    kind_of,
    loss_of,
    require_dropout,
)
from bothways.tasks.embed_steps import repeats, without_repeats
from bothways.tasks.task import EncodedChunk, EncodedExample, Outputs, Sample, Targets, Task, TaskConfig
from bothways.tasks.taught import Taught, new_linear, texts_taught
from bothways.tasks.text_task import intervals, not_numbers
from bothways.tasks.vector_losses import (
    Groups,
    guided_negatives,
    in_batch_negatives,
    matryoshka,
    ranked_pairs,
    related_pairs,
    scored_pairs,
    taught_vectors,
    triplets,
)
from bothways.text.columns import NEGATIVE, POSITIVE, Columns, named_like

if TYPE_CHECKING:
    from bothways.model.model import Model

Vectors = NDArray[np.float32]


class _Target(NamedTuple):
    """What training needs to know of an example."""

    gold: float | str | None
    source: str
    keys: tuple[int, ...]
    """Equal for equal texts. Those of the anchor and of its positive are not twice in a step."""
    rows: tuple[int, ...] = ()
    """Its texts among those that other models read."""


class SentenceVectors(Task):
    """Pairs, triplets, scored pairs and natural language inference; all examples of a step are compared."""

    name = "embed"
    title = "sentence embeddings, bi-encoder"
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
        return read_related(files, columns, notes, alone=not isinstance(known, cls.Options))

    @classmethod
    def read_inputs(cls, file: str, columns: Columns, notes: Notes) -> Iterator[Related]:
        return read_related([file], columns, notes, alone=False)

    @classmethod
    def parse(cls, given: Any) -> Related:
        texts = tuple(given) if isinstance(given, tuple | list) else ()
        if len(texts) != 2 or not all(isinstance(text, str) for text in texts):
            raise BothwaysError(f"expected two texts, and {given!r} was given", "bad-input", given)
        return Related(texts)

    @classmethod
    def assemble(cls, examples: Iterable[Related], settings: EmbedSettings, is_dev: bool) -> list[Related]:
        """Entailments with the contradictions of their premise; for teachers every text once, but rows of translations
        as they are; others as they are."""
        found: list[Related] = []
        for source, some in by_source(examples).items():
            loss = loss_of(settings, source, some)
            if loss == "distill" and not is_dev and not settings.of(source).translations:
                texts = dict.fromkeys(text for example in some for text in example.texts)
                some = [Related((text,), RELATED, some[0].where, source) for text in texts]
            elif is_inference(some) and (loss != "softmax" or is_dev):
                some = from_inference(some)
            found += some
        return found

    # ------------------------------------------------------------------ from data to a model

    @classmethod
    def plan(
        cls, settings: EmbedSettings, window: WindowSettings, examples: Sequence[Related], max_length: int
    ) -> tuple[TaskConfig, tuple[str, ...]]:
        sources = by_source(examples)
        if missing := [one.file for one in settings.sets if one.file not in sources]:
            raise BothwaysError(
                f"embed.sets names {missing[0]!r}, and the training files are {', '.join(sources)}",
                "no-such-file",
                missing[0],
            )
        kinds = {source: kind_of(settings, source, some) for source, some in sources.items()}
        kind: Any = next(iter(kinds.values())) if len(set(kinds.values())) == 1 else "related"
        names = {str(example.gold) for example in examples if example.gold is not None}
        relations = tuple(sorted(names)) if kind == "relations" else ()
        pooling: tuple[PoolingMode, ...] = (settings.pooling,) if settings.pooling else ()
        prompts = (settings.query_prompt, settings.document_prompt)
        options = EmbedOptions(kind, relations, pooling, settings.normalize, *prompts, settings.matryoshka)
        return TaskConfig(cls.name, window, options=options), ()

    @classmethod
    def prepare(cls, model: "Model", base: "Model", config: TaskConfig) -> None:
        """The modules of `base`, if it has them and no other pooling is asked for; else new ones."""
        from bothways.model.sentence import Normalize, Sentence

        options: EmbedOptions = config.options
        prompts = {"query": options.query_prompt, "document": options.document_prompt}
        if base.sentence is not None and not options.pooling:
            model.sentence = base.sentence
            # Training pools all tokens, those of prompts included: so must whoever opens the folder.
            model.sentence.include_prompt = True
            prompts = {name: text or base.sentence.prompts.get(name, "") for name, text in prompts.items()}
        else:
            modules = [Normalize()] if options.normalize else []
            model.sentence = Sentence(Pooling(options.pooling or ("mean",)), modules)
        if config.window.length:
            model.sentence.max_length = config.window.length
        model.sentence.settings = {"similarity_fn_name": "cosine", **model.sentence.settings, "prompts": prompts}

    @classmethod
    def infer(cls, model: ModelFacts) -> TaskConfig | None:
        """Any folder of sentence-transformers."""
        return None if model.sentence is None else TaskConfig(cls.name, options=EmbedOptions())

    def __init__(self, model: ModelFacts, config: TaskConfig, settings: Any = None, train: Sequence[Any] = ()) -> None:
        if config.window.long == "window":  # the default: here a text is one sequence
            config = replace(config, window=replace(config.window, long="cut"))
        super().__init__(model, config, settings, train)
        if model.sentence is None:
            raise BothwaysError("this model has no pooling for the vectors of texts", "no-task-head", "sentence")
        self.metric = "spearman" if self.options.kind == "scored" else "mrr@10"
        self.prompts = model.sentence.prompts
        self.whole_step = self.options.kind != "relations"
        self.taught: Taught | None = None
        self._highest = 1.0  # score of a pair so far: above 1, scores are from 0 to 5, or to it

    # ------------------------------------------------------------------ training

    def gather(
        self, model: "Model", examples: Sequence[Related], device: "torch.device", watch: Watch, seed: int
    ) -> None:
        """The vectors of teachers, or of a guide; and the layers that only training needs."""
        settings: EmbedSettings = self.settings
        if folders := (settings.teachers or (settings.guide,) if settings.guide or settings.teachers else ()):
            texts = (texts_taught(settings, source, some) for source, some in by_source(examples).items())
            self.taught = Taught(
                folders, chain.from_iterable(texts), device, watch, settings.teacher_vectors, settings.center
            )
        sentence = model.sentence
        assert sentence is not None
        width = sentence.width(model.config.encoder.width)
        if settings.matryoshka and max(settings.matryoshka) > width:
            raise BothwaysError(
                f"embed.matryoshka has {max(settings.matryoshka)}, and the vectors have {width} numbers",
                "out-of-range",
                max(settings.matryoshka),
            )
        require_dropout(model.config.encoder, settings, examples)
        if settings.teachers and self.taught is not None:
            sentence.training_only["projection"] = new_linear(width, self.taught.width, seed)
        if self.options.kind == "relations":
            sentence.training_only["relation"] = new_linear(3 * width, len(self.options.relations), seed, bias=True)

    def encode(self, examples: Sequence[Related], before: int = 0) -> EncodedChunk:
        texts = []
        for example in examples:
            first, rest = self._prompts(example)
            texts += [(rest if i else first) + text for i, text in enumerate(example.texts)]
        sizes = np.array([len(example.texts) for example in examples], np.int64)
        return EncodedChunk(examples, self.reader(texts, before), sizes)

    def _prompts(self, example: Related) -> tuple[str, str]:
        """Those of the anchor and of the documents; none where both texts have the same part."""
        if self.options.kind != "related" or isinstance(example.gold, float) or len(example.texts) == 1:
            return "", ""
        own, usual = self.settings.of(example.source), self.prompts
        return own.query_prompt or usual.get("query", ""), own.document_prompt or usual.get("document", "")

    def check(self, example: Related) -> None:
        """Development data may be of another kind than training data: their own score selects the best model."""
        self.metric = "spearman" if isinstance(example.gold, float) else "mrr@10"

    def samples(self, item: EncodedExample) -> list[Sample]:
        # Each text is one sequence, which is sliced here: the views of a read would take twice as long.
        sequences, example, places = item.source.sequences, item.example, range(item.first, item.first + item.count)
        spans = [(start := int(sequences.starts[i]), start + int(sequences.lengths[i])) for i in places]
        ids = [sequences.ids[start:end] for start, end in spans]
        if sequences.segments is None:
            segments = [np.zeros(len(some), np.uint8) for some in ids]
        else:
            segments = [sequences.segments[start:end] for start, end in spans]
        keys = tuple(zlib.crc32(some.data) for some in ids)
        rows: tuple[int, ...] = ()
        if self.taught is not None:
            rows = tuple(map(self.taught.rows.__getitem__, texts_taught(self.settings, example.source, [example])))
        return [Sample(ids, segments, _Target(example.gold, example.source, keys, rows))]

    def collate(self, samples: Sequence[Sample], batch: Batch) -> tuple[dict[str, Tensor], float]:
        if self.whole_step:
            return {}, float(len(samples))
        numbers = [self.options.relations.index(sample.target.gold) for sample in samples]
        return {"gold": torch.tensor(numbers)}, float(len(samples))

    def loss(self, model: "Model", states: Tensor, batch: Batch, targets: Targets) -> Tensor:
        """That of SBERT: two texts, and their relation."""
        assert model.sentence is not None
        pairs = self.outputs(model, states, batch).float().unflatten(0, (-1, 2))
        return related_pairs(pairs, model.sentence.training_only["relation"], targets["gold"])

    def epoch_steps(self, samples: Sequence[Sample], batch: int, seed: ArrayLike) -> list[NDArray[np.int64]]:
        """Steps of one file each, in random order, in which no text occurs twice as far as that is possible."""
        order = permute(np.arange(len(samples)), len(samples), seed)
        groups: dict[str, list[int]] = {}
        for i in order.tolist():
            groups.setdefault(samples[i].target.source, []).append(i)
        found = [step for some in groups.values() for step in without_repeats(samples, some, batch)]
        return [found[i] for i in permute(np.arange(len(found)), len(found), mix(seed, 1)).tolist()]

    def note(self, samples: Sequence[Sample], batch: int) -> str:
        """How many texts each anchor is compared with."""
        firsts = {sample.target.source: sample.target for sample in samples}
        sources = {name for name, one in firsts.items() if loss_of(self.settings, name, [one]) == "in-batch"}
        if not sources or not self.whole_step:
            return ""
        steps = [step for step in self.epoch_steps(samples, batch, 0) if samples[step[0]].target.source in sources]
        texts = [sum(len(samples[i].ids) - 1 for i in step) for step in steps]
        negatives = round(float(np.median(np.repeat(texts, list(map(len, steps)))))) - 1
        return f"each anchor is told from {negatives:,} other texts of its step: more examples in a step are harder"

    def step_targets(self, samples: Sequence[Sample]) -> tuple[dict[str, Tensor], float]:
        sizes = np.array([len(sample.ids) for sample in samples])
        anchors = np.cumsum(sizes) - sizes
        documents = np.delete(np.arange(int(sizes.sum())), anchors)
        positives = anchors - np.arange(len(samples))
        arrays = {"anchors": anchors, "documents": documents, "positives": positives, "sizes": sizes}
        targets = {name: torch.from_numpy(array) for name, array in arrays.items()}
        loss = loss_of(self.settings, samples[0].target.source, [samples[0].target])
        # Which loss: by the length of a tensor, which is known without waiting for a GPU.
        targets["loss"] = torch.empty(LOSSES.index(loss))
        targets["weight"] = torch.tensor(self.settings.of(samples[0].target.source).weight)
        if self.taught is not None and (loss == "distill" or self.settings.guide):
            targets["taught"] = self.taught.of([row for sample in samples for row in sample.target.rows])
        if loss in ("cosent", "cosine"):
            targets["gold"] = torch.tensor([float(sample.target.gold) for sample in samples])
        elif loss == "in-batch" and (hidden := repeats(samples, anchors, documents, positives)) is not None:
            targets["hidden"] = torch.from_numpy(hidden)
        return targets, 1.0 if loss == "cosent" else float(len(samples))

    def step_loss(self, vectors: Tensor, targets: Targets) -> Tensor:
        sizes, width, projected = self.settings.matryoshka, vectors.shape[1], None
        if self.taught is not None and "taught" in targets:
            targets = {**targets, "taught": self.taught.finish(targets["taught"])}
        if self.taught is not None and self.settings.teachers:
            width -= self.taught.width
            vectors, projected = vectors[:, :width], vectors[:, width:]
        if sizes:
            loss = matryoshka(lambda some: self._step_loss(some, targets, projected), vectors, sizes)
        else:
            loss = self._step_loss(vectors, targets, projected)
        return loss * targets["weight"]

    def _step_loss(self, vectors: Tensor, targets: Targets, projected: Tensor | None) -> Tensor:
        settings, loss = self.settings, LOSSES[len(targets["loss"])]
        groups = Groups(targets["anchors"], targets["documents"], targets["positives"])
        if loss == "distill":
            assert projected is not None
            return taught_vectors(projected, vectors, targets["taught"], settings.similarity)
        if loss == "in-batch" and settings.guide:
            guide, temperature = targets["taught"], 1 / settings.scale
            return guided_negatives(vectors, groups, guide, temperature, settings.guide_margin)
        if loss == "in-batch":
            return in_batch_negatives(vectors, groups, settings.scale, settings.symmetric, targets.get("hidden"))
        if loss == "triplet":
            return self._triplets(vectors, groups, targets["sizes"])
        similar = F.cosine_similarity(vectors[groups.anchors], vectors[groups.documents[groups.positives]])
        if loss == "cosine":
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

    def outputs(self, model: "Model", states: Tensor, batch: Batch) -> Tensor:
        sentence = model.sentence
        assert sentence is not None
        if not model.training and states.dtype in (torch.bfloat16, torch.float16):
            vectors: Tensor = sentence(sentence.pooling(states.float(), batch))
            return vectors
        pooled = sentence.pooling(states, batch)
        vectors = sentence(pooled.to(next(sentence.steps.parameters(), pooled).dtype))
        if model.training and self.taught is not None and self.settings.teachers:
            return torch.cat([vectors, sentence.training_only["projection"](vectors)], 1)
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
        self._highest = 1.0
        return Similarity()

    def count(self, scores: Any, item: EncodedExample, decoded: Vectors) -> None:
        self.check(item.example)  # so that published folders, too, get the score that fits the data
        gold = item.example.gold if isinstance(item.example.gold, float) else None
        scores.add(item.example.texts, decoded, gold)

    def error(self, item: EncodedExample, decoded: Vectors) -> float:
        similarity, gold = float(self.answer(item, decoded)["score"]), item.example.gold
        gold = gold if isinstance(gold, float) else 1.0
        self._highest = max(self._highest, abs(gold))
        return abs(gold / (max(self._highest, 5.0) if self._highest > 1 else 1.0) - similarity)

    # ------------------------------------------------------------------ checks of labelled data

    @classmethod
    def looks_like(cls, path: Path, rows: Sequence[Any]) -> bool:
        """Whether a row names a positive or a negative."""
        return any(isinstance(row, dict) and (named_like(row, POSITIVE) or named_like(row, NEGATIVE)) for row in rows)

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
