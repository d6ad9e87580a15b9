"""How good is a model on labelled files: scores with intervals, details, the worst errors."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np

from bothways.data.examples import Tagged
from bothways.data.notes import Notes
from bothways.errors import BothwaysError
from bothways.model.load import load
from bothways.predict.predictor import Predictor
from bothways.scoring.accumulator import Accumulator
from bothways.scoring.calibration import COLDEST, HOTTEST, Bin, fit_temperature
from bothways.scoring.classification import Classes
from bothways.scoring.entities import Entities, Tags
from bothways.scoring.many_labels import ManyLabels
from bothways.scoring.significance import Comparison, compare, interval
from bothways.scoring.worst import Worst
from bothways.tasks.classify import TextClassification
from bothways.tasks.folder import rewrite_config
from bothways.tasks.recipe import DataSettings
from bothways.tasks.registry import task_config
from bothways.tasks.task import TaskConfig

_TO_DRAW = 5_000  # rank correlations of more take longer than the answers
_TO_CALIBRATE = 10_000  # rows whose probabilities are held, to find a temperature by


@dataclass(frozen=True)
class Evaluation:
    """What a model scored."""

    task: str
    metric: str
    """The score that counts most …"""
    interval: tuple[float, float]
    """… and where it lies with 95 %, by the bootstrap over examples."""
    examples: int
    scores: dict[str, float]
    details: dict[str, dict[str, float]] = field(default_factory=dict)
    """Precision, recall, f1 and support of each label, type or tag."""
    confusion: list[list[int]] | None = None
    """How often each label (row) was taken for each (column)."""
    temperature: float | None = None
    """By which to divide the logits, so that probabilities mean what they say."""
    thresholds: dict[str, float] = field(default_factory=dict)
    """Of several labels, from which probability on to give each for the highest F1."""
    reliability: list[Bin] = field(default_factory=list)
    """Accuracy beside confidence."""
    worst: list[dict[str, Any]] = field(default_factory=list)
    """The worst errors first."""
    read: str = ""
    """How many texts and tokens, and how many were read in windows or cut."""
    intervals: dict[str, tuple[float, float]] = field(default_factory=dict)
    """As `interval`, of every score that examples can be drawn again for; of more than 5,000 only the goal's."""


def evaluate(
    files: Sequence[str],
    predictor: Predictor | Path | str,
    data: DataSettings | None = None,
    *,
    worst: int = 10,
    notes: Notes | None = None,
    watch: Callable[[Iterable[Any]], Iterable[Any]] = lambda items: items,
) -> Evaluation:
    """Score a model, or that of a folder, on labelled files. Rows without a label are left out; memory does not hold
    what was predicted."""
    predictor = predictor if isinstance(predictor, Predictor) else Predictor.load(predictor)
    run = _Run(predictor, worst)
    for item, decoded in predictor.decode_all(watch(_labelled(files, predictor, data, notes))):
        run.add(item, decoded)
    return run.result()


def calibrate(folder: Path, found: Evaluation) -> TaskConfig:
    """Write the temperature and the thresholds that were found into a model's folder: it answers by them from now on.

    Take data for this that the model was not trained on, and others to report its scores on.
    """
    if found.temperature is None and not found.thresholds:
        raise BothwaysError(f"there is nothing to calibrate in a model for {found.task} of this kind")
    config = task_config(load(folder))
    config = replace(
        config, temperature=found.temperature or config.temperature, thresholds=found.thresholds or config.thresholds
    )
    rewrite_config(folder, config)
    return config


def compare_models(
    files: Sequence[str], first: Predictor, second: Predictor, data: DataSettings | None = None
) -> Comparison:
    """The difference between two models' goal scores on the same files, with its interval and p (paired)."""
    require_same_task(first, second)
    judges = []
    for predictor in (first, second):
        judge = predictor.task.new_scores()
        for item, decoded in predictor.decode_all(_labelled(files, predictor, data, None)):
            predictor.task.count(judge, item, decoded)
        judges.append(judge)
    return compare(judges[0], judges[1], first.task.metric)


