"""Inference of bothways against sentence-transformers and transformers: same weights, same texts, one run.

    python benchmarks/inference.py --make-texts CORPUS_DIR --out DIR      # writes DIR/texts.txt
    python benchmarks/inference.py --data DIR                             # all sections
    python benchmarks/inference.py --data DIR --section cpu latency --device cpu
    python benchmarks/inference.py --data DIR --device cpu --scale 0.01   # a quick look

--data: a folder with texts.txt (mixed texts, one a line), minilm (a folder of sentence-transformers: all-MiniLM-L6-v2)
and, for the sections blimp and accuracy, blimp.jsonl (sentence_good, sentence_bad, UID). Both files may be .xz.
--make-texts: a folder of *.txt.xz.

embed     vectors of 30,000 texts, MiniLM
base      BERT-Base, random weights: TFLOP/s of the encoder, beside matrix products
predict   five tasks, MiniLM with random heads
fill      masked words, the model in the box
blimp     pseudo-log-likelihoods of minimal pairs, the model in the box
latency   one text at a time on the CPU
cpu       mixed texts on two CPU threads
startup   fresh processes, from the prompt to the answer
accuracy  how far bf16 is from fp32 on this device

Medians after warming up. Each setting of a peer is timed once, and the best one again, --rounds times. A section or a
row that fails says so, and the rest goes on.
"""

import argparse
import os
import statistics
import sys
import tempfile
import time
import warnings
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

os.environ |= {"HF_HUB_OFFLINE": "1", "TRANSFORMERS_VERBOSITY": "error", "HF_HUB_DISABLE_PROGRESS_BARS": "1"}
# Else a pipeline of transformers would set it to false, and what comes after it would tokenize on one core.
os.environ["TOKENIZERS_PARALLELISM"] = "true"

import inference_data as data
import inference_ours as ours
import inference_peers as peers
import torch
import transformers
from inference_machine import base, cpu, latency, startup
from inference_measure import (
    Call,
    Candidate,
    Run,
    Timed,
    attempt,
    cosines,
    factor,
    line,
    machine,
    measure,
    share_equal,
    sweep,
    table,
    timed,
)

import bothways

TEXTS = 30_000
SAMPLE = 6_000
"""Texts on which each setting of a peer is tried."""
PREDICTED = 2_000
"""Inputs on which a peer's best setting is timed: its loop takes the same time for each, however many there are."""


def settings(sizes: Sequence[int], dtypes: Sequence[str]) -> Iterator[tuple[str, str, int]]:
    for dtype in dtypes:
        for size in sizes:
            yield f"{dtype}, batch {size:,}", dtype, size


# ---------------------------------------------------------------------- embed


