"""bothways adapt"""

from contextlib import ExitStack
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from bothways.cli.options import AnyModel, Encoding, PrintJson, Sheet, TextColumn, Threads, TrainDevice
from bothways.cli.output import print_json, print_table, same_command, say, with_options
from bothways.cli.pack import sources_of
from bothways.text.files import Each

if TYPE_CHECKING:
    from bothways.train.protocol import Event


def adapt(
    texts: Annotated[
        list[str],
        typer.Argument(
            metavar="[NAME=]TEXT...",
            help="Text of the domain: files, folders or patterns of .txt, .jsonl, .csv, .tsv (also .gz, .xz), "
            ".xlsx or .parquet. NAME= tells several domains apart.",
            show_default=False,
        ),
    ],
    out: Annotated[
        Path,
        typer.Option(
            "--out", metavar="DIR", help="Run folder. If it has checkpoints, the run continues.", show_default=False
        ),
    ],
    model: AnyModel = None,
    general: Annotated[
        list[str] | None,
        typer.Option(
            "--general",
            metavar="TEXT...",
            help="General text to mix in, so that it is not forgotten (replay): one file or several.",
            show_default=False,
        ),
    ] = None,
    replay: Annotated[float, typer.Option(help="Share of general text in the training text, with --general.")] = 0.3,
    tolerance: Annotated[
        float, typer.Option(help="Share by which the held-out loss of general text may rise before training stops.")
    ] = 0.05,
    valid: Annotated[str, typer.Option(metavar="SHARE", help="Share of the documents to hold out.")] = "5%",
    epochs: Annotated[float, typer.Option(help="Epochs of the domain's text.")] = 3.0,
    lr: Annotated[
        float | None,
        typer.Option(
            help="Learning rate.  [default: half of the rate in the model's finetune.toml, else by its width]",
            show_default=False,
        ),
    ] = None,
    each: Annotated[
        Each, typer.Option(help="What a document is in .txt files: the lines up to an empty line, or each line.")
    ] = "paragraphs",
    text: TextColumn = None,
    encoding: Encoding = None,
    sheet: Sheet = None,
    settings: Annotated[
        list[str] | None,
        typer.Option(
            "--set",
            metavar="KEY=VALUE",
            help="Any key of a pretraining recipe, as in lora.rank=8; may be repeated.",
            show_default=False,
        ),
    ] = None,
    device: TrainDevice = None,
    threads: Threads = None,
    as_json: PrintJson = False,
) -> None:
    """Adapt a model to a domain: continued pretraining on its text (masked language modelling).

    Some documents are held out, and the result is the best checkpoint on them; never one that has forgotten the general
    text, if some is given. Training stops early after three evaluations without progress. If interrupted, the same
    command resumes.

    Example: bothways adapt examples/stories.txt --out my-adapted
    """
    from bothways.pretraining.adapt import adapt as run
    from bothways.progress import Progress
    from bothways.train.report import Console

    with Console(None, None) as console, ExitStack() as packing:
        bar = packing.enter_context(Progress("packing", unit="bytes"))

        def listen(event: "Event") -> None:
            packing.close()
            console(event)

        result = run(
            sources_of(texts, "domain"),
            model,
            out,
            general=general or [],
            replay=replay,
            tolerance=tolerance,
            valid=valid,
            epochs=epochs,
            lr=lr,
            each=each,
            text=text,
            settings=[*([f"run.device={device}"] if device else []), *(settings or [])],
            listen=[listen],
            say=lambda words: console.say(with_options(words)),
            on_bytes=bar.at,
        )
    if not result.complete:
        say(f"stopped at step {result.steps:,} and saved; to continue: {same_command()}")
        raise typer.Exit(130)
    if as_json:
        print_json({**asdict(result), "folder": str(result.folder)})
        return
    rows = [(name, f"{result.before[name]:.3f}", f"{loss:.3f}") for name, loss in result.after.items()]
    print_table(("held-out loss", "before", "after"), rows, right=("before", "after"))
    if result.stopped:
        say(with_options(result.stopped))
    if result.best_step and result.best_step < result.steps:
        say(f"{result.folder} is the model of step {result.best_step:,}, the best of {result.steps:,}")
    if result.best_step == 0:
        say(f"no step made it better, so {result.folder} is the model as it was")
    say(f"next: bothways finetune TASK --model {result.folder} --train FILE --dev FILE --out DIR")
