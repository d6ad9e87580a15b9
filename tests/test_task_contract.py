"""The contract of a task, for every task in the registry: a new task is covered by being there."""

import json
import math
import tomllib
from collections.abc import Iterator, Sequence
from dataclasses import FrozenInstanceError, dataclass, fields, is_dataclass, replace
from itertools import islice
from pathlib import Path
from typing import Any

import pytest
import torch
import typer
from typer.testing import CliRunner

from bothways.cli.finetune import finetune as finetune_command
from bothways.data.findings import DataCounts
from bothways.data.notes import Notes
from bothways.doctor.check_data import check_data, guess_task
from bothways.engine.reader import WindowSettings
from bothways.errors import BothwaysError
from bothways.model.batch import Batch
from bothways.model.config import Learned, ModelConfig
from bothways.model.model import Model
from bothways.scoring.classification import Classes
from bothways.tasks.answering import decode_all
from bothways.tasks.folder import with_task
from bothways.tasks.recipe import FinetuneRecipe, finetune_recipe, write_finetune_recipe
from bothways.tasks.registry import TASKS, find_task, make_task, plan_task, task_config
from bothways.tasks.task import EncodedChunk, EncodedExample, Outputs, Sample, Targets, Task, TaskConfig
from bothways.tasks.trainable import FineTuning
from bothways.text.columns import Columns
from bothways.text.tokenizer import Tokenizer
from bothways.train.ranks import Ranks
from helpers import TINY, make_loud, refused
from helpers.cli import Run

EXAMPLES = Path(__file__).parent.parent / "examples"
FILES = sorted((file for file in EXAMPLES.iterdir() if file.is_file() and "-dev" not in file.name and file.suffix in (".tsv", ".jsonl", ".json", ".conll") and "-zh.json" not in file.name),
               reverse=True)  # fmt: skip
"""The files that are whole and have usual columns; those of the stories have not."""
ROWS = 16

every_task = pytest.mark.parametrize("name", TASKS)


def file_for(name: str) -> Path:
    """The file of examples/ that is for a task: guessed, or else one in which this task finds no error."""
    for file in FILES:
        if guess_task(str(file)).name == name:
            return file
    for file in FILES:
        try:
            if not check_data([file], task=name).of("error"):
                return file
        except BothwaysError:
            continue
    raise AssertionError(f"examples/ has no file for the task {name}")


def read(name: str) -> list[Any]:
    return list(islice(TASKS[name].read([str(file_for(name))], Columns(), Notes()), ROWS))


def base(tokenizer: Tokenizer) -> Model:
    shape = replace(TINY, layers=1, positions=Learned(256), dropout=0.0, attention_dropout=0.0)
    model = Model.new(ModelConfig(shape, ("pooler",)), tokenizer, seed=1)
    make_loud(model)
    return model


# ------------------------------------------------------------------ names and settings


def test_every_name_is_of_one_task() -> None:
    names = [known for task in TASKS.values() for known in (task.name, *task.aliases)]
    assert len(names) == len(set(names))
    for name, task in TASKS.items():
        assert name == task.name
        assert task.title
        assert all(find_task(known) is task for known in (name, *task.aliases))
    with refused("unknown-task", "dance"):
        find_task("dance")


@every_task
def test_settings_and_options_are_frozen_and_have_defaults(name: str) -> None:
    for kind in (TASKS[name].Settings, TASKS[name].Options):
        assert is_dataclass(kind)
        made = kind()
        assert made == kind()
        for field in fields(kind):
            with pytest.raises(FrozenInstanceError):
                setattr(made, field.name, None)
    recipe = replace(FinetuneRecipe(task=name), settings=None)
    assert recipe.settings == TASKS[name].Settings()
    again = finetune_recipe(tomllib.loads(write_finetune_recipe(recipe)))
    assert (again.task, again.settings) == (name, recipe.settings)


def test_the_help_of_finetune_names_every_task() -> None:
    app = typer.Typer()
    app.command()(finetune_command)
    words = " ".join(CliRunner().invoke(app, ["--help"], env={"COLUMNS": "200"}).output.split())
    for task in TASKS.values():
        assert f"{task.name} ({task.title})" in words
        assert any(alias in words for alias in task.aliases)


# ------------------------------------------------------------------ from a file to scores


