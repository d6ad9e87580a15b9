"""Changes an index: builds it, adds and deletes documents, and drops what was deleted.

Documents become parts, each of which appears as a whole. When all are there, they are joined into a segment, and then
the manifest is replaced, which makes the segment count. A kill at any moment leaves the old index and the parts; the
same call goes on after the last part.
"""

import shutil
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from itertools import chain, islice
from pathlib import Path
from typing import Protocol

import numpy as np

from bothways import atomic
from bothways.data.retrieval import Document
from bothways.data.sources import Paths
from bothways.engine.chunks import chunks
from bothways.engine.reader import Tally
from bothways.errors import BothwaysError
from bothways.progress import Watch
from bothways.search.documents import Corpus, Hashes, find_corpus, hashes_of, refuse_repeated
from bothways.search.embed import Embedder
from bothways.search.hnsw import MANY, has_usearch
from bothways.search.manifest import NAME, Manifest, Pending, Settings, difference, read_manifest
from bothways.search.segment import DocumentBlock, Faster, Segment, write_segment

SEGMENTS, PARTS = "segments", "parts"
_SHARE = {"cuda": 8.0}
"""Parts for a GPU are larger: it is idle from the end of one to the beginning of the next."""


class PartMaker(Protocol):
    """Makes the parts of a corpus that are not there yet."""

    @property
    def rows_per_part(self) -> int: ...
    def __call__(self, parts: Path, corpus: Corpus, embedder: Embedder, watch: Watch) -> None: ...


class InOrder:
    """In this process, one part after the other."""

    rows_per_part = 0

    def __call__(self, parts: Path, corpus: Corpus, embedder: Embedder, watch: Watch) -> None:
        have = [len(part.ids) for part in _parts(parts)]
        documents = watch(corpus, "embedding", [str(file.path) for file in corpus.files])
        rest = islice(documents, sum(have), None)
        for number, (block, tally) in enumerate(embedded(rest, embedder), len(have)):
            write_segment(parts / f"part-{number:06}", [block], embedder.width, tally)


def embedded(documents: Iterable[Document], embedder: Embedder) -> Iterator[tuple[DocumentBlock, Tally]]:
    """Documents with their vectors and counts, as many at a time as keep the device busy."""
    for some in chunks(documents, embedder.device, _SHARE.get(embedder.device.type, 1.0)):
        tally = Tally()
        yield embedder.block(some, tally), tally


def build(
    home: Path, corpus: Paths, settings: Settings, embedder: Embedder, field: str | None, watch: Watch, make: PartMaker
) -> None:
    """Build an index, or go on with one that was begun."""
    files = find_corpus(corpus, home)
    plan = Pending({str(file.path): _state_of(file.path) for file in files}, field, make.rows_per_part)
    with atomic.only_writer(home):
        manifest = read_manifest(home)
        if manifest is None:
            if others := [file.name for file in home.iterdir() if not file.name.startswith(".")]:
                says = f"{home} already holds other files, such as {others[0]}: name a new or empty folder"
                raise BothwaysError(says, "other-files", home)
            manifest = Manifest(settings, embedder.width, embedder.probe())
        elif changed := difference(manifest.settings, settings):
            raise BothwaysError(f"{home} was begun with {changed}: delete it to start again", "other-plan", home)
        elif manifest.segments:
            if plan.has_read(manifest.built_from):
                return _tidy(home, manifest)
            says = f"{home} already holds an index of other files: add to it, or name another `out`"
            raise BothwaysError(says, "other-plan", home)
        _ingest(home, manifest, plan, Corpus(files, field), embedder, watch, make)


def add(home: Path, corpus: Paths, embedder: Embedder, field: str | None, watch: Watch, make: PartMaker) -> None:
    """Add documents to an index, or go on with an addition that was begun; nothing if it was the last change."""
    files = find_corpus(corpus, home)
    plan = Pending({str(file.path): _state_of(file.path) for file in files}, field, make.rows_per_part)
    with atomic.only_writer(home):
        manifest = require_manifest(home)
        if plan.has_read(manifest.added_from):
            return _tidy(home, manifest)
        _ingest(home, manifest, plan, Corpus(files, field, manifest.numbered), embedder, watch, make)


def delete(home: Path, ids: Sequence[str]) -> None:
    """Delete documents by id. Either all are deleted or, if the index lacks one, none."""
    with atomic.only_writer(home):
        manifest = require_manifest(home)
        deleted = {name: set(manifest.deleted.get(name, ())) for name in manifest.segments}
        segments = [(name, Segment(home / SEGMENTS / name, deleted[name])) for name in manifest.segments]
        for id in dict.fromkeys(ids):
            found = [(name, place) for name, segment in segments if (place := segment.find(id)) is not None]
            if not found:
                raise BothwaysError(f"{home} has no document {id!r}: nothing was deleted", "unknown-document", id)
            name, place = found[0]
            deleted[name].add(place)
        kept = {name: sorted(places) for name, places in deleted.items() if places}
        manifest.changed(deleted=kept).write(home)


