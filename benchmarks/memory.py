"""Peak memory of the commands that read large files: many lines, one long line, compressed files.

    python benchmarks/memory.py
    python benchmarks/memory.py --lines 10000 1000000 --only encode "search build"
    python benchmarks/memory.py --lines --line 64 256 1000 --seconds 300
    python benchmarks/memory.py --lines --xz 10 --seconds 120

--line: one line of so many MB. --xz: a .xz that unpacks to so many GB. What takes longer than --seconds is stopped, and
its peak until then is shown.

It makes a tiny random model (2 layers of width 32) and a text of different short lines, and runs each command in a
process of its own. Peak: the largest resident set, which includes what a process has read of memory-mapped files;
own: the part of it that is not from files, by samples (Linux only). `similar` compares all pairs: it is left out where
there are more than --pairs of them. `none` is the same process with one short text: what Python, torch and the model
take.
"""

import argparse
import lzma
import os
import platform
import random
import shutil
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

import torch

from bothways.model import checkpoint
from bothways.model.config import EncoderConfig, Learned, ModelConfig
from bothways.model.load import load
from bothways.model.model import Model
from bothways.tasks.classify import ClassifyOptions
from bothways.tasks.folder import with_task
from bothways.tasks.task import TaskConfig
from bothways.text.tokenizer import BERT_SPECIALS, Tokenizer

SYLLABLES = [first + second for first in "bdfgklmnprstvz" for second in "aeiou"]
WORDS = 8
"""Of a line."""
QUERY = "ba de fi go ku"


@dataclass(frozen=True)
class Measured:
    """What one command took."""

    seconds: float
    peak: float
    """MiB."""
    own: float
    """MiB, without memory-mapped files; nan where the system does not tell."""
    ended: str
    """done, stopped, or the sentence of an error."""


def make_model(folder: Path) -> None:
    torch.manual_seed(0)
    pieces = [*BERT_SPECIALS, *SYLLABLES, *(f"##{piece}" for piece in SYLLABLES)]
    shape = EncoderConfig(
        vocab_size=len(pieces), width=32, layers=2, num_heads=2, ffn_width=64, positions=Learned(64), init_std=0.2
    )
    checkpoint.save(Model.new(ModelConfig(shape, ("masked",)), Tokenizer.from_pieces(pieces)), folder)


def write_lines(file: Path, count: int) -> None:
    """Lines of random words, each word of two syllables."""
    draws = random.Random(0)
    with file.open("w", encoding="utf-8") as out:
        for _ in range(count):
            drawn = draws.choices(SYLLABLES, k=2 * WORDS)
            out.write(" ".join(map(str.__add__, drawn[::2], drawn[1::2])) + "\n")


def make_classifier(base: Path, folder: Path) -> None:
    config = TaskConfig("classify", options=ClassifyOptions())
    checkpoint.save(with_task(load(base), config, ("no", "yes"), seed=0), folder)


