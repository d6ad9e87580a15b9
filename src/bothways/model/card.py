"""The README.md of a model folder, as a model card of the Hugging Face Hub: YAML for programs, Markdown for people."""

import math
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path

from bothways.model.box import BOX, boxed_models
from bothways.model.card_text import CARD, markdown, yaml_text
from bothways.model.card_usage import Use, use_of, use_of_graph
from bothways.model.families import FAMILIES
from bothways.model.hub_cache import name_in_hub
from bothways.model.identify import architecture_of
from bothways.model.model import Model
from bothways.model.run_folder import run_of_model

_CODES = {"English": "en", "Chinese": "zh"}
_METRICS = {
    "accuracy": "accuracy", "f1": "f1", "precision": "precision", "recall": "recall", "exact_match": "exact_match",
    "macro_f1": "f1", "micro_f1": "f1", "weighted_f1": "f1", "positive_f1": "f1", "matthews": "matthews_correlation",
    "pearson": "pearsonr", "spearman": "spearmanr", "mean_squared_error": "mse", "mean_absolute_error": "mae",
}  # fmt: skip
"""Our names of scores, and those of the Hub: other scores stand only in the table."""
_MOST_LABELS = 200
_ADAPTER = (
    "This folder holds a LoRA adapter: it is applied to its base model, which `adapter_config.json` names. PEFT opens "
    "it too."
)


@dataclass(frozen=True)
class Score:
    """One score, and its 95 % confidence interval if there is one."""

    name: str
    value: float
    interval: tuple[float, float] | None = None
    shown: str = ""
    """Its name for people, if it is another."""


@dataclass(frozen=True)
class Made:
    """How a model was made: what its card says beside its shape and its use."""

    name: str
    """The name of the model."""
    about: str
    """What it does, in a sentence."""
    base: Path | None = None
    """The folder of the model that it was made from."""
    facts: Mapping[str, str] = field(default_factory=dict)
    """Rows of the card's table, such as the training data."""
    scored_on: str = ""
    """The data of the scores."""
    score_note: str = ""
    """A sentence about the scores."""
    scores: tuple[Score, ...] = ()
    """The main one first."""


_MOST_FILES = 10


def files_and_rows(files: Iterable[str], rows: int, what: str = "rows") -> str:
    """Data as a card names them: without the folders of this machine.

    >>> files_and_rows(["/home/me/train.tsv", "more/train-zh.tsv"], 1200)
    'train.tsv, train-zh.tsv: 1,200 rows'
    """
    return f"{file_names(files) or 'examples from Python'}: {rows:,} {what}"


def file_names(files: Iterable[Path | str]) -> str:
    """The names of files, without their folders; of many files the first, and the number of the others."""
    names = list(dict.fromkeys(Path(file).name for file in files))
    more = f" and {len(names) - _MOST_FILES:,} more" if len(names) > _MOST_FILES else ""
    return ", ".join(names[:_MOST_FILES]) + more


def model_card(model: Model, folder: Path, made: Made | None = None) -> str:
    """The card of a model that is written to `folder`."""
    return _card(model, folder, made, use_of(model, _place_of(folder, made)))


def _card(model: Model, folder: Path, made: Made | None, use: Use, relation: str = "finetune") -> str:
    architecture = architecture_of(FAMILIES[model.config.family], set(model.config.heads))
    name = made.name if made else folder.name
    facts = {**_facts_of(made), **_shape_of(model, architecture)}
    parts = [
        f"---\n{_header(model, name, use, made, relation)}---\n\n# {markdown(name)}\n",
        markdown(made.about)
        if made
        else f"A {model.config.family} encoder saved by bothways. Fill in what it was "
        "trained on, for what, and how well it does it.",
        "\n| | |\n|---|---|",
        *(f"| {key} | {markdown(value)} |" for key, value in facts.items()),
    ]
    if made and made.scores:
        has_intervals = any(map(_between, made.scores))
        parts += [
            "\n## Scores\n",
            f"On {markdown(made.scored_on)}. {markdown(made.score_note)}".rstrip(),
            f"\n| score | value |{' 95 % interval |' * has_intervals}\n|---|---|{'---|' * has_intervals}",
        ]
        for one in made.scores:
            interval = f" {_between(one)} |" * has_intervals
            parts.append(f"| {markdown(one.shown or one.name)} | {one.value:.4f} |{interval}")
        if has_intervals:
            parts.append("\nIntervals are by bootstrap over the examples.")
    parts.append("\n## Usage\n")
    for library, code in use.codes.items():
        parts.append(f"With {library}:\n\n```python\n{code}\n```\n")
    return "\n".join([*parts, use.note, ""]).replace("\n\n\n", "\n\n")


