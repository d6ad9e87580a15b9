"""Benchmarks from a folder: GLUE, SQuAD, CoNLL. Every task found there is fine-tuned with several seeds.

Each task starts from the same pretrained encoder and is scored on its development data.
"""

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

from bothways.data.sources import kind_of
from bothways.errors import BothwaysError, StoppedError, require_choice
from bothways.plots import RED, bars, new_figure, save_figure
from bothways.progress import Watch, watch_nothing
from bothways.scoring.significance import Summary
from bothways.tasks.recipe import finetune_recipe
from bothways.tasks.seeds import finetune_seeds
from bothways.train.session import Listener, Say


@dataclass(frozen=True)
class BenchmarkTask:
    """One task of a benchmark."""

    name: str
    """As in the benchmark; its folder has this name, or one like glue_cola."""
    task: str
    settings: Mapping[str, Any] = field(default_factory=dict)
    """Recipe settings that differ from the defaults."""
    dev: str = "dev"
    """Prefix of its development file."""


def _paper(lr: float, **settings: Any) -> dict[str, Any]:
    """Settings of BERT's paper."""
    return {"optim": {"lr": lr}, "run": {"epochs": 3, "batch_size": 32}, **settings}


def _classify(name: str, score: str, kind: str = "single", dev: str = "dev") -> BenchmarkTask:
    return BenchmarkTask(name, "classify", _paper(3e-5, classify={"kind": kind, "metric": score}), dev)


SUITES: dict[str, tuple[BenchmarkTask, ...]] = {
    "glue": (
        _classify("CoLA", "matthews"),
        _classify("SST-2", "accuracy"),
        _classify("MRPC", "positive_f1"),
        _classify("STS-B", "spearman", "regression"),
        _classify("QQP", "positive_f1"),
        _classify("MNLI", "accuracy", dev="dev_matched"),
        _classify("QNLI", "accuracy"),
        _classify("RTE", "accuracy"),
        _classify("WNLI", "accuracy"),
    ),
    "squad": (BenchmarkTask("SQuAD", "answer", _paper(5e-5)),),
    "conll": (BenchmarkTask("CoNLL", "tag", _paper(5e-5)),),
}


@dataclass(frozen=True)
class BenchmarkScore:
    """One row of the table."""

    name: str
    score: str
    examples: int
    runs: Summary
    all: dict[str, Summary]


@dataclass(frozen=True)
class BenchmarkFiles:
    """A task and its files."""

    case: BenchmarkTask
    train: list[str]
    dev: list[str]


def find_cases(suite: str, folder: Path) -> tuple[list[BenchmarkFiles], list[str]]:
    """The tasks with training and development files, and the names of those without."""
    if not folder.is_dir():
        raise BothwaysError(f"there is no folder {folder}", "no-folder", folder)
    found, missing = [], []
    for case in SUITES[suite]:
        # The files of a benchmark with a single task may be in the folder itself.
        homes = [
            p
            for p in (*sorted(folder.iterdir()), folder)
            if p.is_dir() and (_same(p.name, case.name) or _alone(suite, p, folder))
        ]
        sets = [(_files(home, "train"), _files(home, case.dev)) for home in homes]
        whole = [(train, dev) for train, dev in sets if train and dev]
        if whole:
            found.append(BenchmarkFiles(case, *whole[0]))
        else:
            missing.append(case.name)
    return found, missing


def _alone(suite: str, path: Path, folder: Path) -> bool:
    return path == folder and len(SUITES[suite]) == 1


def _same(folder: str, name: str) -> bool:
    plain = re.sub(r"[^a-z0-9]", "", folder.lower())
    return plain.removeprefix("glue") == re.sub(r"[^a-z0-9]", "", name.lower())


def _files(folder: Path, prefix: str) -> list[str]:
    kinds = (".tsv", ".csv", ".jsonl", ".json", ".parquet", ".conll", ".txt", ".conllu")
    named = [p for p in folder.iterdir() if p.name.startswith(prefix) and kind_of(p) in kinds]
    return sorted(str(p) for p in named if not p.name.startswith("dev_ids"))  # which MRPC has beside its dev.tsv


def run_suite(
    suite: str,
    folder: Path | str,
    model: Path | str,
    out: Path | str,
    seeds: Sequence[int] = (0,),
    settings: Sequence[str] = (),
    *,
    only: Sequence[str] = (),
    listen: Callable[[str, int], Sequence[Listener]] = lambda name, seed: (),
    say: Say = lambda words: None,
    watch: Watch = watch_nothing,
) -> Iterator[BenchmarkScore]:
    """Fine-tune and score every task found; yields a row after each. Finished runs are not repeated.

    Raises StoppedError if a run was interrupted.
    """
    require_choice("`suite`", suite, tuple(SUITES))
    folder, out = Path(folder), Path(out)
    cases, missing = find_cases(suite, folder)
    if only and (unknown := [name for name in only if not any(_same(name, f.case.name) for f in cases)]):
        known = ", ".join(f.case.name for f in cases) or "nothing"
        raise BothwaysError(f"{folder} has no {unknown[0]}: it has {known}", "unknown-benchmark", unknown[0])
    if not cases:
        raise BothwaysError(
            f"{folder} has none of {', '.join(missing)}: expected folders with train and dev files", "no-data", folder
        )
    if missing and not only:
        say(f"skipped, for lack of training or development files: {', '.join(missing)}")
    for one in cases:
        case = one.case
        if only and not any(_same(name, case.name) for name in only):
            continue
        table = {"task": case.task, "data": {"train": one.train, "dev": one.dev}, "model": {"init": str(model)}}
        recipe = finetune_recipe(table, settings, usual=case.settings)
        result = finetune_seeds(recipe, out / case.name, seeds, listen=partial(listen, case.name), say=say, watch=watch)
        if not result.complete:
            raise StoppedError(f"{case.name} was stopped and has saved: the same call continues", "stopped", case.name)
        yield BenchmarkScore(
            case.name, result.metric, result.runs[0].examples, result.scores[result.metric], result.scores
        )


def draw_rows(rows: Sequence[BenchmarkScore], path: Path, title: str) -> bool:
    """The table as a picture: a bar for each task with its standard deviation. False without matplotlib."""
    figure = new_figure(8, 0.5 * len(rows) + 1.4)
    if figure is None:
        return False
    axes = figure.subplots()
    means = [100 * row.runs.mean for row in rows]
    deviations = [100 * row.runs.sd if row.runs.n > 1 else 0.0 for row in rows]
    pairs = list(zip(means, deviations, strict=True))
    texts = [f"{mean:.1f}" + (f" ± {sd:.1f}" if sd else "") for mean, sd in pairs]
    names = [f"{row.name}\n{row.score}" for row in rows]
    style = {"xerr": deviations, "error_kw": {"ecolor": RED}} if any(deviations) else {}
    bars(axes, names, means, texts, [mean + sd for mean, sd in pairs], 100.0, **style)
    axes.set_title(title, loc="left", fontweight="bold")
    save_figure(figure, path)
    return True
