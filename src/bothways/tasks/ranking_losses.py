"""Losses that compare the documents of a query.

Q queries · L documents of the longest list. Scores and golds are (Q, L); `real` is False where a list is padded. Each
loss is a sum: over queries for softmax and ListNet, over pairs of documents for RankNet and LambdaLoss.
"""

import math
from collections.abc import Callable

from bothways.lazy import F, Tensor, torch

RankingLoss = Callable[[Tensor, Tensor, Tensor], Tensor]
_SWAP_WEIGHT = 10.0
"""μ of NDCG-Loss2++, as in the paper."""


def softmax_loss(scores: Tensor, gold: Tensor, real: Tensor) -> Tensor:
    """-log of the probability of the relevant documents in the softmax over the list, weighted by their relevance.

    With one relevant document this is the localized contrastive loss (Gao et al. 2021).
    """
    relevance = gold.clamp(min=0).where(real, 0.0)
    return _cross_entropy(scores, relevance / relevance.sum(1, keepdim=True).clamp(min=1e-9), real)


def listnet_loss(scores: Tensor, gold: Tensor, real: Tensor) -> Tensor:
    """ListNet (Cao et al. 2007): cross-entropy between the softmax of the golds and that of the scores."""
    return _cross_entropy(scores, gold.masked_fill(~real, float("-inf")).softmax(1), real)


def ranknet_loss(scores: Tensor, gold: Tensor, real: Tensor) -> Tensor:
    """RankNet (Burges et al. 2005): -log2 σ(s_i - s_j) of all pairs in which i is more relevant than j."""
    return _pairwise(scores, preferred(gold, real), None)


def lambda_loss(scores: Tensor, gold: Tensor, real: Tensor) -> Tensor:
    """LambdaLoss, NDCG-Loss2++ (Wang et al. 2018): RankNet, each pair weighted by what its order is worth in nDCG."""
    order = scores.detach().masked_fill(~real, float("-inf")).sort(dim=1, descending=True, stable=True).indices
    scores, gold, real = (x.gather(1, order) for x in (scores, gold, real))
    relevance = gold.clamp(min=0).where(real, 0.0)
    place = torch.arange(1, scores.shape[1] + 1, device=scores.device)
    discount = torch.log2(1.0 + place)
    ideal = ((2 ** relevance.sort(1, descending=True).values - 1) / discount).sum(1, keepdim=True)
    gain = (2**relevance - 1) / ideal.clamp(min=1e-10)
    apart = (place[:, None] - place).abs().float()
    swap = (1 / torch.log2(1 + apart.clamp(min=1)) - 1 / torch.log2(2 + apart)).abs()
    rank = (1 / discount[:, None] - 1 / discount).abs()
    weights = (_SWAP_WEIGHT * swap + rank) * (gain[:, :, None] - gain[:, None]).abs()
    return _pairwise(scores, preferred(gold, real), weights)


def preferred(gold: Tensor, real: Tensor) -> Tensor:
    """(Q, L, L) whether the first document of a pair is more relevant than the second."""
    return (gold[:, :, None] > gold[:, None]) & real[:, :, None] & real[:, None]


def _cross_entropy(scores: Tensor, target: Tensor, real: Tensor) -> Tensor:
    logs = scores.masked_fill(~real, float("-inf")).log_softmax(1).where(real, 0.0)
    return -(target * logs).sum()


def _pairwise(scores: Tensor, pairs: Tensor, weights: Tensor | None) -> Tensor:
    difference = (scores[:, :, None] - scores[:, None]).where(pairs, 0.0)
    logs = F.logsigmoid(difference) / math.log(2)
    return -(logs if weights is None else logs * weights).where(pairs, 0.0).sum()


RANKING_LOSSES: dict[str, RankingLoss] = {
    "softmax": softmax_loss,
    "listnet": listnet_loss,
    "ranknet": ranknet_loss,
    "lambda": lambda_loss,
}
OVER_PAIRS = ("ranknet", "lambda")
"""Losses whose mean is over pairs of documents, not over queries."""
