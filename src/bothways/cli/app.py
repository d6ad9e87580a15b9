"""What all verbs share: -h beside --help, flags that are shown without a type, and several files after one option."""

import errno
import os
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
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


_PATH = re.compile(
    r"^(?!.*TEXT).*\b(FILES?|DIR|SRC|DST|MODEL|PAIRS|CORPUS|INDEX|FOLDER|CANDIDATES|REFERENCES)\b", re.IGNORECASE
)
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

    def collect_usage_pieces(self, ctx: Any) -> list[str]:
        """Arguments as they are named, once: newer versions of typer write `{FILE...}...`."""
        arguments = [_usage_of(param) for param in self.get_params(ctx) if _is_argument(param)]
        return [self.options_metavar or "", *arguments]

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        args = _with_several_files(ctx, self.get_params(ctx), args)
        if not ctx.resilient_parsing:
            _require_paths(ctx, self.get_params(ctx), self.make_parser(ctx).parse_args(args=list(args))[0])
        return super().parse_args(ctx, args)


class Group(_Safe, TyperGroup):
    def get_params(self, ctx: Any) -> list[Any]:
        return _without_types(super().get_params(ctx))


def _require_paths(ctx: Any, params: Sequence[Any], given: Mapping[str, Any]) -> None:
    """Refuse what can be no path of an input or an output."""
    for param in params:
        values = given.get(param.name)
        for value in values if isinstance(values, list | tuple) else [values]:
            if isinstance(value, str) and _PATH.search(param.metavar or param.name):
                name = _missing([param], 0)[0] if _is_argument(param) else param.opts[0]
                if problem := _problem_of(value, is_output=param.name in ("out", "target")):
                    ctx.fail(f"{name} is {problem}")


def _problem_of(path: str, is_output: bool) -> str:
    """Why a word of the command line is no path; "" if it is one."""
    if not path:  # an empty variable of a shell; Path() would take it for the current folder
        return "empty: expected a path; a dot is the current folder"
    try:
        os.stat(path)
    except OSError as error:
        if error.errno == errno.ELOOP:
            return f"{path}, a link that leads to itself: expected a file or folder"
    if is_output and any("\ud800" <= letter <= "\udfff" for letter in path):
        return f"{path}, which is not UTF-8, as the names of outputs must be: name another"
    return ""


def _with_several_files(ctx: Any, params: Sequence[Any], args: Sequence[str]) -> list[str]:
    """The arguments with `--train a b` as `--train a --train b`.

    It holds for options that may be repeated and whose metavar ends in "...". The words after the first file are files
    too, unless the positional arguments would then be missing.
    """
    if ctx.resilient_parsing:
        return list(args)
    options = {name: param for param in params for name in (*param.opts, *param.secondary_opts) if name[0] == "-"}
    repeated: list[str] = []
    extra: dict[str, list[str]] = {}
    words, taking, i = 0, "", 0
    while i < len(args):
        word, i = args[i], i + 1
        if word == "--":
            words += len(args) - i
            repeated += [word, *args[i:]]
            break
        if word == "-" or not word.startswith("-"):
            if taking:
                extra.setdefault(taking, []).append(word)
                repeated += [taking, word]
            else:
                words += 1
                repeated.append(word)
            continue
        name, equals, _ = word.partition("=")
        option = options.get(name)
        takes_next = option is not None and not equals and not option.is_flag and not option.count
        values = args[i : i + 1] if takes_next else []
        if values and values[0] in options:
            ctx.fail(f"{word} needs a value, and {values[0]} is an option")
        repeated += [word, *values]
        i += len(values)
        taking = name if option is not None and (option.metavar or "").endswith("...") else ""
    missing = _missing(params, words)
    if sum(map(len, extra.values())) <= len(missing):
        return list(args)  # they are the positional arguments
    if missing:
        option, first = next(iter(extra.items()))
        ctx.fail(
            f"{' '.join(first)} after {option} may be files of {option}, or {' '.join(missing)}: put "
            f"{' '.join(missing)} before {option}, or after --"
        )
    return repeated


def _is_argument(param: Any) -> bool:
    return bool(param.param_type_name == "argument")


def _usage_of(argument: Any) -> str:
    name = str(argument.metavar or argument.name.upper())
    return name if argument.required or name.startswith("[") else f"[{name}]"


def _missing(params: Sequence[Any], words: int) -> list[str]:
    """The names of the positional arguments that this number of words leaves without a value."""
    positional = [param for param in params if _is_argument(param)]
    return [re.sub(r"\[NAME=\]|[][.]", "", param.metavar or param.name.upper()) for param in positional[words:]]


class App(typer.Typer):
    """A group of verbs."""

    def __init__(self, **settings: Any) -> None:
        names = {"help_option_names": ["-h", "--help"]}
        super().__init__(**{"cls": Group, "context_settings": names, "no_args_is_help": True, **settings})

    def command(self, name: str | None = None, **settings: Any) -> Callable[[F], F]:
        return super().command(name, **{"cls": _Command, **settings})
