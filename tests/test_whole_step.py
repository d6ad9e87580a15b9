"""Losses over the vectors of a whole step: the same gradients whatever the micro-batches and however many processes."""

import os
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from itertools import count, islice, pairwise
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

from bothways.data.examples import Related, Text
from bothways.model.batch import Batch
from bothways.model.config import ModelConfig
from bothways.model.model import Model
from bothways.model.pooling import Pooling
from bothways.tasks.registry import new_config
from bothways.tasks.score import PairScoring
from bothways.tasks.task import EncodedExample, Sample
from bothways.tasks.trainable import FineTuning
from bothways.text.tokenizer import Tokenizer
from bothways.train.fit import _Loop
from bothways.train.optim import OptimSettings
from bothways.train.protocol import Step
from bothways.train.ranks import Ranks, joined
from bothways.train.settings import RunSettings
from helpers import PIECES, TINY, make_loud
from helpers.tasks import base_model, recipe_for, start

PAIRS = [
    Text((one, other), 1.0)
    for one, other in (
        ("the cat", "the black cat sleeps"),
        ("paris", "the capital of france is paris"),
        ("a dog runs", "the white dog"),
        ("beijing", "北京"),
        ("the tree", "a big tree in the house"),
        ("reads", "the cat reads and writes"),
        ("unbelievable", "walks and talks"),
        ("berlin is in germany", "berlin"),
    )
]


class InBatchNegatives(PairScoring):
    """Each first text is told from all second texts of the step which is its own (symmetric), as in MNRL."""

    whole_step = True

    def samples(self, item: EncodedExample) -> list[Sample]:
        alone = [self.reader([(text,)])[0].views[0] for text in item.example.texts]
        return [Sample.of(alone, None)]

    def collate(self, samples: Sequence[Sample], batch: Batch) -> tuple[dict[str, Tensor], float]:
        return {}, float(len(samples))

    def outputs(self, model: Model, states: Tensor, batch: Batch) -> Tensor:
        found: Tensor = Pooling()(states, batch)
        return found

    def step_targets(self, samples: Sequence[Sample]) -> tuple[dict[str, Tensor], float]:
        return {"own": torch.arange(len(samples))}, float(len(samples))

    def step_loss(self, vectors: Tensor, targets: Mapping[str, Tensor]) -> Tensor:
        first, second = F.normalize(vectors, dim=1).view(-1, 2, vectors.shape[1]).unbind(1)
        scores = 20 * first @ second.T
        both = [F.cross_entropy(x, targets["own"], reduction="sum") for x in (scores, scores.T)]
        return (both[0] + both[1]) / 2


def work_for(micro_tokens: int, dropout: float = 0.0, pairs: Sequence[Text] = PAIRS) -> FineTuning:
    shape = replace(TINY, dropout=dropout, attention_dropout=dropout)
    model = Model.new(ModelConfig(shape), Tokenizer.from_pieces(PIECES))
    make_loud(model)
    for parameter in model.parameters():
        parameter.data.mul_(0.3)
    task = InBatchNegatives(model, new_config("score"))
    samples = [sample for item in task.encode(pairs) for sample in task.samples(item)]
    return FineTuning(model, task, samples, (), batch=len(pairs), micro_tokens=micro_tokens, seed=0)


def gradients(work: FineTuning, out: Path, ranks: Ranks | None = None) -> dict[str, Tensor]:
    """Those of one step, and the mean loss under the name "loss"."""
    ranks = ranks or Ranks()
    loop = _Loop(work, RunSettings(steps=1, device="cpu"), OptimSettings(lr=1e-3), out, ranks)
    loop.module.train()
    step = next(work.feed(0, 0, ranks, False))
    assert step.whole is not None
    counts = torch.tensor(ranks.sum([step.counts[name] for name in work.losses]), dtype=torch.float32)
    loss = loop._backward_whole(step, step.whole, counts)
    found = {n.removeprefix("module."): p.grad for n, p in loop.module.named_parameters() if p.grad is not None}
    return {**found, "loss": torch.tensor(ranks.sum(loss.tolist()))}


def assert_close(found: Mapping[str, Tensor], expected: Mapping[str, Tensor]) -> None:
    assert found.keys() == expected.keys()
    for name, gradient in expected.items():
        limit = 1e-5 * max(1.0, float(gradient.abs().max()))
        assert float((found[name] - gradient).abs().max()) <= limit, name


