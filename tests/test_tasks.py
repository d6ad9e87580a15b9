"""Every task learns what transformers' class for it learns: the same loss, gradients and steps on a padded batch.

Here are also the small models and data that the other tests of tasks are made of.
"""

import json
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import safetensors.torch
import torch
import transformers
from torch import Tensor
from torch.nn import functional as F

from bothways.data.examples import Choice, Question, Tagged, Text
from bothways.data.words import join_words
from bothways.engine.reader import WindowSettings
from bothways.model.checkpoint import save
from bothways.model.config import ModelConfig
from bothways.model.load import load
from bothways.model.model import Model
from bothways.tasks.classify import ClassifySettings
from bothways.tasks.finetune import finetune
from bothways.tasks.folder import with_task
from bothways.tasks.recipe import FinetuneRecipe, FinetuneRun, ModelSettings
from bothways.tasks.registry import TASKS, make_task, plan_task
from bothways.tasks.task import Sample
from bothways.tasks.trainable import FineTuning
from bothways.text.tokenizer import Tokenizer
from bothways.train.optim import OptimSettings
from bothways.train.ranks import Ranks
from helpers import TINY, make_loud

LIMIT = 1e-5
SMALL = replace(TINY, layers=2, dropout=0.0, attention_dropout=0.0)

# ---------------------------------------------------------------------- data: English and Chinese, short and long

SINGLE = [
    Text(("the black cat sleeps in the big house.",), "good"),
    Text(("unbelievable!",), "bad"),
    Text(("中国的首都是北京。",), "so-so"),
    Text(("a dog runs, and the white cat talks to the tree of paris",), "bad"),
    Text(("猫 and 狗",), "good"),
]
PAIRS = [replace(example, texts=(*example.texts, "the dog walked 法国")) for example in SINGLE]
MULTI = [
    replace(example, gold=gold)
    for example, gold in zip(SINGLE, [("joy", "awe"), (), ("fear",), ("joy",), ("fear", "awe", "joy")], strict=True)
]
NUMBERS = [replace(example, gold=gold) for example, gold in zip(PAIRS, [0.5, 3.25, -1.0, 2.0, 4.75], strict=True)]
GRADES = [replace(example, gold=gold) for example, gold in zip(PAIRS, [-1.0, 1.0, 3.0, 2.0, 1.0], strict=True)]


def tagged(words: Sequence[str], tags: Sequence[str]) -> Tagged:
    return Tagged(*join_words(words), tuple(tags))


TAGGED = [
    tagged(["unbelievable", "Paris", "walks", "."], ["O", "B-LOC", "O", "O"]),
    tagged(["中", "国", "的", "首", "都", "是", "北", "京"], ["B-LOC", "I-LOC", "O", "O", "O", "O", "B-LOC", "I-LOC"]),
    tagged(["the", "cat", "Talker", "runs"], ["O", "B-PER", "I-PER", "O"]),
]
PLAIN = [
    tagged(["the", "unbelievable", "dog", "walks"], ["DET", "ADJ", "NOUN", "VERB"]),
    tagged(["猫", "runs", "!"], ["NOUN", "VERB", "MARK"]),
]
ASKED = [
    Question("1", "the capital of germany?", "the capital of germany is berlin, in germany.", (("berlin", 26),)),
    Question("2", "中国的首都?", "法国的首都是巴黎，中国的首都是北京。", (("北京", 15),)),
    Question("3", "who walked?", "unbelievable, the cat walked in the house", (("the cat", 14),)),
]
NO_ANSWER = Question("4", "who reads?", "the dog sleeps", ())
CHOICES = [
    Choice("the cat runs.", "what runs?", ("the dog", "the cat", "a big black house"), 1),
    Choice("", "北京是", ("法国的首都", "中国的首都"), 1),
    Choice("berlin is in germany", "", ("walking", "unbelievable talks", "germany", "中国"), 2),
]

# ---------------------------------------------------------------------- models


def base_model(folder: Path, tokenizer: Tokenizer, seed: int = 1, **shape: Any) -> Path:
    """A pretrained encoder's folder, with loud weights."""
    encoder = replace(SMALL, **shape)
    model = Model.new(ModelConfig(encoder, ("pooler", "masked")), tokenizer, seed=seed)
    make_loud(model, seed)
    save(model, folder)
    return folder


