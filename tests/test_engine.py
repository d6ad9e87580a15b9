"""The engine: results in input order, batches within the token budget, lazy streams, threads that share a model."""

import itertools
import random
import sys
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from bothways.engine.chunks import chunks
from bothways.engine.compiled import WORTH_SECONDS, EncoderCalls
from bothways.engine.engine import TOKENS_AT_ONCE, Engine, one_per_token, run
from bothways.engine.reader import Reader, Tally, WindowSettings
from bothways.engine.sequences import Indices, Sequences, by_budget
from bothways.engine.torch_model import _exact_sums
from bothways.model.batch import Batch
from bothways.model.config import ModelConfig
from bothways.model.device import announce, find_dtype
from bothways.model.load import load
from bothways.model.model import Model
from bothways.predict.encode import encode, encode_tokens
from bothways.predict.fill import fill
from bothways.predict.likelihood import sentence_scores
from bothways.predict.predictor import Predictor
from bothways.prefetch import map_ahead
from bothways.tasks.folder import with_task
from bothways.text.tokenizer import Tokenizer
from helpers import TINY, config_for, make_loud, refused

CPU = torch.device("cpu")
THREADS = 4


@dataclass(frozen=True)
class Chunk:
    sequences: Sequences


def of_lengths(lengths: list[int], size: int = 10_000) -> Iterator[Chunk]:
    """Chunks of sequences that can be told apart by their first token."""
    rows = [[i] * length for i, length in enumerate(lengths)]
    for first in range(0, len(rows), size):
        yield Chunk(Sequences.of(rows[first : first + size]))


def firsts(batch: Batch, chunk: Chunk, picked: Indices) -> Tensor:
    """What a model would see: the first token and the length of each sequence of the batch."""
    return torch.stack([batch.ids[batch.first], batch.lengths.long()], 1)


# ---------------------------------------------------------------------- order and budget

LENGTHS = st.lists(st.integers(1, 40), max_size=60)


@given(LENGTHS, st.integers(1, 100), st.integers(1, 20))
def test_results_come_in_input_order_whatever_the_lengths(lengths: list[int], budget: int, size: int) -> None:
    found = [row for _, rows in run(of_lengths(lengths, size), firsts, CPU, max_tokens=budget) for row in rows.tolist()]
    assert found == [[i, length] for i, length in enumerate(lengths)]


@given(LENGTHS, st.integers(1, 100))
def test_rows_of_tokens_come_in_input_order_too(lengths: list[int], budget: int) -> None:
    def tokens(batch: Batch, chunk: Chunk, picked: Indices) -> Tensor:
        return torch.stack([batch.ids, batch.positions], 1)

    found = [
        row
        for _, rows in run(of_lengths(lengths), tokens, CPU, one_per_token, max_tokens=budget)
        for row in rows.tolist()
    ]
    assert found == [[i, place] for i, length in enumerate(lengths) for place in range(length)]


@given(st.lists(st.integers(0, 3), min_size=1, max_size=30), st.integers(1, 20))
def test_a_sequence_may_have_any_number_of_rows(counts: list[int], budget: int) -> None:
    def repeated(batch: Batch, chunk: Chunk, picked: Indices) -> Tensor:
        return batch.ids[batch.first].repeat_interleave(torch.tensor(counts)[picked])

    chunks = of_lengths([1 + i % 4 for i in range(len(counts))])
    [(_, rows)] = run(chunks, repeated, CPU, lambda chunk: np.array(counts), max_tokens=budget)
    assert rows.tolist() == [i for i, count in enumerate(counts) for _ in range(count)]


@given(LENGTHS, st.integers(1, 100))
def test_every_batch_is_within_the_token_budget(lengths: list[int], budget: int) -> None:
    """Only a sequence that is longer by itself is over it, and then it is alone."""
    sizes: list[tuple[int, int]] = []

    def note(batch: Batch, chunk: Chunk, picked: Indices) -> Tensor:
        sizes.append((len(batch.ids), len(picked)))
        assert [lengths[i] for i in picked] == batch.lengths.tolist()
        return torch.zeros(len(picked))

    list(run(of_lengths(lengths), note, CPU, max_tokens=budget))
    assert all(tokens <= budget or count == 1 for tokens, count in sizes)
    assert sum(tokens for tokens, _ in sizes) == sum(lengths)
    groups = [group.tolist() for group in by_budget(np.array(lengths, np.int64), budget)]
    assert sorted(itertools.chain(*groups)) == list(range(len(lengths)))
    ordered = [lengths[i] for group in groups for i in group]
    assert ordered == sorted(lengths)  # neighbours are of similar length
    fullest = [sum(lengths[i] for i in group) for group in groups]
    for group, following in itertools.pairwise(groups):  # no batch is closed before it is full
        assert fullest[groups.index(group)] + lengths[following[0]] > budget


