"""Memory-mapped packed text: tokens, word starts, sentences and documents, by number.

A packed folder holds manifest.json, the tokenizer, and shards. A shard is four .npy files:

    tokens      all tokens of its documents, concatenated, without special tokens
    words       one bit for each token: whether a word starts there
    sentences   the start of each sentence, and the end
    documents   the number of each document's first sentence, and the end

A corpus concatenates its shards. T a token's position in the corpus, S a sentence's number in it.
"""

import json
import zlib
from array import array
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
    """Documents of one source, memory-mapped. All positions are relative to the shard's start."""

    name: str
    source: str
    tokens: NDArray[np.unsignedinteger[Any]]
    words: NDArray[np.uint8]
    sentences: NDArray[np.int32]
    documents: NDArray[np.int32]


class Corpus:
    """The documents of several shards as one long text."""

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
        """(documents + 1,) the start of each document, as T, and the end."""
        return self._joined(lambda shard: shard.sentences[shard.documents[:-1]], self._tokens)

    @cached_property
    def document_sentences(self) -> Numbers:
        """(documents + 1,) each document's first sentence, as S, and the end."""
        return self._joined(lambda shard: shard.documents[:-1], self._sentences)

    def _joined(self, each: Callable[[Shard], NDArray[np.int32]], bases: Numbers) -> Numbers:
        parts = [each(shard) + base for shard, base in zip(self.shards, bases, strict=False)]
        return np.concatenate([*parts, bases[-1:]]).astype(np.int64)

    def sentence_starts(self, sentences: Numbers) -> Numbers:
        """The start of these sentences, as T; the number after the last sentence gives the end."""
        found = np.full(sentences.shape, self.tokens)
        for k, here in self._by_shard(sentences, self._sentences):
            found[here] = self._tokens[k] + self.shards[k].sentences[sentences[here] - self._sentences[k]]
        return found

    def sentences_from(self, places: Numbers) -> Numbers:
        """The first sentence that starts at or after each position."""
        found = np.full(places.shape, self.sentences)
        for k, here in self._by_shard(places, self._tokens):
            starts = self.shards[k].sentences
            inside = np.searchsorted(starts, (places[here] - self._tokens[k]).astype(np.int32))
            found[here] = self._sentences[k] + inside
        return found

    def take(self, starts: Numbers, lengths: Numbers) -> tuple[Numbers, NDArray[np.bool_]]:
        """The tokens of these stretches, concatenated, and whether a word starts at each."""
        places = ranges(starts, lengths)
        ids = np.empty(len(places), np.int64)
        words = np.empty(len(places), bool)
        for k, here in self._by_shard(places, self._tokens):
            inside = places[here] - self._tokens[k]
            ids[here] = self.shards[k].tokens[inside]
            words[here] = (self.shards[k].words[inside >> 3] >> (7 - (inside & 7))) & 1
        return ids, words

    def _by_shard(self, places: Numbers, bases: Numbers) -> Iterator[tuple[int, Any]]:
        """(shard number, index into `places`) for each shard. Positions after the end are in none."""
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
    """A folder of `bothways pack`, open and checked."""

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
    """Open a packed folder and check every file, so that damage is found before a run and not during it."""
    folder = Path(folder)
    path = folder / "manifest.json"
    if not path.exists():
        raise BothwaysError(
            f"{folder} is not a packed folder, since it has no manifest.json: make one with bothways pack",
            "not-a-packed-folder",
            folder,
        )
    try:
        manifest = json.loads(path.read_text(encoding="utf-8"))
        if manifest["format"] != FORMAT:
            raise BothwaysError(
                f"{path} has format {manifest['format']}, but this version reads {FORMAT}: pack the text again",
                "unknown-format",
                manifest["format"],
            )
        if manifest["checksum"] != manifest_checksum(manifest):
            raise ValueError("wrong checksum")
        for name, known in manifest["tokenizer"]["files"].items():
            if not (folder / name).exists() or checksum(folder / name) != known:
                raise BothwaysError(
                    f"{folder / name} is damaged, since its checksum is wrong: pack the text again",
                    "damaged-file",
                    folder / name,
                )
        shards = tuple((row["split"], _open_shard(folder, row, verify)) for row in manifest["shards"])
    except (ValueError, KeyError, TypeError, AttributeError, OSError) as error:
        raise BothwaysError(f"{path} is damaged ({error}): pack the text again", "damaged-file", path) from error
    return Packed(folder, manifest, Tokenizer.load(folder), shards)


