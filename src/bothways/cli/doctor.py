"""bothways doctor"""

from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from bothways.cli.options import Encoding, LabelColumn, PairColumn, Sheet, TextColumn, Threads, TrainDevice
from bothways.cli.output import echo, print_json, print_table, say, watch, with_options

if TYPE_CHECKING:
    from bothways.data.findings import Finding
    from bothways.doctor.data_report import DataReport

_BAR = 24
_LABELS = 40


def doctor(
    files: Annotated[list[str], typer.Argument(metavar="FILE...", help="Labelled training data.", show_default=False)],
    dev: Annotated[
        list[str] | None,
        typer.Option(
            "--dev",
            metavar="FILE...",
            help="Development data to compare with: one file or several.",
            show_default=False,
        ),
    ] = None,
    task: Annotated[
        str | None,
        typer.Option(
            help="classify, tag, answer, choose, score or embed.  [default: guessed from the file]", show_default=False
        ),
    ] = None,
    model: Annotated[
        Path | None,
        typer.Option(
            "--model",
            metavar="DIR",
            help="Model folder, to check tokens and windows and to estimate the training time.  [default: no estimate, "
            "and the tokens of the included model that reads the text]",
            show_default=False,
        ),
    ] = None,
    text: TextColumn = None,
    pair: PairColumn = None,
    label: LabelColumn = None,
    encoding: Encoding = None,
    sheet: Sheet = None,
    device: TrainDevice = None,
    threads: Threads = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Check labelled data before training: what is wrong with them, and what to do.

    Each check ends in error, warning or ok. No file is changed.

    Example: bothways doctor examples/reviews.tsv --dev examples/reviews-dev.tsv
    """
    from bothways.doctor.check_data import check_data

    found = check_data(
        files,
        dev or [],
        task=task,
        model=model,
        text=text or "",
        pair=pair or "",
        label=label or "",
        encoding=encoding or "",
        device=device or "auto",
        watch=watch,
    )
    if as_json:
        print_json(asdict(found))
        return
    if found.columns:
        say(f"columns: {found.columns}")
    print_table(("", ""), _facts(found))
    _print_labels(found)
    print_table(("", "finding"), [(finding.severity, _lines(finding)) for finding in found.findings])
    for what in found.not_checked:
        say(with_options(f"not checked: {what}"))
    if found.command:
        say("next, after correcting the errors:" if found.of("error") else "next:")
        echo(found.command)


def _facts(found: "DataReport") -> list[tuple[str, str]]:
    unlabelled = found.rows - found.labelled
    facts = [
        ("task", f"{found.task}, {found.kind}" if found.kind else found.task),
        ("rows", f"{found.rows:,}" + (f", {unlabelled:,} without a label" if unlabelled else "")),
    ]
    if found.dev_rows:
        facts.append(("development rows", f"{found.dev_rows:,}"))
    facts.append(("Chinese or Japanese", f"{100 * found.cjk_share:.0f} % of the characters"))
    facts += [
        (name, f"{length.mean:,.1f} on average, {length.longest:,} at most ({length.where})")
        for name, length in found.lengths.items()
    ]
    if reading := found.reading:
        facts += [
            (
                f"tokens ({reading.model})" if reading.model else "tokens",
                f"{reading.tokens:,}, {reading.longest:,} in the longest row ({reading.where})",
            ),
            ("tokens per word", f"{reading.tokens_per_word:.2f}, {100 * reading.unknown_share:.2f} % unknown"),
            ("sequences", f"{reading.sequences:,} of at most {reading.limit} tokens"),
        ]
    if plan := found.plan:
        facts += [
            (
                "suggested",
                f"batch size {plan.batch}, learning rate {plan.lr:g}, {plan.epochs:g} epochs: {plan.steps:,} steps",
            ),
            ("why", plan.why),
            ("time", f"about {_time(plan.seconds)} on {plan.machine}, an estimate from a few timed steps"),
        ]
    return facts


def _print_labels(found: "DataReport") -> None:
    from bothways.tasks.registry import TASKS

    if not found.labels:
        return
    most = max(label.count for label in found.labels)
    rows = [
        (label.name, f"{label.count:,}", f"{100 * label.share:.1f} %", "█" * max(1, round(_BAR * label.count / most)))
        for label in found.labels[:_LABELS]
    ]
    print_table((TASKS[found.task].golds, "count", "share", ""), rows, right=("count", "share"))
    if len(found.labels) > _LABELS:
        say(f"… and {len(found.labels) - _LABELS:,} more")


def _lines(finding: "Finding") -> str:
    sentences = with_options(f"{finding.says} {finding.do}".strip())
    return "\n".join([sentences, *(f"  {place}" for place in finding.places)])


def _time(seconds: float) -> str:
    if seconds < 90:
        return f"{seconds:.0f} seconds"
    return f"{seconds / 60:.0f} minutes" if seconds < 5_400 else f"{seconds / 3_600:.1f} hours"
