"""The manifest of an index: which segments it has and how they were made. It is replaced as a whole."""

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields, replace
from pathlib import Path
from typing import Any

from bothways import atomic
from bothways.errors import BothwaysError
from bothways.predict.encode_options import Long
from bothways.search.search_options import Quantize, Similarity

NAME = "manifest.json"
VERSION = 1


@dataclass(frozen=True)
class Settings:
    """How the documents of an index are read and searched."""

    model: str | None = None
    """The model's folder; None: en, the one in the box; "": a model that was given in Python."""
    base: str | None = None
    similarity: Similarity = "cosine"
    long: Long = "window"
    query_prompt: str | None = None
    document_prompt: str | None = None
    quantize: Quantize | None = None
    ann: bool | None = None


@dataclass(frozen=True)
class Pending:
    """A build or an addition that has begun: the same call goes on with it."""

    inputs: Mapping[str, list[int]]
    """Size and time of each file."""
    field: str | None
    rows_per_part: int = 0
    """Documents that a worker does at a time; 0: one process does them in order."""

    def has_read(self, other: "Pending | None") -> bool:
        """Whether another work has the same documents."""
        return other is not None and (self.inputs, self.field) == (other.inputs, other.field)


@dataclass(frozen=True)
class Manifest:
    """What an index holds."""

    settings: Settings
    width: int
    """Of the vectors."""
    probe: list[float]
    """The vector of one text, by which the model is known again."""
    segments: tuple[str, ...] = ()
    deleted: Mapping[str, list[int]] = field(default_factory=dict)
    """By segment: the numbers of the documents that were deleted."""
    changes: int = 0
    """Counts what changed the documents."""
    numbered: int = 0
    """Documents and blank lines that were ever read: the numbers that are used as ids."""
    pending: Pending | None = None
    built_from: Pending | None = None
    """What the first segment was built from: to build it once more needs no work."""
    added_from: Pending | None = None
    """What the last change added, if it was an addition: the same call after a kill needs no work."""

    def changed(self, **values: Any) -> "Manifest":
        """With other documents."""
        return replace(self, changes=self.changes + 1, **{"added_from": None, **values})

    def write(self, home: Path) -> None:
        """Replace the manifest of an index."""
        with atomic.new_file(home / NAME) as fresh:
            fresh.write_text(json.dumps({"version": VERSION, **asdict(self)}, indent=1) + "\n", encoding="utf-8")


def read_manifest(home: Path) -> Manifest | None:
    """The manifest of an index; None if the folder has none."""
    path = home / NAME
    if not path.exists():
        return None
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
        version = found.pop("version")
        if version == VERSION:
            found["settings"] = Settings(**found["settings"])
            found["segments"] = tuple(found["segments"])
            for name in ("pending", "built_from", "added_from"):
                found[name] = Pending(**found[name]) if found.get(name) else None
            if not isinstance(found["deleted"], dict) or not all(isinstance(name, str) for name in found["segments"]):
                raise TypeError("no segments")
            return Manifest(**found)
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        why = error if isinstance(error, OSError | ValueError) else "its keys or values are others"
        raise BothwaysError(f"{path} is not the manifest of an index: {why}", "damaged-file", path) from error
    raise BothwaysError(
        f"{home} was written by another version of bothways (format {version}): build it again", "other-version", home
    )


def difference(old: Settings, new: Settings) -> str:
    """The first setting that differs, for a person; empty if all are the same."""
    for name in (each.name for each in fields(Settings)):
        before, now = getattr(old, name), getattr(new, name)
        if before != now:
            return f"`{name}` {before!r}, and now it is {now!r}"
    return ""