def write_line(file: Path, megabytes: int) -> None:
    """One line of random words of two syllables; after 10 MB they come again."""
    drawn = random.Random(0).choices(SYLLABLES, k=4_000_000)
    block = " ".join(map(str.__add__, drawn[::2], drawn[1::2])) + " "
    with file.open("w", encoding="utf-8") as out:
        for _ in range(megabytes * 1_000_000 // len(block)):
            out.write(block)
        out.write("end\n")


def write_xz(file: Path, gigabytes: int, part: bytes) -> None:
    """The same 100 MB again and again, as xz streams one after the other."""
    stream = lzma.compress((part * (100_000_000 // len(part) + 1))[:100_000_000], preset=1)
    with file.open("wb") as out:
        for _ in range(gigabytes * 10):
            out.write(stream)


def label(text: Path, table: Path) -> None:
    """The lines of a text as rows with labels."""
    with text.open(encoding="utf-8") as lines, table.open("w", encoding="utf-8") as out:
        out.write("text\tlabel\n")
        out.writelines(f"{line[:-1]}\t{('no', 'yes')[number % 2]}\n" for number, line in enumerate(lines))


def commands(model: Path, text: Path, home: Path) -> dict[str, list[str]]:
    index, use = str(home / "index"), ["--model", str(model), "--device", "cpu"]
    return {
        "encode": ["encode", str(text), "--out", str(home / "vectors.npy"), *use],
        "search build": ["search", "build", str(text), "--out", index, *use],
        "search query": ["search", "query", QUERY, "--index", index, "--device", "cpu"],
        "search query, exact": ["search", "query", QUERY, "--index", index, "--exact", "--device", "cpu"],
        "search query, bm25, first": ["search", "query", QUERY, "--index", index, "--mode", "bm25", "--device", "cpu"],
        "search query, bm25, again": ["search", "query", QUERY, "--index", index, "--mode", "bm25", "--device", "cpu"],
        "cluster": ["cluster", str(text), "--k", "10", "--out", str(home / "groups.jsonl"), *use],
        "similar": ["similar", str(text), "--out", str(home / "pairs.jsonl"), *use],
        **long_commands(model, text, home),
    }


def long_commands(model: Path, text: Path, home: Path) -> dict[str, list[str]]:
    """Those that are for texts of any length, or say their limit."""
    table, use = str(home / "rows.tsv"), ["--device", "cpu", "--model", str(model)]
    tuned = ["--device", "cpu", "--model", f"{model}-classify"]
    out = ["--out", str(home / "vectors.npy")]
    return {
        "encode --long window": ["encode", str(text), *out, "--long", "window", *use],
        "encode --long cut": ["encode", str(text), *out, "--long", "cut", *use],
        "encode --long error": ["encode", str(text), *out, "--long", "error", *use],
        "predict --long window": ["predict", str(text), "--long", "window", *tuned],
        "predict --long cut": ["predict", str(text), "--long", "cut", *tuned],
        "evaluate": ["evaluate", table, *tuned],
        "fill": ["fill", "-", *use],
        "pack": ["pack", str(text), "--model", str(model), "--out", str(home / "packed")],
        "doctor": ["doctor", table, *use],
        "vocab train": ["vocab", "train", str(text), "--out", str(home / "vocabulary"), "--size", "500"],
    }


def measure(arguments: list[str], given: Path, seconds: float) -> Measured:
    begun = time.perf_counter()
    with tempfile.TemporaryFile() as said, given.open("rb") as text:
        child = subprocess.Popen(
            [sys.executable, "-m", "bothways", *arguments], stdin=text, stdout=subprocess.DEVNULL, stderr=said
        )
        own, peak, is_stopped = float("nan"), float("nan"), False
        while True:
            pid, status, used = os.wait4(child.pid, os.WNOHANG)
            if pid:
                break
            own = larger(own, status_of(child.pid, "RssAnon:"))
            peak = larger(peak, status_of(child.pid, "VmHWM:"))
            if time.perf_counter() - begun > seconds and not is_stopped:
                is_stopped = True
                child.terminate()
            time.sleep(0.05)
        child.returncode = os.waitstatus_to_exitcode(status)
        said.seek(0)
        errors = said.read().decode().strip()
    if child.returncode not in (0, 1) and not is_stopped:
        raise SystemExit(f"{' '.join(arguments)} failed:\n{errors}")
    if peak != peak:  # what the system tells at the end may be the size of this process, which was forked
        peak = used.ru_maxrss / (2**20 if sys.platform == "darwin" else 2**10)  # bytes on macOS, KiB elsewhere
    ended = "stopped" if is_stopped else "done" if child.returncode == 0 else errors.splitlines()[-1]
    return Measured(time.perf_counter() - begun, peak, own, ended)


def status_of(pid: int, name: str) -> float:
    """MiB of a process, as Linux tells; nan elsewhere."""
    try:
        lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    except OSError:
        return float("nan")
    return max((int(line.split()[1]) / 2**10 for line in lines if line.startswith(name)), default=float("nan"))


def larger(first: float, second: float) -> float:
    return second if first != first or second > first else first


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("--lines", type=int, nargs="*", default=[10_000, 100_000, 1_000_000])
    options.add_argument("--line", type=int, nargs="*", default=[], help="MB of one line")
    options.add_argument("--xz", type=int, nargs="*", default=[], help="GB that a .xz unpacks to")
    options.add_argument("--only", nargs="+", help="commands, as in the first column of the table; by default all")
    options.add_argument("--pairs", type=float, default=1e10, help="pairs that `similar` compares at most")
    options.add_argument("--seconds", type=float, default=float("inf"), help="the time of a command")
    asked = options.parse_args()
    print(f"{platform.machine()}, Python {platform.python_version()}, torch {torch.__version__}\n")
    print("| command | input | peak, MiB | own, MiB | seconds | ended |\n|---|---|---|---|---|---|")
    with tempfile.TemporaryDirectory(prefix="bothways-memory-") as folder:
        home = Path(folder)
        make_model(home / "model")
        make_classifier(home / "model", home / "model-classify")
        (home / "short.txt").write_text("ba de\n", encoding="utf-8")
        short = commands(home / "model", home / "short.txt", home)["encode"]
        show("none", "one line", measure(short, home / "short.txt", asked.seconds))
        for count in asked.lines:
            text = home / "text.txt"
            write_lines(text, count)
            label(text, home / "rows.tsv")
            known = commands(home / "model", text, home)
            if count**2 / 2 > asked.pairs:
                del known["similar"]
            run(known, asked, f"{count:,} lines", text)
        for megabytes in asked.line:
            text = home / "line.txt"
            write_line(text, megabytes)
            label(text, home / "rows.tsv")
            run(long_commands(home / "model", text, home), asked, f"a line of {megabytes:,} MB", text)
        for gigabytes in asked.xz:
            for name, part in (("lines", b"ba de fi go ku ba de fi\n"), ("one line", b"ba de fi "), ("one word", b"a")):
                text = home / "bomb.txt.xz"
                write_xz(text, gigabytes, part)
                shutil.copy(text, home / "rows.tsv.xz")
                known = long_commands(home / "model", text, home)
                known = {
                    verb: [word + ".xz" if word.endswith("rows.tsv") else word for word in words]
                    for verb, words in known.items()
                }
                size = f"{text.stat().st_size / 1e6:.1f} MB of xz, {gigabytes} GB: {name}"
                run(known, asked, size, home / "short.txt")


def run(known: dict[str, list[str]], asked: argparse.Namespace, size: str, text: Path) -> None:
    for name, arguments in known.items():
        if not asked.only or name in asked.only:
            show(name, size, measure(arguments, text, asked.seconds))


def show(name: str, size: str, found: Measured) -> None:
    row = (name, size, f"{found.peak:,.0f}", f"{found.own:,.0f}", f"{found.seconds:,.0f}", found.ended)
    print(f"| {' | '.join(row)} |", flush=True)


if __name__ == "__main__":
    main()
