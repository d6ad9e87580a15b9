"""Fine-tuning: exact resume, every sample once an epoch, exact accumulation, what stays frozen, what is published."""

import json
import os
import signal
import statistics
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor
from torch._dynamo.testing import CompileCounter
from torch.utils.checkpoint import checkpoint

from bothways.data.examples import Question, Tagged, Text
from bothways.engine.reader import WindowSettings
from bothways.errors import BothwaysError
from bothways.model.checkpoint import save
from bothways.model.config import ModelConfig
from bothways.model.load import load
from bothways.model.model import Model
from bothways.predict.evaluation import evaluate
from bothways.predict.predictor import Predictor
from bothways.tasks.answer import AnswerSettings
from bothways.tasks.classify import ClassifySettings
from bothways.tasks.finetune import Finetuned, finetune
from bothways.tasks.folder import with_dropout
from bothways.tasks.recipe import FinetuneData, FinetuneModel, FinetuneRecipe, finetune_recipe
from bothways.tasks.seeds import finetune_seeds
from bothways.tasks.trainable import FineTuning
from bothways.text.tokenizer import Tokenizer
from bothways.train.distill import DistillSettings
from bothways.train.optim import OptimSettings, make_optimizers
from bothways.train.protocol import Evaluated, Event, Stepped
from bothways.train.ranks import Ranks
from bothways.train.settings import LoraSettings
from helpers import refused
from helpers.tasks import (
    ASKED,
    CASES,
    GRADES,
    NO_ANSWER,
    SINGLE,
    SMALL,
    TAGGED,
    base_model,
    near,
    quiet,
    recipe_for,
    scripted,
    start,
    take,
    written,
)

MANY = [replace(example, texts=(f"{text} {i}",)) for i in range(3) for example in SINGLE[:4] for text in example.texts]
"""12 rows, of which 5 a step do not divide."""


@pytest.fixture
def shaky(tmp_path: Path, tokenizer: Tokenizer) -> Path:
    """With dropout: what a resumed run draws must be what it would have drawn."""
    return base_model(tmp_path / "base", tokenizer, dropout=0.2, attention_dropout=0.1)


def long_run(init: Path, **run: Any) -> FinetuneRecipe:
    return recipe_for("classify", init, run=quiet(**{"steps": 8, "batch_size": 5, **run}))


def weights(out: Path) -> Mapping[str, Tensor]:
    return load(out / "model").state_dict()


def metrics(out: Path) -> list[dict[str, Any]]:
    """The log without what a clock says."""
    rows = [json.loads(line) for line in (out / "metrics.jsonl").read_text().splitlines()]
    timed = ("tokens_per_second", "mfu", "elapsed")
    return [{key: value for key, value in row.items() if key not in timed} for row in rows]


def same(one: Mapping[str, Tensor], other: Mapping[str, Tensor]) -> bool:
    return one.keys() == other.keys() and all(torch.equal(one[name], other[name]) for name in one)


class PlugError(Exception):
    """Pulls the plug."""


# ---------------------------------------------------------------------- memory


@pytest.mark.parametrize("part", ["", "lora", "distill"])
def test_recomputing_activations_keeps_less_and_changes_no_loss(
    shaky: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, part: str
) -> None:
    """Every layer of every training pass is recomputed, with the same dropout; none of an evaluation."""
    parts: dict[str, Any] = {
        "lora": {"lora": LoraSettings(rank=2)},
        "distill": {"distill": DistillSettings(str(shaky), soft=0.0)},
    }
    calls = 0

    def counted(*arguments: Any, **options: Any) -> Any:
        nonlocal calls
        calls += 1
        return checkpoint(*arguments, **options)

    monkeypatch.setattr("bothways.model.encoder.checkpoint", counted)
    for recompute in (False, True):
        run = quiet(steps=3, batch_size=5, gradient_checkpointing=recompute)
        plan = recipe_for("classify", shaky, run=run, **parts.get(part, {}))
        finetune(plan, tmp_path / str(recompute), train=MANY, dev=SINGLE)
        assert calls == 3 * SMALL.layers * recompute
    assert metrics(tmp_path / "True") == metrics(tmp_path / "False")
    assert same(weights(tmp_path / "True"), weights(tmp_path / "False"))


# ---------------------------------------------------------------------- the compiler


