"""What workers do: open a model once, then turn units into parts. Jobs travel to workers, so they are plain data."""

import json
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Protocol

from bothways.errors import BothwaysError
from bothways.model.fingerprint import fingerprint
from bothways.predict.encode_options import Combine, Long
from bothways.predict.encode_options import Unit as Per
from bothways.scale.join import join_lines, join_vectors
from bothways.scale.turns import Tell, Turn, rows_of, told_to
from bothways.scale.units import Counts, Cursor, Unit, done_of, sum_of, write_json
from bothways.text.streams import read_as

if TYPE_CHECKING:
    from bothways.engine.engine import Engine
    from bothways.engine.reader import Tally
    from bothways.model.static import StaticModel
    from bothways.predict.features import Features, TextRecipe
    from bothways.predict.vectors import VectorBlock

Runner = Callable[[Unit], Counts]
"""Writes the part of a unit, or of its beginning, and counts."""


class Job(Protocol):
    """One verb with its options."""

    def plan(self) -> dict[str, Any]:
        """What its parts depend on, beside the inputs: "verb", "options" and "model"."""

    def open(self, device: str) -> Runner:
        """Called once in each worker."""


class FileJob(Job, Protocol):
    """A job that makes one file of each input."""

    def join(self, parts: Sequence[Path], counts: Sequence[Counts], out: Path) -> None:
        """Parts, in order → one file."""


def run_unit(runner: Runner, unit: Unit, tell: Tell | None = None) -> Counts:
    """Do what is left of a unit, in turns: a part, then its counts. `tell` hears how far it is."""
    done, left = done_of(unit)

    def heard(now: Counts) -> None:
        if tell:
            tell({name: value + sum(counts.get(name, 0) for _, counts in done) for name, value in now.items()})

    while left is not None:
        try:
            with told_to(heard):
                counts = runner(left)
        except BothwaysError as error:
            if unit.file in str(error):  # readers name the place themselves
                raise
            raise BothwaysError(f"{unit.file}: {error}", error.code, error.value) from error
        write_json(left.counts, counts)
        done, left = done_of(unit)
    return sum_of(counts for _, counts in done)


def in_encoding(encoding: str, run: Runner) -> Runner:
    """A runner whose files are read in this encoding: a worker has none of the settings of the process that plans."""

    def wrapped(unit: Unit) -> Counts:
        with read_as(encoding):
            return run(unit)

    return wrapped


def model_facts(model: str | None, base: str | None) -> dict[str, str]:
    """The fingerprint of a model folder, and of the base model of an adapter."""
    from bothways.model.adapter_config import base_of
    from bothways.model.box import model_folder

    folder = model_folder(model)
    found = fingerprint(folder)
    if folder.is_dir() and (other := base_of(folder, base)) is not None:
        found |= {f"{other}/{name}": value for name, value in fingerprint(Path(other)).items()}
    return found


# ---------------------------------------------------------------------- encode


@dataclass(frozen=True)
class EncodeJob:
    """`bothways encode`."""

    model: str | None = None
    base: str | None = None
    layers: Any = "last"
    combine: Combine = "concat"
    weights: tuple[float, ...] | None = None
    per: Per = "text"
    pool: tuple[Any, ...] | None = None
    prompt: str | None = None
    prompt_name: str | None = None
    long: Long = "error"
    field: str | None = None
    dtype: str = "auto"
    encoding: str = ""
    verb: ClassVar[str] = "encode"

    def plan(self) -> dict[str, Any]:
        return {"verb": self.verb, "options": asdict(self), "model": model_facts(self.model, self.base)}

    def open(self, device: str) -> Runner:
        from bothways.engine.engine import Engine
        from bothways.engine.reader import Tally
        from bothways.model.opened import open_model
        from bothways.predict.features import Features, text_recipe
        from bothways.predict.vectors import write_vectors
        from bothways.text.files import read_any_texts, read_texts

        engine = Engine(open_model(self.model, self.base), device=device, dtype=self.dtype)
        model = engine.model
        features = Features(self.layers, self.combine, self.weights, self.long)
        pool = list(self.pool) if self.pool else None
        recipe = text_recipe(model, features, pool, self.prompt, self.prompt_name) if self.per == "text" else None
        width = (recipe or features).width(model.config.encoder)
        read = read_any_texts if self.per == "text" else read_texts
        cursor = Cursor(lambda file: read(Path(file), self.field))

        def run(unit: Unit) -> Counts:
            cursor.seek(unit.file, unit.first)
            tally = Tally()
            turn = Turn(cursor.take(unit.rows), engine.device.type)
            blocks = vector_blocks(turn, engine, self.per, recipe, features, tally, unit.first)
            each = rows_of if recipe else lambda _: 1
            count = write_vectors(unit.part, turn.answers(blocks, each), width)
            return {"rows": tally.texts, "vectors": count, "width": width, "tally": vars(tally), **turn.counts()}

        return in_encoding(self.encoding, run)

    def join(self, parts: Sequence[Path], counts: Sequence[Counts], out: Path) -> None:
        filled = [part for part, count in zip(parts, counts, strict=True) if count["vectors"]]
        join_vectors(filled or parts[:1], sum(count["vectors"] for count in counts), counts[0]["width"], out)


