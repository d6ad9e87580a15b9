"""`pack` over processes or machines: workers tokenise, the driver writes the shards that one process would write."""

import dataclasses
from collections.abc import Callable, Generator, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from bothways import atomic
from bothways.errors import BothwaysError
from bothways.model.box import model_folder
from bothways.model.fingerprint import fingerprint
from bothways.pretraining.pack import (
    ALL_HELD_OUT,
    NO_TEXT,
    DocumentPlaces,
    PackReport,
    PackTally,
    find_inputs,
    parse_share,
    write_packed,
)
from bothways.pretraining.tokenized import Document, Place, Tokenized, digest_of, tokenize
from bothways.progress import Watch, watch_nothing
from bothways.scale.bulk_options import DOCUMENTS_PER_PART
from bothways.scale.drive import Execute, OnProgress, remove_parts, run_units
from bothways.scale.jobs import Runner, in_encoding
from bothways.scale.on_ray import run_ray
from bothways.scale.processes import parse_processes, run_processes
from bothways.scale.turns import Teller
from bothways.scale.units import (
    Counts,
    Cursor,
    Unit,
    parts_of,
    plan_units,
    planned,
    read_json,
    require_rereadable,
    state_of,
)
from bothways.text.files import Each, Meter, read_documents
from bothways.text.segment import WordBoundaries
from bothways.text.sentences import split_sentences
from bothways.text.streams import named_encoding
from bothways.text.tokenizer import Tokenizer

_SUFFIX = ".npz"


@dataclass(frozen=True)
class PackJob:
    """What a worker does for `bothways pack`: documents to tokens. Splits and copies are the driver's."""

    model: str
    column: str | None
    each: Each
    words: WordBoundaries
    encoding: str = ""
    verb: ClassVar[str] = "pack"

    def plan(self) -> dict[str, Any]:
        return {"verb": self.verb, "options": asdict(self), "model": fingerprint(Path(self.model))}

    def open(self, device: str) -> Runner:
        tokenizer, meter = Tokenizer.load(self.model), Meter()
        kind = np.uint16 if tokenizer.size <= 1 << 16 else np.uint32
        cursor = Cursor(lambda file: read_documents(Path(file), field=self.column, each=self.each, meter=meter))

        def run(unit: Unit) -> Counts:
            cursor.seek(unit.file, unit.first)
            split, before, tell = meter.split, meter.bytes, Teller()
            documents = (Document(digest_of(text), split_sentences(text)) for text in cursor.take(unit.rows))
            chunks, rows = [], 0
            for chunk in tokenize(documents, tokenizer, self.words):
                chunks.append(chunk)
                rows += len(chunk[0])
                tell(rows=rows, bytes=meter.bytes - before)
            digests = np.array([document.digest for chunk, _ in chunks for document in chunk], np.uint64)
            _write_part(unit.part, [tokenized for _, tokenized in chunks], digests, kind)
            return {"rows": len(digests), "split": meter.split - split, "bytes": meter.bytes - before}

        return in_encoding(self.encoding, run)


def _write_part(path: Path, chunks: Sequence[Tokenized], digests: NDArray[np.uint64], kind: type) -> None:
    def joined(name: str, kind: type) -> NDArray[Any]:
        return np.concatenate([np.empty(0, kind), *(getattr(chunk, name).astype(kind) for chunk in chunks)])

    with atomic.new_file(path) as fresh:
        np.savez(
            fresh,
            ids=joined("ids", kind),
            words=np.packbits(joined("words", bool)),
            lengths=joined("lengths", np.int32),
            sentences=joined("sentences", np.int32),
            digests=digests,
        )


def _read_part(path: Path) -> tuple[Tokenized, NDArray[np.uint64]]:
    with np.load(path) as part:
        ids = part["ids"].astype(np.int64)
        words = np.unpackbits(part["words"], count=len(ids)).astype(bool)
        lengths, sentences = (part[name].astype(np.int64) for name in ("lengths", "sentences"))
        return Tokenized(ids, words, lengths, sentences), part["digests"]


