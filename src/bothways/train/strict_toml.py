"""Recipes: TOML files read strictly into dataclasses. An unknown key is an error that names the nearest known one."""

import dataclasses
import difflib
import json
import tomllib
import types
import typing
import warnings
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar

from bothways.errors import BothwaysError, require_choice, require_range
from bothways.ranges import Range

Recipe = TypeVar("Recipe")
LENGTHS = ("steps", "minutes", "epochs")
"""The keys of `[run]` that set its length."""

RENAMED = {
    "model.hidden": "ffn_width",
    "model.heads": "num_heads",
    "model.embedding": "embedding_width",
    "model.take": "keep_layers",
    "optim.decay": "weight_decay",
    "optim.muon_decay": "muon_weight_decay",
    "run.recompute": "gradient_checkpointing",
    "run.batch": "batch_size",
    "classify.smoothing": "label_smoothing",
    "classify.focal": "focal_gamma",
    "classify.weights": "class_weights",
    "classify.goal": "metric",
    "answer.longest": "max_answer_length",
    "distill.heads": "relation_heads",
    "distill.layer": "relation_layer",
}
"""Keys of version 0.1 and their names since 0.2, which accepts both; 0.3 will not."""
_LEVELS = 20
_REMOVED = {"mlm.decoder": "plain"}
"""Removed keys of version 0.1, with the one value that is still accepted because it changes nothing."""


def read_table(path: Path) -> dict[str, Any]:
    """The content of a recipe file."""
    try:
        return with_new_names(tomllib.loads(path.read_text(encoding="utf-8")))
    except FileNotFoundError as error:
        raise BothwaysError(f"there is no recipe {path}", "no-file", path) from error
    except (OSError, ValueError) as error:
        raise BothwaysError(f"{path} is not a TOML file: {error}", "damaged-file", path) from error
    except RecursionError as error:
        raise BothwaysError(f"{path} has tables too deep inside of each other", "damaged-file", path) from error


def with_new_names(table: Mapping[str, Any]) -> dict[str, Any]:
    """The table with keys of version 0.1 renamed, and a warning for each. A table with many levels is refused."""
    level: list[Any] = [table]
    for _ in range(_LEVELS):
        level = [part for one in level if (parts := _parts(one)) for part in parts]
    if level:
        raise BothwaysError(f"the recipe has more than {_LEVELS} tables inside of each other", "too-deep", _LEVELS)
    found: dict[str, Any] = {}
    for section, values in table.items():
        if isinstance(values, Mapping):
            if both := [key for key in values if RENAMED.get(f"{section}.{key}") in values]:
                new = RENAMED[f"{section}.{both[0]}"]
                raise BothwaysError(
                    f"the recipe has {section}.{both[0]} and {section}.{new}, its new name: keep the new one",
                    "repeated-key",
                    f"{section}.{both[0]}",
                )
            values = {
                _new_name(f"{section}.{key}").rpartition(".")[2]: value
                for key, value in values.items()
                if _REMOVED.get(f"{section}.{key}") != value
            }
        found[section] = values
    return found


def _parts(value: Any) -> Sequence[Any]:
    return list(value.values()) if isinstance(value, Mapping) else value if isinstance(value, list | tuple) else ()


def _new_name(path: str) -> str:
    if path not in RENAMED:
        return path
    new = f"{path.partition('.')[0]}.{RENAMED[path]}"
    warnings.warn(f"the recipe key {path} is now {new}: version 0.3 will not read the old name", stacklevel=2)
    return new


def with_settings(table: Mapping[str, Any], settings: Sequence[str]) -> dict[str, Any]:
    """The table with changes as in `["optim.lr=3e-5", "run.steps=100"]`.

    A number in the path is an index into a list: `phases.0.length=64`.
    """
    changed: dict[str, Any] = json.loads(json.dumps(with_new_names(table), default=_not_a_value))
    for setting in settings:
        path, equals, value = setting.partition("=")
        if not equals or not path:
            raise BothwaysError(f"`set` {setting}: expected key=value, as in optim.lr=3e-5", "bad-setting", setting)
        try:
            parsed = tomllib.loads(f"value = {value}")["value"]
        except tomllib.TOMLDecodeError:
            parsed = value  # a string without quotes
        except (ValueError, RecursionError) as error:
            raise BothwaysError(f"`set` {setting}: {error}", "bad-setting", setting) from error
        *parents, last = _new_name(path).split(".")
        place: Any = changed
        for name in parents:
            place = _enter(place, name, setting)
        if isinstance(place, list):
            _enter(place, last, setting)
            place[int(last)] = parsed
        else:
            place[last] = parsed
        if parents == ["run"] and last in LENGTHS and parsed:  # a new length replaces the recipe's
            for other in LENGTHS:
                if other != last:
                    place.pop(other, None)
    return with_new_names(changed)


