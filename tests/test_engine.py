"""The engine: results in input order, batches within the token budget, lazy streams, threads that share a model."""

import itertools
import random
import sys
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from bothways.engine.engine import TOKENS_AT_ONCE, Engine, by_budget, chunks, run
from bothways.engine.reader import Reader, Tally, WindowSettings
from bothways.model.batch import Batch
from bothways.model.config import ModelConfig
from bothways.model.load import load
from bothways.model.model import Model
from bothways.predict.encode import encode
from bothways.predict.fill import fill
from bothways.predict.predictor import Predictor
from bothways.tasks.folder import with_task
from bothways.text.tokenizer import Tokenizer
from helpers import TINY, config_for, make_loud, refused

CPU = torch.device("cpu")
THREADS = 4


@dataclass(frozen=True)
class Sequence:
    ids: list[int]

    @property
    def segments(self) -> list[int]:
        return [0] * len(self.ids)


def of_lengths(lengths: list[int]) -> list[Sequence]:
    """Sequences that can be told apart by their first token."""
    return [Sequence([i] * length) for i, length in enumerate(lengths)]


def firsts(batch: Batch, sequences: list[Sequence]) -> list[tuple[int, int]]:
    """What a model would see: the first token and the length of each sequence of the batch."""
    return list(zip(batch.ids[batch.first].tolist(), batch.lengths.tolist(), strict=True))


# ---------------------------------------------------------------------- order and budget


@given(st.lists(st.integers(1, 40), max_size=60), st.integers(1, 100))
def test_results_come_in_input_order_whatever_the_lengths(lengths: list[int], budget: int) -> None:
    found = list(run(of_lengths(lengths), firsts, CPU, budget))
    assert found == list(enumerate(lengths))


@given(st.lists(st.integers(1, 40), max_size=60), st.integers(1, 100))
def test_every_batch_is_within_the_token_budget(lengths: list[int], budget: int) -> None:
    """Only a sequence that is longer by itself is over it, and then it is alone."""
    sizes: list[tuple[int, int]] = []

    def note(batch: Batch, sequences: list[Sequence]) -> list[None]:
        sizes.append((len(batch.ids), len(sequences)))
        return [None] * len(sequences)

    list(run(of_lengths(lengths), note, CPU, budget))
    assert all(tokens <= budget or count == 1 for tokens, count in sizes)
    assert sum(tokens for tokens, _ in sizes) == sum(lengths)
    groups = list(by_budget(lengths, budget))
    assert sorted(itertools.chain(*groups)) == list(range(len(lengths)))
    ordered = [lengths[i] for group in groups for i in group]
    assert ordered == sorted(lengths)  # neighbours are of similar length
    fullest = [sum(lengths[i] for i in group) for group in groups]
    for group, following in itertools.pairwise(groups):  # no batch is closed before it is full
        assert fullest[groups.index(group)] + lengths[following[0]] > budget


def test_the_default_budget_is_that_of_the_device() -> None:
    sizes: list[int] = []

    def note(batch: Batch, sequences: list[Sequence]) -> list[None]:
        sizes.append(len(batch.ids))
        return [None] * len(sequences)

    list(run(of_lengths([64] * 200), note, CPU))
    assert max(sizes) == TOKENS_AT_ONCE["cpu"]


def test_too_few_results_are_an_error() -> None:
    with pytest.raises(ValueError, match="zip"):
        list(run(of_lengths([1, 2]), lambda batch, sequences: [0], CPU))


# ---------------------------------------------------------------------- streams


@pytest.mark.parametrize(("count", "length", "most"), [(100_000, 5, 32_768), (20_000, 300, 3_500)])
def test_a_stream_is_consumed_lazily(count: int, length: int, most: int) -> None:
    """The look-ahead is bounded in sequences and in tokens, so memory is flat."""
    pulled = 0

    def stream() -> Iterator[Sequence]:
        nonlocal pulled
        row = Sequence([7] * length)
        for _ in range(count):
            pulled += 1
            yield row

    results = run(stream(), lambda batch, sequences: [None] * len(sequences), CPU, 2**16)
    assert pulled == 0
    for done, _ in enumerate(results):
        assert pulled - done <= most
    assert (done + 1, pulled) == (count, count)


def test_chunks_of_examples_are_bounded_too() -> None:
    texts = iter(["short"] * 3_000)
    assert len(next(chunks(texts))) == 1_024
    long = iter(["x" * 700_000] * 9)
    assert len(next(chunks(long))) == 3
    assert list(chunks([])) == []


# ---------------------------------------------------------------------- precision


@pytest.mark.filterwarnings("ignore:mkldnn_matmul failed")  # a CPU without bf16 instructions
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float64])
def test_the_engine_computes_in_its_dtype(dtype: torch.dtype, tokenizer: Tokenizer) -> None:
    model = Model.new(ModelConfig(TINY, ("masked",)), tokenizer)
    model.train()
    engine = Engine(model, device="cpu", dtype=dtype, max_tokens=16)
    seen: list[Any] = []

    def forward(batch: Batch, sequences: list[Sequence]) -> list[torch.Tensor]:
        states = model.encoder(batch)
        seen.append((states.dtype, model.masked(states).dtype, len(batch.ids), states.requires_grad, model.training))
        return [states[i] for i in batch.first.tolist()]

    found = list(engine.run(of_lengths([4] * 8), forward))
    assert seen == [(dtype, dtype, 16, False, False)] * 2
    assert {state.dtype for state in found} == {dtype}


