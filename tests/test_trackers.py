"""MLflow and Weights & Biases get the numbers of metrics.jsonl, each step once, and never end a run.

Against stand-ins that take what the packages take, and against the packages where they are installed.
"""

import json
import subprocess
import sys
from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

from bothways.train.protocol import Evaluated, Event, Finished, Started, Stepped
from bothways.train.settings import RunSettings
from bothways.train.trackers import Guarded, MlflowStore, Tracker, make_trackers
from helpers import refused

STARTED = Started(0, 1_234, "cpu", "fp32", 2e11)
RECIPE = 'task = "classify"\n[run]\nsteps = 9\n[data]\ntrain = ["a.csv", "b.csv"]\n'


def stepped(step: int, **changed: Any) -> Stepped:
    made = Stepped(step, 0, 1 / step, {"label": 1 / step}, 1e-4, 1.5, 10 * step, 500.0, 5e10, step / 9, 0.2 * step)
    return replace(made, **changed)


def session(begin: int, end: int, is_complete: bool) -> list[Event]:
    scores = {"accuracy": 0.5 + end / 100, "f1 of a+b": float("nan")}
    events: list[Event] = [replace(STARTED, step=begin), *(stepped(step) for step in range(begin + 1, end + 1))]
    return [*events, Evaluated(end, scores, is_complete), Finished(end, 1.0, is_complete)]


class FakeMlflow:
    """The client of a database, which outlives sessions."""

    def __init__(self) -> None:
        self.uris: list[str] = []
        self.runs: dict[str, SimpleNamespace] = {}

    def module(self) -> ModuleType:
        store = self

        class MlflowClient:
            def __init__(self, tracking_uri: str | None = None) -> None:
                store.uris.append(str(tracking_uri))

            def get_experiment_by_name(self, name: str) -> Any:
                return SimpleNamespace(experiment_id="1") if store.runs else None

            def create_experiment(self, name: str, artifact_location: str | None = None) -> str:
                return "1"

            def create_run(self, experiment_id: str, run_name: str | None = None) -> Any:
                store.runs["r1"] = SimpleNamespace(name=run_name, status="RUNNING", rows=[], params={})
                return SimpleNamespace(info=SimpleNamespace(run_id="r1"))

            def update_run(self, run_id: str, status: str | None = None) -> None:
                store.runs[run_id].status = status

            def log_batch(self, run_id: str, metrics: Any = (), params: Any = ()) -> None:
                assert len(params) <= 100
                assert len(metrics) <= 1_000
                store.runs[run_id].rows += [(one.step, one.key, one.value) for one in metrics]
                store.runs[run_id].params |= {one.key: one.value for one in params}

            def set_terminated(self, run_id: str, status: str | None = None) -> None:
                store.runs[run_id].status = status

        module, entities = ModuleType("mlflow"), ModuleType("mlflow.entities")
        entities.Metric = lambda key, value, timestamp, step: SimpleNamespace(key=key, value=value, step=step)  # type: ignore[attr-defined]
        entities.Param = lambda key, value: SimpleNamespace(key=key, value=value)  # type: ignore[attr-defined]
        module.MlflowClient, module.entities = MlflowClient, entities  # type: ignore[attr-defined]
        return module


@pytest.fixture
def out(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    for name in ("MLFLOW_TRACKING_URI", "MLFLOW_EXPERIMENT_NAME", "WANDB_PROJECT"):
        monkeypatch.delenv(name, raising=False)
    (tmp_path / "my-run").mkdir()
    (tmp_path / "my-run" / "recipe.toml").write_text(RECIPE)
    return tmp_path / "my-run"


@pytest.fixture
def mlflow(monkeypatch: pytest.MonkeyPatch) -> FakeMlflow:
    fake = FakeMlflow()
    module = fake.module()
    monkeypatch.setitem(sys.modules, "mlflow", module)
    monkeypatch.setitem(sys.modules, "mlflow.entities", module.entities)
    return fake


@pytest.fixture
def wandb(monkeypatch: pytest.MonkeyPatch) -> list[SimpleNamespace]:
    made: list[SimpleNamespace] = []

    def init(*, project: str, name: str, id: str, dir: str, config: Any, mode: str, reinit: str, settings: Any) -> Any:
        run = SimpleNamespace(project=project, name=name, id=id, dir=dir, config=config, mode=mode, rows=[], code=None)
        run.log = lambda data, step: run.rows.append((step, data))
        run.finish = lambda exit_code: setattr(run, "code", exit_code)
        made.append(run)
        return run

    module = ModuleType("wandb")
    module.init, module.Settings = init, lambda **settings: settings  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "wandb", module)
    return made


