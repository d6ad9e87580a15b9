"""Peak memory of the commands that read large files: 10,000, 100,000 and 1,000,000 lines.

    python benchmarks/memory.py
    python benchmarks/memory.py --lines 10000 1000000 --only encode "search build"

It makes a tiny random model (2 layers of width 32) and a text of different short lines, and runs each command in a
process of its own. Peak: the largest resident set, which includes what a process has read of memory-mapped files;
own: the part of it that is not from files, by samples (Linux only). `similar` compares all pairs: it is left out where
there are more than --pairs of them.
"""

import argparse
import os
import platform
import random
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import torch

from bothways.model import checkpoint
from bothways.model.config import EncoderConfig, Learned, ModelConfig
from bothways.model.model import Model
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


def make_model(folder: Path) -> None:
    torch.manual_seed(0)
    pieces = [*BERT_SPECIALS, *SYLLABLES, *(f"##{piece}" for piece in SYLLABLES)]
    shape = EncoderConfig(
        vocab_size=len(pieces), width=32, layers=2, num_heads=2, ffn_width=64, positions=Learned(64), init_std=0.2
    )
    checkpoint.save(Model.new(ModelConfig(shape), Tokenizer.from_pieces(pieces)), folder)


def write_lines(file: Path, count: int) -> None:
    """Lines of random words, each word of two syllables."""
    draws = random.Random(0)
    with file.open("w", encoding="utf-8") as out:
        for _ in range(count):
            drawn = draws.choices(SYLLABLES, k=2 * WORDS)
            out.write(" ".join(map(str.__add__, drawn[::2], drawn[1::2])) + "\n")


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
    }


def measure(arguments: list[str]) -> Measured:
    begun = time.perf_counter()
    with tempfile.TemporaryFile() as said:
        child = subprocess.Popen([sys.executable, "-m", "bothways", *arguments], stdout=subprocess.DEVNULL, stderr=said)
        own = float("nan")
        while True:
            pid, status, used = os.wait4(child.pid, os.WNOHANG)
            if pid:
                break
            own = max((own, *anonymous(child.pid)), key=lambda size: size if size == size else -1.0)
            time.sleep(0.05)
        child.returncode = os.waitstatus_to_exitcode(status)
        if child.returncode:
            said.seek(0)
            raise SystemExit(f"{' '.join(arguments)} failed:\n{said.read().decode()}")
    unit = 2**20 if sys.platform == "darwin" else 2**10  # bytes on macOS, KiB elsewhere
    return Measured(time.perf_counter() - begun, used.ru_maxrss / unit, own)


def anonymous(pid: int) -> Iterator[float]:
    """MiB of a process that are not from files, if the system tells."""
    try:
        lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    except OSError:
        return
    yield from (int(line.split()[1]) / 2**10 for line in lines if line.startswith("RssAnon:"))


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("--lines", type=int, nargs="+", default=[10_000, 100_000, 1_000_000])
    options.add_argument("--only", nargs="+", help="commands, as in the first column of the table; by default all")
    options.add_argument("--pairs", type=float, default=1e10, help="pairs that `similar` compares at most")
    asked = options.parse_args()
    print(f"{platform.machine()}, Python {platform.python_version()}, torch {torch.__version__}\n")
    print("| command | lines | peak, MiB | own, MiB | seconds |\n|---|---|---|---|---|")
    with tempfile.TemporaryDirectory(prefix="bothways-memory-") as folder:
        make_model(Path(folder) / "model")
        for count in asked.lines:
            home = Path(folder) / str(count)
            home.mkdir()
            write_lines(home / "text.txt", count)
            for name, arguments in commands(Path(folder) / "model", home / "text.txt", home).items():
                if (asked.only and name not in asked.only) or (name == "similar" and count**2 / 2 > asked.pairs):
                    continue
                found = measure(arguments)
                row = (name, f"{count:,}", f"{found.peak:,.0f}", f"{found.own:,.0f}", f"{found.seconds:,.0f}")
                print(f"| {' | '.join(row)} |", flush=True)


if __name__ == "__main__":
    main()
