"""Every task learns what transformers' class for it learns: the same loss, gradients and steps on a padded batch.

Here are also the small models and data that the other tests of tasks are made of.
"""

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import safetensors.torch
import torch
import transformers
from torch import Tensor
from torch.nn import functional as F

from bothways.data.examples import Choice, Text
from bothways.engine.reader import WindowSettings
from bothways.model.checkpoint import save
from bothways.model.load import load
from bothways.tasks.classify import ClassifySettings
from bothways.tasks.finetune import finetune
from bothways.tasks.recipe import FinetuneModel
from bothways.tasks.registry import TASKS, plan_task
from bothways.tasks.trainable import FineTuning
from bothways.train.optim import OptimSettings
from helpers.tasks import (
    CASES,
    CHOICES,
    GRADES,
    LIMIT,
    SINGLE,
    Case,
    open_theirs,
    quiet,
    recipe_for,
    start,
    take,
)

# ---------------------------------------------------------------------- data: English and Chinese, short and long


# ---------------------------------------------------------------------- models


def gradients(work: FineTuning, folder: Path) -> dict[str, Tensor]:
    """The gradients under transformers' names: written as if they were the weights."""
    names = dict(work.module.named_parameters())
    assert all(p.grad is not None for p in names.values())
    save(work.model_of({name: p.grad for name, p in names.items() if p.grad is not None}), folder)
    return safetensors.torch.load_file(folder / "model.safetensors")


def far(ours: Mapping[str, Tensor], theirs: Mapping[str, Tensor]) -> float:
    """The largest difference, in units of the largest number of each tensor or of 1."""
    assert ours.keys() == theirs.keys()
    return max(float((ours[n] - theirs[n]).abs().max() / max(1.0, float(theirs[n].abs().max()))) for n in ours)


# ---------------------------------------------------------------------- the judges


def their_step(model: Any, tokenizer: Any, case: Case, labels: Sequence[str]) -> float:
    """Their loss, and their gradients left in the model."""
    groups = [[example] for example in case.examples] if case.is_apart else [case.examples]
    total = 0.0
    for group in groups:
        batch = case.batch(tokenizer, group, labels)
        batch.pop("offset_mapping")
        loss = model(**batch).loss / len(groups)
        loss.backward()
        total += float(loss.detach())
    return total


def test_every_task_has_a_judge() -> None:
    assert {case.task for case in CASES.values()} == set(TASKS) - {"embed"}  # whose judge is in test_embed.py


@pytest.mark.parametrize("name", CASES)
def test_loss_and_gradients_are_those_of_transformers(name: str, base: Path, tmp_path: Path) -> None:
    case = CASES[name]
    work = start(recipe_for(case.task, base, **case.parts), case.examples)
    save(work.module.model, tmp_path / "ours")
    ours = take(work)
    model, tokenizer = open_theirs(case, tmp_path / "ours")
    theirs = their_step(model, tokenizer, case, work.config.labels)
    assert ours == pytest.approx(theirs, abs=LIMIT)
    assert theirs > 0.01
    judged = {n: p.grad if p.grad is not None else torch.zeros_like(p) for n, p in model.named_parameters()}
    assert far(gradients(work, tmp_path / "gradients"), judged) <= LIMIT


@pytest.mark.parametrize("name", ["pairs", "multi", "score", "entities", "no answer", "choose"])
def test_five_steps_are_those_of_transformers(name: str, base: Path, tmp_path: Path) -> None:
    """AdamW without decay of biases and norms, clipping, a rate that rises for two steps and falls."""
    case = CASES[name]
    optim = OptimSettings(lr=3e-3, weight_decay=0.1, warmup=0.4, clip=1.0)
    plan_ = recipe_for(case.task, base, optim=optim, run=quiet(steps=5, batch_size=9, save_every=9), **case.parts)
    save(start(plan_, case.examples).module.model, tmp_path / "ours")
    finetune(replace(plan_, model=FinetuneModel(str(tmp_path / "ours"))), tmp_path / "run", train=case.examples, dev=[])

    model, tokenizer = open_theirs(case, tmp_path / "ours")
    labels = load(tmp_path / "ours").config.labels
    decayed = [p for n, p in model.named_parameters() if p.ndim > 1]
    rest = [p for n, p in model.named_parameters() if p.ndim == 1]
    groups = [{"params": decayed, "weight_decay": 0.1}, {"params": rest, "weight_decay": 0.0}]
    optimizer = torch.optim.AdamW(groups, lr=3e-3, eps=1e-6)
    schedule = transformers.get_linear_schedule_with_warmup(optimizer, 2, 5)
    losses = []
    for _ in range(5):
        losses.append(their_step(model, tokenizer, case, labels))
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        schedule.step()
        optimizer.zero_grad()
    found = losses_of(tmp_path / "run")
    assert [found[step] for step in range(1, 6)] == pytest.approx(losses, abs=LIMIT)
    assert len({round(loss, 5) for loss in losses[1:]}) == 4  # it moved