def vector_blocks(
    texts: Iterable[Any],
    engine: "Engine",
    per: Per,
    recipe: "TextRecipe | None",
    features: "Features",
    tally: "Tally",
    first: int = 0,
) -> "Iterator[VectorBlock]":
    """The vectors of texts, tokens or words with the fields that describe them. `first`: number of the first text."""
    from bothways.predict.encode import encode_blocks, iter_tokens

    if recipe is not None:
        count = first
        for vectors in encode_blocks(texts, engine, recipe, tally, first):
            yield {"text": range(count, count + len(vectors))}, vectors
            count += len(vectors)
        return
    assert per != "text"
    found = iter_tokens(texts, engine, per=per, features=features, tally=tally, first=first)
    for i, tokens in enumerate(found, first):
        starts, ends = zip(*tokens.offsets, strict=True) if tokens.offsets else ((), ())
        yield {"text": [i] * len(starts), per: tokens.texts, "start": starts, "end": ends}, tokens.vectors


def static_blocks(texts: Iterable[str], model: "StaticModel", first: int = 0) -> "Iterator[VectorBlock]":
    """The same of a static model."""
    for vectors in model.blocks(texts):
        yield {"text": range(first, first + len(vectors))}, vectors
        first += len(vectors)


# ---------------------------------------------------------------------- predict


@dataclass(frozen=True)
class PredictJob:
    """`bothways predict`."""

    model: str
    base: str | None = None
    text: str = ""
    pair: str = ""
    long: Long | None = None
    top: int = 1
    keep: tuple[str, ...] | None = None
    probabilities: bool = False
    dtype: str = "auto"
    encoding: str = ""
    bom: bool = False
    verb: ClassVar[str] = "predict"

    def plan(self) -> dict[str, Any]:
        return {"verb": self.verb, "options": asdict(self), "model": model_facts(self.model, self.base)}

    def open(self, device: str) -> Runner:
        from bothways.data.notes import Notes
        from bothways.engine.reader import Tally
        from bothways.predict.predictor import Predictor
        from bothways.predict.rows import inputs_with_rows, predicted_rows, write_rows
        from bothways.tasks.labelled_files import FinetuneData

        predictor = Predictor.load(self.model, base=self.base, device=device, dtype=self.dtype, long=self.long)
        columns, notes = FinetuneData(text=self.text, pair=self.pair).columns, Notes(whole=True)
        cursor = Cursor(lambda file: inputs_with_rows(predictor, file, columns, notes, self.keep))

        def run(unit: Unit) -> Counts:
            cursor.seek(unit.file, unit.first)
            for old in (notes.counts, notes.first, notes.values):  # what rows before the unit had
                old.clear()
            tally = predictor.task.reader.tally = Tally()
            asked: dict[str, Any] = {"top": self.top, "probabilities": self.probabilities, "first": unit.first}
            turn = Turn(cursor.take(unit.rows), predictor.model.device.type)
            rows = write_rows(unit.part, turn.answers(predicted_rows(predictor, turn, notes=notes, **asked)))
            noted = {name: getattr(notes, name) for name in ("counts", "first", "values", "columns")}
            found = {"rows": rows, "tally": vars(tally), "notes": json.loads(json.dumps(noted, default=str))}
            return found | turn.counts()

        return in_encoding(self.encoding, run)

    def join(self, parts: Sequence[Path], counts: Sequence[Counts], out: Path) -> None:
        from bothways.predict.rows import join_csv, join_parquet

        if out.suffix == ".csv":
            join_csv(parts, out, bom=self.bom)
        else:
            (join_parquet if out.suffix == ".parquet" else join_lines)(parts, out)
