"""Compress a fine-tuned model: fewer pieces, fewer layers, fewer bits; the smallest that keeps a score is written."""

import json
import shutil
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any, get_args

from bothways import atomic
from bothways.compression.card import card_of
from bothways.compression.keep import Keep, reaches
from bothways.compression.measure import Measure
from bothways.compression.steps import TABLE, Compressed, smallest
from bothways.compression.students import Lessons, distilled, layers_to_try, recipe_for
from bothways.compression.trials import Trials, Variant, write_variant
from bothways.compression.used_pieces import Vocabulary, pieces_of_examples, pieces_of_texts
from bothways.data.notes import Notes
from bothways.errors import BothwaysError, missing_package, require_choice
from bothways.export.folder import FILES as GRAPHS
from bothways.export.folder import require_onnx
from bothways.model.box import model_folder
from bothways.model.card import files_and_rows, name_of_model
from bothways.model.card_text import CARD
from bothways.model.checkpoint import ADVICE
from bothways.model.exported import FOLDER
from bothways.model.load import load
from bothways.model.vocabulary import keep_used
from bothways.predict.encode_options import Long
from bothways.predict.evaluation import labelled
from bothways.predict.predictor import Predictor
from bothways.printable import counted
from bothways.progress import Progress, Watch, watch_nothing
from bothways.scoring.significance import interval
from bothways.tasks.labelled_files import FinetuneData
from bothways.text.files import find_rereadable
from bothways.text.frames import as_files, is_frame
from bothways.text.tokenizer import FILES as TOKENIZER_FILES
from bothways.train.session import Listener, Say

PRECISIONS = ("fp32", "fp16", "int8", "int8-blocks", "int4")
"""Those of the graphs that are tried by default."""
_WRITTEN = ("config.json", "model.safetensors", CARD, ADVICE, FOLDER, TABLE, *TOKENIZER_FILES)


def compress(
    model: Path | str,
    out: Path | str,
    *,
    train: Any,
    dev: Any,
    keep: str | float = "99%",
    layers: Sequence[int] | None = None,
    precisions: Sequence[str] = PRECISIONS,
    vocabulary: Vocabulary = "auto",
    texts: Sequence[Path | str] = (),
    text: str = "",
    pair: str = "",
    label: str = "",
    long: Long | None = None,
    settings: Sequence[str] = (),
    epochs: float | None = None,
    seed: int = 0,
    device: str = "auto",
    base: Path | str | None = None,
    listen: Sequence[Listener] = (),
    say: Say = lambda words: None,
    watch: Watch = watch_nothing,
) -> Compressed:
    """Write the smallest model to `out` that keeps the score of a fine-tuned model on development data.

    Tried are the model with the tokens of its vocabulary that the data use, students of fewer `layers` (by default a
    half and a third; 0: none) that are distilled from it on the training data, and ONNX graphs of all these in
    `precisions`. `keep`: a share of the original's score such as "98%", or a score such as 0.91.

    `vocabulary`: "auto" prunes it only if the score is kept with the tokens of the training data and of `texts`
    (unlabelled files) alone, which tells what new texts will lose; "pruned" prunes it in any case, "whole" never.

    `train`, `dev`: labelled files or tables in memory; `text`, `pair` and `label` name their columns. `settings`,
    `epochs`, `seed` and `device` are of the training of students; all scores and speeds are of answers on the CPU.
    `base`: as in `load`. `long`: as in `Predictor`, and what the new folder says. `listen`, `say` and `watch`: as in
    `finetune`.
    """
    wanted, source, out = Keep.of(keep), model_folder(model), Path(out)
    _check(precisions, vocabulary)
    with Progress("loading the model"):
        original = Predictor(load(source, base=base), device="cpu", long=long)
    if original.task.whole_step or original.name == "embed":
        raise BothwaysError(
            f"{source} makes sentence vectors, and compress is for models that answer: make it smaller with "
            "embed.teachers and model.keep_layers of bothways finetune, and with bothways export",
            "not-distillable",
            original.name,
        )
    numbers = layers_to_try(layers, original.model.config.encoder.layers)
    lessons = Lessons(original.name, (), (), settings, epochs, seed, device, listen, say, watch)
    for count in numbers:
        recipe_for(source, count, lessons)  # what is wrong with its settings is said now
    if texts:
        find_rereadable(texts)
    with (
        atomic.new_folder(out, replaces=_replaced(out, source)) as fresh,
        as_files(train, "the training table") as train_files,
        as_files(dev, "the development table") as dev_files,
    ):
        data = FinetuneData(tuple(train_files), tuple(dev_files), text, pair, label)
        rows, tested = _read(original, data, say, watch)
        measure = Measure(original, tested, watch)
        needed = _needed(measure, wanted, name_of_model(source))
        trials = Trials(measure, needed, fresh / "work", say)
        unseen = _try_all(
            trials, replace(lessons, train=rows, dev=tested), numbers, precisions, vocabulary, texts, text
        )
        found = Compressed(
            folder=out,
            task=original.name,
            metric=measure.metric,
            keep=str(wanted),
            needed=needed,
            interval=_interval(measure),
            examples=len(tested),
            chosen=smallest(trials.steps).name,
            steps=tuple(trials.steps),
            unseen_pieces=unseen,
        )
        facts = {
            "model": name_of_model(source),
            "training data": files_and_rows(_names(train_files), len(rows)),
            "development data": files_and_rows(_names(dev_files), len(tested)),
        }
        made = {
            "vocabulary": vocabulary,
            "texts": [Path(file).name for file in texts],
            "epochs": epochs,
            "seed": seed,
            "settings": [*settings],
        }
        _write(trials, found, source, facts, made, fresh)
    return found


