"""Pretrain an encoder: takes a recipe and packed text, writes a run folder."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from bothways.errors import BothwaysError, name_list
from bothways.model import checkpoint
from bothways.model.adapter_config import is_adapter
from bothways.model.box import model_folder
from bothways.model.card import Made, Score, adapter_card, files_and_rows, name_of_model
from bothways.model.config import Learned, ModelConfig
from bothways.model.families import FAMILIES, with_pooling
from bothways.model.load import load
from bothways.model.lora import adapt, copy_adapter
from bothways.model.model import Model
from bothways.pretraining.objective import Objective
from bothways.pretraining.objectives import OBJECTIVES, heads_for, make_objectives
from bothways.pretraining.recipe import PretrainRecipe, read_recipe, write_recipe
from bothways.pretraining.shards import Corpus, Packed, Shard, open_packed
from bothways.pretraining.trainable import Pretraining, Texts
from bothways.text.files import each_once
from bothways.text.tokenizer import Tokenizer
from bothways.train.health import HealthMonitor
from bothways.train.machine import pick_device
from bothways.train.ranks import Ranks, joined
from bothways.train.session import Listener, Listeners, Say, claim, first_and_last_scores, run_session, scores_at
from bothways.train.state import Checkpoints
from bothways.train.strict_toml import write_table
from bothways.train.trackers import make_trackers


@dataclass(frozen=True)
class Pretrained:
    """The result of a pretraining run."""

    folder: Path
    """The model folder, for `bothways.load`."""
    steps: int
    complete: bool
    """False if it was interrupted: the same call resumes it."""
    before: dict[str, float] = field(default_factory=dict)
    """Scores on the held-out text before the first step."""
    after: dict[str, float] = field(default_factory=dict)
    """Scores on the held-out text after the last step; with early stopping, of the best model."""
    best_step: int | None = None
    """With early stopping (run.patience): the step of the model, which is the best."""


def pretrain(
    recipe: PretrainRecipe,
    out: Path | str,
    *,
    texts: str = "",
    listen: Sequence[Listener] = (),
    say: Say = lambda words: None,
) -> Pretrained:
    """Train as the recipe says, or resume an interrupted run in `out`.

    `texts`: what the model card calls the training data; by default the names of the packed folders. Every function in
    `listen` gets every event of the run; `say` gets sentences for the user, such as why training
    goes badly.
    """
    out, listeners = Path(out), Listeners(listen, say)
    with joined(pick_device(recipe.run.device, Ranks()).type) as ranks:
        if ranks.is_first:
            make_trackers(recipe.run, out)  # a missing package is said before the data are read
        folders = each_once(map(Path, recipe.data.train))
        packed = [open_packed(folder, verify=recipe.data.verify and ranks.is_first) for folder in folders]
        tokenizer = _one_tokenizer(packed)
        train, valid = (_texts(packed, recipe, split) for split in ("train", "valid"))
        model = _model(recipe, tokenizer, say if ranks.is_first else lambda words: None)
        if recipe.finetune:
            model.config = replace(model.config, advice=write_table(recipe.finetune))
            if pooling := recipe.finetune.get("model", {}).get(
                "pooling"
            ):  # Hugging Face libraries read it from config.json
                model.config = with_pooling(model.config, pooling)
        if recipe.model.init:  # the recipe that is written must describe this model
            recipe = replace(recipe, model=recipe.model.shaped_as(model.config.family, model.config.encoder))
            resolved = {name: OBJECTIVES[name].resolve(recipe) for name in recipe.active}
            recipe = replace(recipe, settings=recipe.settings | resolved)
        if recipe.lora.rank:
            adapt(model, recipe.lora, seed=recipe.run.seed)
        work = Pretraining(model, train, valid, recipe)
        if ranks.is_first:
            checksums = [one.manifest["checksum"] for one in packed]
            shares = [phase.share for phase in recipe.phases]
            claim(out, recipe, read_recipe, write_recipe, {"packed": checksums}, shares)
        ranks.wait()
        if not valid.sources and ranks.is_first:
            say("no text is held out, so nothing is evaluated: pack with `valid` 0.5% to measure progress")
        if recipe.optim.warmup >= recipe.run.steps > 0 and ranks.is_first:
            say(
                f"the learning rate never reaches its peak: optim.warmup is {recipe.optim.warmup:,g} steps, and the "
                f"run has {recipe.run.steps:,}"
            )
        reports = [p.manifest["report"] for p in packed]
        tokens = sum(corpus.tokens for corpus in train.sources.values())
        plateau = sum(r["entropy"] * r["tokens"] for r in reports) / sum(r["tokens"] for r in reports)
        health = HealthMonitor(
            plateau=plateau,
            clip=recipe.optim.clip,
            duplicates=max(r["duplicates"] for r in reports),
            tokens_per_epoch=tokens,
            scaled=recipe.run.precision == "fp16",
        )
        work.before, _ = first_and_last_scores(out)
        line = plateau if len(work.losses) == 1 else None  # it does not compare with a sum of losses
        ended = run_session(work, recipe.run, recipe.optim, out, ranks, listeners, health, line)
        checkpoints = Checkpoints(out, recipe.run.keep)
        state, latest = checkpoints.state(), checkpoints.latest()
        best = state.best_step if state and ended.complete and recipe.run.patience else None
        before, after = first_and_last_scores(out)
        after = after if best is None else scores_at(out, best)
        if ranks.is_first and ended.complete and latest is not None:
            _publish(
                out,
                latest if best is None else latest.with_name(f"step-{best:08}"),
                recipe,
                _made(out, recipe, packed, texts, before, after, _length(recipe, ended.step, best)),
            )
            checkpoints.finish(keep_state=recipe.run.keep_state)
        ranks.wait()
        return Pretrained(out / "model", ended.step, ended.complete, before, after, best)


def _one_tokenizer(packed: Sequence[Packed]) -> Tokenizer:
    if not packed:
        raise BothwaysError("the recipe names no packed text: set data.train, or give `data`", "no-data")
    for other in packed[1:]:
        if other.tokenizer.fingerprint != packed[0].tokenizer.fingerprint:
            raise BothwaysError(
                f"{other.folder} and {packed[0].folder} were packed with different tokenizers: pack them with one",
                "other-tokenizer",
                (other.folder, packed[0].folder),
            )
    return packed[0].tokenizer


def _texts(packed: Sequence[Packed], recipe: PretrainRecipe, split: str) -> Texts:
    shards: dict[str, list[Shard]] = {}
    for one in packed:
        for source, found in one.corpora(split).items():
            shards.setdefault(source, []).extend(found)
    corpora = {name: Corpus(found) for name, found in shards.items()}
    weights = recipe.data.weights
    if not weights:
        return Texts(corpora)
    if split == "train":
        unknown, missing = set(weights) - set(corpora), set(corpora) - set(weights)
        if unknown or missing:
            raise BothwaysError(
                f"data.weights names {name_list(sorted(weights))}, but the packed text has the sources "
                f"{name_list(sorted(corpora))}: name each source once",
                "unknown-source",
                tuple(sorted(unknown | missing)),
            )
        if min(weights.values()) < 0 or not sum(weights.values()) > 0:
            raise BothwaysError("data.weights must be 0 or more, and one of them above 0", "out-of-range", weights)
    used = {name: corpus for name, corpus in corpora.items() if weights.get(name, 0) > 0}
    return Texts(used, {name: weights[name] for name in used}) if split == "train" else Texts(corpora)


def _model(recipe: PretrainRecipe, tokenizer: Tokenizer, say: Say = lambda words: None) -> Model:
    """A new model, or that of model.init, with the heads that the objectives train."""
    objectives = make_objectives(recipe, tokenizer)
    heads = heads_for(objectives)
    if not recipe.model.init:
        _require_heads(recipe.model.family, objectives)
        shape = recipe.model.encoder(tokenizer.size)
        if isinstance(shape.positions, Learned) and shape.positions.offset and "pad_token" in tokenizer.roles:
            # RoBERTa's positions start after the id of the padding token.
            offset = tokenizer.id(tokenizer.roles["pad_token"]) + 1
            shape = replace(shape, positions=replace(shape.positions, rows=shape.max_length + offset, offset=offset))
        config = ModelConfig(shape, heads, family=recipe.model.family)
        checkpoint.require_storable(config)
        return Model.new(config, tokenizer, seed=recipe.run.seed)
    model = load(recipe.model.init)
    _require_heads(model.config.family, objectives)
    if recipe.model.keep_layers:
        model = model.with_layers(recipe.model.keep_layers)
    if model.tokenizer is None or model.tokenizer.fingerprint != tokenizer.fingerprint:
        raise BothwaysError(
            f"the text was packed with another tokenizer than that of {recipe.model.init}: "
            f"pack it again with `model` {recipe.model.init}",
            "other-tokenizer",
            recipe.model.init,
        )
    missing = [head for head in heads if head not in model.heads]
    if missing:
        say(f"{recipe.model.init} has no head {' or '.join(missing)}: it is initialised at random")
    for head in missing:
        model = model.with_head(head, keep=heads, seed=recipe.run.seed)
    return model.with_only(heads) if recipe.lora.rank else model  # an adapter is saved with the heads it trains


def _require_heads(family: str, objectives: Mapping[str, Objective]) -> None:
    for name, objective in objectives.items():
        if not set(objective.heads) <= set(FAMILIES[family].heads):
            raise BothwaysError(
                f"{family} has no head for {name}: change objectives or model.family", "family-without-head", family
            )


def _publish(out: Path, chosen: Path, recipe: PretrainRecipe, made: Made) -> None:
    """Copy the models of a checkpoint into `out`. An adapter is merged into its base model, and also copied as
    out/adapter."""
    base = recipe.model.init
    for file in chosen.glob("*/config.json"):
        model = load(file.parent, base=base if is_adapter(file.parent) else None)
        checkpoint.save(model, out / file.parent.name, made=made)
    copy_adapter(
        chosen / "model",
        out / "adapter",
        base,
        lambda: adapter_card(load(chosen / "model", base=base), out / "adapter", made),
    )


def _made(
    out: Path,
    recipe: PretrainRecipe,
    packed: Sequence[Packed],
    texts: str,
    before: Mapping[str, float],
    scores: Mapping[str, float],
    length: str,
) -> Made:
    """How the model was pretrained, for its card."""
    base = model_folder(recipe.model.init) if recipe.model.init else None
    names, tokens = [one.folder.name for one in packed], sum(one.manifest["report"]["tokens"] for one in packed)
    aims, scores = ", ".join(recipe.active), _told_once(scores)
    losses = [name for name in scores if name.endswith("loss") and name in before] if base else []
    moved = ", ".join(f"{name} {before[name]:.3f} → {scores[name]:.3f}" for name in losses)
    return Made(
        name=out.absolute().name,
        about=f"Pretrained with bothways ({aims}){f' from {name_of_model(base)}' if base else ''}.",
        base=base,
        facts={
            "training data": files_and_rows([texts] if texts else names, tokens, "tokens of packed text"),
            **({"held-out loss before → after": moved} if moved else {}),
            "training": f"{aims}; {length}, learning rate {recipe.optim.lr:g}, seed {recipe.run.seed}",
        },
        scored_on="text that was held out",
        scores=tuple(Score(name, value) for name, value in scores.items()),
    )


def _length(recipe: PretrainRecipe, steps: int, best: int | None) -> str:
    """How long the model was trained that is published."""
    if best is not None and best < steps:
        return f"{best:,} steps, the best of {steps:,}"
    return f"{steps:,} steps" if recipe.run.steps else f"{recipe.run.minutes:g} minutes"


def _told_once(scores: Mapping[str, float]) -> dict[str, float]:
    """Scores without the loss of an objective that is the only one: it is the whole loss."""
    whole = {name: scores.get(f"{name.rpartition('/')[0]}/loss".lstrip("/")) for name in scores}
    return {name: one for name, one in scores.items() if name.rpartition("/")[2] == "loss" or whole[name] != one}