def test_the_gradient_is_that_of_one_backward_pass(tmp_path: Path) -> None:
    """One micro-batch, and eight: what plain autograd gives over all texts together."""
    work = work_for(10_000)
    model = work.module.model
    step = next(work.feed(0, 0, Ranks(), False))
    (micro,) = step.micros
    vectors = Pooling()(model.encoder(micro.batch), micro.batch)
    loss = work.task.step_loss(vectors, {"own": torch.arange(len(PAIRS))}) / len(PAIRS)
    loss.backward()
    expected = {f"model.{n}": p.grad for n, p in model.named_parameters() if p.grad is not None}
    assert float(loss.detach()) > 0.1
    for micro_tokens, passes in ((10_000, 1), (1, 8)):
        again = work_for(micro_tokens)
        assert len(next(again.feed(0, 0, Ranks(), False)).micros) == passes
        assert_close(gradients(again, tmp_path), {**expected, "loss": loss.detach()[None]})


def test_dropout_is_the_same_in_both_passes(tmp_path: Path) -> None:
    """With dropout, the gradient is that of the loss whose vectors were compared: drawn once, and replayed."""
    work = work_for(1, dropout=0.3)
    loop = _Loop(work, RunSettings(steps=1, device="cpu"), OptimSettings(lr=1e-3), tmp_path, Ranks())
    loop.module.train()
    step = next(work.feed(0, 0, Ranks(), False))
    vectors = []
    for number, micro in enumerate(step.micros):
        with loop._pass(number, step):
            vectors.append(loop._forward(micro))
    loss = work.task.step_loss(torch.cat(vectors), {"own": torch.arange(len(PAIRS))}) / len(PAIRS)
    loss.backward()
    expected = {n: p.grad for n, p in loop.module.named_parameters() if p.grad is not None}
    assert_close(gradients(work_for(1, dropout=0.3), tmp_path), {**expected, "loss": loss.detach()[None]})
    without = gradients(work_for(1), tmp_path)
    assert any(not torch.allclose(without[name], gradient, atol=1e-3) for name, gradient in expected.items())


# ---------------------------------------------------------------------- planted bugs


def test_dropout_that_is_drawn_anew_in_the_second_pass_is_noticed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As in sentence-transformers before its pull request 3862: the state of the generator was not replayed."""
    expected = gradients(work_for(1, dropout=0.3), tmp_path)
    assert_close(gradients(work_for(1, dropout=0.3), tmp_path), expected)
    seeds = count()
    monkeypatch.setattr(_Loop, "_set_seed", lambda loop, seed: torch.manual_seed(next(seeds)))
    with pytest.raises(AssertionError):
        assert_close(gradients(work_for(1, dropout=0.3), tmp_path), expected)


def test_a_micro_batch_whose_gradient_is_lost_is_noticed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As in its MegaBatchMarginLoss before 3862 (reported in 3854): only the last mini-batch had a gradient."""
    expected = gradients(work_for(10_000), tmp_path)
    assert_close(gradients(work_for(1), tmp_path), expected)
    one_pass = _Loop._pass

    @contextmanager
    def forgetful(loop: _Loop, number: int, step: Step) -> Iterator[None]:
        loop.module.zero_grad()
        with one_pass(loop, number, step):
            yield

    monkeypatch.setattr(_Loop, "_pass", forgetful)
    with pytest.raises(AssertionError):
        assert_close(gradients(work_for(1), tmp_path), expected)


HARD = [
    Related((*pair.texts, negative), where=pair.texts[0])
    for pair, negative in zip(
        PAIRS, ("a dog", "rome", "the cat", "巴黎", "a house", "sleeps", "runs", "berlin 1"), strict=True
    )
]


def gathered_loss(work: FineTuning, ranks: int, by_column: bool = False) -> float:
    """The loss of a step whose texts are read by several ranks, with their vectors joined as `Ranks.gather` does.

    `by_column` plants a bug: first the anchors of all ranks, then their positives, then their negatives.
    """
    steps = [work._step(work.samples, Ranks(rank, ranks)) for rank in range(ranks)]
    work.module.train()
    found = []
    with torch.no_grad():
        for step in steps:
            own = [work.module(micro.batch, micro.targets) for micro in step.micros if not micro.is_spare]
            found.append(torch.cat(own))
    assert steps[0].whole is not None
    assert [len(rows) for rows in found] == list(steps[0].whole.sizes)
    vectors = torch.cat(found)
    if by_column:
        vectors = torch.cat([rows[column::3] for column in range(3) for rows in found])
    return float(steps[0].whole.loss(vectors, steps[0].whole.targets))


def test_each_anchor_is_told_its_own_positive_among_those_of_all_ranks(tmp_path: Path, tokenizer: Tokenizer) -> None:
    """With hard negatives. sentence-transformers gathered the columns of each rank, and its labels expected those of
    all ranks (3453): anchors learned to be like their hard negatives. Without hard negatives it was not seen."""
    base_model(tmp_path, tokenizer, dropout=0.0, attention_dropout=0.0)
    work = start(recipe_for("embed", tmp_path), HARD)
    alone = gathered_loss(work, 1)
    for ranks in (2, 3):
        assert gathered_loss(work, ranks) == pytest.approx(alone, rel=1e-5)
        assert gathered_loss(work, ranks, by_column=True) != pytest.approx(alone, rel=1e-2)