def losses_of(out: Path) -> dict[int, float]:
    rows = [json.loads(line) for line in (out / "metrics.jsonl").read_text().splitlines()]
    return {row["step"]: row["loss"] for row in rows if "loss" in row}


# ---------------------------------------------------------------------- what classify can be told


def logits_and_golds(work: FineTuning, case: Case, folder: Path) -> tuple[Tensor, Tensor]:
    """From transformers, so that the formulas below stand on nothing of ours."""
    save(work.module.model, folder)
    model, tokenizer = open_theirs(case, folder)
    batch = case.batch(tokenizer, case.examples, work.config.labels)
    batch.pop("offset_mapping")
    gold = batch.pop("labels")
    with torch.no_grad():
        return model(**batch).logits, gold


WEIGHTS = {"bad": 3.0, "good": 0.25}
SETTINGS = {
    "weights": ClassifySettings(class_weights=WEIGHTS),
    "balanced": ClassifySettings(class_weights="balanced"),
    "smoothing": ClassifySettings(label_smoothing=0.2),
    "focal": ClassifySettings(focal_gamma=2.0),
    "all": ClassifySettings(class_weights=WEIGHTS, label_smoothing=0.1, focal_gamma=1.5),
}


@pytest.mark.parametrize("name", SETTINGS)
def test_settings_of_classify_follow_their_formulas(name: str, base: Path, tmp_path: Path) -> None:
    """loss = Σ w · (1 - p)^γ · (-(1 - s) log p - s · mean log q) / Σ w, with w the weight of the row's gold."""
    case, settings = CASES["pairs"], SETTINGS[name]
    work = start(recipe_for("classify", base, settings=settings), case.examples)
    logits, gold = logits_and_golds(work, case, tmp_path / "ours")
    names = work.config.labels
    count = {label: sum(example.gold == label for example in case.examples) for label in names}
    weights = {label: len(case.examples) / len(names) / count[label] for label in names}
    if settings.class_weights != "balanced":
        weights = {label: WEIGHTS.get(label, 1.0) if settings.class_weights != "none" else 1.0 for label in names}
    total = divisor = 0.0
    for row, right in zip(logits.double(), gold.tolist(), strict=True):
        chances = torch.softmax(row, 0)
        p = float(chances[right])
        spread = -float(chances.log().mean())
        each = (1 - settings.label_smoothing) * -math.log(p) + settings.label_smoothing * spread
        total += weights[names[right]] * (1 - p) ** settings.focal_gamma * each
        divisor += weights[names[right]]
    assert take(work) == pytest.approx(total / divisor, abs=LIMIT)


def test_weights_and_smoothing_alone_are_those_of_torch(base: Path, tmp_path: Path) -> None:
    case = CASES["single"]
    weighted = start(recipe_for("classify", base, settings=SETTINGS["weights"]), case.examples)
    logits, gold = logits_and_golds(weighted, case, tmp_path / "ours")
    weight = torch.tensor([WEIGHTS.get(name, 1.0) for name in weighted.config.labels])
    assert take(weighted) == pytest.approx(float(F.cross_entropy(logits, gold, weight)), abs=LIMIT)
    smoothed = start(recipe_for("classify", base, settings=SETTINGS["smoothing"]), case.examples)
    assert take(smoothed) == pytest.approx(float(F.cross_entropy(logits, gold, label_smoothing=0.2)), abs=LIMIT)


def test_several_labels_can_be_weighed_and_smoothed(base: Path, tmp_path: Path) -> None:
    """A label's weight is torch's pos_weight: it counts where the label is given."""
    case = CASES["multi"]
    settings = ClassifySettings(class_weights={"joy": 4.0}, label_smoothing=0.2)
    work = start(recipe_for("classify", base, settings=settings), case.examples)
    logits, gold = logits_and_golds(work, case, tmp_path / "ours")
    weight = torch.where((gold > 0) & (torch.tensor(work.config.labels == np.array("joy"))), 4.0, 1.0)
    each = F.binary_cross_entropy_with_logits(logits, gold * 0.8 + 0.1, weight)
    assert take(work) == pytest.approx(float(each), abs=LIMIT)


def test_several_labels_can_be_focal(base: Path, tmp_path: Path) -> None:
    """Each label of each text counts (1 - the probability of what is right about it)^γ."""
    case = CASES["multi"]
    work = start(recipe_for("classify", base, settings=ClassifySettings(focal_gamma=2.0)), case.examples)
    logits, gold = logits_and_golds(work, case, tmp_path / "ours")
    right = torch.where(gold > 0, logits.sigmoid(), (-logits).sigmoid())
    assert take(work) == pytest.approx(float((-right.log() * (1 - right) ** 2).mean()), abs=LIMIT)


