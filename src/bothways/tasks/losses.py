"""Losses over packed batches. B sequences · C classes · G groups."""

from bothways.lazy import F, Tensor, torch


def cross_entropy(logits: Tensor, gold: Tensor, weight: Tensor, smoothing: float = 0.0, focal: float = 0.0) -> Tensor:
    """The weighted sum over rows. logits (B, C), gold (B,), weight (B,).

    `smoothing` spreads this share of the target over all classes. `focal` (Lin et al. 2017) weights rows whose gold
    class has probability p by (1 - p)^focal.
    """
    logs = logits.float().log_softmax(1)
    right = logs.gather(1, gold[:, None])[:, 0]
    loss = -(1 - smoothing) * right - smoothing * logs.mean(1)
    if focal:
        loss = loss * (1 - right.exp()) ** focal
    return (loss * weight).sum()


def grouped_cross_entropy(scores: Tensor, owner: Tensor, right: Tensor) -> Tensor:
    """The sum over groups of -log softmax(scores within the group) at `right`.

    scores (n,), owner (n,) the group of each, right (G,) the index of each group's correct one.
    """
    return -grouped_log_softmax(scores, owner, right.shape[0])[right].sum()


def grouped_log_softmax(scores: Tensor, owner: Tensor, groups: int) -> Tensor:
    """log softmax within each group: (n,) → (n,)."""
    scores = scores.float()
    top = scores.new_full((groups,), float("-inf")).scatter_reduce(0, owner, scores.detach(), "amax")
    shifted = scores - top[owner]
    total = torch.zeros_like(top).index_add(0, owner, shifted.exp())
    return shifted - total.log()[owner]


def grouped_imitation(scores: Tensor, taught: Tensor, owner: Tensor, groups: int, temperature: float) -> Tensor:
    """The sum over groups of KL(teacher ‖ student) between softmaxes within the group, times T². (n,) each."""
    own, other = (grouped_log_softmax(x / temperature, owner, groups) for x in (scores, taught))
    return (other.exp() * (other - own)).sum() * temperature**2


def binary_imitation(logits: Tensor, taught: Tensor, weight: Tensor, temperature: float) -> Tensor:
    """The weighted sum of KL(teacher ‖ student) between Bernoulli distributions, times T². Shapes broadcast."""
    own, other = (x.float() / temperature for x in (logits, taught))
    yes, no = (x.sigmoid() * (F.logsigmoid(x) - F.logsigmoid(y)) for x, y in ((other, own), (-other, -own)))
    return ((yes + no) * weight).sum() * temperature**2


def binary_cross_entropy(logits: Tensor, gold: Tensor, weight: Tensor, focal: float = 0.0) -> Tensor:
    """The weighted sum over all elements; shapes broadcast. `focal` as in `cross_entropy`, per element."""
    logits = logits.float()
    loss = F.binary_cross_entropy_with_logits(logits, gold, reduction="none")
    if focal:
        p = logits.sigmoid()
        loss = loss * torch.where(gold > 0.5, 1 - p, p) ** focal
    return (loss * weight).sum()