def read_in(step: Step) -> Counter[tuple[int, ...]]:
    """The texts of a step that count, as token ids."""
    found: Counter[tuple[int, ...]] = Counter()
    for micro in step.micros:
        if not micro.is_spare:
            ids, ends = micro.batch.ids.tolist(), micro.batch.cu_seqlens.tolist()
            found.update(tuple(ids[first:last]) for first, last in pairwise(ends))
    return found


def epoch_is_whole(work: FineTuning, ranks: int) -> None:
    """All ranks together read every text of an epoch once; a run that is resumed after any step reads the rest."""
    wanted = Counter(tuple(ids) for sample in work.samples for ids in sample.ids)
    feeds = [work.feed(0, 0, Ranks(rank, ranks), False) for rank in range(ranks)]
    steps = [[next(feed) for feed in feeds] for _ in range(work.steps_per_epoch)]
    read = [sum((read_in(each) for each in step), Counter()) for step in steps]
    assert sum(read, Counter()) == wanted
    done = 0
    for number, step in enumerate(steps):
        rest = islice(work.feed(0, done, Ranks(0, ranks), False), len(steps) - number)
        assert [read_in(each) for each in rest] == [read_in(some[0]) for some in steps[number:]]
        done += step[0].sequences
    assert done == len(work.samples)


@pytest.mark.parametrize("task", ["embed", "classify"])
def test_every_example_counts_once_whatever_the_batch_and_the_ranks(
    task: str, tmp_path: Path, tokenizer: Tokenizer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And micro-batches that are left out are noticed."""
    base_model(tmp_path, tokenizer)
    plain = [replace(pair, texts=pair.texts[:1], gold="ab"[i % 2]) for i, pair in enumerate(PAIRS[:7])]
    work = start(recipe_for(task, tmp_path), HARD[:7] if task == "embed" else plain)
    for batch, ranks, micro_tokens in ((1, 1, 8), (2, 1, 8), (3, 2, 8), (3, 3, 1), (7, 2, 8), (20, 3, 500)):
        work.batch, work.micro_tokens = batch, micro_tokens
        work.__dict__.pop("steps_per_epoch", None)
        epoch_is_whole(work, ranks)
    passes = FineTuning._passes
    monkeypatch.setattr(FineTuning, "_passes", lambda work, samples: passes(work, samples)[:1])
    work.batch, work.micro_tokens = 7, 8
    work.__dict__.pop("steps_per_epoch", None)
    with pytest.raises(AssertionError):
        epoch_is_whole(work, 1)


@pytest.mark.slow
@pytest.mark.parametrize("micro_tokens", [10_000, 1])
def test_two_processes_compare_all_texts(tmp_path: Path, micro_tokens: int) -> None:
    """Each rank sees the vectors of both; their gradients together are those of one process.

    Seven pairs: in single passes, one rank has a pass more than the other, which makes a spare one.
    """
    in_two_processes(tmp_path, micro_tokens)
    expected = gradients(work_for(10_000, pairs=PAIRS[:7]), tmp_path)
    for rank in range(2):
        assert_close(torch.load(tmp_path / f"{rank}.pt", weights_only=True), expected)


@pytest.mark.slow
def test_ranks_that_are_joined_in_another_order_are_noticed(tmp_path: Path) -> None:
    in_two_processes(tmp_path, 10_000, "own-first")
    expected = gradients(work_for(10_000, pairs=PAIRS[:7]), tmp_path)
    with pytest.raises(AssertionError):
        for rank in range(2):
            assert_close(torch.load(tmp_path / f"{rank}.pt", weights_only=True), expected)


def in_two_processes(tmp_path: Path, micro_tokens: int, *planted: str) -> None:
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": str(Path(__file__).parent)}
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2"]
    command += [__file__, str(tmp_path), str(micro_tokens), *planted]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


class OwnFirst(Ranks):
    """A planted bug: each rank has its own vectors first, whatever the targets say."""

    def gather(self, rows: Tensor, sizes: Sequence[int]) -> Tensor:
        parts = super().gather(rows, sizes).split(list(sizes))
        return torch.cat([parts[self.rank], *(part for rank, part in enumerate(parts) if rank != self.rank)])


def main(out: str, micro_tokens: str, planted: str = "") -> None:
    with joined("cpu") as ranks:
        if planted:
            ranks = OwnFirst(ranks.rank, ranks.size, ranks.local, ranks.control)
        found: dict[str, Any] = gradients(work_for(int(micro_tokens), pairs=PAIRS[:7]), Path(out), ranks)
        torch.save({name: tensor.clone() for name, tensor in found.items()}, Path(out) / f"{ranks.rank}.pt")


if __name__ == "__main__":
    main(*sys.argv[1:])