@given(st.lists(st.lists(st.integers(0, 99), min_size=1, max_size=9), min_size=1, max_size=9), st.data())
def test_a_batch_of_some_sequences(rows: list[list[int]], data: st.DataObject) -> None:
    """The same as packing them one by one."""
    segments = [[token % 2 for token in row] for row in rows]
    picked = data.draw(st.lists(st.integers(0, len(rows) - 1), min_size=1, max_size=12))
    found = Sequences.of(rows, segments).batch(np.array(picked), CPU)
    expected = Batch.pack([rows[i] for i in picked], [segments[i] for i in picked])
    for ours, theirs in zip(found._tensors, expected._tensors, strict=True):
        assert torch.equal(ours, theirs)
    assert found.max_seqlen == expected.max_seqlen


def test_the_default_budget_is_that_of_the_device() -> None:
    sizes: list[int] = []

    def note(batch: Batch, chunk: Chunk, picked: Indices) -> Tensor:
        sizes.append(len(batch.ids))
        return torch.zeros(len(picked))

    list(run(of_lengths([64] * 200), note, CPU))
    assert max(sizes) == TOKENS_AT_ONCE["cpu"]


def test_too_few_results_are_an_error() -> None:
    with pytest.raises(ValueError, match="1 rows of results for 2"):
        list(run(of_lengths([1, 2]), lambda batch, chunk, picked: torch.zeros(1), CPU))


# ---------------------------------------------------------------------- streams


def test_chunks_are_consumed_lazily() -> None:
    pulled = 0

    def stream() -> Iterator[Chunk]:
        nonlocal pulled
        for chunk in of_lengths([3] * 50, size=5):
            pulled += 1
            yield chunk

    results = run(stream(), firsts, CPU)
    assert pulled == 0
    for done, _ in enumerate(results, 1):
        assert pulled == done
    assert pulled == 10


def test_chunks_of_examples_are_bounded() -> None:
    texts = iter(["short"] * 3_000)
    assert len(next(chunks(texts))) == 1_024
    assert len(next(chunks(texts, torch.device("cpu"), 0.5))) == 512
    long = iter(["x" * 700_000] * 9)
    assert len(next(chunks(long))) == 3
    assert list(chunks([])) == []


def test_the_first_chunks_for_a_gpu_are_small() -> None:
    sizes = [len(some) for some in chunks(iter(["short"] * 50_000), torch.device("cuda"))]
    assert sizes == [2_048, 4_096, 8_192, 16_384, 16_384, 2_896]


def test_work_ahead_keeps_the_order_and_draws_in_the_callers_thread() -> None:
    drawn: list[tuple[int, int]] = []

    def items() -> Iterator[int]:
        for i in range(20):
            drawn.append((i, threading.get_ident()))
            yield i

    threads = set()

    def work(i: int) -> int:
        threads.add(threading.get_ident())
        if i == 15:
            raise KeyError(i)
        return -i

    found = map_ahead(work, items(), depth=2)
    assert [next(found) for _ in range(5)] == [0, -1, -2, -3, -4]
    assert len(drawn) == 7
    assert {ident for _, ident in drawn} == {threading.get_ident()}
    assert threading.get_ident() not in threads
    with pytest.raises(KeyError):
        list(found)


# ---------------------------------------------------------------------- device and precision


@pytest.mark.filterwarnings("ignore:mkldnn_matmul failed")  # a CPU without bf16 instructions
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float64])
def test_the_engine_computes_in_its_dtype(dtype: torch.dtype, tokenizer: Tokenizer) -> None:
    given = Model.new(ModelConfig(TINY, ("masked",)), tokenizer)
    given.train()
    engine = Engine(given, device="cpu", dtype=dtype, max_tokens=16)
    seen: list[Any] = []

    def forward(batch: Batch, chunk: Chunk, picked: Indices) -> Tensor:
        states, model = engine.states(batch), engine.model
        seen.append((model.masked(states).dtype, len(batch.ids), states.requires_grad, model.training))
        found: Tensor = states[batch.first]
        return found

    [(_, found)] = engine.run(of_lengths([4] * 8), forward)
    assert seen == [(dtype, 16, False, False)] * 2
    assert found.dtype == np.float32
    assert engine.model.dtype == dtype
    assert given.dtype == torch.float32  # the user's model keeps its weights


def test_sums_are_exact_while_any_thread_computes() -> None:
    """The settings of the process are restored by the last thread that leaves, not by the first."""
    settings = torch.backends.cuda.matmul
    before = settings.allow_bf16_reduced_precision_reduction
    assert before
    first, second = _exact_sums(), _exact_sums()
    first.__enter__()
    second.__enter__()
    assert not settings.allow_bf16_reduced_precision_reduction
    first.__exit__(None, None, None)
    assert not settings.allow_bf16_reduced_precision_reduction
    second.__exit__(None, None, None)
    assert settings.allow_bf16_reduced_precision_reduction == before


