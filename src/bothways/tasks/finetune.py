"""Fine-tune an encoder: a recipe and labelled files make a run folder with the best model."""

import math
import zlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Any

from bothways.data.notes import Notes
from bothways.errors import BothwaysError, name_list
from bothways.model import checkpoint
from bothways.model.adapter_config import is_adapter
from bothways.model.box import model_folder
from bothways.model.card import adapter_card
from bothways.model.card_text import thresholds_shown
from bothways.model.families import with_pooling
from bothways.model.identify import read_labels
from bothways.model.load import load
from bothways.model.lora import adapt, copy_adapter
from bothways.model.model import Model
from bothways.model.weights import read_json
from bothways.printable import counted
from bothways.progress import Watch, watch_nothing
from bothways.tasks.data_notes import cut_note, data_notes
from bothways.tasks.defaults import settled
from bothways.tasks.folder import with_dropout, with_task
from bothways.tasks.labelled_files import with_columns
from bothways.tasks.recipe import FinetuneRecipe, FinetuneRun, read_finetune_recipe, write_finetune_recipe
from bothways.tasks.registry import TASKS, make_task, plan_task, task_config, with_config
from bothways.tasks.task import Sample, Task
from bothways.tasks.task_card import made_by, read_evaluated
from bothways.tasks.trainable import FineTuning
from bothways.text.frames import as_files, frame_kind
from bothways.text.streams import name_of, read_as
from bothways.train.distill import Teacher
from bothways.train.machine import pick_device
from bothways.train.ranks import Ranks, joined
from bothways.train.session import Listener, Listeners, Say, claim, run_session, scores_at
from bothways.train.state import Checkpoints
from bothways.train.trackers import make_trackers

_AT_ONCE = 1_024


@dataclass(frozen=True)
class Finetuned:
    """The result of a run."""

    folder: Path
    """The best model, for `Predictor.load` and for transformers."""
    task: str
    labels: tuple[str, ...]
    examples: int
    """Training examples."""
    steps: int
    complete: bool
    """False if it was interrupted: the same call continues."""
    metric: str
    """The score by which the best model is selected."""
    best_step: int | None = None
    scores: dict[str, float] = field(default_factory=dict)
    """Of the best model, on development data."""
    thresholds: dict[str, float] = field(default_factory=dict)
    """Several labels: the lowest probability at which each is predicted, chosen on development data."""