@pytest.fixture(scope="session")
def base(tmp_path_factory: pytest.TempPathFactory, tokenizer: Tokenizer) -> Path:
    """To start from; nobody writes into it."""
    return base_model(tmp_path_factory.mktemp("base") / "base", tokenizer)


def quiet(**run: Any) -> FinetuneRun:
    return FinetuneRun(**{"device": "cpu", "seed": 3, "batch_size": 4, **run})


def recipe_for(task: str, init: Path, **parts: Any) -> FinetuneRecipe:
    """A recipe that fits a model of 48 positions and learns fast."""
    usual: dict[str, Any] = {
        "window": WindowSettings(length=48),
        "optim": OptimSettings(lr=1e-3),
        "run": quiet(steps=4),
    }
    return FinetuneRecipe(task=task, model=ModelSettings(str(init)), **{**usual, **parts})


def start(recipe: FinetuneRecipe, examples: Sequence[Any], *, seed: int = 2) -> FineTuning:
    """The work that `finetune` would begin with, its head as loud as the rest."""
    config, labels = plan_task(recipe.task, recipe.settings, recipe.window, examples)
    model = with_task(load(recipe.model.init), config, labels)
    make_loud(model, seed)
    formed = [TASKS[recipe.task].normalise(config, example) for example in examples]
    task = make_task(model, recipe.settings, [example.gold for example in formed])
    samples = [sample for item in task.encode(formed) for sample in task.samples(item)]
    return FineTuning(
        model, task, samples, [], batch=len(samples), micro_tokens=recipe.run.micro_tokens, seed=recipe.run.seed
    )


def take(work: FineTuning, samples: Sequence[Sample] | None = None, ranks: Ranks | None = None) -> float:
    """The loss of one step, its gradients left in the module."""
    step = work._step(samples if samples is not None else work.samples, ranks or Ranks())
    work.module.train()
    total = 0.0
    for micro in step.micros:
        loss = work.module(micro.batch, micro.targets).sum() / step.counts["loss"]
        loss.backward()
        total += float(loss.detach())
    return total


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

Labels = dict[str, Any]


def _padded(tokenizer: Any, texts: Sequence[tuple[str, ...]]) -> Any:
    first, second = [t[0] for t in texts], [t[1] for t in texts] if len(texts[0]) == 2 else None
    return tokenizer(first, second, padding=True, return_tensors="pt", return_offsets_mapping=True)


def _classify_batch(tokenizer: Any, examples: Sequence[Text], labels: Sequence[str]) -> Labels:
    batch = _padded(tokenizer, [example.texts for example in examples])
    golds = [example.gold for example in examples]
    if isinstance(golds[0], tuple):
        rows = [[float(name in gold) for name in labels] for gold in golds if isinstance(gold, tuple)]
        gold = torch.tensor(rows)
    elif isinstance(golds[0], float):
        gold = torch.tensor(golds)
    else:
        gold = torch.tensor([list(labels).index(str(gold)) for gold in golds])
    return {**batch, "labels": gold}


def _score_batch(tokenizer: Any, examples: Sequence[Text], labels: Sequence[str]) -> Labels:
    golds = [float(example.gold) for example in examples if isinstance(example.gold, float)]
    batch = _padded(tokenizer, [example.texts for example in examples])
    low, high = min(golds), max(golds)
    return {**batch, "labels": (torch.tensor(golds)[:, None] - low) / (high - low)}


def _tag_batch(tokenizer: Any, examples: Sequence[Tagged], labels: Sequence[str]) -> Labels:
    """A word's tag at the token that begins it, -100 elsewhere."""
    batch = _padded(tokenizer, [(example.text,) for example in examples])
    gold = torch.full_like(batch["input_ids"], -100)
    for row, example in enumerate(examples):
        begins = {start: tag for (start, _), tag in zip(example.words, example.gold or (), strict=True)}
        for place, (first, last) in enumerate(batch["offset_mapping"][row].tolist()):
            if last > first and first in begins:
                gold[row, place] = list(labels).index(begins[first])
    return {**batch, "labels": gold}


