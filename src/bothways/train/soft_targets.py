"""The distance of a student's outputs from its teacher's. C classes."""

from bothways.lazy import Tensor


def soft_distance(logits: Tensor, taught: Tensor, temperature: float) -> Tensor:
    """T² · KL(teacher ‖ student) of each row; T² keeps the gradient's size at any temperature T. (…, C) → (…)."""
    own, other = ((x.float() / temperature).log_softmax(-1) for x in (logits, taught))
    return (other.exp() * (other - own)).sum(-1) * temperature**2
