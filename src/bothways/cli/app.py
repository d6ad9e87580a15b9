"""What all verbs share: -h beside --help, and flags that are shown without a type."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, TypeVar

import typer
from typer.core import TyperCommand, TyperGroup

from bothways.errors import with_short_quotes
from bothways.printable import printable

F = TypeVar("F", bound=Callable[..., Any])


def _without_types(params: list[Any]) -> list[Any]:
    """Typer writes `<bool>` after a flag, which takes no value."""
    for param in params:
        if getattr(param, "is_flag", False) and param.metavar is None:
            param.metavar = ""
    return params


_Problem: Any = typer.BadParameter.__mro__[1]  # click's UsageError, wherever this version of typer has it


class _Safe:
    """Errors about the command line quote it: its control characters are shown."""

    def make_context(self, *arguments: Any, **settings: Any) -> Any:
        with _safe_messages():
            return super().make_context(*arguments, **settings)  # type: ignore[misc]

    def invoke(self, ctx: Any) -> Any:
        with _safe_messages():
            return super().invoke(ctx)  # type: ignore[misc]


@contextmanager
def _safe_messages() -> Iterator[None]:
    try:
        yield
    except _Problem as error:
        error.message = with_short_quotes(printable(error.message))
        raise


class _Command(_Safe, TyperCommand):
    def get_params(self, ctx: Any) -> list[Any]:
        return _without_types(super().get_params(ctx))


class Group(_Safe, TyperGroup):
    def get_params(self, ctx: Any) -> list[Any]:
        return _without_types(super().get_params(ctx))


class App(typer.Typer):
    """A group of verbs."""

    def __init__(self, **settings: Any) -> None:
        names = {"help_option_names": ["-h", "--help"]}
        super().__init__(**{"cls": Group, "context_settings": names, "no_args_is_help": True, **settings})

    def command(self, name: str | None = None, **settings: Any) -> Callable[[F], F]:
        return super().command(name, **{"cls": _Command, **settings})
