"""Batches for pretraining: a pure function of (seed, phase, index), prefetched in numpy.

A step takes the sequences from `index` on until it has enough tokens. They are split into groups, one for each forward
pass of each rank. Neither the sequences of a step nor their masks depend on the split, so any number of processes
trains on the same data.
"""

import itertools
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import torch

from bothways.hash_rng import Keys, mix, permute
from bothways.model.batch import Batch
from bothways.pretraining.objective import BatchBuilder, Capacity, Objective
from bothways.pretraining.sampler import RawSequences, Sampler, Spans, Stream
from bothways.pretraining.shards import Numbers, ranges
from bothways.train.protocol import MicroBatch, Step

_BLOCK = 1_000  # sequences among which a mixture's weights hold exactly
_SHUFFLE, _SAMPLE, _MIX = range(3)


class Mixture:
    """Sequences from several sources by weight. Sequence `index` is always the same one."""

    def __init__(self, samplers: Mapping[str, Sampler], weights: Mapping[str, float] | None, seed: int) -> None:
        self.samplers = list(samplers.values())
        self.seed = seed
        sizes = np.array([s.size for s in self.samplers])
        self.by_weight = weights is not None
        chance = np.array([weights[name] for name in samplers], float) if weights is not None else sizes / sizes.sum()
        self.shares = _apportion(chance / chance.sum(), _BLOCK)
        self.starts = np.concatenate([[0], np.cumsum(sizes)])

    @property
    def size(self) -> int:
        """Number of sequences in one epoch over all sources."""
        return int(self.starts[-1])

    def plan(self, index: Numbers, static: int = 0) -> list["SourcePlan"]:
        """Where the text of these sequences comes from, by source."""
        source, number = self._locate(index)
        plans = []
        for k in np.unique(source).tolist():
            here = np.flatnonzero(source == k)
            size = self.samplers[k].size
            epoch, place = np.divmod(number[here], size)
            if self.by_weight:
                place = _shuffled(place, epoch, size, mix(self.seed, _SHUFFLE, k))
            # Static masks: the keys of a sequence repeat every `static` epochs.
            keys = mix(self.seed, _SAMPLE, k, epoch % static if static else epoch, place)
            plans.append(SourcePlan(k, here, self.samplers[k].plan(place, keys)))
        return plans

    def _locate(self, index: Numbers) -> tuple[Numbers, Numbers]:
        """The source of each sequence, and its number among all sequences of that source, over epochs."""
        if not self.by_weight:  # one shuffle over all sources
            epoch, place = np.divmod(index, self.size)
            place = _shuffled(place, epoch, self.size, mix(self.seed, _SHUFFLE))
            source = np.searchsorted(self.starts, place, side="right") - 1
            return source, place - self.starts[source] + epoch * np.diff(self.starts)[source]
        block, place = np.divmod(index, _BLOCK)
        slot = _shuffled(place, block, _BLOCK, mix(self.seed, _MIX))
        ends = np.cumsum(self.shares)
        source = np.searchsorted(ends, slot, side="right")
        return source, block * self.shares[source] + slot - (ends - self.shares)[source]

    def build(self, plans: Sequence["SourcePlan"]) -> RawSequences:
        """The token sequences, in the order of their index."""
        rows = [self.samplers[plan.source].build(plan.spans) for plan in plans]
        return rows[0] if len(rows) == 1 else _interleave(rows, [plan.here for plan in plans])


@dataclass(frozen=True)
class SourcePlan:
    """The sequences of a batch that come from one source."""

    source: int
    here: Numbers
    """Their places in the batch, in rising order."""
    spans: Spans

    def slice(self, begin: int, end: int) -> "SourcePlan":
        """The sequences at places begin … end-1 of the batch."""
        first, last = np.searchsorted(self.here, [begin, end]).tolist()
        return SourcePlan(self.source, self.here[first:last], self.spans.slice(first, last))


def _shuffled(places: Numbers, rounds: Numbers, size: int, key: Keys) -> Numbers:
    """The places after a shuffle of `size`, with a new shuffle for each round."""
    found = np.empty_like(places)
    for turn in np.unique(rounds).tolist():
        found[rounds == turn] = permute(places[rounds == turn], size, mix(key, turn))
    return found


