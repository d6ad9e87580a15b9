"""The cases of the matrix, grouped into units that share one model of theirs."""

import json
import os
import random
import re
import shutil
import warnings
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import torch
import transformers
from transformers.activations import ACT2CLS

from bothways.errors import BothwaysError
from bothways.model.checkpoint import save
from bothways.model.families import FAMILIES
from bothways.model.load import load
from bothways.model.model import Model
from matrix.judge import (
    LONG,
    SHORT,
    TheirsRaisesError,
    brief,
    compare,
    config_of,
    endings_of,
    inputs_for,
    make_loud,
    their_outputs,
    theirs,
)
from matrix.table import GONE, ROWS, STRANGERS, Row, Settings

EQUAL, REFUSED, THEIRS, WRONG, CRASH = "equal", "refused", "theirs raises", "wrong", "crash"
OUTCOMES = (EQUAL, REFUSED, THEIRS, WRONG, CRASH)
FAILURES = (WRONG, CRASH)

BACK, FORTH = "ours → theirs", "theirs → ours"
FILES = (
    "safetensors",
    "bin",
    "sharded safetensors",
    "sharded bin",
    "fp16",
    "bf16",
    "fp16 bin",
    "saved fp16",
    "saved bf16",
)
HALVES = {"fp16": torch.float16, "bf16": torch.bfloat16}
CAUSAL_ENDINGS = ("ForCausalLM", "LMHeadModel")
UNSEEN = re.compile("dropout|_token_id|initializer|label|problem_type")
"""Settings that matter to training and to readers, and not to the outputs."""
BY_ROW = {row.family: row for row in ROWS}


@dataclass(frozen=True)
class Unit:
    """Cases that share one model of theirs. `items` are directions, kinds of files, or edits of config.json."""

    kind: str
    family: str
    ending: str
    variant: str
    items: tuple[str, ...]

    def __str__(self) -> str:
        return f"{self.kind}: {self.family} {self.ending} [{self.variant}]"


@dataclass(frozen=True)
class Outcome:
    """How one case ended, and the sentence or the difference."""

    unit: Unit
    item: str
    outcome: str
    why: str = ""

    def __str__(self) -> str:
        return f"{self.unit} {self.item} → {self.outcome}: {self.why}"


# ---------------------------------------------------------------------- the list


def rows_here() -> list[Row]:
    """The rows of families that bothways has."""
    return [row for row in ROWS if row.family in FAMILIES]


def rows_to_come() -> list[Row]:
    """The rows of families that bothways does not have (yet)."""
    return [row for row in ROWS if row.family not in FAMILIES]


def units(families: Iterable[str] = ()) -> list[Unit]:
    """All units, or those of some families."""
    wanted = set(families)
    found = [one for row in rows_here() if not wanted or row.family in wanted for one in _units_of(row)]
    strangers = [Unit("stranger", name, "Model", "", (FORTH,)) for name in STRANGERS if name not in FAMILIES]
    return [*found, *(one for one in strangers if not wanted or one.family in wanted)]


def _units_of(row: Row) -> Iterator[Unit]:
    endings = endings_of(row)
    for name in ("base", *row.variants):
        for ending in row.only.get(name, endings):
            if ending in endings and (ending not in CAUSAL_ENDINGS or name.startswith(("base", "decoder"))):
                yield Unit("variant", row.family, ending, name, (FORTH, BACK))
    for key, by in row.activations.items():
        for ending in by:
            if ending in endings:
                for name in ACT2CLS:
                    yield Unit("activation", row.family, ending, f"{key}={name}", (FORTH, BACK))
    two = [one for one in endings if one in ("ForMaskedLM", "ForSequenceClassification")] or ["Model"]
    for ending in two:
        yield Unit("files", row.family, ending, "base", FILES)
    for ending in two:
        yield Unit("keys", row.family, ending, "uncommon", _edits(row, ending))


def _edits(row: Row, ending: str) -> tuple[str, ...]:
    """Each key of their config.json missing and null, and the other spellings of it."""
    config = config_of(row, ending, settings_of(row, "uncommon"))
    written = {*json.loads(config.to_json_string(use_diff=True)), "architectures", "dtype"}
    keys = sorted(written - {"transformers_version"})
    return (*(f"{key} {how}" for key in keys for how in ("missing", "null")), *row.edits)


