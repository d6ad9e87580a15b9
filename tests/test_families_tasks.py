"""Every family fine-tunes for every task, and its folder answers in transformers as it does here."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import peft
import pytest
import torch
import transformers
from typer.testing import CliRunner

from bothways.cli import app
from bothways.model.batch import Batch
from bothways.model.checkpoint import save
from bothways.model.load import load
from bothways.model.lora import adapt, save_adapter
from bothways.predict.predictor import Predictor
from bothways.tasks.finetune import finetune
from bothways.tasks.folder import with_task
from bothways.train.settings import LoraSettings
from helpers import config_for, families_with
from helpers.tasks import CASES, LIMIT, quiet, recipe_for, shout

TASKS = ("single", "entities", "answer", "choose", "score")
KINDS = {
    "single": "SequenceClassification",
    "score": "SequenceClassification",
    "entities": "TokenClassification",
    "answer": "QuestionAnswering",
    "choose": "MultipleChoice",
}


HEADS = {"single": "sequence", "score": "sequence", "entities": "token", "answer": "span", "choose": "choice"}


@pytest.mark.parametrize(("family", "task"), [(family, t) for t in TASKS for family in families_with(HEADS[t])])
def test_a_folder_made_by_fine_tuning_is_theirs_too(
    family: str, task: str, bases: dict[str, Path], tmp_path: Path
) -> None:
    if (family, task) == ("deberta", "choose"):
        pytest.skip("transformers has no such class to judge by")
    case = CASES[task]
    plan = recipe_for(case.task, bases[family], run=quiet(steps=1, save_every=9))
    predictor = Predictor.load(finetune(plan, tmp_path, train=case.examples, dev=[]).folder)
    kind: Any = getattr(transformers, f"AutoModelFor{KINDS[task]}")
    model, report = kind.from_pretrained(tmp_path / "model", output_loading_info=True)
    assert not report["missing_keys"]
    assert not report["unexpected_keys"]
    item = predictor.task.encode(case.examples[:1])[0]
    for view in item.views:
        ids, segments = torch.tensor([view.ids.tolist()]), torch.tensor([view.segments.tolist()])
        extra = {"token_type_ids": segments} if getattr(model.config, "type_vocab_size", 0) else {}
        many = {"input_ids": ids, **extra}
        if task == "choose":
            many = {name: value[None] for name, value in many.items()}
        with torch.no_grad():
            out = model.eval()(**many)
            theirs = torch.stack([out.start_logits, out.end_logits], -1) if "start_logits" in out else out.logits
            batch = Batch.pack([view.ids.tolist()], [view.segments.tolist()])
            ours = predictor.task.outputs(predictor.model, predictor.model.encoder(batch), batch)
        assert ours.flatten().tolist() == pytest.approx(theirs.flatten().tolist(), abs=LIMIT)


@pytest.mark.parametrize("family", families_with("sequence"))
def test_an_adapter_is_the_same_model_here_worked_in_and_in_peft(
    family: str, bases: dict[str, Path], tmp_path: Path
) -> None:
    """LoRA beside all linear layers of the blocks, as if training had been long."""
    settings = LoraSettings(rank=2, targets=("all-linear",))
    adapted = adapt(with_task(load(bases[family]), config_for("classify", kind="single"), ("a", "b", "c")), settings)
    shout(adapted)
    adapted.eval()
    save_adapter(adapted, str(bases[family]), tmp_path)
    ids = [5, 40, 41, 42, 43, 6]
    batch = Batch.pack([ids])
    merged = load(tmp_path)
    config = transformers.AutoConfig.from_pretrained(tmp_path)
    judge = transformers.AutoModelForSequenceClassification.from_pretrained(bases[family], config=config)
    opened = peft.PeftModel.from_pretrained(judge, tmp_path).eval()
    with torch.no_grad():
        ours, worked_in = (m.logits("sequence", m.encoder(batch), batch) for m in (adapted, merged))
        theirs = opened(input_ids=torch.tensor([ids])).logits
    assert not torch.allclose(ours, ours[:, :1], atol=1e-2)
    assert ours.flatten().tolist() == pytest.approx(worked_in.flatten().tolist(), abs=LIMIT)
    assert ours.flatten().tolist() == pytest.approx(theirs.flatten().tolist(), abs=LIMIT)


@pytest.mark.parametrize("family", sorted(set(families_with(is_judged=False)) - set(families_with())))
def test_a_family_without_a_judge_is_the_same_after_saving(family: str, bases: dict[str, Path], tmp_path: Path) -> None:
    case = CASES["single"]
    plan = recipe_for(case.task, bases[family], run=quiet(steps=1, save_every=9))
    found = finetune(plan, tmp_path / "run", train=case.examples, dev=[])
    predictor = Predictor.load(found.folder)
    save(predictor.model, tmp_path / "again")
    texts = [example.texts[0] for example in case.examples]
    assert Predictor.load(tmp_path / "again")(texts) == predictor(texts)


@pytest.mark.parametrize("family", families_with("masked", is_judged=False))
def test_every_verb_that_reads_a_model_reads_this_one(family: str, bases: dict[str, Path], tmp_path: Path) -> None:
    model = load(bases[family]).with_head("masked")
    save(model, tmp_path / "model")
    (tmp_path / "texts.txt").write_text("the cat runs\n北京是中国的首都。\n", encoding="utf-8")

    def call(*words: object) -> str:
        done = CliRunner().invoke(app, [str(word) for word in words])
        assert done.exit_code == 0, done.output
        return done.stdout

    facts = json.loads(call("info", tmp_path / "model", "--json"))
    assert (facts["family"], facts["max_length"], facts["heads"]) == (family, 64, ["masked"])
    assert sum(facts["parameters_by_part"].values()) == facts["parameters"]
    assert "64 tokens" in call("info", tmp_path / "model")
    assert len(call("fill", "the [MASK] runs", "--model", tmp_path / "model", "--top", 3).splitlines()) == 3
    call(
        "encode", tmp_path / "texts.txt", "--model", tmp_path / "model", "--layers", "all", "--out", tmp_path / "v.npy"
    )
    assert np.load(tmp_path / "v.npy").shape == (2, 3 * 24)
