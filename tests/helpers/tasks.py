"""Examples, recipes and judges of the tasks that several test modules share."""

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers

from bothways.data.examples import Choice, Question, Related, Tagged, Text
from bothways.data.words import join_words
from bothways.engine.reader import WindowSettings
from bothways.model.checkpoint import save
from bothways.model.config import ModelConfig
from bothways.model.load import load
from bothways.model.model import Model
from bothways.tasks.folder import with_task
from bothways.tasks.recipe import FinetuneModel, FinetuneRecipe, FinetuneRun
from bothways.tasks.registry import TASKS, make_task, plan_task
from bothways.tasks.task import Sample
from bothways.tasks.trainable import FineTuning
from bothways.text.tokenizer import Tokenizer
from bothways.train.optim import OptimSettings
from bothways.train.ranks import Ranks
from helpers import TINY, make_loud

LIMIT = 1e-5


SMALL = replace(TINY, layers=2, dropout=0.0, attention_dropout=0.0)


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


RELATED_TEXTS = [
    Related(("the cat runs.", "a cat is running", "the house is big")),
    Related(("北京是中国的首都", "中国的首都是北京", "巴黎在法国")),
    Related(("berlin is in germany", "germany has berlin", "the dog walks")),
    Related(("unbelievable talks", "talking", "the cat sleeps")),
]


def base_model(folder: Path, tokenizer: Tokenizer, seed: int = 1, **shape: Any) -> Path:
    """A pretrained encoder's folder, with loud weights."""
    encoder = replace(SMALL, **shape)
    model = Model.new(ModelConfig(encoder, ("pooler", "masked")), tokenizer, seed=seed)
    make_loud(model, seed)
    save(model, folder)
    return folder


def quiet(**run: Any) -> FinetuneRun:
    return FinetuneRun(**{"device": "cpu", "seed": 3, "batch_size": 4, **run})


def recipe_for(task: str, init: Path, **parts: Any) -> FinetuneRecipe:
    """A recipe that fits a model of 48 positions and learns fast."""
    usual: dict[str, Any] = {
        "window": WindowSettings(length=48),
        "optim": OptimSettings(lr=1e-3),
        "run": quiet(steps=4),
    }
    return FinetuneRecipe(task=task, model=FinetuneModel(str(init)), **{**usual, **parts})


def start(recipe: FinetuneRecipe, examples: Sequence[Any], *, seed: int = 2) -> FineTuning:
    """The work that `finetune` would begin with, its head as loud as the rest."""
    config, labels = plan_task(recipe.task, recipe.settings, recipe.window, examples)
    model = with_task(load(recipe.model.init), config, labels)
    make_loud(model, seed)
    formed = [TASKS[recipe.task].normalise(config, example) for example in examples]
    task = make_task(model, recipe.settings, formed)
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


def shout(model: Model, seed: int = 7) -> None:
    """Trained weights as if training had been long."""
    draws = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.requires_grad:
                parameter.copy_(0.3 * torch.randn(parameter.shape, generator=draws))


def scripted(monkeypatch: pytest.MonkeyPatch, values: Sequence[float], metric: str = "accuracy") -> None:
    """Evaluations with these results."""
    left = iter(values)
    monkeypatch.setattr(FineTuning, "evaluate", lambda *_: {metric: next(left), "other": 0.0})


KINDS: dict[str, tuple[str, Any, tuple[str, ...]]] = {
    "single": ("classify", "single", ("a", "b", "c")),
    "multi": ("classify", "multi", ("a", "b", "c")),
    "regression": ("classify", "regression", ("score",)),
    "score": ("score", "", ("score",)),
    "tag": ("tag", "", ("O", "B-X", "I-X")),
    "answer": ("answer", "", ()),
    "choose": ("choose", "", ()),
    "embed": ("embed", "related", ()),
}


def near(one: Any, other: Any, limit: float = LIMIT) -> bool:
    """The same answer but for rounding in its numbers."""
    if isinstance(one, dict):
        return one.keys() == other.keys() and all(near(one[key], other[key], limit) for key in one)
    if isinstance(one, list):
        return len(one) == len(other) and all(near(a, b, limit) for a, b in zip(one, other, strict=True))
    return bool(one == pytest.approx(other, abs=limit)) if isinstance(one, float) else bool(one == other)


EXAMPLES: dict[str, Sequence[Any]] = {
    "single": SINGLE,
    "multi": MULTI,
    "regression": NUMBERS,
    "score": GRADES,
    "tag": TAGGED,
    "answer": ASKED,
    "choose": CHOICES,
    "embed": RELATED_TEXTS,
}


def written(folder: Path, name: str) -> Path:
    """The examples of a kind as a file."""
    rows: list[dict[str, Any]] = []
    path = folder / f"{name}.jsonl"
    match name:
        case "single" | "multi" | "regression" | "score":
            for example in EXAMPLES[name]:
                keys = ("text", "text_pair")
                gold = list(example.gold) if isinstance(example.gold, tuple) else example.gold
                rows.append({**dict(zip(keys, example.texts, strict=False)), "label": gold})
        case "tag":
            for sentence in TAGGED:
                tokens = [sentence.text[a:b] for a, b in sentence.words]
                rows.append({"tokens": tokens, "tags": list(sentence.gold or ())})
        case "answer":
            for asked in ASKED:
                answers = {"text": [t for t, _ in asked.gold or ()], "answer_start": [s for _, s in asked.gold or ()]}
                rows.append({"id": asked.id, "question": asked.question, "context": asked.context, "answers": answers})
        case "embed":
            rows += [dict(zip(("anchor", "positive", "negative"), one.texts, strict=False)) for one in RELATED_TEXTS]
        case "choose":
            for choice in CHOICES:
                options = list(choice.options)
                rows.append(
                    {"context": choice.context, "question": choice.question, "options": options, "label": choice.gold}
                )
    path.write_text("\n".join(json.dumps(row, ensure_ascii=False) for row in rows), encoding="utf-8")
    return path


LABELS = {"single": ("bad", "good", "so-so"), "multi": ("awe", "fear", "joy"), "tag": ("O", "B-LOC", "I-LOC", "B-PER", "I-PER")}  # fmt: skip


def their_folder(folder: Path, tokenizer: Tokenizer, kind: str, seed: int = 0, **config: Any) -> Path:
    """A folder as transformers writes it: loud weights, their files only."""
    settings = {
        "vocab_size": TINY.vocab_size,
        "hidden_size": 32,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "intermediate_size": 64,
        "max_position_embeddings": 48,
        **config,
    }
    model = getattr(transformers, kind)(transformers.BertConfig(**settings))
    make_loud(model, seed)
    model.save_pretrained(folder)
    tokenizer.save(folder, 48)
    return folder


def named(labels: Sequence[str]) -> dict[str, Any]:
    return {"id2label": dict(enumerate(labels)), "label2id": {label: i for i, label in enumerate(labels)}}