def _open_shard(folder: Path, row: dict[str, Any], verify: bool) -> Shard:
    name = row["name"]
    parts = {}
    for part in PARTS:
        file = folder / f"{name}.{part}.npy"
        if not file.exists():
            raise BothwaysError(f"the shard {file} is missing: pack the text again", "no-file", file)
        if file.stat().st_size != row["files"][part]["bytes"] or (
            verify and checksum(file) != row["files"][part]["crc32"]
        ):
            raise BothwaysError(
                f"the shard {file} is damaged, since its checksum is wrong: pack the text again", "damaged-file", file
            )
        try:
            parts[part] = np.load(file, mmap_mode="r")
        except Exception as error:  # numpy's parser can raise any exception
            raise BothwaysError(
                f"the shard {file} is damaged and cannot be opened: pack the text again", "damaged-file", file
            ) from error
    return Shard(name, row["source"], **parts)


def manifest_checksum(manifest: Mapping[str, Any]) -> int:
    """The checksum of everything in it but the checksum itself."""
    rest = {name: value for name, value in manifest.items() if name != "checksum"}
    return zlib.crc32(json.dumps(rest, sort_keys=True, ensure_ascii=False).encode())


def checksum(file: Path) -> int:
    """CRC-32 of a file's bytes: finds damage at a gigabyte per second, but does not protect against tampering."""
    found = 0
    with open(file, "rb") as stream:
        while block := stream.read(1 << 20):
            found = zlib.crc32(block, found)
    return found


def ranges(starts: Numbers, lengths: Numbers) -> Numbers:
    """starts[0], starts[0]+1, … for each start and length, concatenated."""
    ends = np.cumsum(lengths)
    found: Numbers = np.arange(int(lengths.sum())) + np.repeat(starts - (ends - lengths), lengths)
    return found


def _starts(lengths: Iterable[int]) -> Numbers:
    return np.cumsum([0, *lengths], dtype=np.int64)


# ---------------------------------------------------------------------- writing

_SHARD = 1 << 26  # tokens; one shard is held in memory until it is full, as 128 MB


class _OpenShard:
    """A shard that is not written yet, as compact in memory as on disk."""

    def __init__(self) -> None:
        self.tokens, self.words = bytearray(), bytearray()
        self.sentences, self.documents = array("i", [0]), array("i", [0])


class ShardWriter:
    """Collects documents by split and source, and writes a shard whenever one is full."""

    def __init__(self, folder: Path, vocabulary: int) -> None:
        self.folder = folder
        self.kind = np.uint16 if vocabulary <= 1 << 16 else np.uint32
        self.open: dict[tuple[str, str], _OpenShard] = {}
        self.shards: list[dict[str, Any]] = []

    def add(self, split: str, source: str, ids: Numbers, words: NDArray[np.bool_], sentences: Numbers) -> None:
        key = (split, source)
        if key in self.open and self.open[key].sentences[-1] + len(ids) > _SHARD:
            self._flush(key)
        shard = self.open.setdefault(key, _OpenShard())
        shard.tokens += ids.astype(self.kind).tobytes()
        shard.words += words.tobytes()
        shard.sentences.extend((shard.sentences[-1] + np.cumsum(sentences)).tolist())
        shard.documents.append(len(shard.sentences) - 1)

    def close(self) -> list[dict[str, Any]]:
        """Write the open shards; the manifest's rows."""
        for key in sorted(self.open):
            self._flush(key)
        return self.shards

    def _flush(self, key: tuple[str, str]) -> None:
        shard = self.open.pop(key)
        name = f"{key[0]}-{key[1]}-{len(self.shards):05}"
        parts = {
            "tokens": np.frombuffer(shard.tokens, self.kind),
            "words": np.packbits(np.frombuffer(shard.words, bool)),
            "sentences": np.frombuffer(shard.sentences, np.int32),
            "documents": np.frombuffer(shard.documents, np.int32),
        }
        files = {}
        for part, numbers in parts.items():
            file = self.folder / f"{name}.{part}.npy"
            np.save(file, numbers)
            files[part] = {"bytes": file.stat().st_size, "crc32": checksum(file)}
        sizes = {"documents": len(shard.documents) - 1, "sentences": len(shard.sentences) - 1}
        counts = {**sizes, "tokens": shard.sentences[-1]}
        self.shards.append({"name": name, "split": key[0], "source": key[1], **counts, "files": files})
