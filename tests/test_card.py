"""Model cards: programs read the header, people the text, and the code in it runs with the answers of bothways."""

import contextlib
import io
import itertools
import json
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import huggingface_hub
import numpy as np
import pytest
import transformers
from hypothesis import given, settings
from hypothesis import strategies as st
from markdown_it import MarkdownIt

import bothways
from bothways.data.examples import Text
from bothways.model.card import Made, languages_of
from bothways.model.card_text import markdown, yaml_text
from bothways.model.checkpoint import save
from bothways.model.load import load
from bothways.predict.predictor import Predictor
from bothways.pretraining.adapt import adapt
from bothways.pretraining.pretrain import pretrain
from bothways.tasks.finetune import finetune
from bothways.tasks.recipe import FinetuneData
from bothways.tasks.seeds import finetune_seeds
from bothways.text.tokenizer import Tokenizer
from bothways.train.optim import OptimSettings
from bothways.train.settings import LoraSettings
from helpers.runs import calm, recipe
from helpers.tasks import CASES, RELATED_TEXTS, SINGLE, TAGGED, base_model, quiet, recipe_for, start

ODD = ("a|b *c*", 'yes: "no" # 1', "$x_1$ <b>`y`</b> &amp;", "负\\面\u2028\ttab", "- [ ] {z}")


def card_of(folder: Path) -> Any:
    found = huggingface_hub.ModelCard.load(folder / "README.md")
    huggingface_hub.ModelCardData(**found.data.to_dict())  # which checks the model-index
    return found


def cells(card: Any) -> dict[str, list[str]]:
    """The rows of its tables, as a reader of Markdown shows them."""
    tokens = MarkdownIt("commonmark").enable("table").parse(card.text)
    rows: list[list[str]] = []
    for token, after in itertools.pairwise(tokens):
        if token.type == "tr_open":
            rows.append([])
        if token.type == "td_open":
            rows[-1].append("".join(child.content for child in after.children or ()))
    return {row[0]: row[1:] for row in rows if row}


def codes(card: Any) -> dict[str, str]:
    return dict(re.findall(r"With ([\w-]+):\n\n```python\n(.*?)\n```", card.text, re.DOTALL))


def printed(code: str) -> str:
    with contextlib.redirect_stdout(io.StringIO()) as out:
        exec(code, {})
    return out.getvalue()


# ---------------------------------------------------------------------- every task


