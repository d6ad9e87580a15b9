"""Fine-tuned folders go both ways: transformers opens ours, we open theirs, and both say the same."""

import json
import random
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import transformers

from bothways.model.checkpoint import save
from bothways.model.load import load
from bothways.predict.predictor import Predictor
from bothways.tasks.finetune import finetune
from bothways.tasks.recipe import FinetuneModel
from bothways.text.tokenizer import Tokenizer
from bothways.train.optim import OptimSettings
from helpers.tasks import (
    ASKED,
    CASES,
    CHOICES,
    LIMIT,
    PAIRS,
    SINGLE,
    TAGGED,
    base_model,
    named,
    open_theirs,
    quiet,
    recipe_for,
    their_folder,
)

# ---------------------------------------------------------------------- ours in theirs

LABELS = {
    "single": ("bad", "good", "so-so"),
    "pairs": ("bad", "good", "so-so"),
    "multi": ("awe", "fear", "joy"),
    "regression": ("score",),
    "score": ("score",),
    "entities": ("O", "B-LOC", "I-LOC", "B-PER", "I-PER"),
    "plain tags": ("ADJ", "DET", "MARK", "NOUN", "VERB"),
}


@pytest.fixture(scope="session")
def tuned(tmp_path_factory: pytest.TempPathFactory, tokenizer: Tokenizer) -> dict[str, Path]:
    """Every case fine-tuned for two steps."""
    folder = tmp_path_factory.mktemp("tuned")
    start = base_model(folder / "base", tokenizer)
    found = {}
    for name, case in CASES.items():
        plan = recipe_for(case.task, start, run=quiet(steps=2, save_every=9))
        found[name] = finetune(plan, folder / name, train=case.examples, dev=case.examples).folder
    return found


@pytest.mark.parametrize("name", CASES)
def test_they_open_our_folder_and_answer_the_same(name: str, tuned: dict[str, Path]) -> None:
    case = CASES[name]
    model, tokenizer = open_theirs(case, tuned[name])
    model.eval()
    predictor = Predictor.load(tuned[name])
    groups = [[example] for example in case.examples]
    for group in groups:
        batch = case.batch(tokenizer, group, predictor.labels)
        for key in ("offset_mapping", "labels", "start_positions", "end_positions"):
            batch.pop(key, None)
        with torch.no_grad():
            out = model(**batch)
        theirs = torch.stack([out.start_logits, out.end_logits], -1) if "start_logits" in out else out.logits
        ours = run(predictor, group[0])
        assert ours.reshape(-1) == pytest.approx(theirs.numpy().reshape(-1), abs=LIMIT)


def run(predictor: Predictor, example: Any) -> Any:
    """What the model puts out for all sequences of an example."""
    from bothways.model.batch import Batch

    views = predictor.task.encode([example])[0].views
    batch = Batch.pack([view.ids.tolist() for view in views], [view.segments.tolist() for view in views])
    with torch.no_grad():
        return predictor.task.outputs(predictor.model, predictor.model.encoder(batch), batch).numpy()


@pytest.mark.parametrize("name", CASES)
def test_a_folder_says_what_it_is(name: str, tuned: dict[str, Path]) -> None:
    said = transformers.AutoConfig.from_pretrained(tuned[name])
    case = CASES[name]
    assert said.problem_type == case.problem
    assert said.architectures == [
        {
            "AutoModelForSequenceClassification": "BertForSequenceClassification",
            "AutoModelForTokenClassification": "BertForTokenClassification",
            "AutoModelForQuestionAnswering": "BertForQuestionAnswering",
            "AutoModelForMultipleChoice": "BertForMultipleChoice",
        }[case.judge]
    ]
    if name in LABELS:
        assert said.id2label == dict(enumerate(LABELS[name]))
        assert said.label2id == {label: i for i, label in enumerate(LABELS[name])}
        assert Predictor.load(tuned[name]).labels == LABELS[name]
    assert Predictor.load(tuned[name]).name == case.task


def test_a_folder_that_they_trained_on_from_ours_is_what_they_made_it(tuned: dict[str, Path], tmp_path: Path) -> None:
    """Their config keeps what ours said of another task: it is not true any more."""
    model = transformers.AutoModelForTokenClassification.from_pretrained(
        tuned["single"], num_labels=3, id2label={0: "O", 1: "B-X", 2: "I-X"}, label2id={"O": 0, "B-X": 1, "I-X": 2}
    )
    model.save_pretrained(tmp_path)
    transformers.AutoTokenizer.from_pretrained(tuned["single"]).save_pretrained(tmp_path)
    predictor = Predictor.load(tmp_path)
    assert predictor.name == "tag"
    assert isinstance(predictor("the cat runs"), list)


