"""Evaluation on labelled files: scores with confidence intervals, scores by label, the worst errors."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

from bothways import atomic
from bothways.data.examples import Tagged
from bothways.data.notes import Notes
from bothways.errors import BothwaysError
from bothways.model.box import model_folder
from bothways.model.card_text import CARD, markdown, thresholds_shown, with_section
from bothways.model.device import Device, Precision
from bothways.model.hub_cache import name_in_hub
from bothways.model.opened import open_model
from bothways.predict.predictor import Predictor
from bothways.printable import counted
from bothways.progress import notebook_progress
from bothways.scoring.accumulator import Accumulator
from bothways.scoring.calibration import COLDEST, HOTTEST, Bin, fit_temperature
from bothways.scoring.classification import Classes
from bothways.scoring.entities import Entities, Tags
from bothways.scoring.many_labels import ManyLabels
from bothways.scoring.significance import Comparison, compare, interval
from bothways.scoring.worst import Worst
from bothways.tasks.labelled_files import FinetuneData, with_columns
from bothways.tasks.registry import rewrite_config, task_config
from bothways.tasks.task import TaskConfig
from bothways.text.frames import as_files

_MAX_RESAMPLED = 5_000  # the bootstrap of rank correlations over more examples takes longer than the predictions
_MAX_CALIBRATED = 10_000  # examples whose probabilities are kept, to fit the temperature


@dataclass(frozen=True, repr=False)
class Evaluation:
    """The scores of a model on labelled data. A notebook shows them as tables."""

    task: str
    metric: str
    """The main score of the task."""
    interval: tuple[float, float]
    """Its 95 % confidence interval, by bootstrap over examples."""
    examples: int
    scores: dict[str, float]
    details: dict[str, dict[str, float]] = field(default_factory=dict)
    """Precision, recall, F1 and support by label, entity type or tag."""
    confusion: list[list[int]] | None = None
    """Confusion matrix: gold labels in rows, predicted labels in columns."""
    temperature: float | None = None
    """Divisor of the logits that calibrates the probabilities."""
    thresholds: dict[str, float] = field(default_factory=dict)
    """Multi-label classification: the threshold of each label by F1, of rare ones nearer to a common one."""
    reliability: list[Bin] = field(default_factory=list)
    """Accuracy and confidence by bin of confidence."""
    worst: list[dict[str, Any]] = field(default_factory=list)
    """Examples with the largest errors, largest first; `gold` and `answer` of one are of the same form."""
    read: str = ""
    """Numbers of texts and tokens read, in windows, and cut."""
    intervals: dict[str, tuple[float, float]] = field(default_factory=dict)
    """As `interval`, for every score that can be resampled; for more than 5,000 examples only that of `metric`."""
    against: Comparison | None = None
    """The difference of `metric` to that of another model, if one was given."""
    labels: tuple[str, ...] = ()
    """The labels of the model; of the confusion matrix in this order."""
    errors_title: str = "Largest errors"
    """What the list of the worst errors is called, such as Most confident errors."""
    never_predicted: str = ""
    """A sentence about labels that the data have and that were never predicted; "" if there are none."""

    def __repr__(self) -> str:
        low, high = self.interval
        return (
            f"Evaluation({self.task}, {counted(self.examples, 'example')}: "
            f"{self.metric} {self.scores[self.metric]:.4f}, 95 % interval {low:.4f} to {high:.4f})"
        )

    def _repr_html_(self) -> str:
        from bothways.predict.evaluation_html import evaluation_html  # it imports this module

        return evaluation_html(self)


def evaluate(
    files: Any,
    predictor: Predictor | Path | str,
    data: FinetuneData | None = None,
    *,
    text: str = "",
    pair: str = "",
    label: str = "",
    against: Predictor | Path | str | None = None,
    worst: int = 10,
    notes: Notes | None = None,
    watch: Callable[[Iterable[Any]], Iterable[Any]] | None = None,
    device: Device = "auto",
    dtype: Precision = "auto",
) -> Evaluation:
    """Score a predictor, or the model of a folder, on labelled files, or on a table in memory.

    Rows without a label are left out. `text`, `pair` and `label` name columns with unusual names, as `data` does.

    Predictions are not kept in memory. `against`: another model, to compare the main score with (paired). `worst`:
    number of errors to report. `device` and `dtype`: those of folders, as in `encode`.
    """
    data = with_columns(data or FinetuneData(), text, pair, label)
    predictor = _loaded(predictor, device, dtype)
    other = None if against is None else _loaded(against, device, dtype)
    if other is not None:
        require_same_task(predictor, other)
    counting = _Counting(predictor, worst)
    with as_files(files) as names:
        with notebook_progress("evaluating") as bar:
            for item, decoded in predictor.decode_all((watch or bar.over)(labelled(names, predictor, data, notes))):
                counting.add(item, decoded)
        found = counting.result()
        if other is None:
            return found
        return replace(found, against=compare(counting.scores, _scores(names, other, data), found.metric))


def calibrate(folder: Path | str, found: Evaluation, *, base: Path | str | None = None) -> TaskConfig:
    """Write the temperature and the thresholds of an evaluation into a model's folder, which then predicts by them.

    Calibrate on data that the model was not trained on, and report scores on other data. `base`: as in `load`.
    """
    folder = model_folder(folder)
    if (name := name_in_hub(folder)) is not None:
        raise BothwaysError(
            f"{name} is in the Hugging Face cache, which other programs read: convert it to a folder of your own, and "
            "calibrate that",
            "not-own-folder",
            name,
        )
    if found.temperature is None and not found.thresholds:
        raise BothwaysError(
            f"a model for the task {found.task} of this kind has no temperature or thresholds to calibrate",
            "not-calibratable",
            found.task,
        )
    config = task_config(open_model(folder, base))
    # Six digits: fitted again to a calibrated model, the temperature differs in the last ones.
    temperature = float(f"{found.temperature or config.temperature:.6g}")
    config = replace(config, temperature=temperature, thresholds=found.thresholds or config.thresholds)
    rewrite_config(folder, config)
    _say_in_card(folder / CARD, found, config)
    return config


def _say_in_card(card: Path, found: Evaluation, config: TaskConfig) -> None:
    """Write into the model card what was fitted, and that other libraries do not read it."""
    try:
        before = card.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError):  # there is none, or one that somebody else wrote
        return
    fitted = [f"| temperature | {config.temperature:g} |"] if found.temperature else []
    if found.thresholds:
        fitted.append(f"| thresholds | {markdown(thresholds_shown(found.thresholds))} |")
    count = counted(found.examples, "example")
    says = f"Fitted on {count} after training (`bothways evaluate --calibrate`). The scores above are from before."
    note = (
        "bothways divides the logits by the temperature and predicts the labels above their thresholds. Other libraries"
    )
    note += " do neither: their probabilities differ."
    lines = [says, "", "| | |", "|---|---|", *fitted, "", note]
    with atomic.new_file(card) as fresh:
        fresh.write_text(with_section(before, "Calibration", lines), encoding="utf-8")


def compare_models(
    files: Any,
    first: Predictor | Path | str,
    second: Predictor | Path | str,
    data: FinetuneData | None = None,
    *,
    text: str = "",
    pair: str = "",
    label: str = "",
    device: Device = "auto",
    dtype: Precision = "auto",
) -> Comparison:
    """The difference between two models' main scores on the same files, with its interval and p-value (paired)."""
    data = with_columns(data or FinetuneData(), text, pair, label)
    first, second = _loaded(first, device, dtype), _loaded(second, device, dtype)
    require_same_task(first, second)
    with as_files(files) as names:
        return compare(_scores(names, first, data), _scores(names, second, data), first.task.metric)


