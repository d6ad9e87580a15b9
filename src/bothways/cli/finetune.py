"""bothways finetune"""

import shlex
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, NoReturn

import typer

from bothways.cli.options import Encoding, FirstModel, LabelColumn, PairColumn, Sheet, TextColumn, Threads, TrainDevice
from bothways.cli.output import print_json, print_table, same_command, say, watch
from bothways.progress import is_first_process

if TYPE_CHECKING:
    from bothways.tasks.recipe import FinetuneRecipe


def finetune(
    task: Annotated[
        str,
        typer.Argument(
            metavar="TASK",
            help="One of the tasks above, or a recipe (.toml).",
            show_default=False,
        ),
    ],
    out: Annotated[
        Path,
        typer.Option(
            "--out", metavar="DIR", help="Run folder. If it has checkpoints, the run continues.", show_default=False
        ),
    ],
    train: Annotated[
        list[str] | None,
        typer.Option(
            "--train", metavar="FILE...", help="Labelled training data: one file or several.", show_default=False
        ),
    ] = None,
    dev: Annotated[
        list[str] | None,
        typer.Option(
            "--dev",
            metavar="FILE...",
            help="Labelled development data, to select the best checkpoint: one file or several.",
            show_default=False,
        ),
    ] = None,
    model: FirstModel = None,
    teacher: Annotated[
        str | None,
        typer.Option(
            "--teacher",
            metavar="DIR",
            help="Fine-tuned model to distill from; --set model.keep_layers=3 makes a student of three of its layers.",
            show_default=False,
        ),
    ] = None,
    text: TextColumn = None,
    pair: PairColumn = None,
    label: LabelColumn = None,
    encoding: Encoding = None,
    sheet: Sheet = None,
    epochs: Annotated[
        float | None,
        typer.Option(
            help="Epochs.  [default: as in the model's finetune.toml, else by the number of examples and labels]",
            show_default=False,
        ),
    ] = None,
    batch: Annotated[
        int | None,
        typer.Option(
            help="Batch size.  [default: as in the model's finetune.toml, else by the number of examples]",
            show_default=False,
        ),
    ] = None,
    lr: Annotated[
        float | None,
        typer.Option(
            help="Learning rate.  [default: as in the model's finetune.toml, else by its size]", show_default=False
        ),
    ] = None,
    seed: Annotated[
        int | None, typer.Option(help="Seed of the new head, the data order and dropout.", show_default=False)
    ] = None,
    seeds: Annotated[
        int,
        typer.Option(
            help="Number of runs with different seeds; reports mean and standard deviation, keeps the best.", min=1
        ),
    ] = 1,
    settings: Annotated[
        list[str] | None,
        typer.Option(
            "--set",
            metavar="KEY=VALUE",
            help="Any key of a recipe, as in optim.weight_decay=0.1; may be repeated.",
            show_default=False,
        ),
    ] = None,
    device: TrainDevice = None,
    threads: Threads = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Fine-tune a model on labelled files. If interrupted, the same command resumes exactly where it stopped.

    Tasks: classify (text classification), tag (token classification, NER), answer (extractive question answering),
    choose (multiple choice), score (cross-encoder, reranker), embed (sentence embeddings, bi-encoder). Other names are
    accepted: text-classification, ner, token-classification, pos, qa, question-answering, multiple-choice,
    cross-encoder, reranker, bi-encoder, sentence-transformer.

    The run folder holds the recipe with every key, metrics.jsonl, curve.png, and at the end model/, the best model on
    --dev, which transformers opens too. checkpoints/ is then dropped, unless run.keep_state is set.

    Example: bothways finetune classify --train examples/reviews.tsv --dev examples/reviews-dev.tsv
    --out my-classifier
    """
    from bothways.scoring.classification import positive_label, shown_name
    from bothways.tasks.finetune import finetune as run
    from bothways.tasks.recipe import advice_file, finetune_recipe
    from bothways.tasks.registry import find_task
    from bothways.train.report import Console
    from bothways.train.strict_toml import read_table

    is_recipe = Path(task).suffix == ".toml" or Path(task).is_file()
    table: dict[str, Any] = read_table(Path(task)) if is_recipe else {"task": find_task(task).name}
    given = {
        ("data", "train"): train,
        ("data", "dev"): dev,
        ("data", "text"): text,
        ("data", "pair"): pair,
        ("data", "label"): label,
        ("data", "encoding"): encoding,
        ("model", "init"): model,
        ("distill", "teacher"): teacher,
        ("run", "epochs"): epochs,
        ("run", "batch_size"): batch,
        ("run", "seed"): seed,
        ("run", "device"): device,
        ("optim", "lr"): lr,
    }
    for (section, key), value in given.items():
        if value is not None:
            table.setdefault(section, {})[key] = value
    recipe = finetune_recipe(table, settings or [])
    if advice := advice_file(recipe.model.init):
        say(f"settings that you did not give are those of {advice}")
    if seeds > 1:
        _several(recipe, out, seeds, as_json)
        return
    with Console(recipe.run.steps or None, recipe.run.minutes or None) as console:
        result = run(recipe, out, listen=[console], say=console.say, watch=watch)
    if not is_first_process():
        return
    if not result.complete:
        _stopped(result.steps)
    if as_json:
        positive = positive_label(result.scores, result.labels)
        print_json({**asdict(result), "folder": str(result.folder), **positive})
        return
    if result.scores:
        print_table(
            ("on the development data", f"step {result.best_step:,}"),
            [(shown_name(name, result.labels), f"{value:.4f}") for name, value in result.scores.items()],
            right=(f"step {result.best_step:,}",),
        )
    verb, rest = ("encode", "FILE --out vectors.npy") if recipe.task == "embed" else ("predict", "FILE")
    say(f"next: bothways {verb} --model {shlex.quote(str(result.folder))} {rest}")


def _several(recipe: "FinetuneRecipe", out: Path, seeds: int, as_json: bool) -> None:
    from bothways.scoring.classification import positive_label, shown_name
    from bothways.tasks.seeds import finetune_seeds
    from bothways.train.report import Console

    with Console(recipe.run.steps or None, recipe.run.minutes or None) as console:
        result = finetune_seeds(recipe, out, range(seeds), listen=lambda seed: [console], say=console.say, watch=watch)
    if not result.complete:
        _stopped(result.runs[-1].steps)
    labels = result.runs[0].labels
    if as_json:
        print_json({**asdict(result), "folder": str(result.folder), **positive_label(result.scores, labels)})
        return
    rows = [(shown_name(name, labels), f"{runs.mean:.4f}", f"{runs.sd:.4f}") for name, runs in result.scores.items()]
    print_table((f"{seeds} runs, development data", "mean", "sd"), rows, right=("mean", "sd"))
    folder = shlex.quote(str(result.folder))
    say(f"{result.folder} is the model of seed {result.best}, the best: bothways predict --model {folder} FILE")


def _stopped(steps: int) -> NoReturn:
    say(f"stopped at step {steps:,} and saved; to continue: {same_command()}")
    raise typer.Exit(130)
