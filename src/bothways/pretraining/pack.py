"""Tokenise raw text into packed shards. Streams in constant memory."""

import json
import math
import re
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from contextlib import ExitStack, closing
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from bothways import atomic
from bothways.errors import BothwaysError
from bothways.hash_rng import mix, uniform
from bothways.pretraining.shards import FORMAT, PARTS, ShardWriter, checksum, manifest_checksum
from bothways.pretraining.tokenized import Document, Place, Tokenized, digest_of, tokenize
from bothways.text.files import Each, Meter, find_files, read_documents
from bothways.text.frames import as_files
from bothways.text.segment import Segmenter, WordBoundaries
from bothways.text.sentences import split_sentences
from bothways.text.tokenizer import FILES as TOKENIZER_FILES
from bothways.text.tokenizer import Tokenizer

NO_TEXT, ALL_HELD_OUT = "no-text", "all-held-out"
"""Codes of errors: there is nothing to train on."""


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


@dataclass
class PackTally:
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
    inputs: Any,
    tokenizer: Tokenizer,
    out: Path | str,
    *,
    valid: float | str = 0.0,
    valid_files: Sequence[Path | str] = (),
    dedup: bool = False,
    text: str | None = None,
    each: Each = "paragraphs",
    words: WordBoundaries | Segmenter = "pieces",
    on_bytes: Callable[[int, int], None] | None = None,
) -> PackReport:
    """Turn text files into a folder of token shards.

    `inputs` are files, folders or patterns, or a table in memory (pandas, polars, datasets, pyarrow), whose rows are
    documents; or a mapping from source names to these. A share `valid` of the documents,
    or all of `valid_files`, is held out. The choice depends on the text alone, so a document and its copies are always
    in the same split. `words` is the word segmentation for whole-word masking: Chinese needs the name of a segmenter, a
    function, or text with spaces between words. `on_bytes(done, total)` reports progress.
    """
    out, share = Path(out), parse_share(valid)
    with ExitStack() as held:
        if isinstance(inputs, Mapping):
            inputs = {name: held.enter_context(as_files(some)) for name, some in inputs.items()}
        else:
            inputs = held.enter_context(as_files(inputs))
        files = find_inputs(inputs, out, valid_files)
        meter, tally = Meter(), PackTally(np.zeros(tokenizer.size, np.int64))
        total = sum(file.stat().st_size for _, file in files if file.exists())

        def chunks() -> Generator[tuple[list[Place], Tokenized], None, None]:
            documents = _documents(files, share, dedup, text, each, meter, tally)
            for chunk, tokenized in tokenize(documents, tokenizer, words):
                yield [document.place for document in chunk], tokenized
                if on_bytes:
                    on_bytes(meter.bytes, total)

        return write_packed(out, files, tokenizer, chunks(), tally, meter)


def write_packed(
    out: Path,
    files: Sequence[tuple[Place, Path]],
    tokenizer: Tokenizer,
    chunks: Generator[tuple[list[Place], Tokenized], None, None],
    tally: PackTally,
    meter: Meter,
) -> PackReport:
    """Write tokenised documents, with the place of each, to a packed folder."""
    with atomic.new_folder(out, replaces=_owned(out)) as folder, closing(chunks):
        writer = ShardWriter(folder, tokenizer.size)
        for places, tokenized in chunks:
            _write(writer, places, tokenized, tally)
        if not tally.tokens["train"]:
            raise _nothing_to_train_on(files, tally)
        report = _report(tally, meter, tokenizer)
        tokenizer.save(folder)
        checksums = {file.name: checksum(file) for file in sorted(folder.iterdir()) if file.name in TOKENIZER_FILES}
        sources: dict[str, list[str]] = {}
        for (split, source), file in files:
            sources.setdefault(source, []).extend([file.name] if split == "train" else [])
        manifest: dict[str, Any] = {
            "format": FORMAT,
            "tokenizer": {"fingerprint": tokenizer.fingerprint, "pieces": tokenizer.size, "files": checksums},
            "sources": sources,
            "report": asdict(report),
            "shards": writer.close(),
        }
        manifest = {**manifest, "checksum": manifest_checksum(manifest)}
        (folder / "manifest.json").write_text(json.dumps(manifest, indent=1, ensure_ascii=False) + "\n", "utf-8")
    return report


