"""Rerankers that learn from lists: losses and gradients are those of sentence-transformers, and they learn to rank."""

import json
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from sentence_transformers.cross_encoder import losses as theirs
from torch import Tensor, nn

from bothways.data.examples import Text
from bothways.data.notes import Notes
from bothways.data.ranked import read_ranked
from bothways.engine.reader import WindowSettings
from bothways.predict.rerank import Reranker
from bothways.tasks.finetune import finetune
from bothways.tasks.losses import binary_cross_entropy
from bothways.tasks.ranking_losses import RANKING_LOSSES, preferred
from bothways.tasks.registry import make_task
from bothways.tasks.score import ScoreSettings
from bothways.tasks.trainable import FineTuning
from bothways.text.columns import Columns
from bothways.text.tokenizer import Tokenizer
from bothways.train.distill import DistillSettings
from bothways.train.optim import OptimSettings
from bothways.train.ranks import Ranks
from helpers import refused
from helpers.tasks import base_model, quiet, recipe_for, start, take

LIMIT = 1e-5
LISTS = [[0.1, 0.5, 0.9], [0.2, 1.1], [0.3, 0.4, 2.0]]
LABELS: list[list[float]] = [[1, 0, 2], [0, 1], [3, 0, 1]]
JUDGES: dict[str, Callable[[Any], nn.Module]] = {
    "listnet": theirs.ListNetLoss,
    "ranknet": theirs.RankNetLoss,
    "lambda": theirs.LambdaLoss,
}
GOLDEN = {"listnet": 1.425319, "ranknet": 1.352004, "lambda": 3.235887}


class Stub(nn.Module):
    """A cross-encoder of sentence-transformers whose logits are given."""

    num_labels, device = 1, torch.device("cpu")

    def __init__(self, logits: Tensor) -> None:
        super().__init__()
        self.logits, self.done = logits, 0

    def preprocess(self, pairs: list[Any], **_: Any) -> dict[str, Tensor]:
        self.done += len(pairs)
        return {"places": torch.arange(self.done - len(pairs), self.done)}

    def forward(self, tokens: dict[str, Tensor]) -> dict[str, Tensor]:
        return {"scores": self.logits[tokens["places"]]}


def judged(name: str, logits: Tensor, labels: list[list[float]]) -> Tensor:
    queries, documents = [f"q{i}" for i in range(len(labels))], [["d"] * len(row) for row in labels]
    loss: Tensor = JUDGES[name](Stub(logits))([queries, documents], [torch.tensor(row) for row in labels])
    return loss


def ours(name: str, logits: Tensor, labels: list[list[float]]) -> Tensor:
    real = torch.zeros(len(labels), max(map(len, labels)), dtype=torch.bool)
    gold = torch.full(real.shape, torch.nan)
    for i, row in enumerate(labels):
        real[i, : len(row)], gold[i, : len(row)] = True, torch.tensor(row)
    scores = torch.zeros(real.numel()).scatter(0, real.flatten().nonzero()[:, 0], logits).view_as(gold)
    count = preferred(gold, real).sum() if name in ("ranknet", "lambda") else len(labels)
    return RANKING_LOSSES[name](scores, gold, real) / count


def logits_of(lists: list[list[float]]) -> Tensor:
    return torch.tensor([2 * math.sin(3 * i + x) for i, row in enumerate(lists) for x in row], requires_grad=True)


@pytest.mark.parametrize("name", JUDGES)
def test_losses_and_gradients_are_those_of_sentence_transformers(name: str) -> None:
    assert float(ours(name, logits_of(LISTS).detach(), LABELS)) == pytest.approx(GOLDEN[name], abs=1e-6)
    draws = np.random.default_rng(0)
    for case in range(20):
        sizes = draws.integers(2, 9, size=4)
        labels = [[float(x) for x in draws.integers(0, 4, size=n) / draws.choice([1, 2])] for n in sizes]
        labels[0][:2] = [1.0, 0.0]
        found = torch.tensor(draws.normal(0, 3, size=int(sizes.sum())), dtype=torch.float32, requires_grad=True)
        mine, other = ours(name, found, labels), judged(name, found, labels)
        assert float(mine.detach()) == pytest.approx(float(other.detach()), rel=LIMIT), case
        (gradient,), (expected,) = torch.autograd.grad(mine, found), torch.autograd.grad(other, found)
        assert gradient.numpy() == pytest.approx(expected.numpy(), abs=LIMIT), case


