"""bothways compress"""

import shlex
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from bothways.cli.options import (
    BaseModel,
    BoxedTask,
    Encoding,
    LabelColumn,
    LongTexts,
    PairColumn,
    PrintJson,
    SameModel,
    Sheet,
    TextColumn,
    Threads,
    TrainDevice,
    answering,
    one_model,
)
from bothways.cli.output import print_json, print_table, say, watch, with_options

if TYPE_CHECKING:
    from bothways.compression.steps import Compressed


def compress(
    out: Annotated[Path, typer.Option("--out", metavar="DIR", help="Folder to write.", show_default=False)],
    train: Annotated[
        list[str],
        typer.Option(
            "--train",
            metavar="FILE...",
            help="Labelled data to distil on, as a rule the model's training data: one file or several.",
            show_default=False,
        ),
    ],
    dev: Annotated[
        list[str],
        typer.Option(
            "--dev",
            metavar="FILE...",
            help="Labelled data to compare the models on: one file or several.",
            show_default=False,
        ),
    ],
    model: Annotated[
        Path | None,
        typer.Argument(
            metavar="[MODEL]",
            help="Folder of a fine-tuned model or of its run. With --task: the name of an included model.",
            show_default=False,
        ),
    ] = None,
    same_model: SameModel = None,
    task: BoxedTask = None,
    base: BaseModel = None,
    keep: Annotated[
        str, typer.Option(help="What to keep: a share of the model's score, such as 98%, or a score, such as 0.91.")
    ] = "99%",
    layers: Annotated[
        list[int] | None,
        typer.Option(
            metavar="N",
            help="Number of layers of a student; may be repeated; 0: no student.  [default: a half and a third]",
            min=0,
            show_default=False,
        ),
    ] = None,
    precisions: Annotated[
        list[str] | None,
        typer.Option(
            "--precision",
            metavar="NAME",
            help="Precision of a graph, as in bothways export; may be repeated.  [default: fp32, fp16, int8, "
            "int8-blocks and int4]",
            show_default=False,
        ),
    ] = None,
    vocabulary: Annotated[
        Literal["auto", "pruned", "whole"],
        typer.Option(
            help="Whether to drop tokens that the data do not use; auto: if the score is kept on --dev with the tokens "
            "of --train and --texts alone."
        ),
    ] = "auto",
    texts: Annotated[
        list[Path] | None,
        typer.Option(
            "--texts",
            metavar="FILE...",
            help="Texts without labels, whose tokens stay in the vocabulary: one file or several.",
            show_default=False,
        ),
    ] = None,
    text: TextColumn = None,
    pair: PairColumn = None,
    label: LabelColumn = None,
    encoding: Encoding = None,
    sheet: Sheet = None,
    long: LongTexts = None,
    epochs: Annotated[
        float | None, typer.Option(help="Epochs of a student.  [default: as in bothways finetune]", show_default=False)
    ] = None,
    seed: Annotated[int, typer.Option(help="Seed of the order and of dropout of the students.")] = 0,
    settings: Annotated[
        list[str] | None,
        typer.Option(
            "--set",
            metavar="KEY=VALUE",
            help="Any key of the recipe of the students, as in distill.soft=2; may be repeated.",
            show_default=False,
        ),
    ] = None,
    device: TrainDevice = None,
    threads: Threads = None,
    as_json: PrintJson = False,
) -> None:
    """Compress a fine-tuned model as far as it keeps its score: vocabulary pruning, distillation, quantization.

    The vocabulary is pruned to the tokens that the data use, students of fewer layers are distilled from the model, and
    all of them are exported as ONNX graphs of several precisions. Each is scored and timed on --dev, on the CPU. DIR
    opens as any other model; in it, compress.json holds the table.

    Example: bothways compress my-classifier --train examples/reviews.tsv --dev examples/reviews-dev.tsv
    --keep 98% --out my-small-classifier
    """
    from bothways.compression.compress import PRECISIONS
    from bothways.compression.compress import compress as run
    from bothways.train.report import Console

    given = one_model(model, same_model)
    if given is None and task is None:
        raise typer.BadParameter("give the folder of a fine-tuned model, or --task with the name of an included one")
    source = answering(given, task)
    with Console(None, None) as console:
        found = run(
            source,
            out,
            train=train,
            dev=dev,
            keep=keep,
            layers=layers,
            precisions=precisions or PRECISIONS,
            vocabulary=vocabulary,
            texts=texts or (),
            text=text or "",
            pair=pair or "",
            label=label or "",
            long=long,
            settings=settings or (),
            epochs=epochs,
            seed=seed,
            device=device or "auto",
            base=base,
            listen=[console],
            say=lambda words: console.say(with_options(words)),
            watch=watch,
        )
    if as_json:
        print_json({"folder": str(found.folder), **found.as_table()})
        return
    _print(found)


def _print(found: "Compressed") -> None:
    from bothways.compression.steps import megabytes

    columns = ("MB", "parameters", "speed", found.metric, "difference")
    rows = [
        (
            step.name,
            megabytes(step.bytes),
            f"{step.parameters:,}",
            f"{step.speed:.1f}×",
            f"{step.score:.4f}",
            f"{step.difference:+.4f}",
            "chosen" if step.name == found.chosen else "yes" if step.keeps else "no",
        )
        for step in found.steps
    ]
    print_table(("", *columns, "kept"), rows, right=columns)
    best, original = found.best, found.steps[0]
    low, high = found.interval or (0.0, 0.0)
    if low < high:
        say(
            f"{found.metric} of the original on {found.examples:,} examples: 95 % interval {low:.4f} to {high:.4f}; "
            "smaller differences may be chance"
        )
    say(
        f"{found.folder}: {best.name}, {original.bytes / best.bytes:.1f} times as small, {found.metric} "
        f"{best.score:.4f} ({found.needed:.4f} was to be kept)"
    )
    say(f"next: bothways predict FILE --model {shlex.quote(str(found.folder))}")