def require_same_task(
    first: Predictor, second: Predictor, names: tuple[str, str] = ("the first model", "the second model")
) -> None:
    """Refuse to compare models of different tasks."""
    if first.name != second.name:
        raise BothwaysError(
            f"{names[0]} is for the task {first.name} and {names[1]} for {second.name}: expected the same task",
            "other-task",
            (first.name, second.name),
        )


def _scores(files: Sequence[str], predictor: Predictor, data: FinetuneData) -> Accumulator:
    scores = predictor.task.new_scores()
    for item, decoded in predictor.decode_all(labelled(files, predictor, data, None)):
        predictor.task.count(scores, item, decoded)
    return scores


def _loaded(predictor: Predictor | Path | str, device: Device, dtype: Precision) -> Predictor:
    return predictor if isinstance(predictor, Predictor) else Predictor.load(predictor, device=device, dtype=dtype)


def labelled(files: Sequence[str], predictor: Predictor, data: FinetuneData, notes: Notes | None) -> Iterator[Any]:
    """The labelled examples of files, in the form that the predictor's task scores."""
    task, config, notes = predictor.task, task_config(predictor.model), notes if notes is not None else Notes()
    known = set(predictor.labels)
    columns = task.known_columns(files, data.columns)

    def with_gold() -> Iterator[Any]:
        for example in task.read(files, columns, notes, config.options):
            if example.gold is None:
                notes.add("unlabelled-row", example.where)
                continue
            if isinstance(example, Tagged) and (strange := set(example.gold or ()) - known):
                notes.add("unknown-tags", f"{example.where} ({min(strange)})")
            yield example

    return (task.normalise(config, example) for example in task.assemble(with_gold(), task.settings, is_dev=True))