def test_the_softmax_loss_is_the_cross_entropy_of_the_relevant() -> None:
    logits = torch.tensor([0.5, -1.0, 2.0, 1.0, 3.0])
    expected = nn.functional.cross_entropy(logits[None, :3], torch.tensor([1]))
    expected = expected - logits[3:].log_softmax(0).mean()
    assert float(ours("softmax", logits, [[0, 1, 0], [1, 1]])) == pytest.approx(float(expected) / 2, rel=LIMIT)


def test_the_pointwise_loss_is_that_of_sentence_transformers() -> None:
    """BinaryCrossEntropyLoss of these logits, as version 6.2 gives it."""
    logits = logits_of([[0.1], [0.2], [0.3]]).detach()
    loss = binary_cross_entropy(logits, torch.tensor([1.0, 0.0, 1.0]), torch.ones(3)) / 3
    assert float(loss) == pytest.approx(0.637080, abs=1e-6)


# ---------------------------------------------------------------------- data

WRITTEN: dict[str, list[dict[str, Any]]] = {
    "pairs.jsonl": [
        {"query": "北京", "document": "中国的首都", "label": 1},
        {"query": "北京", "document": "法国", "label": 0},
        {"query": "cat", "document": "dog", "label": 0},
    ],
    "triplets.jsonl": [
        {"query": "北京", "positive": "中国的首都", "negative": "法国"},
        {"query": "cat", "positive": None, "negative": "dog"},
    ],
    "many.jsonl": [
        {"query": "北京", "pos": ["中国的首都"], "neg": ["法国"]},
        {"query": "cat", "pos": [], "neg": ["dog"]},
    ],
    "lists.jsonl": [
        {"query": "北京", "documents": ["中国的首都", "法国"], "labels": [1, 0]},
        {"query": "cat", "documents": ["dog"], "labels": [0]},
    ],
}


@pytest.mark.parametrize("name", WRITTEN)
def test_queries_with_documents_are_read_in_every_form(name: str, tmp_path: Path) -> None:
    file = tmp_path / name
    file.write_text("\n".join(json.dumps(row) for row in WRITTEN[name]), encoding="utf-8")
    found = [(text.texts, float(str(text.gold))) for text in read_ranked([file], Columns(), Notes())]
    assert found == [(("北京", "中国的首都"), 1.0), (("北京", "法国"), 0.0), (("cat", "dog"), 0.0)]


def test_a_table_of_triplets(tmp_path: Path) -> None:
    file = tmp_path / "triplets.tsv"
    file.write_text("Anchor\tpositive\tnegative_1\tnegative_2\na\tb\tc\td\ne\tf\tg\t\n")
    found = [(text.texts[1], text.gold) for text in read_ranked([file], Columns(), Notes())]
    assert found == [("b", 1.0), ("c", 0.0), ("d", 0.0), ("f", 1.0), ("g", 0.0)]
    named = list(read_ranked([file], Columns("negative_1", "negative_2"), Notes()))
    assert named[0].texts == ("c", "d")
    file.write_text("who\tpositive\tnegative\na\tb\tc\n")
    with refused("no-text-column"):
        list(read_ranked([file], Columns(), Notes()))
    assert [text.texts for text in read_ranked([file], Columns("who"), Notes())] == [("a", "b"), ("a", "c")]


def test_lists_without_as_many_labels_are_refused(tmp_path: Path) -> None:
    file = tmp_path / "lists.jsonl"
    for row in ({"documents": ["a", "b"], "labels": [1]}, {"documents": ["a"]}, {"docs": ["a"], "labels": ["x"]}):
        file.write_text(json.dumps({"query": "q", **row}))
        with refused("bad-label"):
            list(read_ranked([file], Columns(), Notes()))


# ---------------------------------------------------------------------- training

