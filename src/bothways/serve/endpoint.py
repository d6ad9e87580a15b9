"""An endpoint: its path, the shape of its requests and errors, and what it asks of the models."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from bothways.predict.encode_options import Long
from bothways.serve.model import Asked
from bothways.serve.refusal import RefusedError
from bothways.serve.schema import Schema
from bothways.serve.service import Request, Service

Body = Mapping[str, Any]
Ask = Callable[[Service, Body], Request]


@dataclass(frozen=True)
class Endpoint:
    """One path that answers POST requests."""

    path: str
    about: str
    shape: str
    """Whose shape errors have: openai, tei or cohere."""
    schema: Schema
    example: Body
    ask: Ask
    """A checked body → the request to the models."""


def long_of(body: Body, default: Long) -> Long:
    """What happens to long texts: `truncate` true is cut, and `long` says it by name."""
    long, truncate = body.get("long"), body.get("truncate")
    if long is not None and truncate is not None and truncate != (long == "cut"):
        says = f"`truncate` is {str(truncate).lower()} and `long` is {long}: give one of them"
        raise RefusedError(422, says, "bad-combination", "long")
    if long is not None:
        return long  # type: ignore[no-any-return]  # the schema has checked it
    return default if truncate is None else "cut" if truncate else "error"


def of(body: Body, name: str, default: Any) -> Any:
    """A value of the body; null is the default."""
    value = body.get(name)
    return default if value is None else value


def truncated(asked: Asked) -> list[dict[str, int]]:
    """What was cut, as answers say it."""
    return [{"index": i, "tokens": lost} for i, lost in asked.cut.items()]


def with_truncated(answer: dict[str, Any], asked: Asked) -> dict[str, Any]:
    """The answer, and what was cut if anything was."""
    return {**answer, "truncated": truncated(asked)} if asked.cut else answer


def usage(asked: Asked) -> dict[str, int]:
    """The tokens that were read, as OpenAI counts them."""
    return {"prompt_tokens": asked.tokens, "total_tokens": asked.tokens}