def settings_of(row: Row, variant: str) -> dict[str, Any]:
    """The arguments of their config class."""
    if variant == "base":
        return dict(row.base)
    if variant == "uncommon":
        return {**row.base, **row.uncommon}
    if "=" in variant:
        key, name = variant.split("=")
        return {**row.base, key: name}
    return {**row.base, **row.variants[variant]}


def keys_of(unit: Unit, item: str) -> set[str]:
    """The settings that a refusal may name."""
    if unit.kind == "stranger":
        return {unit.family}
    row = BY_ROW[unit.family]
    if unit.kind == "keys":
        return _nested(row.edits.get(item) or {item.rsplit(" ", 1)[0]: None})
    if unit.kind == "activation":
        return {unit.variant.split("=")[0]}
    return _nested(row.variants.get(unit.variant, {}))


def _nested(settings: Settings) -> set[str]:
    """The keys of settings and of the tables in them, such as rope_type."""
    inner = [_nested(value) for value in settings.values() if isinstance(value, dict)]
    return {key for key in map(str, settings) if key.isidentifier()}.union(*inner)


def sample(count: int, seed: int = 0) -> list[Unit]:
    """An even, seeded sample of single cases: as many of each kind and family as the whole has, in proportion."""
    cases = [replace(unit, items=(item,)) for unit in units() for item in unit.items]
    step = len(cases) / count
    start = random.Random(seed).random() * step
    return [cases[int(start + i * step)] for i in range(count)]


# ---------------------------------------------------------------------- running


def settle() -> None:
    """In every process that runs cases: one thread, no progress bars, no warnings in the log, no waiting for the disk."""
    torch.set_num_threads(1)
    transformers.logging.disable_progress_bar()
    transformers.logging.set_verbosity_error()
    os.fsync = lambda fd: None


def run(unit: Unit) -> list[Outcome]:
    """All cases of a unit."""
    with TemporaryDirectory() as folder, warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            match unit.kind:
                case "stranger":
                    return [_stranger(unit, Path(folder))]
                case "files":
                    return [_file(unit, item, Path(folder)) for item in unit.items]
                case "keys":
                    return list(_keys(unit, Path(folder)))
            return _both_ways(unit, Path(folder))
        except TheirsRaisesError as error:
            return [Outcome(unit, unit.items[0], THEIRS, str(error))]


def _build(unit: Unit) -> Any:
    row = BY_ROW[unit.family]
    return theirs(row, unit.ending, settings_of(row, unit.variant))


def _write(model: Any, folder: Path, **options: Any) -> None:
    try:
        model.save_pretrained(folder, **options)
    except Exception as error:
        raise TheirsRaisesError(brief(error)) from error


def _both_ways(unit: Unit, folder: Path) -> list[Outcome]:
    """A folder of theirs read by us; then other weights written by us and read by them."""
    row, model = BY_ROW[unit.family], _build(unit)
    _write(model, folder / "theirs")
    forth = _judged(unit, FORTH, folder / "theirs", model)
    found = [forth] if FORTH in unit.items else []
    if forth.outcome == EQUAL and BACK in unit.items:
        ours = Model.new(load(folder / "theirs").config).eval()
        make_loud(ours, seed=5)
        try:
            save(ours, folder / "ours")
        except Exception as error:
            return [*found, Outcome(unit, BACK, CRASH, brief(error))]
        try:
            opened = _opened(type(model), folder / "ours")
        except TheirsRaisesError as error:
            return [*found, Outcome(unit, BACK, WRONG, f"what we wrote they cannot open: {error}")]
        if lost := _lost(model.config, opened.config):
            return [*found, Outcome(unit, BACK, WRONG, f"settings that we did not write back: {lost}")]
        found.append(_compared(unit, BACK, row, ours, opened, [SHORT]))
    return found or [forth]


def _lost(before: Any, after: Any) -> dict[str, tuple[Any, Any]]:
    """The settings that no output shows, and that their class reads differently from the folder that we wrote."""
    one, other = before.to_dict(), after.to_dict()
    unseen = [key for key in {*one, *other} if UNSEEN.search(key)]
    return {key: (one.get(key), other.get(key)) for key in sorted(unseen) if one.get(key) != other.get(key)}