QUERIES = ["the capital of china", "中国的首都", "who walks", "cat"]
GRADED = [
    Text((query, text), str(gold))
    for query, first in zip(QUERIES, ["beijing", "北京", "the dog walks", "a cat"], strict=True)
    for text, gold in ((first, 2), ("the house is big", 0), ("paris 法国", 1))
]


@pytest.fixture
def base(tokenizer: Tokenizer, tmp_path: Path) -> Path:
    return base_model(tmp_path / "base", tokenizer)


def work_of(base: Path, loss: Any, examples: list[Text], **parts: Any) -> FineTuning:
    return start(recipe_for("score", base, settings=ScoreSettings(loss), **parts), examples)


@pytest.mark.parametrize("loss", RANKING_LOSSES)
@pytest.mark.parametrize("length", [48, 10], ids=["whole", "windows"])
def test_a_step_has_the_loss_of_its_lists(loss: Any, length: int, base: Path) -> None:
    """Of each query all documents, whatever their order in the data; a document has the score of its best window."""
    shuffled = [GRADED[i] for i in np.random.default_rng(1).permutation(len(GRADED))]
    work = work_of(base, loss, shuffled, window=WindowSettings(length=length, overlap=1))
    model, task = work.module.model, make_task(work.module.model, ScoreSettings(loss))
    samples, left = task.joined([sample for item in task.encode(shuffled) for sample in task.samples(item)])
    assert left == 0
    assert len(samples) == len(QUERIES)
    ranker = Reranker(model)
    order = list(dict.fromkeys(text.texts[0] for text in shuffled))
    grouped = [[text for text in shuffled if text.texts[0] == query] for query in order]
    with torch.no_grad():
        logits = ranker._logits([text.texts for some in grouped for text in some], lambda items, _: items)
    expected = ours(loss, torch.tensor(logits).float(), [[float(str(text.gold)) for text in some] for some in grouped])
    assert (ranker.tally.in_windows > 0) == (length == 10)
    for micro_tokens in (10_000, 60):
        whole = FineTuning(model, task, samples, [], batch=len(samples), micro_tokens=micro_tokens, seed=0)
        assert (len(whole._step(samples, Ranks()).micros) > 1) == (micro_tokens == 60)
        assert take(whole) == pytest.approx(float(expected), rel=1e-4)


@pytest.mark.parametrize("loss", ["binary_cross_entropy", *RANKING_LOSSES])
def test_every_loss_learns_to_rank(loss: Any, base: Path, tmp_path: Path) -> None:
    recipe = recipe_for(
        "score", base, settings=ScoreSettings(loss), run=quiet(steps=30), optim=OptimSettings(lr=3e-3, warmup=0)
    )
    result = finetune(recipe, tmp_path / "out", train=GRADED, dev=GRADED)
    assert result.metric == ("spearman" if loss == "binary_cross_entropy" else "ndcg@10")
    assert result.scores["ndcg@10"] > 0.99
    ranker = Reranker(result.folder)
    hits = ranker.rank(QUERIES[1], [text.texts[1] for text in GRADED[3:6]])
    assert hits[0].text == "北京"


def test_queries_without_a_preference_are_left_out_aloud(base: Path, tmp_path: Path) -> None:
    said: list[str] = []
    alone = [*GRADED, Text(("dog", "runs"), "1"), Text(("tree", "big"), "0"), Text(("tree", "small"), "0")]
    recipe = recipe_for("score", base, settings=ScoreSettings("softmax"))
    finetune(recipe, tmp_path / "out", train=alone, say=said.append)
    assert any("3 of the 15 training examples" in line for line in said)
    with refused("no-lists", "softmax"):
        finetune(recipe, tmp_path / "none", train=alone[-3:])
    with refused("unknown-choice"):
        ScoreSettings("hinge")  # type: ignore[arg-type]


def test_a_list_loss_can_be_distilled(base: Path, tmp_path: Path) -> None:
    teacher = finetune(recipe_for("score", base, settings=ScoreSettings("listnet")), tmp_path / "t", train=GRADED)
    recipe = recipe_for(
        "score", base, settings=ScoreSettings("listnet"), distill=DistillSettings(teacher=str(teacher.folder))
    )
    assert finetune(recipe, tmp_path / "s", train=GRADED).complete
