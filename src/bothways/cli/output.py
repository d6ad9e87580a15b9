"""Output of the verbs: results to standard output, messages and progress to standard error."""

import io
import json
import math
import os
import re
import shlex
import sys
import warnings
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, TypeVar

import typer

if TYPE_CHECKING:
    from rich.table import Table

    from bothways.scale.drive import OnProgress

T = TypeVar("T")
_WIDE = 10_000


def say(message: str) -> None:
    """Print a message on standard error."""
    typer.echo(message, err=True)


def with_options(message: str) -> str:
    """A message of the library with its Python arguments as command-line options.

    >>> with_options("name the column with `label`, or set `max_length`")
    'name the column with --label, or set --max-length'
    """
    return re.sub(r"`(\w+)`", lambda found: f"--{found[1].replace('_', '-')}", message)


@contextmanager
def show_warnings() -> Iterator[None]:
    """Print each warning of this block as one line, and all those of the library."""

    def show(message: Warning | str, *_: object, **__: object) -> None:
        say(f"warning: {with_options(' '.join(str(message).split()))}")

    with warnings.catch_warnings():
        warnings.filterwarnings("always", module="bothways")
        warnings.showwarning = show
        yield


def same_command() -> str:
    """The command that was run, ready to paste into a shell."""
    ranks, own = int(os.environ.get("LOCAL_WORLD_SIZE", "1")), sys.argv[1:]
    start = ["torchrun", "--nproc-per-node", str(ranks), "-m", "bothways"] if ranks > 1 else ["bothways"]
    return shlex.join([*start, *own])


def print_json(value: Any) -> None:
    """Print a result as JSON, on one line unless standard output is a terminal."""
    typer.echo(json_text(value, 2 if sys.stdout.isatty() else None))


def json_text(value: Any, indent: int | None = 2) -> str:
    """A result as strict JSON."""
    return json.dumps(_strict(value), ensure_ascii=False, indent=indent, default=str, allow_nan=False)


def _strict(value: Any) -> Any:
    """NaN and infinity as null, which JSON has instead."""
    if isinstance(value, dict):
        return {key: _strict(part) for key, part in value.items()}
    if isinstance(value, list | tuple):
        return [_strict(part) for part in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


def print_table(header: Sequence[str], rows: Iterable[Sequence[object]], right: Sequence[str] = ()) -> None:
    """Print a table. The columns named in `right` are right-aligned."""
    from rich.console import Console

    # Lines are folded for terminals only.
    console = Console(width=None if sys.stdout.isatty() else _WIDE, highlight=False, markup=False)
    console.print(_table(header, rows, right))


def table_text(header: Sequence[str], rows: Iterable[Sequence[object]], right: Sequence[str] = ()) -> str:
    """The same table as a string."""
    from rich.console import Console

    page = io.StringIO()
    Console(file=page, width=_WIDE, highlight=False, markup=False).print(_table(header, rows, right))
    return page.getvalue()


def _table(header: Sequence[str], rows: Iterable[Sequence[object]], right: Sequence[str]) -> "Table":
    from rich import box
    from rich.table import Table

    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, show_header=any(header))
    for name in header:
        table.add_column(name, justify="right" if name in right else "left", overflow="fold")
    for row in rows:
        table.add_row(*(str(cell) for cell in row))
    return table


def progress(items: Iterable[T], what: str, total: int | None = None) -> Iterator[T]:
    """The items, with a progress bar if standard error is a terminal."""
    if not sys.stderr.isatty():
        yield from items
        return
    from rich.console import Console
    from rich.progress import (
        BarColumn,
        MofNCompleteColumn,
        Progress,
        TextColumn,
        TimeElapsedColumn,
        TimeRemainingColumn,
    )

    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TextColumn("{task.fields[rate]}"),
        TimeElapsedColumn(),
        TimeRemainingColumn(),
    )
    with Progress(*columns, console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task(what, total=total, rate="")
        for item in items:
            yield item
            speed = bar.tasks[0].speed
            bar.update(task, advance=1, rate=f"{speed:,.0f}/s" if speed else "")


@contextmanager
def bytes_bar(what: str) -> Iterator[Callable[[int, int], None]]:
    """A callback (bytes done, total bytes) that shows a progress bar if standard error is a terminal."""
    if not sys.stderr.isatty():
        yield lambda done, total: None
        return
    from rich.console import Console
    from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TimeRemainingColumn, TransferSpeedColumn

    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        DownloadColumn(),
        TransferSpeedColumn(),
        TimeRemainingColumn(),
    )
    with Progress(*columns, console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task(what, total=None)
        yield lambda done, total: bar.update(task, completed=done, total=total or None)


@contextmanager
def parts_bar(what: str) -> "Iterator[OnProgress]":
    """A callback that shows how many parts and rows are done, if standard error is a terminal."""
    if not sys.stderr.isatty():
        yield lambda progress: None
        return
    from rich.console import Console
    from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn

    columns = (TextColumn("{task.description}"), BarColumn(), TimeElapsedColumn(), TimeRemainingColumn())
    with Progress(*columns, console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task(what, total=None)
        yield lambda now: bar.update(
            task,
            completed=now.rows,
            total=now.all_rows,
            description=f"{what}: {now.parts:,} of {now.all_parts:,} parts, {now.rows:,} of {now.all_rows:,} rows",
        )