def _judged(unit: Unit, item: str, folder: Path, model: Any) -> Outcome:
    """Their folder opened by us, compared with their model."""
    try:
        ours = load(folder)
    except BothwaysError as error:
        if not _computes(unit, model):
            return Outcome(unit, item, THEIRS, f"ours refuses as well: {_without_folder(error)}")
        return _refused(unit, item, error, {*(keys_of(unit, item) or {unit.family}), type(model).__name__})
    except Exception as error:
        return Outcome(unit, item, CRASH, brief(error))
    row, classes = BY_ROW[unit.family], endings_of(BY_ROW[unit.family])
    # Only the body depends on the length: one class for each variant reads long sequences too.
    far = unit.kind == "variant" and unit.ending == ("ForMaskedLM" if "ForMaskedLM" in classes else "Model")
    return _compared(unit, item, row, ours, model, [SHORT, LONG] if far else [SHORT])


def _computes(unit: Unit, model: Any) -> bool:
    try:
        their_outputs(model, unit.ending, inputs_for(BY_ROW[unit.family], model.config, SHORT))
    except TheirsRaisesError:
        return False
    return True


def _compared(unit: Unit, item: str, row: Row, ours: Model, model: Any, lengths: list[tuple[int, ...]]) -> Outcome:
    try:
        why = compare(row, ours, model, unit.ending, lengths)
    except TheirsRaisesError as error:  # a folder that we wrote they must be able to read
        return Outcome(unit, item, WRONG if item == BACK else THEIRS, str(error))
    except BothwaysError as error:  # such as a head that ours does not have
        return Outcome(unit, item, WRONG, f"opened, and then: {error}")
    except Exception as error:
        return Outcome(unit, item, CRASH, brief(error))
    return Outcome(unit, item, WRONG if why else EQUAL, why)


def _without_folder(error: BothwaysError) -> str:
    return re.sub(r"\S*/(theirs|ours|files)\b", "FOLDER", str(error))


def _refused(unit: Unit, item: str, error: BothwaysError, keys: set[str]) -> Outcome:
    """A refusal must be one sentence that names the key."""
    sentence = _without_folder(error)
    if "\n" in str(error) or re.search(r"[.!?]\s+[A-Z]", str(error)):
        return Outcome(unit, item, WRONG, f"refused in more than one sentence: {sentence}")
    if not any(key in sentence or key in repr(error.value) for key in keys):
        return Outcome(unit, item, WRONG, f"refused without naming {' or '.join(sorted(keys))}: {sentence}")
    return Outcome(unit, item, REFUSED, sentence)


def _opened(kind: Any, folder: Path) -> Any:
    """Their class, from a folder. Weights that it leaves out or invents are an error."""
    try:
        model, report = kind.from_pretrained(folder, output_loading_info=True, dtype=torch.float32)
    except Exception as error:
        raise TheirsRaisesError(brief(error)) from error
    if wrong := {key: sorted(map(str, report[key]))[:2] for key in report if report[key]}:
        raise TheirsRaisesError(f"the weights do not fit: {wrong}")
    return model.eval()


def _file(unit: Unit, item: str, folder: Path) -> Outcome:
    """The same weights in another kind of file."""
    model, path = _build(unit), folder / item.replace(" ", "-") / "files"
    path.mkdir(parents=True)
    half = HALVES.get(item.split()[-1] if item.startswith("saved") else item.split()[0])
    if item.startswith("saved"):
        return _saved_half(unit, item, model, path, half)
    if half is not None:
        model = model.to(half)
    _write(model, path, **({"max_shard_size": "20KB"} if "sharded" in item else {}))
    if "bin" in item:
        _as_pickles(path)
    assert ("sharded" in item) == any(path.glob("*.index.json")), "the file is not of the kind that was meant"
    try:
        opened = _opened(type(model), path)  # not model.float(): its buffers, such as rotary frequencies, are rounded
    except TheirsRaisesError as error:
        return _without_a_judge(unit, item, path, error)
    return _judged(unit, item, path, opened)


def _saved_half(unit: Unit, item: str, model: Any, path: Path, half: torch.dtype | None) -> Outcome:
    """Half precision written by us: both sides read the rounded weights."""
    _write(model, path)
    try:
        save(load(path), path.parent / "ours", dtype=half)
    except Exception as error:
        return Outcome(unit, item, CRASH, brief(error))
    try:
        opened = _opened(type(model), path.parent / "ours")
    except TheirsRaisesError as error:
        return Outcome(unit, item, WRONG, f"what we wrote they cannot open: {error}")
    return _judged(unit, item, path.parent / "ours", opened)


