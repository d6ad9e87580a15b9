"""Distillation: the distances against torch's own, a student of a teacher in pretraining and in every task."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from bothways.errors import BothwaysError
from bothways.model.batch import Batch
from bothways.model.checkpoint import save
from bothways.model.config import Learned, ModelConfig
from bothways.model.families import FAMILIES
from bothways.model.load import load
from bothways.model.model import Model, spread
from bothways.pretraining.pretrain import pretrain
from bothways.pretraining.recipe import PretrainRecipe, read_recipe
from bothways.pretraining.trainable import Pretraining
from bothways.tasks.finetune import finetune
from bothways.tasks.losses import binary_imitation, grouped_imitation
from bothways.tasks.recipe import FinetuneModel
from bothways.tasks.registry import plan_task
from bothways.tasks.trainable import FineTuning
from bothways.text.tokenizer import Tokenizer
from bothways.train.distill import DistillSettings, Teacher, cosine_distance, relation_distance
from bothways.train.ranks import Ranks
from bothways.train.soft_targets import soft_distance
from helpers import TINY, make_loud, refused
from helpers.runs import calm, losses, recipe, run_until, work_of
from helpers.tasks import CASES, quiet, recipe_for, start

LENGTHS = (7, 2, 5)


def drawn(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


# ---------------------------------------------------------------------- distances


@pytest.mark.parametrize("temperature", [1.0, 2.0, 5.0])
def test_guesses_are_compared_as_torch_does(temperature: float) -> None:
    own, taught = drawn(6, 9), drawn(6, 9, seed=1)
    judge = nn.KLDivLoss(reduction="none", log_target=True)
    expected = judge((own / temperature).log_softmax(-1), (taught / temperature).log_softmax(-1)).sum(-1)
    assert torch.allclose(soft_distance(own, taught, temperature), expected * temperature**2, atol=1e-6)


def test_states_are_compared_as_torch_does() -> None:
    own, taught = drawn(6, 9), drawn(6, 9, seed=1)
    expected = nn.CosineEmbeddingLoss(reduction="none")(own, taught, torch.ones(6))
    assert torch.allclose(cosine_distance(own, taught), expected, atol=1e-6)


def test_guesses_in_groups_and_of_yes_or_no_are_compared_as_torch_does() -> None:
    """Spans and choices are guesses within a group; labels that may be several are each a yes or a no."""
    own, taught, judge = drawn(9), drawn(9, seed=1), nn.KLDivLoss(reduction="sum", log_target=True)
    owner = torch.tensor([0] * 4 + [1] * 5)
    expected = sum(
        9.0 * judge((own[owner == g] / 3).log_softmax(-1), (taught[owner == g] / 3).log_softmax(-1)) for g in (0, 1)
    )
    assert torch.allclose(grouped_imitation(own, taught, owner, 2, 3.0), torch.as_tensor(expected), atol=1e-5)
    two, both = (torch.stack([x / 3, torch.zeros(9)], -1).log_softmax(-1) for x in (own, taught))
    weight = torch.linspace(0, 2, 9)
    each = nn.KLDivLoss(reduction="none", log_target=True)(two, both).sum(-1)
    assert torch.allclose(binary_imitation(own, taught, weight, 3.0), 9 * (each * weight).sum(), atol=1e-5)


def test_relations_are_those_of_each_sequence_by_itself() -> None:
    """Written out for one head and one sequence at a time; widths differ, and one token does not count."""
    batch = Batch.pack([[1] * n for n in LENGTHS])
    own = tuple(drawn(sum(LENGTHS), 12, seed=i) for i in range(3))
    taught = tuple(drawn(sum(LENGTHS), 8, seed=10 + i) for i in range(3))
    counts = torch.ones(sum(LENGTHS))
    counts[3] = 0
    expected = torch.zeros(())
    for mine, other in zip(own, taught, strict=True):
        parts = zip(mine.split(LENGTHS), other.split(LENGTHS), counts.split(LENGTHS), strict=True)
        for x, y, count in parts:
            for a, b in zip(x.chunk(2, -1), y.chunk(2, -1), strict=True):
                here, there = (v @ v.T / v.shape[-1] ** 0.5 for v in (a, b))
                each = F.kl_div(here.log_softmax(-1), there.log_softmax(-1), reduction="none", log_target=True).sum(-1)
                expected = expected + (each * count).sum()
    found = relation_distance(own, taught, batch, 2, counts)
    assert torch.allclose(found, expected / 2 / 3, atol=1e-5)


# ---------------------------------------------------------------------- fewer layers


def test_layers_are_spread_as_distilbert_spread_them() -> None:
    assert spread(12, 6) == [1, 3, 5, 8, 10, 12]
    assert spread(6, 3) == [1, 3, 6]
    assert (spread(4, 4), spread(4, 1)) == ([1, 2, 3, 4], [1])


@pytest.mark.parametrize("family", FAMILIES)
def test_a_model_of_some_layers_is_these_layers(family: str, tmp_path: Path) -> None:
    """Each on top of the other, whatever is beside them; and a folder like any other."""
    shape = replace(TINY, width=24, ffn_width=48, layers=4, dropout=0.0, attention_dropout=0.0)
    whole = Model.new(ModelConfig(FAMILIES[family].fresh(shape), (), family=family)).eval()
    make_loud(whole)
    small = whole.with_layers([1, 2, 4])
    assert small.config.encoder.layers == 3
    batch = Batch.pack([[5, 6, 7, 8], [9, 10]])
    with torch.no_grad():
        encoder = whole.encoder
        x, made = encoder._embed(batch)
        embedded = x
        for layer in (1, 2, 4):
            x = encoder._apply_layer(layer, x, made, embedded)
        assert torch.equal(small.encoder(batch), x)
        save(small, tmp_path / "small")
        assert torch.equal(load(tmp_path / "small").encoder(batch), x)


def test_layers_that_are_not_there_are_not_taken() -> None:
    model = Model.new(ModelConfig(TINY))
    for wrong in ([], [0, 1], [2, 1], [1, 1], [1, 9], 9):
        with pytest.raises(BothwaysError):
            model.with_layers(wrong)
    modern = Model.new(ModelConfig(FAMILIES["modernbert"].fresh(TINY), family="modernbert"))
    with refused("missing-first-layer"):
        modern.with_layers([2])


# ---------------------------------------------------------------------- in pretraining


def taught(packed: Path, teacher: Path, **parts: Any) -> PretrainRecipe:
    plan = recipe(packed, steps=4, save_every=2)
    settings = DistillSettings(**{"teacher": str(teacher), "relations": 1.0, **parts})
    shape = replace(plan.model, init=str(teacher), keep_layers=1)
    return replace(plan, model=shape, settings={"distill": settings}, objectives=("mlm",))


@pytest.fixture
def teacher(packed: Path, tmp_path: Path) -> Path:
    work = work_of(calm(recipe(packed, steps=1)))
    save(work.module.model, tmp_path / "teacher")
    return tmp_path / "teacher"


def evaluated(work: Pretraining, static_shapes: bool) -> dict[str, float]:
    with torch.no_grad():
        return work.evaluate(lambda m: work.module.eval()(m.batch, m.targets), 0, Ranks(), static_shapes, False)


@pytest.mark.parametrize("over", ["asked", "all"])
def test_a_student_that_is_its_teacher_has_nothing_to_learn(over: str, packed: Path, teacher: Path) -> None:
    plan = taught(packed, teacher, over=over)
    work = work_of(replace(plan, model=replace(plan.model, keep_layers=0)))
    student = work.module.model
    student.load_state_dict(load(teacher).state_dict())
    scores = evaluated(work, static_shapes=True)
    for name in ("soft_loss", "cosine_loss", "relations_loss"):
        assert scores[name] == pytest.approx(0, abs=1e-5)
    assert scores["soft_accuracy"] == pytest.approx(1)
    assert "cosine_accuracy" not in scores
    make_loud(student, seed=9)
    scores = evaluated(work, static_shapes=False)
    assert min(scores[name] for name in ("soft_loss", "cosine_loss", "relations_loss")) > 0.01
    expected = 2 * scores["mlm_loss"] + 5 * scores["soft_loss"] + scores["cosine_loss"] + scores["relations_loss"]
    assert scores["loss"] == pytest.approx(expected)


def test_fillers_teach_nothing(packed: Path, teacher: Path) -> None:
    """Batches of one shape, padded with sequences that are none, give the losses of those without."""
    work = work_of(taught(packed, teacher))
    found = [evaluated(work, static_shapes) for static_shapes in (False, True)]
    for name, value in found[0].items():
        assert found[1][name] == pytest.approx(value, rel=1e-4), name


def test_a_taught_run_goes_on_bit_for_bit_and_leaves_its_teacher_alone(
    packed: Path, teacher: Path, tmp_path: Path
) -> None:
    plan, before = taught(packed, teacher), (teacher / "model.safetensors").read_bytes()
    plan = replace(plan, run=replace(plan.run, keep_state=True))
    whole = pretrain(plan, tmp_path / "whole")
    run_until(plan, tmp_path / "parts", step=3)
    pretrain(plan, tmp_path / "parts")
    assert losses(tmp_path / "parts") == losses(tmp_path / "whole")
    assert load(whole.folder).config.encoder.layers == 1
    assert (teacher / "model.safetensors").read_bytes() == before
    state = sum(f.stat().st_size for f in (tmp_path / "whole/checkpoints/step-00000004").rglob("*.safetensors"))
    assert 0 < state < 6 * (whole.folder / "model.safetensors").stat().st_size  # no teacher in it


def test_a_student_learns_what_its_teacher_says(packed: Path, teacher: Path, tmp_path: Path) -> None:
    plan = taught(packed, teacher, hard=0.0)
    plan = replace(plan, run=replace(plan.run, steps=40, save_every=0), optim=replace(plan.optim, lr=3e-3))
    done = pretrain(calm(plan), tmp_path / "run")
    for name in ("soft_loss", "cosine_loss", "relations_loss"):
        assert done.after[name] < 0.9 * done.before[name]


# ---------------------------------------------------------------------- in tasks


def with_teacher(name: str, base: Path, **parts: Any) -> tuple[FineTuning, Teacher]:
    """The work of a student whose teacher has another seed."""
    case = CASES[name]
    plan_ = recipe_for(case.task, base, **case.parts)
    teacher, work = start(plan_, case.examples, seed=5), start(plan_, case.examples)
    settings = DistillSettings(teacher="there", relations=1.0, **parts)
    found = Teacher(teacher.module.model, settings, work.module.model)
    work.module.teacher = found
    work.losses = {"hard": settings.hard, **settings.weights}
    return work, found


def step_losses(work: FineTuning) -> dict[str, float]:
    step = work._step(work.samples, Ranks())
    sums = sum(work.module.train()(m.batch, m.targets) for m in step.micros)
    assert isinstance(sums, Tensor)
    return {name: float(value) / step.counts[name] for name, value in zip(work.losses, sums.detach(), strict=True)}


@pytest.mark.parametrize("name", CASES)
def test_a_task_is_imitated(name: str, base: Path) -> None:
    """Nothing is left to learn when the two are one; else the same whatever the passes, and a step makes it less."""
    work, teacher = with_teacher(name, base)
    found = step_losses(work)
    assert min(found.values()) > 0
    whole = work._step(work.samples, Ranks()).micros[0].batch
    with torch.no_grad():
        apart = cosine_distance(work.module.model.encoder(whole), teacher.model.encoder(whole))
    assert found["cosine"] == pytest.approx(float(apart.mean()), rel=1e-4)  # of tokens, not of examples
    work.micro_tokens = 12
    assert step_losses(work) == pytest.approx(found, rel=1e-4)
    work.micro_tokens = 10**6
    optimizer = torch.optim.SGD(work.module.model.parameters(), lr=1e-4)
    step = work._step(work.samples, Ranks())
    (work.module(step.micros[0].batch, step.micros[0].targets)[1] / step.counts["soft"]).backward()
    optimizer.step()
    assert step_losses(work)["soft"] < found["soft"]
    assert all(p.grad is None for p in teacher.model.parameters())
    work.module.model.load_state_dict(teacher.model.state_dict())
    same = step_losses(work)
    assert all(same[name] == pytest.approx(0, abs=1e-4) for name in ("soft", "cosine", "relations"))


def test_of_single_labels_the_imitation_is_hintons(base: Path) -> None:
    work, teacher = with_teacher("single", base, cosine=0.0, temperature=3.0)
    step = work._step(work.samples, Ranks())
    batch = step.micros[0].batch
    logits = [m.logits("sequence", m.encoder(batch), batch) / 3 for m in (work.module.model, teacher.model)]
    expected = F.kl_div(logits[0].log_softmax(-1), logits[1].softmax(-1), reduction="batchmean") * 9
    assert step_losses(work)["soft"] == pytest.approx(float(expected.detach()), rel=1e-4)


def test_a_smaller_model_is_taught_from_a_folder(base: Path, tmp_path: Path) -> None:
    """The student begins as the teacher, fewer layers of it; the best is a folder, and a second call goes on."""
    case = CASES["single"]
    first = finetune(recipe_for("classify", base), tmp_path / "teacher", train=case.examples, dev=case.examples)
    plan_ = recipe_for("classify", Path())
    plan_ = replace(
        plan_,
        model=FinetuneModel(keep_layers=1),
        distill=DistillSettings(str(first.folder)),
        run=quiet(steps=3, save_every=2),
    )
    assert plan_.model.init == str(first.folder)
    done = finetune(plan_, tmp_path / "student", train=case.examples, dev=case.examples)
    assert load(done.folder).config.encoder.layers == 1
    assert done.labels == first.labels
    assert finetune(plan_, tmp_path / "student", train=case.examples, dev=case.examples).steps == 3


def test_a_teacher_draws_no_dropout_however_its_pupil_trains(base: Path) -> None:
    work, teacher = with_teacher("single", base)
    shaky = replace(teacher.model.config, encoder=replace(teacher.model.config.encoder, dropout=0.5))
    work.module.teacher = Teacher(Model.new(shaky, teacher.model.tokenizer), teacher.settings, work.module.model)
    work.module.train()
    batch = work._step(work.samples, Ranks()).micros[0].batch
    first, again = (work.module.teacher.outputs(batch).states for _ in range(2))
    assert torch.equal(first, again)


# ---------------------------------------------------------------------- what does not go together


@pytest.mark.parametrize(
    ("settings", "code"),
    [
        ({"temperature": 0.0}, "out-of-range"),
        ({"soft": -1.0}, "out-of-range"),
        ({"over": "some"}, "unknown-choice"),
        ({"soft": 0.0, "cosine": 0.0}, "nothing-to-learn"),
        ({"relation_layer": -1}, "out-of-range"),
        ({"relation_heads": -1}, "out-of-range"),
    ],
)
def test_settings_that_mean_nothing_are_refused(settings: dict[str, Any], code: str) -> None:
    with refused(code):
        DistillSettings(teacher="there", **settings)


@pytest.mark.parametrize(
    ("settings", "shape", "code", "value"),
    [
        ({}, {"width": 24}, "shape-mismatch", (32, 24)),
        ({}, {"positions": Learned(16)}, "too-long", (48, 16)),
        ({"relation_layer": 9, "relations": 1.0}, {}, "no-such-layer", 9),
        ({"relation_heads": 7, "relations": 1.0}, {}, "shape-mismatch", (32, 32)),
    ],
)
def test_a_teacher_that_does_not_fit_is_refused(
    settings: dict[str, Any], shape: dict[str, Any], code: str, value: object, tokenizer: Tokenizer
) -> None:
    student = Model.new(ModelConfig(replace(TINY, layers=2), ("masked",)), tokenizer)
    other = Model.new(ModelConfig(replace(TINY, layers=2, **shape), ("masked",)), tokenizer)
    with refused(code, value):
        Teacher(other, DistillSettings("there", **settings), student)
    without = Model.new(ModelConfig(replace(TINY, layers=2), ("masked",)))
    with refused("other-tokenizer", "there"):
        Teacher(without, DistillSettings("there"), student)


def test_a_teacher_of_other_labels_is_refused(base: Path, tmp_path: Path) -> None:
    case = CASES["single"]
    first = finetune(recipe_for("classify", base), tmp_path / "teacher", train=case.examples, dev=[])
    plan_ = replace(recipe_for("classify", base), distill=DistillSettings(str(first.folder)))
    other = [replace(example, gold="yes" if i else "no") for i, example in enumerate(case.examples)]
    assert plan_task("classify", plan_.settings, plan_.window, other)[1] == ("no", "yes")
    with refused("other-task"):
        finetune(plan_, tmp_path / "student", train=other, dev=[])


def test_a_teacher_does_not_go_with_rtd() -> None:
    with refused("bad-objectives", ("distill", "rtd")):
        read_recipe("electra-small", ["distill.teacher=there"])
