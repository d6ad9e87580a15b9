"""Whole benchmarks from a folder: what is found in it, what the table says of the runs, what is not done twice."""

import json
import os
import re
import shutil
import signal
import statistics
import sys
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, NoReturn

import numpy as np
import pytest
from PIL import Image
from typer.main import get_command

from bothways.cli import app
from bothways.data.notes import Notes
from bothways.errors import BothwaysError, StoppedError
from bothways.model.load import load
from bothways.predict.evaluation import evaluate
from bothways.predict.predictor import Predictor
from bothways.scoring.significance import Summary
from bothways.tasks.recipe import FinetuneData, FinetuneRecipe, finetune_recipe, read_finetune_recipe
from bothways.tasks.registry import TASKS
from bothways.tasks.seeds import finetune_seeds
from bothways.tasks.suites import SUITES, BenchmarkFiles, BenchmarkScore, draw_rows, find_cases, run_suite
from bothways.text.columns import Columns
from bothways.train.protocol import Event, Stepped
from bothways.train.session import Listener
from helpers import refused
from helpers.cli import Run
from helpers.tasks import quiet, recipe_for, scripted, written

# ---------------------------------------------------------------------- data

TEXTS = (
    "the black cat sleeps.",
    "a dog runs to the tree",
    'the "big house is in paris',
    "unbelievable!",
    "北京是中国的首都。",
    "the white dog talks, and talks",
    "in germany, the cat reads",
    "猫 and 狗",
)
"""The quote that is never closed is a word like others: GLUE's tables are not quoted."""

LAYOUTS = {
    "CoLA": ("", "gj04\t{bit}\t{star}\t{one}"),
    "SST-2": ("sentence\tlabel", "{one} \t{bit}"),
    "MRPC": ("Quality\t#1 ID\t#2 ID\t#1 String\t#2 String", "{bit}\t70{n}\t71{n}\t{one}\t{two}"),
    "STS-B": (
        "index\tgenre\tfilename\tyear\told_index\tsource1\tsource2\tsentence1\tsentence2\tscore",
        "{n}\tmain-news\tMSRvid\t2012test\t000{n}\tnone\tnone\t{one}\t{two}\t{grade}",
    ),
    "QQP": ("id\tqid1\tqid2\tquestion1\tquestion2\tis_duplicate", "{n}\t1{n}\t2{n}\t{one}\t{two}\t{bit}"),
    "MNLI": (
        "index\tpromptID\tpairID\tgenre\tsentence1_binary_parse\tsentence2_binary_parse\tsentence1_parse"
        "\tsentence2_parse\tsentence1\tsentence2\tlabel1\tgold_label",
        "{n}\t31193\t31193n\tfiction\t( a )\t( b )\t(ROOT a)\t(ROOT b)\t{one}\t{two}\tneutral\t{relation}",
    ),
    "QNLI": ("index\tquestion\tsentence\tlabel", "{n}\t{one}\t{two}\t{follows}"),
    "RTE": ("index\tsentence1\tsentence2\tlabel", "{n}\t{one}\t{two}\t{follows}"),
    "WNLI": ("index\tsentence1\tsentence2\tlabel", "{n}\t{one}\t{two}\t{bit}"),
}
"""The header and a row of each file as GLUE gives it."""


def values(place: int) -> dict[str, Any]:
    """What a row says, whatever its layout."""
    return {
        "n": place,
        "one": TEXTS[place % 8],
        "two": TEXTS[(3 * place + 1) % 8],
        "bit": place % 2,
        "star": "" if place % 2 else "*",
        "grade": f"{place * 1.7 % 5:.3f}",
        "relation": ("entailment", "neutral", "contradiction")[place % 3],
        "follows": ("entailment", "not_entailment")[place % 2],
    }


def write_own(folder: Path, name: str, rows: int = 8) -> None:
    """A task as GLUE gives it, with the files that lie beside and are not to be read."""
    folder.mkdir(parents=True)
    header, row = LAYOUTS[name]
    lines = [header] * bool(header) + [row.format(**values(place)) for place in range(rows)]
    parts = ("train", "dev_matched", "dev_mismatched") if name == "MNLI" else ("train", "dev")
    for part in parts:
        (folder / f"{part}.tsv").write_text("\n".join(lines) + "\n", encoding="utf-8")
    (folder / "test.tsv").write_text("index\tsentence\n0\tnobody reads this\n")
    (folder / "README.md").write_text("train and dev")
    (folder / "original").mkdir()
    (folder / "original" / "train.tsv").write_text("nobody reads this")


def touch(*files: Path) -> None:
    for file in files:
        file.parent.mkdir(parents=True, exist_ok=True)
        file.touch()


def names(found: Sequence[BenchmarkFiles]) -> list[str]:
    return [one.case.name for one in found]


def strict(text: str) -> Any:
    """JSON as the standard has it, which knows no NaN."""

    def refuse(word: str) -> NoReturn:
        raise AssertionError(f"{word} is not JSON")

    return json.loads(text, parse_constant=refuse)


# ---------------------------------------------------------------------- what is found

