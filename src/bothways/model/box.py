"""The models that come with the library.

box/reader    the encoder: what is loaded, and fine-tuned, if no other is named
box/fill      an adapter of it that fills blanks; there is none if it does that itself
box/…         adapters of it that answer: emotion, and so on, each by the name of its task
"""

from pathlib import Path

from bothways.errors import BothwaysError

BOX = Path(__file__).parents[1] / "box"
_READER, _FILL = "reader", "fill"


def has_box() -> bool:
    return (BOX / _READER).is_dir()


def boxed(name: str = _READER) -> Path:
    """The folder of a model in the box: the encoder itself, "fill" for what fills blanks, or that of a task."""
    if not has_box():
        raise BothwaysError("this copy of bothways has no model in the box: name a model's folder")
    if name == _FILL and _FILL not in boxed_adapters():
        name = _READER
    if not (BOX / name / "config.json").is_file():
        known = ", ".join((_READER, *boxed_adapters()))
        raise BothwaysError(f"there is no {name!r} in the box: it has {known}")
    return BOX / name


def boxed_adapters() -> list[str]:
    """What stands beside the encoder, "fill" first."""
    found = {file.parent.name for file in BOX.glob("*/config.json")} - {_READER}
    return sorted(found, key=lambda name: (name != _FILL, name))


def boxed_tasks() -> list[str]:
    """The tasks that the box answers at once."""
    return [name for name in boxed_adapters() if name != _FILL]
