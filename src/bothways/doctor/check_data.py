"""Check labelled data before training: what they are, what is wrong, what to do, how long training takes.

Files are read as streams, two or three times. About 35 bytes are kept of every row, 65 of a pair, and no
text.
"""

from collections.abc import Sequence
from dataclasses import replace
from functools import lru_cache
from pathlib import Path
from typing import Any, Literal

from bothways.data.findings import BLOCKING, SEVERITIES, Finding, short
from bothways.data.sources import ROWS, find_sources, first_rows
from bothways.data.tagged import KINDS
from bothways.doctor import training_plan
from bothways.doctor.checks import check_rows, find_conflicts, find_copies, find_leaks
from bothways.doctor.data_report import DataReport, Length, Reading, TrainingPlan
from bothways.doctor.survey import Survey
from bothways.doctor.tokens import tokenize
from bothways.errors import BothwaysError, require_choice
from bothways.model.box import DEFAULT, boxed_for, has_box
from bothways.model.model import Model
from bothways.progress import Watch, watch_nothing
from bothways.tasks.recipe import FinetuneData, FinetuneRecipe, finetune_recipe
from bothways.tasks.registry import TASKS, find_task
from bothways.tasks.task import Task
from bothways.text.frames import as_files
from bothways.text.streams import STDIN, read_as

Files = Path | str | Sequence[Path | str] | Any
"""Files, or a table in memory."""
_MOSTLY = 0.5


def check_data(
    files: Files,
    dev: Files = (),
    *,
    task: str | None = None,
    model: Path | str | None = None,
    text: str = "",
    pair: str = "",
    label: str = "",
    encoding: str = "",
    device: Literal["auto", "cpu", "cuda"] = "auto",
    watch: Watch = watch_nothing,
) -> DataReport:
    """What is wrong with labelled files, or with a table in memory, and what to do.

    Tokens and windows are those of `model`, or of the included model that reads the text; with `model` also the
    training time.

    Without `task`, the task is guessed from the file. `text`, `pair` and `label` name columns with unusual names, and
    `encoding` the encoding of the files. The training time is that on `device`, as `run.device` in a recipe.
    """
    with as_files(files, "the training table") as train_files, as_files(dev, "the development table") as dev_files:
        data = FinetuneData(tuple(train_files), tuple(dev_files), text, pair, label, encoding)
        return _checked(data, task, model, device, watch)


def _checked(data: FinetuneData, task: str | None, model: Path | str | None, device: str, watch: Watch) -> DataReport:
    require_choice("device", device, ("auto", "cpu", "cuda"))
    if str(STDIN) in (*data.train, *data.dev):
        raise BothwaysError("the data are read more than once: save standard input to a file first", "standard-input")
    if not data.train:
        raise BothwaysError("no input file was given", "no-data")
    with read_as(data.encoding):
        found = find_task(task) if task else guess_task(data.train[0])
        return _Doctor(found, data, str(model) if model is not None else "", device, watch).report()


def guess_task(file: str) -> type[Task]:
    """The task that a labelled file is for. A pair with a number is taken for text classification, as regression."""
    path = find_sources(file, (*KINDS, *ROWS))[0]
    rows = first_rows(path)
    # Later tasks are more specific: a row with options may have a question and a context too.
    guesses = [task for task in reversed(TASKS.values()) if task.looks_like(path, rows)]
    return guesses[0] if guesses else TASKS[FinetuneRecipe.task]


@lru_cache(maxsize=1)
def _included(name: str) -> Model:
    """A model in the box, to count tokens with."""
    return training_plan.load_base(name)