SPELLINGS = {
    "CoLA": ("CoLA", "cola", "COLA", "glue_cola", "glue-CoLA", "GLUE CoLA"),
    "SST-2": ("SST-2", "SST2", "sst_2", "glue_sst2"),
    "STS-B": ("STS-B", "stsb", "glue_stsb"),
    "MRPC": ("MRPC", "glue-mrpc"),
}


@pytest.mark.parametrize(("name", "folder"), [(name, folder) for name in SPELLINGS for folder in SPELLINGS[name]])
def test_a_task_is_found_under_many_spellings(name: str, folder: str, tmp_path: Path) -> None:
    touch(tmp_path / folder / "train.tsv", tmp_path / folder / "dev.tsv")
    found, missing = find_cases("glue", tmp_path)
    assert names(found) == [name]
    assert found[0].train == [str(tmp_path / folder / "train.tsv")]
    assert found[0].dev == [str(tmp_path / folder / "dev.tsv")]
    assert missing == [case.name for case in SUITES["glue"] if case.name != name]


@pytest.mark.parametrize("folder", ["CoLA-old", "my_cola", "CoLA2", "cola.zip", "original/CoLA", "superglue_cola"])
def test_what_is_called_otherwise_is_not_found(folder: str, tmp_path: Path) -> None:
    touch(tmp_path / folder / "train.tsv", tmp_path / folder / "dev.tsv")
    assert find_cases("glue", tmp_path)[0] == []


@pytest.mark.parametrize("ending", [".tsv", ".csv", ".jsonl", ".json", ".parquet", ".tsv.gz", ".jsonl.xz"])
def test_files_of_every_kind_are_found(ending: str, tmp_path: Path) -> None:
    touch(tmp_path / f"RTE/train{ending}", tmp_path / f"RTE/dev{ending}", tmp_path / f"RTE/test{ending}")
    (found,), _ = find_cases("glue", tmp_path)
    assert (found.train, found.dev) == ([str(tmp_path / f"RTE/train{ending}")], [str(tmp_path / f"RTE/dev{ending}")])


def test_a_file_in_several_parts_is_all_of_them_in_order(tmp_path: Path) -> None:
    parts = [tmp_path / f"QQP/train-{part}.jsonl" for part in ("00", "01", "02")]
    touch(*reversed(parts), tmp_path / "QQP/dev.jsonl", tmp_path / "QQP/train.md", tmp_path / "QQP/my-train.jsonl")
    (found,), _ = find_cases("glue", tmp_path)
    assert found.train == [str(part) for part in parts]


def test_half_a_task_is_missing(tmp_path: Path) -> None:
    """Without development data, without training data, or a file where a folder should be."""
    touch(tmp_path / "CoLA/train.tsv", tmp_path / "RTE/dev.tsv", tmp_path / "WNLI", tmp_path / "train.tsv")
    touch(tmp_path / "dev.tsv", tmp_path / "QNLI/train.tsv", tmp_path / "QNLI/dev.tsv")
    found, missing = find_cases("glue", tmp_path)
    assert names(found) == ["QNLI"]
    assert missing == ["CoLA", "SST-2", "MRPC", "STS-B", "QQP", "MNLI", "RTE", "WNLI"]


def test_of_two_spellings_the_whole_one_is_taken(tmp_path: Path) -> None:
    touch(tmp_path / "CoLA/train.tsv", tmp_path / "cola/dev.tsv")
    touch(tmp_path / "glue_cola/train.jsonl", tmp_path / "glue_cola/dev.jsonl")
    (found,), _ = find_cases("glue", tmp_path)
    assert found.train == [str(tmp_path / "glue_cola/train.jsonl")]


def test_mnli_is_scored_on_matched_data(tmp_path: Path) -> None:
    touch(tmp_path / "MNLI/train.tsv", tmp_path / "MNLI/dev_mismatched.tsv", tmp_path / "MNLI/dev.tsv")
    assert find_cases("glue", tmp_path)[0] == []
    touch(tmp_path / "MNLI/dev_matched.tsv")
    (found,), _ = find_cases("glue", tmp_path)
    assert found.dev == [str(tmp_path / "MNLI/dev_matched.tsv")]


def test_the_ids_beside_mrpc_are_no_development_data(tmp_path: Path) -> None:
    """GLUE's MRPC folder has dev_ids.tsv: pairs of numbers, by which its development data were set apart."""
    write_own(tmp_path / "MRPC", "MRPC")
    (tmp_path / "MRPC/dev_ids.tsv").write_text("1355540\t1355592\n2029631\t2029565\n")
    (found,), _ = find_cases("glue", tmp_path)
    assert found.dev == [str(tmp_path / "MRPC/dev.tsv")]


@pytest.mark.parametrize(
    ("suite", "train", "dev"),
    [
        ("squad", "train-v1.1.json", "dev-v1.1.json"),
        ("squad", "SQuAD/train-v2.0.json", "SQuAD/dev-v2.0.json"),
        ("conll", "train.txt", "dev.txt"),
        ("conll", "conll/train.conll", "conll/dev.conll"),
        ("conll", "CoNLL/train.conllu", "CoNLL/dev.conllu"),
    ],
)
def test_one_task_may_lie_in_the_folder_itself(suite: str, train: str, dev: str, tmp_path: Path) -> None:
    touch(tmp_path / train, tmp_path / dev)
    found, missing = find_cases(suite, tmp_path)
    assert [(one.train, one.dev) for one in found] == [([str(tmp_path / train)], [str(tmp_path / dev)])]
    assert missing == []


