"""A model whose vocabulary grows by the words of a domain, or loses the pieces that a text does not use.

V vocabulary · W width of the token table.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import torch
from torch import Tensor

from bothways.errors import BothwaysError
from bothways.model.config import Learned, ModelConfig
from bothways.model.model import Model
from bothways.text.fewer_pieces import choose_pieces, count_pieces, keep_pieces
from bothways.text.new_words import NewWords, OnBytes, add_words, find_words, pieces_per_word
from bothways.text.tokenizer import Tokenizer


@dataclass(frozen=True)
class Extended:
    """A model with new words."""

    model: Model
    words: NewWords
    """Which were added, and what became of the others."""
    fertility: tuple[float, float] | None = None
    """Pieces per word of the text, before and after; None if no text was given."""


@dataclass(frozen=True)
class Shrunk:
    """A model with fewer pieces."""

    model: Model
    kept: tuple[int, ...]
    """The old ids of the pieces that stayed: their places here are the new ids."""
    rows: tuple[int, int]
    """Of the token table, before and after."""
    parameters: tuple[int, int]
    megabytes: tuple[float, float]
    covered: float
    """The share of the text's tokens whose pieces stayed."""


def extend_vocabulary(
    model: Model,
    words: Iterable[str] = (),
    *,
    files: Sequence[Path | str] = (),
    count: int | None = None,
    field: str = "text",
    on_bytes: OnBytes | None = None,
) -> Extended:
    """A model that reads each of these words as one piece; with `count`, also the words of `files` that cost the most.

    The row of a new word in the token table is the mean of the rows of the pieces that it was cut into, and so is its
    bias in the masked head. How words are matched is told in `add_words`. A text without a new word gives the same ids,
    states and logits as before, bit for bit. All other weights are shared with the model given.
    """
    tokenizer = model.require_tokenizer()
    words = list(words)
    if count is not None:
        if not files:
            raise BothwaysError("words can only be looked for in a text, and none was given")
        has_given = add_words(tokenizer, words).tokenizer  # for which they cost nothing
        words += find_words(files, has_given, count, field=field, on_bytes=on_bytes)
    elif not words:
        raise BothwaysError("no words were given: name some, or give a text and how many to find in it")
    new = add_words(tokenizer, words)
    first, size = tokenizer.size, max(new.tokenizer.size, model.config.encoder.vocab_size)

    def grow(table: Tensor) -> Tensor:
        """(V, …) → (V + words, …); spare rows at the end of a table that is larger than its vocabulary are used up."""
        grown = table.new_zeros(size, *table.shape[1:])
        grown[: len(table)] = table
        for i, cut in enumerate(new.cuts, first):
            grown[i] = table[list(cut)].float().mean(0)
        return grown

    config = replace(model.config, encoder=replace(model.config.encoder, vocab_size=size))
    fertility = None
    if files:
        before, after = pieces_per_word(files, (tokenizer, new.tokenizer), field=field, on_bytes=on_bytes)
        fertility = (before, after)
    return Extended(_changed(model, config, new.tokenizer, grow), new, fertility)


def shrink_vocabulary(
    model: Model,
    files: Sequence[Path | str],
    *,
    minimum: int = 1,
    count: int | None = None,
    field: str = "text",
    on_bytes: OnBytes | None = None,
) -> Shrunk:
    """A model with only those pieces that the text of `files` uses `minimum` times or more, at most `count` in all.

    The specials and all single characters stay, so that other texts can still be spelt. A text made of pieces that
    stayed, none of them unknown, gives the same pieces and states as before, under new ids in the old order: why is
    told in `text/fewer_pieces.py`. All other weights are shared with the model given.
    """
    tokenizer, before = model.require_tokenizer(), model.config
    counts = count_pieces(files, tokenizer, field=field, on_bytes=on_bytes)
    named = _named_ids(before.hf_config, tokenizer.size)
    positions = before.encoder.positions
    # RoBERTa counts positions from the row of its padding: that row must keep its number.
    front = range(min(positions.offset, tokenizer.size)) if isinstance(positions, Learned) else range(0)
    always = {i for i in (*named.values(), *front) if tokenizer.backend.id_to_token(i) is not None}
    kept = choose_pieces(tokenizer, counts, minimum=minimum, count=count, always=always)
    place = {old: new for new, old in enumerate(kept)}
    hf_config = {**before.hf_config, **{key: place[i] for key, i in named.items() if i in place}}
    config = replace(before, encoder=replace(before.encoder, vocab_size=len(kept)), hf_config=hf_config)
    smaller = _changed(model, config, keep_pieces(tokenizer, kept), lambda table: table[kept])
    return Shrunk(
        smaller,
        tuple(kept),
        (before.encoder.vocab_size, len(kept)),
        (sum(p.numel() for p in model.parameters()), sum(p.numel() for p in smaller.parameters())),
        (_megabytes(model), _megabytes(smaller)),
        float(counts[kept].sum() / counts.sum()),
    )


def _megabytes(model: Model) -> float:
    return sum(p.numel() * p.element_size() for p in model.parameters()) / 1e6


def _named_ids(hf_config: Mapping[str, object], size: int) -> dict[str, int]:
    """The ids that config.json gives by role, as in bos_token_id."""
    return {
        key: value
        for key, value in hf_config.items()
        if key.endswith("_token_id") and isinstance(value, int) and 0 <= value < size
    }


def _changed(model: Model, config: ModelConfig, tokenizer: Tokenizer, change: Callable[[Tensor], Tensor]) -> Model:
    """The model with a change to all that has a row for each piece, whichever head it is in."""
    old, shape = model.state_dict(), model.config.encoder
    longer = replace(model.config, encoder=replace(shape, vocab_size=shape.vocab_size + 1))
    with torch.device("meta"):
        fresh, probe = Model(config, tokenizer), Model(longer).state_dict()
    state = {name: change(old[name]) if probe[name].shape != old[name].shape else old[name] for name in old}
    fresh.load_state_dict(state, assign=True)
    return fresh.train(model.training)
