"""bothways info DIR"""

from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any

import typer

from bothways.cli.options import BaseModel, SameModel, one_model
from bothways.cli.output import print_json, print_table
from bothways.progress import Progress

_SEGMENTS = ("no segments", "one segment", "two segments")
_MAX_LABELS = 3  # shown of a model in the box


def info(
    folder: Annotated[
        Path | None,
        typer.Argument(
            metavar="[DIR]",
            help="A model folder, a run folder, or the name of a model.  [default: en]",
            show_default=False,
        ),
    ] = None,
    same_model: SameModel = None,
    base: BaseModel = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Show what a model folder holds: architecture, parameters, tokenizer, heads, files, and what it can do.

    Example: bothways info zh
    """
    from bothways.model.box import boxed
    from bothways.model.describe import describe, describe_box

    given = one_model(folder, same_model)
    with Progress("reading the model"):
        facts = describe(given or boxed(), base)
        if given is None:
            facts |= {"box": describe_box()}
    if as_json:
        print_json(facts)
    else:
        print_table(("", ""), _lines(facts))


def _lines(facts: dict[str, Any]) -> list[tuple[str, str]]:
    shape, tokenizer = facts["encoder"], facts["tokenizer"]
    lines = [
        ("folder", facts["folder"]),
        *_run_lines(facts.get("run")),
        *([("adapter of", facts["adapter_of"])] if facts.get("adapter_of") else []),
        *_graph_lines(facts.get("graph")),
        ("architecture", ", ".join(facts["architectures"]) or facts["family"]),
        (
            "shape",
            f"{shape['layers']} layers × {shape['width']}, {shape['num_heads']} heads, "
            f"feed-forward {shape['ffn_width']}",
        ),
        ("details", f"{shape['activation']}, norm eps {shape['norm_eps']:g}, dropout {shape['dropout']:g}"),
        ("maximum length", f"{facts['max_length']:,} tokens, {_SEGMENTS[min(shape['segments'], 2)]}"),
        *([("parameters", f"{facts['parameters']:,}")] if "parameters" in facts else []),
    ]
    lines += [(f"  {part}", f"{count:,}") for part, count in facts.get("parameters_by_part", {}).items()]
    lines.append(("heads", ", ".join(facts["heads"]) or "none"))
    if vectors := facts["sentence"]:
        steps = " + ".join([*vectors["pooling"], *vectors["modules"]])
        limit = f", at most {vectors['max_length']:,} tokens" if vectors["max_length"] else ""
        lines.append(("vectors of texts", f"{steps}, width {vectors['width']:,}{limit}"))
        default = vectors["default_prompt"]
        if prompts := [
            f"{name} {text!r}{' (default)' if name == default else ''}"
            for name, text in vectors["prompts"].items()
            if text or name == default
        ]:
            lines.append(("prompts", ", ".join(prompts) + ("" if vectors["include_prompt"] else "; not pooled")))
    if facts["labels"]:
        lines.append(("labels", ", ".join(facts["labels"])))
    if tokenizer is None:
        lines.append(("tokenizer", "none in this folder"))
    else:
        lines.append(("tokenizer", f"{tokenizer['kind']}, {tokenizer['pieces']:,} tokens, {tokenizer['fingerprint']}"))
        lines.append(("special tokens", " ".join(tokenizer["specials"].values())))
    lines += [
        ("files" if i == 0 else "", f"{name}  {_size(size)}") for i, (name, size) in enumerate(facts["files"].items())
    ]
    lines.append(("runs on", facts["device"]))
    lines += [("it can" if i == 0 else "", ability) for i, ability in enumerate(facts["can"])]
    for i, (name, one) in enumerate(facts.get("box", {}).items()):
        text = f"{name}  {_size(one['size'])}: {', '.join(one['can'])}{_first(one['labels'])}"
        lines.append(("included adapters" if i == 0 else "", text))
    return lines


def _graph_lines(graph: dict[str, Any] | None) -> list[tuple[str, str]]:
    """The graph of an exported folder, and those of other precisions beside it."""
    if graph is None:
        return []
    others = [f"{file} ({name})" for name, file in graph["graphs"].items() if not graph["file"].endswith(f"/{file}")]
    return [
        ("exported graph", f"{graph['file']}, {graph['precision']}, computes {graph['computes']}"),
        *([("  other graphs", ", ".join(others))] if others else []),
        ("  inputs", ", ".join(graph["inputs"])),
        ("  outputs", ", ".join(graph["outputs"])),
    ]


def _run_lines(run: dict[str, Any] | None) -> list[tuple[str, str]]:
    """The run that made the model: how far it is, and what is in its folder beside the model."""
    if run is None:
        return []
    best = f", the best at step {run['best_step']:,}" if run["best_step"] is not None else ""
    how = "complete" if run["complete"] else "not complete"
    state = "with" if run["has_state"] else "without"
    lines = [("run", f"{run['folder']}, {how}: {run['steps']:,} steps{best}; {state} checkpoints")]
    others = [(name, size) for name, size in run["files"].items() if not name.startswith("model/")]
    return lines + [
        ("  its other files" if i == 0 else "", f"{n}  {_size(size)}") for i, (n, size) in enumerate(others)
    ]


def _first(labels: Sequence[str]) -> str:
    more = len(labels) - _MAX_LABELS
    shown = labels if more <= 0 else [*labels[:_MAX_LABELS], f"{more} more"]
    return f": {', '.join(shown)}" if shown else ""


def _size(count: int) -> str:
    for unit, step in (("GB", 1e9), ("MB", 1e6), ("kB", 1e3)):
        if count >= step:
            return f"{count / step:.1f} {unit}"
    return f"{count} bytes"
