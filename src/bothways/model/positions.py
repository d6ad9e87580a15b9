"""The seam where a model learns the order of its tokens.

N tokens in the batch · H heads · D per head · W width.
"""

from torch import Tensor, nn

from bothways.model.attention import Bias
from bothways.model.batch import Batch
from bothways.model.config import Learned


class Positions(nn.Module):
    """A kind of position overrides the hooks it needs; the encoder calls all three."""

    has_bias = False
    """Whether `bias` gives one: not every attention backend can add it."""

    def at_input(self, positions: Tensor) -> Tensor | None:
        """Added to the token embeddings: (N,) → (N, W)."""
        return None

    def turn(self, q: Tensor, k: Tensor, positions: Tensor) -> tuple[Tensor, Tensor]:
        """Queries and keys, turned by their positions: (N, H, D) each."""
        return q, k

    def bias(self, q: Tensor, k: Tensor, batch: Batch) -> Bias | None:
        """What is added to the attention scores."""
        return None


class LearnedPositions(Positions):
    """BERT's: one learned row for each place, added at the input."""

    def __init__(self, config: Learned, width: int) -> None:
        super().__init__()
        self.rows = nn.Embedding(config.rows, width)

    def at_input(self, positions: Tensor) -> Tensor:
        rows: Tensor = self.rows(positions)
        return rows
