"""bothways evaluate"""

from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from bothways.cli.options import (
    BaseModel,
    BoxedTask,
    Device,
    Dtype,
    Encoding,
    LabelColumn,
    LongTexts,
    PairColumn,
    PrintJson,
    Sheet,
    TextColumn,
    Threads,
    TunedModel,
    answering,
)
from bothways.cli.output import echo, file_progress, print_json, print_marked, print_table, print_title, say
from bothways.errors import BothwaysError, needs
from bothways.printable import counted
from bothways.progress import Progress

if TYPE_CHECKING:
    from bothways.predict.evaluation import Evaluation
    from bothways.tasks.task import TaskConfig

_TOLERANCE = 0.05
"""Relative difference of temperatures below which a model counts as calibrated."""


def evaluate(
    files: Annotated[list[str], typer.Argument(metavar="FILE...", help="Labelled files.", show_default=False)],
    model: TunedModel = None,
    base: BaseModel = None,
    task: BoxedTask = None,
    against: Annotated[
        Path | None,
        typer.Option(
            "--against",
            metavar="DIR",
            help="Folder of another model to compare with, by a paired significance test.",
            show_default=False,
        ),
    ] = None,
    text: TextColumn = None,
    pair: PairColumn = None,
    label: LabelColumn = None,
    encoding: Encoding = None,
    sheet: Sheet = None,
    long: LongTexts = None,
    worst: Annotated[int, typer.Option(help="Number of the worst errors to print.", min=0)] = 5,
    picture: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            help="Plot scores, confusion matrix and calibration to a .png, .svg or .pdf file.",
            show_default=False,
        ),
    ] = None,
    calibrate: Annotated[
        bool, typer.Option("--calibrate", help="Write the fitted temperature or thresholds into the model's folder.")
    ] = False,
    device: Device = "auto",
    dtype: Dtype = "auto",
    threads: Threads = None,
    as_json: PrintJson = False,
) -> None:
    """Score a fine-tuned model on labelled files: with confidence intervals, by label, and with its worst errors.

    Example: bothways evaluate examples/questions-dev.json --task answer
    """
    from bothways.data.notes import Notes
    from bothways.model.box import BOX
    from bothways.plots import require_picture_name
    from bothways.predict.evaluation import calibrate as write
    from bothways.predict.evaluation import evaluate as run
    from bothways.predict.evaluation import require_same_task
    from bothways.predict.picture import draw_evaluation
    from bothways.predict.predictor import Predictor
    from bothways.scoring.classification import positive_label
    from bothways.tasks.labelled_files import FinetuneData
    from bothways.tasks.registry import task_config

    if picture:
        require_picture_name(picture)
    folder = answering(model, task)
    if calibrate and folder.parent == BOX:
        raise BothwaysError(
            f"`calibrate` writes into the model's folder, and included models are never changed: copy the "
            f"whole of {folder.parent} and give --model COPY/{folder.name}",
            "read-only-box",
            folder.name,
        )
    with Progress("loading the model"):
        predictor, notes = Predictor.load(folder, base=base, device=device, dtype=dtype, long=long), Notes()
        other = Predictor.load(against, device=device, dtype=dtype, long=long) if against else None
    if other:
        require_same_task(predictor, other, (str(folder), str(against)))
    data = FinetuneData(text=text or "", pair=pair or "", label=label or "")
    with file_progress("evaluating", files) as bar:
        found = run(files, predictor, data, against=other, worst=worst, notes=notes, watch=bar.over)
    if notes.columns:
        say(f"columns: {notes.columns}")
    if notes:
        say(str(notes))
    if picture and not draw_evaluation(found, predictor.labels, picture):
        say(needs("drawing a plot", "matplotlib"))
    if as_json:
        if calibrate:
            write(folder, found, base=base)
        positive = positive_label(found.scores, predictor.labels)
        print_json({**asdict(found), **positive})
        return
    _print(found, task_config(predictor.model).temperature)
    if compared := found.against:
        say(
            f"{found.metric} of {folder} minus that of {against}: {compared.difference:+.4f}, 95 % interval "
            f"{compared.low:+.4f} to {compared.high:+.4f}, p = {compared.p:.3f}"
        )
    say(found.read)
    if calibrate:
        say(f"{folder} now has {_settings(write(folder, found, base=base))}: evaluate it on other data")


def _settings(config: "TaskConfig") -> str:
    thresholds = ", ".join(f"{name} {value:.2f}" for name, value in config.thresholds.items())
    return f"the thresholds {thresholds}" if thresholds else f"the temperature {config.temperature:.2f}"


def _print(found: "Evaluation", temperature: float) -> None:
    """Print the tables and the worst errors. `temperature`: the model's current one."""
    from bothways.predict.display import shown_number
    from bothways.scoring.classification import shown_name

    labels = found.labels
    rows = [
        (shown_name(name, labels), f"{value:.4f}", _range(found.intervals.get(name)))
        for name, value in found.scores.items()
    ]
    print_table((counted(found.examples, "example"), "score", "95 % CI"), rows, right=("score",))
    if 1 < len(found.details) <= 60:
        columns = list(next(iter(found.details.values())))
        details = [(name, *(shown_number(row[c]) for c in columns)) for name, row in found.details.items()]
        print_table(("", *columns), details, right=columns, title="Scores by label")
    if found.confusion and len(labels) <= 12:
        print_table(
            ("gold ↓  predicted →", *labels),
            [(label, *row) for label, row in zip(labels, found.confusion, strict=True)],
            right=labels,
            title="Confusion matrix",
        )
    if found.never_predicted:
        say(found.never_predicted)
    if found.temperature and abs(found.temperature / temperature - 1) > _TOLERANCE:
        how = "overconfident" if found.temperature > temperature else "underconfident"
        say(f"the model is {how}: a temperature of {found.temperature:.2f} would calibrate it (--calibrate)")
    if found.worst:
        _print_errors(found)


def _print_errors(found: "Evaluation") -> None:
    from bothways.marked_text import Colours
    from bothways.predict.display import error_text, marked_pair
    from bothways.tasks.registry import TASKS

    print_title(found.errors_title)
    task, colours = TASKS[found.task], Colours(found.labels)
    for error in found.worst:
        if not task.marked_field:
            answered = task.shown(error["answer"])
            echo(f"{error['error']:.3f}  {error['where']}: gold {error['gold']!r}, predicted {answered}")
            echo(f"       {error_text(error)}")
            continue
        echo(f"{error['error']:.3g}  {error['where']}")
        if task.marked_title:
            echo(f"  {error[task.marked_title]}")
        for name, shown in zip(("gold", "predicted"), marked_pair(task, found.labels, error), strict=True):
            print_marked(shown, colours, f"  {name:9}  ")


def _range(ends: tuple[float, float] | None) -> str:
    return "" if ends is None else f"{ends[0]:.4f} to {ends[1]:.4f}"
