"""bothways pretrain"""

import shlex
from dataclasses import asdict, replace
from pathlib import Path
from typing import Annotated

import typer

from bothways.cli.options import Threads, TrainDevice
from bothways.cli.output import print_json, print_table, same_command, say, with_options
from bothways.errors import BothwaysError
from bothways.progress import is_first_process


def pretrain(
    recipe: Annotated[
        str,
        typer.Argument(
            metavar="RECIPE",
            help="Recipe: a .toml file, or the name of an included one, such as tiny.",
            show_default=False,
        ),
    ],
    out: Annotated[
        Path,
        typer.Option(
            "--out", metavar="DIR", help="The run's folder. If it has checkpoints, the run resumes.", show_default=False
        ),
    ],
    data: Annotated[
        list[str] | None,
        typer.Option(
            "--data", metavar="DIR...", help="A folder written by bothways pack, or several.", show_default=False
        ),
    ] = None,
    settings: Annotated[
        list[str] | None,
        typer.Option(
            "--set",
            metavar="KEY=VALUE",
            help="Change a key of the recipe, as in optim.lr=3e-4; may be repeated.",
            show_default=False,
        ),
    ] = None,
    device: TrainDevice = None,
    threads: Threads = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Pretrain an encoder with a recipe. If interrupted, the same command resumes exactly where it stopped.

    The run's folder holds the full recipe, metrics.jsonl, curve.png, and at the end model/. checkpoints/ is then
    dropped, unless run.keep_state is set.
    For several GPUs: torchrun --nproc-per-node 8 -m bothways pretrain …

    Example: bothways pretrain tiny --data packed --out my-run
    """
    from bothways.pretraining.pretrain import pretrain as run
    from bothways.pretraining.recipe import read_recipe
    from bothways.tasks.recipe import FinetuneRecipe, advice_for
    from bothways.train.report import Console

    plan = read_recipe(recipe, [*([f"run.device={device}"] if device else []), *(settings or [])])
    try:
        advice_for(FinetuneRecipe.task, plan.finetune)  # fails now, and not when the model is fine-tuned
    except BothwaysError as error:
        raise BothwaysError(f"in the part finetune: {error}", error.code, f"finetune.{error.value}") from error
    if data:
        plan = replace(plan, data=replace(plan.data, train=tuple(data)))
    with Console(plan.run.steps or None, plan.run.minutes or None) as console:
        result = run(plan, out, listen=[console], say=lambda words: console.say(with_options(words)))
    if not is_first_process():
        return
    if not result.complete:
        say(f"stopped at step {result.steps:,} and saved; to resume: {same_command()}")
        raise typer.Exit(130)
    if as_json:
        print_json({**asdict(result), "folder": str(result.folder)})
        return
    names = [name for name in result.after if name in result.before or name.endswith("pseudo_perplexity")]
    if names:
        rows = [(name, _shown(result.before.get(name)), _shown(result.after[name])) for name in names]
        print_table(("held out", "before", "after"), rows, right=("before", "after"))
    beside = sorted(file.parent for file in out.glob("*/config.json"))  # the model, and the models of objectives
    fills = next((folder for folder in (result.folder, *beside) if _fills(folder)), None)
    command = (
        f'fill "…[MASK]…" --model {shlex.quote(str(fills))}' if fills else f"info {shlex.quote(str(result.folder))}"
    )
    say(f"{result.folder} is a model folder: bothways {command}")


def _fills(folder: Path) -> bool:
    from bothways.model.load import load

    model = load(folder)
    return "masked" in model.heads and not model.config.encoder.causal


def _shown(value: float | None) -> str:
    if value is None:
        return ""
    return f"{value:.4f}" if abs(value) < 100 else f"{value:,.0f}" if abs(value) < 1e6 else f"{value:.2e}"
