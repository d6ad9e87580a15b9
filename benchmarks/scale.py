"""What it costs to work in parts: `bothways encode` in one process, in worker processes, and on a local Ray cluster.

    python benchmarks/scale.py --data FILE [--model DIR] [--rows-per-part 5000]

FILE is any file of texts that `bothways encode` reads. Every measurement is the whole command in a process of its own,
with the start of Python, the workers and the cluster. "start" is the same command on the first row of FILE, so "work"
= "wall" - "start" is what grows with the file. Where cores are shared with others, the figures are upper bounds.
"""

import argparse
import os
import platform
import statistics
import subprocess
import sys
import tempfile
import time
from importlib.util import find_spec
from pathlib import Path

import torch

from bothways.text.files import read_texts

CANDIDATES = {
    "one process": [],
    "--devices cpu:1": ["--devices", "cpu:1"],
    "--devices cpu:2": ["--devices", "cpu:2"],
    "--on ray --devices cpu:2": ["--on", "ray", "--devices", "cpu:2"],
}


def seconds(file: Path, options: list[str], out: Path) -> float:
    """The time of one command."""
    start = time.perf_counter()
    command = [sys.executable, "-m", "bothways", "encode", file, "--out", out, *options]
    done = subprocess.run(list(map(str, command)), stderr=subprocess.PIPE, text=True, check=False)
    if done.returncode:
        sys.exit(done.stderr)
    return time.perf_counter() - start


def median(file: Path, options: list[str], rounds: int, folder: Path) -> float:
    """The median time of some rounds."""
    return statistics.median(seconds(file, options, folder / f"{n}.npy") for n in range(rounds))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--model", type=Path)
    parser.add_argument("--field", default="text")
    parser.add_argument("--rows-per-part", type=int, default=5000)
    parser.add_argument("--rounds", type=int, default=1)
    given = parser.parse_args()
    texts = list(read_texts(given.data, given.field))
    shared = ["--field", given.field, "--long", "window", *(["--model", str(given.model)] if given.model else [])]
    print(
        f"{platform.machine()}, {os.cpu_count()} cores, torch {torch.__version__}, {len(texts):,} texts, "
        f"{sum(map(len, texts)):,} characters, {given.rows_per_part:,} rows a part"
    )
    print(f"{'':26}{'wall s':>9}{'start s':>9}{'work s':>9}{'texts/s of work':>17}{'against one':>13}")
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        first = folder / "first.txt"
        first.write_text(texts[0].replace("\n", " ") + "\n", encoding="utf-8")
        alone = 0.0
        for what, options in CANDIDATES.items():
            if "ray" in options and find_spec("ray") is None:
                print(f"{what:26}ray is not installed")
                continue
            parts = ["--rows-per-part", str(given.rows_per_part)] if options else []
            wall = median(given.data, [*shared, *options, *parts], given.rounds, folder)
            start = median(first, [*shared, *options, *parts], given.rounds, folder)
            work = wall - start
            alone = alone or wall
            print(f"{what:26}{wall:9.1f}{start:9.1f}{work:9.1f}{len(texts) / work:17,.0f}{wall / alone:12.2f} ×")


if __name__ == "__main__":
    main()