@pytest.fixture(scope="module")
def runs(base: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("cards")
    for name, case in CASES.items():
        plan = recipe_for(case.task, base, run=quiet(steps=1))
        save(start(plan, case.examples).module.model, folder / name / "model", made=Made(name, "For a test."))
    finetune(recipe_for("embed", base, run=quiet(steps=1)), folder / "embed", train=RELATED_TEXTS, dev=[])
    return folder


@pytest.fixture
def inside(runs: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(runs)
    return runs


TAGS = {
    "single": "text-classification", "pairs": "text-classification", "multi": "text-classification",
    "regression": "text-classification", "score": "text-ranking", "entities": "token-classification",
    "plain tags": "token-classification", "answer": "question-answering", "no answer": "question-answering",
    "choose": "multiple-choice", "embed": "sentence-similarity",
}  # fmt: skip


@pytest.mark.parametrize("name", [*CASES, "embed"])
def test_the_code_of_a_card_runs(name: str, inside: Path) -> None:
    card = card_of(inside / name / "model")
    assert card.data.pipeline_tag == TAGS[name]
    assert "bothways" in card.data.tags
    found = codes(card)
    assert set(found) == {"bothways", card.data.to_dict()["library_name"]}
    ours, theirs = (printed(code) for code in found.values())
    if name in ("single", "pairs", "regression"):
        assert_near(eval(ours), [one[0] if isinstance(one, list) else one for one in eval(theirs)])
    elif name == "score":
        assert json.loads(ours.replace("'", '"'))["score"] == pytest.approx(float(theirs.strip("[]\n")), abs=1e-4)
    elif name == "embed":
        assert ours == theirs


def assert_near(ours: list[dict[str, Any]], theirs: list[dict[str, Any]]) -> None:
    assert [one["label"] for one in ours] == [one["label"] for one in theirs]
    assert [one["score"] for one in ours] == pytest.approx([one["score"] for one in theirs], abs=1e-4)


def test_a_masked_language_model_has_its_card(packed: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pretrain(calm(recipe(packed, steps=2)), tmp_path / "my-bert")
    monkeypatch.chdir(tmp_path)
    card = card_of(tmp_path / "my-bert/model")
    assert (card.data.pipeline_tag, card.text.split("\n")[1]) == ("fill-mask", "# my-bert")
    assert re.fullmatch(r"[\w-]+: [\d,]+ tokens of packed text", cells(card)["training data"][0])
    assert "loss" in cells(card)
    assert all(printed(code) for code in codes(card).values())


# ---------------------------------------------------------------------- what it says


def test_a_card_names_files_without_their_folders(base: Path, tmp_path: Path) -> None:
    rows = "".join(f"{one.texts[0]}\t{one.gold}\n" for one in SINGLE)
    private = tmp_path / "my secret customer"
    private.mkdir()
    for name in ("a_train.tsv", "b.tsv", "dev.tsv"):
        (private / name).write_text(f"text\tlabel\n{rows}", encoding="utf-8")
    data = FinetuneData(train=(str(private / "a_train.tsv"), str(private / "b.tsv")), dev=(str(private / "dev.tsv"),))
    finetune(recipe_for("classify", base, data=data), private / "my-run")
    card = card_of(private / "my-run/model")
    shown = cells(card)
    assert shown["training data"] == [f"a_train.tsv, b.tsv: {2 * len(SINGLE)} rows"]
    assert shown["development data"] == [f"dev.tsv: {len(SINGLE)} rows"]
    assert shown["base model"] == ["base"]
    assert "secret" not in card.content
    assert str(tmp_path) not in card.content
    (result,) = {one.dataset_name for one in card.data.eval_results}
    assert result == f"dev.tsv: {len(SINGLE)} rows"
    assert card.data.model_name == "my-run"


def test_scores_have_the_intervals_of_an_evaluation(base: Path, tmp_path: Path) -> None:
    """Those of the checkpoint that is published, which is neither the first nor the last one."""
    rows = [
        Text(("good cat" if i % 3 else "bad cat",), gold="no" if i % 3 == 0 or i % 7 == 0 else "yes") for i in range(60)
    ]
    file = tmp_path / "dev.jsonl"
    file.write_text("".join(json.dumps({"text": one.texts[0], "label": one.gold}) + "\n" for one in rows))
    data = FinetuneData(train=(str(file),), dev=(str(file),))
    plan = recipe_for("classify", base, data=data, run=quiet(epochs=3.0, batch_size=12))
    found = finetune(replace(plan, optim=OptimSettings(lr=1e-3, schedule="constant")), tmp_path / "run")
    assert found.best_step == 10
    judged, shown = bothways.evaluate([str(file)], found.folder), cells(card_of(found.folder))
    for name, (low, high) in judged.intervals.items():
        value, between = shown["positive_f1 (yes)" if name == "positive_f1" else name]
        assert float(value) == pytest.approx(found.scores[name], abs=1e-4)
        assert [float(end) for end in between.split(" to ")] == pytest.approx([low, high], abs=2e-3)
    assert next(one.metric_type for one in card_of(found.folder).data.eval_results) == "accuracy"


def test_labels_are_shown_as_they_are(base: Path, tmp_path: Path) -> None:
    rows = [Text((f"the cat {i}",), gold=ODD[i % len(ODD)]) for i in range(10)]
    finetune(recipe_for("classify", base), tmp_path / "it's *my* |run|", train=rows, dev=rows)
    card = card_of(tmp_path / "it's *my* |run|" / "model")
    shown = " ".join(" ".join(label.split()) for label in sorted(f"{label}," for label in ODD)).rstrip(",")
    assert cells(card)["labels"] == [shown]
    assert card.data.model_name == "it's *my* |run|"
    (title,) = [t.children for t in MarkdownIt().parse(card.text) if t.type == "inline" and t.level == 1][:1]
    assert "".join(child.content for child in title or ()) == "it's *my* |run|"


@settings(max_examples=200, deadline=None)
@given(st.text(st.characters(exclude_categories=["Cs"]), max_size=30))
def test_any_text_survives_yaml_and_markdown(text: str) -> None:
    yaml = pytest.importorskip("yaml")
    assert yaml.safe_load(f"- name: {yaml_text(text)}") == [{"name": text}]
    plain = " ".join("".join(c if c.isprintable() else " " for c in text).split())
    tokens = MarkdownIt("commonmark").enable("table").parse(f"| a |\n|---|\n| x{markdown(text)}x |\n")
    (inline,) = [t for t in tokens if t.type == "inline"][1:]
    assert "".join(child.content for child in inline.children or ()) == f"x{plain}x"


def test_seeds_share_a_card(base: Path, tmp_path: Path) -> None:
    file = tmp_path / "rows.tsv"
    file.write_text("text\tlabel\n" + "".join(f"{one.texts[0]}\t{one.gold}\n" for one in SINGLE), encoding="utf-8")
    plan = recipe_for("classify", base, data=FinetuneData(train=(str(file),), dev=(str(file),)), run=quiet(steps=2))
    found = finetune_seeds(plan, tmp_path / "many", [0, 1])
    assert card_of(found.folder).data.model_name == "many"
    card = card_of(found.folder)
    assert f"seed {found.best}" in cells(card)["training"][0]
    spread = found.scores["accuracy"]
    assert f"| accuracy | {spread.mean:.4f} ± {spread.sd:.4f} |" in card.text
    assert card.text.index("## Scores over seeds") < card.text.index("## Usage")
    assert f"2 runs. The model above is the best of them on the development data, of seed {found.best}." in card.text


def test_an_adapter_has_a_card(base: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    plan = recipe_for("classify", base, run=quiet(steps=2), lora=LoraSettings(rank=2))
    finetune(plan, tmp_path / "my-run", train=SINGLE, dev=SINGLE)
    monkeypatch.chdir(tmp_path)
    card, whole = card_of(tmp_path / "my-run/adapter"), card_of(tmp_path / "my-run/model")
    assert card.data.to_dict()["library_name"] == "peft"
    assert cells(card)["accuracy"] == cells(whole)["accuracy"]
    assert set(codes(card)) == {"bothways"}
    assert printed(codes(card)["bothways"]) == printed(codes(whole)["bothways"])


def test_the_card_of_an_adapted_model_names_files_and_losses(base: Path, tmp_path: Path) -> None:
    for name in ("domain-text.txt", "general-text.txt"):
        (tmp_path / name).write_text("".join(f"the cat {i} sleeps in the house.\n" for i in range(80)), "utf-8")
    found = adapt(
        tmp_path / "domain-text.txt",
        base,
        tmp_path / "out",
        general=[tmp_path / "general-text.txt"],
        each="lines",
        valid="20%",
        settings=["run.device=cpu", "run.steps=2", "run.evaluate_every=2", "phases.0.length=16"],
    )
    card = cells(card_of(found.folder))
    assert card["training data"][0].startswith("domain: domain-text.txt; general: general-text.txt: ")
    for name in ("domain", "general"):
        moved = f"{name}/loss {found.before[name]:.3f} → {found.after[name]:.3f}"
        assert moved in card["held-out loss before → after"][0]


def test_languages_are_those_of_the_base(base: Path, tmp_path: Path) -> None:
    for header, codes_ in (("language: zh", ["zh"]), ("language:\n- en\n- zh-Hant\ntags:\n- x", ["en", "zh-Hant"]), ("language: [en, de]", ["en", "de"]), ("tags: [x]", [])):  # fmt: skip
        folder = tmp_path / str(len(list(tmp_path.iterdir())))
        save(load(base), folder)
        (folder / "README.md").write_text(f"---\n{header}\n---\n# x\nlanguage: fr\n", encoding="utf-8")
        assert languages_of(folder) == tuple(codes_)
    finetune(recipe_for("classify", tmp_path / "1"), tmp_path / "run", train=SINGLE, dev=[])
    assert card_of(tmp_path / "run/model").data.language == ["en", "zh-Hant"]


# ---------------------------------------------------------------------- the aggregation of tags


@pytest.mark.slow
def test_the_aggregation_of_a_tagger_gives_our_entities(tokenizer: Tokenizer, tmp_path: Path) -> None:
    """The card says "first"; the tokens after the first of a word were never trained, and "simple" reads them."""
    folder = base_model(tmp_path / "base", tokenizer)
    plan = recipe_for("tag", folder, run=quiet(steps=60), optim=OptimSettings(lr=3e-3))
    folder = finetune(plan, tmp_path / "tagger", train=TAGGED, dev=TAGGED).folder
    assert 'aggregation_strategy="first"' in codes(card_of(folder))["transformers"]
    predictor = Predictor.load(folder)
    texts = [example.text for example in TAGGED]
    ours = [spans(answer) for answer in predictor(texts)]
    assert sum(map(len, ours)) >= 4
    model = transformers.AutoModelForTokenClassification.from_pretrained(folder)
    reader = transformers.AutoTokenizer.from_pretrained(folder)
    given = {
        how: transformers.pipeline("token-classification", model, tokenizer=reader, aggregation_strategy=how)(texts)
        for how in ("first", "simple")
    }
    for mine, other in zip(ours, given["first"], strict=True):
        assert [one[:3] for one in mine] == [one[:3] for one in spans(other)]
        assert np.allclose([one[3] for one in mine], [one[3] for one in spans(other)], atol=1e-4)
    assert [[one[:3] for one in mine] for mine in ours] != [[one[:3] for one in spans(o)] for o in given["simple"]]


def spans(answer: list[dict[str, Any]]) -> list[tuple[str, int, int, float]]:
    return [(one["entity_group"], one["start"], one["end"], float(one["score"])) for one in answer]


def test_a_plain_save_has_a_card_too(base: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    model = load(base)
    model.config = replace(model.config, hf_config={})
    save(model, tmp_path / "copy")
    monkeypatch.chdir(tmp_path)
    card = card_of(tmp_path / "copy")
    assert card.data.pipeline_tag == "fill-mask"
    assert all(printed(code) for code in codes(card).values())