def _not_a_value(value: object) -> None:
    raise BothwaysError(f"the recipe has the value {value}: no key is a date or a time", "wrong-type", value)


def _enter(place: Any, name: str, setting: str) -> Any:
    if isinstance(place, list):
        if not name.isdigit() or int(name) >= len(place):
            raise BothwaysError(
                f"`set` {setting}: there is no entry {name} in a list of {len(place)}", "bad-setting", setting
            )
        return place[int(name)]
    found = place.setdefault(name, {})
    if not isinstance(found, dict | list):
        raise BothwaysError(f"`set` {setting}: {name} is a value, not a table", "bad-setting", setting)
    return found


def read(kind: type[Recipe], table: Any, where: str = "") -> Recipe:
    """The dataclass that a table describes. Names and types are checked, then the dataclass checks itself."""
    if not isinstance(table, Mapping):
        raise BothwaysError(f"{where or 'the recipe'} should be a table, not {table!r}", "wrong-type", where)
    fields = {field.name: field for field in dataclasses.fields(kind)}  # type: ignore[arg-type]
    hints = typing.get_type_hints(kind)
    values = {}
    for name, value in table.items():
        full = f"{where}.{name}" if where else name
        if name not in fields:
            near = difflib.get_close_matches(name, fields, 1, 0.5)
            hint = f"did you mean {near[0]}?" if near else f"known are {', '.join(fields)}"
            raise BothwaysError(f"the recipe has no key {full}: {hint}", "unknown-key", full)
        values[name] = _value(hints[name], value, full)
    return kind(**values)


def _value(kind: Any, value: Any, where: str) -> Any:
    """The value as this type; BothwaysError if it is another."""
    origin, arguments = typing.get_origin(kind), typing.get_args(kind)
    if kind is Any:
        return value
    if dataclasses.is_dataclass(kind):
        return read(kind, value, where)  # type: ignore[arg-type]
    if origin in (typing.Union, types.UnionType):
        for one in arguments:
            if one is type(None):
                if value is None:
                    return None
                continue
            try:
                return _value(one, value, where)
            except BothwaysError as error:
                last = error
        raise last
    if origin is typing.Literal:
        require_choice(where, value, tuple(filter(None, arguments)) if value else arguments)
        return value
    if origin is tuple and isinstance(value, list | tuple):
        inner = [arguments[0]] * len(value) if arguments[-1] is Ellipsis else arguments
        if len(inner) != len(value):
            raise BothwaysError(f"{where} should have {len(inner)} entries, not {len(value)}", "wrong-type", where)
        return tuple(_value(one, v, f"{where}.{i}") for i, (one, v) in enumerate(zip(inner, value, strict=True)))
    if origin is dict and isinstance(value, Mapping):
        return {str(name): _value(arguments[1], v, f"{where}.{name}") for name, v in value.items()}
    if kind is float and isinstance(value, int) and not isinstance(value, bool):
        require_range(where, value, Range().holds(value), str(Range()))
        return float(value)
    if isinstance(kind, type) and isinstance(value, kind) and not (kind is int and isinstance(value, bool)):
        return value
    names = {int: "a whole number", float: "a number", bool: "true or false", str: "a text in quotes"}
    expected = names.get(kind, "a list" if origin is tuple else "a table")
    raise BothwaysError(f"{where} should be {expected}, not {value!r}", "wrong-type", where)


def write_table(table: Mapping[str, Any]) -> str:
    """A table as TOML; keys whose value is None are left out."""
    plain = {name: value for name, value in table.items() if not _is_section(value)}
    lines = [f"{name} = {_toml(value)}" for name, value in plain.items() if value is not None]
    for name, value in table.items():
        if name in plain:
            continue
        for section in [value] if isinstance(value, dict) else value:
            lines += ["", f"[{name}]" if isinstance(value, dict) else f"[[{name}]]"]
            lines += [f"{key} = {_toml(v)}" for key, v in section.items() if v is not None]
    return "\n".join(lines).lstrip() + "\n"


def _is_section(value: Any) -> bool:
    return isinstance(value, dict) or (isinstance(value, list | tuple) and bool(value) and isinstance(value[0], dict))


def _toml(value: Any) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, str):
        return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")  # allowed in JSON, but not in TOML
    if isinstance(value, list | tuple):
        return "[" + ", ".join(map(_toml, value)) + "]"
    if isinstance(value, dict):
        return "{" + ", ".join(f"{_toml(k)} = {_toml(v)}" for k, v in value.items()) + "}"
    return repr(value)