@pytest.mark.filterwarnings("ignore:.*which this model cannot read:UserWarning")  # Chinese examples
@every_task
def test_from_a_file_to_scores(name: str, tokenizer: Tokenizer) -> None:
    kind, rows = TASKS[name], read(name)
    settings, start = kind.Settings(), base(tokenizer)
    config, labels = plan_task(name, settings, WindowSettings(), rows, start.config.encoder.max_length)
    model = with_task(start, config, labels, seed=2)
    assert task_config(model) == config
    rows = [kind.normalise(config, row) for row in rows]
    task = make_task(model, settings, rows)
    assert type(task) is kind
    for row in rows:
        task.check(row)
    items = task.encode(rows)
    assert [item.example for item in items] == rows
    samples = [sample for item in items for sample in task.samples(item)]
    assert samples
    work = FineTuning(model, task, samples, rows, batch=len(samples), micro_tokens=2_000, seed=0)
    assert math.isfinite(backward(work))
    for part in (model.encoder, model.heads) if kind.head else (model.encoder,):
        assert any(p.grad is not None and float(p.grad.abs().sum()) > 0 for p in part.parameters())
    scores = task.new_scores()
    model.eval()
    with torch.no_grad():
        found = list(decode_all(task, lambda batch: work.module.eval()(batch, {}), rows, torch.device("cpu")))
    assert len(found) == len(rows)
    for item, decoded in found:
        task.count(scores, item, decoded)
        assert task.error(item, decoded) >= 0
        assert json.dumps(task.answer(item, decoded))
        if kind.has_ranking:
            assert isinstance(task.answer(item, decoded, top=2), list)
    assert task.metric in scores.scores()
    assert task_config(model) == config
    assert kind.tuned(config, scores.scores()).task == name


def backward(work: FineTuning) -> float:
    """The loss of a step with all samples, after its backward pass."""
    step = next(work.feed(0, 0, Ranks(), False))
    work.module.train()
    outputs = [work.module(micro.batch, micro.targets) for micro in step.micros]
    if step.whole is None:
        loss = torch.cat(outputs).sum() / step.counts["loss"]
    else:
        loss = work.task.step_loss(torch.cat(outputs), step.whole.targets) / step.counts["loss"]
    loss.backward()
    return float(loss.detach())


# ------------------------------------------------------------------ checks of data


@every_task
def test_what_doctor_asks_of_an_example(name: str) -> None:
    task, rows = TASKS[name], read(name)
    counts = DataCounts([str(file_for(name))], rows=len(rows))
    for row in rows:
        texts = task.texts_of(row)
        assert texts
        assert all(isinstance(text, str) for text in texts)
        assert set(" ".join(texts).split()) <= set(" ".join(task.texts_read(row)).split())
        assert not task.is_empty(row)
        assert task.shared_text(row) is None or task.shared_text(row) in texts
        assert task.gold_key(row) == task.gold_key(replace(row))
        assert task.gold_key(replace(row, gold=None)) is None
        assert task.shown_gold(replace(row, gold=None)) == ""
        task.survey(row, counts)
    kind = task.data_kind(counts)
    shares = task.label_shares(counts, kind)
    assert [share.name for share in shares] == list(task.label_counts(counts, kind))
    assert sum(share.share for share in shares) == pytest.approx(1)
    assert counts.lengths
    found, _ = plan_task(name, task.Settings(), WindowSettings(), task.exemplars(counts), 256)
    whole, labels = plan_task(name, task.Settings(), WindowSettings(), rows, 256)
    assert (found.window, found.thresholds) == (whole.window, whole.thresholds)
    assert plan_task(name, task.Settings(), WindowSettings(), task.exemplars(counts), 256)[1] == labels


@every_task
def test_doctor_plans_the_training_of_every_task(name: str, model_folder: Path) -> None:
    file = file_for(name)
    found = check_data([file], [file], task=name, model=model_folder)
    assert (found.task, found.labelled) == (name, found.rows)
    assert found.reading is not None
    assert found.plan is not None
    (leak,) = [finding for finding in found.findings if finding.what == "leakage"]
    assert (leak.severity, leak.count) == ("error", found.rows)
    assert found.command.startswith(f"bothways finetune {name} ")


# ------------------------------------------------------------------ a new task


@dataclass(frozen=True)
class Note:
    """What the toy task reads."""

    texts: tuple[str, ...]
    gold: str | None
    where: str


