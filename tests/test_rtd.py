"""Replaced token detection: the losses as transformers' two ELECTRAs give them, the draws, what is shared, what is saved."""

import itertools
import json
import math
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal

import numpy as np
import pytest
import torch
import transformers
from torch import Tensor
from torch.nn import functional as F
from typer.testing import CliRunner

from bothways.cli import app
from bothways.hash_rng import mix, uniform
from bothways.model.batch import Batch
from bothways.model.checkpoint import save
from bothways.model.encoder import Activations
from bothways.model.load import load
from bothways.model.model import Model
from bothways.pretraining.objective import BatchBuilder, Capacity
from bothways.pretraining.objectives.mlm import MaskedLM, MaskedLMSettings
from bothways.pretraining.objectives.rtd import _HIDE, ReplacedTokenDetection, ReplacedTokenSettings
from bothways.pretraining.pretrain import _model, pretrain
from bothways.pretraining.recipe import PretrainRecipe, read_recipe
from bothways.pretraining.trainable import Pretraining, PretrainingModule
from bothways.text.tokenizer import Tokenizer
from bothways.train.protocol import MicroBatch
from bothways.train.ranks import Ranks
from helpers import make_loud, refused
from helpers.runs import calm, make_rows, recipe, run_until, vocabulary, work_of

LIMIT = 1e-5


def electra(packed: Path, embedding: int = 16, **run: Any) -> PretrainRecipe:
    """ELECTRA's recipe for a small model: 85 % of the asked tokens masked, the rest as they are."""
    plan = recipe(packed, **run)
    return replace(
        plan,
        objectives=("mlm", "rtd"),
        model=replace(plan.model, family="electra", embedding_width=embedding),
        settings={"mlm": MaskedLMSettings(mask=0.85, random=0.0, rate=0.3), "rtd": ReplacedTokenSettings(width=0.5)},
    )


def generator(module: PretrainingModule) -> Model:
    found = module.parts["rtd"]
    assert isinstance(found, Model)
    return found


def detector(**settings: Any) -> ReplacedTokenDetection:
    return ReplacedTokenDetection(ReplacedTokenSettings(**settings), MaskedLM(MaskedLMSettings(), vocabulary()))


def micro_of(work: Pretraining, static_shapes: bool = False) -> tuple[MicroBatch, dict[str, float]]:
    step = next(iter(work.feed(0, 0, Ranks(), static_shapes)))
    return step.micros[0], dict(step.counts)


