"""Fine-tuning for the training loop: a module with its loss, the steps, the evaluation."""

import copy
import itertools
import json
import math
from collections.abc import Iterator, Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import safetensors.torch
import torch
from torch import Tensor, nn

from bothways.errors import BothwaysError
from bothways.hash_rng import mix, permute
from bothways.model import checkpoint
from bothways.model.batch import Batch
from bothways.model.load import load
from bothways.model.lora import adapt, save_adapter, trained_of
from bothways.model.model import Model
from bothways.model.weights import read_tensors
from bothways.scoring.accumulator import Accumulator
from bothways.tasks.answering import decode_all
from bothways.tasks.registry import with_config
from bothways.tasks.task import Sample, Task
from bothways.tasks.task_card import EVALUATED, evaluated_facts
from bothways.train.distill import StudentModule, Teacher
from bothways.train.protocol import Forward, MicroBatch, Step, WholeStep
from bothways.train.ranks import Ranks
from bothways.train.settings import LoraSettings

_LOWER_IS_BETTER = (
    "negative_log_likelihood",
    "calibration_error",
    "brier",
    "mean_squared_error",
    "mean_absolute_error",
)


def selection_loss(scores: Mapping[str, float], metric: str) -> float:
    """The metric as a number that is lower for better models; infinite if it is missing or nan."""
    score = scores.get(metric, math.nan)
    if math.isnan(score):  # such as a correlation with constant predictions
        return math.inf
    return score if metric in _LOWER_IS_BETTER else -score


class TaskModule(StudentModule):
    """A model and its task: in training it returns (K,), the sums of the losses; in evaluation the outputs."""

    def __init__(self, model: Model, task: Task, teacher: Teacher | None = None) -> None:
        super().__init__()
        self.model = model
        self.task = task
        self.teacher = teacher
        self.frozen = () if teacher is None else (teacher.model,)

    def forward(self, batch: Batch, targets: dict[str, Tensor]) -> Tensor:
        if not self.training:
            return self.task.outputs(self.model, self.model.encoder(batch), batch)
        if self.task.whole_step:
            return self.task.outputs(self.model, self.model.encoder(batch), batch)
        if self.teacher is not None:
            return self._distilled(self.teacher, batch, targets) * targets["counts"]
        return self.task.loss(self.model, self.model.encoder(batch), batch, targets).view(1) * targets["counts"]

    def _distilled(self, teacher: Teacher, batch: Batch, targets: dict[str, Tensor]) -> Tensor:
        """The task's own loss, and those that compare with the teacher."""
        seen, taught = teacher.student_outputs(self.model, batch), teacher.outputs(batch)
        losses = [self.task.loss(self.model, seen.states, batch, targets)]
        if teacher.settings.soft:
            own = self.task.outputs(self.model, seen.states, batch)
            with torch.no_grad():
                other = self.task.outputs(teacher.model, taught.states, batch)
            losses.append(self.task.imitation(own, other, targets, teacher.settings.temperature))
        everywhere = torch.ones(len(batch.ids), device=batch.ids.device)
        return torch.stack([*losses, *teacher.inside(seen, taught, batch, everywhere).values()])


