"""Labelled data before any training: what they are, what is wrong with them, what to do, and how long it will take.

Files are read as streams, two or three times. Of every row sixteen bytes are held, and no text.
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from bothways.doctor import training
from bothways.doctor.checks import Read, find_conflicts, find_copies, find_leaks
from bothways.doctor.diagnosis import ORDER, Length, Reading, Severity, TrainingPlan
from bothways.doctor.diagnosis import Diagnosis as Diagnosis
from bothways.doctor.diagnosis import Finding as Finding
from bothways.doctor.guess import guess_task, label_column
from bothways.doctor.identity import short
from bothways.doctor.labels import (
    count_labels,
    find_label_faults,
    find_no_numbers,
    find_unknown_labels,
    kind_of_data,
    shares,
)
from bothways.doctor.rows import find_broken_tags, find_row_faults
from bothways.doctor.survey import Noted, Survey
from bothways.doctor.tokens import tokenize
from bothways.errors import BothwaysError
from bothways.tasks.recipe import DataSettings
from bothways.tasks.registry import TASKS, find_task
from bothways.text.files import STDIN

Watch = Callable[[Iterable[Any], str], Iterable[Any]]
"""Gives the examples on, showing how far it is."""
Files = Sequence[Path | str]


def diagnose_data(
    files: Files,
    dev: Files = (),
    *,
    task: str | None = None,
    model: Path | str | None = None,
    text: str = "",
    pair: str = "",
    label: str = "",
    watch: Watch = lambda examples, what: examples,
) -> Diagnosis:
    """What is wrong with labelled files, and what to do. With a model also tokens, windows, and the time of training.

    The task is guessed from the file unless said; `text`, `pair` and `label` name columns whose names do not tell.
    """
    train_files, dev_files = ([str(file) for file in some] for some in (files, dev))
    if str(STDIN) in (*train_files, *dev_files):
        raise BothwaysError("the data are read more than once, and standard input is not: save it to a file first")
    if not train_files:
        raise BothwaysError("no input file was given")
    task = task or guess_task(train_files[0])
    task = find_task(task).name
    data = DataSettings(tuple(train_files), tuple(dev_files), text, pair, label)
    return _Doctor(task, data, str(model) if model is not None else "", watch).diagnose()


class _Doctor:
    """One visit."""

    def __init__(self, task: str, data: DataSettings, model: str, watch: Watch) -> None:
        self.task, self.data, self.model, self.watch = task, data, model, watch
        self.names = [*data.train, *data.dev]
        self.findings: list[Finding] = []
        self.not_checked: list[str] = []
        self.reading: Reading | None = None
        self.plan: TrainingPlan | None = None

    def diagnose(self) -> Diagnosis:
        train = self._survey(self.data.train, "reading")
        self.kind = kind_of_data(self.task, train)
        self._look_at(train)
        dev = self._compare(train)
        command = self._try(train, dev)
        labelled = train.rows - train.unlabelled.count
        counts = count_labels(self.task, self.kind, train) if labelled else {}
        return Diagnosis(
            self.task,
            self.kind,
            train.rows,
            labelled,
            dev.rows if dev else 0,
            train.cjk / max(train.characters, 1),
            shares(counts, self.task, self.kind, labelled),
            {
                name: Length(extent.mean, extent.most, short(extent.where, self.data.train))
                for name, extent in train.extents.items()
            },
            tuple(sorted(self.findings, key=lambda finding: ORDER.index(finding.severity))),
            command,
            self.reading,
            self.plan,
            tuple(self.not_checked),
        )

    def _read(self, files: Sequence[str]) -> Read:
        return lambda: TASKS[self.task].read(files, self.data.columns, Noted())

    def _survey(self, files: Sequence[str], what: str) -> Survey:
        survey = Survey()
        for example in self.watch(TASKS[self.task].read(files, self.data.columns, survey.notes), what):
            survey.add(example)
        if not survey.rows:
            raise BothwaysError(f"{', '.join(files)}: no examples were found")
        return survey

    def _look_at(self, train: Survey) -> None:
        """The training data by themselves."""
        files, read = self.data.train, self._read(self.data.train)
        self.findings += self._rows(train, files)
        column = label_column(files[0], self.data) if self.task == "classify" else ""
        self.findings += find_label_faults(self.task, self.kind, train, files, column)
        self.findings.append(find_copies(train, read, files))
        self.findings.append(find_conflicts(train, read, files, self.task, self.kind))

    def _rows(self, survey: Survey, files: Sequence[str]) -> list[Finding]:
        found = list(find_row_faults(self.task, survey, files))
        if self.task == "tag":
            found += find_broken_tags(files, self.data.label or None, survey.notes, files)
        return found

    def _compare(self, train: Survey) -> Survey | None:
        """The development data, by themselves and against the training data."""
        if not self.data.dev:
            self.not_checked.append("whether training and development data overlap: add --dev FILE")
            return None
        dev = self._survey(self.data.dev, "reading --dev")
        found = self._rows(dev, self.data.dev)
        self.findings += [_of_dev(one) for one in found if one.severity != "fine" and one.what != "position"]
        if self.kind == "regression":
            self.findings += map(_of_dev, find_no_numbers(self.task, self.kind, dev, self.data.dev))
        reads = (self._read(self.data.train), self._read(self.data.dev))
        self.findings += find_leaks(train, dev, reads, self.names)
        if train.unlabelled.count < train.rows and dev.unlabelled.count < dev.rows:
            self.findings += find_unknown_labels(self.task, self.kind, train, dev, self.data.dev)
        return dev

    def _try(self, train: Survey, dev: Survey | None) -> str:
        """Tokens and time, if there is a model and something to learn; and the command that comes next."""
        hopeless = train.unlabelled.count == train.rows or any(
            finding.severity == "wrong" and finding.what in ("labels", "pairs") for finding in self.findings
        )
        if hopeless:
            self.not_checked.append("tokens, windows and time: there is nothing to learn from yet")
            return ""
        unbalanced = self.kind == "single" and any(f.what == "balance" and f.severity == "look" for f in self.findings)
        settings = ["classify.class_weights=balanced", "classify.metric=macro_f1"] if unbalanced else []
        if self.model:
            settings += self._train(train, dev)
        else:
            self.not_checked.append("tokens, windows, unknown words and the time of training: add --model DIR")
        return training.command(self.task, self.data, self.model, self.plan, settings)

    def _train(self, train: Survey, dev: Survey | None) -> list[str]:
        """The data through the model's tokenizer, and a few steps of training; the settings that the data ask for."""
        base = training.load_base(self.model)
        try:
            task, model, config = training.with_head(base, self.task, train)
        except BothwaysError as error:
            do = "Take another model, or set this in a recipe."
            self.findings.append(Finding("wrong", "model", f"This model cannot learn the task: {error}.", do))
            return []
        examples = self.watch(self._read(self.data.train)(), "tokenizing")
        found = tokenize(task, config, examples, self.data.train)
        self.reading = found.reading
        self.findings += found.findings
        if found.first:
            share = dev.characters / max(train.characters, 1) if dev else 0.0
            self.plan = training.make_plan(task, model, found, train.rows - train.unlabelled.count, share)
        return found.settings


def _of_dev(finding: Finding) -> Finding:
    """The same of the development data, where an answer that is not in its text can still be scored."""
    severity: Severity = "look" if finding.what == "answers" else finding.severity
    return replace(finding, severity=severity, says=f"In --dev: {finding.says}")
