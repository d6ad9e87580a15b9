"""Raw text to packed shards: streamed, so that memory does not grow with the text."""

import hashlib
import itertools
import json
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import tokenizers
from numpy.typing import NDArray

from bothways import atomic
from bothways.ahead import ahead
from bothways.draws import mix, uniform
from bothways.errors import BothwaysError
from bothways.pretraining.shards import FORMAT, PARTS, checksum
from bothways.text.files import Each, Meter, find_files, read_documents
from bothways.text.sentences import split_sentences
from bothways.text.tokenizer import FILES as TOKENIZER_FILES
from bothways.text.tokenizer import Tokenizer

_CHUNK = 1 << 19  # characters tokenised at once: enough to keep all cores busy, about 30 MB of encodings
_SHARD = 1 << 26  # tokens; one shard is held in memory until it is full, as 128 MB


@dataclass(frozen=True)
class Report:
    """What was packed."""

    documents: int
    sentences: int
    tokens: int
    words: int
    tokens_per_word: float
    unknown: float
    """Share of the tokens that the vocabulary has no piece for."""
    duplicates: float
    """Share of the documents that repeat an earlier one, whether they were dropped or not."""
    valid_documents: int
    valid_tokens: int
    split: int
    """How many documents were so long that they were packed in parts."""
    lengths: dict[str, int]
    """Documents by their number of tokens."""
    entropy: float
    """The loss, in nats, of a model that knows how frequent each token is and nothing else."""


@dataclass(frozen=True)
class _Document:
    source: str
    split: str
    sentences: list[str]


@dataclass
class _Tally:
    """Everything the report counts, as it goes along."""

    counts: NDArray[np.int64]
    """Of every token id."""
    documents: dict[str, int] = field(default_factory=lambda: {"train": 0, "valid": 0})
    tokens: dict[str, int] = field(default_factory=lambda: {"train": 0, "valid": 0})
    sentences: int = 0
    words: int = 0
    seen: int = 0
    repeated: int = 0
    lengths: dict[int, int] = field(default_factory=dict)


def pack(
    inputs: Sequence[Path | str] | Mapping[str, Sequence[Path | str]],
    tokenizer: Tokenizer,
    out: Path | str,
    *,
    valid: float | str = 0.0,
    valid_files: Sequence[Path | str] = (),
    dedup: bool = False,
    column: str = "text",
    each: Each = "paragraphs",
    on_bytes: Callable[[int, int], None] | None = None,
) -> Report:
    """Turn text files into a folder of token shards.

    `inputs` are files, folders or patterns, or a table of them by source name. A share `valid` of the documents,
    or all of `valid_files`, is held out. Which documents are held out depends on their text alone, so a document
    and its copies are always on the same side. `on_bytes(done, total)` is told how far it is.
    """
    out = Path(out)
    named = inputs if isinstance(inputs, Mapping) else {out.name: inputs}
    sources = {name: find_files(paths) for name, paths in named.items()}
    held_out = find_files(valid_files) if valid_files else []
    share = parse_share(valid)
    files = [("valid", next(iter(sources)), file) for file in held_out]
    files += [("train", name, file) for name, paths in sources.items() for file in paths]
    total = sum(file.stat().st_size for _, _, file in files if file.exists())
    meter, tally = Meter(), _Tally(np.zeros(tokenizer.size, np.int64))
    documents = _documents(files, share, dedup, column, each, meter, tally)
    with atomic.new_folder(out, replaces=_owned(out)) as fresh:
        writer = _Writer(fresh, tokenizer.size)
        encoder = _Encoder(tokenizer)
        batches = ahead(_chunks(documents), 2)
        for chunk, encodings in ahead(((chunk, encoder.run(chunk)) for chunk in batches), 2):
            _write(writer, encoder, chunk, encodings, tally)
            if on_bytes:
                on_bytes(meter.bytes, total)
        if not tally.tokens["train"]:
            raise BothwaysError(f"no text to train on was found in {', '.join(str(f) for _, _, f in files[:3])}")
        report = _report(tally, meter, tokenizer)
        tokenizer.save(fresh)
        manifest = {
            "format": FORMAT,
            "tokenizer": {"fingerprint": tokenizer.fingerprint, "pieces": tokenizer.size},
            "sources": {name: [file.name for file in paths] for name, paths in sources.items()},
            "report": asdict(report),
            "shards": writer.close(),
        }
        (fresh / "manifest.json").write_text(json.dumps(manifest, indent=1, ensure_ascii=False) + "\n", "utf-8")
    return report


