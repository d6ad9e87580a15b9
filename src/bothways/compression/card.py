"""The model card of a compressed model: what it was made from, how, and what it scores."""

from collections.abc import Mapping
from pathlib import Path

from bothways.compression.steps import Compressed, CompressionStep, megabytes
from bothways.export.folder import default_output
from bothways.model.card import Made, Score, graph_card, model_card, name_of_model
from bothways.model.card_text import markdown, thresholds_shown, with_section
from bothways.model.model import Model
from bothways.scoring.classification import shown_name
from bothways.tasks.registry import TASKS, task_config


def card_of(model: Model, found: Compressed, source: Path, facts: Mapping[str, str]) -> str:
    """The card of the model that was chosen. Speeds are in the table beside it: they are those of a machine."""
    best, title = found.best, TASKS[found.task].title
    labels, thresholds = model.config.labels, task_config(model).thresholds
    tested = facts["development data"]
    made = Made(
        name=found.folder.absolute().name,
        about=f"{title[:1].upper()}{title[1:]}. Compressed with bothways from {name_of_model(source)}.",
        base=source,
        facts={
            "training data": facts["training data"],
            "development data": tested,
            **({"thresholds": f"{thresholds_shown(thresholds)}; chosen on {tested}"} if thresholds else {}),
            "compression": ", ".join(_done(best, found.steps[0])) or "none",
        },
        scored_on=tested,
        score_note=f"The model {'and the thresholds were' if thresholds else 'was'} selected on these data: scores on "
        "others may be lower.",
        scores=(Score(found.metric, best.score, shown=shown_name(found.metric, labels) if labels else found.metric),),
    )
    if best.precision:
        card = graph_card(model, found.folder, default_output(model), made)
    else:
        card = model_card(model, found.folder, made)
    return with_section(card, "Compression", _table(found))


def _done(best: CompressionStep, original: CompressionStep) -> list[str]:
    """What was done to the original."""
    found = []
    if best.pieces < original.pieces:
        found.append(f"{best.pieces:,} of {original.pieces:,} tokens of the vocabulary")
    if best.layers < original.layers:
        found.append(f"{best.layers} of {original.layers} layers, distilled from the original")
    if best.precision:
        found.append(f"an ONNX graph in {best.precision}")
    return found


def _table(found: Compressed) -> list[str]:
    """What was tried."""
    kept = f"{found.metric} {found.needed:.4f}" + (f" ({found.keep} of the original)" if "%" in found.keep else "")
    rows = [
        f"| {markdown(step.name)}{' (this model)' * (step.name == found.chosen)} | {megabytes(step.bytes)} | "
        f"{step.parameters:,} | {step.score:.4f} | {step.difference:+.4f} |"
        for step in found.steps
    ]
    return [
        f"The smallest of these that keeps {markdown(kept)}.",
        "",
        f"| | MB | parameters | {markdown(found.metric)} | difference |",
        "|---|---|---|---|---|",
        *rows,
    ]
