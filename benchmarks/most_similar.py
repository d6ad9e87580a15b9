"""The most similar pair among 10,000 sentences: by a cross-encoder, which reads every pair, and by a bi-encoder.

    python benchmarks/most_similar.py --data FILE [FILE …] --device cuda
    python benchmarks/most_similar.py --data FILE [FILE …] --device cpu --pairs 2000     # extrapolated

Sentence-BERT (Reimers and Gurevych 2019) states 65 hours for BERT and 5 seconds for its vectors. --data: .jsonl with
sentence1 and sentence2, plain or .xz, such as STS-B's; the first 10,000 different sentences are taken. Both sides have
the shape of the model in the box; the cross-encoder has a random head, for only its time counts. It reads each of the
49,995,000 pairs once; texts are tokenized once. --pairs: only so many, drawn at random; the time is extrapolated.
"""

import argparse
import platform
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch

import bothways
from bothways.data.related import read_related
from bothways.engine.engine import Engine
from bothways.engine.sequences import Indices, Sequences, ragged
from bothways.engine.token_ids import TokenIds
from bothways.engine.tokens import Tokens
from bothways.model.batch import Batch
from bothways.prefetch import map_ahead
from bothways.tasks.folder import with_task
from bothways.tasks.registry import new_config
from bothways.text.word_cache import Ids

AT_ONCE = 65_536
"""Pairs of a chunk."""


@dataclass(frozen=True)
class Pairs:
    """Some pairs as the model reads them."""

    numbers: Indices
    """(pairs, 2) the sentences of each."""
    tokens: Tokens

    @property
    def sequences(self) -> Sequences:
        return self.tokens.sequences


def first_sentences(files: list[Path], count: int) -> list[str]:
    found: dict[str, None] = {}
    for row in read_related([str(file) for file in files]):
        for text in row.texts[:2]:
            found.setdefault(text)
    if len(found) < count:
        raise SystemExit(f"--data has {len(found):,} different sentences, and {count:,} are needed")
    return list(found)[:count]


def all_pairs(size: int, some: int | None) -> Iterator[Indices]:
    """Numbers of two sentences, (≤ AT_ONCE, 2) at a time: every pair once, or some at random."""
    if some is not None:
        drawn = np.random.default_rng(0).integers(0, size, (some, 2))
        yield from np.array_split(drawn[drawn[:, 0] != drawn[:, 1]], max(1, some // AT_ONCE))
        return
    total = size * (size - 1) // 2
    ends = np.cumsum(np.arange(size - 1, -1, -1))  # pairs whose first sentence is 0, 1, …
    for begin in range(0, total, AT_ONCE):
        number = np.arange(begin, min(begin + AT_ONCE, total))
        first = np.searchsorted(ends, number, "right")
        yield np.stack([first, number - np.where(first > 0, ends[first - 1], 0) + first + 1], 1)


def cross_encoder(texts: list[str], device: str, some: int | None) -> tuple[float, int, int]:
    """Seconds, pairs and tokens."""
    model = with_task(bothways.load(), new_config("score"), ("score",))
    engine = Engine(model, device=device, dtype="auto")
    tokenizer = model.require_tokenizer()
    token_ids = TokenIds(tokenizer, model.config.encoder.segments > 0)
    frame = token_ids.frame(2)
    assert frame is not None
    plain = [encoding.ids for encoding in tokenizer.raw_batch(texts, specials=False, has_offsets=False)]
    flat, lengths = np.concatenate([np.array(ids, np.int32) for ids in plain]), np.array(list(map(len, plain)))
    starts = np.cumsum(lengths) - lengths

    def chunk(numbers: Indices) -> Pairs:
        parts = [Ids(flat[ragged(starts[side], lengths[side])], lengths[side]) for side in numbers.T]
        return Pairs(numbers, frame.around(parts, token_ids.has_segments and frame.has_segments))

    def forward(batch: Batch, chunk: Pairs, picked: Indices) -> torch.Tensor:
        found: torch.Tensor = engine.model.logits("sequence", engine.states(batch), batch)
        return found

    pairs = tokens = 0
    best = (-np.inf, (0, 0))
    begun = time.perf_counter()
    for found, scores in engine.run(map_ahead(chunk, all_pairs(len(texts), some), 4, threads=4), forward):
        place = int(scores[:, 0].argmax())
        best = max(best, (float(scores[place, 0]), tuple(found.numbers[place].tolist())))
        pairs, tokens = pairs + len(found.numbers), tokens + len(found.sequences.ids)
    return time.perf_counter() - begun, pairs, tokens


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("--data", type=Path, nargs="+", required=True, help="files, described above")
    options.add_argument("--sentences", type=int, default=10_000)
    options.add_argument("--pairs", type=int, help="pairs that the cross-encoder reads; by default all")
    options.add_argument("--device", default="cuda", choices=("cuda", "cpu"))
    asked = options.parse_args()
    texts = first_sentences(asked.data, asked.sentences)
    total = len(texts) * (len(texts) - 1) // 2
    print(
        f"{len(texts):,} sentences, {total:,} pairs, {asked.device}; {platform.machine()}, torch {torch.__version__}\n"
    )
    model = bothways.load(device=asked.device, dtype="auto")
    bothways.encode(texts[:64], model)
    begun = time.perf_counter()
    (pair,) = bothways.similar_pairs(texts, model, top=1)
    seconds = time.perf_counter() - begun
    print(f"bi-encoder: {seconds:.2f} s, the most similar: {pair}")
    seconds, pairs, tokens = cross_encoder(texts, asked.device, asked.pairs)
    print(f"cross-encoder: {pairs:,} pairs, {tokens:,} tokens in {seconds:.1f} s: {tokens / seconds:,.0f} tokens/s")
    if pairs < total:
        print(f"all {total:,} pairs, extrapolated: {seconds * total / pairs / 3600:.2f} hours")


if __name__ == "__main__":
    main()