def _apportion(shares: np.ndarray[tuple[int], np.dtype[np.float64]], total: int) -> Numbers:
    """Integers that sum to `total`, each at most one off its share (largest remainder method), none zero."""
    exact = shares * total
    counts = np.maximum(np.floor(exact).astype(np.int64), 1)
    order = np.argsort(counts - exact, kind="stable")
    for k in itertools.cycle(order.tolist()):
        if counts.sum() == total:
            return counts
        counts[k if counts.sum() < total else counts.argmax()] += 1 if counts.sum() < total else -1
    raise AssertionError("unreachable")


def _interleave(parts: Sequence[RawSequences], heres: Sequence[Numbers]) -> RawSequences:
    """Merge the sequences of several sources into one order."""
    order = np.argsort(np.concatenate(heres))
    lengths = np.concatenate([np.diff(rows.cu_seqlens) for rows in parts])
    bases = np.concatenate([[0], np.cumsum([len(rows.ids) for rows in parts])])
    starts = np.concatenate([rows.cu_seqlens[:-1] + base for rows, base in zip(parts, bases, strict=False)])
    lengths, starts = lengths[order], starts[order]
    cu_seqlens = np.concatenate([[0], np.cumsum(lengths)])
    take = ranges(starts, lengths)

    def joined(name: str) -> np.ndarray[tuple[int], np.dtype[np.generic]]:
        return np.concatenate([getattr(rows, name) for rows in parts])

    pair_labels = None if parts[0].pair_labels is None else joined("pair_labels")[order]
    tokens = (joined(name)[take] for name in ("ids", "segments", "word_starts", "special"))
    ids, segments, words, special = tokens
    return RawSequences(ids, segments, cu_seqlens, words, special, joined("keys")[order], pair_labels)  # type: ignore[arg-type]


