"""The names of the pooling modes, in a file that does not import torch, so that the command line's help stays fast."""

from typing import Literal

PoolingMode = Literal["cls", "max", "mean", "mean_sqrt_len_tokens", "weightedmean", "lasttoken"]
"""Those of sentence-transformers, in its order."""
