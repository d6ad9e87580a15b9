"""The models that come with the library.

box/reader    the encoder: loaded and fine-tuned unless another model is named
box/fill      a LoRA adapter of it that predicts masked tokens; absent if the encoder has that head itself
box/…         LoRA adapters of it for tasks, such as emotion
"""

from pathlib import Path

from bothways.errors import BothwaysError

BOX = Path(__file__).parents[1] / "box"
_READER, _FILL = "reader", "fill"


def has_box() -> bool:
    return (BOX / _READER).is_dir()


def boxed(name: str = _READER) -> Path:
    """The folder of a model in the box: "reader", the encoder; "fill", which predicts masked tokens; or a task."""
    if not has_box():
        raise BothwaysError("this copy of bothways comes without a model: pass a model folder", "no-box", BOX)
    if name == _FILL and _FILL not in boxed_adapters():
        name = _READER
    if not (BOX / name / "config.json").is_file():
        known = ", ".join((_READER, *boxed_adapters()))
        raise BothwaysError(f"the box has no model {name!r}: expected {known}", "no-such-model", name)
    return BOX / name


def boxed_adapters() -> list[str]:
    """The names of the adapters in the box, "fill" first."""
    found = {file.parent.name for file in BOX.glob("*/config.json")} - {_READER}
    return sorted(found, key=lambda name: (name != _FILL, name))


def boxed_tasks() -> list[str]:
    """The tasks that the box has an adapter for."""
    return [name for name in boxed_adapters() if name != _FILL]
