"""Extend the vocabulary of a model by the words of a domain, or drop the pieces that a corpus does not use.

V vocabulary · W width of the token embeddings.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from bothways.errors import BothwaysError
from bothways.model.config import Learned, ModelConfig
from bothways.model.model import Model
from bothways.text.fewer_pieces import choose_pieces, count_pieces, keep_pieces
from bothways.text.new_words import NewWords, OnBytes, add_words, find_words, pieces_per_word
from bothways.text.tokenizer import Tokenizer


@dataclass(frozen=True)
class Extended:
    """A model with new words in its vocabulary."""

    model: Model
    words: NewWords
    """The words that were added, and those that were not."""
    fertility: tuple[float, float] | None = None
    """Subword pieces per word of the corpus, before and after; None without a corpus."""


@dataclass(frozen=True)
class Shrunk:
    """A model with a smaller vocabulary. Pairs are before and after."""

    model: Model
    kept: tuple[int, ...]
    """The old ids of the pieces that were kept: kept[new id] = old id."""
    rows: tuple[int, int]
    """Number of token embeddings."""
    parameters: tuple[int, int]
    megabytes: tuple[float, float]
    covered: float
    """The share of the corpus's tokens whose pieces were kept."""


def extend_vocabulary(
    model: Model,
    words: Iterable[str] = (),
    *,
    files: Sequence[Path | str] = (),
    count: int | None = None,
    text: str | None = None,
    on_bytes: OnBytes | None = None,
) -> Extended:
    """A model that reads each of `words` as one token.

    With `count`, so many words of `files` are added too: those that would save the most tokens. The embedding of a new
    word is the mean of the embeddings of its former tokens, and so is its bias in the masked language modelling head.
    `add_words` documents how words are matched. A text without a new word gives the same ids, hidden states and logits
    as before, bit for bit. All other weights are shared with `model`.
    """
    tokenizer = model.require_tokenizer()
    words = list(words)
    if count is not None:
        if not files:
            raise BothwaysError("`count` needs files to find words in, and none were given", "no-text", count)
        extended = add_words(tokenizer, words).tokenizer  # so that the given words are not found again
        words += find_words(files, extended, count, field=text, on_bytes=on_bytes)
    elif not words:
        raise BothwaysError("no words were given: give `words`, or files and `count`", "no-words")
    new = add_words(tokenizer, words)
    first, size = tokenizer.size, max(new.tokenizer.size, model.config.encoder.vocab_size)

    def grow(table: Tensor) -> Tensor:
        """(V, …) → (V + words, …). Unused rows at the end of a table larger than its vocabulary are used first."""
        grown = table.new_zeros(size, *table.shape[1:])
        grown[: len(table)] = table
        for i, pieces in enumerate(new.cuts, first):
            grown[i] = table[list(pieces)].float().mean(0)
        return grown

    config = replace(model.config, encoder=replace(model.config.encoder, vocab_size=size))
    fertility = None
    if files:
        before, after = pieces_per_word(files, (tokenizer, new.tokenizer), field=text, on_bytes=on_bytes)
        fertility = (before, after)
    return Extended(_changed(model, config, new.tokenizer, grow), new, fertility)


def shrink_vocabulary(
    model: Model,
    files: Sequence[Path | str],
    *,
    minimum: int = 1,
    count: int | None = None,
    text: str | None = None,
    on_bytes: OnBytes | None = None,
) -> Shrunk:
    """A model with only those tokens that the text of `files` uses `minimum` times or more, at most `count` in all.

    Special tokens and single characters are always kept, so that other texts can still be tokenized. A text whose
    pieces were all kept, without unknown ones, gives the same pieces and hidden states as before; the new ids are in
    the order of the old ones (`text/fewer_pieces.py` explains why). All other weights are shared with `model`.
    """
    counts = count_pieces(files, model.require_tokenizer(), field=text, on_bytes=on_bytes)
    return keep_used(model, counts, minimum=minimum, count=count)


def keep_used(model: Model, counts: NDArray[np.int64], *, minimum: int = 1, count: int | None = None) -> Shrunk:
    """As `shrink_vocabulary`, with the number of uses of each piece, by id."""
    tokenizer, before = model.require_tokenizer(), model.config
    named = _named_ids(before.hf_config, tokenizer.size)
    positions = before.encoder.positions
    # RoBERTa counts positions from the id of its padding token: that id must not change.
    front = range(min(positions.offset, tokenizer.size)) if isinstance(positions, Learned) else range(0)
    always = {i for i in (*named.values(), *front) if tokenizer.backend.id_to_token(i) is not None}
    kept = choose_pieces(tokenizer, counts, minimum=minimum, count=count, always=always)
    new_ids = {old: new for new, old in enumerate(kept)}
    hf_config = {**before.hf_config, **{key: new_ids[i] for key, i in named.items() if i in new_ids}}
    config = replace(before, encoder=replace(before.encoder, vocab_size=len(kept)), hf_config=hf_config)
    smaller = _changed(model, config, keep_pieces(tokenizer, kept), lambda table: table[kept])
    return Shrunk(
        smaller,
        tuple(kept),
        (before.encoder.vocab_size, len(kept)),
        (sum(p.numel() for p in model.parameters()), sum(p.numel() for p in smaller.parameters())),
        (_megabytes(model), _megabytes(smaller)),
        float(counts[kept].sum() / max(counts.sum(), 1)),
    )


def _megabytes(model: Model) -> float:
    return sum(p.numel() * p.element_size() for p in model.parameters()) / 1e6


def _named_ids(hf_config: Mapping[str, object], size: int) -> dict[str, int]:
    """The token ids in config.json, such as bos_token_id."""
    return {
        key: value
        for key, value in hf_config.items()
        if key.endswith("_token_id") and isinstance(value, int) and 0 <= value < size
    }


def _changed(model: Model, config: ModelConfig, tokenizer: Tokenizer, change: Callable[[Tensor], Tensor]) -> Model:
    """The model with `change` applied to every parameter that has one row per piece, in the encoder or in a head."""
    shape = model.config.encoder
    old = {name: tensor for name, tensor in model.state_dict().items() if not name.startswith(("sentence.", "late."))}
    longer = replace(model.config, encoder=replace(shape, vocab_size=shape.vocab_size + 1))
    with torch.device("meta"):
        fresh, probe = Model(config, tokenizer), Model(longer).state_dict()
    state = {name: change(old[name]) if probe[name].shape != old[name].shape else old[name] for name in old}
    fresh.load_state_dict(state, assign=True)
    fresh.sentence, fresh.sentence_error, fresh.late = model.sentence, model.sentence_error, model.late
    return fresh.train(model.training)
