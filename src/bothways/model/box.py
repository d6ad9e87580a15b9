"""The models that come with the library, by name.

box/en           the English encoder: loaded and fine-tuned unless another model is named
box/sentence     the English encoder for vectors of texts: encoding, search, similarity
box/…            other encoders
box/en-emotion   LoRA adapters for tasks: the name of their encoder, a hyphen, the task
box/models.json  what is to be known of each: `BoxedModel`
"""

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from bothways.errors import BothwaysError
from bothways.json_files import require_plain_files
from bothways.model.hub_cache import cached_model, hub_cache, is_hub_name
from bothways.model.run_folder import model_of_run
from bothways.text.tokenizer import Tokenizer

BOX = Path(__file__).parents[1] / "box"
DEFAULT = "en"
SENTENCE = "sentence"
ALIASES = {"reader": DEFAULT, "fill": DEFAULT}
"""Earlier names."""
SIMILARITY = "similarity"
_COMPARES = {DEFAULT: SENTENCE, "zh": f"{SENTENCE}-zh"}
"""By encoder, the model for vectors of its language, which does the task of that name without an adapter."""

Given = TypeVar("Given")


@dataclass(frozen=True)
class BoxedModel:
    """A model that comes with the library: an encoder, or an adapter for a task."""

    name: str
    folder: Path
    task: str
    """What an adapter answers, such as emotion; "" for an encoder."""
    base: str
    """The encoder of an adapter; "" for an encoder."""
    languages: tuple[str, ...]
    about: str
    score: str
    """Its main score, with the name of the data."""

    @property
    def size(self) -> int:
        """Bytes of its files."""
        return sum(file.stat().st_size for file in self.folder.rglob("*") if file.is_file())


def has_box() -> bool:
    return (BOX / DEFAULT / "config.json").is_file()


def boxed(name: str = DEFAULT, model: str = DEFAULT) -> Path:
    """The folder of an included model: an encoder such as en, or a task such as emotion, for the encoder `model`."""
    if not has_box():
        raise BothwaysError(
            "this copy of bothways comes without its included models: pass a model folder", "no-box", BOX
        )
    if found := _named(name, model):
        return BOX / found
    encoders = boxed_encoders()
    wrong, expected = (name, (*encoders, *boxed_tasks(model))) if model in encoders else (model, encoders)
    raise BothwaysError(
        f"no included model is called {wrong!r}: expected {', '.join(expected)}", "no-such-model", wrong
    )


def model_folder(model: Path | str | None) -> Path:
    """The folder of a model, given by its path, by the folder of a run, or by its name.

    If there is no such folder, a name is that of a model or task in the box, or of a model in the cache of the Hugging
    Face Hub. A path that is none of these is returned as it is.
    """
    if model is None:
        return boxed()
    if Path(model).exists():
        folder = model_of_run(Path(model)) if Path(model).is_dir() else Path(model)
        require_plain_files(folder)
        return folder
    return BOX / found if (found := _named(str(model))) else cached_model(str(model)) or Path(model)


def model_for_vectors(model: Given | None) -> Given | Path | None:
    """A model, or if there is none the one in the box that makes vectors of texts."""
    return BOX / SENTENCE if model is None and SENTENCE in boxed_names() else model


def model_for_encoding(
    model: Given | None, base: Any = None, per: str = "text", pool: Any = None, layers: Any = "last"
) -> Given | Path | None:
    """As `model_for_vectors`, but the default model where states of layers or tokens are asked for."""
    return model_for_vectors(model) if base is None and per == "text" and not pool and layers == "last" else model


def no_such_model(model: Path | str) -> BothwaysError:
    """The error for a model that `model_folder` does not find."""
    if Path(model).exists():
        return BothwaysError(f"{model} is not a folder", "no-folder", model)
    if not is_hub_name(str(model)):
        return BothwaysError(f"there is no folder {model}", "no-folder", model)
    return BothwaysError(
        f"there is no {model} here, nor a model of that name in the Hugging Face cache, {hub_cache()}: give the path "
        "of a model folder, as bothways never downloads",
        "no-folder",
        model,
    )


def lasting_name(model: Path | str | None) -> str | None:
    """How a model is named so that it is found again: its name in the box, or its absolute path."""
    if model is None:
        return None
    return boxed_name(model) or str(model_folder(model).absolute())


def boxed_name(model: Path | str) -> str | None:
    """The name of a model in the box; None for another folder."""
    folder = model_folder(model)
    return folder.name if folder.parent == BOX else None


def _named(name: str, model: str = DEFAULT) -> str | None:
    names = boxed_names()
    asked = (ALIASES.get(name, name), f"{model}-{name}", *([_comparing(model)] if name == SIMILARITY else []))
    return next((one for one in asked if one in names), None)


def _comparing(model: str) -> str | None:
    """The model for vectors that belongs to an encoder, or is this one; None if the box has none."""
    own = _COMPARES.get(model, model)
    return own if own in _COMPARES.values() and own in boxed_names() else None


def boxed_names() -> list[str]:
    """All models in the box: the default one first, those for vectors last."""
    found = {file.parent.name for file in BOX.glob("*/config.json")}
    places = {DEFAULT: 0, SENTENCE: 2}
    return sorted(found, key=lambda name: (places.get(name.partition("-")[0], 1), name))


def boxed_encoders() -> list[str]:
    """The models in the box that are no adapters."""
    return [name for name in boxed_names() if not (BOX / name / "adapter_config.json").exists()]


def boxed_tasks(model: str = DEFAULT) -> list[str]:
    """The tasks that the box has an adapter of an encoder for, and similarity."""
    adapters = (name for name in boxed_names() if name not in boxed_encoders())
    found = [name.removeprefix(f"{model}-") for name in adapters if name.startswith(f"{model}-")]
    return [*found, SIMILARITY] if _comparing(model) else found


def boxed_for(script: str, for_vectors: bool = False) -> str | None:
    """The first encoder in the box, or the first for vectors of texts, that has words of a writing system."""
    names = (name for name in boxed_encoders() if (name.partition("-")[0] == SENTENCE) is for_vectors)
    return next((name for name in names if script in Tokenizer.load(BOX / name).scripts), None)


def boxed_models() -> list[BoxedModel]:
    """The included models: encoders, each with its adapters."""
    file, encoders = BOX / "models.json", boxed_encoders()
    told = json.loads(file.read_text(encoding="utf-8")) if file.exists() else {}
    found = []
    for name in boxed_names():
        base = "" if name in encoders else next(one for one in encoders if name.startswith(f"{one}-"))
        own = {"languages": told.get(base, {}).get("languages", []), "about": "", "score": "", **told.get(name, {})}
        task = name.removeprefix(f"{base}-") if base else ""
        found.append(BoxedModel(name, BOX / name, task, base, tuple(own["languages"]), own["about"], own["score"]))
    return found
