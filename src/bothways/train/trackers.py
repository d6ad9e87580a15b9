"""Listeners that hand the numbers of a run to MLflow or Weights & Biases, on this machine: nothing is sent anywhere."""

import json
import math
import os
import re
import time
import tomllib
import uuid
import warnings
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from time import monotonic
from typing import Any, Protocol

from bothways import atomic
from bothways.errors import BothwaysError, missing_package
from bothways.model.run_folder import RECIPE
from bothways.train.protocol import Evaluated, Event, Finished, Started, Stepped
from bothways.train.report import TensorBoard, metrics
from bothways.train.settings import RunSettings

RECORD = "tracking.json"
"""In the run's folder: by tracker, the id of its run and the last steps that it has."""
_SECONDS, _MOST = 2.0, 400
"""Numbers are handed over after this time, or when there are so many: a database takes 30 ms each time."""
Row = tuple[int, dict[str, float]]
"""A step and its numbers by name."""


class Store(Protocol):
    """Where another program keeps its runs."""

    name: str

    def begin(self, id: str | None, out: Path, recipe: Mapping[str, Any]) -> str:
        """Open the run of this id, or a new one: its id."""

    def log(self, rows: list[Row]) -> None: ...

    def end(self, is_complete: bool) -> None: ...


class Listener(Protocol):
    def __call__(self, event: Event) -> None: ...

    def close(self) -> None: ...


def make_trackers(run: RunSettings, out: Path) -> "list[Guarded]":
    """The trackers that a recipe asks for. Raises if the package of one is missing."""
    known: dict[str, Callable[[], Listener]] = {
        "tensorboard": lambda: TensorBoard(out / "tensorboard"),
        "mlflow": lambda: Tracker(MlflowStore(), out),
        "wandb": lambda: Tracker(WandbStore(), out),
    }
    return [Guarded(name, make()) for name, make in known.items() if getattr(run, name)]


class Guarded:
    """A listener whose failure ends with a warning, and not with the run."""

    def __init__(self, name: str, listener: Listener) -> None:
        self._name, self._listener, self._has_failed = name, listener, False

    def __call__(self, event: Event) -> None:
        self._try(lambda: self._listener(event))

    def close(self) -> None:
        self._try(self._listener.close)

    def _try(self, act: Callable[[], None]) -> None:
        if self._has_failed:
            return
        try:
            act()
        except Exception as error:
            self._has_failed = True
            says = " ".join(str(error).split()) or type(error).__name__
            warnings.warn(f"run.{self._name} is off from here, as it failed; training goes on: {says}", stacklevel=2)


class Tracker:
    """Hands the numbers of metrics.jsonl to a store, each step once: a resumed run continues the same run there."""

    def __init__(self, store: Store, out: Path) -> None:
        self._store, self._out = store, out
        earlier = self._read().get(store.name, {})
        self._record: dict[str, Any] = {"id": None, "train": 0, "valid": -1, "final": -1, **earlier}
        self._rows: list[Row] = []
        self._peak, self._handed_at, self._is_open, self._is_complete = math.nan, -math.inf, False, False

    def __call__(self, event: Event) -> None:
        match event:
            case Started():
                self._peak = event.peak_flops
            case Stepped():
                numbers = {name: value for name, value in metrics(event, self._peak).items() if name != "step"}
                self._add("train", event.step, numbers)
            case Evaluated():
                self._add("valid", event.step, event.scores)
                if event.final:
                    self._add("final", event.step, event.scores)
            case Finished():
                self._is_complete = event.complete

    def close(self) -> None:
        self._hand_over()
        if self._is_open:
            self._store.end(self._is_complete)

    def _add(self, part: str, step: int, numbers: Mapping[str, Any]) -> None:
        if step <= self._record[part]:  # as a session that was killed had said already
            return
        self._record[part] = step
        self._rows.append((step, dict(_flat(numbers, part))))
        if monotonic() - self._handed_at >= _SECONDS or sum(len(row) for _, row in self._rows) >= _MOST:
            self._hand_over()

    def _hand_over(self) -> None:
        if not self._rows:
            return
        if not self._is_open:
            recipe = tomllib.loads((self._out / RECIPE).read_text(encoding="utf-8"))
            self._record["id"] = self._store.begin(self._record["id"], self._out, recipe)
            self._is_open = True
        rows, self._rows, self._handed_at = self._rows, [], monotonic()
        self._store.log(rows)
        with atomic.new_file(self._out / RECORD) as fresh:
            fresh.write_text(json.dumps(self._read() | {self._store.name: self._record}) + "\n", encoding="utf-8")

    def _read(self) -> dict[str, Any]:
        path = self._out / RECORD
        found: dict[str, Any] = json.loads(path.read_text(encoding="utf-8")) if path.exists() else {}
        return found


