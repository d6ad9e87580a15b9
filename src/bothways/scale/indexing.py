"""`search build` and `search add` over processes or machines: workers embed, the driver joins their parts."""

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, ClassVar

from bothways.engine.reader import Tally
from bothways.errors import BothwaysError
from bothways.predict.source import open_source
from bothways.progress import Watch
from bothways.scale.bulk import where
from bothways.scale.bulk_options import DOCUMENTS_PER_PART
from bothways.scale.drive import Execute, OnProgress, run_units
from bothways.scale.jobs import Runner, in_encoding, model_facts
from bothways.scale.turns import Turn
from bothways.scale.units import Counts, Cursor, Unit, plan_units
from bothways.search.documents import Corpus, CorpusFile
from bothways.search.embed import Embedder
from bothways.search.ingest import embedded
from bothways.search.manifest import Settings
from bothways.search.segment import write_segment
from bothways.text.streams import named_encoding


@dataclass(frozen=True)
class IndexJob:
    """What a worker does for an index: documents to passages and vectors."""

    settings: Settings
    field: str | None
    files: Mapping[str, tuple[CorpusFile, int]]
    """By name: each file, and the number before its first document."""
    dtype: str
    encoding: str = ""
    verb: ClassVar[str] = "search"

    def plan(self) -> dict[str, Any]:
        model = model_facts(self.settings.model, self.settings.base)
        return {"verb": self.verb, "options": asdict(self.settings), "model": model}

    def open(self, device: str) -> Runner:
        source = open_source(self.settings.model, self.settings.base, device, self.dtype)
        embedder = Embedder(source, self.settings)

        def documents(file: str) -> Any:
            own, first = self.files[file]
            return iter(Corpus([own], self.field, first))

        cursor = Cursor(documents)

        def run(unit: Unit) -> Counts:
            cursor.seek(unit.file, unit.first)
            total = Tally()

            def blocks() -> Any:
                turn = Turn(cursor.take(unit.rows), "whole")
                for block, tally in turn.answers(embedded(turn, embedder), lambda found: found[1].texts):
                    total.add(tally)
                    yield block

            write_segment(unit.part, blocks(), embedder.width, total)
            return {"rows": total.texts}

        return in_encoding(self.encoding, run)


@dataclass(frozen=True)
class IndexWorkers:
    """Makes the parts of an index in workers."""

    execute: Execute
    rows_per_part: int
    dtype: str
    on_progress: OnProgress | None

    def __call__(self, parts: Path, corpus: Corpus, embedder: Embedder, watch: Watch) -> None:
        settings = embedder.settings
        if settings.model == "":
            says = "workers open the model themselves: give the folder of a model instead of a Model"
            raise BothwaysError(says, "no-model", settings.model)
        files = {str(file.path): (file, first) for file, first in zip(corpus.files, corpus.firsts, strict=True)}
        units: list[Unit] = []
        for file in corpus.files:
            units += plan_units(file.path, parts, self.rows_per_part, "", len(units))[0]
        job = IndexJob(settings, corpus.field, files, self.dtype, named_encoding())
        for _ in run_units(job, units, corpus.count, self.execute, self.on_progress):
            pass


def index_workers(
    devices: str = "",
    on: str = "",
    *,
    rows_per_part: int = DOCUMENTS_PER_PART,
    dtype: str = "auto",
    on_progress: OnProgress | None = None,
) -> IndexWorkers:
    """For `make_parts` of `Index.build` and `Index.add`: several processes (`devices`), or `on` a Ray cluster.

    `rows_per_part`: documents that a worker does at a time. For `devices` and `on` see `encode_files`.
    """
    return IndexWorkers(where("auto", devices, on), rows_per_part, dtype, on_progress)
