"""The folder of a run, as `finetune` and `pretrain` write it: a name for the model inside.

RUN/recipe.toml            the run's settings
RUN/model/                 the model, once the run is complete
RUN/checkpoints/step-…/    model/ and the state of training, until the run is complete
RUN/state.json             the progress of a complete run
"""

import json
from pathlib import Path
from typing import Any

from bothways.errors import BothwaysError

MODEL, RECIPE, STATE, CHECKPOINTS = "model", "recipe.toml", "state.json", "checkpoints"
_OF_MODELS = ("config.json", "modules.json", "bert_config.json", "adapter_config.json")


def model_of_run(folder: Path) -> Path:
    """The model in the folder of a run or of a checkpoint; any other folder is returned as it is.

    A run that is not complete has no model yet, and is refused.
    """
    if any((folder / name).exists() for name in _OF_MODELS):
        return folder
    if (folder / MODEL / "config.json").is_file():
        return folder / MODEL
    if not is_run(folder) and not any(folder.glob(f"seed-*/{RECIPE}")):
        return folder
    found = [path.parent / MODEL for path in saved_states(folder) if path.parent != folder]
    now = f", or open its last checkpoint, {found[-1]}" if found else ""
    raise BothwaysError(
        f"{folder} is a run that is not complete and has no model yet: give its command again to finish it{now}",
        "incomplete-run",
        folder,
    )


def is_run(folder: Path) -> bool:
    return (folder / RECIPE).is_file()


def run_of_model(folder: Path) -> Path | None:
    """The run whose model is in this folder, if it is one."""
    return folder.parent if folder.name == MODEL and is_run(folder.parent) else None


def saved_states(run: Path) -> list[Path]:
    """The files with the progress of a run, the newest last: that of a complete run without checkpoints, then those of
    checkpoints."""
    own = run / STATE
    return [*([own] if own.is_file() else []), *sorted(run.glob(f"{CHECKPOINTS}/step-*/{STATE}"))]


def describe_run(run: Path) -> dict[str, Any]:
    """The facts that `bothways info` shows about a run, as values that JSON can hold."""
    states = saved_states(run)
    state = json.loads(states[-1].read_text(encoding="utf-8")) if states else {}
    return {
        "folder": str(run),
        "complete": bool(state.get("complete")),
        "steps": state.get("step", 0),
        "best_step": state.get("best_step"),
        "tokens": state.get("tokens", 0),
        "seconds": round(state.get("elapsed", 0.0), 1),
        "has_state": any(run.glob(f"{CHECKPOINTS}/step-*")),
        "files": sizes(run),
    }


def sizes(folder: Path) -> dict[str, int]:
    """The bytes of every file in a folder and the folders inside, by its path; hidden ones are left out."""
    found = {file.relative_to(folder): file for file in sorted(folder.rglob("*")) if file.is_file()}
    return {
        path.as_posix(): file.stat().st_size
        for path, file in found.items()
        if not any(part.startswith(".") for part in path.parts)
    }