def compact(home: Path) -> None:
    """Join all segments into one, without the documents that were deleted."""
    with atomic.only_writer(home):
        manifest = require_manifest(home)
        segments = open_segments(home, manifest)
        if len(segments) < 2 and not manifest.deleted:
            return _tidy(home, manifest)
        name = _join(home, manifest, lambda: iter(segments))
        after = manifest.changed(segments=(name,), deleted={})
        after.write(home)
        _tidy(home, after)


def require_manifest(home: Path) -> Manifest:
    """The manifest of a finished index."""
    manifest = read_manifest(home) if home.is_dir() else None
    if manifest is None:
        raise BothwaysError(f"there is no index in {home}: make one with `search build`", "no-index", home)
    if not manifest.segments:
        raise BothwaysError(
            f"{home} is not finished: run the command that builds it again to resume", "unfinished", home
        )
    return manifest


def open_segments(home: Path, manifest: Manifest) -> list[Segment]:
    """The segments of an index."""
    return [Segment(home / SEGMENTS / name, manifest.deleted.get(name, ())) for name in manifest.segments]


# ---------------------------------------------------------------------- from documents to a segment


def _ingest(
    home: Path,
    manifest: Manifest,
    plan: Pending,
    corpus: Corpus,
    embedder: Embedder,
    watch: Watch,
    make: PartMaker,
) -> None:
    _tidy(home, manifest)
    parts = home / PARTS
    if manifest.pending is not None and manifest.pending != plan and any(parts.glob("part-*")):
        begun = ", ".join(manifest.pending.inputs)
        says = f"{home} has the beginning of another work, with {begun}"
        raise BothwaysError(f"{says}: finish it, or delete {parts} to drop it", "other-plan", home)
    embedder.require_same(manifest.probe, home)
    names = [str(file.path) for file in corpus.files]
    hashes = hashes_of(watch(corpus, "reading", names))
    if not len(hashes):
        raise BothwaysError(f"no text was found in {', '.join(names)}", "no-text", tuple(names))
    refuse_repeated(hashes, _known(home, manifest), lambda: corpus, home)
    pending = replace(manifest, pending=plan)
    with _beginning(home, pending):
        make(parts, corpus, embedder, watch)
    name = _join(home, pending, lambda: _parts(parts))
    first = {"added_from": plan} if manifest.segments else {"built_from": plan}
    after = manifest.changed(segments=(*manifest.segments, name), numbered=corpus.last, pending=None, **first)
    after.write(home)
    _tidy(home, after)


@contextmanager
def _beginning(home: Path, pending: Manifest) -> Iterator[None]:
    """The manifest says what is begun. After an error before the first part is done, it says what it said before."""
    before = read_manifest(home)
    pending.write(home)
    try:
        with atomic.made_folder(home / PARTS):
            yield
    except BaseException:
        if not any((home / PARTS).glob("part-*")):
            shutil.rmtree(home / PARTS, ignore_errors=True)  # what workers that were ended have left
            before.write(home) if before else (home / NAME).unlink()
        raise


def _known(home: Path, manifest: Manifest) -> Hashes:
    """The hashes of the ids that the index has."""
    found = [segment.ids[segment.live] for segment in open_segments(home, manifest)]
    return np.concatenate(found) if found else np.zeros(0, np.uint64)


def _parts(folder: Path) -> Iterator[Segment]:
    """One after the other: thousands of parts that are open at once would be too many maps of files."""
    return (Segment(part) for part in sorted(folder.glob("part-*")) if part.is_dir())


def _join(home: Path, manifest: Manifest, sources: Callable[[], Iterator[Segment]]) -> str:
    """Write a segment with all documents of other ones that were not deleted; its name."""
    name = f"{max(map(int, manifest.segments), default=-1) + 1:06}"
    tally, rows, settings = Tally(), 0, manifest.settings
    for source in sources():
        tally.add(source.tally)
        rows += len(source.vectors)
    is_many = settings.ann is None and not settings.quantize and rows > MANY and has_usearch()
    faster = Faster(settings.quantize, bool(settings.ann) or is_many)
    blocks = chain.from_iterable(source.blocks() for source in sources())
    write_segment(home / SEGMENTS / name, blocks, manifest.width, tally, faster)
    return name


def _tidy(home: Path, manifest: Manifest) -> None:
    """Remove what a finished or killed change has left."""
    atomic.clear(home)
    for folder in (home / SEGMENTS).glob("*"):
        if folder.name not in manifest.segments:
            shutil.rmtree(folder)
    for folder in (home / PARTS).glob(".*") if manifest.pending else [home / PARTS]:
        shutil.rmtree(folder, ignore_errors=True)


def _state_of(file: Path) -> list[int]:
    """Size and time of an input."""
    return [file.stat().st_size, file.stat().st_mtime_ns]
