"""What fine-tuning chooses when nothing is said, beside the best of a small grid.

    python benchmarks/defaults.py --data DIR --model NAME=DIR --model NAME=DIR --out OUT --seeds 2 --side-by-side 12

--data: a folder with glue_cola, glue_mrpc, glue_stsb, glue_rte, trec (train, test: .jsonl with text and fine), ag_news,
cad_imdb, goemotions (as benchmarks/box_data.py writes it: labels by name), conll2003 and ud_english_ewt, each with
train* and dev* (or test*) files, plain or .xz. --out: results.jsonl, which a second run of the same command goes on
from.

Every set is fine-tuned with the defaults of `bothways finetune` (the model's advice, or by its size and the data) and
with each learning rate and number of epochs of the grid, at the same batch size. The score is that of the last model.
"""

import argparse
import concurrent.futures
import itertools
import json
import multiprocessing
import platform
import statistics
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from bothways.tasks.finetune import finetune
from bothways.tasks.recipe import finetune_recipe, read_finetune_recipe

RATES, EPOCHS = (3e-5, 1e-4, 2e-4, 4e-4), (3, 8)


@dataclass(frozen=True)
class Job:
    """One data set."""

    folder: str
    score: str
    task: str = "classify"
    kind: str = "single"
    dev: str = "dev"
    label: str = ""
    text: str = ""


JOBS = {
    "CoLA": Job("glue_cola", "matthews"),
    "MRPC": Job("glue_mrpc", "positive_f1"),
    "STS-B": Job("glue_stsb", "spearman", kind="regression"),
    "RTE": Job("glue_rte", "accuracy"),
    "TREC, 50 labels": Job("trec", "accuracy", dev="test", label="fine"),
    "AG News": Job("ag_news", "accuracy", dev="test"),
    "IMDB, 3,414": Job("cad_imdb", "accuracy", text="Text", label="Sentiment"),
    "GoEmotions": Job("goemotions", "micro_f1", kind="multi"),
    "CoNLL": Job("conll2003", "f1", task="tag"),
    "EWT": Job("ud_english_ewt", "accuracy", task="tag"),
}


@dataclass(frozen=True)
class Trial:
    """One fine-tuning. Rate and epochs of 0: the defaults."""

    model: str
    name: str
    seed: int
    lr: float = 0.0
    epochs: int = 0


def work(trial: Trial, data: Path, model: str) -> dict[str, Any]:
    """The score of the last model, and what it was trained with."""
    job = JOBS[trial.name]
    table: dict[str, Any] = {
        "task": job.task,
        "model": {"init": model},
        "data": {part: files(data / job.folder, word) for part, word in (("train", "train"), ("dev", job.dev))},
        "run": {"seed": trial.seed, "evaluate_every": 10**9, "save_every": 10**9, "save_minutes": 0.0},
        "window": {"length": 256, "long": "cut"},
    }
    table["data"] |= {name: value for name, value in (("label", job.label), ("text", job.text)) if value}
    if job.task == "classify":
        table["classify"] = {"kind": job.kind}
    if trial.lr:
        table["run"]["epochs"] = trial.epochs
        table["optim"] = {"lr": trial.lr}
    with tempfile.TemporaryDirectory() as out:
        scores = finetune(finetune_recipe(table), out).scores
        recipe = read_finetune_recipe(f"{out}/recipe.toml")
    used = {"used_lr": recipe.optim.lr, "used_epochs": recipe.run.epochs, "batch": recipe.run.batch_size}
    return {**vars(trial), **used, "score": 100 * scores[job.score]}


def files(folder: Path, word: str) -> list[str]:
    return sorted(str(path) for path in folder.iterdir() if path.name.startswith(word) or f"-{word}" in path.name)


def show(results: list[dict[str, Any]], models: list[str]) -> None:
    """A table for each model: the default, the best of the grid, and their difference."""
    for model in models:
        rows, gaps = [], []
        for name in JOBS:
            cells: dict[tuple[float, float], list[dict[str, Any]]] = {}
            for row in results:
                if (row["model"], row["name"]) == (model, name):
                    cells.setdefault((row["lr"], row["epochs"]), []).append(row)
            means = {key: statistics.mean(row["score"] for row in some) for key, some in cells.items()}
            if len(means) < 2 or (0.0, 0) not in means:
                continue
            own, first = means.pop((0.0, 0)), cells[0.0, 0][0]
            lr, epochs = max(means, key=lambda key: means[key])
            gaps.append(own - means[lr, epochs])
            rows.append(
                f"| {name} | {first['used_lr']:g}, {first['used_epochs']:g}, {first['batch']} | {own:.1f} | "
                f"{lr:g}, {epochs} | {means[lr, epochs]:.1f} | {gaps[-1]:+.1f} |"
            )
        if rows:
            print(f"\n| {model} | rate, epochs, batch | default | best of the grid | | difference |")
            print("|---|---|---|---|---|---|", *rows, sep="\n")
            print(f"mean difference {statistics.mean(gaps):+.2f}, worst {min(gaps):+.2f}")


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("--data", type=Path, required=True, help="a folder of labelled data, described above")
    options.add_argument("--model", action="append", required=True, metavar="NAME=DIR", help="may be repeated")
    options.add_argument("--out", type=Path, required=True, help="a folder for the results")
    options.add_argument("--seeds", type=int, default=2)
    options.add_argument("--tasks", action="append", choices=list(JOBS), help="may be repeated (default: all)")
    options.add_argument("--side-by-side", type=int, default=1, metavar="N", help="fine-tunings at once")
    asked = options.parse_args()
    models = dict(given.split("=", 1) for given in asked.model)
    asked.out.mkdir(parents=True, exist_ok=True)
    path = asked.out / "results.jsonl"
    results = [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []
    done = {(row["model"], row["name"], row["seed"], row["lr"], row["epochs"]) for row in results}
    where = torch.cuda.get_device_name() if torch.cuda.is_available() else "CPU"
    print(f"{platform.machine()}, {where}; Python {platform.python_version()}, torch {torch.__version__}", flush=True)
    grid = [(0.0, 0), *itertools.product(RATES, EPOCHS)]
    trials = [
        Trial(model, name, seed, lr, epochs)
        for seed in range(asked.seeds)
        for name in asked.tasks or JOBS
        for model in models
        for lr, epochs in grid
        if (model, name, seed, lr, epochs) not in done
    ]
    context = multiprocessing.get_context("spawn")
    with concurrent.futures.ProcessPoolExecutor(asked.side_by_side, context) as pool, path.open("a") as log:
        running = [pool.submit(work, trial, asked.data, models[trial.model]) for trial in trials]
        for future in concurrent.futures.as_completed(running):
            row = future.result()
            results.append(row)
            log.write(json.dumps(row) + "\n")
            log.flush()
            print(f"{row['model']} {row['name']} {row['seed']}: {row['used_lr']:g}, {row['used_epochs']:g} epochs: "
                  f"{row['score']:.1f}", flush=True)  # fmt: skip
    show(results, list(models))


if __name__ == "__main__":
    main()
