"""Losses over the vectors of texts: which belong together, and how similar two are.

Each returns the sum over anchors or pairs, unless it says otherwise. Similarity is the cosine.
S texts of a step · B anchors · D documents · P pairs · W width.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from bothways.lazy import F, Tensor, torch


@dataclass(frozen=True)
class Groups:
    """Which texts of a step belong together: anchors, and documents that are relevant to one of them or not."""

    anchors: Tensor
    """(B,) their places among the texts."""
    documents: Tensor
    """(D,) those of positives and hard negatives, in any order."""
    positives: Tensor
    """(B,) the document, as a place in `documents`, that is each anchor's own."""


def in_batch_negatives(
    vectors: Tensor, groups: Groups, scale: float = 20.0, symmetric: bool = False, hidden: Tensor | None = None
) -> Tensor:
    """The cross-entropy of telling an anchor's positive from all documents of the step (MNRL, InfoNCE).

    `symmetric`: the mean with that of telling a positive's anchor from all anchors. `hidden`: (B, D) documents that are
    not compared with an anchor, because they may be relevant to it.
    """
    anchors, documents = vectors[groups.anchors], vectors[groups.documents]
    scores = scale * cosines(anchors, documents)
    if hidden is not None:
        scores = scores.masked_fill(hidden, -torch.inf)
    forth = F.cross_entropy(scores, groups.positives, reduction="sum")
    if not symmetric:
        return forth
    back = scale * cosines(documents[groups.positives], anchors)
    return (forth + F.cross_entropy(back, torch.arange(len(anchors), device=back.device), reduction="sum")) / 2


def guided_negatives(
    vectors: Tensor,
    groups: Groups,
    guide: Tensor,
    temperature: float = 0.01,
    margin: float = 0.0,
    relative: bool = False,
    contrast_anchors: bool = True,
    contrast_positives: bool = True,
) -> Tensor:
    """In-batch negatives without those that a guide model finds as similar as the positive (GISTEmbed).

    `guide`: (S, any width) the guide's vectors. What it finds more similar than the positive less `margin` is left out;
    `relative`: the margin is a share of the positive's similarity. An anchor is also told from the other anchors, and
    its positive from the other positives.
    """
    own = torch.arange(len(groups.anchors), device=vectors.device)
    places = groups.documents[groups.positives]
    with torch.no_grad():
        similar = F.cosine_similarity(guide[groups.anchors], guide[places])
        limit = (similar - (similar.abs() if relative else 1.0) * margin)[:, None]
    compared = [(groups.anchors, groups.documents, groups.positives, False)]
    if contrast_anchors:
        compared.append((groups.anchors, groups.anchors, own, True))
    if contrast_positives:
        compared.append((places, places, own, True))
    scores = []
    for rows, columns, same, is_self in compared:
        found = cosines(vectors[rows], vectors[columns]) / temperature
        left_out = cosines(guide[rows], guide[columns]) > limit
        left_out[own, same] = is_self  # an anchor's own positive stays, and nothing is compared with itself
        scores.append(found.masked_fill(left_out, -torch.inf))
    return F.cross_entropy(torch.cat(scores, 1), groups.positives, reduction="sum")


def ranked_pairs(similarities: Tensor, gold: Tensor, scale: float = 20.0) -> Tensor:
    """One number for all pairs (P,): those with a higher gold score should be more similar (CoSENT)."""
    is_wrong_way = gold[:, None] < gold
    differences = (similarities[:, None] - similarities).masked_fill(~is_wrong_way, -torch.inf) * scale
    return torch.cat([differences.flatten(), differences.new_zeros(1)]).logsumexp(0)


def scored_pairs(similarities: Tensor, gold: Tensor) -> Tensor:
    """The squared differences between cosine and gold score."""
    return ((similarities - gold) ** 2).sum()


def triplets(anchors: Tensor, positives: Tensor, negatives: Tensor, margin: float = 5.0) -> Tensor:
    """How far each negative is from being farther than the positive by the margin, in Euclidean distance."""
    near, far = F.pairwise_distance(anchors, positives, eps=0), F.pairwise_distance(anchors, negatives, eps=0)
    return (near - far + margin).relu().sum()


def taught_vectors(projected: Tensor, vectors: Tensor, taught: Tensor, similarity: float = 20.0) -> Tensor:
    """How far vectors are from a teacher's (S, any width): 1 - cosine of their projections, and `similarity` times the
    mean squared difference between the cosines of all texts of the step with each other."""
    apart = (1 - F.cosine_similarity(projected, taught)).sum()
    differences = (cosines(vectors, vectors) - cosines(taught, taught)) ** 2
    return apart + similarity * differences.mean() * len(vectors)


def related_pairs(pairs: Tensor, logits: Callable[[Tensor], Tensor], gold: Tensor) -> Tensor:
    """The cross-entropy of the relation of two texts, (P, 2, W), by a linear layer over u, v and |u - v| (SBERT)."""
    first, second = pairs.unbind(1)
    return F.cross_entropy(logits(torch.cat([first, second, (first - second).abs()], 1)), gold, reduction="sum")


def matryoshka(
    loss: Callable[[Tensor], Tensor], vectors: Tensor, sizes: Sequence[int], weights: Sequence[float] = ()
) -> Tensor:
    """The weighted sum of a loss over the first numbers of the vectors, so that short vectors are useful too."""
    parts = zip(sizes, weights or [1.0] * len(sizes), strict=True)
    found = [weight * loss(F.normalize(vectors[:, :size], dim=1)) for size, weight in parts]
    return torch.stack(found).sum()


def cosines(rows: Tensor, columns: Tensor) -> Tensor:
    """(n, W), (m, W) → (n, m)."""
    return F.normalize(rows, dim=1) @ F.normalize(columns, dim=1).T
