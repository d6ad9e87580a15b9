"""A folder of static files that shows models at work in a browser, without a server that computes."""

import json
import shutil
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bothways import atomic
from bothways.export.folder import require_onnx
from bothways.model.adapter_config import base_of
from bothways.model.box import boxed, boxed_names, model_folder, no_such_model
from bothways.model.load import load
from bothways.model.model import Model
from bothways.page.describe import describe, outputs_of
from bothways.progress import Progress

STATIC = Path(__file__).parent / "static"
"""What is the same on every page."""
MODELS, INDEX = "models", "models.json"
_TOKENIZER, _WEIGHTS = "tokenizer.json", "weights.safetensors"


@dataclass(frozen=True)
class Page:
    """A page that was written."""

    folder: Path
    models: tuple[str, ...]
    size: int
    """Bytes of all its files."""


def write_page(
    out: Path | str, models: Sequence[Path | str] = (), *, tasks: Sequence[str] = (), base: Path | str | None = None
) -> Page:
    """Write a page for models, and for tasks of the included ones, into the folder `out`; an older page is replaced.

    By default all included models are on it. An adapter comes with its encoder: `base`, or else the one that it names.
    The page fills masks, shows attention, classifies, tags words, answers questions and compares sentences, as its
    models can. Any server of static files will do, and nothing is requested from elsewhere.
    """
    require_onnx()
    wanted = _with_bases([*map(_folder, models), *(boxed(task) for task in tasks)], base)
    if not wanted:
        wanted = _with_bases([boxed(name) for name in boxed_names() or [""]], base)
    own = [file.name for file in STATIC.iterdir()]
    with atomic.new_folder(Path(out), replaces=(*own, MODELS, INDEX)) as fresh:
        shutil.copytree(STATIC, fresh, dirs_exist_ok=True, copy_function=shutil.copyfile)
        described = _write_models(wanted, fresh)
        text = json.dumps({"models": described}, ensure_ascii=False, indent=1)
        (fresh / INDEX).write_text(text + "\n", encoding="utf-8")
    size = sum(file.stat().st_size for file in Path(out).rglob("*") if file.is_file())
    return Page(Path(out), tuple(one["name"] for one in described), size)


def _folder(model: Path | str) -> Path:
    found = model_folder(model)
    if not found.is_dir():
        raise no_such_model(found)
    return found


def _with_bases(folders: Sequence[Path], base: Path | str | None) -> dict[Path, Path | None]:
    """The folders with their encoders, None for what is no adapter; each once, an encoder before its adapters."""
    found: dict[Path, Path | None] = {}
    for folder in folders:
        encoder = base_of(folder, base)
        if encoder is not None:
            found.setdefault(encoder, base_of(encoder))
        found.setdefault(folder, encoder)
    return found


def _write_models(folders: dict[Path, Path | None], page: Path) -> list[dict[str, Any]]:
    """Write the files of the models; returns what models.json says of them."""
    from bothways.page.weights import Weights

    names = _names(list(folders))
    loaded: dict[Path, tuple[Model, Weights]] = {}
    described = []
    with Progress("writing models", len(folders)) as bar:
        for folder, encoder in bar.over(folders.items()):
            model = load(folder, base=encoder)
            base, base_weights = loaded.get(encoder, (None, None)) if encoder else (None, None)
            about = describe(model, names[folder], folder, names[encoder] if base and encoder else "")
            about["tokenizer"]["file"] = _write_tokenizer(model, base, names[folder], about["base"], page)
            weights = Weights(model, base_weights)
            described.append(about | _write_graphs(model, weights, names[folder], page))
            loaded[folder] = model, weights
    return described


def _write_tokenizer(model: Model, base: Model | None, name: str, base_name: str, page: Path) -> str:
    """The file of the tokenizer, which an adapter shares with its encoder unless it has another one."""
    tokenizer = model.require_tokenizer()
    if base is not None and base.require_tokenizer().fingerprint == tokenizer.fingerprint:
        return f"{MODELS}/{base_name}/{_TOKENIZER}"
    (page / MODELS / name).mkdir(parents=True, exist_ok=True)
    (page / MODELS / name / _TOKENIZER).write_text(tokenizer.backend.to_str(), encoding="utf-8")
    return f"{MODELS}/{name}/{_TOKENIZER}"


def _write_graphs(model: Model, weights: Any, name: str, page: Path) -> dict[str, Any]:
    """Write the graphs of a model, and the weights that they share; returns their places."""
    from bothways.export.onnx import GraphSettings, build

    outputs, home = outputs_of(model), f"{MODELS}/{name}"
    (page / home).mkdir(parents=True, exist_ok=True)
    graphs = {}
    for output in outputs:
        graph = build(model, output, GraphSettings(attentions=output == outputs[0]))
        tensors = weights.take_out(graph, output)
        (page / home / f"{output}.onnx").write_bytes(graph.SerializeToString())
        graphs[output] = {"file": f"{home}/{output}.onnx", "tensors": tensors}
    weights.save(page / home / _WEIGHTS)
    size = (page / home / _WEIGHTS).stat().st_size
    return {"graphs": graphs, "attentions": outputs[0], "weights": f"{home}/{_WEIGHTS}", "weightsSize": size}


def _names(folders: Sequence[Path]) -> dict[Path, str]:
    """A name for each model: that of its folder, with a number if there are two of that name."""
    found: dict[Path, str] = {}
    for folder in folders:
        stem = folder.resolve().name or "model"
        count = sum(name == stem or name.startswith(f"{stem}~") for name in found.values())
        found[folder] = f"{stem}~{count + 1}" if count else stem
    return found