def hear(out: Path, which: str, events: list[Event], closes: bool = True) -> None:
    [tracker] = make_trackers(RunSettings(steps=9, mlflow=which == "mlflow", wandb=which == "wandb"), out)
    for event in events:
        tracker(event)
    if closes:
        tracker.close()


def test_mlflow_gets_the_recipe_and_every_number(out: Path, mlflow: FakeMlflow) -> None:
    hear(out, "mlflow", session(0, 2, is_complete=True))
    run = mlflow.runs["r1"]
    assert mlflow.uris == [f"sqlite:///{out}/mlflow.db"]
    assert (run.name, run.status) == ("my-run", "FINISHED")
    assert run.params == {"task": "classify", "run.steps": "9", "data.train": "['a.csv', 'b.csv']"}
    found = {(step, name): value for step, name, value in run.rows}
    assert found[1, "train/loss"] == 1.0
    assert found[2, "train/losses/label"] == 0.5
    assert found[2, "valid/accuracy"] == found[2, "final/accuracy"] == 0.52
    assert {name for step, name, _ in run.rows if step == 2} == {
        *(f"train/{name}" for name in ("phase", "loss", "losses/label", "lr", "norm", "tokens", "tokens_per_second")),
        *("train/mfu", "train/elapsed", "valid/accuracy", "final/accuracy"),
    }


def test_wandb_is_offline_and_gets_the_same(out: Path, wandb: list[SimpleNamespace]) -> None:
    hear(out, "wandb", session(0, 2, is_complete=True))
    [run] = wandb
    assert (run.mode, run.dir, run.project, run.name, run.code) == ("offline", str(out), "bothways", "my-run", 0)
    assert run.config["run"] == {"steps": 9}
    assert [step for step, _ in run.rows] == [1, 2, 2, 2]
    assert run.rows[0][1]["train/loss"] == 1.0
    assert run.rows[-1] == (2, {"final/accuracy": 0.52})


@pytest.mark.parametrize("which", ["mlflow", "wandb"])
def test_a_resumed_run_goes_on_in_the_same_run_without_repeated_steps(
    which: str, out: Path, mlflow: FakeMlflow, wandb: list[SimpleNamespace]
) -> None:
    """The first session is stopped at step 6, and the second resumes from a checkpoint of step 4."""
    hear(out, which, session(0, 6, is_complete=False))
    assert mlflow.runs["r1"].status == "KILLED" if which == "mlflow" else wandb[0].code == 1
    hear(out, which, session(4, 9, is_complete=True))
    if which == "mlflow":
        [run] = mlflow.runs.values()
        steps = [step for step, name, _ in run.rows if name == "train/loss"]
    else:
        first, second = wandb
        assert first.id == second.id
        steps = [step for run in wandb for step, row in run.rows if "train/loss" in row]
    assert steps == list(range(1, 10))
    hear(out, which, [replace(STARTED, step=9), Finished(9, 0.0, True)])  # the command once more: nothing to say
    assert len(wandb) in (0, 2)