def test_fine_tuning_again_forgets_the_first_task(tuned: dict[str, Path], tmp_path: Path) -> None:
    """From a classifier of several labels to a tagger and to an answerer."""
    tasks: dict[str, Sequence[Any]] = {"tag": TAGGED, "answer": ASKED, "score": CASES["score"].examples}
    for task, examples in tasks.items():
        plan = recipe_for(task, tuned["multi"], run=quiet(steps=1))
        found = finetune(plan, tmp_path / task, train=examples, dev=[])
        said = json.loads((found.folder / "config.json").read_text())
        assert "problem_type" not in said
        assert said["bothways"]["task"] == task
        assert "options" not in said["bothways"]  # each of them is a key of its own
        assert not {"fear", "joy"} & set(said.get("label2id", {}))
        assert Predictor.load(found.folder).name == task


# ---------------------------------------------------------------------- theirs in ours


CONFIGS = {
    "named": named(["spam", "ham", "eggs"]),
    "nameless": {"num_labels": 3},
    "two": {},
    "several": {"problem_type": "multi_label_classification", **named(["a", "b", "c", "d"])},
    "a number": {"problem_type": "regression", "num_labels": 1},
}


@pytest.mark.parametrize("name", CONFIGS)
def test_their_classifier_answers_as_their_pipeline(name: str, tokenizer: Tokenizer, tmp_path: Path) -> None:
    folder = their_folder(tmp_path / "theirs", tokenizer, "BertForSequenceClassification", **CONFIGS[name])
    pipe = transformers.pipeline("text-classification", model=str(folder), device="cpu")
    predictor = Predictor.load(folder)
    texts = [example.texts[0] for example in SINGLE]
    pairs = [{"text": example.texts[0], "text_pair": example.texts[1]} for example in PAIRS]
    for inputs in (texts, pairs):
        theirs = [pipe(one, top_k=None) for one in inputs]
        ours = predictor(inputs, top=99)
        for mine, judged in zip(ours, theirs, strict=True):
            assert [one["label"] for one in mine] == [one["label"] for one in judged]
            assert [one["score"] for one in mine] == pytest.approx([one["score"] for one in judged], abs=LIMIT)
    if name != "several":  # of several labels we give those above a threshold
        likeliest = [pipe(text)[0] for text in texts]
        assert [one["label"] for one in predictor(texts)] == [one["label"] for one in likeliest]
        assert predictor(texts[0]).keys() == likeliest[0].keys()


SENTENCES = [
    " ".join(random.Random(i).choices(["Paris", "cat", "dog", "the", "runs", "of", "berlin", "北", "京", "black"], k=5))
    for i in range(36)
]


@pytest.mark.parametrize("labels", [["O", "B-PER", "I-PER"], ["B-LOC", "I-LOC", "O"]], ids=["O first", "O last"])
def test_their_tagger_answers_as_their_pipeline(labels: list[str], tokenizer: Tokenizer, tmp_path: Path) -> None:
    """Where what they find is valid BIO: where it is not, we find the likeliest that is."""
    folder = their_folder(tmp_path, tokenizer, "BertForTokenClassification", seed=4, **named(labels))
    pipe = transformers.pipeline("token-classification", model=str(folder), device="cpu")
    predictor = Predictor.load(folder)
    compared = 0
    for sentence in SENTENCES:
        each = pipe(sentence, aggregation_strategy="none", ignore_labels=[])
        if not is_valid([one["entity"] for one in each]):
            continue
        theirs = pipe(sentence, aggregation_strategy="simple")
        ours = predictor(sentence)
        keys = ("entity_group", "start", "end")
        assert [[one[key] for key in keys] for one in ours] == [[one[key] for key in keys] for one in theirs]
        assert [one["score"] for one in ours] == pytest.approx([one["score"] for one in theirs], abs=LIMIT)
        assert [one["word"] for one in ours] == [sentence[one["start"] : one["end"]] for one in theirs]
        compared += bool(theirs)
    assert compared >= 5


def is_valid(tags: Sequence[str]) -> bool:
    """BIO: an I- only after a B- or I- of its own type."""
    before = ["O", *tags]
    return all(tag[0] != "I" or before[i][1:] == tag[1:] for i, tag in enumerate(tags))


def test_their_plain_tagger_answers_as_their_pipeline(tokenizer: Tokenizer, tmp_path: Path) -> None:
    """Without names every tag is a plain one, for each word."""
    folder = their_folder(tmp_path, tokenizer, "BertForTokenClassification", num_labels=4)
    pipe = transformers.pipeline("token-classification", model=str(folder), device="cpu")
    predictor = Predictor.load(folder)
    for sentence in SENTENCES[:8]:
        theirs, ours = pipe(sentence, aggregation_strategy="none", ignore_labels=[]), predictor(sentence)
        assert [(one["entity_group"], one["start"], one["end"]) for one in ours] == [
            (one["entity"], one["start"], one["end"]) for one in theirs
        ]
        assert [one["score"] for one in ours] == pytest.approx([one["score"] for one in theirs], abs=LIMIT)


