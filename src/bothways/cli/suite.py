"""bothways glue | squad | conll"""

from contextlib import ExitStack
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from bothways.cli.options import FirstModel, Threads, TrainDevice
from bothways.cli.output import json_text, print_json, print_table, same_command, say, table_text, watch
from bothways.progress import Progress

if TYPE_CHECKING:
    from bothways.tasks.suites import BenchmarkScore

Folder = Annotated[Path, typer.Argument(metavar="FOLDER", help="Folder with the files.", show_default=False)]
Out = Annotated[
    Path,
    typer.Option(
        "--out",
        metavar="DIR",
        help="Folder for the runs, table.txt, results.json and a plot; finished runs are kept.",
        show_default=False,
    ),
]
Seeds = Annotated[int, typer.Option("--seeds", help="Number of runs per task.", min=1)]
Epochs = Annotated[
    float | None,
    typer.Option("--epochs", help="Epochs.  [default: as in the model's finetune.toml, else 3]", show_default=False),
]
Rate = Annotated[
    float | None,
    typer.Option(
        "--lr", help="Learning rate.  [default: as in the model's finetune.toml, else 3e-5]", show_default=False
    ),
]
QuickRate = Annotated[
    float | None,
    typer.Option(
        "--lr", help="Learning rate.  [default: as in the model's finetune.toml, else 5e-5]", show_default=False
    ),
]
Settings = Annotated[
    list[str] | None,
    typer.Option(
        "--set", metavar="KEY=VALUE", help="Set a key of all recipes, as in run.epochs=2.", show_default=False
    ),
]
Only = Annotated[
    list[str] | None,
    typer.Option("--only", metavar="TASK", help="Run only this task; may be repeated.", show_default=False),
]
Json = Annotated[bool, typer.Option("--json", help="Print JSON.")]


def glue(
    folder: Folder,
    out: Out,
    model: FirstModel = None,
    seeds: Seeds = 3,
    only: Only = None,
    epochs: Epochs = None,
    lr: Rate = None,
    settings: Settings = None,
    device: TrainDevice = None,
    threads: Threads = None,
    as_json: Json = False,
) -> None:
    """Fine-tune and score a model on all GLUE tasks found in a folder, each with several seeds.

    FOLDER holds CoLA, SST-2, MRPC and so on, each with train and dev files, as GLUE publishes them or as .jsonl.

    Example: bothways glue glue-data --model my-model --out glue-run
    """
    changes = _changes(epochs, lr, device, settings)
    _run("glue", "GLUE, development data", folder, model, out, seeds, only or [], changes, as_json)


def squad(
    folder: Folder,
    out: Out,
    model: FirstModel = None,
    seeds: Seeds = 1,
    epochs: Epochs = None,
    lr: QuickRate = None,
    settings: Settings = None,
    device: TrainDevice = None,
    threads: Threads = None,
    as_json: Json = False,
) -> None:
    """Fine-tune and score a model on SQuAD 1.1, SQuAD 2.0 or CMRC: train*.json and dev*.json in a folder.

    Example: bothways squad squad-data --model my-model --out squad-run
    """
    changes = _changes(epochs, lr, device, settings)
    _run("squad", "SQuAD, development data", folder, model, out, seeds, [], changes, as_json)


def conll(
    folder: Folder,
    out: Out,
    model: FirstModel = None,
    seeds: Seeds = 1,
    epochs: Epochs = None,
    lr: QuickRate = None,
    settings: Settings = None,
    device: TrainDevice = None,
    threads: Threads = None,
    as_json: Json = False,
) -> None:
    """Fine-tune and score a model on tagged columns such as CoNLL-2003: train* and dev* files in a folder.

    Example: bothways conll conll-data --model my-model --out conll-run
    """
    changes = _changes(epochs, lr, device, settings)
    _run("conll", "CoNLL, development data", folder, model, out, seeds, [], changes, as_json)


def _changes(epochs: float | None, lr: float | None, device: str | None, settings: list[str] | None) -> list[str]:
    """Settings of all recipes; --set comes last and wins."""
    given = {"run.epochs": epochs, "optim.lr": lr, "run.device": device}
    return [f"{key}={value}" for key, value in given.items() if value is not None] + (settings or [])


def _run(
    suite: str,
    title: str,
    folder: Path,
    model: str | None,
    out: Path,
    seeds: int,
    only: list[str],
    settings: list[str],
    as_json: bool,
) -> None:
    from bothways import atomic
    from bothways.errors import StoppedError, needs
    from bothways.tasks.suites import draw_rows, run_suite

    rows: list[BenchmarkScore] = []
    try:
        with ExitStack() as bars:
            listen = partial(_watched, bars)
            for row in run_suite(
                suite, folder, model or "", out, range(seeds), settings, only=only, listen=listen, say=say, watch=watch
            ):
                rows.append(row)
                say(f"{row.name}: {row.score} {_shown(row.runs)}")
    except StoppedError:
        say(f"stopped and saved; to continue: {same_command()}")
        raise typer.Exit(130) from None
    if not draw_rows(rows, out / f"{suite}.png", title):
        say(needs("drawing a plot", "matplotlib"))
    header = (title, "score", "training examples", f"{seeds} runs")
    table = [(row.name, row.score, f"{row.examples:,}", _shown(row.runs)) for row in rows]
    if len(rows) > 1:
        mean = sum(row.runs.mean for row in rows) / len(rows)
        table.append((f"mean of {len(rows)} tasks", "", "", f"{100 * mean:.1f}"))
    found = [asdict(row) for row in rows]
    files = {"results.json": json_text(found) + "\n", "table.txt": table_text(header, table, right=header[2:])}
    for name, text in files.items():
        with atomic.new_file(out / name) as fresh:
            fresh.write_text(text, encoding="utf-8")
    if as_json:
        print_json(found)
    else:
        print_table(header, table, right=header[2:])


def _shown(runs: Any) -> str:
    return f"{100 * runs.mean:.1f}" + (f" ± {100 * runs.sd:.1f}" if runs.n > 1 else "")


def _watched(bars: ExitStack, name: str, seed: int) -> list[Any]:
    """The listeners of a run: a bar, and messages."""
    return [_steps(bars, f"{name}, seed {seed}"), *_listen(name, seed)]


def _steps(bars: ExitStack, what: str) -> Any:
    """Shows the progress of a run in steps."""
    from bothways.train.protocol import Finished, Started, Stepped

    bar = Progress(what, unit="steps")

    def follow(event: Any) -> None:
        match event:
            case Started():
                bars.enter_context(bar)
                bar.at(event.step, event.steps)
            case Stepped():
                bar.at(event.step)
            case Finished():
                bars.close()

    return follow


def _listen(name: str, seed: int) -> list[Any]:
    from bothways.train.protocol import Evaluated, Finished

    def tell(event: Any) -> None:
        if isinstance(event, Evaluated):
            scores = ", ".join(f"{score} {value:.4f}" for score, value in list(event.scores.items())[:4])
            say(f"{name}, seed {seed}, step {event.step:,}: {scores}")
        elif isinstance(event, Finished):
            say(f"{name}, seed {seed}: {'finished' if event.complete else 'stopped'} after {event.elapsed:.0f} s")

    return [tell]