def parse_share(written: float | str) -> float:
    """0.005 and "0.5%" are the same share."""
    try:
        text = str(written).strip()
        share = float(text[:-1]) / 100 if text.endswith("%") else float(text)
    except ValueError:
        share = math.nan
    if not 0 <= share < 1:
        raise BothwaysError(f"{written!r} is not a share: expected something like 0.5% or 0.005")
    return share


def _owned(out: Path) -> list[str]:
    """The files of an older packed folder in this place, which may be replaced; none if it is not one."""
    try:
        names = [row["name"] for row in json.loads((out / "manifest.json").read_text(encoding="utf-8"))["shards"]]
    except (OSError, ValueError, KeyError, TypeError):
        return []
    shards = [f"{name}.{part}.npy" for name in names for part in PARTS]
    return ["manifest.json", *TOKENIZER_FILES, *shards]


# ---------------------------------------------------------------------- reading


def _documents(
    files: Sequence[tuple[str, str, Path]],
    share: float,
    dedup: bool,
    column: str,
    each: Each,
    meter: Meter,
    tally: _Tally,
) -> Iterator[_Document]:
    """Held-out files come first, so that with `dedup` a copy of one of their documents is not trained on."""
    seen = _Seen()
    for split, source, file in files:
        for text in read_documents(file, field=column, each=each, meter=meter):
            digest = int.from_bytes(hashlib.blake2b(text.encode(), digest_size=8).digest(), "little")
            tally.seen += 1
            if seen.add(digest):
                tally.repeated += 1
                if dedup:
                    continue
            chosen = split == "valid" or float(uniform(mix(np.uint64(digest)))) < share
            yield _Document(source, "valid" if chosen else "train", split_sentences(text))


