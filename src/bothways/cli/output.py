"""Output of the verbs: results to standard output, messages and progress to standard error."""

import io
import json
import math
import os
import re
import shlex
import sys
import warnings
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, TextIO, TypeVar

from bothways.errors import with_short_quotes
from bothways.printable import printable
from bothways.progress import Progress, hide_bar, is_first_process, progress
from bothways.text.streams import follow

if TYPE_CHECKING:
    from rich.table import Table

    from bothways.marked_text import Colours, MarkedText
    from bothways.scale.drive import OnProgress

T = TypeVar("T")
_WIDE = 10_000
_NOT_ASCII = re.compile(r"[^\x00-\x7f]")


def safe_streams() -> None:
    """An output that cannot say a character, by its encoding, replaces it."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="replace")


def echo(line: str, *, to_errors: bool = False, flush: bool = True) -> None:
    """Print a line. Control characters in it are shown, so that no text commands a terminal."""
    _write(printable(line), sys.stderr if to_errors else sys.stdout, flush)


def echo_parts(parts: Iterable[str]) -> None:
    """Print the parts of a line, its end among them, without joining them: a long text is never whole in memory."""
    for part in parts:
        sys.stdout.write(printable(part))


def _write(text: str, stream: TextIO, flush: bool = True) -> None:
    try:
        stream.write(text + "\n")  # typer.echo would write UTF-8 where the encoding is ASCII
        if flush:
            stream.flush()
    except OSError:
        if stream is not sys.stderr:
            raise
        sys.stderr = open(os.devnull, "w", encoding="utf-8")  # noqa: SIM115 - results count without messages


def say(message: str) -> None:
    """Print a message on standard error."""
    hide_bar()
    echo(message, to_errors=True)


def with_options(message: str) -> str:
    """A message of the library with its Python arguments as command-line options.

    >>> with_options("name the column with `label`, or set `max_length`")
    'name the column with --label, or set --max-length'
    """
    return re.sub(r"`([a-z]\w*)`", lambda found: f"--{found[1].replace('_', '-')}", message)


@contextmanager
def show_warnings() -> Iterator[None]:
    """Print each warning of this block as one line, and once; those of the library always."""
    shown: set[str] = set()

    def show(message: Warning | str, *_: object, **__: object) -> None:
        if (words := str(message)) not in shown and is_first_process():
            shown.add(words)
            say(f"warning: {with_short_quotes(with_options(' '.join(words.split())))}")

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
    _write(_sayable(json_text(value, 2 if sys.stdout.isatty() else None)), sys.stdout)


def print_json_line(value: Any) -> None:
    """Print one of many results as JSON, on a line."""
    _write(_sayable(json_text(value, None)), sys.stdout, flush=False)


def _sayable(text: str) -> str:
    """JSON with escapes if the encoding of standard output cannot say it."""
    encoding = getattr(sys.stdout, "encoding", None) or "utf-8"
    if text.isascii() or text.encode(encoding, "replace").decode(encoding, "replace") == text:
        return text
    return _NOT_ASCII.sub(lambda one: json.dumps(one[0])[1:-1], text)


def json_text(value: Any, indent: int | None = 2) -> str:
    """A result as strict JSON."""
    text = json.dumps(_strict(value), ensure_ascii=False, indent=indent, default=str, allow_nan=False)
    return printable(text)  # an escape of JSON, too


def _strict(value: Any) -> Any:
    """NaN and infinity as null, which JSON has instead."""
    if isinstance(value, dict):
        return {key: _strict(part) for key, part in value.items()}
    if isinstance(value, list | tuple):
        return [_strict(part) for part in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


def print_table(
    header: Sequence[str], rows: Iterable[Sequence[object]], right: Sequence[str] = (), title: str = ""
) -> None:
    """Print a table. The columns named in `right` are right-aligned."""
    from rich.console import Console

    # Lines are folded for terminals only.
    console = Console(width=None if sys.stdout.isatty() else _WIDE, highlight=False, markup=False)
    if title:
        print_title(title)
    console.print(_table(header, rows, right))


def print_title(title: str) -> None:
    """Print the title of a table or list."""
    from rich.console import Console

    Console(highlight=False, markup=False).print(printable(title), style="bold")


def print_marked(shown: "MarkedText", colours: "Colours", indent: str = "") -> None:
    """Print a text with marks: in colours on a terminal, else in brackets."""
    from rich.console import Console
    from rich.text import Text

    console = Console(highlight=False, markup=False, emoji=False, soft_wrap=True)
    has_colours = console.color_system is not None
    if shown.title:
        console.print(Text(indent + printable(shown.title), "bold" if has_colours else ""))
    console.print(Text(indent) + (shown.rich(colours) if has_colours else Text(printable(shown.plain()))))


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
        table.add_column(printable(name), justify="right" if name in right else "left", overflow="fold")
    for row in rows:
        table.add_row(*(printable(str(cell)) for cell in row))
    return table


def require_jsonl(out: Path | None, *inputs: Path) -> None:
    """Refuse an output that is not .jsonl, or that would overwrite an input."""
    from bothways.errors import BothwaysError

    if out is None:
        return
    if out.suffix != ".jsonl":
        raise BothwaysError(
            f"results cannot be written to {out}: expected a name that ends in .jsonl", "unknown-format", out
        )
    for file in inputs:
        if file.resolve() == out.resolve():
            raise BothwaysError(f"{out} would overwrite the input {file}: name another `out`", "overwrites-input", file)


def write_jsonl(out: Path, rows: Iterable[Any]) -> None:
    """Write one JSON object a line."""
    from bothways import atomic

    with atomic.new_file(out) as fresh, fresh.open("w", encoding="utf-8") as stream:
        stream.writelines(json_text(row, None) + "\n" for row in rows)


def read_rows(file: Path, field: str | None) -> tuple[list[str], list[int]]:
    """The texts of a file that are not empty, and their numbers, counted from 0."""
    from bothways.errors import BothwaysError
    from bothways.text.files import read_texts, require_files
    from bothways.text.same_text import is_blank

    require_files([file])
    found = [
        (text, i) for i, text in enumerate(watch(read_texts(file, field), "reading", [str(file)])) if not is_blank(text)
    ]
    if not found:
        raise BothwaysError(f"no text was found in {file}", "no-text", file)
    return [text for text, _ in found], [i for _, i in found]


def shorten(text: str, most: int = 80) -> str:
    """A text on one line, cut after so many characters.

    >>> shorten("The cat  sleeps.", 9)
    'The cat …'
    """
    line = " ".join(text.split())
    return line if len(line) <= most else line[: most - 1] + "…"


@contextmanager
def file_progress(what: str, files: Iterable[Path | str]) -> Iterator[Progress]:
    """Progress of work on what is read from these files: items by number, the time left by bytes."""
    with follow(files) as share, Progress(what, share=share) as bar:
        yield bar


@contextmanager
def parts_progress(what: str, unit: Literal["rows", "bytes"] = "rows") -> "Iterator[OnProgress]":
    """A callback that shows how many rows of bulk work are done, or how many bytes of its inputs are read."""
    with Progress(what, unit=unit) as bar:
        yield lambda now: bar.at(getattr(now, unit), getattr(now, f"all_{unit}"))


def watch(items: Iterable[T], what: str, files: Sequence[str] = ()) -> Iterator[T]:
    """The items, with their progress shown."""
    if not files:
        yield from progress(items, what)
        return
    with file_progress(what, files) as bar:
        yield from bar.over(items)
