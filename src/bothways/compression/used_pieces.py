"""The pieces of a vocabulary that examples use, as the model reads them."""

from collections.abc import Iterable, Sequence
from itertools import islice
from pathlib import Path
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from bothways.progress import Watch
from bothways.tasks.task import Task
from bothways.text.fewer_pieces import count_pieces
from bothways.text.tokenizer import Tokenizer

Vocabulary = Literal["auto", "pruned", "whole"]
"""Whether the vocabulary is pruned; auto: if the score is kept on texts with other pieces."""
_AT_ONCE = 1_024


def pieces_of_examples(
    task: Task, examples: Iterable[Any], tokenizer: Tokenizer, rows: int, watch: Watch
) -> NDArray[np.int64]:
    """How often examples use each piece, by id; the table of embeddings has `rows`."""
    counts = np.zeros(max(rows, tokenizer.size), np.int64)
    stream = iter(watch(examples, "counting tokens"))
    while chunk := list(islice(stream, _AT_ONCE)):
        counts += np.bincount(task.encode(chunk).sequences.ids, minlength=len(counts))
    return counts[: tokenizer.size]


def pieces_of_texts(files: Sequence[Path | str], tokenizer: Tokenizer, column: str | None) -> NDArray[np.int64]:
    """How often the texts of files use each piece, by id."""
    if not files:
        return np.zeros(tokenizer.size, np.int64)
    return count_pieces(files, tokenizer, field=column)