def test_a_tagger_without_begin_tags_finds_entities(tokenizer: Tokenizer, tmp_path: Path) -> None:
    """IO, without B-: what no tag can begin would never be found."""
    folder = their_folder(tmp_path, tokenizer, "BertForTokenClassification", **named(["O", "I-PER", "I-LOC"]))
    pipe = transformers.pipeline("token-classification", model=str(folder), device="cpu")
    predictor = Predictor.load(folder)
    theirs = [pipe(sentence, aggregation_strategy="simple") for sentence in SENTENCES[:10]]
    assert any(theirs)
    found = [[(one["start"], one["end"]) for one in predictor(sentence)] for sentence in SENTENCES[:10]]
    assert found == [[(one["start"], one["end"]) for one in some] for some in theirs]


def test_their_answerer_answers_as_a_slow_reader(tokenizer: Tokenizer, tmp_path: Path) -> None:
    """transformers 5 has no such pipeline: all spans are tried one after the other here."""
    folder = their_folder(tmp_path, tokenizer, "BertForQuestionAnswering")
    model = transformers.AutoModelForQuestionAnswering.from_pretrained(folder).eval()
    judge = transformers.AutoTokenizer.from_pretrained(folder)
    predictor = Predictor.load(folder)
    assert predictor.name == "answer"
    for example in ASKED:
        given = judge(example.question, example.context, return_tensors="pt", return_offsets_mapping=True)
        offsets = given.pop("offset_mapping")[0].tolist()
        with torch.no_grad():
            out = model(**given)
        first, last = out.start_logits[0].double().numpy(), out.end_logits[0].double().numpy()
        inside = [i for i, part in enumerate(given.sequence_ids(0)) if part == 1]
        spans = [(first[i] + last[j], i, j) for i in inside for j in inside if i <= j < i + 30]
        score, i, j = max(spans)
        chances = np.exp([span[0] for span in spans])
        found = predictor({"question": example.question, "context": example.context})
        assert (found["start"], found["end"]) == (offsets[i][0], offsets[j][1])
        assert found["answer"] == example.context[found["start"] : found["end"]]
        assert found["score"] == pytest.approx(np.exp(score) / chances.sum(), abs=LIMIT)


def test_their_chooser_chooses_as_theirs(tokenizer: Tokenizer, tmp_path: Path) -> None:
    folder = their_folder(tmp_path, tokenizer, "BertForMultipleChoice")
    model = transformers.AutoModelForMultipleChoice.from_pretrained(folder).eval()
    judge = transformers.AutoTokenizer.from_pretrained(folder)
    predictor = Predictor.load(folder)
    assert predictor.name == "choose"
    for example in CHOICES:
        batch = CASES["choose"].batch(judge, [example], ())
        batch.pop("offset_mapping")
        batch.pop("labels")
        with torch.no_grad():
            chances = model(**batch).logits[0].softmax(0).tolist()
        given = {"context": example.context, "question": example.question, "options": list(example.options)}
        found = predictor(given, top=9)
        assert [one["score"] for one in found] == pytest.approx(sorted(chances, reverse=True), abs=LIMIT)
        assert [chances[one["label"]] for one in found] == pytest.approx([one["score"] for one in found], abs=LIMIT)
        assert found[0]["answer"] == example.options[found[0]["label"]]


def test_nameless_labels_are_learned_from_on_as_numbers(tokenizer: Tokenizer, tmp_path: Path) -> None:
    """Evaluating their nameless classifier on data with the labels 0, 1, 2."""
    from bothways.predict.evaluation import evaluate

    folder = their_folder(tmp_path / "theirs", tokenizer, "BertForSequenceClassification", num_labels=3)
    predictor = Predictor.load(folder)
    texts = [example.texts[0] for example in SINGLE]
    golds = [one["label"].removeprefix("LABEL_") for one in predictor(texts)]
    rows = [json.dumps({"text": text, "label": gold}) for text, gold in zip(texts, golds, strict=True)]
    (tmp_path / "rows.jsonl").write_text("\n".join(rows))
    assert evaluate([str(tmp_path / "rows.jsonl")], predictor).scores["accuracy"] == 1.0


@pytest.mark.parametrize("name", CASES)
def test_a_round_trip_through_a_folder_changes_no_bit(name: str, tuned: dict[str, Path], tmp_path: Path) -> None:
    before = load(tuned[name])
    save(before, tmp_path / "again")
    after = load(tmp_path / "again")
    assert after.config == before.config
    assert all(torch.equal(a, b) for a, b in zip(before.parameters(), after.parameters(), strict=True))


def test_what_was_learned_is_kept_when_labels_stay(tuned: dict[str, Path], tmp_path: Path) -> None:
    """Going on from a fine-tuned folder with the same labels begins with its head."""
    plan = recipe_for("classify", tuned["single"], run=quiet(steps=1), optim=OptimSettings(lr=1e-12))
    found = finetune(plan, tmp_path / "more", train=SINGLE, dev=[])
    before, after = load(tuned["single"]), load(found.folder)
    assert all(torch.allclose(a, b, atol=1e-9) for a, b in zip(before.parameters(), after.parameters(), strict=True))
    assert plan.model == FinetuneModel(str(tuned["single"]))