class FineTuning:
    """What `fit` trains."""

    dynamic_shapes = True

    def __init__(
        self,
        model: Model,
        task: Task,
        samples: Sequence[Sample],
        dev: Sequence[Any],
        *,
        batch: int,
        micro_tokens: int,
        seed: int,
        lora: LoraSettings | None = None,
        base: str = "",
        teacher: Teacher | None = None,
    ) -> None:
        """With `lora`, the model has adapters, and `base` is the folder that it was loaded from."""
        if not samples:
            raise BothwaysError("there is nothing to train on: the data have no labelled rows", "no-data")
        if task.whole_step and teacher is not None:
            raise BothwaysError(
                f"{task.name} compares the examples of a step, and takes no distill.teacher: sentence vectors have "
                "embed.teachers",
                "not-distillable",
                task.name,
            )
        if model.encoder.backend == "auto" and model.config.encoder.has_score_bias:
            # Flex attention is compiled again for new shapes: 100 s instead of 5 in 60 steps of an MPNet on an H200.
            model.encoder.backend = "dense"
        self.task, self.samples, self.dev = task, samples, dev
        self.batch, self.micro_tokens, self.seed = batch, micro_tokens, seed
        self.config, self.tokenizer = model.config, model.tokenizer
        self.lora, self.base = lora, base
        self.module = TaskModule(model, task, teacher)
        self.evaluated: Accumulator | None = None
        """The latest scores on the development set."""
        self.losses: Mapping[str, float] = {"loss": 1.0}
        if teacher is not None:
            self.losses = {"hard": teacher.settings.hard, **teacher.settings.weights}
        self.mean_length = sum(map(len, samples)) / sum(len(sample.ids) for sample in samples)

    @cached_property
    def steps_per_epoch(self) -> int:
        steps = self.task.epoch_steps(self.samples, self.batch, mix(self.seed, 0))
        return -(-len(self.samples) // self.batch) if steps is None else len(steps)

    def blocks(self) -> Sequence[nn.Module]:
        return list(self.module.model.encoder.blocks)

    def phases(self) -> Sequence[float]:
        return [1.0]

    # ------------------------------------------------------------------ data

    def feed(self, phase: int, index: int, ranks: Ranks, static_shapes: bool) -> Iterator[Step]:
        """The steps of all epochs, each shuffled anew; the last step of an epoch may be smaller."""
        size = len(self.samples)
        for epoch in itertools.count(index // size):
            seed, done = mix(self.seed, epoch), index % size
            steps = self.task.epoch_steps(self.samples, self.batch, seed)
            if steps is None:
                # The whole order at once: in small parts it would take as long as the step on a GPU.
                order = permute(np.arange(size), size, seed)
                steps = [order[place : place + self.batch] for place in range(done, size, self.batch)]
                done = 0
            for step in steps:
                if done <= 0:
                    yield self._step([self.samples[i] for i in step], ranks)
                done -= len(step)
            index = 0

    def _step(self, chosen: Sequence[Sample], ranks: Ranks) -> Step:
        shares = [self._passes(chosen[rank :: ranks.size]) for rank in range(ranks.size)]
        mine = shares[ranks.rank]
        # Ranks wait for each other, so all make the same number of passes; spare passes have the weight 0.
        spare = max(map(len, shares)) - len(mine)
        made = [self._micro(samples, 1.0) for samples in mine] + [self._micro(chosen[:1], 0.0)] * spare
        if self.task.whole_step:
            ordered = [[sample for samples in share for sample in samples] for share in shares]
            targets, count = self.task.step_targets(list(itertools.chain.from_iterable(ordered)))
            sizes = [sum(len(sample.ids) for sample in some) for some in ordered]
            whole = WholeStep(lambda vectors, t: self.task.step_loss(vectors, t).view(1), targets, sizes)
            counts = dict.fromkeys(self.losses, count / ranks.size)
            return Step([micro for micro, _ in made], counts, sum(map(len, chosen)), len(chosen), whole)
        count = sum(count for _, count in made)
        tokens = float(sum(map(len, itertools.chain.from_iterable(mine))))
        counts = {name: count if name in ("loss", "hard", "soft") else tokens for name in self.losses}
        return Step([micro for micro, _ in made], counts, sum(map(len, chosen)), len(chosen))

    def _passes(self, samples: Sequence[Sample]) -> list[list[Sample]]:
        """The samples in groups of at most `micro_tokens` tokens."""
        groups: list[list[Sample]] = []
        tokens = 0
        for sample in samples:
            size = len(sample)
            if not groups or tokens + size > self.micro_tokens:
                groups.append([])
                tokens = 0
            groups[-1].append(sample)
            tokens += size
        return groups

    def _micro(self, samples: Sequence[Sample], counts: float) -> tuple[MicroBatch, float]:
        ids = list(itertools.chain.from_iterable(sample.ids for sample in samples))
        batch = Batch.pack(ids, list(itertools.chain.from_iterable(sample.segments for sample in samples)))
        targets, count = self.task.collate(samples, batch)
        targets = {**targets, "counts": torch.tensor([counts])}
        return MicroBatch(batch, targets, len(batch.ids), is_spare=counts == 0), count * counts

    # ------------------------------------------------------------------ evaluation

    def evaluate(
        self, forward: Forward, phase: int, ranks: Ranks, static_shapes: bool, final: bool
    ) -> dict[str, float]:
        """The task's scores on the development set. Every rank sees all of it."""
        if not self.dev:
            return {}
        device = next(self.module.parameters()).device

        def counted() -> Accumulator:
            scores = self.task.new_scores()
            for item, decoded in decode_all(self.task, lambda batch: self.module(batch, {}), self.dev, device):
                self.task.count(scores, item, decoded)
            return scores

        self.evaluated = self.task.tune(counted()) or counted()
        return self.evaluated.scores()

    def selection_loss(self, scores: Mapping[str, float]) -> float:
        return selection_loss(scores, self.task.metric)

    def flops(self, phase: int) -> float:
        """Per token: 6 per weight of the blocks, and 12 per token it attends to, times width and layers."""
        shape = self.config.encoder
        return shape.layers * (6 * shape.block_weights + 12 * shape.width * self.mean_length)

    # ------------------------------------------------------------------ folders

    def save(self, weights: Mapping[str, Tensor], folder: Path) -> None:
        """Save a model folder; with LoRA an adapter folder, and the trained weights under our own names. Beside it what
        its evaluation found."""
        if self.evaluated is not None:
            found = json.dumps(evaluated_facts(self.evaluated, self.task.metric), ensure_ascii=False)
            (folder / EVALUATED).write_text(found + "\n", encoding="utf-8")
        model = with_config(self.model_of(weights), self.task.config)
        if self.lora is None:
            checkpoint.save(model, folder / "model")
            return
        save_adapter(model, self.base, folder / "model")
        safetensors.torch.save_file(trained_of(self.module, weights), folder / "parts.safetensors")

    def load(self, folder: Path) -> dict[str, Tensor]:
        if self.lora is not None:
            return dict(self.module.named_parameters()) | read_tensors(folder / "parts.safetensors")
        model = load(folder / "model")
        if (model.config.encoder, model.config.labels) != (self.config.encoder, self.config.labels):
            raise BothwaysError(
                f"{folder} holds a model of another shape or with other labels: use another `out`", "other-run", folder
            )
        return {f"model.{name}": tensor for name, tensor in model.state_dict().items()}

    def model_of(self, weights: Mapping[str, Tensor]) -> Model:
        """The model with these weights, with adapters if this one has them."""
        with torch.device("meta"):
            model = Model(self.config, self.tokenizer)
            if self.lora is not None:
                adapt(model, self.lora)
            model.sentence = copy.deepcopy(self.module.model.sentence)
        model.load_state_dict({name.removeprefix("model."): t for name, t in weights.items()}, assign=True)
        return model
