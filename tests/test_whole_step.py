"""Losses over the vectors of a whole step: the same gradients whatever the micro-batches and however many processes."""

import os
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

from bothways.data.examples import Text
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
from bothways.train.ranks import Ranks, joined
from bothways.train.settings import RunSettings
from helpers import PIECES, TINY, make_loud

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
        return Pooling()(states, batch)

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


@pytest.mark.slow
@pytest.mark.parametrize("micro_tokens", [10_000, 1])
def test_two_processes_compare_all_texts(tmp_path: Path, micro_tokens: int) -> None:
    """Each rank sees the vectors of both; their gradients together are those of one process.

    Seven pairs: in single passes, one rank has a pass more than the other, which makes a spare one.
    """
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": str(Path(__file__).parent)}
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2"]
    command += [__file__, str(tmp_path), str(micro_tokens)]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    expected = gradients(work_for(10_000, pairs=PAIRS[:7]), tmp_path)
    for rank in range(2):
        assert_close(torch.load(tmp_path / f"{rank}.pt", weights_only=True), expected)


def main(out: str, micro_tokens: str) -> None:
    with joined("cpu") as ranks:
        found: dict[str, Any] = gradients(work_for(int(micro_tokens), pairs=PAIRS[:7]), Path(out), ranks)
        torch.save({name: tensor.clone() for name, tensor in found.items()}, Path(out) / f"{ranks.rank}.pt")


if __name__ == "__main__":
    main(*sys.argv[1:])