def pack_files(
    inputs: Mapping[str, Sequence[Path | str]],
    model: Path | str,
    out: Path | str,
    *,
    valid: float | str = 0.0,
    valid_files: Sequence[Path | str] = (),
    dedup: bool = False,
    text: str | None = None,
    each: Each = "paragraphs",
    words: WordBoundaries = "pieces",
    devices: str = "",
    on: str = "",
    rows_per_part: int = DOCUMENTS_PER_PART,
    on_progress: OnProgress | None = None,
    watch: Watch = watch_nothing,
) -> PackReport:
    """`bothways.pack` in several processes (`devices` cpu:2), or `on` a Ray cluster.

    `model` is the folder or file of the tokenizer, `rows_per_part` the number of documents that a worker does at a
    time. The packed folder equals that of `bothways.pack`, byte for byte. If interrupted, the same call resumes.
    """
    model = model_folder(model)
    out, share, tokenizer = Path(out), parse_share(valid), Tokenizer.load(model)
    files = find_inputs(inputs, out, valid_files)
    require_rereadable([file for _, file in files])
    job, home = PackJob(str(model.absolute()), text, each, words, named_encoding()), parts_of(out)
    execute = _where(devices, on)
    held_out = [str(file) for (split, _), file in files if split == "valid"]
    plan = {**job.plan(), "inputs": {f"{source}={file}": state_of(file) for (_, source), file in files}}
    plan["options"] |= {"rows_per_part": rows_per_part, "valid": held_out}
    with planned(home, plan):
        units, rows = _plan(files, home, rows_per_part)
        size = sum(state_of(file)[0] for _, file in files)
        for _ in run_units(job, [unit for _, unit in units], rows, execute, on_progress, size):
            pass
        tally, meter = PackTally(np.zeros(tokenizer.size, np.int64)), Meter()
        meter.split = sum(read_json(unit.counts)["split"] for _, unit in units)
        chunks = _chunks(watch(units, "writing"), DocumentPlaces(share, dedup, tally))
        try:
            report = write_packed(out, files, tokenizer, chunks, tally, meter)
        except BothwaysError as error:
            if error.code in (NO_TEXT, ALL_HELD_OUT):  # the parts are of no use
                remove_parts(home)
            raise
        remove_parts(home)
    return report


def _where(devices: str, on: str) -> Execute:
    if on:
        return partial(run_ray, address=on, devices=devices or "cpu")
    return partial(run_processes, devices=["cpu"] * parse_processes(devices))


def _plan(files: Sequence[tuple[Place, Path]], home: Path, rows_per_part: int) -> tuple[list[tuple[Place, Unit]], int]:
    """The units of all files, with the place of each, and the rows that they are expected to have."""
    units: list[tuple[Place, Unit]] = []
    total = 0
    for place, file in files:
        own, rows = plan_units(file, home, rows_per_part, _SUFFIX, len(units))
        units += [(place, unit) for unit in own]
        total += rows
    return units, total


def _chunks(
    units: Iterable[tuple[Place, Unit]], placed: Callable[[int, Place], Place | None]
) -> Generator[tuple[list[Place], Tokenized], None, None]:
    """The documents of all parts in order, without those that are dropped."""
    for place, unit in units:
        tokenized, digests = _read_part(unit.part)
        places = [placed(digest, place) for digest in digests.tolist()]
        kept = np.array([found is not None for found in places], bool)
        yield [found for found in places if found is not None], _only(tokenized, kept)


def _only(tokenized: Tokenized, kept: NDArray[np.bool_]) -> Tokenized:
    """These documents only."""
    if kept.all():
        return tokenized
    sentences = np.repeat(kept, tokenized.sentences)
    tokens = np.repeat(sentences, tokenized.lengths)
    return dataclasses.replace(
        tokenized,
        ids=tokenized.ids[tokens],
        words=tokenized.words[tokens],
        lengths=tokenized.lengths[sentences],
        sentences=tokenized.sentences[kept],
    )