def test_a_kill_loses_and_repeats_no_more_than_two_seconds(out: Path, mlflow: FakeMlflow) -> None:
    hear(out, "mlflow", session(0, 6, is_complete=False), closes=False)
    known = json.loads((out / "tracking.json").read_text())["mlflow"]["train"]
    assert 1 <= known == max(step for step, *_ in mlflow.runs["r1"].rows)
    hear(out, "mlflow", session(0, 9, is_complete=True))
    assert [step for step, name, _ in mlflow.runs["r1"].rows if name == "train/loss"] == list(range(1, 10))


def test_a_failure_is_one_warning_and_not_the_end(out: Path, mlflow: FakeMlflow) -> None:
    [tracker] = make_trackers(RunSettings(steps=9, mlflow=True), out)
    tracker(STARTED)
    (out / "recipe.toml").unlink()
    with pytest.warns(UserWarning, match=r"run\.mlflow is off from here"):
        tracker(stepped(1))
    tracker(stepped(2))
    tracker.close()


def test_a_failing_end_is_a_warning_too() -> None:
    def fail() -> None:
        raise RuntimeError("the disk\nis full")

    with pytest.warns(UserWarning, match="the disk is full"):
        Guarded("wandb", SimpleNamespace(close=fail)).close()


@pytest.mark.parametrize("name", ["mlflow", "wandb"])
def test_a_missing_package_is_said_before_anything_is_read(
    name: str, out: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from bothways.tasks.finetune import finetune
    from bothways.tasks.recipe import finetune_recipe

    monkeypatch.setitem(sys.modules, name, None)
    recipe = finetune_recipe({"task": "classify", "data": {"train": ["none.csv"]}}, [f"run.{name}=true"])
    with refused("missing-package", name):
        finetune(recipe, out / "x")


@pytest.mark.parametrize("uri", ["http://host:5000", "https://host", "postgresql://host/x", "databricks"])
def test_mlflow_writes_to_this_machine_only(
    uri: str, out: Path, mlflow: FakeMlflow, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MLFLOW_TRACKING_URI", uri)
    with refused("not-local", uri):
        make_trackers(RunSettings(steps=9, mlflow=True), out)
    monkeypatch.setenv("MLFLOW_TRACKING_URI", "sqlite:///all.db")
    hear(out, "mlflow", session(0, 2, is_complete=True))
    assert mlflow.uris == ["sqlite:///all.db"]


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")  # those of the packages that it uses
def test_mlflow_itself(out: Path) -> None:
    package = pytest.importorskip("mlflow")
    for begin, end in ((0, 6), (4, 9)):
        tracker = Tracker(MlflowStore(), out)
        for event in session(begin, end, is_complete=end == 9):
            tracker(event)
        tracker.close()
    client = package.MlflowClient(tracking_uri=f"sqlite:///{out}/mlflow.db")
    [run] = client.search_runs(["1"])
    assert (run.info.run_name, run.info.status) == ("my-run", "FINISHED")
    assert run.data.params["run.steps"] == "9"
    assert [row.step for row in client.get_metric_history(run.info.run_id, "train/loss")] == list(range(1, 10))
    assert run.data.metrics["final/accuracy"] == 0.59


@pytest.mark.slow
def test_wandb_itself(out: Path) -> None:
    """In a process of its own: it talks to its service by a socket of this machine, which the tests forbid."""
    if find_spec("wandb") is None:
        pytest.skip("wandb is not installed")
    script = (
        "import sys; from pathlib import Path; from bothways.train.trackers import WandbStore\n"
        "out, store, id = Path(sys.argv[1]), WandbStore(), None\n"
        "for begin, end in ((0, 6), (6, 9)):\n"
        "    id = store.begin(id, out, {'run': {'steps': 9}})\n"
        "    store.log([(step, {'train/loss': 1 / step}) for step in range(begin + 1, end + 1)])\n"
        "    store.end(end == 9)\n"
    )
    subprocess.run([sys.executable, "-c", script, str(out)], check=True, timeout=120, capture_output=True)
    folders = list(out.glob("wandb/offline-run-*/*.wandb"))
    assert folders
    assert len({file.name for file in folders}) == 1
    assert b"train/loss" in folders[0].read_bytes()