def require_same_task(
    first: Predictor, second: Predictor, names: tuple[str, str] = ("the first model", "the second one")
) -> None:
    """Refuse to compare what was made for different things."""
    if first.name != second.name:
        raise BothwaysError(
            f"{names[0]} was made for {first.name} and {names[1]} for {second.name}: expected two models of one task"
        )


def _labelled(
    files: Sequence[str], predictor: Predictor, data: DataSettings | None, notes: Notes | None
) -> Iterator[Any]:
    config, notes = task_config(predictor.model), notes if notes is not None else Notes()
    known = set(predictor.labels)
    columns = (data or DataSettings()).columns
    for example in predictor.task.read(files, columns, notes, config.options):
        if example.gold is None:
            notes.add("unlabelled-row", example.where)
        else:
            if isinstance(example, Tagged) and (strange := set(example.gold or ()) - known):
                notes.add("unknown-tags", f"{example.where} ({min(strange)})")
            yield predictor.task.normalise(config, example)


class _Run:
    """All that is counted on the way."""

    def __init__(self, predictor: Predictor, worst: int) -> None:
        self.predictor, self.task = predictor, predictor.task
        self.judge = self.task.new_scores()
        self.worst: Worst[tuple[Any, Any]] = Worst(worst)
        self.examples = 0
        self.logs: list[Any] = []
        self.golds: list[int] = []

    def add(self, item: Any, decoded: Any) -> None:
        self.task.count(self.judge, item, decoded)
        self.examples += 1
        wrong = self.task.error(item, decoded)
        if wrong > 0:
            self.worst.add(wrong, (item.example, self.task.answer(item, decoded)))
        if (
            isinstance(self.task, TextClassification)
            and isinstance(self.judge, Classes)
            and len(self.golds) < _TO_CALIBRATE
        ):
            self.logs.append(np.log(np.maximum(decoded, 1e-30)))
            self.golds.append(self.task.gold(item.example))

    def result(self) -> Evaluation:
        if not self.examples:
            raise BothwaysError("the files have no labelled rows to evaluate on")
        confusion = self.judge.confusion().tolist() if isinstance(self.judge, Classes) else None
        before = task_config(self.predictor.model).temperature
        worst = [
            {"error": wrong, **_shown(example), "answer": answer} for wrong, (example, answer) in self.worst.items()
        ]
        scores, metric = self.judge.scores(), self.task.metric
        intervals = _intervals(self.judge, list(scores) if self.examples <= _TO_DRAW else [metric])
        return Evaluation(
            self.predictor.name,
            metric,
            intervals[metric],
            self.examples,
            scores,
            _details(self.judge),
            confusion,
            min(max(before * fit_temperature(self.logs, self.golds), COLDEST), HOTTEST) if self.golds else None,
            self.judge.best_thresholds() if isinstance(self.judge, ManyLabels) else {},
            self.judge.reliability() if isinstance(self.judge, Classes) else [],
            worst,
            str(self.predictor.tally),
            intervals,
        )


def _intervals(judge: Accumulator, names: Sequence[str]) -> dict[str, tuple[float, float]]:
    found = {}
    for name in names:
        with suppress(BothwaysError):  # a count, or what a histogram has forgotten
            found[name] = interval(judge, name)
    return found


def _shown(example: Any) -> dict[str, Any]:
    return {name: value for name, value in asdict(example).items() if name not in ("words", "id")}


def _details(judge: Accumulator) -> dict[str, dict[str, float]]:
    match judge:
        case Classes():
            found = judge.per_class()
        case ManyLabels():
            found = judge.per_label()
        case Entities():
            found = judge.per_type()
        case Tags():
            found = judge.per_tag()
        case _:
            return {}
    return {name: asdict(detail) for name, detail in found.items()}