@dataclass(frozen=True)
class Loader:
    """The batches of one phase."""

    mixture: Mixture
    objectives: Sequence[Objective]
    length: int
    tokens: int | None
    """Most tokens of a step; None if `sequences` says how large it is."""
    sequences: int | None
    """The number of sequences of a step; None if `tokens` says how large it is."""
    groups: int
    """Forward passes in a step, over all ranks."""
    static_shapes: bool
    """Pad every batch to one shape."""
    static: int = 0
    """Number of mask sets that take turns; 0: new masks in every epoch."""
    rate: float | None = None
    """Masking rate, if it differs from the objective's own."""

    def capacity(self) -> Capacity:
        """The most that one forward pass can hold; with static shapes, its shape."""
        most = self.tokens if self.tokens is not None else (self.sequences or 0) * self.length
        tokens = most // self.groups
        if self._is_even:
            sequences = max(tokens // self.length, 1)
            return Capacity(sequences * self.length, sequences, self.length, even=True)
        if self.groups > 1:
            tokens += self.length  # groups consist of whole sequences, so one may exceed its share by a sequence
        if self.sequences is not None and self.groups == 1:
            return Capacity(tokens, self.sequences, self.length)
        # The number of sequences expected from their mean length, and a fifth more.
        mean = _lengths(self.mixture.plan(np.arange(2_000), self.static)).mean()
        return Capacity(tokens, int(1.2 * tokens / mean) + 8, self.length)

    @property
    def _is_even(self) -> bool:
        """Every sequence has the full length."""
        return isinstance(self.mixture.samplers[0], Stream)

    def steps(self, index: int, groups: range) -> Iterator[Step]:
        """The steps from sequence `index` on, without end; of each only these groups: range(rank, groups, ranks)."""
        capacity = self.capacity()
        while True:
            step = self.step(index, groups, capacity)
            yield step
            index += step.sequences

    def step(self, index: int, groups: range, capacity: Capacity) -> Step:
        """The step that begins at sequence `index`."""
        likely = self.sequences or capacity.sequences * self.groups
        plans = self.mixture.plan(np.arange(index, index + likely), self.static)
        lengths = _lengths(plans)
        cuts = self._cuts(lengths, capacity)
        micros, counts = [], dict[str, int]()
        for group in groups:
            inside = [plan.slice(cuts[group], cuts[group + 1]) for plan in plans]
            micro, terms = self.micro([plan for plan in inside if len(plan.here)], capacity)
            micros.append(micro)
            counts = {name: counts.get(name, 0) + n for name, n in terms.items()}
        return Step(micros, counts, int(lengths[: cuts[-1]].sum()), cuts[-1])

    def _cuts(self, lengths: Numbers, capacity: Capacity) -> list[int]:
        """The first sequence of each group, and the first of the next step. Groups get equal shares of the tokens."""
        ends = np.cumsum(lengths)
        count = len(lengths)
        if self.tokens is not None and not self._is_even:
            count = max(int(np.searchsorted(ends, self.tokens, side="right")), self.groups)
        starts = ends[:count] - lengths[:count]
        shares = np.arange(1, self.groups) * ends[count - 1] / self.groups
        cuts = [0, *np.searchsorted(starts, shares).tolist(), count]
        for group in range(1, self.groups):  # no group is empty, even if a sequence is longer than a share
            cuts[group] = min(max(cuts[group], cuts[group - 1] + 1), count - (self.groups - group))
        if self.static_shapes:  # sequences beyond the capacity are left for the next step
            for group in range(self.groups):
                fits = int(
                    np.searchsorted(ends, ends[cuts[group]] - lengths[cuts[group]] + capacity.tokens, side="right")
                )
                cuts[group + 1] = min(cuts[group + 1], cuts[group] + capacity.sequences, fits)
        return cuts

    def chunks(self, count: int, capacity: Capacity) -> Iterator[list[SourcePlan]]:
        """The first `count` sequences in batches that fit the capacity: for evaluation."""
        plans = self.mixture.plan(np.arange(count), self.static)
        begin = tokens = 0
        for number, length in enumerate(_lengths(plans).tolist()):
            if tokens + length > capacity.tokens or number - begin == capacity.sequences:
                yield [plan.slice(begin, number) for plan in plans]
                begin, tokens = number, 0
            tokens += length
        yield [plan.slice(begin, count) for plan in plans]

    def micro(self, plans: Sequence[SourcePlan], capacity: Capacity) -> tuple[MicroBatch, dict[str, int]]:
        """These sequences, masked, as tensors; and the number of terms of each loss."""
        rows = self.mixture.build(plans)
        builder = BatchBuilder(rows, rows.ids)
        for objective in self.objectives:
            objective.prepare(builder, capacity, self.rate)
        return collate(builder, capacity if self.static_shapes else None), builder.counts


def _lengths(plans: Sequence[SourcePlan]) -> Numbers:
    lengths = np.empty(sum(len(plan.here) for plan in plans), np.int64)
    for plan in plans:
        lengths[plan.here] = plan.spans.lengths
    return lengths


def collate(builder: BatchBuilder, capacity: Capacity | None) -> MicroBatch:
    """A batch as tensors, padded to the capacity if one is given."""
    rows = builder.rows
    ids, segments, positions, cu_seqlens = builder.ids, rows.segments, rows.positions, rows.cu_seqlens
    longest = int(np.diff(cu_seqlens).max())
    targets = {name: target.values for name, target in builder.targets.items()}
    if capacity is not None:
        tokens, sequences = len(ids), len(cu_seqlens) - 1
        left, longest = capacity.tokens - tokens, capacity.length
        assert left >= 0, "a batch has more tokens than its capacity"
        assert sequences <= capacity.sequences, "a batch has more sequences than its capacity"
        # Padding tokens form sequences of their own, so that no real token attends to them; the rest are empty.
        fillers = np.minimum(np.arange(1, capacity.rows - sequences + 1) * capacity.length, left)
        cu_seqlens = np.concatenate([cu_seqlens, tokens + fillers])
        assert cu_seqlens[-1] == capacity.tokens, "a padding token is in no sequence"
        ids = np.pad(ids, (0, left))
        segments = np.pad(segments, (0, left))
        positions = np.concatenate([positions, np.arange(left) % capacity.length])
        for name, target in builder.targets.items():
            targets[name] = np.pad(target.values, (0, target.most - len(target.values)), constant_values=target.filler)
    tensors = (torch.from_numpy(np.ascontiguousarray(x)) for x in (ids, segments, positions, cu_seqlens))
    flat, kinds, places, bounds = tensors
    batch = Batch(flat, kinds, places, bounds.int(), longest)
    return MicroBatch(batch, {name: torch.from_numpy(value) for name, value in targets.items()}, len(rows.ids))
