"""The facts that `bothways info` shows about a model folder."""

from dataclasses import asdict
from pathlib import Path
from typing import Any

from bothways.lazy import torch
from bothways.model.adapter_config import base_of
from bothways.model.box import boxed, boxed_tasks, model_folder
from bothways.model.exported import FILES, FOLDER, ExportedModel
from bothways.model.opened import AnsweringModel, open_model
from bothways.model.run_folder import describe_run, is_run, run_of_model, sizes
from bothways.text.tokenizer import Tokenizer

_ABILITIES = {
    "masked": "predict masked tokens (bothways fill)",
    "replaced": "detect replaced tokens",
    "next": "predict whether the second sentence follows the first",
    "sequence": "classify texts",
    "token": "classify tokens",
    "span": "answer questions with a span of a text",
    "choice": "answer multiple-choice questions",
}


def describe(folder: Path | str, base: Path | str | None = None) -> dict[str, Any]:
    """The facts about a model folder, as values that JSON can hold. `base`: as in `load`."""
    given, folder = Path(folder), model_folder(folder)
    run = given if folder.parent == given else run_of_model(folder)
    model = open_model(folder, base)
    if isinstance(model, ExportedModel):
        return _describe_graph(model)
    config, tokenizer = model.config, model.tokenizer
    parts = {name: sum(p.numel() for p in head.parameters()) for name, head in model.heads.items()}
    can = [_ABILITIES[name] for name in config.heads if name in _ABILITIES]
    can += ["rank documents by late interaction (bothways rerank)"] if model.late is not None else []
    return {
        "folder": str(folder),
        "run": describe_run(run) if run is not None and is_run(run) else None,
        "adapter_of": str(found) if (found := base_of(folder, base)) else None,
        "family": config.family,
        "architectures": config.hf_config.get("architectures") or [],
        "encoder": asdict(config.encoder),
        "max_length": config.encoder.max_length,
        "parameters": sum(p.numel() for p in model.parameters()),
        "parameters_by_part": {
            "token table": model.encoder.embeddings.tokens.weight.numel(),
            "rest of the embeddings": sum(
                p.numel() for n, p in model.encoder.embeddings.named_parameters() if not n.startswith("tokens.")
            ),
            "layers": sum(p.numel() for n, p in model.encoder.named_parameters() if not n.startswith("embeddings.")),
            **{f"{name} head": count for name, count in parts.items()},
            **({"sentence modules": own} if (own := _count(model.sentence)) else {}),
            **({"projection of tokens": own} if (own := _count(model.late)) else {}),
        },
        "heads": list(config.heads),
        "sentence": _sentence(model),
        "device": _device(),
        "labels": list(config.labels),
        "tokenizer": _tokenizer(tokenizer),
        "files": sizes(folder),
        "can": ([*can, "compute embeddings of texts (bothways encode)"] if tokenizer else can),
    }


def _describe_graph(model: ExportedModel) -> dict[str, Any]:
    """The facts about an exported folder, read without torch."""
    config = model.config
    graphs = {name: file for name, file in FILES.items() if (model.folder / FOLDER / file).exists()}
    can = [_ABILITIES[model.output]] if model.output in _ABILITIES else []
    can += ["compute embeddings of texts (bothways encode)"] if "last_hidden_state" in model.outputs else []
    return {
        "folder": str(model.folder),
        "graph": {
            "file": str(model.file),
            "precision": model.precision,
            "computes": model.output,
            "inputs": list(model.inputs),
            "outputs": model.outputs,
            "graphs": graphs,
        },
        "family": config.family,
        "architectures": config.hf_config.get("architectures") or [],
        "encoder": asdict(config.encoder),
        "max_length": config.encoder.max_length,
        "heads": list(model.heads),
        "sentence": _sentence(model),
        "device": "cpu (onnxruntime)",
        "labels": list(config.labels),
        "tokenizer": _tokenizer(model.tokenizer),
        "files": sizes(model.folder),
        "can": can,
    }


def _tokenizer(tokenizer: Tokenizer | None) -> dict[str, Any] | None:
    if tokenizer is None:
        return None
    return {
        "kind": tokenizer.kind,
        "pieces": tokenizer.size,
        "specials": tokenizer.roles,
        "fingerprint": tokenizer.fingerprint,
    }


def _sentence(model: AnsweringModel) -> dict[str, Any] | None:
    """How the folder makes the vector of a text, if it is one of sentence-transformers."""
    if (sentence := model.sentence) is None:
        return None
    return {
        "pooling": list(sentence.pooling.modes),
        "modules": sentence.step_names,
        "width": sentence.width(model.config.encoder.width),
        "max_length": sentence.max_length,
        "prompts": sentence.prompts,
        "include_prompt": sentence.include_prompt,
        "default_prompt": sentence.settings.get("default_prompt_name"),
    }


def _count(module: Any) -> int:
    return sum(p.numel() for p in module.parameters()) if module is not None else 0


def _device() -> str:
    """What models run on here by default."""
    return f"cuda ({torch.cuda.get_device_name()})" if torch.cuda.is_available() else "cpu"


def describe_box() -> dict[str, dict[str, Any]]:
    """For each adapter of the default model: what it can do, its labels, and its size in bytes."""
    found = {}
    for name in boxed_tasks():
        facts = describe(boxed(name))
        can = [ability.partition(" (")[0] for ability in facts["can"][:1]]
        found[name] = {
            "can": [f"{ability} (bothways predict --task {name})" for ability in can],
            "labels": facts["labels"],
            "size": sum(facts["files"].values()),
        }
    return found
