"""How long a vocabulary takes to train, how much memory, and how fast it then encodes.

    python benchmarks/vocabulary.py --data DIR

DIR must hold .txt, .txt.gz or .txt.xz files (sub-folders are searched too): a text on each line.
"""

import argparse
import platform
import resource
import time
from itertools import islice
from pathlib import Path

import tokenizers

from bothways.text.files import read_texts
from bothways.text.train_vocab import train_vocabulary


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("--data", type=Path, required=True, help="a folder of .txt, .txt.gz or .txt.xz files")
    options.add_argument("--size", type=int, default=30_522)
    asked = options.parse_args()
    files = sorted(file for file in asked.data.rglob("*") if ".txt" in file.suffixes)
    print(f"{platform.machine()}, Python {platform.python_version()}, tokenizers {tokenizers.__version__}")
    characters = sum(len(text) for file in files for text in read_texts(file))
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    begin = time.perf_counter()
    vocabulary = train_vocabulary(files, size=asked.size)
    seconds = time.perf_counter() - begin
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    print(f"{len(files)} files, {characters / 1e6:,.0f}M characters → {vocabulary.size:,} pieces in {seconds:.0f} s")
    print(f"peak memory {peak:,.0f} MiB ({before:,.0f} before training), fingerprint {vocabulary.fingerprint}")
    sample = [text for file in files for text in islice(read_texts(file), 2_000) if text]
    begin = time.perf_counter()
    tokens = sum(len(encoding) for encoding in vocabulary.batch(sample))
    seconds = time.perf_counter() - begin
    amount = sum(map(len, sample))
    print(f"encoding: {amount / seconds / 1e6:.1f}M characters/s, {amount / tokens:.2f} characters a token")


if __name__ == "__main__":
    main()
