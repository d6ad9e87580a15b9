"""Losses over vectors: the values of sentence-transformers, and what they must not do."""

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

from bothways.tasks.vector_losses import (
    Groups,
    cosines,
    guided_negatives,
    in_batch_negatives,
    matryoshka,
    ranked_pairs,
    scored_pairs,
    triplets,
)

SIZE = 4


def column(phase: float) -> Tensor:
    i, j = torch.arange(SIZE, dtype=torch.float64)[:, None], torch.arange(6, dtype=torch.float64)
    return torch.sin(1 + 1.7 * i + 0.9 * j + 0.5 * i * j + phase)


ANCHORS, POSITIVES, NEGATIVES = column(0.0), column(0.9), column(1.6)
GOLD = torch.tensor([0.1, 0.9, 0.4, 0.9], dtype=torch.float64)


def step(*columns: Tensor) -> tuple[Tensor, Groups]:
    """The vectors row by row, as a step has them: each anchor with its documents."""
    rows = torch.stack(columns, 1)
    places = torch.arange(SIZE * len(columns)).view(SIZE, -1)
    width = len(columns) - 1
    return rows.flatten(0, 1), Groups(places[:, 0], places[:, 1:].flatten(), torch.arange(SIZE) * width)


# Values of sentence-transformers 6.2 for these columns, in float64.
@pytest.mark.parametrize(("columns", "options", "wanted"), [
    ((ANCHORS, POSITIVES), {"scale": 5.0}, 0.160321),
    ((ANCHORS, POSITIVES, NEGATIVES), {"scale": 5.0}, 0.361885),
    ((ANCHORS, POSITIVES), {"scale": 5.0, "symmetric": True}, 0.168175),
    ((ANCHORS, POSITIVES, NEGATIVES), {"scale": 5.0, "symmetric": True}, 0.268958),
    ((ANCHORS, POSITIVES, NEGATIVES), {}, 0.004289),
])  # fmt: skip
def test_in_batch_negatives(columns: tuple[Tensor, ...], options: dict[str, float], wanted: float) -> None:
    found = in_batch_negatives(*step(*columns), **options) / SIZE  # type: ignore[arg-type]
    assert float(found) == pytest.approx(wanted, abs=1e-6)


@pytest.mark.parametrize(("columns", "guides", "options", "wanted"), [
    ((ANCHORS, POSITIVES), (0.3, 1.0), {}, 1.637589),
    ((ANCHORS, POSITIVES, NEGATIVES), (0.3, 1.0, 2.0), {}, 1.996501),
    ((ANCHORS, POSITIVES), (0.3, 1.0), {"contrast_anchors": False, "contrast_positives": False}, 0.897553),
    ((ANCHORS, POSITIVES, NEGATIVES), (0.3, 1.0, 2.0),
     {"contrast_anchors": False, "contrast_positives": False}, 1.540424),
])  # fmt: skip
def test_guided_negatives(
    columns: tuple[Tensor, ...], guides: tuple[float, ...], options: dict[str, bool], wanted: float
) -> None:
    vectors, groups = step(*columns)
    guide, _ = step(*map(column, guides))
    found = guided_negatives(vectors, groups, guide, 1.0, **options) / SIZE
    assert float(found) == pytest.approx(wanted, abs=1e-6)


def test_a_relative_margin_of_a_negative_similarity_leaves_out_more() -> None:
    """A document that the guide finds closer than the positive is left out, also if the positive is far away."""
    angles = torch.tensor([0.0, 2.1, 2.09, 2.5, 0.0, 0.3]).double()  # anchor, positive, closer, farther; another pair
    guide = torch.stack([angles.cos(), angles.sin()], 1)
    groups = Groups(torch.tensor([0, 4]), torch.tensor([1, 2, 3, 5]), torch.tensor([0, 3]))
    alone = {"contrast_anchors": False, "contrast_positives": False}
    vectors = column(0.0)[[0, 1, 2, 3, 0, 1]]
    both = [guided_negatives(vectors, groups, guide, 1.0, margin, True, **alone) for margin in (0.0, 0.05)]
    scores = cosines(vectors[[0, 4]], vectors[[1, 2, 3, 5]])
    limit = F.cosine_similarity(guide[[0, 4]], guide[[1, 5]])[:, None]
    for found, margin in zip(both, (0.0, 0.05), strict=True):
        left_out = cosines(guide[[0, 4]], guide[[1, 2, 3, 5]]) > limit - limit.abs() * margin
        left_out[[0, 1], [0, 3]] = False
        assert left_out[0].tolist()[:2] == [False, True]
        wanted = F.cross_entropy(scores.masked_fill(left_out, -torch.inf), torch.tensor([0, 3]), reduction="sum")
        assert float(found) == pytest.approx(float(wanted))


def test_pairs_with_scores() -> None:
    similar = F.cosine_similarity(ANCHORS, POSITIVES)
    assert float(ranked_pairs(similar, GOLD)) == pytest.approx(5.647133, abs=1e-6)
    assert float(scored_pairs(similar, GOLD)) / SIZE == pytest.approx(0.185031, abs=1e-6)
    assert float(ranked_pairs(similar, torch.ones(SIZE))) == 0


def test_triplets_in_euclidean_distance() -> None:
    assert float(triplets(ANCHORS, POSITIVES, NEGATIVES)) / SIZE == pytest.approx(3.991736, abs=1e-6)


@pytest.mark.parametrize(("weights", "wanted"), [((), 3.658021), ((1.0, 0.5, 0.25), 1.378021)])
def test_short_vectors(weights: tuple[float, ...], wanted: float) -> None:
    vectors, groups = step(ANCHORS, POSITIVES, NEGATIVES)
    found = matryoshka(lambda some: in_batch_negatives(some, groups, 5.0), vectors, (6, 4, 2), weights) / SIZE
    assert float(found) == pytest.approx(wanted, abs=1e-6)


def test_a_hidden_document_is_no_negative() -> None:
    vectors, groups = step(ANCHORS, POSITIVES, NEGATIVES)
    hidden = torch.zeros(SIZE, len(groups.documents), dtype=torch.bool)
    hidden[:, 1::2] = True  # the negatives
    found = in_batch_negatives(vectors, groups, 5.0, hidden=hidden) / SIZE
    assert float(found) == pytest.approx(0.160321, abs=1e-6)