def as_grid(batch: Batch, ids: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Padded ids, segments and mask."""
    rows = [ids.split(batch.lengths.tolist()), batch.segments.split(batch.lengths.tolist())]
    padded = [torch.nn.utils.rnn.pad_sequence(list(row), batch_first=True) for row in rows]
    mask = torch.arange(padded[0].shape[1]) < batch.lengths[:, None]
    return padded[0], padded[1], mask


def test_the_losses_are_those_of_their_two_electras(packed: Path, tmp_path: Path) -> None:
    """The generator's cross entropy at asked places; over all but specials, the detector's on what was guessed."""
    work = work_of(calm(electra(packed)))
    module = work.module.eval()
    micro, counts = micro_of(work)
    batch, targets = micro.batch, micro.targets
    with torch.no_grad():
        mlm, rtd = module(batch, targets)[:2].tolist()
        guesses = generator(module).masked(generator(module).encoder(batch)[targets["predicted"]])
        objective = work.objectives["rtd"]
        assert isinstance(objective, ReplacedTokenDetection)
        after, is_replaced = objective.replace(batch, guesses, targets, is_training=False)
    weights = {name: p.detach() for name, p in module.named_parameters()}
    work.save(weights, tmp_path)
    filler = transformers.ElectraForMaskedLM.from_pretrained(tmp_path / "generator").eval()
    detector = transformers.ElectraForPreTraining.from_pretrained(tmp_path / "model").eval()
    with torch.no_grad():
        ids, kinds, mask = as_grid(batch, batch.ids)
        logits = filler(ids, token_type_ids=kinds, attention_mask=mask).logits[mask][targets["predicted"]]
        assert mlm == pytest.approx(float(F.cross_entropy(logits, targets["labels"], reduction="sum")), rel=LIMIT)
        ids, kinds, mask = as_grid(batch, after.ids)
        found = detector(ids, token_type_ids=kinds, attention_mask=mask).logits[mask]
    original = batch.ids.clone()
    original[targets["predicted"]] = targets["labels"]
    tokenizer = work.tokenizer
    ordinary = torch.tensor([int(i) not in tokenizer.wordless_ids for i in original])
    expected = F.binary_cross_entropy_with_logits(found, (after.ids != original).float(), reduction="none")[ordinary]
    assert rtd == pytest.approx(float(expected.sum()), rel=LIMIT)
    assert counts["rtd"] == len(expected)
    assert torch.equal(is_replaced, after.ids != original)
    changed = torch.zeros_like(is_replaced)
    changed[targets["predicted"]] = True
    assert torch.equal(after.ids[~changed], batch.ids[~changed])


def test_fillers_change_nothing(packed: Path) -> None:
    """As the compiler wants batches: the same losses, and the same counts."""
    work = work_of(calm(electra(packed)))
    work.module.eval()
    found = []
    for static_shapes in (False, True):
        micro, counts = micro_of(work, static_shapes)
        with torch.no_grad():
            found.append((work.module(micro.batch, micro.targets)[0].item(), counts))
    assert found[0][0] == pytest.approx(found[1][0], rel=LIMIT)
    assert found[0][1] == found[1][1]
    micro, counts = micro_of(work, static_shapes=True)
    objective = work.objectives["rtd"]
    assert isinstance(objective, ReplacedTokenDetection)
    guesses = torch.zeros(len(micro.targets["predicted"]), work.tokenizer.size)
    guesses[:, 7] = 1000.0
    after, is_replaced = objective.replace(micro.batch, guesses, micro.targets, is_training=True)
    assert int((after.ids != micro.batch.ids).sum()) <= counts["mlm"]
    assert after.ids[0] == micro.batch.ids[0]
    assert int(micro.targets["counts_as_judged"].sum()) == counts["rtd"]
    assert not is_replaced[micro.tokens :].any()


@pytest.mark.parametrize("temperature", [1.0, 0.5])
def test_guesses_are_drawn_from_the_softmax(temperature: float) -> None:
    """100,000 draws: every share is within four standard deviations, also where it is a thousandth."""
    rows = 100_000
    logits = torch.tensor([2.0, 0.0, 1.0, -4.0, 0.5])
    batch = Batch.pack([[0] * rows])
    targets = {"predicted": torch.arange(rows), "labels": torch.full((rows,), 4)}
    objective = detector(temperature=temperature)
    torch.manual_seed(0)
    after, is_replaced = objective.replace(batch, logits.expand(rows, -1), targets, is_training=True)
    again, _ = objective.replace(batch, logits.expand(rows, -1), targets, is_training=True)
    assert not torch.equal(after.ids, again.ids)
    chances = (logits / temperature).softmax(0)
    shares = torch.bincount(after.ids, minlength=5) / rows
    bounds = 4 * (chances * (1 - chances) / rows).sqrt()
    assert ((shares - chances).abs() < bounds).all()
    assert torch.equal(is_replaced, after.ids != 4)  # a guess that is right counts as original


def test_draws_of_neighbours_do_not_depend_on_each_other() -> None:
    rows = 50_000
    batch = Batch.pack([[0] * rows])
    targets = {"predicted": torch.arange(rows), "labels": torch.full((rows,), 0)}
    torch.manual_seed(1)
    after, _ = detector().replace(batch, torch.zeros(rows, 2), targets, is_training=True)
    one, next_one = after.ids[:-1].double(), after.ids[1:].double()
    assert abs(np.corrcoef(one, next_one)[0, 1]) < 4 / math.sqrt(rows)


def test_no_gradient_goes_through_the_draw(packed: Path) -> None:
    """The detector's loss does not reach what is the generator's own; the shared table gets both."""
    work = work_of(calm(electra(packed)))
    module = work.module.train()
    micro, _ = micro_of(work)
    tables = []
    for weights in ((1.0, 0.0), (0.0, 1.0)):
        module.zero_grad()
        torch.manual_seed(0)
        (module(micro.batch, micro.targets) * torch.tensor(weights)).sum().backward()
        own = [p.grad is not None and bool(p.grad.abs().sum() > 0) for p in module.parts.parameters() if p not in shared(module)]  # fmt: skip
        assert all(own) if weights[0] else not any(own)
        table = module.model.encoder.embeddings.tokens.weight
        assert table.grad is not None
        tables.append(float(table.grad.abs().sum()))
    assert min(tables) > 0


def shared(module: PretrainingModule) -> set[torch.nn.Parameter]:
    return set(module.model.encoder.embeddings.parameters())


def test_embeddings_are_shared_or_not(packed: Path) -> None:
    plan = electra(packed, embedding=24)
    module = work_of(plan).module
    ours, theirs = module.model.encoder.embeddings, generator(module).encoder.embeddings
    for name in ("tokens", "segments", "positions", "norm"):
        assert getattr(ours, name) is getattr(theirs, name)
    assert theirs.project is not None
    assert (theirs.project.out_features, generator(module).config.encoder.layers) == (16, 2)
    module = work_of(plan.with_settings("rtd", embeddings="own")).module
    assert module.model.encoder.embeddings.tokens is not generator(module).encoder.embeddings.tokens


def test_tables_apart_learn_apart(packed: Path, tmp_path: Path) -> None:
    """DeBERTa v3's: what the model reads is the generator's table and its own addition, and its loss moves only that."""
    plan = electra(packed, embedding=16)
    plan = plan.with_settings("rtd", embeddings="apart")
    work = work_of(calm(plan))
    module = work.module.train()
    base, added = generator(module).encoder.embeddings.tokens, module.model.encoder.embeddings.tokens
    micro, _ = micro_of(work)
    rows = added(micro.batch.ids)
    assert torch.equal(rows, base.weight[micro.batch.ids] + added.weight[micro.batch.ids])
    for weights, moved in (((1.0, 0.0), base), ((0.0, 1.0), added)):
        module.zero_grad()
        torch.manual_seed(0)
        (module(micro.batch, micro.targets) * torch.tensor(weights)).sum().backward()
        for table in (base, added):
            has_moved = table.weight.grad is not None and bool(table.weight.grad.abs().sum() > 0)
            assert has_moved == (table is moved)
    fresh = Pretraining(_model(plan, module.model.tokenizer), work.train, work.valid, plan)  # type: ignore[arg-type]
    assert not fresh.module.model.encoder.embeddings.tokens.weight.any()
    weights_now = {name: p.detach() for name, p in module.named_parameters()}
    work.save(weights_now, tmp_path)
    saved = load(tmp_path / "model").encoder.embeddings.tokens.weight
    assert torch.equal(saved, base.weight + added.weight)
    again = work.load(tmp_path)
    assert all(torch.equal(again[name], weights_now[name]) for name in weights_now)


@pytest.mark.parametrize("family", ["electra", "deberta-v2", "modernbert"])
def test_from_text_to_two_folders(family: str, packed: Path, tmp_path: Path) -> None:
    """Each opens here and in transformers; and a run that fell over goes on bit for bit."""
    plan = electra(packed, steps=8, save_every=3, evaluate_every=4)
    plan = replace(plan, model=replace(plan.model, family=family))
    if family == "deberta-v2":
        plan = plan.with_settings("rtd", embeddings="apart")
    if family == "modernbert":  # whose token table has the width of the layers
        plan = replace(plan, model=replace(plan.model, embedding_width=0)).with_settings("rtd", width=1.0, layers=0.5)
    whole = pretrain(plan, tmp_path / "whole")
    run_until(plan, tmp_path / "parts", step=5)
    found = pretrain(plan, tmp_path / "parts")
    assert (found.after, found.before) == (whole.after, whole.before)
    for name in ("model", "generator"):
        ours, again = ((tmp_path / run / name / "model.safetensors").read_bytes() for run in ("whole", "parts"))
        assert ours == again
    assert set(whole.after) >= {"mlm_accuracy", "rtd_accuracy", "rtd_loss"}
    if family == "modernbert":
        opened_as_token_classifier(tmp_path / "whole/model")
        return
    kinds: dict[str, Any] = {
        "electra": (transformers.ElectraForPreTraining, transformers.ElectraForMaskedLM),
        "deberta-v2": (transformers.DebertaV2Model, transformers.DebertaV2ForMaskedLM),
    }
    for name, kind in zip(("model", "generator"), kinds[family], strict=True):
        opened, report = kind.from_pretrained(tmp_path / "whole" / name, output_loading_info=True)
        assert not report["missing_keys"]
        assert opened.config.model_type == family
    config = json.loads((tmp_path / "whole/generator/config.json").read_text())
    assert (config["hidden_size"], config["embedding_size"]) == (16, 16)


def opened_as_token_classifier(folder: Path) -> None:
    """transformers has no detector for ModernBERT; one label for each token is the same thing."""
    theirs, report = transformers.ModernBertForTokenClassification.from_pretrained(folder, output_loading_info=True)
    assert not report["missing_keys"]
    assert theirs.config.id2label == {0: "replaced"}
    ours = load(folder)
    assert ours.config.heads == ("replaced",)
    make_loud(ours)
    save(ours, folder.parent / "loud")
    theirs = transformers.ModernBertForTokenClassification.from_pretrained(folder.parent / "loud").eval()
    batch = Batch.pack([[2, 7, 8, 9, 3]])
    with torch.no_grad():
        found = ours.logits("replaced", ours.encoder(batch), batch)
        assert float((theirs(batch.ids[None].long()).logits[0] - found).abs().max()) <= LIMIT


@pytest.mark.parametrize("masked", [0.0, 0.5])
def test_the_detector_is_counted(packed: Path, masked: float) -> None:
    """Share replaced, recall and precision by hand, from what was guessed and what the detector said of it."""
    plan = calm(electra(packed))
    work = work_of(plan.with_settings("rtd", masked=masked))
    module = work.module.eval()
    torch.nn.init.zeros_(module.model.heads["replaced"].linear.bias)  # type: ignore[union-attr, arg-type]
    found = work.evaluate(lambda micro: module(micro.batch, micro.targets), 0, Ranks(), False, False)
    replaced = called = rightly = judged = 0
    capacity = work.loader(0, 1, False).capacity()
    objective = module.objectives["rtd"]
    assert isinstance(objective, ReplacedTokenDetection)
    for loader in (work._held_out(number, 0, Ranks(), False) for number in range(len(work.valid.sources))):
        for plans in loader.chunks(min(loader.mixture.size, work.recipe.data.valid_sequences), capacity):
            micro, counts = loader.micro(plans, capacity)
            with torch.no_grad():
                logits = generator(module).masked(generator(module).encoder(micro.batch)[micro.targets["predicted"]])
                batch, is_replaced = objective.replace(micro.batch, logits, micro.targets, is_training=False)
                says = module.model.logits("replaced", module.model.encoder(batch), batch)[:, 0] > 0
            judged += counts["rtd"]
            places = micro.targets["judged"][: counts["rtd"]]
            replaced += int(is_replaced[places].sum())
            called += int(says[places].sum())
            rightly += int((says & is_replaced)[places].sum())
    assert rightly
    assert found["rtd_replaced"] == pytest.approx(replaced / judged)
    assert found["rtd_recall"] == pytest.approx(rightly / replaced)
    assert found["rtd_precision"] == pytest.approx(rightly / called)


@pytest.mark.parametrize(
    ("settings", "code", "value"),
    [
        (["model.window=8"], "unsupported-by-family", "bert"),
        (["model.family=modernbert", "model.window=-1"], "out-of-range", -1),
        (["objectives=['rtd']"], "bad-objectives", "rtd"),
        (["objectives=['mlm','rtd','nsp']", "model.family=electra"], "bad-objectives", ("nsp", "rtd")),
        (["objectives=['mlm','rtd']"], "family-without-head", "bert"),
        (["model.family=gpt"], "unknown-choice", "gpt"),
        (["rtd.width=2"], "out-of-range", 2.0),
        (["rtd.weight=0"], "out-of-range", 0.0),
        (["rtd.embeddings=tied"], "unknown-choice", "tied"),
        (["rtd.masked=1"], "out-of-range", 1.0),
        (["rtd.masked=0.4", "rtd.fill=0"], "out-of-range", 0.0),
        (["rtd.masked_by=word"], "unknown-choice", "word"),
        (["rtd.masked=0.4", "rtd.embeddings=apart"], "bad-combination", "apart"),
    ],
)
def test_settings_that_do_not_go_together_are_refused(settings: list[str], code: str, value: object) -> None:
    with refused(code, value):
        read_recipe("tiny", settings)


def test_a_model_that_a_folder_cannot_hold_is_refused(tmp_path: Path, packed: Path) -> None:
    with refused("unsupported-setting"):
        pretrain(replace(electra(packed), objectives=("mlm",), model=replace(electra(packed).model, family="bert")), tmp_path / "run")  # fmt: skip
    module = work_of(electra(packed)).module
    odd = Model(replace(module.model.config, family="bert", heads=()), module.model.tokenizer)
    with refused("unexpected-tensors", names=r"encoder\.embeddings\.project"):
        save(odd, tmp_path / "odd")


@pytest.mark.parametrize("embeddings", ["shared", "own", "apart"])
def test_the_generator_beside_a_detector_goes_on_too(packed: Path, tmp_path: Path, embeddings: Any) -> None:
    """What a run ends with is what the next begins with; with a new generator it is not."""
    plan = electra(packed, steps=6)
    plan = replace(plan, phases=plan.phases[:1]).with_settings("rtd", embeddings=embeddings)
    first = pretrain(plan, tmp_path / "first")
    on = replace(plan, model=replace(plan.model, init=str(first.folder)))
    second = pretrain(on, tmp_path / "second")
    assert "first/pseudo_perplexity" in first.after
    for name, score in second.before.items():
        assert score == pytest.approx(first.after[name], rel=1e-5), name
    assert read_recipe(tmp_path / "second/recipe.toml").settings["rtd"].generator == str(
        (tmp_path / "first/generator").resolve()
    )
    afresh = pretrain(on.with_settings("rtd", generator="new"), tmp_path / "third")
    assert afresh.before["mlm_loss"] > second.before["mlm_loss"] + 0.005
    assert afresh.before["rtd_loss"] != second.before["rtd_loss"]


def test_a_generator_of_another_shape_is_refused(packed: Path, tmp_path: Path) -> None:
    plan = electra(packed, steps=1)
    first = pretrain(plan, tmp_path / "first")
    on = replace(plan, model=replace(plan.model, init=str(first.folder)))
    with refused("shape-mismatch", str((tmp_path / "first/generator").resolve())):
        pretrain(on.with_settings("rtd", width=0.25), tmp_path / "second")
    with refused("shape-mismatch", str(first.folder)):
        pretrain(on.with_settings("rtd", generator=str(first.folder)), tmp_path / "third")


def test_a_generator_with_other_words_is_refused(
    packed: Path, tmp_path: Path, tokenizer: Tokenizer, monkeypatch: pytest.MonkeyPatch
) -> None:
    plan = electra(packed, steps=1)
    first = pretrain(plan, tmp_path / "first")
    words = [tokenizer.piece(i) for i in range(tokenizer.size)]
    other = Model(load(tmp_path / "first/generator").config, Tokenizer.from_pieces([*words[:-2], words[-1], words[-2]]))
    save(other, tmp_path / "first/generator")
    monkeypatch.chdir(first.folder)  # from where the generator is found beside this folder all the same
    with refused("other-tokenizer", str((tmp_path / "first/generator").resolve())):
        pretrain(replace(plan, model=replace(plan.model, init=".")), tmp_path / "second")


def test_it_goes_on_from_a_detector_without_being_told_its_family(packed: Path, tmp_path: Path) -> None:
    """And the recipe that is kept says what the model is; the command names the folder that fills blanks."""
    pretrain(electra(packed, steps=1), tmp_path / "first")
    plan = electra(packed, steps=1)
    plan = replace(plan, model=replace(plan.model, family="bert", init=str(tmp_path / "first/model")))
    pretrain(plan, tmp_path / "second")
    assert read_recipe(tmp_path / "second/recipe.toml").model.family == "electra"
    done = CliRunner().invoke(
        app, ["pretrain", str(tmp_path / "second/recipe.toml"), "--out", str(tmp_path / "second")]
    )
    assert done.exit_code == 0, done.output
    assert f"--model {tmp_path / 'second/generator'}" in done.stderr


@pytest.mark.parametrize("family", ["deberta", "deberta-v2", "electra"])
def test_a_table_as_wide_as_the_layers_is_not_projected(family: str, packed: Path, tmp_path: Path) -> None:
    plan = electra(packed, embedding=32, steps=1)
    pretrain(replace(plan, model=replace(plan.model, family=family)), tmp_path / "run")
    assert load(tmp_path / "run/model").config.encoder.embedding_width == 0


def both(packed: Path, masked_by: Literal["token", "sequence"] = "token", **run: Any) -> PretrainRecipe:
    """Half of what the generator is asked for stays hidden from the model too."""
    plan = electra(packed, **run)
    return plan.with_settings("rtd", masked=0.5, masked_by=masked_by, fill=3.0)


def test_what_stays_hidden_is_asked_for_and_not_judged(packed: Path, tmp_path: Path) -> None:
    """The loss `fill` is that of their masked-word model at the hidden places of a text with the guesses in it."""
    work = work_of(calm(both(packed)))
    module = work.module.eval()
    micro, counts = micro_of(work)
    batch, targets = micro.batch, micro.targets
    assert list(work.losses.items()) == [("mlm", 1.0), ("rtd", 50.0), ("fill", 3.0)]
    objective = work.objectives["rtd"]
    assert isinstance(objective, ReplacedTokenDetection)
    with torch.no_grad():
        fill = float(module(batch, targets)[2])
        guesses = generator(module).masked(generator(module).encoder(batch)[targets["predicted"]])
        after, is_replaced = objective.replace(batch, guesses, targets, is_training=False)
    hidden = targets["hidden"]
    lengths = batch.lengths.tolist()
    for asked, kept in zip(*(_by_sequence(targets[name], lengths) for name in ("predicted", "hidden")), strict=True):
        assert set(kept) <= set(asked)
        assert len(kept) == math.floor(0.5 * len(asked) + 0.5)
    assert counts["fill"] == len(hidden)
    assert counts["rtd"] + len(hidden) == sum(int(i) not in work.tokenizer.wordless_ids for i in original_of(micro))
    assert torch.equal(after.ids[hidden], batch.ids[hidden])
    assert not is_replaced[hidden].any()
    assert is_replaced.any()
    assert not set(targets["judged"].tolist()) & set(hidden.tolist())
    work.save({name: p.detach() for name, p in module.named_parameters()}, tmp_path)
    theirs, report = transformers.ElectraForMaskedLM.from_pretrained(tmp_path / "model", output_loading_info=True)
    assert not report["missing_keys"]
    assert not report["unexpected_keys"]
    ids, kinds, mask = as_grid(batch, after.ids)
    with torch.no_grad():
        logits = theirs.eval()(ids, token_type_ids=kinds, attention_mask=mask).logits[mask][hidden]
    wanted = original_of(micro)[hidden]
    assert fill == pytest.approx(float(F.cross_entropy(logits, wanted, reduction="sum")), rel=LIMIT)


def test_any_asked_token_may_stay_hidden(packed: Path) -> None:
    """Whether it is an early one of its sequence or a late one."""
    work = work_of(calm(both(packed)))
    early: list[bool] = []
    for step in itertools.islice(work.feed(0, 0, Ranks(), False), 12):
        targets, lengths = step.micros[0].targets, step.micros[0].batch.lengths.tolist()
        for asked, kept in zip(
            *(_by_sequence(targets[name], lengths) for name in ("predicted", "hidden")), strict=True
        ):
            early += [place in kept for place in asked[: len(asked) // 2]]
    assert len(early) > 300
    assert 0.4 < sum(early) / len(early) < 0.6


def test_whole_sequences_may_stay_hidden(packed: Path) -> None:
    """As many as the share says: all that they are asked for, no guess in them, and nothing of them judged."""
    work = work_of(calm(both(packed, "sequence")))
    objective = work.objectives["rtd"]
    assert isinstance(objective, ReplacedTokenDetection)
    hides: list[bool] = []
    for step in itertools.islice(work.feed(0, 0, Ranks(), False), 12):
        (micro,) = step.micros
        targets, lengths = micro.targets, micro.batch.lengths.tolist()
        with torch.no_grad():
            guesses = generator(work.module).masked(generator(work.module).encoder(micro.batch)[targets["predicted"]])
        after, _ = objective.replace(micro.batch, guesses, targets, is_training=False)
        original = original_of(micro)
        places = [_by_sequence(targets[name], lengths) for name in ("predicted", "hidden", "judged")]
        bounds = itertools.pairwise(np.cumsum([0, *lengths]).tolist())
        for asked, hidden, judged, (start, end) in zip(*places, bounds, strict=True):
            hides.append(bool(hidden))
            if hidden:
                assert hidden == asked
                assert not judged
                assert torch.equal(after.ids[start:end], micro.batch.ids[start:end])
            else:
                wordless = work.tokenizer.wordless_ids
                assert judged == [i for i in range(start, end) if int(original[i]) not in wordless]
        assert step.counts["fill"] == len(targets["hidden"])
    assert len(hides) > 100
    assert 0.35 < sum(hides) / len(hides) < 0.65


def test_there_is_room_for_what_stays_hidden() -> None:
    """However the sequences fall: those that find no room in the batch are judged, whole."""
    objective = detector(masked=0.1, masked_by="sequence")
    capacity = Capacity(tokens=400 * 22, sequences=400, length=22)
    keys = mix(np.arange(8_000), 7)
    draws = uniform(mix(keys, _HIDE))
    for fallen, all_fit in ((keys[:400], True), (keys[draws < 0.1][:400], False)):
        rows = replace(make_rows([[[1] * 20]] * 400), keys=fallen)
        builder = BatchBuilder(rows, rows.ids)
        objective.prepare(builder, capacity, None)
        hidden, judged = (builder.targets[name] for name in ("hidden", "judged"))
        hides = np.unique(rows.sequence[hidden.values])
        assert 0 < len(hidden.values) <= hidden.most < builder.targets["predicted"].most
        assert not set(hides) & set(rows.sequence[judged.values])
        assert len(hides) + len(np.unique(rows.sequence[judged.values])) == 400
        wanted = np.flatnonzero(uniform(mix(fallen, _HIDE)) < 0.1)
        assert np.array_equal(hides, wanted if all_fit else wanted[: len(hides)])
        assert all_fit == (len(hides) == len(wanted))


def test_the_work_of_naming_what_is_hidden_is_counted(packed: Path) -> None:
    plain, more = (work_of(calm(plan(packed))) for plan in (electra, both))
    shape = plain.config.encoder
    head = shape.table_width * (shape.width + shape.vocab_size)
    assert more.flops(0) - plain.flops(0) == pytest.approx(6 * 0.3 * 0.5 * head)


def original_of(micro: MicroBatch) -> Tensor:
    original = micro.batch.ids.clone()
    original[micro.targets["predicted"]] = micro.targets["labels"]
    return original


def _by_sequence(places: Tensor, lengths: list[int]) -> list[list[int]]:
    bounds = np.cumsum([0, *lengths])
    return [[p for p in places.tolist() if a <= p < b] for a, b in itertools.pairwise(bounds)]


@pytest.mark.parametrize("masked_by", ["token", "sequence"])
def test_what_stays_hidden_does_not_depend_on_the_batch(masked_by: Literal["token", "sequence"], packed: Path) -> None:
    """A step in one pass, and in two: the same tokens stay hidden; and fillers change no loss."""
    found = []
    for micro_tokens in (100_000, 200):
        plan = both(packed, masked_by, micro_tokens=micro_tokens)
        work = work_of(calm(plan))
        step = next(iter(work.feed(0, 0, Ranks(), False)))
        found.append([original_of(m)[m.targets["hidden"]].tolist() for m in step.micros])
    assert len(found[0]) == 1 < len(found[1])
    assert list(itertools.chain(*found[1])) == found[0][0]
    work = work_of(calm(both(packed, masked_by)))
    work.module.eval()
    counts = []
    for static_shapes in (False, True):
        micro, count = micro_of(work, static_shapes)
        counts.append(count)
        real = int((micro.targets["hidden_labels"] != -100).sum())
        assert real == count["fill"]
        with torch.no_grad():
            states = work.module.model.encoder(micro.batch)
            score = work.objectives["rtd"].losses(
                work.module.model,
                None,
                states,
                Activations({}, {}),
                micro.batch,
                micro.targets | {"is_replaced": torch.zeros(len(states))},
            )
        found.append([float(score["fill"].loss), float(score["rtd"].loss)])  # type: ignore[list-item]
    assert found[-1] == pytest.approx(found[-2], rel=LIMIT)
    assert counts[0] == counts[1]


@pytest.mark.parametrize("family", ["electra", "modernbert"])
def test_a_detector_that_fills_blanks(family: str, packed: Path, tmp_path: Path) -> None:
    """From text to a folder that fills blanks itself; bit for bit after a fall, with the detector's head too."""
    plan = both(packed, steps=8, save_every=3, evaluate_every=4)
    if family == "modernbert":
        shape = replace(plan.model, family=family, embedding_width=0)
        plan = replace(plan, model=shape).with_settings("rtd", width=1.0, layers=0.5)
    whole = pretrain(plan, tmp_path / "whole")
    run_until(plan, tmp_path / "parts", step=5)
    found = pretrain(plan, tmp_path / "parts")
    assert found.after == whole.after
    assert whole.after["fill_loss"] < whole.before["fill_loss"]
    assert set(whole.after) >= {"fill_accuracy", "rtd_recall", "mlm_accuracy"}
    for name in ("model/model.safetensors", "generator/model.safetensors"):
        assert (tmp_path / "whole" / name).read_bytes() == (tmp_path / "parts" / name).read_bytes()
    assert load(tmp_path / "whole/model").config.heads == ("masked",)
    command = ["pretrain", str(tmp_path / "whole/recipe.toml"), "--out", str(tmp_path / "whole")]
    told = CliRunner().invoke(app, command).stderr.split()[-1]
    assert told == str(tmp_path / "whole/model")
    filled = CliRunner().invoke(app, ["fill", "the [MASK] .", "--model", told])
    assert filled.exit_code == 0, filled.output
    static_shapes = replace(plan, model=replace(plan.model, init=told), optim=replace(plan.optim, lr=1e-12))
    pretrain(static_shapes, tmp_path / "further")  # begins with this head for words, and not with a new one
    before, after = (load(tmp_path / name / "model") for name in ("whole", "further"))
    assert after.config.heads == ("masked",)
    for name, weight in before.state_dict().items():
        assert torch.allclose(after.state_dict()[name], weight, atol=1e-6), name


@pytest.mark.parametrize(
    ("family", "objectives"), [("modernbert", ("mlm", "nsp")), ("modernbert", ("mlm", "sop")), ("bert", ("mlm", "rtd"))]
)
def test_a_model_that_has_no_head_for_an_objective(
    family: str, objectives: tuple[str, ...], packed: Path, tmp_path: Path
) -> None:
    """To begin with, and to go on from."""
    plan = calm(recipe(packed, steps=1))
    shape = replace(plan.model, family=family)
    pretrain(replace(plan, objectives=("mlm",), model=shape), tmp_path / "first")
    with refused("family-without-head", family):
        pretrain(replace(plan, objectives=objectives, model=shape), tmp_path / "none")
    start = replace(shape, family="electra", init=str(tmp_path / "first/model"))
    with refused("family-without-head", family):
        pretrain(replace(plan, objectives=objectives, model=start), tmp_path / "none")
