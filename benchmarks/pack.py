"""How fast text is packed, against what the tokenizer alone can do, and in how much memory.

    python benchmarks/pack.py --data DIR --vocabulary FILE

DIR must hold text files of any kind that `bothways pack` reads; sub-folders are searched too. FILE is a tokenizer.json,
a vocab.txt or a model folder: nothing is trained. The tokenizer alone is given whole documents that are in memory
already; packing reads, unpacks, splits into sentences, hashes, counts and writes as well.

Every measurement is a process of its own. The rates are medians of rounds, one candidate after the other in each;
where cores are shared with others, CPU seconds tell more than the clock. Memory is that of one pass over all files.
"""

import argparse
import json
import os
import platform
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from bothways.text.files import find_files, read_documents

if TYPE_CHECKING:
    from bothways.text.tokenizer import Tokenizer

CANDIDATES = ("encode_batch", "encode_batch_fast", "WordCache", "bothways.pack")
CHUNK = 1 << 20  # characters that the tokenizer alone gets at once

Measured = dict[str, float]


# ---------------------------------------------------------------------- in a process of its own


def chunks(files: list[Path]) -> Iterator[list[str]]:
    chunk: list[str] = []
    size = 0
    for file in files:
        for text in read_documents(file):
            chunk.append(text)
            size += len(text)
            if size >= CHUNK:
                yield chunk
                chunk, size = [], 0
    if chunk:
        yield chunk


def cpu() -> float:
    used = resource.getrusage(resource.RUSAGE_SELF)
    return used.ru_utime + used.ru_stime


def encode_alone(how: str, files: list[Path], vocabulary: Path) -> Measured:
    """Only the calls are timed, not the reading."""
    from bothways.text.tokenizer import Tokenizer

    count = _counter(how, Tokenizer.load(vocabulary))
    found: Measured = dict.fromkeys(("seconds", "cpu", "documents", "characters", "bytes", "tokens"), 0)
    for chunk in chunks(files):
        begin, cpu_begin = time.perf_counter(), cpu()
        tokens = count(chunk)
        found["seconds"] += time.perf_counter() - begin
        found["cpu"] += cpu() - cpu_begin
        found["documents"] += len(chunk)
        found["characters"] += sum(map(len, chunk))
        found["bytes"] += sum(len(text.encode()) for text in chunk)
        found["tokens"] += tokens
    return found


def _counter(how: str, tokenizer: "Tokenizer") -> Callable[[list[str]], int]:
    """Tokenizes texts in one of three ways, and counts the tokens."""
    if how != "WordCache":
        encode = getattr(tokenizer.backend, how)
        return lambda texts: sum(map(len, encode(texts, add_special_tokens=False)))
    words = tokenizer.words
    if words is None:
        raise SystemExit("WordCache is for BERT's WordPiece, and this vocabulary is of another kind")
    return lambda texts: int(words.ids(texts)[1].sum())


def pack_all(files: list[Path], vocabulary: Path) -> Measured:
    from bothways.pretraining.pack import pack
    from bothways.text.tokenizer import Tokenizer

    tokenizer = Tokenizer.load(vocabulary)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    with tempfile.TemporaryDirectory() as place:
        begin, cpu_begin = time.perf_counter(), cpu()
        report = pack(files, tokenizer, Path(place) / "packed", valid=0.005)
        seconds, cpu_seconds = time.perf_counter() - begin, cpu() - cpu_begin
        written = sum(file.stat().st_size for file in Path(place, "packed").iterdir())
    return {
        "seconds": seconds,
        "cpu": cpu_seconds,
        "documents": report.documents,
        "tokens": report.tokens,
        "written": written,
        "before": before,
        "peak": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss,
    }


# ---------------------------------------------------------------------- measuring


def measure(candidate: str, files: list[Path], vocabulary: Path) -> Measured:
    command = [sys.executable, __file__, "--data", *map(str, files), "--vocabulary", str(vocabulary)]
    done = subprocess.run([*command, "--only", candidate], stdout=subprocess.PIPE, text=True, check=True)
    found: Measured = json.loads(done.stdout)
    return found


def show(candidate: str, rounds: list[Measured], size: Measured, base: list[Measured]) -> None:
    seconds = sorted(found["seconds"] for found in rounds)
    rate = size["characters"] / statistics.median(seconds) / 1e6
    spread = f"{size['characters'] / seconds[-1] / 1e6:.2f} to {size['characters'] / seconds[0] / 1e6:.2f}"
    megabytes = size["bytes"] / statistics.median(seconds) / 1e6
    used = statistics.median(found["cpu"] for found in rounds)
    # Round by round, so that a slow minute of the machine counts on both sides.
    clock = statistics.median(b["seconds"] / r["seconds"] for b, r in zip(base, rounds, strict=True))
    work = statistics.median(b["cpu"] / r["cpu"] for b, r in zip(base, rounds, strict=True))
    print(f"{candidate:18} {rate:6.2f} {spread:>14} {megabytes:7.2f} {clock:7.0%} {used:8.1f} {work:7.0%}")


def compare(files: list[Path], vocabulary: Path, rounds: int) -> None:
    found: dict[str, list[Measured]] = {candidate: [] for candidate in CANDIDATES}
    for _ in range(rounds):
        for candidate in CANDIDATES:
            found[candidate].append(measure(candidate, files, vocabulary))
    base = found["encode_batch"]
    size, packed = base[0], found["bothways.pack"][0]
    print(
        f"\n{len(files)} files, {size['documents']:,} documents, {size['characters'] / 1e6:,.1f}M characters, "
        f"{size['bytes'] / 1e6:,.1f} MB of UTF-8, {packed['tokens']:,} tokens; {rounds} rounds\n"
    )
    print(f"{'':18} {'M characters/s':>21} {'MB/s':>7} {'ratio':>7} {'CPU s':>8} {'ratio':>7}")
    for candidate in CANDIDATES:
        show(candidate, found[candidate], size, base)


def describe(files: list[Path], found: dict[str, Any]) -> None:
    mebibytes = f"peak memory {found['peak'] / 1024:,.0f} MiB ({found['before'] / 1024:,.0f} before packing)"
    print(
        f"\nall {len(files)} files in one pass: {found['documents']:,} documents, {found['tokens']:,} tokens, "
        f"{found['written'] / 1e6:,.0f} MB written in {found['seconds']:,.0f} s; {mebibytes}"
    )


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("--data", type=Path, nargs="+", required=True, help="a folder of text files, or such files")
    options.add_argument("--vocabulary", type=Path, required=True, help="tokenizer.json, vocab.txt or a model folder")
    options.add_argument("--limit", type=int, metavar="N", help="compare on the first N files only")
    options.add_argument("--rounds", type=int, default=3)
    options.add_argument("--only", choices=CANDIDATES, help=argparse.SUPPRESS)  # what `measure` runs
    asked = options.parse_args()
    files = find_files(asked.data)
    if asked.only:
        alone = asked.only != "bothways.pack"
        found = encode_alone(asked.only, files, asked.vocabulary) if alone else pack_all(files, asked.vocabulary)
        print(json.dumps(found))
        return
    print(f"{platform.machine()}, {os.cpu_count()} CPU cores, Python {platform.python_version()}, ", end="")
    print(f"tokenizers {tokenizers_version()}")
    compare(files[: asked.limit], asked.vocabulary, asked.rounds)
    describe(files, measure("bothways.pack", files, asked.vocabulary))


def tokenizers_version() -> str:
    """Without importing it: what this process holds would count as its children's memory."""
    from importlib.metadata import version

    return version("tokenizers")


if __name__ == "__main__":
    main()