def finetune(
    recipe: FinetuneRecipe,
    out: Path | str,
    *,
    train: Any = None,
    dev: Any = None,
    text: str = "",
    pair: str = "",
    label: str = "",
    listen: Sequence[Listener] = (),
    say: Say = lambda words: None,
    watch: Watch = watch_nothing,
    name: str = "",
    keeps_task: bool = False,
) -> Finetuned:
    """Train as the recipe says, or continue an earlier call with the same `out`.

    The data are the recipe's files, or `train` and `dev`: examples, or a table in memory (pandas, polars, datasets,
    pyarrow), which is read as a file is. `text`, `pair` and `label` name their columns, as in the recipe. `name`: that
    of the model in its card; by default that of `out`. `keeps_task`: the task's config and labels are those of the
    model to start from; by default they are planned from the training data. `listen` gets every event of the run, `say`
    messages for the user, and `watch` the examples while they are read and tokenized.
    """
    out, listeners = Path(out), Listeners(listen, say)
    recipe = replace(recipe, data=with_columns(recipe.data, text, pair, label))
    with joined(pick_device(recipe.run.device, Ranks()).type) as ranks:
        tell: Say = say if ranks.is_first else lambda words: None
        if ranks.is_first:
            make_trackers(recipe.run, out)  # a missing package is said before the data are read
        columns: dict[str, None] = {}  # of the training data, and of the development data if they are others
        train = _given(recipe, train, "the training table", recipe.data.train, tell, watch, columns)
        dev = _given(recipe, dev, "the development table", recipe.data.dev, tell, watch, columns)
        train, dev = (_assembled(recipe, some, is_dev, tell) for some, is_dev in ((train, False), (dev, True)))
        if not train:
            raise BothwaysError("there is nothing to train on: set data.train, or pass `train`", "no-data")
        if not recipe.model.init:
            raise BothwaysError("the recipe names no model to start from: set model.init, or pass `model`", "no-model")
        start = load(recipe.model.init)
        if recipe.model.keep_layers:
            start = start.with_layers(recipe.model.keep_layers)
        if recipe.model.pooling:
            start.config = with_pooling(start.config, recipe.model.pooling)
        start = with_dropout(start, recipe.model.dropout, recipe.model.attention_dropout)
        if keeps_task:
            config, labels = task_config(start), start.config.labels
        else:
            max_length = start.config.encoder.max_length
            config, labels = plan_task(recipe.task, recipe.settings, recipe.window, train, max_length)
        model = with_task(start, config, labels, seed=recipe.run.seed)
        model.encoder.gradient_checkpointing = recipe.run.gradient_checkpointing
        _freeze(model, recipe.model.freeze)
        lora = recipe.lora if recipe.lora.rank else None
        if lora:
            adapt(model, lora, seed=recipe.run.seed)
        for what, some in (("training", train), ("development", dev)):
            if unlabelled := sum(example.gold is None for example in some):
                tell(f"{unlabelled:,} of the {len(some):,} {what} examples have no label and are left out")
        notes = list(data_notes(TASKS[recipe.task], train, dev))
        normalise = TASKS[recipe.task].normalise
        train, dev = ([normalise(config, e) for e in some if e.gold is not None] for some in (train, dev))
        task = make_task(model, recipe.settings, train)
        for example in dev:
            task.check(example)
        for line in notes:
            tell(line)
        task.gather(model, train, pick_device(recipe.run.device, ranks), watch, recipe.run.seed)
        samples, unused = _samples(task, train, watch)
        if unused:
            tell(f"{unused:,} of the {len(train):,} training examples have no target and are left out")
        samples, alone = task.joined(samples)
        if alone:
            tell(f"{alone:,} of the {len(train):,} training examples have none to be compared with and are left out")
        for taken in columns:
            tell(f"columns: {taken}")
        tell(f"training data: {task.reader.tally}")
        if cut := cut_note(task.reader.tally):
            tell(cut)
        recipe, chosen_settings = settled(recipe, model.config.encoder, len(samples), len(task.labels))
        if chosen_settings:
            tell(chosen_settings)
        work = FineTuning(
            model,
            task,
            samples,
            dev,
            batch=recipe.run.batch_size,
            micro_tokens=recipe.run.micro_tokens,
            seed=recipe.run.seed,
            lora=lora,
            base=str(model_folder(recipe.model.init).resolve()),
            teacher=_teacher(recipe, model),
        )
        if note := task.note(samples, work.batch):
            tell(note)
        in_steps = partial(_in_steps, work=work)
        if ranks.is_first:
            claim(out, recipe, read_finetune_recipe, write_finetune_recipe, _identity(samples), in_steps=in_steps)
        ranks.wait()
        _require_same_labels(out / "model", task.labels)
        ended = run_session(work, in_steps(recipe.run), recipe.optim, out, ranks, listeners)
        checkpoints = Checkpoints(out, recipe.run.keep)
        state, latest = checkpoints.state(), checkpoints.latest()
        assert state is not None  # a run that ended has saved
        best = state.best_step
        scores = scores_at(out, best)
        if ended.complete and ranks.is_first and latest is not None:
            chosen = latest if best is None else latest.with_name(f"step-{best:08}")
            tuned = _tuned(chosen, scores, work.base)
            known, thresholds = read_evaluated(chosen), _of_labels(task_config(tuned).thresholds, task.labels)
            made = made_by(recipe, name or out.absolute().name, train, dev, task, scores, known, thresholds)
            checkpoint.save(tuned, out / "model", made=made)
            copy_adapter(
                chosen / "model", out / "adapter", work.base, lambda: adapter_card(tuned, out / "adapter", made)
            )
            checkpoints.finish(keep_state=recipe.run.keep_state)
            if thresholds:
                tell(f"thresholds, chosen on the development data: {thresholds_shown(thresholds)}")
            if known["never_predicted"]:
                tell(f"on the development data: {known['never_predicted']}")
        ranks.wait()
        stored = read_json(out / "model/config.json").get("bothways", {}) if ended.complete else {}
        return Finetuned(
            out / "model",
            recipe.task,
            task.labels,
            len(train),
            ended.step,
            ended.complete,
            task.metric,
            best,
            scores,
            _of_labels(stored.get("thresholds", {}), task.labels),
        )


def _examples(
    recipe: FinetuneRecipe, files: Sequence[str], say: Say, watch: Watch, columns: dict[str, None]
) -> list[Any]:
    if not files:
        return []
    notes = Notes()
    with read_as(recipe.data.encoding):
        rows = TASKS[recipe.task].read(files, recipe.data.columns, notes, recipe.settings)
        found = list(watch(rows, "reading", files))
    if notes.columns:
        columns[notes.columns] = None
    if notes:
        say(str(notes))
    if not found:
        names = ", ".join(name_of(Path(file)) for file in files)
        raise BothwaysError(f"{names}: no examples were found", "no-examples", names)
    return found


