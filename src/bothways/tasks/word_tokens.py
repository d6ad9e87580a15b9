"""The tokens in which words begin."""

from collections.abc import Iterable, Iterator
from itertools import chain

import numpy as np
from numpy.typing import NDArray

from bothways.engine.sequences import Indices, ragged
from bothways.tasks.encoded import EncodedChunk, EncodedExample


def first_tokens(item: EncodedExample) -> NDArray[np.int64]:
    """The first token of each word in the text; -1 if the tokenizer drops the word."""
    read = item.reads[0]
    offsets = read.places()
    words = np.array(item.example.words).reshape(-1, 2)
    if not len(offsets) or not len(words):
        return np.full(len(words), -1)
    # The token that holds the word's first character; if there is none, the next token, if that is in the word.
    place = np.searchsorted(offsets[:, 0], words[:, 0], "right") - 1
    place += (place < 0) | (offsets[np.maximum(place, 0), 1] <= words[:, 0])
    inside = (place < len(offsets)) & (offsets[np.minimum(place, len(offsets) - 1), 0] < words[:, 1])
    return np.where(inside, place + read.inside.start, -1)


def first_tokens_of(items: EncodedChunk) -> tuple[Indices, Indices]:
    """`first_tokens` of all texts, one after the other, and the number of words of each. For texts without windows."""
    counts = np.fromiter((len(example.words) for example in items.examples), np.int64, len(items))
    words = np.fromiter(_flat(example.words for example in items.examples), np.int64, 2 * int(counts.sum()))
    lengths = items.sequences.lengths
    tokens = items.reads.tokens
    assert tokens.offsets is not None  # words are read with offsets
    words, offsets = words.reshape(-1, 2), tokens.offsets.astype(np.int64)
    starts = items.sequences.starts
    for i, places in items.reads.parted.items():
        own = offsets[starts[i] : starts[i] + lengths[i]]
        own -= np.searchsorted(np.array(places) + np.arange(len(places)), own)
    # All texts as one long text, in which each has a stretch of its own; tokens outside the texts are left out.
    before, texts = tokens.ranges[:, 0, 0], tokens.ranges[:, 0, 1] - tokens.ranges[:, 0, 0]
    inside = ragged(starts + before, texts)
    offsets, stretch = offsets[inside], int(max(words.max(initial=0), offsets.max(initial=0))) + 1
    first = np.cumsum(texts) - texts
    owner = np.repeat(np.arange(len(items)), counts)
    keys = offsets[:, 0] + np.repeat(np.arange(len(items)), texts) * stretch
    place = np.searchsorted(keys, words[:, 0] + owner * stretch, "right") - 1 - first[owner]
    # The token that holds the word's first character; if there is none, the next token, if that is in the word.
    at = np.minimum(first[owner] + np.maximum(place, 0), max(len(offsets) - 1, 0))
    has_tokens = texts[owner] > 0
    if not len(offsets):
        return np.full(len(words), -1), counts
    place += (place < 0) | (offsets[at, 1] <= words[:, 0])
    last = np.minimum(first[owner] + np.minimum(place, texts[owner] - 1), len(offsets) - 1)
    is_inside = has_tokens & (place < texts[owner]) & (offsets[last, 0] < words[:, 1])
    return np.where(is_inside, place + before[owner], -1), counts


def _flat(rows: Iterable[Iterable[tuple[int, int]]]) -> Iterator[int]:
    return chain.from_iterable(chain.from_iterable(rows))