def _answer_batch(tokenizer: Any, examples: Sequence[Question], labels: Sequence[str]) -> Labels:
    """The tokens of the context at which the answer begins and ends; (0, 0) if it has none."""
    batch = _padded(tokenizer, [(example.question, example.context) for example in examples])
    ends = torch.zeros(2, len(examples), dtype=torch.long)
    for row, example in enumerate(examples):
        for text, begin in (example.gold or ())[:1]:
            for place, (first, last) in enumerate(batch["offset_mapping"][row].tolist()):
                if batch["token_type_ids"][row, place] and last > first:
                    if first == begin:
                        ends[0, row] = place
                    if last == begin + len(text):
                        ends[1, row] = place
    return {**batch, "start_positions": ends[0], "end_positions": ends[1]}


def _choose_batch(tokenizer: Any, examples: Sequence[Choice], labels: Sequence[str]) -> Labels:
    (example,) = examples
    with_context = [(example.context, f"{example.question} {option}".strip()) for option in example.options]
    pairs = with_context if example.context else [(example.question, option) for option in example.options]
    grid = {name: value[None] for name, value in _padded(tokenizer, pairs).items()}
    return {**grid, "labels": torch.tensor([example.gold])}


@dataclass(frozen=True)
class Case:
    """A task, data for it, and who judges it."""

    task: str
    examples: Sequence[Any]
    judge: str
    batch: Callable[[Any, Any, Sequence[str]], Labels]
    problem: str | None = None
    """problem_type in the folder that we write."""
    parts: dict[str, Any] = field(default_factory=dict)
    told: str | None = None
    """problem_type that makes their class compute our loss, where the folder says nothing."""

    @property
    def is_apart(self) -> bool:
        """Asked one example at a time: to their span loss padding is a place like any other, and their grid of
        options has equally many for all."""
        return self.task in ("choose", "answer")


_SEQUENCE = "AutoModelForSequenceClassification"
CASES = {
    "single": Case("classify", SINGLE, _SEQUENCE, _classify_batch, "single_label_classification"),
    "pairs": Case("classify", PAIRS, _SEQUENCE, _classify_batch, "single_label_classification"),
    "multi": Case("classify", MULTI, _SEQUENCE, _classify_batch, "multi_label_classification"),
    "regression": Case("classify", NUMBERS, _SEQUENCE, _classify_batch, "regression"),
    "score": Case("score", GRADES, _SEQUENCE, _score_batch, told="multi_label_classification"),
    "entities": Case("tag", TAGGED, "AutoModelForTokenClassification", _tag_batch),
    "plain tags": Case("tag", PLAIN, "AutoModelForTokenClassification", _tag_batch),
    "answer": Case("answer", ASKED, "AutoModelForQuestionAnswering", _answer_batch),
    "no answer": Case("answer", [*ASKED, NO_ANSWER], "AutoModelForQuestionAnswering", _answer_batch),
    "choose": Case("choose", CHOICES, "AutoModelForMultipleChoice", _choose_batch),
}


def open_theirs(case: Case, folder: Path) -> tuple[Any, Any]:
    """Their model and tokenizer from a folder that we wrote; nothing may be missing or left over."""
    model, report = getattr(transformers, case.judge).from_pretrained(folder, output_loading_info=True)
    assert not report["missing_keys"]
    assert not report["unexpected_keys"]
    if case.told:
        model.config.problem_type = case.told
    return model, transformers.AutoTokenizer.from_pretrained(folder)


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
    assert {case.task for case in CASES.values()} == set(TASKS)


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
    finetune(replace(plan_, model=ModelSettings(str(tmp_path / "ours"))), tmp_path / "run", train=case.examples, dev=[])

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
                row = model(torch.tensor([view.ids]), token_type_ids=torch.tensor([view.segments])).logits
            each.append(float(F.cross_entropy(row, torch.tensor([labels.index(str(example.gold))]))))
        means.append(sum(each) / len(each))
    assert len(each) > 2
    assert take(work) == pytest.approx(sum(means) / len(means), abs=LIMIT)


def their_logits(model: Any, view: Any) -> Tensor:
    """Of one sequence."""
    with torch.no_grad():
        ids, segments = torch.tensor([[view.ids]]), torch.tensor([[view.segments]])
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
