"""Sequence heads with one output, as published rerankers have: they answer as sentence-transformers' CrossEncoder."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from sentence_transformers import CrossEncoder

from bothways.model.checkpoint import save
from bothways.model.load import load
from bothways.predict.evaluation import evaluate
from bothways.predict.predictor import Predictor
from bothways.tasks.finetune import finetune
from bothways.tasks.recipe import finetune_recipe
from bothways.text.tokenizer import Tokenizer
from bothways.train.optim import OptimSettings
from helpers import refused
from helpers.cli import Run
from helpers.tasks import GRADES, LIMIT, NUMBERS, PAIRS, SINGLE, quiet, recipe_for, their_folder, written

SIGMOID, IDENTITY = "torch.nn.modules.activation.Sigmoid", "torch.nn.modules.linear.Identity"
OLD = "sbert_ce_default_activation_function"


def new(activation: str | None) -> dict[str, Any]:
    return {"sentence_transformers": {"activation_fn": activation, "version": "5.0.0"}}


CONFIGS: dict[str, dict[str, Any]] = {
    "no key": {},
    "old sigmoid": {OLD: SIGMOID},
    "old identity": {OLD: IDENTITY},
    "old null": {OLD: None},
    "new sigmoid": new(SIGMOID),
    "new identity": new(IDENTITY),
    "new null": new(None) | {OLD: IDENTITY},
    "short name": new("torch.nn.Identity"),
    "both": new(SIGMOID) | {OLD: IDENTITY},
    "several labels": {"problem_type": "multi_label_classification"},
    "a number with a key": {"problem_type": "regression", **new(SIGMOID)},
    "a number with the other key": {"problem_type": "regression", OLD: IDENTITY},
}
TEXTS = [example.texts[0] for example in SINGLE]
PAIRED = [example.texts for example in PAIRS]


def reranker(folder: Path, tokenizer: Tokenizer, seed: int = 0, **config: Any) -> Path:
    """A folder of transformers with one output, and these further keys."""
    names = {"id2label": {0: "relevance"}, "label2id": {"relevance": 0}}
    their_folder(folder, tokenizer, "BertForSequenceClassification", seed, **names)
    file = folder / "config.json"
    file.write_text(json.dumps(json.loads(file.read_text()) | config))
    return folder


def judged(folder: Path, inputs: Any) -> list[float]:
    judge = CrossEncoder(str(folder), device="cpu")
    return [float(judge.predict(one)) for one in inputs]


@pytest.mark.parametrize("name", CONFIGS)
def test_one_output_answers_as_a_cross_encoder(name: str, tokenizer: Tokenizer, tmp_path: Path) -> None:
    folder = reranker(tmp_path, tokenizer, **CONFIGS[name])
    predictor = Predictor.load(folder)
    for inputs in (PAIRED, TEXTS):
        found = predictor(list(inputs))
        assert [one["label"] for one in found] == ["relevance"] * len(inputs)
        assert [one["score"] for one in found] == pytest.approx(judged(folder, inputs), abs=LIMIT)
    assert predictor(PAIRED[0]).keys() == {"label", "score"}


def test_without_their_keys_a_number_is_that_of_the_pipeline(tokenizer: Tokenizer, tmp_path: Path) -> None:
    """CrossEncoder would apply a sigmoid, since the folder does not name an activation for it."""
    folder = reranker(tmp_path, tokenizer, problem_type="regression")
    predictor, pipe = Predictor.load(folder), transformers.pipeline("text-classification", str(folder), device="cpu")
    for text in TEXTS:
        (theirs,) = pipe(text)
        assert predictor(text) == {"label": "relevance", "score": pytest.approx(theirs["score"], abs=LIMIT)}


@pytest.mark.parametrize("activation", [torch.nn.Sigmoid(), torch.nn.Identity()], ids=["sigmoid", "identity"])
def test_a_folder_of_sentence_transformers_answers_the_same(
    activation: torch.nn.Module, tokenizer: Tokenizer, tmp_path: Path
) -> None:
    """Version 6 names the activation beside config.json; a copy of ours still does."""
    start = reranker(tmp_path / "start", tokenizer, **new(SIGMOID))
    CrossEncoder(str(start), device="cpu", activation_fn=activation).save_pretrained(str(tmp_path / "theirs"))
    expected = judged(tmp_path / "theirs", PAIRED)
    save(load(tmp_path / "theirs"), tmp_path / "ours")
    for folder in (tmp_path / "theirs", tmp_path / "ours"):
        assert [one["score"] for one in Predictor.load(folder)(PAIRED)] == pytest.approx(expected, abs=LIMIT)
    assert judged(tmp_path / "ours", PAIRED) == pytest.approx(expected, abs=LIMIT)


@pytest.mark.parametrize("named", ["torch.nn.modules.activation.Tanh", "their.code.Sigmoid", "Identity"])
@pytest.mark.parametrize("key", ["old", "new"])
def test_other_activations_are_refused_by_name(named: str, key: str, tokenizer: Tokenizer, tmp_path: Path) -> None:
    folder = reranker(tmp_path, tokenizer, **({OLD: named} if key == "old" else new(named)))
    with refused("unknown-activation", named):
        Predictor.load(folder)


@pytest.mark.parametrize("keys", [{}, new(IDENTITY)], ids=["sigmoid", "identity"])
@pytest.mark.parametrize("name", ["score", "regression"])
def test_a_published_reranker_is_trained_further(
    name: str, keys: dict[str, Any], tokenizer: Tokenizer, tmp_path: Path
) -> None:
    """With its head and its label; then the activation is that of the training, for CrossEncoder too."""
    task, examples = {"score": ("score", GRADES), "regression": ("regression", NUMBERS)}[name]
    start = reranker(tmp_path / "start", tokenizer, **keys)
    plan = recipe_for(task, start, run=quiet(steps=1), optim=OptimSettings(lr=1e-12))
    found = finetune(plan, tmp_path / "run", train=examples, dev=examples)
    before, after = load(start), load(found.folder)
    assert found.labels == after.config.labels == ("relevance",)
    assert all(torch.allclose(a, b, atol=1e-9) for a, b in zip(before.parameters(), after.parameters(), strict=True))
    logits = judged(reranker(tmp_path / "logits", tokenizer, **new(IDENTITY)), PAIRED)
    expected = torch.tensor(logits).sigmoid().tolist() if name == "score" else logits
    assert [one["score"] for one in Predictor.load(found.folder)(PAIRED)] == pytest.approx(expected, abs=LIMIT)
    if name == "score":
        assert judged(found.folder, PAIRED) == pytest.approx(expected, abs=LIMIT)


def test_new_names_get_a_new_head(tokenizer: Tokenizer, tmp_path: Path) -> None:
    """A label of the data is not replaced by the name of the only output."""
    start = reranker(tmp_path / "start", tokenizer)
    table = {"task": "classify", "model": {"init": str(start)}, "classify": {"kind": "multi"}, "run": {"steps": 1}}
    rows = [example.__class__(example.texts, ("spam",) if i % 2 else ()) for i, example in enumerate(SINGLE)]
    assert finetune(finetune_recipe(table), tmp_path / "run", train=rows, dev=[]).labels == ("spam",)


def test_a_published_reranker_on_the_command_line(tokenizer: Tokenizer, tmp_path: Path, run: Run) -> None:
    """predict takes a text or two; evaluate takes numbers, and ranks the pairs of one query."""
    folder = reranker(tmp_path / "model", tokenizer, **new(IDENTITY))
    expected = judged(folder, [PAIRED[0], TEXTS[0]])
    for given, score in zip((PAIRED[0], [TEXTS[0]]), expected, strict=True):
        told = json.loads(run("predict", *given, "--model", folder, "--json").stdout)
        assert told == {"label": "relevance", "score": pytest.approx(score, abs=LIMIT)}
    query, passages = "the cat", ["a dog", "the black cat", "berlin"]
    rows = [{"text": query, "text_pair": passage, "label": i} for i, passage in enumerate(passages)]
    (tmp_path / "rows.jsonl").write_text("\n".join(map(json.dumps, rows)))
    found = json.loads(run("evaluate", tmp_path / "rows.jsonl", "--model", folder, "--json").stdout)
    assert found["scores"].keys() >= {"spearman", "mean_absolute_error", "mrr@10"}
    scores = judged(folder, [(query, passage) for passage in passages])
    errors = [abs(score - gold) for gold, score in enumerate(scores)]
    assert found["scores"]["mean_absolute_error"] == pytest.approx(sum(errors) / 3, abs=LIMIT)


def test_our_own_pair_models_still_need_pairs(tokenizer: Tokenizer, tmp_path: Path) -> None:
    start = reranker(tmp_path / "start", tokenizer)
    found = finetune(recipe_for("score", start, run=quiet(steps=1)), tmp_path / "run", train=GRADES, dev=[])
    with refused("wrong-text-count"):
        Predictor.load(found.folder)("the cat")
    assert evaluate([str(written(tmp_path, "score"))], Predictor.load(found.folder)).examples == len(GRADES)