class _Doctor:
    """One check of some files."""

    def __init__(self, task: type[Task], data: FinetuneData, model: str, device: str, watch: Watch) -> None:
        self.task, self.data, self.model, self.device, self.watch = task, data, model, device, watch
        self.train = Survey(task, data.train, data.columns)
        self.settings: Any = None
        self.findings: list[Finding] = []
        self.not_checked: list[str] = []
        self.reading: Reading | None = None
        self.plan: TrainingPlan | None = None

    def report(self) -> DataReport:
        self.train.run(self.watch)
        if found := self.task.reconsider(self.train):
            self.findings.append(found.finding)
            self.settings, self.data = found.settings, replace(self.data, label=found.label or self.data.label)
            self.train = Survey(self.task, self.data.train, self.data.columns, settings=self.settings)
            self.train.run(self.watch)
        train, data = self.train, self.data
        self.dev = dev = Survey(self.task, data.dev, data.columns, True, self.settings) if data.dev else None
        self.kind = self.task.data_kind(train)
        self._check_train()
        if dev is None:
            self.not_checked.append("whether training and development data overlap: add `dev`")
        else:
            dev.run(self.watch)
            self._check_dev(dev)
        command = self._train()
        return DataReport(
            self.task.name,
            self.kind,
            train.rows,
            train.labelled,
            dev.rows if dev else 0,
            train.cjk / max(train.characters, 1),
            self.task.label_shares(train, self.kind) if train.labelled else (),
            {
                name: Length(lengths.mean, lengths.longest, short(lengths.where, train.files))
                for name, lengths in train.lengths.items()
            },
            tuple(sorted(self.findings, key=lambda finding: SEVERITIES.index(finding.severity))),
            command,
            self.reading,
            self.plan,
            tuple(self.not_checked),
            train.notes.columns,
        )

    def _check_train(self) -> None:
        self.findings += [*check_rows(self.train), *self.task.check_rows(self.train, self.kind)]
        if not self._is_hopeless():
            self.findings += self.task.check_labels(self.train, self.kind)
        self.findings += [find_copies(self.train), find_conflicts(self.train, self.kind)]

    def _check_dev(self, dev: Survey) -> None:
        """The development data by themselves, and against the training data."""
        for finding in (*check_rows(dev), *self.task.check_rows(dev, self.kind)):
            if finding.severity != "ok":
                self.findings.append(replace(finding, says=f"In the development data: {finding.says}"))
        self.findings += find_leaks(self.train, dev)
        if self.train.labelled and dev.labelled:
            self.findings += self.task.check_dev(self.train, dev, self.kind)

    def _is_hopeless(self) -> bool:
        blocking = any(finding.severity == "error" and finding.what in BLOCKING for finding in self.findings)
        return blocking or not self.train.labelled

    def _train(self) -> str:
        """Tokens and time, if there is a model and something to learn; and the next command."""
        if self._is_hopeless():
            self.not_checked.append("tokens, windows and training time: there is nothing to learn yet")
            return ""
        is_chinese = self.train.cjk > self.train.characters * _MOSTLY  # which the default model does not read
        included = (boxed_for("Chinese") if is_chinese else DEFAULT) if has_box() else None
        if self.model:
            self._tokenize(training_plan.load_base(self.model))
        elif included:
            self._tokenize(_included(included), included)
            self.not_checked.append("training time: add `model`")
        else:
            self.not_checked.append("tokens, windows, unknown tokens and training time: add `model`")
        settings = [setting for finding in self.findings for setting in finding.settings]
        folder = self.model or (boxed_for("Chinese") or "DIR" if is_chinese else "")
        return training_plan.next_command(self.task.name, self.data, folder, self.plan, settings)

    def _tokenize(self, base: Model, included: str = "") -> None:
        """The data through the model's tokenizer, and a few training steps unless it is only an included one."""
        recipe = finetune_recipe({"task": self.task.name, "model": {"init": self.model or included}})
        try:
            task, model, config = training_plan.with_head(recipe, base, self.train)
        except BothwaysError as error:
            do = "Use another model, or other settings in a recipe."
            self.findings.append(Finding("error", "model", f"This model cannot learn the task: {error}.", do))
            return
        examples = self.watch(self.train.read(), "tokenizing", self.train.files)
        found = tokenize(task, config, examples, self.train.files)
        self.reading = replace(found.reading, model=included)
        self.findings += found.findings
        if found.first and not included:
            share = self.dev.characters / max(self.train.characters, 1) if self.dev else 0.0
            self.plan = training_plan.make_plan(task, model, recipe, found, share, self.device)