def _flat(value: Mapping[str, Any], prefix: str) -> Iterator[tuple[str, float]]:
    """The finite numbers of nested tables, by their path."""
    for name, one in value.items():
        path = f"{prefix}/{name}"
        if isinstance(one, Mapping):
            yield from _flat(one, path)
        elif one is not None and math.isfinite(one):
            yield path, float(one)


class MlflowStore:
    """A database of MLflow: that of MLFLOW_TRACKING_URI, else mlflow.db in the run's folder."""

    name = "mlflow"

    def __init__(self) -> None:
        os.environ.setdefault("MLFLOW_DISABLE_TELEMETRY", "true")
        os.environ.setdefault("MLFLOW_LOGGING_LEVEL", "WARNING")
        try:
            import mlflow
            import mlflow.entities
        except ImportError as error:
            raise _missing(self.name) from error
        self._mlflow: Any = mlflow
        self._uri = os.environ.get("MLFLOW_TRACKING_URI", "")
        if not re.match(r"(sqlite|file):|(?!\w+:|databricks)", self._uri):
            raise BothwaysError(
                f"MLFLOW_TRACKING_URI is {self._uri}, which is not on this machine: expected sqlite:///FILE, or leave "
                "it unset for mlflow.db in the run's folder",
                "not-local",
                self._uri,
            )

    def begin(self, id: str | None, out: Path, recipe: Mapping[str, Any]) -> str:
        out = out.absolute()
        self._client = self._mlflow.MlflowClient(tracking_uri=self._uri or f"sqlite:///{out / 'mlflow.db'}")
        if id is not None:
            self._client.update_run(id, status="RUNNING")
            self._id = id
            return id
        name = os.environ.get("MLFLOW_EXPERIMENT_NAME") or "bothways"
        known = self._client.get_experiment_by_name(name)
        place = None if self._uri else (out / "mlflow-artifacts").as_uri()
        experiment = known.experiment_id if known else self._client.create_experiment(name, artifact_location=place)
        self._id = str(self._client.create_run(experiment, run_name=out.name).info.run_id)
        params = [self._mlflow.entities.Param(key, value[:_LONGEST]) for key, value in _settings(recipe)]
        for begin in range(0, len(params), 100):  # the most that it takes at once
            self._client.log_batch(self._id, params=params[begin : begin + 100])
        return self._id

    def log(self, rows: list[Row]) -> None:
        now, metric = int(time.time() * 1000), self._mlflow.entities.Metric
        found = [metric(_named(name), value, now, step) for step, row in rows for name, value in row.items()]
        for begin in range(0, len(found), 1_000):
            self._client.log_batch(self._id, metrics=found[begin : begin + 1_000])

    def end(self, is_complete: bool) -> None:
        self._client.set_terminated(self._id, "FINISHED" if is_complete else "KILLED")


_LONGEST = 6_000
"""Characters of a parameter that MLflow takes."""


def _named(name: str) -> str:
    """A name without the characters that MLflow refuses."""
    return re.sub(r"[^/\w.\- ]", "_", name)[:250]


def _settings(recipe: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, str]]:
    """The keys of a recipe as they are written after --set, and their values."""
    for key, value in recipe.items():
        if isinstance(value, Mapping):
            yield from _settings(value, f"{prefix}{key}.")
        else:
            yield _named(f"{prefix}{key}"), str(value)


class WandbStore:
    """Offline runs of Weights & Biases, in wandb/ in the run's folder; `wandb sync` uploads them."""

    name = "wandb"

    def __init__(self) -> None:
        os.environ.setdefault("WANDB_ERROR_REPORTING", "false")
        try:
            import wandb
        except ImportError as error:
            raise _missing(self.name) from error
        self._wandb: Any = wandb

    def begin(self, id: str | None, out: Path, recipe: Mapping[str, Any]) -> str:
        id = id or uuid.uuid4().hex[:8]
        quiet = self._wandb.Settings(console="off", silent=True, disable_git=True, x_disable_stats=True)
        self._run = self._wandb.init(
            project=os.environ.get("WANDB_PROJECT") or "bothways",
            name=out.absolute().name,
            id=id,
            dir=str(out),
            config=dict(recipe),
            mode="offline",
            reinit="create_new",  # a run of the caller's own stays as it is
            settings=quiet,
        )
        return id

    def log(self, rows: list[Row]) -> None:
        for step, row in rows:
            self._run.log(row, step=step)

    def end(self, is_complete: bool) -> None:
        self._run.finish(exit_code=0 if is_complete else 1)


def _missing(name: str) -> BothwaysError:
    return missing_package(f"run.{name}", name)