def _nothing_to_train_on(files: Sequence[tuple[Place, Path]], tally: PackTally) -> BothwaysError:
    own = [str(file) for (split, _), file in files if split == "train"]
    if not own:
        return BothwaysError("all files are held out by `valid`: name others to train on", ALL_HELD_OUT)
    if len(own) < len(files) or not (count := tally.documents["valid"]):
        return BothwaysError(f"no text to train on was found in {', '.join(own[:3])}", NO_TEXT, tuple(own[:3]))
    are = "the text is one document, and it is" if count == 1 else f"all {count:,} documents are"
    return BothwaysError(
        f"{are} held out, so that nothing is left to train on: give more text, with empty lines between its documents, "
        "`each` lines if every line is a document, or a smaller `valid`",
        ALL_HELD_OUT,
        count,
    )


def find_inputs(
    inputs: Path | str | Sequence[Path | str] | Mapping[str, Sequence[Path | str]],
    out: Path,
    valid_files: Sequence[Path | str],
) -> list[tuple[Place, Path]]:
    """The files with their split and source. Held-out files come first, so that copies of their documents are found."""
    held_out = find_files(valid_files) if valid_files else []
    sources = _sources(inputs, out, held_out)
    files = [(("valid", next(iter(sources))), file) for file in held_out]
    return files + [(("train", name), file) for name, paths in sources.items() for file in paths]


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
    files: Sequence[tuple[Place, Path]],
    share: float,
    dedup: bool,
    column: str | None,
    each: Each,
    meter: Meter,
    tally: PackTally,
) -> Iterator[Document]:
    placed = DocumentPlaces(share, dedup, tally)
    for place, file in files:
        for text in read_documents(file, field=column, each=each, meter=meter):
            digest = digest_of(text)
            if (chosen := placed(digest, place)) is not None:
                yield Document(digest, split_sentences(text), chosen)


class DocumentPlaces:
    """Holds out a share of the documents, and counts and drops copies. Gets all documents, in order."""

    def __init__(self, share: float, dedup: bool, tally: PackTally) -> None:
        self.share, self.dedup, self.tally, self.seen = share, dedup, tally, _Seen()

    def __call__(self, digest: int, place: Place) -> Place | None:
        """The place of a document from a file with this place; None if it is dropped."""
        self.tally.seen += 1
        if self.seen.add(digest):
            self.tally.repeated += 1
            if self.dedup:
                return None
        is_held_out = place[0] == "valid" or float(uniform(mix(np.uint64(digest)))) < self.share
        return "valid" if is_held_out else "train", place[1]


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


# ---------------------------------------------------------------------- writing


def _write(writer: ShardWriter, places: Sequence[Place], tokenized: Tokenized, tally: PackTally) -> None:
    ids, words = tokenized.ids, tokenized.words
    tally.counts += np.bincount(ids, minlength=len(tally.counts))
    tally.words += int(words.sum())
    sentence, token = 0, 0
    for (split, source), count in zip(places, tokenized.sentences.tolist(), strict=True):
        own = tokenized.lengths[sentence : sentence + count]
        sentence += count
        size = int(own.sum())
        own = own[own > 0]
        if size:
            writer.add(split, source, ids[token : token + size], words[token : token + size], own)
            tally.documents[split] += 1
            tally.tokens[split] += size
            tally.sentences += len(own)
            bucket = size.bit_length()
            tally.lengths[bucket] = tally.lengths.get(bucket, 0) + 1
        token += size


def _report(tally: PackTally, meter: Meter, tokenizer: Tokenizer) -> PackReport:
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
