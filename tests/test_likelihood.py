"""How likely a sentence is: against transformers, one masked copy at a time; and what a model prefers."""

import json
from dataclasses import replace
from pathlib import Path

import pytest
import torch
import transformers
from torch.nn import functional as F
from typer.testing import CliRunner

from bothways.cli import app
from bothways.model.batch import Batch
from bothways.model.checkpoint import save
from bothways.model.config import ModelConfig
from bothways.model.families import FAMILIES
from bothways.model.model import Model
from bothways.predict.likelihood import MinimalPair, read_minimal_pairs, score_minimal_pairs, sentence_scores
from bothways.text.tokenizer import Tokenizer
from helpers import TINY, make_loud, refused

TEXTS = ["the black cat sleeps.", "unbelievable!", "中国的首都是北京。", "the dog walked to the tree of paris", "a"]


def model_for(tokenizer: Tokenizer, family: str = "bert", head: str = "masked", causal: bool = False) -> Model:
    shape = FAMILIES[family].fresh(replace(TINY, causal=causal))
    model = Model.new(ModelConfig(shape, (head,) if head else (), family=family), tokenizer).eval()
    make_loud(model)
    return model


def test_every_token_is_asked_for_by_itself(tokenizer: Tokenizer, tmp_path: Path) -> None:
    model = model_for(tokenizer)
    save(model, tmp_path)
    theirs = transformers.BertForMaskedLM.from_pretrained(tmp_path).eval()
    expected = []
    for text in TEXTS:
        ids = torch.tensor(tokenizer(text).ids)
        total = 0.0
        for place in range(1, len(ids) - 1):
            masked = ids.clone()
            masked[place] = tokenizer.id("[MASK]")
            with torch.no_grad():
                total += float(theirs(masked[None]).logits[0, place].log_softmax(-1)[ids[place]])
        expected.append(total)
    assert list(sentence_scores(TEXTS, model)) == pytest.approx(expected, abs=1e-3)


def test_a_detector_is_asked_whether_all_is_as_it_was(tokenizer: Tokenizer, tmp_path: Path) -> None:
    model = model_for(tokenizer, "electra", "replaced")
    save(model, tmp_path)
    theirs = transformers.ElectraForPreTraining.from_pretrained(tmp_path).eval()
    expected = []
    for text in TEXTS:
        with torch.no_grad():
            logits = theirs(torch.tensor([tokenizer(text).ids])).logits[0, 1:-1]
        expected.append(float(F.logsigmoid(-logits).sum()))
    assert list(sentence_scores(TEXTS, model)) == pytest.approx(expected, abs=1e-3)


def test_left_to_right_every_next_token_counts(tokenizer: Tokenizer) -> None:
    model = model_for(tokenizer, causal=True)
    for text, found in zip(TEXTS, sentence_scores(TEXTS, model), strict=True):
        ids = tokenizer(text).ids
        with torch.no_grad():
            logs = model.masked(model.encoder(Batch.pack([ids]))).log_softmax(-1)
        assert found == pytest.approx(sum(float(logs[i, ids[i + 1]]) for i in range(len(ids) - 1)), abs=1e-3)


def test_order_and_neighbours_do_not_matter(tokenizer: Tokenizer, monkeypatch: pytest.MonkeyPatch) -> None:
    model = model_for(tokenizer)
    alone = [next(sentence_scores([text], model)) for text in TEXTS]
    monkeypatch.setattr("bothways.engine.chunks._TEXTS", {"cpu": 2})
    monkeypatch.setattr("bothways.predict.likelihood._TOKENS_AT_ONCE", 20)
    assert list(sentence_scores(iter(TEXTS), model)) == pytest.approx(alone, abs=1e-4)


def test_groups_count_alike_however_many_pairs_they_have(tokenizer: Tokenizer) -> None:
    model = model_for(tokenizer)
    scores = dict(zip(TEXTS, sentence_scores(TEXTS, model), strict=True))
    likely = sorted(TEXTS, key=lambda text: -scores[text])
    right, wrong = MinimalPair(likely[0], likely[-1], "a"), MinimalPair(likely[-1], likely[0], "a")
    found = score_minimal_pairs([right, wrong, wrong, replace(right, group="b")], model)
    assert found.pairs == 4
    assert found.groups == {"a": pytest.approx(1 / 3), "b": 1.0}
    assert found.accuracy == pytest.approx(2 / 3)
    tie = score_minimal_pairs([MinimalPair("the cat", "the cat", "same")], model)
    assert tie.accuracy == 0  # an equal score is no preference


def test_the_command(tokenizer: Tokenizer, tmp_path: Path) -> None:
    save(model_for(tokenizer), tmp_path / "model")
    rows = [
        {"sentence_good": "the cat sleeps.", "sentence_bad": "the cat sleep.", "UID": "verb"},
        {"sentence_good": "the dog walked", "sentence_bad": "the walked dog", "UID": "verb"},
        {"sentence_good": "北京很大。", "sentence_bad": "很北京大。", "UID": "order"},
    ]
    file = tmp_path / "pairs.jsonl"
    file.write_text("\n".join(json.dumps(row, ensure_ascii=False) for row in rows), encoding="utf-8")
    assert [pair.group for pair in read_minimal_pairs(file, limit=1)] == ["verb", "order"]
    command = ["blimp", str(file), "--model", str(tmp_path / "model")]
    done = CliRunner().invoke(app, [*command, "--json"])
    assert done.exit_code == 0, done.output
    told = json.loads(done.stdout)
    assert (told["pairs"], set(told["groups"])) == (3, {"verb", "order"})
    assert told["accuracy"] == pytest.approx(sum(told["groups"].values()) / 2)
    shown = CliRunner().invoke(app, command)
    assert f"{told['accuracy']:.3f}" in shown.stdout


def test_what_cannot_be_asked_is_said(tokenizer: Tokenizer, tmp_path: Path) -> None:
    with refused("no-head", "masked"):
        next(sentence_scores(["a"], model_for(tokenizer, head="")))
    with refused("too-long", 122):
        next(sentence_scores(["the cat " * 60], model_for(tokenizer)))
    with refused("no-data"):
        score_minimal_pairs([], model_for(tokenizer))
    file = tmp_path / "pairs.jsonl"
    file.write_text('{"good": "a", "bad": "b"}\n', encoding="utf-8")
    with refused("no-column", f"{file}, line 1"):
        next(read_minimal_pairs(file))
