"""Run training from its start or its last checkpoint to its end, with all listeners."""

import json
import math
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from bothways import atomic
from bothways.errors import BothwaysError, needs
from bothways.model.run_folder import MODEL, RECIPE, STATE
from bothways.progress import notebook_progress
from bothways.train.curve import draw_curve, entries
from bothways.train.fit import fit
from bothways.train.health import HealthMonitor
from bothways.train.optim import OptimSettings, lr_factor
from bothways.train.protocol import Event, Finished, Started, Trainable, phase_at
from bothways.train.ranks import Ranks
from bothways.train.report import Log, StepProgress
from bothways.train.settings import RunSettings
from bothways.train.state import Checkpoints
from bothways.train.trackers import make_trackers

_LOCK = ".lock"
PACKED = "packed"
"""The folder of a run for text that was packed for it alone."""
FINAL = -1
"""In place of a step number: the end of the run."""
Listener = Callable[[Event], None]
Say = Callable[[str], None]


@dataclass(frozen=True)
class Listeners:
    """The listeners of a run beside its own log."""

    events: Sequence[Listener] = ()
    say: Say = lambda words: None
    """Gets sentences for the user, such as why training goes badly."""


def run_session(
    work: Trainable,
    run: RunSettings,
    optim: OptimSettings,
    out: Path,
    ranks: Ranks,
    listeners: Listeners,
    health: HealthMonitor | None = None,
    plateau: float | None = None,
) -> Finished:
    """Train; write metrics.jsonl and at the end curve.png, with a reference line at `plateau`.

    Without listeners, a notebook gets a progress bar.
    """
    ended = Finished(0, 0.0, complete=False)
    with _locked(out, ranks), ExitStack() as stack:
        hearing = list(listeners.events) if ranks.is_first else []
        if ranks.is_first and not hearing:
            hearing.append(StepProgress(stack.enter_context(notebook_progress("training", unit="steps"))))
        trackers = make_trackers(run, out) if ranks.is_first else []
        for event in fit(work, run, optim, out, ranks):
            if isinstance(event, Started) and ranks.is_first:
                hearing += trackers
                hearing.append(Log(out / "metrics.jsonl", event.step))
                for listener in hearing:
                    if hasattr(listener, "close"):
                        stack.callback(listener.close)
            for listener in hearing:
                listener(event)
            for sentence in health(event).values() if health else ():
                if ranks.is_first:
                    listeners.say(sentence)
            if isinstance(event, Finished):
                ended = event
    ranks.wait()
    if ranks.is_first and not draw_curve(out / "metrics.jsonl", out / "curve.png", plateau):
        listeners.say(needs("drawing curve.png", "matplotlib"))
    return ended


def first_and_last_scores(out: Path) -> tuple[dict[str, float], dict[str, float]]:
    """The scores before the first step and after the last, from any session of the run."""
    found = dict(_evaluations(out))
    return found.get(0, {}), found.get(FINAL, {})


def last_scores(out: Path) -> dict[str, float]:
    """The scores of the last evaluation."""
    found = [scores for _, scores in _evaluations(out)]
    return found[-1] if found else {}


def scores_at(out: Path, step: int | None) -> dict[str, float]:
    """The scores of the latest evaluation at this step."""
    found = [scores for place, scores in _evaluations(out) if place == step]
    return found[-1] if found else {}


def _evaluations(out: Path) -> Iterator[tuple[int, dict[str, float]]]:
    """(step, scores) of each evaluation; the final ones also at FINAL. A null becomes nan again."""
    path = out / "metrics.jsonl"
    for _, entry in entries(path) if path.exists() else ():
        if "valid" in entry:
            scores = {name: math.nan if value is None else value for name, value in entry["valid"].items()}
            yield entry["step"], scores
            if entry.get("final"):
                yield FINAL, scores


# Settings that may differ when a run is resumed: they do not change what it learns.
_FREE = ("device", "precision", "compile", "gradient_checkpointing", "deterministic", "micro_tokens", "parallel",
         "evaluate_every", "evaluate_first", "save_every", "save_minutes", "save_first", "keep", "keep_state",
         "tensorboard", "mlflow", "wandb")  # fmt: skip

# These may differ too, as long as they have made no difference yet.
_LENGTH = ("steps", "minutes", "epochs")