@pytest.mark.parametrize("name", LAYOUTS)
def test_glue_is_read_as_it_is(name: str, tmp_path: Path) -> None:
    """Every row, its texts and its label, from the files of its own layout."""
    write_own(tmp_path / name, name)
    (found,), _ = find_cases("glue", tmp_path)
    _, layout = LAYOUTS[name]
    gold = next(key for key in ("grade", "relation", "follows", "bit") if f"{{{key}}}" in layout)
    expected = [
        ((row["one"], row["two"]) if "{two}" in layout else (row["one"],), str(row[gold]))
        for row in map(values, range(8))
    ]
    for files in (found.train, found.dev):
        read = list(TASKS[found.case.task].read(files, Columns(), Notes()))
        assert [(tuple(text.strip() for text in one.texts), one.gold) for one in read] == expected


def test_every_task_of_glue_is_here() -> None:
    assert list(LAYOUTS) == [case.name for case in SUITES["glue"]]


# ---------------------------------------------------------------------- a whole benchmark

SEEDS = range(2)
SETTINGS = ("run.steps=2", "run.evaluate_every=2", "run.device=cpu", "optim.lr=1e-2", "optim.warmup=0")


@dataclass(frozen=True)
class Benchmark:
    """All of GLUE, run once; nobody writes into it."""

    data: Path
    base: Path
    out: Path
    rows: list[BenchmarkScore]
    said: list[str]

    @property
    def by_name(self) -> dict[str, BenchmarkScore]:
        return {row.name: row for row in self.rows}

    def again(self, out: Path, **changed: Any) -> Iterator[BenchmarkScore]:
        """The same call, in another folder."""
        usual: dict[str, Any] = {"seeds": SEEDS, "settings": SETTINGS, **changed}
        return run_suite("glue", self.data, str(self.base), out, usual.pop("seeds"), usual.pop("settings"), **usual)

    def copy(self, folder: Path, *names: str) -> Path:
        """The finished runs of some tasks."""
        for name in names:
            shutil.copytree(self.out / name, folder / name)
        return folder

    def command(self, out: Path, *more: object) -> list[object]:
        settings = [word for setting in SETTINGS for word in ("--set", setting)]
        return ["glue", self.data, "--model", self.base, "--out", out, "--seeds", len(SEEDS), *settings, *more]


@pytest.fixture(scope="session")
def glue(tmp_path_factory: pytest.TempPathFactory, base: Path) -> Benchmark:
    folder = tmp_path_factory.mktemp("glue")
    for name in LAYOUTS:
        write_own(folder / "data" / name, name)
    said: list[str] = []
    rows = list(run_suite("glue", folder / "data", str(base), folder / "out", SEEDS, SETTINGS, say=said.append))
    return Benchmark(folder / "data", base, folder / "out", rows, said)


def test_every_task_has_a_row_with_the_score_of_the_benchmark(glue: Benchmark) -> None:
    """The scores are those of the GLUE paper's tables."""
    assert [(row.name, row.score) for row in glue.rows] == [
        ("CoLA", "matthews"),
        ("SST-2", "accuracy"),
        ("MRPC", "positive_f1"),
        ("STS-B", "spearman"),
        ("QQP", "positive_f1"),
        ("MNLI", "accuracy"),
        ("QNLI", "accuracy"),
        ("RTE", "accuracy"),
        ("WNLI", "accuracy"),
    ]
    assert [row.examples for row in glue.rows] == [8] * 9
    assert all(row.runs == row.all[row.score] for row in glue.rows)
    assert not any("left out" in words for words in glue.said)


@pytest.mark.parametrize("name", ["CoLA", "MRPC", "STS-B", "MNLI"])
def test_mean_and_deviation_are_those_of_the_runs(name: str, glue: Benchmark) -> None:
    """Of the models that the runs left, each evaluated by itself."""
    row = glue.by_name[name]
    dev = glue.data / name / ("dev_matched.tsv" if name == "MNLI" else "dev.tsv")
    runs = [evaluate([str(dev)], Predictor.load(glue.out / name / f"seed-{seed}/model")).scores for seed in SEEDS]
    assert row.all.keys() == runs[0].keys()
    for score, summed in row.all.items():
        told = [one[score] for one in runs]
        assert summed.mean == pytest.approx(statistics.mean(told), abs=1e-5), score
        assert summed.sd == pytest.approx(statistics.stdev(told), abs=1e-5), score
        assert summed.n == 2
    assert any(summed.sd > 1e-3 for summed in row.all.values())  # the seeds can be told apart


