"""Packed text, read by memory-mapping: tokens, word starts, sentences and documents, by number.

A packed folder holds manifest.json, the tokenizer, and shards. A shard is four .npy files:

    tokens      every token of its documents, one after the other, no specials
    words       one bit for each token: does a word start here?
    sentences   where each sentence starts, and the end
    documents   the number of each document's first sentence, and the end

T a place in all tokens of a corpus, S of all its sentences, D of all its documents: shards follow one another.
"""

import json
import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from bothways.errors import BothwaysError
from bothways.text.tokenizer import Tokenizer

Numbers = NDArray[np.int64]
PARTS = ("tokens", "words", "sentences", "documents")
FORMAT = 1


@dataclass(frozen=True)
class Shard:
    """Some documents of one source, memory-mapped. All places are counted from the shard's own start."""

    name: str
    source: str
    tokens: NDArray[np.unsignedinteger[Any]]
    words: NDArray[np.uint8]
    sentences: NDArray[np.int32]
    documents: NDArray[np.int32]


class Corpus:
    """The documents of some shards as one long text: `take` reads, the rest finds its way."""

    def __init__(self, shards: Sequence[Shard]) -> None:
        self.shards = list(shards)
        self._tokens = _starts(len(shard.tokens) for shard in shards)
        self._sentences = _starts(len(shard.sentences) - 1 for shard in shards)
        self._documents = _starts(len(shard.documents) - 1 for shard in shards)

    @property
    def tokens(self) -> int:
        return int(self._tokens[-1])

    @property
    def sentences(self) -> int:
        return int(self._sentences[-1])

    @property
    def documents(self) -> int:
        return int(self._documents[-1])

    @cached_property
    def document_starts(self) -> Numbers:
        """(documents + 1,) where each document starts, as T."""
        return self._joined(lambda shard: shard.sentences[shard.documents[:-1]], self._tokens)

    @cached_property
    def document_sentences(self) -> Numbers:
        """(documents + 1,) the number of each document's first sentence, as S."""
        return self._joined(lambda shard: shard.documents[:-1], self._sentences)

    def _joined(self, each: Callable[[Shard], NDArray[np.int32]], bases: Numbers) -> Numbers:
        parts = [each(shard) + base for shard, base in zip(self.shards, bases, strict=False)]
        return np.concatenate([*parts, bases[-1:]]).astype(np.int64)

    def sentence_starts(self, sentences: Numbers) -> Numbers:
        """Where these sentences start, as T; the number past the last one is the end of all."""
        found = np.full(sentences.shape, self.tokens)
        for k, here in self._by_shard(sentences, self._sentences):
            found[here] = self._tokens[k] + self.shards[k].sentences[sentences[here] - self._sentences[k]]
        return found

    def sentences_from(self, places: Numbers) -> Numbers:
        """The first sentence that starts at or after each place."""
        found = np.full(places.shape, self.sentences)
        for k, here in self._by_shard(places, self._tokens):
            starts = self.shards[k].sentences
            inside = np.searchsorted(starts, (places[here] - self._tokens[k]).astype(np.int32))
            found[here] = self._sentences[k] + inside
        return found

    def take(self, starts: Numbers, lengths: Numbers) -> tuple[Numbers, NDArray[np.bool_]]:
        """The tokens of these stretches one after the other, and whether a word starts at each."""
        ends = np.cumsum(lengths)
        places = np.arange(ends[-1] if len(ends) else 0) + np.repeat(starts - (ends - lengths), lengths)
        ids = np.empty(len(places), np.int64)
        words = np.empty(len(places), bool)
        for k, here in self._by_shard(places, self._tokens):
            inside = places[here] - self._tokens[k]
            ids[here] = self.shards[k].tokens[inside]
            words[here] = (self.shards[k].words[inside >> 3] >> (7 - (inside & 7))) & 1
        return ids, words

    def _by_shard(self, places: Numbers, bases: Numbers) -> Iterator[tuple[int, Any]]:
        """Which shard each place lies in: (its number, where in `places`). Places past the end are in none."""
        if len(self.shards) == 1:
            inside = places < bases[-1]
            yield 0, slice(None) if inside.all() else inside
            return
        number = np.searchsorted(bases, places, side="right") - 1
        for k in np.unique(number).tolist():
            if k < len(self.shards):
                yield k, number == k


@dataclass(frozen=True)
class Packed:
    """A folder that `bothways pack` made, open and checked."""

    folder: Path
    manifest: dict[str, Any]
    tokenizer: Tokenizer
    shards: tuple[tuple[str, Shard], ...]
    """(split, shard): the split is "train" or "valid"."""

    def corpora(self, split: str) -> dict[str, list[Shard]]:
        """The shards of a split, by source."""
        found: dict[str, list[Shard]] = {}
        for part, shard in self.shards:
            if part == split:
                found.setdefault(shard.source, []).append(shard)
        return found


def open_packed(folder: Path | str, *, verify: bool = True) -> Packed:
    """Open a packed folder. Every file is checked now, so that nothing damaged is met in the middle of a run."""
    folder = Path(folder)
    path = folder / "manifest.json"
    if not path.exists():
        raise BothwaysError(f"{folder} is not a packed folder (it has no manifest.json): make one with bothways pack")
    try:
        manifest = json.loads(path.read_text(encoding="utf-8"))
        if manifest["format"] != FORMAT:
            raise BothwaysError(f"{path} has the format {manifest['format']}, and this version reads {FORMAT}")
        if manifest["checksum"] != manifest_checksum(manifest):
            raise ValueError("its content is not what was written")
        for name, known in manifest["tokenizer"]["files"].items():
            if not (folder / name).exists() or checksum(folder / name) != known:
                raise BothwaysError(
                    f"{folder / name} is damaged: the tokenizer is not the one that the text was packed with"
                )
        shards = tuple((row["split"], _open_shard(folder, row, verify)) for row in manifest["shards"])
    except (ValueError, KeyError, TypeError, AttributeError, OSError) as error:
        raise BothwaysError(f"{path} is damaged ({error}): pack the text again") from error
    return Packed(folder, manifest, Tokenizer.load(folder), shards)


def _open_shard(folder: Path, row: dict[str, Any], verify: bool) -> Shard:
    name = row["name"]
    parts = {}
    for part in PARTS:
        file = folder / f"{name}.{part}.npy"
        if not file.exists():
            raise BothwaysError(f"the shard {file} is missing: pack the text again")
        if file.stat().st_size != row["files"][part]["bytes"] or (
            verify and checksum(file) != row["files"][part]["crc32"]
        ):
            raise BothwaysError(f"the shard {file} is damaged: its content is not what was packed; pack the text again")
        try:
            parts[part] = np.load(file, mmap_mode="r")
        except Exception as error:  # numpy's parser raises whatever it stumbles over
            raise BothwaysError(f"the shard {file} is damaged and cannot be opened: pack the text again") from error
    return Shard(name, row["source"], **parts)


def manifest_checksum(manifest: Mapping[str, Any]) -> int:
    """Of everything in it but the checksum itself."""
    rest = {name: value for name, value in manifest.items() if name != "checksum"}
    return zlib.crc32(json.dumps(rest, sort_keys=True, ensure_ascii=False).encode())


def checksum(file: Path) -> int:
    """CRC-32 of a file's bytes: finds damage at a gigabyte a second, is no protection against malice."""
    found = 0
    with open(file, "rb") as stream:
        while block := stream.read(1 << 20):
            found = zlib.crc32(block, found)
    return found


def _starts(lengths: Iterable[int]) -> Numbers:
    return np.cumsum([0, *lengths], dtype=np.int64)
