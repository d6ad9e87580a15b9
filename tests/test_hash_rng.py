"""Numbers named by a key: always the same, as good as random, and never dependent on who else is asked."""

import itertools
from collections.abc import Callable

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray
from scipy import stats  # type: ignore[import-untyped]

from bothways.hash_rng import Keys, below, mix, permute, uniform

# Every key below is fixed, so no test is ever unlucky; the bound says how unlucky fair numbers would have to be.
FAIR = 1e-4
WHOLE = st.integers(-(2**63), 2**63 - 1)
PARTS = st.lists(WHOLE, min_size=1, max_size=5)


def is_even(counts: NDArray[np.integer]) -> bool:
    """Whether fair draws could have fallen so."""
    return bool(stats.chisquare(counts).pvalue > FAIR)


def bits(keys: Keys) -> NDArray[np.uint8]:
    """(keys, 64)."""
    return np.unpackbits(np.ascontiguousarray(keys).view(np.uint8).reshape(-1, 8), axis=1)


def are_coins(heads: NDArray[np.integer], flips: int) -> bool:
    """Whether fair coins could have fallen so, each `flips` times: the worst of them decides."""
    worst = np.abs(heads.astype(np.int64) - flips / 2).max() / np.sqrt(flips / 4)
    return bool(2 * len(heads) * stats.norm.sf(worst) > FAIR)


