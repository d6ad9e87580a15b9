"""The choices of bulk work, in a file that imports nothing, so that the command line's help stays fast."""

from typing import Literal

VectorFormat = Literal["npy", "jsonl", "parquet"]
TableFormat = Literal["jsonl", "csv", "parquet"]
ROWS_PER_PART = 50_000
DOCUMENTS_PER_PART = 5_000
"""Of `pack`: documents are longer than the rows of the other verbs."""