class _Counting:
    """Everything that is counted during an evaluation."""

    def __init__(self, predictor: Predictor, worst: int) -> None:
        self.predictor, self.task = predictor, predictor.task
        self.scores = self.task.new_scores()
        self.worst: Worst[tuple[Any, Any]] = Worst(worst)
        self.examples = 0
        self.logs: list[Any] = []
        self.golds: list[int] = []

    def add(self, item: Any, decoded: Any) -> None:
        self.task.count(self.scores, item, decoded)
        self.examples += 1
        error = self.task.error(item, decoded)
        if error > 0:
            self.worst.add(error, (item.example, self.task.answer(item, decoded)))
        if len(self.golds) < _MAX_CALIBRATED and (pair := self.task.calibration(item, decoded)) is not None:
            self.logs.append(pair[0])
            self.golds.append(pair[1])

    def result(self) -> Evaluation:
        if not self.examples:
            raise BothwaysError("the files have no labelled rows to evaluate on", "no-labels")
        confusion = self.scores.confusion().tolist() if isinstance(self.scores, Classes) else None
        before = task_config(self.predictor.model).temperature
        worst = [
            {"error": error, **_shown(example), "gold": self.task.gold_answer(example), "answer": answer}
            for error, (example, answer) in self.worst.items()
        ]
        values, metric = self.scores.scores(), self.task.metric
        intervals = _intervals(self.scores, list(values) if self.examples <= _MAX_RESAMPLED else [metric])
        return Evaluation(
            self.predictor.name,
            metric,
            intervals[metric],
            self.examples,
            values,
            _details(self.scores),
            confusion,
            min(max(before * fit_temperature(self.logs, self.golds), COLDEST), HOTTEST) if self.golds else None,
            self.scores.tuned_thresholds() if isinstance(self.scores, ManyLabels) else {},
            self.scores.reliability() if isinstance(self.scores, Classes) else [],
            worst,
            str(self.predictor.tally),
            intervals,
            labels=self.predictor.labels,
            errors_title=self.task.errors_title,
            never_predicted=self.scores.never_predicted() if isinstance(self.scores, Classes | ManyLabels) else "",
        )


def _intervals(scores: Accumulator, names: Sequence[str]) -> dict[str, tuple[float, float]]:
    found = {}
    for name in names:
        with suppress(BothwaysError):  # a count, or a score of a histogram: it cannot be resampled
            found[name] = interval(scores, name)
    return found


def _shown(example: Any) -> dict[str, Any]:
    return {name: value for name, value in asdict(example).items() if name not in ("words", "id", "weight")}


def _details(scores: Accumulator) -> dict[str, dict[str, float]]:
    match scores:
        case Classes():
            found = scores.per_class()
        case ManyLabels():
            found = scores.per_label()
        case Entities():
            found = scores.per_type()
        case Tags():
            found = scores.per_tag()
        case _:
            return {}
    return {name: asdict(detail) for name, detail in found.items()}