def _given(
    recipe: FinetuneRecipe,
    given: Any,
    name: str,
    files: Sequence[str],
    say: Say,
    watch: Watch,
    columns: dict[str, None],
) -> list[Any]:
    """The examples given, or those of a table or of the recipe's files."""
    if given is not None and not frame_kind(given):
        return list(given)
    with as_files(files if given is None else given, name) as names:
        return _examples(recipe, names, say, watch, columns)


def _samples(task: Task, examples: Sequence[Any], watch: Watch) -> tuple[list[Sample], int]:
    """The training samples, and the number of examples without any: empty ones, or without their answer in the text."""
    samples: list[Sample] = []
    unused = 0
    stream = iter(watch(examples, "tokenizing"))
    while chunk := list(islice(stream, _AT_ONCE)):
        for item in task.encode(chunk):
            found = task.samples(item)
            samples += found
            unused += not found
    return samples, unused


def _teacher(recipe: FinetuneRecipe, student: Model) -> Teacher | None:
    settings = recipe.distill
    if not settings.teacher:
        return None
    model = load(settings.teacher)
    # Without soft targets, the teacher may be a pretrained model without a task.
    if settings.soft and (theirs := _purpose(model)) != (ours := _purpose(student)):
        raise BothwaysError(
            f"{settings.teacher} was trained for {theirs[0]} with the labels {name_list(theirs[2]) or 'none'}, but the "
            f"student is for {ours[0]} with {name_list(ours[2]) or 'none'}: they must be the same",
            "other-task",
            settings.teacher,
        )
    return Teacher(model, settings, student)


def _purpose(model: Model) -> tuple[str, dict[str, Any], tuple[str, ...]]:
    """The task, the kind of its outputs, and its labels."""
    config = task_config(model)
    return config.task, TASKS[config.task].hf_config(config), model.config.labels


def _identity(samples: Sequence[Sample]) -> dict[str, int]:
    found = 0
    for sample in samples:
        for ids in sample.ids:
            found = zlib.crc32(ids.tobytes(), found)
        found = zlib.crc32(repr(sample.target).encode(), found)
    return {"samples": len(samples), "checksum": found}


def _require_same_labels(folder: Path, labels: tuple[str, ...]) -> None:
    """Refuse a complete run with other labels: of checkpoints, `FineTuning.load` does."""
    if labels and (folder / "config.json").exists() and read_labels(read_json(folder / "config.json")) != labels:
        raise BothwaysError(f"{folder} is a model with other labels: use another `out`", "other-run", folder)


def _assembled(recipe: FinetuneRecipe, examples: Sequence[Any], is_dev: bool, tell: Say) -> list[Any]:
    """The examples of rows; says how many there are if it is not one for each row."""
    found = list(TASKS[recipe.task].assemble(examples, recipe.settings, is_dev))
    if len(found) != len(examples):
        what = "development" if is_dev else "training"
        tell(f"{len(examples):,} rows of {what} data make {counted(len(found), 'example')}")
    if examples and not found:
        raise BothwaysError(f"none of the {len(examples):,} rows makes an example: nothing is entailed", "no-data")
    return found


def _freeze(model: Model, what: str | int) -> None:
    if what == "none":
        return
    encoder = model.encoder
    encoder.embeddings.requires_grad_(False)
    layers = {"embeddings": 0, "encoder": len(encoder.blocks)}.get(str(what), what)
    assert isinstance(layers, int)
    if layers > len(encoder.blocks):
        raise BothwaysError(
            f"model.freeze is {layers}, but this model has {len(encoder.blocks)} layers", "out-of-range", layers
        )
    for block in list(encoder.blocks)[:layers]:
        block.requires_grad_(False)


def _in_steps(run: FinetuneRun, work: FineTuning) -> FinetuneRun:
    """The run with its length in steps; by default it evaluates and saves after every epoch."""
    each = work.steps_per_epoch
    if run.epochs:
        run = replace(run, steps=math.ceil(run.epochs * each), epochs=0.0)
    every = run.evaluate_every or each
    return replace(run, evaluate_every=every, save_every=run.save_every or every)


def _of_labels(thresholds: Mapping[str, float], labels: Sequence[str]) -> dict[str, float]:
    """The thresholds of labels; there may be another, of questions without an answer."""
    return {label: thresholds[label] for label in labels if label in thresholds}


def _tuned(chosen: Path, scores: Mapping[str, float], base: str) -> Model:
    """The model of a checkpoint as it is published; an adapter is merged into its base."""
    model = load(chosen / "model", base=base if is_adapter(chosen / "model") else None)
    config = task_config(model)
    if model.sentence is not None:
        model.sentence.training_only.clear()
    return with_config(model, TASKS[config.task].tuned(config, scores))