def _check(precisions: Sequence[str], vocabulary: str) -> None:
    for precision in precisions:
        require_choice("a precision", precision, tuple(GRAPHS))
    require_choice("`vocabulary`", vocabulary, get_args(Vocabulary))
    require_onnx()
    try:
        import onnxruntime  # noqa: F401
    except ImportError:
        raise missing_package("answering from graphs", "onnxruntime") from None


def _replaced(out: Path, source: Path) -> Sequence[str]:
    """The files in `out` that may be replaced: those of an earlier call."""
    if out.resolve() == source.resolve():
        raise BothwaysError(f"`out` is {out}, the model itself: name another folder", "same-folder", out)
    return _WRITTEN if (out / TABLE).is_file() else ()


def _read(predictor: Predictor, data: FinetuneData, say: Say, watch: Watch) -> tuple[list[Any], list[Any]]:
    """The labelled examples of the training and of the development data."""
    notes, found = Notes(), []
    for what, files in (("training", data.train), ("development", data.dev)):
        found.append(list(watch(labelled(files, predictor, data, notes), "reading", files)))
        if not found[-1]:
            named = ", ".join(_names(files)) or f"the {what} table"
            raise BothwaysError(f"{named}: no labelled rows were found, and {what} data were expected", "no-labels")
    if notes.columns:
        say(f"columns: {notes.columns}")
    if notes:
        say(str(notes))
    train, dev = found
    for example in dev:
        predictor.task.check(example)
    return train, dev


def _needed(measure: Measure, wanted: Keep, name: str) -> float:
    """The score to keep. One that the original does not have is refused: a student that is better is luck."""
    needed = wanted.score(measure.original_score, measure.metric)
    if not reaches(measure.original_score, needed, measure.metric):
        raise BothwaysError(
            f"nothing keeps {measure.metric} {needed:g}: {name} itself has {measure.original_score:.4f} on the "
            "development data; name a share of that such as 98%, or a lower score, with `keep`",
            "nothing-keeps",
            measure.original_score,
        )
    return needed


def _names(files: Sequence[str]) -> list[str]:
    """The names of files; none of a table in memory."""
    return [file for file in files if not is_frame(file)]


def _interval(measure: Measure) -> tuple[float, float] | None:
    with suppress(BothwaysError):  # a score of a histogram: it cannot be resampled
        return interval(measure.scores, measure.metric)
    return None