@pytest.mark.filterwarnings("ignore:mkldnn_matmul failed")
def test_bf16_is_close_to_fp32_but_not_the_same(tokenizer: Tokenizer) -> None:
    model = Model.new(ModelConfig(TINY, ("masked",)), tokenizer)

    def states(dtype: torch.dtype) -> torch.Tensor:
        def forward(batch: Batch, sequences: list[Sequence]) -> list[torch.Tensor]:
            return list(model.encoder(batch)[batch.first])

        return torch.stack(list(Engine(model, dtype=dtype).run(of_lengths([5] * 3), forward))).float()

    full, half = states(torch.float32), states(torch.bfloat16)
    assert 0 < float((full - half).abs().max()) < 0.1


# ---------------------------------------------------------------------- threads


def at_once(work: Callable[[int], Any]) -> list[Any]:
    """The results of several threads that start together."""
    barrier, found = threading.Barrier(THREADS), [None] * THREADS
    errors: list[BaseException] = []

    def one(number: int) -> None:
        try:
            barrier.wait()
            found[number] = work(number)
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=one, args=(number,)) for number in range(THREADS)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert errors == []
    return found


def texts_for(number: int, count: int = 60) -> list[str]:
    words = ["the", "cat", "unbelievable", "paris", "北京", "walks", "talking", "ꙮ"]
    draws = random.Random(number)
    return [" ".join(draws.choices(words, k=draws.choice([0, 1, 5, 12, 70]))) for _ in range(count)]


def test_threads_share_a_model_and_get_what_serial_calls_get(model_folder: Path, tokenizer: Tokenizer) -> None:
    """encode, one Predictor and fill at the same time, on one model: the same bits."""
    model = load(model_folder)
    config = config_for("classify", "single", window=WindowSettings(32, 8))
    tuned = with_task(model, config, ("a", "b", "c"))
    make_loud(tuned.heads, 1)

    def work(predictor: Predictor, number: int) -> Any:
        texts = texts_for(number)
        vectors = encode(texts, model, long="window")
        answers = predictor(texts, top=3)
        filled = [fill(f"the [MASK] {word} [MASK]", model, top=3) for word in texts[0].split()[:3] or ["cat"]]
        return vectors, answers, filled

    alone = Predictor(tuned)
    serial = [work(alone, number) for number in range(THREADS)]
    shared = Predictor(tuned)
    parallel = at_once(lambda number: work(shared, number))
    for (vectors, answers, filled), (other_vectors, other_answers, other_filled) in zip(serial, parallel, strict=True):
        assert np.array_equal(vectors, other_vectors)
        assert answers == other_answers
        assert filled == other_filled
    assert vars(shared.tally) == vars(alone.tally)
    assert (shared.tally.texts, shared.tally.in_windows > 0, shared.tally.unknown > 0) == (240, True, True)


@pytest.fixture
def restless() -> Iterator[None]:
    """Threads are switched as often as possible."""
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    yield
    sys.setswitchinterval(before)


def test_a_tally_that_threads_share_is_exact(restless: None) -> None:
    tally, one = Tally(), Tally(1, 2, 3, 4, 5, 6, 7, 8)

    def add_many(number: int) -> None:
        for _ in range(3_000):
            tally.add(one)

    at_once(add_many)
    assert vars(tally) == {name: count * 3_000 * THREADS for name, count in vars(one).items()}


def test_a_reader_that_threads_share_counts_exactly(model_folder: Path, restless: None) -> None:
    reader = Reader(load(model_folder), WindowSettings(long="cut"))
    texts = [(text,) for text in texts_for(0)]
    reader(texts)
    once, calls = dict(vars(reader.tally)), 20
    assert min(once[name] for name in ("texts", "tokens", "cut", "tokens_cut", "empty", "unknown")) > 0
    reader.tally = Tally()
    at_once(lambda _: [reader(texts) for _ in range(calls)])
    assert vars(reader.tally) == {name: count * calls * THREADS for name, count in once.items()}


# ---------------------------------------------------------------------- settings


def test_window_settings_are_checked(model_folder: Path) -> None:
    with refused("out-of-range", -1):
        WindowSettings(length=-1)
    with refused("out-of-range", -2):
        WindowSettings(overlap=-2)
    with refused("unknown-choice", "windows"):
        WindowSettings(long="windows")  # type: ignore[arg-type]
    with refused("too-long", (49, 48)):
        Reader(load(model_folder), WindowSettings(length=49))


@pytest.mark.parametrize(("device", "code"), [("gpu9", "unknown-choice"), ("cuda:99", "no-gpu")])
def test_a_device_that_is_not_there(device: str, code: str, tokenizer: Tokenizer) -> None:
    with refused(code, device):
        Engine(Model.new(ModelConfig(TINY), tokenizer), device=device)
