"""encode and predict over many files: one call for one process, several GPUs, or a cluster of Ray."""

import glob
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, get_args

from bothways.atomic import require_file_or_nothing
from bothways.errors import BothwaysError, require_choice
from bothways.model.box import lasting_name, model_for_encoding
from bothways.predict.encode_options import Combine, Long, Pool, Unit
from bothways.scale.bulk_options import ROWS_PER_PART, TableFormat, VectorFormat
from bothways.scale.drive import Execute, OnProgress, Target, drive
from bothways.scale.jobs import EncodeJob, FileJob, PredictJob
from bothways.scale.on_ray import run_ray
from bothways.scale.processes import parse_devices, run_here, run_processes
from bothways.text.arrow import dataset_folder, pyarrow
from bothways.text.files import find_rereadable, require_files
from bothways.text.streams import named_encoding

if TYPE_CHECKING:
    from bothways.data.notes import Notes
    from bothways.engine.reader import Tally

Paths = Path | str | Sequence[Path | str]


@dataclass(frozen=True)
class BulkReport:
    """What was written."""

    outputs: list[Path]
    rows: int
    """Rows of the inputs."""
    vectors: int
    """Vectors that `encode_files` wrote: one for each row, token or word."""
    width: int
    """Numbers in a vector."""
    tally: "Tally"
    notes: "Notes"
    """What readers found odd, for `predict_files`."""


def encode_files(
    files: Paths,
    out: Path | str,
    model: Path | str | None = None,
    *,
    base: Path | str | None = None,
    pool: Pool | Sequence[Pool] | None = None,
    prompt: str | None = None,
    prompt_name: str | None = None,
    layers: str | int | Sequence[int] = "last",
    combine: Combine = "concat",
    weights: Sequence[float] | None = None,
    per: Unit = "text",
    long: Long = "error",
    text: str | None = None,
    format: VectorFormat | None = None,
    device: str = "auto",
    dtype: str = "auto",
    devices: str = "",
    on: str = "",
    rows_per_part: int = ROWS_PER_PART,
    on_progress: OnProgress | None = None,
) -> BulkReport:
    """Embeddings of the texts of files, written to disk in order. If interrupted, the same call resumes.

    One file gives the file `out`, a .npy, .jsonl or .parquet. Several files, folders or patterns give a folder `out`
    with a result for each file, in the `format` npy, jsonl or parquet. `devices` and `on` say where to work: see
    `where`. The other options are those of `bothways.encode`.
    """
    if per != "text" and (pool or prompt or prompt_name):
        raise BothwaysError(
            f"`per` is {per}, and only vectors of whole texts have a `pool`, `prompt` or `prompt_name`",
            "bad-combination",
            per,
        )
    job = EncodeJob(
        model=lasting_name(model_for_encoding(model, base, per, pool, layers)),
        base=lasting_name(base),
        layers=layers if isinstance(layers, str | int) else tuple(layers),
        combine=combine,
        weights=tuple(weights) if weights is not None else None,
        per=per,
        pool=None if pool is None else (pool,) if isinstance(pool, str) else tuple(pool),
        prompt=prompt,
        prompt_name=prompt_name,
        long=long,
        field=text,
        dtype=dtype,
        encoding=named_encoding(),
    )
    found = require_files(input_files(files, Path(out)))
    target = make_target(files, Path(out), format, get_args(VectorFormat), rows_per_part)
    return _bulk(job, found, target, where(device, devices, on), on_progress)


def predict_files(
    files: Paths,
    out: Path | str,
    model: Path | str,
    *,
    base: Path | str | None = None,
    text: str = "",
    pair: str = "",
    keep: Sequence[str] | None = None,
    probabilities: bool = False,
    long: Long | None = None,
    top: int = 1,
    format: TableFormat | None = None,
    bom: bool = False,
    device: str = "auto",
    dtype: str = "auto",
    devices: str = "",
    on: str = "",
    rows_per_part: int = ROWS_PER_PART,
    on_progress: OnProgress | None = None,
) -> BulkReport:
    """Answers to the rows of files, as rows of a table, in order. If interrupted, the same call resumes.

    One file gives the file `out`, a .jsonl, .csv or .parquet. Several files, folders or patterns give a folder `out`
    with a result for each file, in the `format` jsonl, csv or parquet. A row has `input_row`, its number in the file,
    the columns of the input, or those in `keep`, then `predicted_label`, `predicted_score` and so on, `windows`, the
    sequences in which its text was read, and `cut`, whether a part was not read. `probabilities` adds a column for
    each label. With `bom` a .csv begins with a byte order mark: without it, Excel reads its text in another encoding.
    `text` and `pair` name columns. `devices` and `on` say where to work: see `where`. For the rest see `Predictor`.
    """
    job = PredictJob(
        model=lasting_name(model) or "",
        base=lasting_name(base),
        text=text,
        pair=pair,
        long=long,
        top=top,
        keep=None if keep is None else tuple(keep),
        probabilities=probabilities,
        dtype=dtype,
        encoding=named_encoding(),
        bom=bom,
    )
    target = make_target(files, Path(out), format, get_args(TableFormat), rows_per_part)
    if bom and target.suffix != ".csv":
        raise BothwaysError(f"`bom` is for .csv, and results are written as {target.suffix}", "bad-combination", bom)
    if target.suffix == ".parquet":
        pyarrow()  # it fails now, and not after the work
    target = replace(target, part_suffix=".jsonl")
    return _bulk(job, input_files(files, Path(out)), target, where(device, devices, on), on_progress)


