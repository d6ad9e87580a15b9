"""The models that come with the library.

box/reader    the encoder: what is loaded, and fine-tuned, if no other is named
box/fill      an adapter of it that fills blanks
box/…         adapters of it that answer: emotion, and so on, each by the name of its task
"""

from pathlib import Path

from bothways.errors import BothwaysError

BOX = Path(__file__).parents[1] / "box"
_READER, _FILL = "reader", "fill"


def has_box() -> bool:
    return (BOX / _READER).is_dir()


def boxed(name: str = _READER) -> Path:
    """The folder of a model in the box: the encoder itself, "fill", or what `boxed_tasks` names."""
    if not has_box():
        raise BothwaysError("this copy of bothways has no model in the box: name a model's folder")
    if not (BOX / name / "config.json").is_file():
        known = ", ".join((_READER, _FILL, *boxed_tasks()))
        raise BothwaysError(f"there is no {name!r} in the box: it has {known}")
    return BOX / name


def boxed_tasks() -> list[str]:
    """The tasks that the box answers at once."""
    found = (folder.parent.name for folder in BOX.glob("*/config.json"))
    return sorted(name for name in found if name not in (_READER, _FILL))