# How a training run names its numbers: a counter in each of the places that a key has.
NAMES: dict[str, Callable[[NDArray[np.int64]], Keys]] = {
    "last": lambda n: mix(7, 3, n),
    "middle": lambda n: mix(7, n, 3),
    "first": lambda n: mix(n, 7, 3),
    "alone": mix,
    "negative": lambda n: mix(7, -n),
    "in steps of 2^32": lambda n: mix(7, n << 32),
    "of another key": lambda n: mix(mix(7, n), 3),
    "two counters": lambda n: mix(7, n // 200, n % 200),
}


# ---------------------------------------------------------------------- mix


def test_numbers_are_the_same_on_every_machine_and_in_every_version() -> None:
    """A run that is resumed elsewhere must see the same text. The first is SplitMix64's own first number."""
    assert int(mix(0)) == 0xE220A8397B1DCDAF
    assert [int(mix(0, 1)), int(mix(-1, 2, 3))] == [12395329337413201781, 13856768555667892392]
    assert permute(range(10), 10, 7).tolist() == [2, 9, 7, 0, 4, 1, 8, 3, 6, 5]


@given(PARTS)
def test_the_same_parts_give_the_same_key(parts: list[int]) -> None:
    assert int(mix(*parts)) == int(mix(*parts))


@given(PARTS, st.data())
def test_every_part_counts(parts: list[int], data: st.DataObject) -> None:
    place = data.draw(st.integers(0, len(parts) - 1))
    other = data.draw(WHOLE.filter(lambda number: number != parts[place]))
    assert int(mix(*parts)) != int(mix(*parts[:place], other, *parts[place + 1 :]))


@given(PARTS, st.data())
def test_the_order_of_the_parts_counts(parts: list[int], data: st.DataObject) -> None:
    other = data.draw(st.permutations(parts))
    assert (int(mix(*parts)) == int(mix(*other))) == (parts == other)


@given(PARTS, WHOLE)
def test_how_many_parts_there_are_counts(parts: list[int], more: int) -> None:
    assert int(mix(*parts)) != int(mix(*parts, more))
    assert int(mix(*parts)) != int(mix(*parts, 0))
    assert int(mix(*parts)) != int(mix(0, *parts))


def test_the_keys_of_a_grid_are_all_different() -> None:
    grid = mix(np.arange(-20, 20)[:, None, None], np.arange(60)[:, None], np.arange(60))
    assert grid.shape == (40, 60, 60)
    assert len(np.unique(grid)) == grid.size


def test_a_number_is_the_same_alone_and_among_others() -> None:
    first, second = np.arange(-5, 20), np.arange(100, 125)
    together = mix(9, first, 4, second)
    alone = [int(mix(9, int(a), 4, int(b))) for a, b in zip(first, second, strict=True)]
    assert together.tolist() == alone
    assert mix(9, first[3:7], 4, second[3:7]).tolist() == alone[3:7]
    assert mix(9, first[::-1], 4, second[::-1]).tolist() == alone[::-1]


def test_scalars_give_a_scalar_and_arrays_an_array() -> None:
    assert mix(1, 2).shape == ()
    assert mix(1, np.int64(2)).shape == ()
    assert mix(1, [2]).shape == (1,)
    assert mix(1, np.arange(0)).shape == (0,)
    assert mix(np.arange(2)[:, None], np.arange(3)).shape == (2, 3)
    assert mix(1, 2).dtype == np.uint64
    assert uniform(mix(1, 2)) == uniform(mix(1, [2]))[0]
    assert below(mix(1, 2), 1000) == below(mix(1, [2]), 1000)[0]


def test_how_a_number_is_stored_does_not_count() -> None:
    for kind in (np.uint8, np.int16, np.uint16, np.int32, np.uint32, np.int64, np.uint64):
        assert mix(5, np.arange(100, dtype=kind)).tolist() == mix(5, np.arange(100)).tolist()
    assert int(mix(np.uint64(2**64 - 1))) == int(mix(-1))


@pytest.mark.parametrize("name", NAMES)
def test_every_bit_of_a_key_is_a_fair_coin(name: str) -> None:
    assert are_coins(bits(NAMES[name](np.arange(20_000))).sum(0), 20_000)


@pytest.mark.parametrize("name", NAMES)
def test_the_next_key_shares_no_bit_with_this_one(name: str) -> None:
    """Half of the 64 bits change from a key to the next, as for two keys that know nothing of one another."""
    keys = NAMES[name](np.arange(20_001))
    changed = bits(keys[1:] ^ keys[:-1]).sum(1, dtype=np.int64)
    grouped = np.bincount(np.clip(changed, 22, 42) - 22, minlength=21)
    chances = stats.binom.pmf(np.arange(65), 64, 0.5)
    expected = np.array([chances[:23].sum(), *chances[23:42], chances[42:].sum()]) * len(changed)
    assert stats.chisquare(grouped, expected).pvalue > FAIR
    assert are_coins(bits(keys[1:] ^ keys[:-1]).sum(0), 20_000)


@pytest.mark.parametrize("bit", range(0, 64, 7))
def test_every_bit_of_a_part_moves_every_bit_of_the_key(bit: int) -> None:
    numbers = mix(1, np.arange(4_000)).view(np.int64)
    flipped = numbers ^ np.int64(-(2**63) if bit == 63 else 1 << bit)
    assert are_coins(bits(mix(7, numbers, 3) ^ mix(7, flipped, 3)).sum(0), 4_000)


# ---------------------------------------------------------------------- uniform and below


@pytest.mark.parametrize("name", NAMES)
def test_numbers_are_uniform(name: str) -> None:
    draws = uniform(NAMES[name](np.arange(20_000)))
    assert draws.min() >= 0
    assert draws.max() < 1
    assert stats.kstest(draws, "uniform").pvalue > FAIR


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("apart", [1, 2, 200])
def test_neighbouring_numbers_are_independent(name: str, apart: int) -> None:
    draws = uniform(NAMES[name](np.arange(20_000 + apart)))
    cells = (draws[:-apart] * 8).astype(np.int64) * 8 + (draws[apart:] * 8).astype(np.int64)
    assert is_even(np.bincount(cells, minlength=64))


def test_what_a_draw_is_for_makes_it_another_draw() -> None:
    """Two draws for one sequence differ in the last part of their key only."""
    keys = mix(3, np.arange(20_000))
    for a, b in itertools.combinations((100, 101, 200, 300), 2):
        both = below(mix(keys, a), 8) * 8 + below(mix(keys, b), 8)
        assert is_even(np.bincount(both, minlength=64))


def test_the_lowest_and_the_highest_key() -> None:
    ends = np.array([0, 2**64 - 1], np.uint64)
    assert uniform(ends).tolist() == [0.0, 1 - 2.0**-53]
    assert below(ends, 2**31).tolist() == [0, 2**31 - 1]
    assert below(ends, 1).tolist() == [0, 0]


@pytest.mark.parametrize("limit", [2, 3, 7, 64, 1000])
def test_whole_numbers_are_uniform_below_the_limit(limit: int) -> None:
    draws = below(mix(limit, np.arange(50_000)), limit)
    assert draws.dtype == np.int64
    assert is_even(np.bincount(draws, minlength=limit))
    assert draws.max() == limit - 1


def test_each_key_may_have_a_limit_of_its_own() -> None:
    keys, limits = mix(1, np.arange(500)), 1 + np.arange(500) % 9
    together = below(keys, limits)
    assert ((together >= 0) & (together < limits)).all()
    assert together.tolist() == [int(below(key, int(n))) for key, n in zip(keys, limits, strict=True)]


# ---------------------------------------------------------------------- permute

# Powers of two are where the bits of a shuffle change.
SIZES = st.one_of(
    st.integers(1, 300),
    st.integers(0, 11).flatmap(lambda power: st.sampled_from([2**power, 2**power + 1, max(2**power - 1, 1)])),
)


@given(SIZES, WHOLE)
def test_a_shuffle_loses_nothing(size: int, key: int) -> None:
    assert np.sort(permute(np.arange(size), size, key)).tolist() == list(range(size))


@pytest.mark.parametrize("size", [1, 2, 3, 4, 5, 15, 16, 17, 255, 256, 257, 65_535, 65_536, 65_537])
def test_a_shuffle_of_every_kind_of_size_loses_nothing(size: int) -> None:
    assert np.sort(permute(np.arange(size), size, mix(3, size))).tolist() == list(range(size))


@given(st.integers(1, 2**40), WHOLE, st.data())
@settings(max_examples=40)
def test_a_place_of_a_large_shuffle_is_had_without_the_rest(size: int, key: int, data: st.DataObject) -> None:
    places = data.draw(st.lists(st.integers(0, size - 1), min_size=1, max_size=10, unique=True))
    found = permute(places, size, key)
    assert found.dtype == np.int64
    assert ((found >= 0) & (found < size)).all()
    assert len(set(found.tolist())) == len(places)
    assert [int(permute(place, size, key)[0]) for place in places] == found.tolist()


def test_a_shuffle_is_the_same_in_any_portion() -> None:
    whole = permute(np.arange(1_000), 1_000, 5)
    portions = [permute(np.arange(start, min(start + 64, 1_000)), 1_000, 5) for start in range(0, 1_000, 64)]
    assert np.concatenate(portions).tolist() == whole.tolist()
    assert permute(np.arange(1_000)[::-1], 1_000, 5).tolist() == whole[::-1].tolist()
    assert permute(np.arange(1_000), 1_000, mix(5)).tolist() != whole.tolist()
    assert permute(np.arange(1_000), 1_000, np.array(5)).tolist() == whole.tolist()


def test_other_keys_shuffle_otherwise() -> None:
    """Two fair shuffles agree in one place on average, whatever their size; neighbouring keys too."""
    size = 1_000
    shuffles = [permute(np.arange(size), size, key) for key in [*range(40), *(1 << k for k in range(6, 46))]]
    shuffles.append(np.arange(size))  # no shuffle is like none at all
    agreements = [int((a == b).sum()) for a, b in itertools.combinations(shuffles, 2)]
    assert len({tuple(shuffle) for shuffle in shuffles}) == len(shuffles)
    z = (np.sum(agreements) - len(agreements)) / np.sqrt(len(agreements))
    assert 2 * stats.norm.sf(abs(z)) > FAIR
    assert stats.poisson.sf(max(agreements) - 1, 1) * len(agreements) > FAIR


@pytest.mark.parametrize("size", [100, 1_000, 1_024, 1_025])
def test_a_shuffle_is_as_good_as_random(size: int) -> None:
    """Where a place goes says nothing of where it was, nor of where its neighbour goes."""
    shuffles = np.stack([permute(np.arange(size), size, mix(1, key)) for key in range(60)])
    tenth = shuffles * 10 // size
    joint = np.zeros((10, 10), np.int64)
    np.add.at(joint, (np.broadcast_to(np.arange(size) * 10 // size, tenth.shape).ravel(), tenth.ravel()), 1)
    assert stats.chi2_contingency(joint).pvalue > FAIR
    gap = np.diff(shuffles, axis=1) % size  # 1 … size-1, each as likely
    assert is_even(np.bincount((gap.ravel() - 1) * 9 // (size - 1), minlength=9))
    correlation = np.array([np.corrcoef(np.arange(size), shuffle)[0, 1] for shuffle in shuffles])
    assert 2 * stats.norm.sf(abs(correlation.mean()) * np.sqrt(60 * (size - 1))) > FAIR