def _as_pickles(folder: Path) -> None:
    """Safetensors files as pickles: what transformers wrote before version 5."""
    from safetensors.torch import load_file

    def name_of(old: str) -> str:
        return old.replace("model", "pytorch_model").replace(".safetensors", ".bin")

    for file in folder.glob("*.safetensors"):
        torch.save(load_file(file), folder / name_of(file.name))
        file.unlink()
    for file in folder.glob("*.index.json"):
        index = json.loads(file.read_text())
        index["weight_map"] = {key: name_of(value) for key, value in index["weight_map"].items()}
        (folder / name_of(file.name)).write_text(json.dumps(index))
        file.unlink()


def _keys(unit: Unit, folder: Path) -> Iterator[Outcome]:
    """Edits of config.json, one at a time; their class reads the same folder."""
    model = _build(unit)
    _write(model, folder / "theirs")
    for item in unit.items:
        path = _edited_folder(unit, item, folder)
        try:
            opened = _opened(type(model), path)
            their_outputs(opened, unit.ending, inputs_for(BY_ROW[unit.family], opened.config, SHORT))
        except TheirsRaisesError as error:
            yield _without_a_judge(unit, item, path, error, _as_missing(unit, item, folder, type(model)))
            continue
        yield _judged(unit, item, path, opened)


def _edited_folder(unit: Unit, item: str, folder: Path) -> Path:
    # Not named after the item: a sentence that names the folder would then name the key.
    path = folder / "missing" / "theirs" if item.endswith("missing") else folder / "edited" / "theirs"
    shutil.copytree(folder / "theirs", path, dirs_exist_ok=True)
    config = json.loads((path / "config.json").read_text())
    (path / "config.json").write_text(json.dumps(edited(config, BY_ROW[unit.family], item)))
    return path


def _as_missing(unit: Unit, item: str, folder: Path, kind: Any) -> Any:
    """Their class with the key missing, for a key that is null: most of their config classes do not read null."""
    if not item.endswith(" null") or item in BY_ROW[unit.family].edits:
        return None
    try:
        return _opened(kind, _edited_folder(unit, item.removesuffix("null") + "missing", folder))
    except TheirsRaisesError:
        return None


def edited(config: dict[str, Any], row: Row, item: str) -> dict[str, Any]:
    """A config.json with a key missing, or null, or with the edits of that name."""
    if item in row.edits:
        mixed = {**config, **row.edits[item]}
        return {key: value for key, value in mixed.items() if value != GONE}
    key, how = item.rsplit(" ", 1)
    return {**config, key: None} if how == "null" else {k: v for k, v in config.items() if k != key}


def _without_a_judge(unit: Unit, item: str, folder: Path, error: TheirsRaisesError, other: Any = None) -> Outcome:
    """Ours may refuse as well, in whatever sentence, but not crash; if it reads null, null means a missing key."""
    try:
        ours = load(folder)
    except BothwaysError:
        return Outcome(unit, item, THEIRS, f"ours refuses as well: {error}")
    except Exception as crash:
        return Outcome(unit, item, CRASH, brief(crash))
    if other is not None:
        outcome = _compared(unit, item, BY_ROW[unit.family], ours, other, [SHORT])
        if outcome.outcome in FAILURES:
            return replace(outcome, why=f"null is not read as a missing key: {outcome.why}")
    return Outcome(unit, item, THEIRS, f"ours opens it: {error}")


def _stranger(unit: Unit, folder: Path) -> Outcome:
    """A folder of a family that we do not have."""
    (folder / "theirs").mkdir()
    config = {"model_type": unit.family, "hidden_size": 32, "num_hidden_layers": 2, "vocab_size": 99}
    (folder / "theirs/config.json").write_text(json.dumps(config))
    from safetensors.torch import save_file

    save_file({"embeddings.word_embeddings.weight": torch.zeros(99, 32)}, folder / "theirs/model.safetensors")
    try:
        load(folder / "theirs")
    except BothwaysError as error:
        return _refused(unit, FORTH, error, {unit.family})
    except Exception as error:
        return Outcome(unit, FORTH, CRASH, brief(error))
    return Outcome(unit, FORTH, WRONG, "opened, though the model_type is not known")
