"""The driver: plans units, has them done, and joins the parts of each output as soon as all are there."""

import itertools
import os
import shutil
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from bothways.errors import BothwaysError
from bothways.scale.jobs import FileJob, Job
from bothways.scale.units import (
    COUNTS,
    Counts,
    Output,
    TellOf,
    Unit,
    done_of,
    parts_of,
    plan_output,
    planned,
    read_json,
    state_of,
    sum_of,
    unique_names,
    write_json,
)


class Execute(Protocol):
    """Does units, in any order; yields each with its counts as soon as it is done. `tell` hears how far others are."""

    def __call__(self, job: Job, units: Sequence[Unit], *, tell: TellOf) -> Iterator[tuple[Unit, Counts]]: ...


@dataclass(frozen=True)
class Progress:
    """How far a run is, with the parts that are begun. The total of rows is an estimate from the lines of the files."""

    parts: int
    all_parts: int
    rows: int
    all_rows: int
    bytes: int = 0
    """Of the files that are read, for `pack_files`."""
    all_bytes: int = 0


OnProgress = Callable[[Progress], None]


@dataclass(frozen=True)
class Target:
    """Where results go."""

    out: Path
    suffix: str
    """Of the result files."""
    is_folder: bool
    """One result for each input, in the folder `out`; else `out` is the result of the only input."""
    rows_per_part: int
    part_suffix: str = ""
    """Of the parts, if it differs from that of the results."""

    @property
    def home(self) -> Path:
        """The folder that has the plan."""
        return self.out if self.is_folder else parts_of(self.out)

    def counts_of(self, output: Path) -> Path:
        """The counts of a finished output of a folder."""
        return self.out / COUNTS / f"{output.name}.json"


@dataclass(frozen=True)
class Report:
    """Counts of all rows, of this call and of the calls that it continues."""

    outputs: list[Path]
    counts: Counts


def drive(
    job: FileJob, files: Sequence[Path], target: Target, execute: Execute, on_progress: OnProgress | None = None
) -> Report:
    """Do all units that are not done yet, and join the parts."""
    plan = {**job.plan(), "inputs": {str(file): state_of(file) for file in files}}
    plan["options"] = {**plan["options"], "rows_per_part": target.rows_per_part, "format": target.suffix}
    with planned(target.home, plan):
        outputs = _outputs(files, target)
        counts = _run(job, outputs, target, execute, on_progress)
        if target.is_folder:
            counts = sum_of(read_json(target.counts_of(output.path)) for output in outputs)
    return Report([output.path for output in outputs], counts)


def _run(
    job: FileJob, outputs: Sequence[Output], target: Target, execute: Execute, on_progress: OnProgress | None
) -> Counts:
    """Do what is left of the outputs. Of a single output file, return the counts."""
    unfinished = [output for output in outputs if output.units]
    by_unit = {unit: output for output in unfinished for unit in output.units}
    left = {output.path: len(output.units) for output in unfinished}
    counts: Counts = {}
    for unit in run_units(job, list(by_unit), sum(output.rows for output in unfinished), execute, on_progress):
        output = by_unit[unit]
        left[output.path] -= 1
        if not left[output.path]:
            counts = _finish(job, output, target)
    return counts


def run_units(
    job: Job, units: Sequence[Unit], rows: int, execute: Execute, on_progress: OnProgress | None, all_bytes: int = 0
) -> Iterator[Unit]:
    """Do units that are not done yet, about `rows` rows with the others. Yields all units, those done before first.

    `all_bytes`: of all units, if the job counts bytes.
    """
    before, todo = [], []
    for unit in units:
        found, left = done_of(unit)
        if left is None:
            before.append((unit, sum_of(counts for _, counts in found)))
        else:
            todo.append(unit)
    far: dict[Unit, tuple[int, int]] = {}  # the rows and bytes of each unit
    done = read = 0

    def tell(unit: Unit, counts: Counts) -> None:
        nonlocal done, read
        told, far[unit] = far.get(unit, (0, 0)), (counts["rows"], counts.get("bytes", 0))
        done, read = done + far[unit][0] - told[0], read + far[unit][1] - told[1]
        if on_progress:
            on_progress(Progress(len(ended), len(units), done, max(rows, done), min(read, all_bytes), all_bytes))

    ended = set[Unit]()
    for unit, counts in itertools.chain(before, execute(job, todo, tell=tell)):
        ended.add(unit)
        tell(unit, counts)
        yield unit


def _outputs(files: Sequence[Path], target: Target) -> list[Output]:
    names = unique_names(files, target.suffix) if target.is_folder else []
    paths = [target.out / name for name in names] or [target.out]
    with ThreadPoolExecutor() as pool:  # rows are counted, which takes a while for many files
        return list(pool.map(lambda file, path: _output(file, path, target), files, paths))


def _output(file: Path, path: Path, target: Target) -> Output:
    if target.is_folder and path.exists() and target.counts_of(path).exists():
        remove_parts(parts_of(path))
        return Output(path, read_json(target.counts_of(path))["rows"], ())
    return plan_output(file, path, target.rows_per_part, target.part_suffix or target.suffix)


def _finish(job: FileJob, output: Output, target: Target) -> Counts:
    """Join the parts; the counts of all. They are removed last, so a kill at any moment loses nothing."""
    units, counts = zip(*(one for unit in output.units for one in done_of(unit)[0]), strict=True)
    missing = next((unit.part for unit in units if not unit.part.exists()), None)
    if missing:
        raise BothwaysError(f"{missing} is missing: delete {output.parts} to start again", "no-file", missing)
    job.join([unit.part for unit in units], counts, output.path)
    whole = sum_of(counts)
    if target.is_folder:
        write_json(target.counts_of(output.path), whole)
    remove_parts(output.parts)
    return whole


def remove_parts(folder: Path) -> None:
    """Remove a folder of parts, or what a kill left of it: under another name, so that no part is without its plan."""
    removed = folder.with_name(f".{folder.name}.removed")
    shutil.rmtree(removed, ignore_errors=True)
    if folder.exists():
        os.rename(folder, removed)
        shutil.rmtree(removed, ignore_errors=True)
