"""Checks a request against its JSON schema, the same that /openapi.json publishes. One sentence says what is wrong.

Known: type, anyOf with `title`, enum, minimum, maximum, minItems, items, properties, required; other keys are refused.
"""

import difflib
import json
from collections.abc import Mapping
from typing import Any

from bothways.serve.refusal import RefusedError

Schema = Mapping[str, Any]
_TYPES: dict[str, tuple[type, ...]] = {
    "string": (str,),
    "integer": (int,),
    "number": (int, float),
    "boolean": (bool,),
    "array": (list,),
    "object": (dict,),
    "null": (type(None),),
}
_NAMES = {
    "string": "a text",
    "integer": "a whole number",
    "number": "a number",
    "boolean": "true or false",
    "array": "a list",
    "object": "an object",
    "null": "null",
}


def parse(body: bytes) -> Any:
    """The value of a JSON text. What is none is a 400."""
    try:
        return json.loads(body.decode("utf-8"), parse_constant=_no_constant)
    except UnicodeDecodeError as error:
        raise RefusedError(400, f"the body is not UTF-8: byte {error.start} is wrong", "malformed-json") from error
    except (ValueError, RecursionError) as error:
        where = f" at character {error.pos}" if isinstance(error, json.JSONDecodeError) else ""
        raise RefusedError(400, f"the body is no valid JSON{where}: expected an object", "malformed-json") from error


def _no_constant(name: str) -> Any:
    raise ValueError(name)  # NaN and Infinity are not JSON


def check(value: Any, schema: Schema, where: str = "") -> None:
    """Refuse a value that is not as the schema says. `where`: its place in the request, as in `input[2]`."""
    if "anyOf" in schema:
        if not any(_fits(value, one, where) for one in schema["anyOf"]):
            raise _wrong(where, f"must be {schema['title']}", value)
        return
    kind = schema["type"]
    if type(value) not in _TYPES[kind]:  # true is no number
        raise _wrong(where, f"must be {_NAMES[kind]}", value)
    if "enum" in schema and value not in schema["enum"]:
        names = ", ".join(json.dumps(one) for one in schema["enum"])
        raise RefusedError(422, f"{_named(where)} cannot be {_shown(value)}: expected {names}", "unknown-choice", where)
    low, high = schema.get("minimum"), schema.get("maximum")
    if (low is not None and value < low) or (high is not None and value > high):
        says = f"{low} to {high}" if high is not None and low is not None else f"{low} or more"
        raise RefusedError(422, f"{_named(where)} must be {says}, not {_shown(value)}", "out-of-range", where)
    if kind == "string":
        _require_characters(value, where)
    elif kind == "array":
        _check_items(value, schema, where)
    elif kind == "object" and "properties" in schema:
        _check_keys(value, schema, where)


def _check_items(value: list[Any], schema: Schema, where: str) -> None:
    if len(value) < schema.get("minItems", 0):
        raise RefusedError(422, f"{_named(where)} is empty: expected at least one item", "empty", where)
    if items := schema.get("items"):
        for number, item in enumerate(value):
            check(item, items, f"{where}[{number}]")


def _check_keys(value: dict[str, Any], schema: Schema, where: str) -> None:
    known = schema["properties"]
    for key in value:
        if key not in known:
            near = difflib.get_close_matches(key, known, 1)
            hint = f"did you mean {near[0]}?" if near else f"expected {', '.join(known)}"
            raise RefusedError(
                422, f"{_named(where)} has the unknown key {_shown(key)}: {hint}", "unknown-key", key[:80]
            )
    for key in schema.get("required", ()):
        if key not in value:
            raise RefusedError(422, f"{_named(where)} has no {key}, which is required", "missing-key", key)
    for key, item in value.items():
        # As clients write what they do not set.
        if item is not None or key in schema.get("required", ()):
            check(item, known[key], f"{where}.{key}" if where else key)


def _fits(value: Any, schema: Schema, where: str) -> bool:
    try:
        check(value, schema, where)
    except RefusedError as error:
        if error.code in ("surrogate", "empty"):  # the kind is right, and the sentence says more
            raise
        return False
    return True


def _require_characters(text: str, where: str) -> None:
    """Refuse half of a UTF-16 pair, which JSON can write and UTF-8 cannot."""
    try:
        text.encode("utf-8")
    except UnicodeEncodeError as error:
        says = f"{_named(where)} has half of a surrogate pair at character {error.start}, which is no character"
        raise RefusedError(422, says, "surrogate", where or None) from error


def _wrong(where: str, must: str, value: Any) -> RefusedError:
    kind = next((_NAMES[name] for name, types in _TYPES.items() if type(value) in types), "something else")
    return RefusedError(422, f"{_named(where)} {must}, and {kind} was given", "wrong-type", where or None)


def _named(where: str) -> str:
    return f"`{where}`" if where else "the body"


def _shown(value: Any) -> str:
    """A short value as JSON; of a long one the beginning."""
    text = json.dumps(value, ensure_ascii=False)
    return text if len(text) <= 40 else text[:39] + "…"


# ---------------------------------------------------------------------- what several endpoints have

TEXT: Schema = {"type": "string"}
TEXTS: Schema = {"type": "array", "items": TEXT, "minItems": 1}
IDS: Schema = {"type": "array", "items": {"type": "integer", "minimum": 0}, "minItems": 1}
MODEL: Schema = {"type": "string", "description": "Name of the model; by default the first that fits the request."}
TRUNCATE: Schema = {
    "type": "boolean",
    "description": "Truncate texts that are too long; the response counts the tokens. By default they are refused.",
}
LONG: Schema = {
    "type": "string",
    "enum": ["error", "cut", "window"],
    "description": "Texts beyond the maximum length: refuse, truncate (cut), or read in overlapping windows.",
}
TOP: Schema = {"type": "integer", "minimum": 1, "maximum": 100}


def fields(required: tuple[str, ...] = (), **properties: Schema) -> Schema:
    """The schema of an object with these keys."""
    return {"type": "object", "properties": properties, "required": list(required), "additionalProperties": False}
