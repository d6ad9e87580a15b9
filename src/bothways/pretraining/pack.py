"""Tokenise raw text into packed shards. Streams in constant memory."""

import hashlib
import itertools
import json
import math
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import tokenizers
from numpy.typing import NDArray

from bothways import atomic
from bothways.errors import BothwaysError
from bothways.hash_rng import mix, uniform
from bothways.prefetch import prefetch
from bothways.pretraining.shards import FORMAT, PARTS, ShardWriter, checksum, manifest_checksum
from bothways.text.files import Each, Meter, find_files, read_documents
from bothways.text.segment import Segmenter, WordBoundaries, find_segmenter, word_starts
from bothways.text.sentences import split_sentences
from bothways.text.tokenizer import FILES as TOKENIZER_FILES
from bothways.text.tokenizer import Tokenizer

_CHUNK = 1 << 19  # characters tokenised at once: enough to keep all cores busy, about 30 MB of encodings


@dataclass(frozen=True)
class PackReport:
    """Statistics of packed text."""

    documents: int
    sentences: int
    tokens: int
    words: int
    tokens_per_word: float
    unknown: float
    """Share of the tokens that are unknown to the vocabulary."""
    duplicates: float
    """Share of the documents that are exact copies of an earlier one, dropped or not."""
    valid_documents: int
    valid_tokens: int
    split: int
    """Number of documents that were so long that they were packed in parts."""
    lengths: dict[str, int]
    """Number of documents by their length in tokens."""
    entropy: float
    """Unigram entropy in nats: the loss of a model that knows only token frequencies."""


@dataclass(frozen=True)
class _Document:
    source: str
    split: str
    sentences: list[str]


@dataclass
class _Tally:
    """Running counts for the report."""

    counts: NDArray[np.int64]
    """Occurrences of each token id."""
    documents: dict[str, int] = field(default_factory=lambda: {"train": 0, "valid": 0})
    tokens: dict[str, int] = field(default_factory=lambda: {"train": 0, "valid": 0})
    sentences: int = 0
    words: int = 0
    seen: int = 0
    repeated: int = 0
    lengths: dict[int, int] = field(default_factory=dict)


def pack(
    inputs: Path | str | Sequence[Path | str] | Mapping[str, Sequence[Path | str]],
    tokenizer: Tokenizer,
    out: Path | str,
    *,
    valid: float | str = 0.0,
    valid_files: Sequence[Path | str] = (),
    dedup: bool = False,
    column: str = "text",
    each: Each = "paragraphs",
    words: WordBoundaries | Segmenter = "pieces",
    on_bytes: Callable[[int, int], None] | None = None,
) -> PackReport:
    """Turn text files into a folder of token shards.

    `inputs` are files, folders or patterns, or a mapping from source names to them. A share `valid` of the documents,
    or all of `valid_files`, is held out. The choice depends on the text alone, so a document and its copies are always
    in the same split. `words` is the word segmentation for whole-word masking: Chinese needs the name of a segmenter, a
    function, or text with spaces between words. `on_bytes(done, total)` reports progress.
    """
    out, share = Path(out), parse_share(valid)
    held_out = find_files(valid_files) if valid_files else []
    sources = _sources(inputs, out, held_out)
    files = [("valid", next(iter(sources)), file) for file in held_out]
    files += [("train", name, file) for name, paths in sources.items() for file in paths]
    total = sum(file.stat().st_size for _, _, file in files if file.exists())
    meter, tally = Meter(), _Tally(np.zeros(tokenizer.size, np.int64))
    documents = _documents(files, share, dedup, column, each, meter, tally)
    with atomic.new_folder(out, replaces=_owned(out)) as folder:
        segmenter = words if callable(words) else find_segmenter(words)
        writer, encoder = ShardWriter(folder, tokenizer.size), _Encoder(tokenizer, segmenter)
        # Three threads: one reads and splits, one tokenises (on all cores), this one writes.
        with closing(prefetch(_chunks(documents), 2)) as chunks, closing(prefetch(encoder.run(chunks), 2)) as encoded:
            for chunk, encodings in encoded:
                _write(writer, encoder, chunk, encodings, tally)
                if on_bytes:
                    on_bytes(meter.bytes, total)
        if not tally.tokens["train"]:
            names = tuple(str(file) for _, _, file in files[:3])
            raise BothwaysError(f"no text to train on was found in {', '.join(names)}", "no-text", names)
        report = _report(tally, meter, tokenizer)
        tokenizer.save(folder)
        checksums = {file.name: checksum(file) for file in sorted(folder.iterdir()) if file.name in TOKENIZER_FILES}
        manifest: dict[str, Any] = {
            "format": FORMAT,
            "tokenizer": {"fingerprint": tokenizer.fingerprint, "pieces": tokenizer.size, "files": checksums},
            "sources": {name: [file.name for file in paths] for name, paths in sources.items()},
            "report": asdict(report),
            "shards": writer.close(),
        }
        manifest = {**manifest, "checksum": manifest_checksum(manifest)}
        (folder / "manifest.json").write_text(json.dumps(manifest, indent=1, ensure_ascii=False) + "\n", "utf-8")
    return report


def _sources(
    inputs: Path | str | Sequence[Path | str] | Mapping[str, Sequence[Path | str]], out: Path, held_out: Sequence[Path]
) -> dict[str, list[Path]]:
    """The files by source, without held-out files and without those of an older packed folder in `out`."""
    if isinstance(inputs, Path | str):
        inputs = [inputs]
    named = inputs if isinstance(inputs, Mapping) else {default_source(out): inputs}
    if not named:
        raise BothwaysError("no input file was given", "no-input")
    taken = {file.resolve() for file in held_out}
    sources = {}
    for name, paths in named.items():
        if not re.fullmatch(r"[\w.-]+", name):
            raise BothwaysError(
                f"{name!r} cannot be the name of a source: use letters, digits, dots, hyphens and underscores",
                "bad-name",
                name,
            )
        files = [f for f in find_files(paths) if f.resolve() not in taken and out.resolve() not in f.resolve().parents]
        sources[name] = files
    return sources