LONG = Text((" ".join(["the cat runs in paris"] * 9),), "bad")


def test_the_windows_of_a_long_text_count_as_one_text_together(base: Path, tmp_path: Path) -> None:
    """The mean over texts of the mean over windows, as transformers computes each window's loss."""
    window = WindowSettings(length=20, overlap=4)
    work = start(recipe_for("classify", base, window=window), [*SINGLE, LONG])
    save(work.module.model, tmp_path / "ours")
    model, _ = open_theirs(CASES["single"], tmp_path / "ours")
    labels = list(work.config.labels)
    means = []
    for example in [*SINGLE, LONG]:
        item = work.task.encode([example])[0]
        each = []
        for view in item.views:
            with torch.no_grad():
                row = model(
                    torch.tensor([view.ids.tolist()]), token_type_ids=torch.tensor([view.segments.tolist()])
                ).logits
            each.append(float(F.cross_entropy(row, torch.tensor([labels.index(str(example.gold))]))))
        means.append(sum(each) / len(each))
    assert len(each) > 2
    assert take(work) == pytest.approx(sum(means) / len(means), abs=LIMIT)


def their_logits(model: Any, view: Any) -> Tensor:
    """Of one sequence."""
    with torch.no_grad():
        ids, segments = torch.tensor([[view.ids.tolist()]]), torch.tensor([[view.segments.tolist()]])
        if not isinstance(model, transformers.BertForMultipleChoice):
            ids, segments = ids[0], segments[0]
        logits: Tensor = model(ids, token_type_ids=segments).logits[0]
    return logits


def test_the_windows_of_a_long_passage_count_as_one_pair_together(base: Path, tmp_path: Path) -> None:
    examples = [*GRADES, Text(("the cat", *LONG.texts), 2.0)]
    work = start(recipe_for("score", base, window=WindowSettings(length=24, overlap=4)), examples)
    save(work.module.model, tmp_path / "ours")
    model, _ = open_theirs(CASES["score"], tmp_path / "ours")
    means = []
    for item in work.task.encode(examples):
        logits = torch.cat([their_logits(model, view) for view in item.views])
        means.append(
            float(F.binary_cross_entropy_with_logits(logits, torch.full_like(logits, (item.example.gold + 1) / 4)))
        )
    assert len(logits) > 2
    assert take(work) == pytest.approx(sum(means) / len(means), abs=LIMIT)


def test_an_option_on_a_long_text_has_the_mean_logit_of_its_windows(base: Path, tmp_path: Path) -> None:
    """Options of one example may have different numbers of windows."""
    examples = [*CHOICES, Choice(LONG.texts[0], "who?", ("a", "the cat runs in paris and walks in berlin", "no"), 2)]
    work = start(recipe_for("choose", base, window=WindowSettings(length=30, overlap=4)), examples)
    save(work.module.model, tmp_path / "ours")
    model, _ = open_theirs(CASES["choose"], tmp_path / "ours")
    losses = []
    for item in work.task.encode(examples):
        logits = [torch.cat([their_logits(model, view) for view in read.views]).mean() for read in item.reads]
        losses.append(float(F.cross_entropy(torch.stack(logits)[None], torch.tensor([item.example.gold]))))
    assert len({len(read.views) for read in item.reads}) > 1
    assert take(work) == pytest.approx(sum(losses) / len(losses), abs=LIMIT)


@pytest.mark.parametrize("name", ["answer", "choose"])
def test_huge_logits_lose_nothing(name: str, base: Path, tmp_path: Path) -> None:
    """A softmax that forgot to take off the largest would be infinite."""
    case = CASES[name]
    work = start(recipe_for(case.task, base), case.examples)
    with torch.no_grad():
        for parameter in work.module.model.heads[work.task.head].parameters():
            parameter.mul_(1e3)
    save(work.module.model, tmp_path / "ours")
    theirs = their_step(*open_theirs(case, tmp_path / "ours"), case, ())
    assert theirs > 100
    assert take(work) == pytest.approx(theirs, rel=1e-5)


@pytest.mark.parametrize(("texts", "told"), [((1, 1), 1), ((2, 2), 2), ((1, 2), 0)])
def test_a_classifier_remembers_how_many_texts_it_learned_from(texts: tuple[int, int], told: int) -> None:
    examples = [Text(("a", "b")[:count], label) for count, label in zip(texts, ("x", "y"), strict=True)]
    assert plan_task("classify", ClassifySettings(), WindowSettings(), examples)[0].options.texts == told