@pytest.mark.parametrize("name", ["CoLA", "STS-B"])
def test_the_best_seed_is_kept(name: str, glue: Benchmark) -> None:
    goal = glue.by_name[name].score
    dev = str(glue.data / name / "dev.tsv")
    folders = [glue.out / name / f"seed-{seed}/model" for seed in SEEDS]
    scores = [evaluate([dev], Predictor.load(folder)).scores[goal] for folder in folders]
    kept, best = load(glue.out / name / "model").state_dict(), load(folders[int(np.argmax(scores))]).state_dict()
    assert all((kept[weight] == best[weight]).all() for weight in best)


@pytest.mark.parametrize("name", LAYOUTS)
def test_settings_reach_every_recipe(name: str, glue: Benchmark) -> None:
    """And leave what is the task's own."""
    (case,) = [case for case in SUITES["glue"] if case.name == name]
    for seed in SEEDS:
        recipe = read_finetune_recipe(glue.out / name / f"seed-{seed}/recipe.toml")
        assert (recipe.run.steps, recipe.optim.lr, recipe.optim.warmup, recipe.run.seed) == (2, 1e-2, 0, seed)
        assert recipe.model.init == str(glue.base)
        assert recipe.data.train == (str(glue.data / name / "train.tsv"),)
        assert recipe.settings.metric == case.settings["classify"]["metric"]
        assert recipe.settings.kind == ("regression" if name == "STS-B" else "single")


