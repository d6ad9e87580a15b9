"""Biomedical articles, definitions, questions and sentences, as texts to distil sentence vectors from: one a line, for
vector_data.py --more.

    python benchmarks/bio_sources.py --downloads DIR --held-out scifact med … --out bio.txt

What is read, with its commit and licence, is in bio_sources.tsv, and how in bio_readers.py. The licence is what the
repository or the article states; abstracts of PubMed in a data set may still be their publishers'. To download it:

    python benchmarks/bio_sources.py --list | while read -r name commit; do
        git init --bare DIR/$name; git -C DIR/$name fetch --depth 1 https://github.com/$name $commit
    done

A clone of the whole repository, bare or not, does as well; one that is not there is left out, with a word.

--held-out: test sets in BEIR's layout (corpus.jsonl, queries.jsonl). A document of ours that has a title of theirs, or
    a sentence of at least 40 letters and digits, is left out whole.

Articles give their title, title and abstract together, plain summary, some paragraphs and some sentences; only those
whose own licence is CC BY, CC BY-SA or CC0 are read. Terms of ontologies give "name: definition". Files of over 4 MiB,
most of them whole ontologies with all that they import, are not read. It prints what each source gave, as a table.
"""

import argparse
import csv
import random
import re
import subprocess
from collections import Counter
from collections.abc import Iterable, Iterator
from multiprocessing import Pool
from pathlib import Path

from bio_readers import FORMULA, read
from data_files import parts, rows, write_text
from vector_data import bare

TABLE = Path(__file__).with_suffix(".tsv")
LARGEST = 4 * 2**20
"""Bytes of a file."""
_START = 20  # letters and digits, of the least title


class HeldOut:
    """The titles and sentences of test sets, to look for in texts."""

    def __init__(self, folders: Iterable[Path]) -> None:
        self.starting: dict[str, list[str]] = {}  # by their first characters
        self.short: set[str] = set()  # what only a whole text may not be
        files = (parts(folder, name) for folder in folders for name in ("corpus.jsonl", "queries.jsonl"))
        for row in (row for some in files for file in some for row in rows(file)):
            self._add(row.get("title") or "", _START)
            for part in (row["text"], *re.split(r"(?<=[.?!])\s+", row["text"])):
                self._add(part, 40)

    def _add(self, text: str, least: int) -> None:
        key = bare(text)
        if len(key) < least:
            self.short.add(key)
        elif key not in (known := self.starting.setdefault(key[:_START], [])):
            known.append(key)

    def within(self, key: str) -> bool:
        return key in self.short or any(
            key.startswith(known, at)
            for at in range(len(key) - _START + 1)
            for known in self.starting.get(key[at : at + _START], ())
        )


def newest(paths: Iterable[str]) -> list[str]:
    """Of eLife's articles the last version, and the preprint only of what never became an article; all other paths."""
    last: dict[str, tuple[bool, int, str]] = {}
    for path in paths:
        found = re.search(r"elife-(preprint-)?(\d+)-v(\d+)\.xml$", path)
        key, entry = (found[2], (not found[1], int(found[3]), path)) if found else (path, (True, 0, path))
        last[key] = max(last.get(key, entry), entry)
    return [path for _, _, path in last.values()]


def files(clone: Path, commit: str, pattern: str) -> Iterator[tuple[str, str]]:
    """The path and text of each file that the pattern finds."""
    git = ["git", "-C", str(clone)]
    listing = subprocess.run([*git, "ls-tree", "-rz", commit], capture_output=True, check=True, text=True).stdout
    entries = (line.partition("\t") for line in listing.split("\0"))
    blobs = {path: about.split()[2] for about, _, path in entries if path and re.search(pattern, path)}
    with subprocess.Popen([*git, "cat-file", "--batch"], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as batch:
        assert batch.stdin
        assert batch.stdout
        for path in newest(blobs):
            batch.stdin.write(f"{blobs[path]}\n".encode())
            batch.stdin.flush()
            header = batch.stdout.readline().split()
            if header[-1] != b"missing":  # from a partial clone
                said = batch.stdout.read(int(header[2]) + 1)[:-1]
                if len(said) <= LARGEST:
                    yield path, said.decode("utf-8", errors="replace")


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("--list", action="store_true", help="print the repositories and commits to download")
    options.add_argument("--downloads", type=Path, metavar="DIR", help="with a clone of each as OWNER/NAME")
    options.add_argument("--held-out", type=Path, nargs="+", metavar="DIR", help="test sets that no text may be from")
    options.add_argument("--out", type=Path, metavar="FILE")
    options.add_argument("--most", type=int, default=400_000, help="texts, drawn by chance (%(default)s)")
    options.add_argument("--sources", type=Path, default=TABLE, metavar="FILE", help="instead of bio_sources.tsv")
    asked = options.parse_args()
    with asked.sources.open(encoding="utf-8") as file:
        table = list(csv.DictReader(file, delimiter="\t"))
    if asked.list:
        print("\n".join(f"{row['source']} {row['commit']}" for row in table))
        return
    if not (asked.downloads and asked.held_out and asked.out):
        options.error("--downloads, --held-out and --out are needed")
    held_out = HeldOut(asked.held_out)
    kept: dict[str, tuple[str, str]] = {}
    left_out: Counter[str] = Counter()
    with Pool() as pool:
        for row in table:
            if not (clone := asked.downloads / row["source"]).exists():
                print(f"without {row['source']}")
                continue
            jobs = ((row["reader"], *file) for file in files(clone, row["commit"], row["files"]))
            for document in (found for many in pool.imap(read, jobs, chunksize=8) for found in many):
                good = [" ".join(text.split()) for text in document if len(text) >= 30 and FORMULA not in text]
                texts = {bare(text): text for text in good}
                if any(map(held_out.within, texts)):
                    left_out["documents with held-out text"] += 1
                    continue
                left_out["duplicates"] += len(texts.keys() & kept.keys())
                for key, text in texts.items():
                    kept.setdefault(key, (row["source"], text))
            print(f"{row['source']:45} {len(kept):9,} texts so far", flush=True)
    chosen = list(kept.values())
    random.Random(0).shuffle(chosen)
    write_text(asked.out, "".join(f"{text}\n" for _, text in chosen[: asked.most]))
    sizes: dict[str, list[int]] = {}
    for source, text in chosen[: asked.most]:
        sizes.setdefault(source, []).append(len(text.encode()) + 1)
    print("| source | texts | MB | licence | what |\n|---|---:|---:|---|---|")
    for row in table:
        if own := sizes.get(row["source"]):
            figures = f"{len(own):,} | {sum(own) / 1e6:.2f}"
            print(f"| {row['source']} | {figures} | {row['licence']} | {row['about']} |")
    print("Left out:", ", ".join(f"{name} {count:,}" for name, count in sorted(left_out.items())))


if __name__ == "__main__":
    main()