class _Seen:
    """A set of 64-bit numbers at eight bytes each: Python's own takes ten times as much."""

    def __init__(self) -> None:
        self._old = np.empty(0, np.uint64)
        self._new: set[int] = set()

    def add(self, number: int) -> bool:
        """Whether it was there already."""
        if number in self._new:
            return True
        place = int(np.searchsorted(self._old, np.uint64(number)))
        if place < len(self._old) and int(self._old[place]) == number:
            return True
        self._new.add(number)
        if len(self._new) >= max(1 << 16, len(self._old) // 8):
            self._old = np.sort(np.concatenate([self._old, np.fromiter(self._new, np.uint64, len(self._new))]))
            self._new = set()
        return False


def _chunks(documents: Iterator[_Document]) -> Iterator[list[_Document]]:
    chunk: list[_Document] = []
    size = 0
    for document in documents:
        chunk.append(document)
        size += sum(map(len, document.sentences))
        if size >= _CHUNK:
            yield chunk
            chunk, size = [], 0
    if chunk:
        yield chunk


# ---------------------------------------------------------------------- tokenising


class _Encoder:
    """Sentences to ids and word starts, without specials: a [MASK] in a raw text is five characters, not a mask."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self.backend = tokenizers.Tokenizer.from_str(tokenizer.backend.to_str())
        self.backend.encode_special_tokens = True
        self.starts: NDArray[np.bool_] | None = None
        if tokenizer.kind == "WordPiece":
            self.starts = np.array([not piece.startswith("##") for piece in tokenizer.pieces])

    def run(self, documents: Sequence[_Document]) -> list[tokenizers.Encoding]:
        texts = [sentence for document in documents for sentence in document.sentences]
        return self.backend.encode_batch_fast(texts, add_special_tokens=False)

    def words(self, ids: NDArray[np.int64], encodings: Sequence[tokenizers.Encoding]) -> NDArray[np.bool_]:
        """Whether a word starts at each token. WordPiece says so in the piece, the others in the encoding."""
        if self.starts is not None:
            return self.starts[ids]
        numbers = itertools.chain.from_iterable(e.word_ids for e in encodings)
        words = np.fromiter((-1 if n is None else n for n in numbers), np.int64, len(ids))
        starts = np.ones(len(ids), bool)
        starts[1:] = words[1:] != words[:-1]
        ends = np.cumsum([len(e) for e in encodings])
        starts[ends[ends < len(ids)]] = True
        return starts


def _write(
    writer: "_Writer",
    encoder: _Encoder,
    chunk: Sequence[_Document],
    encodings: Sequence[tokenizers.Encoding],
    tally: _Tally,
) -> None:
    lengths = np.fromiter(map(len, encodings), np.int64, len(encodings))
    ids = np.fromiter(itertools.chain.from_iterable(e.ids for e in encodings), np.int64, int(lengths.sum()))
    words = encoder.words(ids, encodings)
    tally.counts += np.bincount(ids, minlength=len(tally.counts))
    tally.words += int(words.sum())
    sentence, token = 0, 0
    for document in chunk:
        own = lengths[sentence : sentence + len(document.sentences)]
        sentence += len(document.sentences)
        size = int(own.sum())
        own = own[own > 0]
        if size:
            writer.add(document, ids[token : token + size], words[token : token + size], own)
            tally.documents[document.split] += 1
            tally.tokens[document.split] += size
            tally.sentences += len(own)
            bucket = size.bit_length()
            tally.lengths[bucket] = tally.lengths.get(bucket, 0) + 1
        token += size


# ---------------------------------------------------------------------- writing


class _Writer:
    """Collects documents by split and source, and writes a shard whenever one is full."""

    def __init__(self, folder: Path, vocabulary: int) -> None:
        self.folder = folder
        self.kind = np.uint16 if vocabulary <= 1 << 16 else np.uint32
        self.open: dict[tuple[str, str], list[tuple[Any, Any, Any]]] = {}
        self.sizes: dict[tuple[str, str], int] = {}
        self.shards: list[dict[str, Any]] = []

    def add(self, document: _Document, ids: Any, words: Any, sentences: Any) -> None:
        key = (document.split, document.source)
        if self.sizes.get(key, 0) + len(ids) > _SHARD:
            self._flush(key)
        self.open.setdefault(key, []).append((ids.astype(self.kind), words, sentences))
        self.sizes[key] = self.sizes.get(key, 0) + len(ids)

    def close(self) -> list[dict[str, Any]]:
        """Write what is left; the manifest's rows."""
        for key in sorted(self.open):
            self._flush(key)
        return self.shards

    def _flush(self, key: tuple[str, str]) -> None:
        documents = self.open.pop(key, [])
        self.sizes[key] = 0
        if not documents:
            return
        name = f"{key[0]}-{key[1]}-{len(self.shards):05}"
        sentences = np.concatenate([own for _, _, own in documents])
        parts = {
            "tokens": np.concatenate([ids for ids, _, _ in documents]),
            "words": np.packbits(np.concatenate([words for _, words, _ in documents])),
            "sentences": np.concatenate([[0], np.cumsum(sentences)]).astype(np.int32),
            "documents": np.cumsum([0, *(len(own) for _, _, own in documents)]).astype(np.int32),
        }
        files = {}
        for part, array in parts.items():
            file = self.folder / f"{name}.{part}.npy"
            np.save(file, array)
            files[part] = {"bytes": file.stat().st_size, "crc32": checksum(file)}
        counts = {"documents": len(documents), "sentences": len(sentences), "tokens": len(parts["tokens"])}
        self.shards.append({"name": name, "split": key[0], "source": key[1], **counts, "files": files})


def _report(tally: _Tally, meter: Meter, tokenizer: Tokenizer) -> Report:
    tokens = sum(tally.tokens.values())
    unknown = tokenizer.roles.get("unk_token")
    frequency = tally.counts[tally.counts > 0] / tokens
    return Report(
        documents=sum(tally.documents.values()),
        sentences=tally.sentences,
        tokens=tokens,
        words=tally.words,
        tokens_per_word=tokens / tally.words,
        unknown=int(tally.counts[tokenizer.id(unknown)]) / tokens if unknown else 0.0,
        duplicates=tally.repeated / tally.seen,
        valid_documents=tally.documents["valid"],
        valid_tokens=tally.tokens["valid"],
        split=meter.split,
        lengths={f"{1 << (b - 1)} to {(1 << b) - 1}": tally.lengths[b] for b in sorted(tally.lengths)},
        entropy=float(-(frequency * np.log(frequency)).sum()),
    )