@pytest.mark.parametrize(
    ("suite", "settings", "lr"), [("squad", (), 5e-5), ("conll", (), 5e-5), ("conll", ("optim.lr=1e-4",), 1e-4)]
)
def test_a_setting_comes_before_the_tasks_own(
    suite: str, settings: tuple[str, ...], lr: float, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    touch(tmp_path / "data/train.json", tmp_path / "data/dev.json")
    seen: list[FinetuneRecipe] = []

    def stop(recipe: FinetuneRecipe, *_: object, **__: object) -> NoReturn:
        seen.append(recipe)
        raise BothwaysError("enough", "enough")

    monkeypatch.setattr("bothways.tasks.suites.finetune_seeds", stop)
    with refused("enough"):
        list(run_suite(suite, tmp_path / "data", "base", tmp_path / "out", [0], settings))
    assert seen[0].optim.lr == lr
    assert seen[0].task == SUITES[suite][0].task


# ---------------------------------------------------------------------- what is not done twice


class Heard:
    """All events, by task and seed."""

    def __init__(self) -> None:
        self.steps: list[tuple[str, int]] = []

    def __call__(self, name: str, seed: int) -> Sequence[Listener]:
        def tell(event: Event) -> None:
            if isinstance(event, Stepped):
                self.steps.append((name, seed))

        return [tell]


def logs(out: Path) -> dict[str, bytes]:
    """With what a clock said: a run that was made again would say something else."""
    return {str(path.relative_to(out)): path.read_bytes() for path in sorted(out.rglob("metrics.jsonl"))}


def test_finished_runs_are_not_repeated(glue: Benchmark, tmp_path: Path) -> None:
    out = glue.copy(tmp_path / "out", "CoLA", "STS-B")
    before, heard = logs(out), Heard()
    rows = list(glue.again(out, only=["CoLA", "STS-B"], listen=heard))
    assert rows == [glue.by_name["CoLA"], glue.by_name["STS-B"]]
    assert heard.steps == []
    assert logs(out) == before


def test_more_seeds_only_add_to_those_that_are_there(glue: Benchmark, tmp_path: Path) -> None:
    out, heard = glue.copy(tmp_path / "out", "CoLA"), Heard()
    (row,) = glue.again(out, seeds=range(3), only=["CoLA"], listen=heard)
    assert heard.steps == [("CoLA", 2)] * 2
    assert row.runs.n == 3
    losses = [
        evaluate([str(glue.data / "CoLA/dev.tsv")], Predictor.load(out / f"CoLA/seed-{seed}/model")).scores["brier"]
        for seed in range(3)
    ]
    assert row.all["brier"].mean == pytest.approx(statistics.mean(losses), abs=1e-5)


def test_a_row_comes_as_soon_as_its_task_is_done(glue: Benchmark, tmp_path: Path) -> None:
    heard = Heard()
    rows = glue.again(tmp_path / "out", seeds=[0], only=["RTE", "WNLI"], listen=heard)
    assert next(rows).name == "RTE"
    assert heard.steps == [("RTE", 0)] * 2
    assert not (tmp_path / "out/WNLI").exists()
    assert [row.name for row in rows] == ["WNLI"]


def test_an_interrupted_benchmark_goes_on(glue: Benchmark, tmp_path: Path) -> None:
    """StoppedError in the second task's first run: no row of it, no model; then all as if nothing had been."""

    def interrupt(name: str, seed: int) -> Sequence[Listener]:
        def tell(event: Event) -> None:
            if isinstance(event, Stepped) and name == "SST-2":
                os.kill(os.getpid(), signal.SIGTERM)

        return [tell]

    rows: list[BenchmarkScore] = []
    with pytest.raises(StoppedError) as stopped:
        for row in glue.again(tmp_path / "out", only=["CoLA", "SST-2", "RTE"], listen=interrupt):
            rows.append(row)
    assert (stopped.value.code, stopped.value.value) == ("stopped", "SST-2")
    assert [row.name for row in rows] == ["CoLA"]
    assert sorted(path.name for path in (tmp_path / "out").iterdir()) == ["CoLA", "SST-2"]
    assert [path.name for path in (tmp_path / "out/SST-2").iterdir()] == ["seed-0"]
    rows = list(glue.again(tmp_path / "out", only=["CoLA", "SST-2", "RTE"]))
    assert rows == [glue.by_name[name] for name in ("CoLA", "SST-2", "RTE")]


def test_other_settings_do_not_go_on_in_the_same_folder(glue: Benchmark, tmp_path: Path) -> None:
    out = glue.copy(tmp_path / "out", "CoLA")
    with refused("other-settings", names=r"CoLA.*recipe"):
        list(glue.again(out, only=["CoLA"], settings=[*SETTINGS, "optim.lr=2e-2"]))


# ---------------------------------------------------------------------- several seeds


def seeded(base: Path, folder: Path, **classify: Any) -> FinetuneRecipe:
    data = str(written(folder, "single"))
    plan = recipe_for("classify", base, run=quiet(steps=1), data=FinetuneData((data,), (data,)))
    return replace(plan, settings=replace(plan.settings, **classify))


def test_seeds_need_development_data(base: Path, tmp_path: Path) -> None:
    plan = seeded(base, tmp_path)
    with refused("no-data"):
        finetune_seeds(replace(plan, data=replace(plan.data, dev=())), tmp_path / "out", [0, 1])
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    ("metric", "scores", "best"),
    [
        ("accuracy", [0.3, 0.6, 0.4], 8),
        ("accuracy", [0.5, 0.5, 0.5], 7),
        ("brier", [0.3, 0.6, 0.1], 9),
    ],
)
def test_the_best_is_the_highest_or_of_errors_the_lowest(
    metric: str, scores: list[float], best: int, base: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And of equal ones the first. The deviation is that of a sample."""
    scripted(monkeypatch, scores, metric)
    found = finetune_seeds(seeded(base, tmp_path, metric=metric), tmp_path / "out", [7, 8, 9])
    assert (found.metric, found.best, found.complete) == (metric, best, True)
    assert found.scores[metric].mean == pytest.approx(statistics.mean(scores))
    assert found.scores[metric].sd == pytest.approx(statistics.stdev(scores))
    kept, own = load(found.folder).state_dict(), load(tmp_path / f"out/seed-{best}/model").state_dict()
    assert all((kept[name] == own[name]).all() for name in own)


def test_a_stopped_seed_stops_the_others(base: Path, tmp_path: Path) -> None:
    def interrupt(seed: int) -> Sequence[Listener]:
        def tell(event: Event) -> None:
            if isinstance(event, Stepped) and seed == 1:
                os.kill(os.getpid(), signal.SIGTERM)

        return [tell]

    plan = seeded(base, tmp_path)
    plan = replace(plan, run=replace(plan.run, steps=2))
    stopped = finetune_seeds(plan, tmp_path / "out", [0, 1, 2], listen=interrupt)
    assert not stopped.complete
    assert [run.complete for run in stopped.runs] == [True, False]
    assert not (tmp_path / "out/model").exists()
    found = finetune_seeds(plan, tmp_path / "out", [0, 1, 2])
    whole = finetune_seeds(plan, tmp_path / "whole", [0, 1, 2])
    assert found.complete
    assert [run.scores for run in found.runs] == [run.scores for run in whole.runs]
    assert (found.best, found.scores) == (whole.best, whole.scores)


def test_one_seed_has_no_deviation(base: Path, tmp_path: Path) -> None:
    found = finetune_seeds(seeded(base, tmp_path), tmp_path / "out", [4])
    (run,) = found.runs
    assert found.best == 4
    assert {name: one.mean for name, one in found.scores.items()} == run.scores
    assert all(one.n == 1 and np.isnan(one.sd) for one in found.scores.values())


# ---------------------------------------------------------------------- the command line


def shown(runs: Summary) -> str:
    return f"{100 * runs.mean:.1f} ± {100 * runs.sd:.1f}"


def test_the_table(glue: Benchmark, tmp_path: Path, run: Run) -> None:
    """In the benchmark's order, whatever was asked for first; and a second time the same."""
    chosen = ("CoLA", "STS-B", "MNLI")
    rows = [glue.by_name[name] for name in chosen]
    out = glue.copy(tmp_path / "out", *chosen)
    before = logs(out)
    command = glue.command(out, *[word for name in reversed(chosen) for word in ("--only", name)])
    done = run(*command)
    assert done.returncode == 0, done.stderr
    lines = [" ".join(line.split()) for line in done.stdout.splitlines() if line.strip() and "─" not in line]
    assert lines[0] == "GLUE, development data score training examples 2 runs"
    mean = f"mean of 3 tasks {100 * statistics.mean(row.runs.mean for row in rows):.1f}"
    assert lines[1:] == [*(f"{row.name} {row.score} 8 {shown(row.runs)}" for row in rows), mean]
    for row in rows:
        assert f"{row.name}: {row.score} {shown(row.runs)}\n" in done.stderr
    assert (out / "table.txt").read_text(encoding="utf-8") == done.stdout
    assert strict((out / "results.json").read_text(encoding="utf-8")) == [asdict(row) for row in rows]
    assert run(*command).stdout == done.stdout
    assert logs(out) == before


def test_the_same_numbers_for_programs(glue: Benchmark, tmp_path: Path, run: Run) -> None:
    out = glue.copy(tmp_path / "out", "CoLA", "QQP")
    done = run(*glue.command(out, "--only", "QQP", "--only", "glue_cola", "--json"))
    assert done.returncode == 0, done.stderr
    assert strict(done.stdout) == [asdict(glue.by_name["CoLA"]), asdict(glue.by_name["QQP"])]
    assert sorted(path.name for path in out.iterdir()) == ["CoLA", "QQP", "glue.png", "results.json", "table.txt"]
    assert strict((out / "results.json").read_text(encoding="utf-8")) == strict(done.stdout)


def test_one_run_for_programs(glue: Benchmark, tmp_path: Path, run: Run) -> None:
    """One run has no deviation, which JSON has a word for."""
    out = glue.copy(tmp_path / "out", "RTE")
    done = run(*glue.command(out, "--only", "rte", "--json", "--seeds", 1))
    assert done.returncode == 0, done.stderr
    (row,) = strict(done.stdout)
    assert (row["runs"]["n"], row["runs"]["sd"]) == (1, None)


def test_one_run_is_shown_without_deviation(glue: Benchmark, tmp_path: Path, run: Run) -> None:
    out = glue.copy(tmp_path / "out", "RTE")
    done = run(*glue.command(out, "--only", "rte", "--seeds", 1))
    assert done.returncode == 0, done.stderr
    score = evaluate([str(glue.data / "RTE/dev.tsv")], Predictor.load(out / "RTE/seed-0/model")).scores["accuracy"]
    assert done.stdout.split()[-4:] == ["RTE", "accuracy", "8", f"{100 * score:.1f}"]
    assert "mean of" not in done.stdout


@pytest.mark.parametrize("suite", SUITES)
def test_rate_and_epochs_are_options(suite: str, tmp_path: Path, run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    """As `finetune` has them; --set has the last word."""
    seen: list[str] = []

    def stop(*given: Any, **_: object) -> NoReturn:
        seen.extend(given[5])
        raise BothwaysError("enough")

    monkeypatch.setattr("bothways.tasks.suites.run_suite", stop)
    run(suite, tmp_path, "--model", "m", "--out", "o", "--lr", "1e-4", "--epochs", 2, "--set", "run.batch_size=8")
    assert seen == ["run.epochs=2.0", "optim.lr=0.0001", "run.batch_size=8"]


def test_what_is_left_out_is_said(glue: Benchmark, tmp_path: Path, run: Run) -> None:
    data = tmp_path / "data"
    shutil.copytree(glue.data / "RTE", data / "RTE")
    touch(data / "MNLI/train.tsv")
    settings = [word for setting in SETTINGS for word in ("--set", setting)]
    done = run("glue", data, "--model", glue.base, "--out", tmp_path / "out", "--seeds", 1, *settings)
    assert done.returncode == 0, done.stderr
    assert ": CoLA, SST-2, MRPC, STS-B, QQP, MNLI, QNLI, WNLI\n" in done.stderr
    assert "RTE, seed 0: finished" in done.stderr


SQUAD = {
    "data": [
        {
            "title": "cities",
            "paragraphs": [
                {
                    "context": "the capital of germany is berlin, in germany.",
                    "qas": [
                        {"id": "1", "question": "the capital?", "answers": [{"text": "berlin", "answer_start": 26}]}
                    ],
                },
                {
                    "context": "法国的首都是巴黎，中国的首都是北京。",
                    "qas": [{"id": "2", "question": "中国的首都?", "answers": [{"text": "北京", "answer_start": 15}]}],
                },
            ],
        }
    ]
}
CONLL = (
    "-DOCSTART- -X- O O\n\nParis NNP I-NP B-LOC\nwalks VBZ I-VP O\n\n中 NN I-NP B-LOC\n国 NN I-NP I-LOC\n狗 NN I-NP O\n"
)
FILES = {"squad": ("json", json.dumps(SQUAD)), "conll": ("txt", CONLL)}


@pytest.mark.parametrize("suite", FILES)
def test_a_benchmark_of_one_task(suite: str, base: Path, tmp_path: Path, run: Run) -> None:
    """English and Chinese; the row is what the model in the folder scores."""
    ending, content = FILES[suite]
    data, out = tmp_path / "data", tmp_path / "out"
    data.mkdir()
    for part in ("train", "dev"):
        (data / f"{part}.{ending}").write_text(content, encoding="utf-8")
    command = (suite, data, "--model", base, "--out", out, "--set", "run.steps=3", "--set", "optim.lr=1e-2")
    done = run(*command)
    assert done.returncode == 0, done.stderr
    name = SUITES[suite][0].name
    score = evaluate([str(data / f"dev.{ending}")], Predictor.load(out / name / "model")).scores["f1"]
    assert done.stdout.split()[-4:] == [name, "f1", "2", f"{100 * score:.1f}"]
    assert done.stdout.splitlines()[1].split("   ")[0].strip() == f"{name}, development data"
    before = logs(out)
    assert run(*command).stdout == done.stdout
    assert logs(out) == before
    (row,) = json.loads(run(*command, "--json").stdout)
    assert row["runs"]["mean"] == pytest.approx(score, abs=1e-6)
    assert row["examples"] == 2
    assert pixels(out / f"{suite}.png", BLUE) > 0 or score == 0


def test_plain_tags_are_no_surprise(base: Path, tmp_path: Path, run: Run) -> None:
    """Tags that are no entities have no f1: another score is shown, or a sentence says so."""
    (tmp_path / "data").mkdir()
    for part in ("train", "dev"):
        (tmp_path / f"data/{part}.txt").write_text("the DET\ncat NOUN\n\nruns VERB\n")
    done = run("conll", tmp_path / "data", "--model", base, "--out", tmp_path / "out", "--set", "run.steps=1")
    assert "Traceback" not in done.stderr
    assert "accuracy" in done.stdout or done.returncode == 1


def test_an_interrupted_command_says_so(
    glue: Benchmark, tmp_path: Path, run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As `bothways finetune` does: status 130 and the command that continues, and no table."""

    def interrupt(name: str, seed: int) -> Sequence[Listener]:
        return [lambda event: os.kill(os.getpid(), signal.SIGTERM) if isinstance(event, Stepped) else None]

    monkeypatch.setattr("bothways.cli.suite._listen", interrupt)
    done = run(*glue.command(tmp_path / "out", "--only", "CoLA"))
    assert done.returncode == 130
    assert "bothways glue" in done.stderr
    assert done.stdout == ""


BAD = {
    "an unknown task": (["glue", "{data}", "--only", "SuperGLUE"], ["SuperGLUE", "CoLA, SST-2, MRPC"]),
    "a task that is not there": (["glue", "{half}", "--only", "MNLI"], ["half", "MNLI"]),
    "an empty folder": (["glue", "{empty}"], ["empty", "CoLA, SST-2, MRPC, STS-B, QQP, MNLI, QNLI, RTE, WNLI"]),
    "half a task": (["glue", "{half}"], ["half", "CoLA"]),
    "an empty folder for squad": (["squad", "{empty}"], ["empty", "SQuAD"]),
    "an empty folder for conll": (["conll", "{empty}"], ["empty", "CoNLL"]),
    "a missing folder": (["glue", "{empty}/none"], ["{empty}/none"]),
    "a missing folder for squad": (["squad", "{empty}/none"], ["{empty}/none"]),
    "a file": (["conll", "{data}/RTE/dev.tsv"], ["{data}/RTE/dev.tsv"]),
    "an unknown setting": (["glue", "{data}", "--set", "run.stepz=3"], ["run.stepz", "steps"]),
    "half a setting": (["glue", "{data}", "--set", "run.steps"], ["run.steps"]),
}


@pytest.mark.parametrize("what", BAD)
def test_bad_folders_and_settings_get_one_sentence(what: str, glue: Benchmark, tmp_path: Path, run: Run) -> None:
    places = {"data": glue.data, "empty": tmp_path / "empty", "half": tmp_path / "half"}
    places["empty"].mkdir()
    touch(tmp_path / "half/CoLA/train.tsv")
    arguments, values = BAD[what]
    done = run(*[word.format(**places) for word in arguments], "--model", glue.base, "--out", tmp_path / "out")
    assert done.returncode == 1, done.stderr
    assert done.stderr.startswith("bothways: ")
    assert all(value.format(**places) in done.stderr for value in values), done.stderr
    assert done.stdout == ""
    assert done.stderr.count("\n") == 1
    assert not (tmp_path / "out").exists()


BAD_CASES = {
    "no folder": ("nowhere", (), "no-folder"),
    "nothing": ("empty", (), "no-data"),
    "not there": ("empty", ("MNLI",), "unknown-benchmark"),
}


@pytest.mark.parametrize("what", BAD_CASES)
def test_bad_folders_have_codes(what: str, tmp_path: Path) -> None:
    folder, only, code = BAD_CASES[what]
    (tmp_path / "empty").mkdir()
    with refused(code, only[0] if only else tmp_path / folder):
        list(run_suite("glue", tmp_path / folder, "base", tmp_path / "out", [0], only=only))


def test_a_missing_model_is_named(glue: Benchmark, tmp_path: Path, run: Run) -> None:
    done = run("glue", glue.data, "--model", tmp_path / "none", "--out", tmp_path / "out", "--only", "CoLA")
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr.startswith("bothways: ")
    assert str(tmp_path / "none") in done.stderr
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    "arguments",
    [["glue"], ["glue", "data", "--model", "m"], ["squad", "data", "--model", "m", "--out", "o", "--only", "SQuAD"]],
    ids=["nothing", "no out", "only"],
)
def test_wrong_usage_is_exit_code_2(arguments: list[str], run: Run) -> None:
    assert run(*arguments).returncode == 2
    assert run("glue", "data", "--model", "m", "--out", "o", "--seeds", 0).returncode == 2


@pytest.mark.parametrize("suite", SUITES)
def test_every_benchmark_shows_an_example(suite: str, run: Run) -> None:
    assert f"Example: bothways {suite} " in " ".join(run(suite, "--help").stdout.split())


@pytest.mark.parametrize("verb", SUITES)
def test_help_shows_the_defaults_that_hold(verb: str, tmp_path: Path) -> None:
    """The model's finetune.toml, and then a number: that of the recipe which the verb makes."""
    usual = SUITES[verb][0].settings
    plain = finetune_recipe({"model": {"init": str(tmp_path)}}, usual=usual)
    (tmp_path / "finetune.toml").write_text("[run]\nepochs = 7\nbatch_size = 5\n[optim]\nlr = 0.25\n")
    advised = finetune_recipe({"model": {"init": str(tmp_path)}}, usual=usual)
    keys = {"epochs": ("run", "epochs"), "batch": ("run", "batch_size"), "lr": ("optim", "lr")}
    options = [option for option in get_command(app).commands[verb].params if option.name in keys]  # type: ignore[attr-defined]
    assert len(options) == 2
    for option in options:
        part, key = keys[option.name]
        otherwise, first = (getattr(getattr(recipe, part), key) for recipe in (plain, advised))
        assert first != otherwise
        shown = re.search(r"\[default: as in the model's finetune.toml, else (.+)\]", option.help)
        assert shown is not None, option.help
        assert float(shown[1]) == otherwise


# ---------------------------------------------------------------------- the picture

BLUE, RED = (0x1F, 0x4E, 0x8C), (0xC8, 0x38, 0x4A)


def pixels(path: Path, colour: tuple[int, int, int]) -> int:
    with Image.open(path) as picture:
        assert picture.format == "PNG"
        return int((np.asarray(picture.convert("RGB")) == colour).all(-1).sum())


def row_of(mean: float, sd: float = float("nan"), n: int = 1, name: str = "CoLA") -> BenchmarkScore:
    return BenchmarkScore(name, "matthews", 8, Summary(mean, sd, n), {})


def test_bars_are_as_long_as_the_scores(tmp_path: Path) -> None:
    for name, mean in (("short", 0.2), ("long", 0.8)):
        assert draw_rows([row_of(mean)], tmp_path / f"{name}.png", "GLUE")
    assert pixels(tmp_path / "long.png", BLUE) == pytest.approx(4 * pixels(tmp_path / "short.png", BLUE), rel=0.1)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["long.png", "short.png"]


def test_deviations_are_drawn_where_there_are_some(tmp_path: Path) -> None:
    draw_rows([row_of(0.5)], tmp_path / "one.png", "GLUE")
    draw_rows([row_of(0.5, 0.0, 3)], tmp_path / "equal.png", "GLUE")
    draw_rows([row_of(0.5, 0.2, 3)], tmp_path / "three.png", "GLUE")
    assert pixels(tmp_path / "one.png", RED) == pixels(tmp_path / "equal.png", RED) == 0
    assert pixels(tmp_path / "three.png", RED) > 50


def test_every_row_has_its_bar(tmp_path: Path) -> None:
    sizes = {}
    for count in (1, 4):
        draw_rows([row_of(0.5, name=f"task {place}") for place in range(count)], tmp_path / "a.png", "GLUE")
        with Image.open(tmp_path / "a.png") as picture:
            sizes[count] = picture.height
            columns = (np.asarray(picture.convert("RGB")) == BLUE).all(-1).any(1)
        assert int(np.diff(columns.astype(int), prepend=0).clip(0).sum()) == count
    assert sizes[4] > sizes[1]


def test_the_picture_of_a_benchmark_is_that_of_its_rows(glue: Benchmark, tmp_path: Path, run: Run) -> None:
    out = glue.copy(tmp_path / "out", "SST-2", "RTE")
    assert run(*glue.command(out, "--only", "RTE", "--only", "SST-2", "--json")).returncode == 0
    draw_rows([glue.by_name["SST-2"], glue.by_name["RTE"]], tmp_path / "own.png", "GLUE, development data")
    with Image.open(out / "glue.png") as made, Image.open(tmp_path / "own.png") as own:
        assert (np.asarray(made) == np.asarray(own)).all()


def test_without_matplotlib_there_is_a_table_and_a_sentence(
    glue: Benchmark, tmp_path: Path, run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    assert not draw_rows([row_of(0.5)], tmp_path / "none.png", "GLUE")
    out = glue.copy(tmp_path / "out", "RTE")
    done = run(*glue.command(out, "--only", "RTE"))
    assert done.returncode == 0, done.stderr
    assert "bothways[plots]" in done.stderr
    assert shown(glue.by_name["RTE"].runs) in done.stdout
    assert not (out / "glue.png").exists()
    assert not (tmp_path / "none.png").exists()


def test_a_benchmark_that_nobody_knows(tmp_path: Path) -> None:
    with refused("unknown-choice", "zz"):
        next(run_suite("zz", str(tmp_path), "model", str(tmp_path / "out")))
    with refused("no-folder", tmp_path / "none"):
        next(run_suite("glue", str(tmp_path / "none"), "model", str(tmp_path / "out")))
