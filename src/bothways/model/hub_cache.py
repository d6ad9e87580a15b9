"""Models that other libraries have downloaded: the cache of the Hugging Face Hub, read without its library.

CACHE/models--org--name/refs/main          the name of the newest snapshot
CACHE/models--org--name/snapshots/NAME/    a model folder
"""

import os
import re
from pathlib import Path

_NAME = re.compile(r"[A-Za-z0-9][\w.-]*(/[\w.-]+)?", re.ASCII)
_FOLDER, _SNAPSHOTS = "models--", "snapshots"


def hub_cache() -> Path:
    """Where models of the Hub are kept, by the same variables and in the same order as huggingface_hub finds it."""
    for variable in ("HF_HUB_CACHE", "HUGGINGFACE_HUB_CACHE"):
        if place := os.environ.get(variable):
            return Path(place).expanduser()
    parent = os.environ.get("XDG_CACHE_HOME") or "~/.cache"
    return Path(os.environ.get("HF_HOME") or Path(parent) / "huggingface").expanduser() / "hub"


def is_hub_name(name: str) -> bool:
    """Whether a model of the Hub could have this name: org/name, or name alone."""
    return _NAME.fullmatch(name) is not None


def cached_model(name: str) -> Path | None:
    """The folder of a model of the Hub that is in the cache; None if it is not."""
    if not is_hub_name(name):
        return None
    home = hub_cache() / f"{_FOLDER}{name.replace('/', '--')}"
    try:
        snapshot = home / _SNAPSHOTS / (home / "refs" / "main").read_text(encoding="utf-8").strip()
    except (OSError, UnicodeDecodeError):
        return None
    return snapshot if snapshot.is_dir() else None


def name_in_hub(folder: Path) -> str | None:
    """The name of the model whose snapshot this folder is; None if it is not one."""
    home = folder.parent.parent
    if folder.parent.name != _SNAPSHOTS or not home.name.startswith(_FOLDER):
        return None
    return home.name.removeprefix(_FOLDER).replace("--", "/", 1)