def embed(run: Run) -> None:
    texts = run.texts[: run.size(TEXTS)]
    tokens = ours.count_tokens(run.minilm, texts)
    table(
        f"embed: {len(texts):,} texts, {tokens:,} tokens, MiniLM, {run.device}",
        "", "seconds", "ktok/s", "over the peer's best", "worst cosine", "mean cosine",
    )  # fmt: skip

    def show(name: str, seconds: float, count: int) -> None:
        rate = tokens * count / len(texts) / seconds
        line(f"sentence-transformers {name}, {count:,} texts", f"{seconds:.2f}", f"{rate / 1e3:,.1f}", "", "", "")

    usual = "fp32, batch 32"  # its default
    candidates = [
        Candidate(name, partial(peers.sentence_vectors, run.minilm, run.device, dtype, size))
        for name, dtype, size in settings((32, 256, 1024), run.dtypes)
    ] + [
        Candidate(f"bf16, batch {size:,}, unpadded {kind}", partial(
            peers.sentence_vectors, run.minilm, run.device, "bf16", size, kind))
        for kind in ("flash_attention_2", "flash_attention_3") for size in ((256,) if run.device == "cuda" else ())
    ]  # fmt: skip
    own = {}
    for dtype in run.dtypes:
        make = partial(ours.vectors, run.minilm, run.device, dtype)
        own[dtype] = attempt(f"bothways {dtype}", partial(measure, Candidate(dtype, make), texts, run.rounds))
    some = texts[:: max(1, len(texts) // run.size(SAMPLE))]
    theirs = sweep(candidates, some, texts, run.rounds, show, keep=(usual,))
    best = next(iter(theirs.values()), None)
    for dtype, found in own.items():
        if found is not None:
            worst, mean = cosines(found.result, theirs[usual].result) if usual in theirs else (0.0, 0.0)
            line(f"bothways {dtype}", f"{found.seconds:.2f}", f"{tokens / found.seconds / 1e3:,.1f}",
                 factor(best, found), f"{worst:.6f}", f"{mean:.6f}")  # fmt: skip


# ---------------------------------------------------------------------- predict


@dataclass(frozen=True)
class Work:
    """A task: its inputs, the peer's call and ours, and what to compare of an answer."""

    inputs: list[Any]
    theirs: Callable[[str, int], Call]
    ours: Callable[[Any], Any]
    """An input as Predictor takes it."""
    our_key: Callable[[Any], Any] | None = None
    their_key: Callable[[Any], Any] | None = None


def works(run: Run) -> Iterator[tuple[str, Callable[[Path], Work]]]:
    def pipe(kind: str, folder: Path, **options: Any) -> Callable[[str, int], Call]:
        return lambda dtype, size: peers.pipeline(kind, folder, run.device, dtype, size, **options)

    def loop(peer: Callable[[Path, str, str, int], Call], folder: Path) -> Callable[[str, int], Call]:
        return lambda dtype, size: peer(folder, run.device, dtype, size)

    def label(answer: Any) -> Any:
        return answer["label"]

    def span(answer: Any) -> Any:
        return answer["start"], answer["end"]

    sentences = data.short(run.texts, run.size(30_000), 8, 60)
    yield "classify", lambda folder: Work(sentences, pipe("text-classification", folder), _same, label, label)
    pairs = data.pairs(run.texts, run.size(20_000))
    yield "nli", lambda folder: Work(pairs, pipe("text-classification", folder), _same, label, label)
    tagged = sentences[: run.size(10_000)]
    yield "tag", lambda folder: Work(tagged, pipe("token-classification", folder, aggregation_strategy="simple"), _same)
    asked = data.questions(run.texts, run.size(5_000))
    yield "answer", lambda folder: Work(asked, loop(peers.answers, folder), _same, span, span)
    options = data.choices(run.texts, run.size(10_000))
    yield "choose", lambda folder: Work(options, loop(peers.choices, folder), _as_choice, label, _same)


def _same(given: Any) -> Any:
    return given


def _as_choice(given: Any) -> dict[str, Any]:
    return {"question": given[0], "options": list(given[1])}


def predict(run: Run) -> None:
    table(
        f"predict: MiniLM's encoder with random heads, {run.device}; transformers: pipelines; for answer and choose "
        "the loops of its examples",
        "", "", "inputs", "inputs/s", "over the peer's best", "same answers",
    )  # fmt: skip
    for task, make in works(run):
        attempt(task, partial(predict_task, run, task, make))


def predict_task(run: Run, task: str, make: Callable[[Path], Work]) -> None:
    folder = data.write_folder(task, run.minilm, run.out, run.texts)
    work = make(folder)

    def show(name: str, seconds: float, count: int) -> None:
        line(task, f"transformers {name}", f"{count:,}", f"{count / seconds:,.1f}", "", "")

    candidates = [
        Candidate(name, partial(work.theirs, dtype, size)) for name, dtype, size in settings((32, 256), run.dtypes)
    ]
    some = work.inputs[: run.size(PREDICTED)]
    best = next(iter(sweep(candidates, some[: max(8, len(some) // 4)], some, run.rounds, show).values()), None)
    given = [work.ours(one) for one in work.inputs]
    for dtype in run.dtypes:
        candidate = Candidate(dtype, partial(ours.answers, folder, run.device, dtype))
        found = attempt(f"{task}, bothways {dtype}", partial(measure, candidate, given, run.rounds))
        if found is not None:
            rate = len(given) / found.seconds
            over = f"{rate * best.seconds / len(some):.2f} ×" if best else "–"
            line(task, f"bothways {dtype}", f"{len(given):,}", f"{rate:,.1f}", over, same_answers(work, found, best))


def same_answers(work: Work, found: Timed, theirs: Timed | None) -> str:
    if theirs is None or work.our_key is None or work.their_key is None:
        return "–"
    some = found.result[: len(theirs.result)]
    return f"{share_equal([*map(work.our_key, some)], [*map(work.their_key, theirs.result)]):.1%}"


# ---------------------------------------------------------------------- fill, blimp


def fill(run: Run) -> None:
    folder = bothways.boxed("fill")
    texts = data.masked(run.texts, run.size(500), bothways.load(folder).require_tokenizer().mask or "")
    table(f"fill: {len(texts):,} texts with one mask, the model in the box, {run.device}",
          "", "texts/s", "over the peer's best", "same first word")  # fmt: skip

    def show(name: str, seconds: float, count: int) -> None:
        line(f"transformers {name}", f"{count / seconds:,.1f}", "", "")

    candidates = [
        Candidate(name, partial(peers.pipeline, "fill-mask", folder, run.device, dtype, size, top_k=5))
        for name, dtype, size in settings((8, 128), run.dtypes)
    ]
    best = next(iter(sweep(candidates, texts, texts, run.rounds, show).values()), None)
    for dtype in run.dtypes:
        for way, make in (("one by one", ours.fill_one_by_one), ("a list", ours.fill_list)):
            name = f"bothways {dtype}, {way}"
            candidate = Candidate(name, partial(make, folder, run.device, dtype))
            found = attempt(name, partial(measure, candidate, texts, run.rounds))
            if found is not None:
                words = [one[0].tokens[0] for one in found.result]
                same = f"{share_equal(words, [one[0]['token'] for one in best.result]):.1%}" if best else "–"
                line(name, f"{len(texts) / found.seconds:,.1f}", factor(best, found), same)


def accuracy_of(pairs: Sequence[Any], scores: Sequence[float]) -> float:
    """The mean over phenomena of the share of pairs whose good sentence has the higher score."""
    right: dict[str, list[bool]] = {}
    for pair, good, bad in zip(pairs, scores[::2], scores[1::2], strict=True):
        right.setdefault(pair.group, []).append(good > bad)
    return statistics.mean(statistics.mean(some) for some in right.values())


def blimp(run: Run) -> None:
    pairs = data.read_pairs(run.data, run.blimp_limit)
    some = pairs[:: max(1, len(pairs) // run.size(2_000))]
    table(f"blimp: the model in the box, {run.device}; transformers on {len(some):,} pairs, one masked copy a token",
          "", "pairs", "seconds", "pairs/s", "over the peer's best", "accuracy")  # fmt: skip

    def show(name: str, seconds: float, count: int) -> None:
        line(f"transformers {name}", f"{count // 2:,}", f"{seconds:.2f}", f"{count / 2 / seconds:,.1f}", "", "")

    candidates = [
        Candidate(name, partial(peers.sentence_scores, bothways.boxed("fill"), run.device, dtype, size))
        for name, dtype, size in settings((256, 1024), run.dtypes)
    ]
    best = next(iter(sweep(candidates, texts_of(some), texts_of(some), 1, show).values()), None)
    rate = len(some) / best.seconds if best else 0.0
    for dtype in run.dtypes:
        attempt(f"bothways {dtype}", partial(blimp_ours, run, dtype, pairs, rate))


def texts_of(pairs: Sequence[Any]) -> list[Any]:
    return [text for pair in pairs for text in (pair.good, pair.bad)]


def blimp_ours(run: Run, dtype: str, pairs: Sequence[Any], rate: float) -> None:
    call = ours.sentence_scores(bothways.boxed("fill"), run.device, dtype)
    call(texts_of(pairs[:: max(1, len(pairs) // run.size(2_000))]))
    seconds, scores = timed(partial(call, texts_of(pairs)))
    found = len(pairs) / seconds
    line(f"bothways {dtype}", f"{len(pairs):,}", f"{seconds:.2f}", f"{found:,.1f}",
         f"{found / rate:.2f} ×" if rate else "–", f"{accuracy_of(pairs, scores):.4f}")  # fmt: skip


# ---------------------------------------------------------------------- accuracy


def accuracy(run: Run) -> None:
    texts = run.texts[: run.size(2_000)]
    table(f"accuracy: bf16 against fp32, {run.device}; {len(texts):,} texts", "", "worst cosine", "mean cosine")
    for name, folder in (("MiniLM", run.minilm), ("the box", bothways.boxed())):
        attempt(name, partial(vectors_change, run, name, folder, texts))
    some = data.short(run.texts, run.size(1_000), 8, 60)
    inputs: dict[str, list[Any]] = {
        **dict.fromkeys(("emotion", "spam", "pos"), some),
        "nli": data.pairs(run.texts, run.size(1_000)),
        "answer": data.questions(run.texts, run.size(1_000)),
    }
    table(f"accuracy: bf16 against fp32, the models in the box, {len(some):,} inputs",
          "", "largest change of a probability", "answers that change")  # fmt: skip
    for name, given in inputs.items():
        attempt(name, partial(task_change, run, name, given))
    attempt("blimp", partial(blimp_change, run))


def vectors_change(run: Run, name: str, folder: Path, texts: list[str]) -> None:
    worst, mean = cosines(*(ours.vectors(folder, run.device, dtype)(texts) for dtype in ("bf16", "fp32")))
    line(name, f"{worst:.6f}", f"{mean:.6f}")


def task_change(run: Run, name: str, given: list[Any]) -> None:
    two = [ours.answers(bothways.boxed(name), run.device, dtype) for dtype in ("bf16", "fp32")]
    changes, answers = 0.0, [[keys_of(one) for one in call(given)] for call in two]
    for a, b in zip(*answers, strict=True):
        changes = max([changes, *(abs(a[key] - b[key]) for key in a if key in b)])
    pieces = [(set(a) ^ set(b), len(b)) for a, b in zip(*answers, strict=True)]
    if name == "pos":  # by words, since a text has many
        changed = sum(len(differ) / 2 for differ, _ in pieces) / max(1, sum(count for _, count in pieces))
    else:
        changed = sum(bool(differ) for differ, _ in pieces) / len(pieces)
    line(name, f"{changes:.5f}", f"{changed:.2%}{' of the words' if name == 'pos' else ''}")


def keys_of(answer: Any) -> dict[Any, float]:
    """What an answer says, with its probability: a label, several labels, tags of words, or a span."""
    several = answer if isinstance(answer, list) else [answer]
    return {
        (one.get("label"), one.get("entity_group"), one.get("start"), one.get("end")): float(one["score"])
        for one in several
    }


def blimp_change(run: Run) -> None:
    pairs = data.read_pairs(run.data, run.blimp_limit or 100)
    calls = [ours.sentence_scores(bothways.boxed("fill"), run.device, dtype) for dtype in ("bf16", "fp32")]
    found = [accuracy_of(pairs, call(texts_of(pairs))) for call in calls]
    line(f"blimp, {len(pairs):,} pairs", f"accuracy {found[0]:.4f}, fp32 {found[1]:.4f}", f"{found[0] - found[1]:+.4f}")


# ---------------------------------------------------------------------- all


SECTIONS = {f.__name__: f for f in (embed, base, predict, fill, blimp, latency, cpu, startup, accuracy)}


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("--data", type=Path, help="texts.txt, minilm/ and blimp.jsonl, described above")
    options.add_argument("--section", nargs="+", choices=list(SECTIONS), default=list(SECTIONS))
    options.add_argument("--device", choices=("cuda", "cpu"), default="cuda" if torch.cuda.is_available() else "cpu")
    options.add_argument("--dtypes", nargs="+", choices=("bf16", "fp32"),
                         help="for embed, predict, fill and blimp (default: both on a GPU, fp32 on a CPU)")  # fmt: skip
    options.add_argument("--rounds", type=int, default=3)
    options.add_argument("--scale", type=float, default=1.0, help="share of the inputs to take, such as 0.01")
    options.add_argument("--blimp-limit", type=int, default=0, help="pairs of each UID (default: all)")
    options.add_argument("--make-texts", type=Path, metavar="CORPUS_DIR", help="write texts.txt from *.txt.xz, and end")
    options.add_argument("--out", type=Path, help="where --make-texts writes")
    asked = options.parse_args()
    if asked.make_texts is not None:
        if asked.out is None:
            options.error("--make-texts needs --out")
        print(data.make_texts(asked.make_texts, asked.out, TEXTS))
        return
    if asked.data is None:
        options.error("--data is needed")
    transformers.utils.logging.set_verbosity_error()
    transformers.utils.logging.disable_progress_bar()
    warnings.filterwarnings("ignore")  # of texts that are cut, on both sides
    dtypes = tuple(asked.dtypes or (("bf16", "fp32") if asked.device == "cuda" else ("fp32",)))
    print(machine(asked.device), flush=True)
    print(f"\n    python benchmarks/inference.py {' '.join(sys.argv[1:])}", flush=True)
    with tempfile.TemporaryDirectory() as out:
        run = Run(asked.data, Path(out), data.read_texts(asked.data), asked.device, dtypes, asked.rounds, asked.scale,
                  asked.blimp_limit)  # fmt: skip
        for name in asked.section:
            began = time.perf_counter()
            attempt(name, partial(SECTIONS[name], run))
            print(f"\n({name}: {time.perf_counter() - began:.0f} s in all)", flush=True)


if __name__ == "__main__":
    main()
