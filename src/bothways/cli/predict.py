"""bothways predict"""

import json
import os
import re
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from bothways.cli.options import (
    BaseModel,
    BoxedTask,
    Device,
    Devices,
    Dtype,
    Encoding,
    LongTexts,
    On,
    PairColumn,
    PrintJson,
    RowsPerPart,
    TextColumn,
    Threads,
    TunedModel,
    answering,
)
from bothways.cli.output import file_progress, parts_progress, print_json, say
from bothways.errors import BothwaysError
from bothways.progress import Progress
from bothways.scale.bulk_options import ROWS_PER_PART, TableFormat

if TYPE_CHECKING:
    from bothways.data.notes import Notes
    from bothways.engine.reader import Tally
    from bothways.predict.predictor import Predictor
    from bothways.tasks.task import Task


def predict(
    inputs: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="[FILE...|TEXT [TEXT]]",
            help="A file of texts (.txt, .jsonl, .csv, .tsv, .xlsx, .parquet), or - for standard input; or one text, "
            "or two, such as a question and its context. With --out also several files, folders or patterns.",
            show_default=False,
        ),
    ] = None,
    model: TunedModel = None,
    base: BaseModel = None,
    task: BoxedTask = None,
    text: TextColumn = None,
    pair: PairColumn = None,
    encoding: Encoding = None,
    long: LongTexts = None,
    top: Annotated[int, typer.Option(help="Number of answers to print for each text.", min=1)] = 1,
    out: Annotated[
        Path | None,
        typer.Option(
            "--out",
            metavar="FILE|DIR",
            help="Write the answers to this .jsonl, .csv or .parquet, after the columns of the input. Of several "
            "inputs: to a folder.",
            show_default=False,
        ),
    ] = None,
    keep: Annotated[
        list[str] | None,
        typer.Option(
            "--keep",
            metavar="COLUMN",
            help="Column of the input to keep in --out; may be repeated.  [default: all]",
            show_default=False,
        ),
    ] = None,
    probabilities: Annotated[
        bool, typer.Option("--probabilities", help="With --out: a column with the probability of each label.")
    ] = False,
    format: Annotated[
        TableFormat | None,
        typer.Option("--format", help="Format of the results in a folder.  [default: jsonl]", show_default=False),
    ] = None,
    show: Annotated[
        bool, typer.Option("--show", help="Print each text with its entities, tags or answer marked, in colours.")
    ] = False,
    html: Annotated[
        Path | None,
        typer.Option(
            "--html", metavar="FILE", help="Write the texts, marked in the same way, as a page.", show_default=False
        ),
    ] = None,
    device: Device = "auto",
    dtype: Dtype = "auto",
    threads: Threads = None,
    devices: Devices = "",
    on: On = "",
    rows_per_part: RowsPerPart = ROWS_PER_PART,
    as_json: PrintJson = False,
) -> None:
    """Predict with a fine-tuned model: for one text, or for every line or row of a file, in order.

    Prints one line for each text: the answers with their scores, a tab, the text. Streams in constant memory. With
    --out, the same command goes on after a kill. --show and --html mark what was found in the texts.

    Example: bothways predict "I cannot believe it, thank you so much!" --task emotion
    """
    from bothways.data.notes import Notes
    from bothways.predict.display import require_marks, write_page
    from bothways.predict.predictor import Predictor
    from bothways.scale.bulk import predict_files
    from bothways.tasks.recipe import FinetuneData

    if (show or html) and show + bool(html) + bool(out) + as_json > 1:
        raise typer.BadParameter("expected only one of --show, --html, --out and --json")
    if html and html.suffix.lower() not in (".html", ".htm"):
        raise BothwaysError(f"--html is {html}: expected a name that ends in .html", "unknown-format", html)
    if out is not None:
        with parts_progress("predicting") as on_progress:
            report = predict_files(
                [Path(word) for word in inputs or ["-"]],
                out,
                answering(model, task),
                base=base,
                text=text or "",
                pair=pair or "",
                keep=keep,
                probabilities=probabilities,
                long=long,
                top=top,
                format=format,
                device=device,
                dtype=dtype,
                devices=devices,
                on=on,
                rows_per_part=rows_per_part,
                on_progress=on_progress,
            )
        if as_json:
            print_json({"out": str(out), "rows": report.rows, **vars(report.tally)})
        _say_counts(report.notes, report.tally)
        return
    if devices or on or keep or probabilities or format:
        raise typer.BadParameter("--devices, --on, --keep, --probabilities and --format need --out")
    with Progress("loading the model"):
        predictor = Predictor.load(answering(model, task), base=base, device=device, dtype=dtype, long=long)
    notes = Notes(whole=True)
    data = FinetuneData(text=text or "", pair=pair or "")
    given = inputs or ["-"]
    is_single = predictor.task.max_texts == 1
    files = [word for word in given if len(given) > 1 and os.path.isfile(word)]
    if files or len(given) > predictor.task.max_texts:
        raise BothwaysError(
            f"expected one file{' or one text' if is_single else ', one text or two texts'}, and {len(given)} "
            f"arguments were given{f', of which {files[0]} is a file' if files else ''}",
            "too-many-inputs",
            files[0] if files else len(given),
        )
    examples: Iterable[Any]
    if len(given) == 1 and _is_file(given[0]):
        examples = predictor.task.read_inputs(given[0], data.columns, notes)
    elif not all(word.strip() for word in given):
        raise BothwaysError("a text is empty: there is nothing to predict", "empty-text")
    else:
        examples = [predictor.example(given[0] if len(given) == 1 else tuple(given))]
    if show or html:
        require_marks(type(predictor.task))
    with file_progress("predicting", given) as bar:
        answers = predictor.answers(bar.over(examples), top=top)
        if html:
            write_page(html, predictor, answers)
        elif show:
            _print_marked(predictor, answers)
        else:
            for example, answer in answers:
                line = json.dumps(answer, ensure_ascii=False) if as_json else _line(predictor.task, example, answer)
                sys.stdout.write(line + "\n")
    sys.stdout.flush()
    _say_counts(notes, predictor.tally)


def _say_counts(notes: "Notes", tally: "Tally") -> None:
    notes.counts.pop("no-label-column", None)  # predictions need no labels
    if notes.columns:
        say(f"columns: {notes.columns}")
    if notes:
        say(str(notes))
    say(str(tally))


def _is_file(word: str) -> bool:
    """Whether an argument names a file: an existing one, or a word that looks like a path."""
    if word == "-" or os.path.exists(word):
        return True
    ends_so = re.fullmatch(r"\.[a-z][a-z0-9]*", Path(word).suffix)  # not "3.5" or "Good.Really"
    return not any(map(str.isspace, word)) and bool(ends_so or "/" in word or os.sep in word)


def _print_marked(predictor: "Predictor", answers: Iterable[tuple[Any, Any]]) -> None:
    """The texts with marks: in colours on a terminal, else in brackets."""
    from bothways.cli.output import print_marked
    from bothways.marked_text import Colours
    from bothways.predict.display import marked

    colours = Colours(predictor.labels)
    for example, answer in answers:
        print_marked(marked(type(predictor.task), vars(example), answer), colours)


def _line(task: "Task", example: Any, answer: Any) -> str:
    """The answers with their scores, or -, then the text; separated by tabs."""
    return "\t".join([task.shown(answer), *(" ".join(text.split()) for text in task.shown_texts(example))])