def default_source(out: Path) -> str:
    """The name of a source without one: that of the output folder."""
    return re.sub(r"[^\w.-]+", "-", out.name) or "text"


def parse_share(written: float | str) -> float:
    """A share from a number or a percentage: 0.005 or "0.5%"."""
    try:
        text = str(written).strip()
        share = float(text[:-1]) / 100 if text.endswith("%") else float(text)
    except ValueError:
        share = math.nan
    if not 0 <= share < 1:
        raise BothwaysError(
            f"{written!r} is not a share below 1: expected a number such as 0.005 or 0.5%", "out-of-range", written
        )
    return share


def _owned(out: Path) -> list[str]:
    """The files of an older packed folder in `out`, which may be replaced; none if it is not one."""
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
    """Held-out files come first, so that `dedup` drops copies of their documents from the training text."""
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
    """A set of 64-bit numbers at eight bytes each: a Python set takes ten times as much."""

    def __init__(self) -> None:
        self._old = np.empty(0, np.uint64)
        self._new: set[int] = set()

    def add(self, number: int) -> bool:
        """Add a number; whether it was there already."""
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
    """Sentences to ids and word starts. "[MASK]" in a raw text is ordinary text, not the special token."""

    def __init__(self, tokenizer: Tokenizer, segmenter: Segmenter | None) -> None:
        self.segmenter = segmenter
        self.backend = tokenizers.Tokenizer.from_str(tokenizer.backend.to_str())
        self.backend.encode_special_tokens = True
        self.starts: NDArray[np.bool_] | None = None
        self.special_text: re.Pattern[str] | None = None
        """The special tokens as text, which must be broken up: Unigram has them in its vocabulary."""
        if tokenizer.kind == "Unigram":
            specials = sorted((tokenizer.piece(i) for i in tokenizer.special_ids), key=len, reverse=True)
            self.special_text = re.compile("|".join(map(re.escape, specials)))
        if tokenizer.kind == "WordPiece":
            prefix = self.backend.model.continuing_subword_prefix
            self.starts = np.array([not piece.startswith(prefix) for piece in tokenizer.pieces])

    def run(self, chunks: Iterable[list[_Document]]) -> Iterator[tuple[list[_Document], list[tokenizers.Encoding]]]:
        """The chunks, and an encoding for each of their sentences."""
        # The fast encoder returns no word boundaries; WordPiece marks them in its pieces.
        is_fast = self.starts is not None and self.segmenter is None
        encode = self.backend.encode_batch_fast if is_fast else self.backend.encode_batch
        for chunk in chunks:
            texts = [sentence for document in chunk for sentence in document.sentences]
            if self.special_text is not None:
                texts = [self.special_text.sub(lambda found: f"{found[0][0]} {found[0][1:]}", text) for text in texts]
            yield chunk, encode(texts, add_special_tokens=False)

    def words(
        self,
        ids: NDArray[np.int64],
        lengths: NDArray[np.int64],
        sentences: Iterable[str],
        encodings: Sequence[tokenizers.Encoding],
    ) -> NDArray[np.bool_]:
        """Whether a word starts at each token. The first token of a sentence always starts one."""
        if self.starts is not None:
            starts = self.starts[ids]
        else:
            numbers = itertools.chain.from_iterable(e.word_ids for e in encodings)
            words = np.fromiter((-1 if n is None else n for n in numbers), np.int64, len(ids))
            starts = np.ones(len(ids), bool)
            starts[1:] = words[1:] != words[:-1]
        begins = np.cumsum(lengths) - lengths
        if self.segmenter is not None:
            for sentence, encoding, begin in zip(sentences, encodings, begins, strict=True):
                firsts = [start for start, _ in encoding.offsets]
                known = np.isin(firsts, word_starts(sentence, self.segmenter(sentence)))
                starts[begin : begin + len(firsts)] &= known
        starts[begins[lengths > 0]] = True
        return starts


def _write(
    writer: ShardWriter,
    encoder: _Encoder,
    chunk: Sequence[_Document],
    encodings: Sequence[tokenizers.Encoding],
    tally: _Tally,
) -> None:
    lengths = np.fromiter(map(len, encodings), np.int64, len(encodings))
    ids = np.fromiter(itertools.chain.from_iterable(e.ids for e in encodings), np.int64, int(lengths.sum()))
    sentences = (sentence for document in chunk for sentence in document.sentences)
    words = encoder.words(ids, lengths, sentences, encodings)
    tally.counts += np.bincount(ids, minlength=len(tally.counts))
    tally.words += int(words.sum())
    sentence, token = 0, 0
    for document in chunk:
        own = lengths[sentence : sentence + len(document.sentences)]
        sentence += len(document.sentences)
        size = int(own.sum())
        own = own[own > 0]
        if size:
            writer.add(document.split, document.source, ids[token : token + size], words[token : token + size], own)
            tally.documents[document.split] += 1
            tally.tokens[document.split] += size
            tally.sentences += len(own)
            bucket = size.bit_length()
            tally.lengths[bucket] = tally.lengths.get(bucket, 0) + 1
        token += size


def _report(tally: _Tally, meter: Meter, tokenizer: Tokenizer) -> PackReport:
    tokens = sum(tally.tokens.values())
    unknown = tokenizer.roles.get("unk_token")
    frequency = tally.counts[tally.counts > 0] / tokens
    return PackReport(
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