# ---------------------------------------------------------------------- what is tried


def _try_all(
    trials: Trials,
    lessons: Lessons,
    numbers: Sequence[int],
    precisions: Sequence[str],
    vocabulary: Vocabulary,
    texts: Sequence[Path | str],
    column: str,
) -> float | None:
    """Try the original, its pruned vocabulary, and students of these, each with every precision. Returns the original's
    score without the pieces that only development data use, if it was measured."""
    original, pruned, unseen = trials.original, None, None
    trials.add(original)
    if vocabulary != "whole":
        pruned, unseen = _pruned(trials, lessons.train, texts, column, vocabulary)
    for variant in _variants(pruned or original, numbers, lessons, trials.work):
        if variant is not original:
            trials.add(variant)
        for precision in precisions:
            trials.add(variant, precision)
    return unseen


def _pruned(
    trials: Trials, train: Sequence[Any], texts: Sequence[Path | str], column: str, vocabulary: Vocabulary
) -> tuple[Variant | None, float | None]:
    """The original with the pieces that the data use; None if that is not wanted, or drops none."""
    measure, model = trials.measure, trials.original.model
    tokenizer, task = model.require_tokenizer(), measure.original.task
    rows, unseen = model.config.encoder.vocab_size, None
    known = pieces_of_texts(texts, tokenizer, column or None)
    known += pieces_of_examples(task, train, tokenizer, rows, measure.watch)
    tested = pieces_of_examples(task, measure.examples, tokenizer, rows, measure.watch)
    if vocabulary == "auto":
        try:
            unseen = measure.score(Predictor(keep_used(model, known).model, device="cpu"))
        except BothwaysError as error:
            if error.code != "unsupported-tokenizer":
                raise
            trials.say(str(error))
            return None, None
        says = (
            f"{tested[known == 0].sum() / tested.sum():.1%} of the tokens of the development data are ones that the "
            f"other texts do not use; without these, the original has {measure.metric} {unseen:.4f}"
        )
        if not reaches(unseen, trials.needed, measure.metric):
            trials.say(
                f"{says}: the vocabulary stays whole; more texts with `texts` may help, and `vocabulary` pruned "
                "prunes it in any case"
            )
            return None, unseen
        trials.say(says)
    smaller = keep_used(model, known + tested).model
    return (Variant("fewer pieces", smaller) if smaller.config.encoder.vocab_size < rows else None), unseen


def _variants(whole: Variant, numbers: Sequence[int], lessons: Lessons, work: Path) -> Iterator[Variant]:
    """The model with all its layers, and its students, which are trained when they are asked for."""
    yield whole
    if not numbers:
        return
    write_variant(whole.model, "", work / "teacher")
    say = lessons.say
    for count in numbers:
        say(f"distilling {count} of {whole.model.config.encoder.layers} layers")
        try:
            student = distilled(work / "teacher", count, lessons, work / f"layers-{count}")
        except KeyboardInterrupt:
            say("stopped: nothing is written")
            raise
        shutil.rmtree(work / f"layers-{count}")
        yield Variant(counted(count, "layer"), student)
        lessons = replace(lessons, say=lambda words: None)  # the first student has said what holds for all


def _write(
    trials: Trials, found: Compressed, source: Path, facts: dict[str, str], made: dict[str, Any], fresh: Path
) -> None:
    """Put the model that was chosen, its card and the table into the folder."""
    assert trials.best is not None  # at least the original keeps its score
    chosen = trials.work / "chosen"
    write_variant(trials.best.model, found.best.precision, chosen)
    (chosen / CARD).write_text(card_of(trials.best.model, found, source, facts), encoding="utf-8")
    table = json.dumps({**facts, **found.as_table(), **made}, ensure_ascii=False, indent=1, allow_nan=False)
    (chosen / TABLE).write_text(table + "\n", encoding="utf-8")
    for file in chosen.iterdir():
        file.rename(fresh / file.name)
    shutil.rmtree(trials.work)