class Toy(Task):
    """Only what is abstract; all else is the default."""

    name = "toy"
    title = "toy task"
    head = "sequence"
    metric = "accuracy"

    @classmethod
    def read(cls, files: Sequence[str], columns: Columns, notes: Notes, known: Any = None) -> Iterator[Note]:
        for file in files:
            for number, line in enumerate(Path(file).read_text(encoding="utf-8").splitlines(), 1):
                text, _, gold = line.partition(" = ")
                yield Note((text,), gold or None, f"{file}, line {number}")

    @classmethod
    def looks_like(cls, path: Path, rows: Sequence[Any]) -> bool:
        return path.suffix == ".txt" and " = " in path.read_text(encoding="utf-8")

    @classmethod
    def parse(cls, given: Any) -> Note:
        return Note((given,), None, "")

    @classmethod
    def plan(
        cls, settings: Any, window: WindowSettings, examples: Sequence[Note], max_length: int
    ) -> tuple[TaskConfig, tuple[str, ...]]:
        return TaskConfig(cls.name, window), tuple(sorted({example.gold or "" for example in examples}))

    @classmethod
    def exemplars(cls, counts: DataCounts) -> list[Note]:
        return [Note(("",), name, "") for name in counts.names]

    def encode(self, examples: Sequence[Note], before: int = 0) -> EncodedChunk:
        return EncodedChunk(examples, self.reader([example.texts for example in examples], before))

    def samples(self, item: EncodedExample) -> list[Sample]:
        return [Sample.of([view], self.labels.index(item.example.gold)) for view in item.views]

    def collate(self, samples: Sequence[Sample], batch: Batch) -> tuple[dict[str, torch.Tensor], float]:
        return {"gold": torch.tensor([sample.target for sample in samples])}, float(len(samples))

    def loss(self, model: Model, states: torch.Tensor, batch: Batch, targets: Targets) -> torch.Tensor:
        logits = self.outputs(model, states, batch).float()
        return torch.nn.functional.cross_entropy(logits, targets["gold"], reduction="sum")

    def outputs(self, model: Model, states: torch.Tensor, batch: Batch) -> torch.Tensor:
        return model.logits("sequence", states, batch)

    def decode(self, item: EncodedExample, outputs: Sequence[Outputs]) -> Any:
        return int(outputs[0].argmax())

    def answer(self, item: EncodedExample, decoded: Any, top: int = 1) -> Any:
        return {"verdict": self.labels[decoded]}  # unlike any other task's

    def new_scores(self) -> Classes:
        return Classes(self.labels)

    def count(self, scores: Any, item: EncodedExample, decoded: Any) -> None:
        chances = [float(i == decoded) for i in range(len(self.labels))]
        scores.add([self.labels.index(item.example.gold)], [chances])

    def error(self, item: EncodedExample, decoded: Any) -> float:
        return float(self.labels[decoded] != item.example.gold)


@pytest.mark.slow
def test_every_verb_takes_a_task_that_it_has_never_heard_of(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, base: Path, run: Run
) -> None:
    """A file and a line in the registry are all that a new task needs: finetune, evaluate, predict and doctor."""
    monkeypatch.setitem(TASKS, "toy", Toy)
    lines = [f"the cat runs to the house number {i} = {'yes' if i % 2 else 'no'}" for i in range(12)]
    (tmp_path / "a.txt").write_text("\n".join(lines), encoding="utf-8")
    common = ("finetune", "toy", "--train", tmp_path / "a.txt", "--dev", tmp_path / "a.txt", "--model", base)
    done = run(*common, "--out", tmp_path / "run", "--set", "run.steps=2", "--set", "run.device=cpu")
    assert done.returncode == 0, done.stderr
    folder = tmp_path / "run/model"
    for verb in (("evaluate", tmp_path / "a.txt"), ("predict", tmp_path / "a.txt"), ("predict", "the cat")):
        done = run(*verb, "--model", folder)
        assert done.returncode == 0, done.stderr
        assert "yes" in done.stdout or "no" in done.stdout
    assert set(json.loads(run("predict", "the cat", "--model", folder, "--json").stdout)) == {"verdict"}
    done = run("doctor", tmp_path / "a.txt", "--task", "toy", "--model", base, "--json")
    assert json.loads(done.stdout)["task"] == "toy"


def test_doctor_checks_a_task_that_it_has_never_heard_of(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(TASKS, "toy", Toy)
    lines = [f"the cat runs to the house number {i} = {'yes' if i % 2 else 'no'}" for i in range(20)]
    train, dev = tmp_path / "a.txt", tmp_path / "b.txt"
    train.write_text("\n".join([*lines, lines[3], lines[4].replace("= no", "= yes"), "no gold"]), encoding="utf-8")
    dev.write_text("\n".join([lines[5], "a dog = yes"]), encoding="utf-8")
    found = check_data([train], [dev])
    assert (found.task, found.rows, found.labelled, found.dev_rows) == ("toy", 23, 22, 2)
    counts = {finding.what: finding.count for finding in found.findings}
    assert (counts["unlabelled"], counts["duplicates"], counts["conflicts"], counts["leakage"]) == (1, 2, 2, 1)
    assert found.labels[0].count == 12
    assert found.command.startswith("bothways finetune toy ")