@pytest.mark.filterwarnings("ignore:mkldnn_matmul failed")
def test_bf16_is_close_to_fp32_but_not_the_same(tokenizer: Tokenizer) -> None:
    model = Model.new(ModelConfig(TINY, ("masked",)), tokenizer)
    full, half = (encode(["the cat sleeps"], model, dtype=dtype) for dtype in ("fp32", "bf16"))
    assert 0 < float(np.abs(full - half).max()) < 0.1


def test_names_of_precisions() -> None:
    for name, dtype in (
        ("fp32", torch.float32),
        ("bf16", torch.bfloat16),
        ("fp16", torch.float16),
        ("auto", torch.float32),
    ):
        assert find_dtype(name, CPU) == dtype
    assert find_dtype(torch.float64, CPU) == torch.float64
    for wrong in ("int8", "half", torch.int32):
        with refused("unknown-choice", wrong):
            find_dtype(wrong, CPU)


def test_auto_says_once_what_it_chose(capsys: pytest.CaptureFixture[str]) -> None:
    announce(CPU, torch.float32)
    announce(CPU, torch.float16)
    announce(CPU, torch.float16)
    said = capsys.readouterr().err
    assert said.count("\n") == 1
    assert "cpu in fp16" in said


@pytest.mark.filterwarnings("ignore:mkldnn_matmul failed")
def test_everything_takes_a_device_and_a_dtype(model_folder: Path, tokenizer: Tokenizer) -> None:
    """fp32 and bf16 give other numbers, by whatever way they are asked for."""
    text, masked = "the cat sleeps", "the [MASK] sleeps"
    tuned = with_task(load(model_folder), config_for("classify", "single"), ("a", "b", "c"))
    make_loud(tuned.heads, 1)
    for answer in (
        lambda dtype: load(model_folder, device="cpu", dtype=dtype).encoder.embeddings.tokens.weight.dtype,
        lambda dtype: float(encode([text], model_folder, device="cpu", dtype=dtype)[0, 0]),
        lambda dtype: float(encode_tokens([text], model_folder, device="cpu", dtype=dtype)[0].vectors[0, 0]),
        lambda dtype: fill(masked, model_folder, device="cpu", dtype=dtype)[0].score,
        lambda dtype: next(sentence_scores([text], model_folder, device="cpu", dtype=dtype)),
        lambda dtype: Predictor(tuned, device="cpu", dtype=dtype)(text)["score"],
    ):
        assert answer("fp32") != answer("bf16")
        with refused("unknown-choice", "gpu"):
            encode([text], model_folder, device="gpu")


# ---------------------------------------------------------------------- compiling


def test_compiling_begins_when_a_gpu_was_busy_for_long(tokenizer: Tokenizer) -> None:
    on_gpu: Any = SimpleNamespace(ids=SimpleNamespace(is_cuda=True))
    encoder = Model.new(ModelConfig(TINY), tokenizer).to(torch.bfloat16).encoder
    calls = EncoderCalls(encoder, "auto")
    assert not calls._is_worth_it(on_gpu)
    assert EncoderCalls(encoder, "always")._is_worth_it(on_gpu)
    EncoderCalls(encoder, "auto").usage.seconds = WORTH_SECONDS  # all calls with one encoder count
    assert calls._is_worth_it(on_gpu)
    assert not EncoderCalls(encoder, "never")._is_worth_it(on_gpu)
    assert not calls._is_worth_it(Batch.pack([[1, 2]]))
    assert not EncoderCalls(encoder.float(), "always")._is_worth_it(on_gpu)


def test_a_long_job_outlives_a_compiler_that_fails(tokenizer: Tokenizer, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: Any) -> Tensor:
        raise RuntimeError("no compiler")

    monkeypatch.setattr("bothways.engine.compiled._compiled", lambda: fail)
    monkeypatch.setattr(EncoderCalls, "_is_worth_it", lambda self, batch: not self.usage.is_refused)
    encoder, batch = Model.new(ModelConfig(TINY), tokenizer).encoder.eval(), Batch.pack([[1, 2]])
    calls = EncoderCalls(encoder, "auto")
    with pytest.warns(UserWarning, match="no compiler"):
        assert torch.equal(calls(batch), encoder(batch))
    assert torch.equal(calls(batch), encoder(batch))
    with pytest.raises(RuntimeError, match="no compiler"):
        EncoderCalls(Model.new(ModelConfig(TINY), tokenizer).encoder, "always")(batch)


def test_ten_texts_never_wait_for_a_compiler(tokenizer: Tokenizer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("torch.compile", lambda *args, **kwargs: pytest.fail("compiled"))
    model = Model.new(ModelConfig(TINY, ("masked",)), tokenizer)
    assert encode(["the cat"] * 10, model).shape == (10, TINY.width)


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