@contextmanager
def _locked(out: Path, ranks: Ranks) -> Iterator[None]:
    """Keep other processes from training in this folder."""
    if not ranks.is_first or os.name != "posix":
        yield
        return
    import fcntl  # POSIX only

    with (out / _LOCK).open("w") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            raise BothwaysError(
                f"another process is training in {out}: set another `out`, or wait for it", "locked-folder", out
            ) from None
        yield


def claim(
    out: Path,
    recipe: Any,
    read: Callable[[Path], Any],
    write: Callable[[Any], str],
    data: Mapping[str, Any],
    shares: Sequence[float] = (1.0,),
    in_steps: Callable[[Any], RunSettings] = lambda run: run,
) -> None:
    """Write the recipe, and what identifies its data, into the run's folder.

    Refuses a folder with other files, or with a run of another recipe or on other data. A run may become longer or
    shorter as long as its learning rate and its phase (of these shares) are now what they would have been.
    `in_steps`: the `[run]` of a recipe with epochs as steps.
    """
    path = out / RECIPE
    atomic.clear(out)
    if not path.exists() and (others := atomic.other_files(out, (_LOCK, PACKED))):
        raise BothwaysError(
            f"{out} already holds other files, such as {others[0]}: name a new or empty folder", "other-files", out
        )
    if path.exists():
        earlier = read(path)
        same = replace(recipe.run, **{name: getattr(earlier.run, name) for name in (*_FREE, *_LENGTH)})
        if replace(recipe, run=same) != earlier:
            raise BothwaysError(
                f"{out} holds a run of another recipe (see {path}): set another `out`, or resume with that recipe",
                "other-settings",
                out,
            )
        _require_same_schedule(out, recipe, earlier.run, shares, in_steps)
    if Checkpoints(out, recipe.run.keep).latest() is None and (out / STATE).exists() and not (out / MODEL).exists():
        raise BothwaysError(
            f"{out} is a complete run without its model, which cannot be made again: set another `out`", "no-model", out
        )
    identity, known = json.dumps(data) + "\n", out / "data.json"
    if known.exists() and known.read_text(encoding="utf-8") != identity:
        raise BothwaysError(f"{out} holds a run on other data: set another `out`", "other-data", out)
    for file, content in ((path, write(recipe)), (known, identity)):
        with atomic.new_file(file) as temporary:
            temporary.write_text(content, encoding="utf-8")


def _require_same_schedule(
    out: Path, recipe: Any, earlier: RunSettings, shares: Sequence[float], in_steps: Callable[[Any], RunSettings]
) -> None:
    """A new length must not change the learning rate or the phase at the step where the run resumes."""
    lengths = {name: getattr(recipe.run, name) for name in _LENGTH}
    checkpoints = Checkpoints(out, recipe.run.keep)
    state = checkpoints.state()
    if state is None or lengths == {name: getattr(earlier, name) for name in _LENGTH}:
        return
    wanted = " and ".join(f"run.{name} = {value:g}" for name, value in lengths.items() if value)
    if checkpoints.latest() is None:
        raise BothwaysError(
            f"{out} is complete at step {state.step:,} and cannot go on to {wanted}, as its optimiser state was "
            "dropped: start from its model with another `out`; run.keep_state = true keeps the state of a new run",
            "state-dropped",
            state.step,
        )
    runs = in_steps(earlier), in_steps(recipe.run)
    before, after = (run.done(state.step, state.elapsed) for run in runs)
    rates = [lr_factor(recipe.optim, state.step, run.done(state.step, state.elapsed), run.steps) for run in runs]
    if state.complete and not runs[1].is_longer_than(state.step, state.stale):
        code, reason = "run-over", "the run is over"
    elif after >= 1:
        code, reason = "run-over", "it is already past that length"
    elif not math.isclose(*rates, abs_tol=1e-6):
        code, reason = "lr-jump", f"the learning rate would jump from {rates[0]:.3g} to {rates[1]:.3g} of its peak"
    elif phase_at(shares, before) != phase_at(shares, after):
        code, reason = "phase-jump", "it would jump to another phase"
    else:
        return
    raise BothwaysError(
        f"{out} cannot be resumed with {wanted}: at step {state.step:,}, {reason}; keep its length or change `out`",
        code,
        state.step,
    )
