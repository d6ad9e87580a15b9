"""bothways glue | squad | conll"""

from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from bothways.cli.output import print_json, print_table, same_command, say

if TYPE_CHECKING:
    from bothways.tasks.suites import Row

Folder = Annotated[Path, typer.Argument(metavar="FOLDER", help="Where the files are.", show_default=False)]
Start = Annotated[str, typer.Option("--model", metavar="DIR", help="The model to start from.", show_default=False)]
Out = Annotated[
    Path, typer.Option("--out", metavar="DIR", help="Runs, table and picture; done runs are kept.", show_default=False)
]
Seeds = Annotated[int, typer.Option("--seeds", help="How many runs of each task.", min=1)]
Settings = Annotated[
    list[str] | None,
    typer.Option("--set", metavar="KEY=VALUE", help="Change all recipes, as in run.epochs=2.", show_default=False),
]
Only = Annotated[
    list[str] | None, typer.Option("--only", metavar="TASK", help="This task; may be repeated.", show_default=False)
]
Json = Annotated[bool, typer.Option("--json", help="The table for programs.")]


def glue(
    folder: Folder,
    model: Start,
    out: Out,
    seeds: Seeds = 3,
    only: Only = None,
    settings: Settings = None,
    as_json: Json = False,
) -> None:
    """Fine-tune and score a model on all GLUE tasks found in a folder, each by itself, with several seeds.

    FOLDER holds CoLA, SST-2, MRPC and so on, each with its train and dev files, as GLUE gives them or as .jsonl.

    Example: bothways glue glue-data --model my-model --out glue-run
    """
    _run("glue", "GLUE, development data", folder, model, out, seeds, only or [], settings or [], as_json)


def squad(
    folder: Folder, model: Start, out: Out, seeds: Seeds = 1, settings: Settings = None, as_json: Json = False
) -> None:
    """Fine-tune and score a model on SQuAD 1.1, SQuAD 2.0 or CMRC: train*.json and dev*.json in a folder.

    Example: bothways squad squad-data --model my-model --out squad-run
    """
    _run("squad", "SQuAD, development data", folder, model, out, seeds, [], settings or [], as_json)


def conll(
    folder: Folder, model: Start, out: Out, seeds: Seeds = 1, settings: Settings = None, as_json: Json = False
) -> None:
    """Fine-tune and score a model on tagged columns such as CoNLL-2003: train* and dev* files in a folder.

    Example: bothways conll conll-data --model my-model --out conll-run
    """
    _run("conll", "CoNLL, development data", folder, model, out, seeds, [], settings or [], as_json)


def _run(
    suite: str,
    title: str,
    folder: Path,
    model: str,
    out: Path,
    seeds: int,
    only: list[str],
    settings: list[str],
    as_json: bool,
) -> None:
    from bothways.errors import StoppedError
    from bothways.tasks.suites import draw_rows, run_suite

    rows: list[Row] = []
    try:
        for row in run_suite(suite, folder, model, out, range(seeds), settings, only=only, listen=_listen, say=say):
            rows.append(row)
            say(f"{row.name}: {row.score} {_shown(row.runs)}")
    except StoppedError:
        say(f"stopped and saved; to go on: {same_command()}")
        raise typer.Exit(130) from None
    if not draw_rows(rows, out / f"{suite}.png", title):
        say("no picture was drawn, for lack of matplotlib: pip install 'bothways[plots]'")
    if as_json:
        print_json([asdict(row) for row in rows])
        return
    table = [(row.name, row.score, f"{row.examples:,}", _shown(row.runs)) for row in rows]
    print_table(
        (title, "score", "training examples", f"{seeds} runs"), table, right=("training examples", f"{seeds} runs")
    )
    if len(rows) > 1:
        say(f"mean of {len(rows)} tasks: {100 * sum(row.runs.mean for row in rows) / len(rows):.1f}")


def _shown(runs: Any) -> str:
    return f"{100 * runs.mean:.1f}" + (f" ± {100 * runs.sd:.1f}" if runs.n > 1 else "")


def _listen(name: str, seed: int) -> list[Any]:
    from bothways.train.work import Evaluated, Finished

    def tell(event: Any) -> None:
        if isinstance(event, Evaluated):
            scores = ", ".join(f"{score} {value:.4f}" for score, value in list(event.scores.items())[:4])
            say(f"{name}, seed {seed}, step {event.step:,}: {scores}")
        elif isinstance(event, Finished):
            say(f"{name}, seed {seed}: {'finished' if event.complete else 'stopped'} after {event.elapsed:.0f} s")

    return [tell]
