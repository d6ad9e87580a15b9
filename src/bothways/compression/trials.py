"""Models that are written, opened and measured, one after the other; the smallest that keeps the score is known."""

import shutil
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch

from bothways.compression.keep import reaches
from bothways.compression.measure import Measure, size_of
from bothways.compression.steps import CompressionStep, megabytes, smallest
from bothways.export.folder import export_onnx
from bothways.model.checkpoint import save
from bothways.predict.predictor import Predictor
from bothways.train.session import Say


@dataclass(frozen=True)
class Variant:
    """A model that is tried with its weights, and as a graph of each precision."""

    name: str
    model: Any
    """A `Model`."""


@dataclass
class Trials:
    """What was tried so far, and the score that is to be kept."""

    measure: Measure
    needed: float
    work: Path
    """A folder for models that are tried."""
    say: Say
    steps: list[CompressionStep] = field(default_factory=list)
    best: Variant | None = None

    def __post_init__(self) -> None:
        self.original = Variant("original", self.measure.original.model)

    def add(self, variant: Variant, precision: str = "") -> None:
        """Write a model to a folder, measure it from there, and remove the folder."""
        folder, model = self.work / "tried", variant.model
        write_variant(model, precision, folder)
        measure, is_original = self.measure, not self.steps
        predictor = measure.original if is_original else Predictor.load(folder, device="cpu")
        score = measure.original_score if is_original else measure.score(predictor)
        rate, speed = measure.speed(predictor)
        step = CompressionStep(
            name=f"{variant.name}, {precision}" if precision else variant.name,
            layers=model.config.encoder.layers,
            pieces=model.require_tokenizer().size,
            precision=precision,
            bytes=size_of(folder),
            parameters=sum(p.numel() for p in model.parameters()),
            texts_per_second=rate,
            speed=1.0 if is_original else speed,
            score=score,
            difference=score - measure.original_score,
            keeps=reaches(score, self.needed, measure.metric),
        )
        shutil.rmtree(folder)
        self.steps.append(step)
        if step.keeps and smallest(self.steps) is step:
            self.best = variant
        self.say(
            f"{step.name}: {megabytes(step.bytes)} MB, {step.speed:.1f}×, {measure.metric} {score:.4f} "
            f"({step.difference:+.4f})"
        )


def write_variant(model: Any, precision: str, folder: Path) -> None:
    """Write a model: a graph of this precision, or its weights in the precision of the file that they came from."""
    if precision:
        export_onnx(model, folder, precision=precision)
        return
    exact = (kind for kind in (torch.float16, torch.bfloat16) if _holds(model, kind))
    save(model, folder, dtype=next(exact, torch.float32))


def _holds(model: Any, kind: torch.dtype) -> bool:
    """Whether 16 bits hold every weight as it is."""
    return all(torch.equal(weight.to(kind).to(weight.dtype), weight) for weight in model.parameters())