def adapter_card(model: Model, folder: Path, made: Made) -> str:
    """The card of the adapter in `folder`. `model`: with the adapter merged into its base."""
    ours = use_of(model, _place_of(folder, made)).codes["bothways"]
    use = replace(use_of(model, ""), package="peft", codes={"bothways": ours}, tags=("lora",), note=_ADAPTER)
    return _card(model, folder, made, use, "adapter")


def graph_card(model: Model, folder: Path, output: str, made: Made | None = None) -> str:
    """The card of a folder with an ONNX graph of the model. `output`: what the graph computes."""
    use = use_of_graph(model, _place_of(folder, made), output)
    return _card(model, folder, made, replace(use, package="onnx", tags=("onnx",)))


def _place_of(folder: Path, made: Made | None) -> str:
    """How code finds the folder, from the folder of the run."""
    return f"{made.name}/{folder.name}" if made and made.name != folder.name else folder.name


def _facts_of(made: Made | None) -> dict[str, str]:
    if made is None:
        return {}
    return {**({"base model": name_of_model(made.base)} if made.base else {}), **made.facts}


def _shape_of(model: Model, architecture: str) -> dict[str, str]:
    shape, labels = model.config.encoder, model.config.labels
    shown = [*labels[:_MOST_LABELS], *([f"{len(labels) - _MOST_LABELS} more"] if len(labels) > _MOST_LABELS else [])]
    return {
        **({"labels": ", ".join(shown)} if labels else {}),
        "architecture": architecture,
        "parameters": f"{sum(p.numel() for p in model.parameters()):,}",
        "layers × width": f"{shape.layers} × {shape.width}, {shape.num_heads} heads, feed-forward {shape.ffn_width}",
        "maximum length": f"{shape.max_length} tokens",
        "heads": ", ".join(model.config.heads) or "none",
        "tokenizer": f"{model.tokenizer.kind}, {model.tokenizer.size:,} tokens" if model.tokenizer else "none",
    }


def _between(score: Score) -> str:
    if score.interval is None or any(map(math.isnan, score.interval)):
        return ""
    return f"{score.interval[0]:.4f} to {score.interval[1]:.4f}"


# ---------------------------------------------------------------------- names


def name_of_model(folder: Path) -> str:
    """How people call a model: its name in the box or on the Hub, else that of its folder or run, without the path."""
    folder = folder.resolve()
    if folder.parent == BOX.resolve():
        return f"{folder.name} (included in bothways)"
    return name_in_hub(folder) or (run_of_model(folder) or folder).name


def languages_of(folder: Path) -> tuple[str, ...]:
    """The codes of the languages of a model, if it is in the box or its card names them."""
    folder = folder.resolve()
    if folder.parent == BOX.resolve():
        known = next((one.languages for one in boxed_models() if one.name == folder.name), ())
        return tuple(_CODES[name] for name in known if name in _CODES)
    try:
        text = (folder / CARD).read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError):
        return ()
    header = re.match(r"---\n(.*?)\n---", text, re.DOTALL)
    found = re.search(r"^language:[ \t]*(.*(?:\n[ \t]*- .*)*)", header[1], re.MULTILINE) if header else None
    codes = re.findall(r"[A-Za-z-]{2,}", re.sub(r"^[ \t]*-", " ", found[1], flags=re.MULTILINE)) if found else []
    return tuple(dict.fromkeys(codes))


# ---------------------------------------------------------------------- YAML and Markdown


def _header(model: Model, name: str, use: Use, made: Made | None, relation: str) -> str:
    """The YAML of the card. Texts are JSON strings, which are YAML too."""
    base = made.base if made else None
    lines = [f"library_name: {use.package}", f"pipeline_tag: {use.pipeline_tag}"]
    if base and (languages := languages_of(base)):
        lines += ["language:", *(f"- {yaml_text(code)}" for code in languages)]
    lines += ["tags:", *(f"- {yaml_text(tag)}" for tag in ("bothways", model.config.family, *use.tags))]
    if base and (hub := name_in_hub(base.resolve())):
        lines += [f"base_model: {yaml_text(hub)}", f"base_model_relation: {relation}"]
    scores = [one for one in made.scores if one.name in _METRICS and math.isfinite(one.value)] if made else []
    if made and scores:
        kinds = dict.fromkeys(_METRICS[one.name] for one in scores)
        lines += ["metrics:", *(f"- {yaml_text(kind)}" for kind in kinds)]
        data = yaml_text(made.scored_on)
        lines += ["model-index:", f"- name: {yaml_text(name)}", "  results:", "  - task:"]
        lines += [f"      type: {use.pipeline_tag}", "    dataset:", f"      name: {data}", "      type: local"]
        lines += ["      split: validation", "    metrics:"]
        for one in scores:
            lines += [f"    - type: {yaml_text(_METRICS[one.name])}", f"      value: {one.value:.6f}"]
            lines += [f"      name: {yaml_text(one.shown or one.name)}"]
    return "\n".join(lines) + "\n"