@pytest.mark.filterwarnings("default")  # torch's compiler warns about itself
@pytest.mark.parametrize("name", ["single", "answer", "choose", "distill"])
def test_ragged_batches_are_compiled_once(
    name: str, tmp_path: Path, tokenizer: Tokenizer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Batches of any shape, and evaluations, run one program; another where all sequences are equally long, and others
    for a single one. The losses are those without the compiler."""
    init = base_model(tmp_path / "base", tokenizer)
    case = CASES.get(name, CASES["single"])
    rows = [replace(e, id=f"{e.id}-{i}") if isinstance(e, Question) else e for i in range(6) for e in case.examples]
    parts: dict[str, Any] = {
        "distill": {"lora": LoraSettings(rank=2), "distill": DistillSettings(str(init), soft=0.0, relations=1.0)}
    }
    counter, compiler = CompileCounter(), torch.compile
    monkeypatch.setattr(torch, "compile", lambda module, **options: compiler(module, backend=counter, **options))
    torch.compiler.reset()
    for compiled in (False, True):
        run = quiet(steps=6, batch_size=5, micro_tokens=80, compile=compiled, evaluate_every=3)
        plan = recipe_for(case.task, init, run=run, **parts.get(name, {}))
        finetune(plan, tmp_path / str(compiled), train=rows, dev=case.examples)
    assert 1 <= counter.frame_count <= 4
    for eager, found in zip(metrics(tmp_path / "False"), metrics(tmp_path / "True"), strict=True):
        assert near(found, eager, 1e-3)


# ---------------------------------------------------------------------- resume


@pytest.mark.parametrize("step", [1, 7])
def test_a_run_that_fell_over_goes_on_bit_for_bit(shaky: Path, tmp_path: Path, step: int) -> None:
    plan = long_run(shaky, save_every=2)
    finetune(plan, tmp_path / "whole", train=MANY, dev=SINGLE)

    def pull(event: Event) -> None:
        if isinstance(event, Stepped) and event.step == step:
            raise PlugError

    with pytest.raises(PlugError):
        finetune(plan, tmp_path / "parts", train=MANY, dev=SINGLE, listen=[pull])
    assert not (tmp_path / "parts/model").exists()
    found = finetune(plan, tmp_path / "parts", train=MANY, dev=SINGLE)
    assert found.complete
    assert metrics(tmp_path / "parts") == metrics(tmp_path / "whole")
    assert same(weights(tmp_path / "parts"), weights(tmp_path / "whole"))


@pytest.mark.parametrize("step", [4, 8])
def test_a_run_that_was_asked_to_stop_goes_on_as_if_not(shaky: Path, tmp_path: Path, step: int) -> None:
    """SIGTERM after any step, the last too: the same losses, scores and model."""
    plan = long_run(shaky)
    whole = finetune(plan, tmp_path / "whole", train=MANY, dev=SINGLE)

    def interrupt(event: Event) -> None:
        if isinstance(event, Stepped) and event.step == step:
            os.kill(os.getpid(), signal.SIGTERM)

    stopped = finetune(plan, tmp_path / "parts", train=MANY, dev=SINGLE, listen=[interrupt])
    assert not stopped.complete or step == 8  # after the last step it may as well end
    found = finetune(plan, tmp_path / "parts", train=MANY, dev=SINGLE)
    assert (found.complete, found.best_step, found.scores) == (True, whole.best_step, whole.scores)
    assert metrics(tmp_path / "parts") == metrics(tmp_path / "whole")
    assert same(weights(tmp_path / "parts"), weights(tmp_path / "whole"))


def test_a_finished_run_is_only_looked_at(base: Path, tmp_path: Path) -> None:
    plan = long_run(base)
    first = finetune(plan, tmp_path / "run", train=MANY, dev=SINGLE)
    heard: list[Event] = []
    assert finetune(plan, tmp_path / "run", train=MANY, dev=SINGLE, listen=[heard.append]) == first
    assert [type(event).__name__ for event in heard] == ["Started", "Finished"]


def test_a_run_that_was_killed_before_its_recipe_had_a_name_begins(base: Path, tmp_path: Path) -> None:
    """Here on another machine, so that what it left cannot be removed. Files of others are no such names."""
    plan, left = recipe_for("classify", base, run=quiet(steps=1)), ".recipe.toml.00000000-1-7d95f2da.toml"
    for name in ("run", "full"):
        (tmp_path / name).mkdir()
        (tmp_path / name / left).touch()
    (tmp_path / "full/notes.toml").touch()
    assert finetune(plan, tmp_path / "run", train=SINGLE, dev=[]).complete
    with refused("other-files", names=r"notes\.toml"):
        finetune(plan, tmp_path / "full", train=SINGLE, dev=[])


def test_another_recipe_or_other_labels_do_not_go_on(base: Path, tmp_path: Path) -> None:
    plan = long_run(base)
    finetune(plan, tmp_path / "run", train=MANY, dev=[])
    with refused("other-settings"):
        finetune(replace(plan, optim=OptimSettings(lr=2e-3)), tmp_path / "run", train=MANY, dev=[])
    with refused("state-dropped", 8):
        finetune(replace(plan, run=replace(plan.run, epochs=9, steps=0)), tmp_path / "run", train=MANY, dev=[])
    others = [replace(example, gold=f"other {example.gold}") for example in MANY]
    with refused("other-run"):
        finetune(plan, tmp_path / "run", train=others, dev=[])


def test_other_texts_do_not_go_on(base: Path, tmp_path: Path) -> None:
    """The same recipe on other rows is another run: the old model is not its answer."""
    plan = long_run(base)
    finetune(plan, tmp_path / "run", train=MANY, dev=[])
    others = [replace(example, texts=("the white dog",)) for example in MANY]
    with refused("other-data"):
        finetune(plan, tmp_path / "run", train=others, dev=[])


def test_the_same_recipe_gives_the_same_model_and_another_seed_another(shaky: Path, tmp_path: Path) -> None:
    for name, seed in (("one", 3), ("two", 3), ("other", 4)):
        finetune(long_run(shaky, seed=seed, steps=3), tmp_path / name, train=MANY, dev=[])
    assert same(weights(tmp_path / "one"), weights(tmp_path / "two"))
    assert metrics(tmp_path / "one") == metrics(tmp_path / "two")
    assert metrics(tmp_path / "one")[0]["loss"] != metrics(tmp_path / "other")[0]["loss"]


def test_dropout_is_drawn_anew_in_every_step(shaky: Path, tmp_path: Path) -> None:
    """One row over and over and, but for 1e-12, the same weights: what differs is what was dropped."""
    optim = OptimSettings(lr=1e-12, warmup=0, schedule="constant")
    plan = replace(long_run(shaky, steps=4, save_every=9), optim=optim, settings=ClassifySettings(kind="regression"))
    finetune(plan, tmp_path / "run", train=[Text(("the cat runs in paris",), 0.5)] * 5, dev=[])
    assert len({row["loss"] for row in metrics(tmp_path / "run")}) == 4


# ---------------------------------------------------------------------- what is drawn


def drawn(work: FineTuning, steps: int, index: int = 0) -> list[list[int]]:
    """The numbers of the samples in each step, by the identity of what is fed."""
    numbers = {sample.ids[0].tobytes(): i for i, sample in enumerate(work.samples)}
    assert len(numbers) == len(work.samples)
    found = []
    feed: Iterator[Any] = work.feed(0, index, Ranks(), False)
    for _ in range(steps):
        step = next(feed)
        found.append(
            [
                numbers[ids.numpy().astype("int32").tobytes()]
                for micro in step.micros
                for ids in micro.batch.ids.split(micro.batch.lengths.tolist())
            ]
        )
        assert step.sequences == len(found[-1])
    return found


def test_every_sample_comes_once_an_epoch_and_each_epoch_in_its_own_order(base: Path) -> None:
    work = start(recipe_for("classify", base), MANY)
    work.batch = 5
    assert work.steps_per_epoch == 3
    steps = drawn(work, 9)
    assert [len(step) for step in steps] == [5, 5, 2] * 3
    epochs = [[*steps[i], *steps[i + 1], *steps[i + 2]] for i in (0, 3, 6)]
    assert all(sorted(epoch) == list(range(12)) for epoch in epochs)
    assert len({tuple(epoch) for epoch in epochs}) == 3
    assert list(range(12)) not in epochs
    other = start(recipe_for("classify", base, run=quiet(steps=4, seed=4)), MANY)
    other.batch = 5
    assert drawn(other, 3) != steps[:3]
    assert drawn(work, 4, index=17) == steps[4:8]  # 12 of the first epoch, 5 of the second


def test_an_epoch_is_as_many_steps_as_it_needs(base: Path, tmp_path: Path) -> None:
    """12 rows by 5 are 3 steps; evaluated and saved after every epoch."""
    plan = recipe_for("classify", base, run=quiet(epochs=2.0, batch_size=5, keep=9, keep_state=True))
    heard: list[Event] = []
    found = finetune(plan, tmp_path / "run", train=MANY, dev=SINGLE, listen=[heard.append])
    assert found.steps == 6
    assert [event.step for event in heard if isinstance(event, Evaluated)] == [3, 6]
    assert sorted(p.name for p in (tmp_path / "run/checkpoints").iterdir()) == ["step-00000003", "step-00000006"]
    half = recipe_for("classify", base, run=quiet(epochs=0.5, batch_size=5))
    assert finetune(half, tmp_path / "half", train=MANY, dev=[]).steps == 2


def test_dropout_set_in_the_recipe_is_that_of_a_model_that_has_it(base: Path, shaky: Path, tmp_path: Path) -> None:
    """In embeddings, layers, attention and the head alike; and its config says so."""
    plan = long_run(base)
    shares: dict[str, tuple[float | None, float | None]] = {
        "theirs": (None, None),
        "said": (0.2, 0.1),
        "half": (0.2, None),
    }
    for name, (share, attention) in shares.items():
        begun = replace(plan.model, dropout=share, attention_dropout=attention)
        finetune(replace(plan, model=begun), tmp_path / name, train=MANY)
    finetune(long_run(shaky), tmp_path / "shaky", train=MANY)
    assert same(weights(tmp_path / "said"), weights(tmp_path / "shaky"))
    assert not same(weights(tmp_path / "said"), weights(tmp_path / "half"))
    assert not same(weights(tmp_path / "half"), weights(tmp_path / "theirs"))
    said, shaken = (load(tmp_path / name / "model").config for name in ("said", "shaky"))
    assert said == shaken
    changed = with_dropout(load(base), 0.2, 0.1)
    assert changed.encoder.config == changed.config.encoder == shaken.encoder


def test_no_epochs_are_no_three() -> None:
    with refused("out-of-range", 0):
        finetune_recipe({"run": {"epochs": 0}})
    assert finetune_recipe({"run": {"epochs": 0}}, ["run.steps=2"]).run.steps == 2


def test_examples_without_a_label_are_counted(base: Path, tmp_path: Path) -> None:
    said: list[str] = []
    some = [*SINGLE, Text(("no label",))]
    finetune(long_run(base, steps=1), tmp_path / "run", train=some, dev=some[-2:], say=said.append)
    unlabelled = [words for words in said if "label" in words]
    assert len(unlabelled) == 2
    assert all(value in unlabelled[0] for value in (f"1 of the {len(some)}", "training"))
    assert all(value in unlabelled[1] for value in ("1 of the 2", "development"))


def test_an_answer_that_is_nowhere_is_not_learned_from(base: Path, tmp_path: Path) -> None:
    """As in BERT's code, and not as a question without one; beyond a cut, it is one that this window has not."""
    lost = Question("lost", "where is it", "the cat sleeps", (("the dog", -1),))
    far = Question("far", "where is it", "the cat sleeps " * 30, (("sleeps", 441),))
    said: list[str] = []
    for name, some in {"with": [*ASKED, lost], "without": ASKED, "far": [*ASKED, far]}.items():
        plan = recipe_for("answer", base, run=quiet(steps=2), window=WindowSettings(32, 8, "cut"))
        finetune(plan, tmp_path / name, train=some, say=said.append)
    assert same(weights(tmp_path / "with"), weights(tmp_path / "without"))
    assert not same(weights(tmp_path / "far"), weights(tmp_path / "without"))
    assert [f"1 of the {len(ASKED) + 1} training" in words for words in said if " of the " in words] == [True]
    with refused("no-data"):
        finetune(recipe_for("answer", base, run=quiet(steps=2)), tmp_path / "only", train=[lost])


def test_pooling_is_one_of_two() -> None:
    with refused("unknown-choice", names=r"model\.pooling .*'max'"):
        finetune_recipe({}, ["model.pooling=max"])


@pytest.mark.parametrize("share", [-0.1, 1.0])
def test_dropout_is_a_share(share: float) -> None:
    with refused("out-of-range", share):
        FinetuneModel(dropout=share)
    with refused("out-of-range", share):
        FinetuneModel(attention_dropout=share)


# ---------------------------------------------------------------------- passes and ranks


@pytest.mark.parametrize("name", CASES)
def test_a_step_in_several_passes_is_the_same_step(name: str, base: Path) -> None:
    """Losses are sums over all passes, divided once."""
    case = CASES[name]
    work = start(recipe_for(case.task, base, **case.parts), case.examples)
    whole = take(work)
    expected = {n: p.grad.clone() for n, p in work.module.named_parameters() if p.grad is not None}
    work.module.zero_grad()
    work.micro_tokens = 12
    assert len(work._step(work.samples, Ranks()).micros) > 1
    assert take(work) == pytest.approx(whole, abs=1e-5)
    for n, p in work.module.named_parameters():
        assert p.grad is not None
        assert torch.allclose(p.grad, expected[n], atol=1e-5, rtol=1e-4), n


def test_passes_hold_no_more_tokens_than_allowed(base: Path) -> None:
    work = start(recipe_for("classify", base), MANY)
    work.micro_tokens = 30
    step = work._step(work.samples, Ranks())
    assert all(micro.tokens <= 30 or micro.batch.size == 1 for micro in step.micros)
    assert sum(micro.tokens for micro in step.micros) == step.tokens == sum(map(len, work.samples))
    assert len(step.micros) < len(MANY)


@pytest.mark.parametrize("name", CASES)
@pytest.mark.parametrize("size", [2, 7])
def test_ranks_share_a_step(name: str, size: int, base: Path) -> None:
    """Together the same samples and counts, equally many passes each, and in sum the same gradients."""
    case = CASES[name]
    work = start(recipe_for(case.task, base, **case.parts), case.examples)
    work.micro_tokens = 20
    alone = work._step(work.samples, Ranks())
    total = take(work)
    expected = {n: p.grad.clone() for n, p in work.module.named_parameters() if p.grad is not None}
    work.module.zero_grad()
    steps = [work._step(work.samples, Ranks(rank, size)) for rank in range(size)]
    assert len({len(step.micros) for step in steps}) == 1
    assert {(step.tokens, step.sequences) for step in steps} == {(alone.tokens, alone.sequences)}
    count = sum(step.counts["loss"] for step in steps)
    assert count == pytest.approx(alone.counts["loss"])
    counted = [m for step in steps for m in step.micros if float(m.targets["counts"])]
    assert sum(micro.tokens for micro in counted) == alone.tokens
    loss = torch.stack([work.module(m.batch, m.targets).sum() / count for step in steps for m in step.micros]).sum()
    loss.backward()
    assert float(loss.detach()) == pytest.approx(total, abs=1e-5)
    for n, p in work.module.named_parameters():
        assert p.grad is not None
        assert torch.allclose(p.grad, expected[n], atol=1e-5, rtol=1e-4), n


# ---------------------------------------------------------------------- frozen weights and rates

FREEZE: dict[str | int, tuple[str, ...]] = {
    "none": (),
    "embeddings": ("encoder.embeddings.",),
    1: ("encoder.embeddings.", "encoder.blocks.0."),
    2: ("encoder.",),
    "encoder": ("encoder.",),
}


@pytest.mark.parametrize("what", FREEZE)
def test_what_is_frozen_stays_bit_for_bit(what: Any, base: Path, tmp_path: Path) -> None:
    """And everything else moves; decay does not creep in."""
    plan = replace(
        recipe_for("classify", base),
        model=FinetuneModel(str(base), what),
        optim=OptimSettings(lr=1e-2, weight_decay=0.5),
    )
    finetune(plan, tmp_path / "run", train=MANY, dev=[])
    before, after = load(base).state_dict(), weights(tmp_path / "run")
    for name in after:
        if name.startswith("heads.sequence"):
            continue
        frozen = name.startswith(FREEZE[what]) if FREEZE[what] else False
        assert torch.equal(before[name], after[name]) == frozen, name


def test_more_layers_than_there_are_cannot_be_frozen(base: Path, tmp_path: Path) -> None:
    plan = replace(recipe_for("classify", base), model=FinetuneModel(str(base), 3))
    with refused("out-of-range", 3):
        finetune(plan, tmp_path / "run", train=MANY, dev=[])


@pytest.mark.parametrize(("head_lr", "decay"), [(0.0, 1.0), (0.01, 1.0), (0.0, 0.5), (0.02, 0.9)])
def test_rates_fall_from_the_head_to_the_embeddings(head_lr: float, decay: float, base: Path) -> None:
    """lr · decay for the top layer, once more for each below, the embeddings last; the head has its own."""
    work = start(recipe_for("classify", base), SINGLE)
    named = dict(work.module.named_parameters())
    settings = OptimSettings(lr=1e-3, head_lr=head_lr, layer_decay=decay)
    (optimizer,) = make_optimizers(named, settings)
    rates = {id(p): group["peak"] for group in optimizer.param_groups for p in group["params"]}
    assert len(rates) == len(named)
    expected = {
        "model.encoder.embeddings.": 1e-3 * decay**3,
        "model.encoder.blocks.0.": 1e-3 * decay**2,
        "model.encoder.blocks.1.": 1e-3 * decay,
        "model.heads.": head_lr or 1e-3,
    }
    for name, parameter in named.items():
        (wanted,) = [rate for beginning, rate in expected.items() if name.startswith(beginning)]
        assert rates[id(parameter)] == pytest.approx(wanted, rel=1e-12), name


def test_the_head_moves_by_its_own_rate(base: Path, tmp_path: Path) -> None:
    """Adam's first steps are as long as the rate: seen in the weights that a run leaves."""
    plan = recipe_for(
        "classify", base, optim=OptimSettings(lr=1e-6, head_lr=1e-2, warmup=0, weight_decay=0, schedule="constant")
    )
    finetune(replace(plan, run=quiet(steps=1, batch_size=99)), tmp_path / "run", train=MANY, dev=[])
    before, after = load(base).state_dict(), weights(tmp_path / "run")
    moved = {name: float((after[name] - before[name]).abs().max()) for name in before if name in after}
    assert moved["heads.pooler.dense.weight"] == pytest.approx(1e-2, rel=0.05)
    assert moved["encoder.blocks.1.attention.out.weight"] < 1e-5


# ---------------------------------------------------------------------- the best model


@pytest.mark.parametrize(("metric", "best"), [("accuracy", 2), ("brier", 3)])
def test_the_published_model_is_the_best_by_the_metric(
    metric: str, best: int, base: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Most scores are the better the higher; errors the lower. Checkpoints between are gone, the best is not."""
    scripted(monkeypatch, [0.5, 0.9, 0.1, 0.9, 0.4, 0.3], metric)
    plan = recipe_for(
        "classify",
        base,
        settings=ClassifySettings(metric=metric),
        run=quiet(epochs=6.0, batch_size=12, keep=1, keep_state=True),
    )
    found = finetune(plan, tmp_path / "run", train=MANY, dev=SINGLE)
    assert (found.metric, found.best_step) == (metric, best)
    assert found.scores[metric] == {"accuracy": 0.9, "brier": 0.1}[metric]
    kept = load(tmp_path / f"run/checkpoints/step-{best:08}/model").state_dict()
    assert same(kept, weights(tmp_path / "run"))
    assert not same(load(tmp_path / "run/checkpoints/step-00000006/model").state_dict(), weights(tmp_path / "run"))


def test_patience_stops_early(base: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    scripted(monkeypatch, [0.5, 0.7, 0.6, 0.7, 0.7, 0.99, 0.99])  # as good is not better; the last is looked at twice
    plan = recipe_for("classify", base, run=quiet(epochs=7.0, batch_size=12, patience=2, keep_state=True))
    found = finetune(plan, tmp_path / "run", train=MANY, dev=SINGLE)
    assert (found.complete, found.steps, found.best_step) == (True, 4, 2)
    kept = load(tmp_path / "run/checkpoints/step-00000002/model").state_dict()
    assert same(kept, weights(tmp_path / "run"))


def test_without_development_data_the_last_model_is_published(base: Path, tmp_path: Path) -> None:
    found = finetune(long_run(base, steps=4, keep_state=True), tmp_path / "run", train=MANY, dev=[])
    assert (found.best_step, found.scores) == (None, {})
    assert same(load(tmp_path / "run/checkpoints/step-00000004/model").state_dict(), weights(tmp_path / "run"))


EVALUATED: dict[str, tuple[str, dict[str, Any]]] = {
    "single": ("classify", {}),
    "multi": ("classify", {}),
    "regression": ("classify", {"settings": ClassifySettings(kind="regression")}),
    "score": ("score", {}),
    "tag": ("tag", {}),
    "answer": ("answer", {}),
    "choose": ("choose", {}),
    "short answers": ("answer", {"settings": AnswerSettings(max_answer_length=1)}),
}


@pytest.mark.parametrize("name", EVALUATED)
def test_the_scores_of_a_run_are_those_of_the_published_model(name: str, base: Path, tmp_path: Path) -> None:
    """Evaluated again from its folder, with nothing but the folder."""
    task, parts = EVALUATED[name]
    data = written(tmp_path, "answer" if name == "short answers" else name)
    plan = recipe_for(task, base, run=quiet(steps=3), data=FinetuneData((str(data),), (str(data),)), **parts)
    found = finetune(plan, tmp_path / "run")
    again = evaluate([str(data)], found.folder).scores
    assert found.scores.keys() <= again.keys()
    for score, value in found.scores.items():
        assert again[score] == pytest.approx(value, abs=1e-5, nan_ok=True), score


def test_every_score_that_can_be_drawn_again_has_its_interval(base: Path, tmp_path: Path) -> None:
    case = CASES["single"]
    done = finetune(recipe_for(case.task, base), tmp_path / "run", train=case.examples, dev=[])
    found = evaluate([str(written(tmp_path, "single"))], Predictor.load(done.folder))
    assert found.intervals[found.metric] == found.interval
    assert {"accuracy", "macro_f1", "matthews"} <= set(found.intervals) <= set(found.scores)
    for name, (low, high) in found.intervals.items():
        assert low <= found.scores[name] + 1e-9
        assert found.scores[name] <= high + 1e-9


def test_seeds_are_summed_up(base: Path, tmp_path: Path) -> None:
    data = written(tmp_path, "single")
    plan = recipe_for("classify", base, run=quiet(steps=2), data=FinetuneData((str(data),), (str(data),)))
    plan = replace(plan, settings=ClassifySettings(metric="negative_log_likelihood"))
    found = finetune_seeds(plan, tmp_path / "out", [5, 6, 7])
    values = [run.scores["negative_log_likelihood"] for run in found.runs]
    assert len(set(values)) == 3
    summed = found.scores["negative_log_likelihood"]
    assert summed.mean == pytest.approx(statistics.mean(values))
    assert summed.sd == pytest.approx(statistics.stdev(values))
    assert summed.n == 3
    best = values.index(min(values))
    assert found.best == [5, 6, 7][best]
    assert same(load(found.folder).state_dict(), weights(tmp_path / f"out/seed-{found.best}"))
    for seed, run in zip([5, 6, 7], found.runs, strict=True):
        alone = finetune(replace(plan, run=replace(plan.run, seed=seed)), tmp_path / f"alone-{seed}")
        assert alone.scores == run.scores


# ---------------------------------------------------------------------- what the data say


def test_a_model_shorter_than_the_usual_window_learns_to_answer(base: Path, tmp_path: Path) -> None:
    """384 tokens are the default; this model reads 48."""
    plan = recipe_for("answer", base, window=WindowSettings(), run=quiet(steps=1))
    assert finetune(plan, tmp_path / "run", train=ASKED, dev=[]).complete


def test_silence_is_learned_of_only_where_the_data_have_it(base: Path, tmp_path: Path) -> None:
    """And its margin is the one that scored best on the development data."""
    for name, train in {"always": ASKED, "sometimes": [*ASKED, NO_ANSWER]}.items():
        finetune(recipe_for("answer", base), tmp_path / name, train=train, dev=train)
        said = json.loads((tmp_path / name / "model/config.json").read_text())["bothways"]["thresholds"]
        assert ("null" in said) == (name == "sometimes")
    rows = metrics(tmp_path / "sometimes")
    best = max((row for row in rows if "valid" in row), key=lambda row: (row["valid"]["best_f1"], -row["step"]))
    assert said["null"] == pytest.approx(best["valid"]["best_f1_threshold"])


def test_grades_are_read_between_the_lowest_and_the_highest(base: Path, tmp_path: Path) -> None:
    found = finetune(recipe_for("score", base), tmp_path / "run", train=GRADES, dev=GRADES)
    said = json.loads((found.folder / "config.json").read_text())["bothways"]["range"]
    assert said == [-1.0, 3.0]
    assert all(0 <= one["score"] <= 1 for one in Predictor.load(found.folder)([e.texts for e in GRADES]))


def test_it_learns(tokenizer: Tokenizer, tmp_path: Path) -> None:
    """Cats are good, dogs are bad: from a fresh encoder, to the last row."""
    save(Model.new(ModelConfig(SMALL, ("pooler",)), tokenizer), tmp_path / "fresh")
    rows = [Text((f"the {kind} {verb} in {place}",), label) for kind, label in (("cat", "good"), ("dog", "bad"))
            for verb in ("runs", "sleeps", "walks") for place in ("paris", "the house")]  # fmt: skip
    plan = recipe_for(
        "classify", tmp_path / "fresh", optim=OptimSettings(lr=1e-2), run=quiet(steps=50, batch_size=12, save_every=60)
    )
    found: Finetuned = finetune(plan, tmp_path / "run", train=rows, dev=rows)
    assert found.scores["accuracy"] == 1.0
    assert [one["label"] for one in Predictor.load(found.folder)([row.texts for row in rows])] == [
        row.gold for row in rows
    ]


# ---------------------------------------------------------------------- bad data


@pytest.mark.parametrize(
    ("task", "train", "dev", "code", "value"),
    [
        ("classify", [], [], "no-data", None),
        ("classify", [Text(("a",)), Text(("b",))], [], "no-labels", 2),
        ("classify", [Text(("a",), "x"), Text(("b",), "x")], [], "one-label", "x"),
        ("classify", SINGLE, [Text(("a",), "new", "dev.tsv, line 7")], "unknown-label", "new"),
        ("score", [Text(("a",), 1.0, "t.tsv, line 1")], [], "wrong-text-count", "t.tsv, line 1"),
        ("tag", [Tagged("a", ((0, 1),))], [], "no-labels", 1),
        ("answer", [Question("1", "a", "b")], [], "no-labels", 1),
    ],
)
def test_bad_data_are_refused_before_training(
    task: str, train: list[Any], dev: list[Any], code: str, value: object, base: Path, tmp_path: Path
) -> None:
    with refused(code, value):
        finetune(recipe_for(task, base), tmp_path / "run", train=train, dev=dev)
    assert not (tmp_path / "run/metrics.jsonl").exists()


def test_a_score_that_is_no_number_is_refused(base: Path, tmp_path: Path) -> None:
    rows = [Text(("a", "b"), "often"), Text(("a", "b"), 1.0)]
    with refused("not-a-number", names="'often'"):
        finetune(recipe_for("score", base), tmp_path / "run", train=rows, dev=[])


def test_rows_with_several_labels_and_with_one(base: Path, tmp_path: Path) -> None:
    rows = [Text(("a",), ("x", "y")), Text(("b",), "x")]
    assert finetune(recipe_for("classify", base, run=quiet(steps=1)), tmp_path / "run", train=rows, dev=[]).complete


def test_rows_without_a_label_are_left_out(base: Path, tmp_path: Path) -> None:
    found = finetune(
        long_run(base, steps=1), tmp_path / "run", train=[*SINGLE, Text(("no label",))], dev=[Text(("a",))]
    )
    assert found.examples == len(SINGLE)


def test_empty_texts_can_be_learned_from(base: Path, tmp_path: Path) -> None:
    rows = [Text(("",), "x"), Text(("the cat",), "y")]
    assert finetune(long_run(base, steps=1), tmp_path / "run", train=rows, dev=rows).complete
    tagged = [*TAGGED, Tagged("", (), ())]
    plan = recipe_for("tag", base, run=quiet(steps=1))
    assert finetune(plan, tmp_path / "tag", train=tagged, dev=tagged).complete
    asked = [*ASKED, Question("e", "", "", ())]
    plan = recipe_for("answer", base, run=quiet(steps=1))
    assert finetune(plan, tmp_path / "answer", train=asked, dev=asked).complete


@pytest.mark.parametrize(
    ("settings", "code", "value"),
    [
        ({"metric": "loveliness"}, "unknown-choice", "loveliness"),
        ({"class_weights": {"nobody": 2.0}}, "unknown-label", "nobody"),
        ({"metric": "spearman"}, "unknown-choice", "spearman"),
        ({"label_smoothing": 1.0}, "out-of-range", 1.0),
        ({"focal_gamma": -1.0}, "out-of-range", -1.0),
    ],
)
def test_settings_that_do_not_fit_are_refused(
    settings: dict[str, Any], code: str, value: object, base: Path, tmp_path: Path
) -> None:
    with refused(code, value):
        finetune(
            recipe_for("classify", base, settings=ClassifySettings(**settings)), tmp_path / "run", train=SINGLE, dev=[]
        )


def test_wrong_folders_to_start_from(tokenizer: Tokenizer, tmp_path: Path) -> None:
    with refused("no-folder"):
        finetune(recipe_for("classify", tmp_path / "nowhere"), tmp_path / "run", train=SINGLE, dev=[])
    with refused("no-model"):
        finetune(FinetuneRecipe(), tmp_path / "run", train=SINGLE, dev=[])
    save(Model.new(ModelConfig(SMALL, ("pooler",))), tmp_path / "mute")
    with refused("no-tokenizer"):
        finetune(recipe_for("classify", tmp_path / "mute"), tmp_path / "run", train=SINGLE, dev=[])


@pytest.mark.parametrize("has_dev", [True, False])
def test_a_run_that_diverges_is_stopped_and_nothing_is_published(has_dev: bool, base: Path, tmp_path: Path) -> None:
    case = CASES["single"]
    plan = recipe_for(case.task, base, run=quiet(steps=6), optim=OptimSettings(lr=1e30))
    with pytest.raises(BothwaysError, match="diverged"):
        finetune(plan, tmp_path, train=case.examples, dev=case.examples if has_dev else [])
    assert not (tmp_path / "model").exists()


def test_a_run_that_has_diverged_is_not_saved_when_it_is_stopped(base: Path, tmp_path: Path) -> None:
    case = CASES["single"]
    plan = recipe_for(
        case.task, base, run=quiet(steps=40, evaluate_every=100, save_every=100), optim=OptimSettings(lr=1e30)
    )

    def stop(event: Event) -> None:
        if isinstance(event, Stepped) and event.step == 8:
            os.kill(os.getpid(), signal.SIGTERM)

    with refused("diverged"):
        finetune(plan, tmp_path, train=MANY, dev=[], listen=[stop])
    assert not list(tmp_path.glob("checkpoints/step-*"))
