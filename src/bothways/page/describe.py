"""What the page has to know of a model: its tokenizer, its labels, and how its answers are made of its outputs."""

from pathlib import Path
from typing import Any

from bothways.errors import BothwaysError
from bothways.marked_text import Colours
from bothways.model.box import boxed_models
from bothways.model.model import Model
from bothways.tasks.registry import make_task, task_config
from bothways.tasks.task import Task, TaskConfig
from bothways.text.tokenizer import Tokenizer

TABS = {"classify": "sequence", "tag": "token", "answer": "span"}
"""The tasks that the page shows, with the heads that they read; it has a tab of the same name for each."""
VECTORS = "vectors"


def outputs_of(model: Model) -> list[str]:
    """The graphs of a model: of its task, or else for masks and for vectors. The first one shows attention too."""
    task = _task(model)
    if task is not None:
        return [TABS[task.name]]
    tokenizer, shape = model.require_tokenizer(), model.config.encoder
    can_fill = "masked" in model.heads and not shape.causal and tokenizer.mask is not None
    return ["masked", VECTORS] if can_fill else [VECTORS]


def describe(model: Model, name: str, folder: Path, base: str) -> dict[str, Any]:
    """A model without its files, for models.json. `base`: the name of the encoder that it adapts, or ""."""
    task, shape = _task(model), model.config.encoder
    config = task.config if task else TaskConfig("")
    longest = model.sentence.max_length if model.sentence is not None else 0
    listed = next((one for one in boxed_models() if one.folder == folder), None)
    colours = Colours(model.config.labels)
    return {
        "name": name,
        "base": base,
        "isIncluded": listed is not None,
        "languages": _languages(model, listed.languages if listed else ()),
        "scripts": sorted(model.require_tokenizer().scripts),
        "tabs": _tabs(model, task),
        "layers": shape.layers,
        "maxLength": shape.max_length,
        "vectorLength": min(longest or shape.max_length, shape.max_length),
        "prompt": model.sentence.prompt() if model.sentence is not None else "",
        "window": {
            "length": config.window.length or shape.max_length,
            "overlap": config.window.overlap,
            "long": config.window.long,
        },
        "labels": list(model.config.labels),
        "colours": {label: colours[label] for label in colours},
        "kind": getattr(config.options, "kind", ""),
        "texts": getattr(config.options, "texts", 1),
        "temperature": config.temperature,
        "thresholds": config.thresholds,
        "maxAnswerLength": getattr(config.options, "max_answer_length", 0),
        "tokenizer": _tokenizer(model.require_tokenizer(), folder),
    }


def _task(model: Model) -> Task | None:
    """The task of a model; None for an encoder."""
    if model.late is not None:
        raise _unsupported("late interaction (ColBERT)")
    try:
        name = task_config(model).task
    except BothwaysError as error:
        if error.code != "no-task-head":
            raise
        return None
    if name == "embed":
        return None
    if name not in TABS:
        raise _unsupported(name)
    return make_task(model)


def _unsupported(task: str) -> BothwaysError:
    shown = "encoders, and models that classify, tag or answer"
    return BothwaysError(f"the page shows {shown}, and no model for {task}: name another one", "unsupported-task", task)


def _tabs(model: Model, task: Task | None) -> list[str]:
    if task is not None:
        return [task.name, "attention"]
    return (["fill"] if "masked" in outputs_of(model) else []) + ["attention", "similar"]


def _languages(model: Model, named: tuple[str, ...]) -> list[str]:
    """The languages, among those of the page's examples, that a model reads."""
    known = {"en": ("English", "Latin"), "zh": ("Chinese", "Chinese")}
    scripts = model.require_tokenizer().scripts
    if named:
        return [code for code, (language, _) in known.items() if language in named]
    return [code for code, (_, script) in known.items() if script in scripts] or ["en"]


def _tokenizer(tokenizer: Tokenizer, folder: Path) -> dict[str, int]:
    """The ids of the special tokens. The page reads BERT's WordPiece only."""
    pair = tokenizer("a", "a")
    roles = [tokenizer.roles.get(f"{role}_token") for role in ("cls", "sep", "unk")]
    is_bert = tokenizer.words is not None and None not in roles and pair.segments[-1] == 1
    cls, sep, unknown = (tokenizer.id(name) if name else -1 for name in roles)
    inside = tokenizer.raw_batch(["a"], specials=False)[0].ids
    if not is_bert or pair.ids != [cls, *inside, sep, *inside, sep]:
        raise BothwaysError(
            f"{folder} has a tokenizer of the kind {tokenizer.kind}, and the page reads BERT's WordPiece only: "
            "name another model",
            "unsupported-tokenizer",
            tokenizer.kind,
        )
    mask = tokenizer.id(tokenizer.mask) if tokenizer.mask else -1
    return {"cls": cls, "sep": sep, "unk": unknown, "mask": mask}
