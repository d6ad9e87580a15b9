"""The choices of search, in a file that does not import torch, so that the command line's help stays fast."""

from typing import Literal

Mode = Literal["dense", "bm25", "fused"]
Quantize = Literal["int8", "binary"]
Similarity = Literal["cosine", "dot"]
