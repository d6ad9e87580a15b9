"""What the scripts that make data share: rows, one file of a folder, and text in folders of a limited size."""

import json
import lzma
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

from bothways.text.streams import read_lines

_PART = 15_500_000
"""Bytes of text in one file before compression: 4 to 6 MiB after it."""


def rows(path: Path) -> Iterator[dict[str, Any]]:
    yield from (json.loads(line) for line in read_lines(path) if line.strip())


def write(path: Path, found: Iterable[dict[str, Any]]) -> None:
    """Writes rows as .jsonl, or as .jsonl.xz."""
    lines = [json.dumps(row, ensure_ascii=False) + "\n" for row in found]
    write_text(path, "".join(lines))
    print(f"{path.parent.name:8} {path.name:12} {len(lines):7,} rows")


def write_text(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    data = text.encode()
    path.write_bytes(lzma.compress(data) if path.suffix == ".xz" else data)


def parts(folder: Path, part: str) -> list[Path]:
    """The files with this word in their names."""
    found = sorted(p for p in folder.iterdir() if part in p.name)
    if not found:
        raise SystemExit(f"{folder} has no file with {part} in its name")
    return found


def one(folder: Path, part: str) -> Path:
    return parts(folder, part)[0]


class TextFolders:
    """Folders text-1, text-2 … of .txt.xz files, each of at most so many MiB, so that they can be sent one by one."""

    def __init__(self, out: Path, mebibytes: float) -> None:
        self.out, self.most = out, int(mebibytes * 2**20)
        self.sizes: list[int] = []

    def add(self, name: str, texts: Sequence[str], between: str) -> None:
        """Writes texts as NAME-000.txt.xz, NAME-001.txt.xz … of about the same size, each where there is room."""
        sizes = [len(text.encode()) for text in texts]
        count, total = max(1, round(sum(sizes) / _PART)), max(1, sum(sizes))
        files: list[list[str]] = [[] for _ in range(count)]
        done = 0
        for text, size in zip(texts, sizes, strict=True):
            files[done * count // total].append(text)
            done += size
        made = [data for file in files if file for data in self._compressed(name, file, between)]
        for i, data in enumerate(made):
            folders = (k for k, size in enumerate(self.sizes) if size + len(data) <= self.most)
            place = next(folders, len(self.sizes))
            if place == len(self.sizes):
                self.sizes.append(0)
            self.sizes[place] += len(data)
            path = self.out / f"text-{place + 1}" / f"{name}-{i:03}.txt.xz"
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(data)
        print(
            f"{name:24} {len(texts):9,} texts {total / 1e6:9.2f} MB {sum(map(len, made)) / 2**20:7.2f} MiB", flush=True
        )

    def _compressed(self, name: str, texts: list[str], between: str) -> list[bytes]:
        """One file, or halves of it where that is too large."""
        data = lzma.compress((between.join(texts) + "\n").encode())
        if len(data) <= self.most:
            return [data]
        if len(texts) == 1:
            raise SystemExit(f"a text of {name} has {len(data) / 2**20:.2f} MiB compressed: raise --mebibytes")
        middle = len(texts) // 2
        return [made for half in (texts[:middle], texts[middle:]) for made in self._compressed(name, half, between)]
