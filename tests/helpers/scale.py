"""Jobs whose workers wait, so that tests can kill them in the middle of their work."""

import os
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bothways.scale import encode_files
from bothways.scale.drive import Progress
from bothways.scale.jobs import FileJob, Runner
from bothways.scale.units import Counts, Unit


@dataclass(frozen=True)
class Gated:
    """A job that stops before some units: the worker leaves its process id in a folder, and waits for a file `go`."""

    job: FileJob
    folder: Path
    firsts: tuple[int, ...]
    """The units, by their first row."""

    def plan(self) -> dict[str, Any]:
        return self.job.plan()

    def open(self, device: str) -> Runner:
        runner = self.job.open(device)

        def run(unit: Unit) -> Counts:
            if unit.first in self.firsts:
                (self.folder / f"{unit.first}-{os.getpid()}").touch()
                wait_for((self.folder / "go").exists)
            return runner(unit)

        return run

    def join(self, parts: Sequence[Path], counts: Sequence[Counts], out: Path) -> None:
        self.job.join(parts, counts, out)


@dataclass(frozen=True)
class Broken:
    """A job that fails in a way that no user can cause."""

    job: FileJob

    def plan(self) -> dict[str, Any]:
        return self.job.plan()

    def open(self, device: str) -> Runner:
        def run(unit: Unit) -> Counts:
            raise ZeroDivisionError("a bug")

        return run

    def join(self, parts: Sequence[Path], counts: Sequence[Counts], out: Path) -> None:
        raise AssertionError


def wait_for(holds: Callable[[], Any], seconds: float = 100) -> Any:
    """What `holds` returns, as soon as it is true."""
    end = time.monotonic() + seconds
    while not (found := holds()):
        assert time.monotonic() < end, "waited too long"
        time.sleep(0.02)
    return found


def waiting(folder: Path, but: Sequence[int] = ()) -> int:
    """The process that waits at a gate, other than these."""

    def found() -> int:
        pids = [int(file.name.partition("-")[2]) for file in folder.glob("*-*")]
        return next((pid for pid in pids if pid not in but), 0)

    return int(wait_for(found))


def is_alive(process: int) -> bool:
    """Whether a process runs; one that has ended and was not waited for does not."""
    try:
        return Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[0] not in "ZX"
    except OSError:
        return False


def done_parts(out: Path) -> dict[str, tuple[int, int]]:
    """The parts that are done, with their inode and time."""
    found = sorted(out.with_name(out.name + ".parts").glob("part-*.npy"))
    return {
        part.name: (part.stat().st_ino, part.stat().st_mtime_ns) for part in found if part.with_suffix(".json").exists()
    }


def go_on(texts: Path | str, model: Path | str, out: Path | str, **where: Any) -> tuple[list[Any], list[Any]]:
    """The same command again; its progress at the end of each part, and the parts that are there then."""
    progress: list[Any] = []
    parts: list[Any] = []

    def watch(now: Progress) -> None:
        if (progress and progress[-1][0] == now.parts) or not now.parts:
            return
        progress.append((now.parts, now.all_parts, now.rows, now.all_rows))
        parts.append(done_parts(Path(out)))

    encode_files(texts, out, model, rows_per_part=5, on_progress=watch, **where)
    return progress, parts