def where(device: str = "auto", devices: str = "", on: str = "") -> Execute:
    """Where to work.

    By default in this process, on `device`. `devices`: processes of this machine, one for each GPU (`all`, or a list
    such as `cuda:0,cuda:1`), or without a GPU (`cpu:2` for two). `on`: `ray` for the cluster of this machine, which is
    started if there is none, or an address such as `ray://host:10001`; there, `devices` may be `cpu:2` for two workers.
    """
    if (devices or on) and device != "auto":
        raise BothwaysError(
            f"`device` is {device}, which is for one process: leave it out, or leave out `devices` and `on`",
            "bad-combination",
            device,
        )
    if on:
        return partial(run_ray, address=on, devices=devices or "all")
    if devices:
        return partial(run_processes, devices=parse_devices(devices))
    return partial(run_here, device=device)


def _bulk(
    job: FileJob, files: Sequence[Path], target: Target, execute: Execute, on_progress: OnProgress | None
) -> BulkReport:
    from bothways.data.notes import Notes
    from bothways.engine.reader import Tally

    report = drive(job, files, target, execute, on_progress)
    counts = report.counts
    notes = Notes(**counts.get("notes", {}), whole=True)
    facts = {name: counts.get(name, 0) for name in ("rows", "vectors", "width")}
    return BulkReport(report.outputs, **facts, tally=Tally(**counts["tally"]), notes=notes)


# ---------------------------------------------------------------------- inputs and outputs


def _listed(files: Paths) -> list[Path]:
    return [Path(files)] if isinstance(files, str | Path) else [Path(file) for file in files]


def is_one_file(files: Paths) -> bool:
    """Whether the result is one file: the input is one file or saved data set, and no other folder or pattern."""
    given = _listed(files)
    if len(given) != 1:
        return False
    if given[0].is_dir():
        return dataset_folder(given[0]) is not None
    return given[0].exists() or not glob.has_magic(str(given[0]))


def input_files(files: Paths, out: Path) -> list[Path]:
    """The files that these paths stand for, without those in an older folder `out`."""
    found: dict[Path, Path] = {}
    for path in _listed(files):
        for file in [path] if path.is_file() else find_rereadable([path]):
            if out.resolve() not in file.resolve().parents:
                found.setdefault(file.resolve(), file)
    if not found:
        raise BothwaysError("no input file was given", "no-input")
    return list(found.values())


def make_target(files: Paths, out: Path, format: str | None, allowed: tuple[str, ...], rows_per_part: int) -> Target:
    """The output file of one input, or the output folder of several."""
    suffixes = [f".{name}" for name in allowed]
    if format is not None:
        require_choice("`format`", format, allowed)
    if not is_one_file(files):
        if out.suffix in suffixes and not out.is_dir():
            raise BothwaysError(
                f"several inputs give one result each, and `out` is the file {out}: name a folder", "is-a-file", out
            )
        return Target(out, f".{format or allowed[0]}", True, rows_per_part)
    if out.suffix not in suffixes or (format and out.suffix != f".{format}"):
        expected = f".{format}" if format else ", ".join(suffixes)
        raise BothwaysError(
            f"results cannot be written to {out}: expected a name that ends in {expected}", "unknown-format", out
        )
    for file in _listed(files):
        if file.resolve() in (out.resolve(), out.with_name(out.name + ".jsonl").resolve()):
            raise BothwaysError(f"{out} would overwrite the input {file}: name another `out`", "overwrites-input", file)
    require_file_or_nothing(out)
    return Target(out, out.suffix, False, rows_per_part)
