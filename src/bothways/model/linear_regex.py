"""Regular expressions in linear time: whether a whole text matches, for patterns that strangers wrote.

Python's `re` tries one way after another, and a pattern such as (a+)+b makes it try for years. Here a pattern becomes a
small program, and no place of the program is visited twice at the same place of the text (Thompson 1968). What needs
the ways themselves, such as a reference to a group, is refused.
"""

import re
import unicodedata
from collections.abc import Callable
from re import _constants, _parser  # type: ignore[attr-defined]  # the parser of `re`, so that both read one syntax
from typing import Any

from bothways.errors import BothwaysError

_LONGEST, _LARGEST = 10_000, 4_000
"""Most characters of a pattern, and most instructions of its program."""

# Instructions: ("char", test), ("split", other ways), ("jump", to), ("at", kind), ("look", program, whether it matches)
Program = list[tuple[Any, ...]]


class LinearRegex:
    """A compiled pattern.

    >>> LinearRegex(r"(a+)+b").fullmatch("a" * 5_000), LinearRegex(r".*\\.(query|value)").fullmatch("layer.0.query")
    (False, True)
    """

    def __init__(self, pattern: str) -> None:
        if len(pattern) > _LONGEST:
            raise _refused(pattern, f"it has more than {_LONGEST:,} characters")
        try:
            tree = _parser.parse(pattern)
        except (re.error, RecursionError, OverflowError, ValueError) as error:
            raise _refused(pattern, str(error) or "it is nested too deep") from error
        if tree.state.flags & ~re.UNICODE.value:
            raise _refused(pattern, "it has flags")
        self._pattern = pattern
        self._program: Program = []
        self._emit(tree, self._program)

    def fullmatch(self, text: str) -> bool:
        """Whether the pattern matches the whole text, as `re.fullmatch` finds it."""
        return _run(self._program, text, 0, whole=True)

    # ------------------------------------------------------------------ the program

    def _emit(self, tree: Any, program: Program) -> None:
        for kind, value in tree:
            self._emit_one(str(kind), value, program)
            if len(program) > _LARGEST:
                raise _refused(self._pattern, "it repeats too much")

    def _emit_one(self, kind: str, value: Any, program: Program) -> None:
        match kind:
            case "LITERAL" | "NOT_LITERAL" | "ANY" | "IN":
                program.append(("char", kind, value))
            case "AT":
                program.append(("at", str(value)))
            case "SUBPATTERN":
                _, added, removed, inner = value
                if added or removed:
                    raise _refused(self._pattern, "it has flags")
                self._emit(inner, program)
            case "BRANCH":
                self._emit_branch(value[1], program)
            case "MAX_REPEAT" | "MIN_REPEAT":
                self._emit_repeat(value[0], value[1], value[2], program)
            case "ASSERT" | "ASSERT_NOT" if value[0] == 1:
                looked: Program = []
                self._emit(value[1], looked)
                program.append(("look", looked, kind == "ASSERT"))
            case _:
                raise _refused(self._pattern, "it has a group that is referred to, or another rare construct")

    def _emit_branch(self, ways: Any, program: Program) -> None:
        start, ends = len(program), []
        program.append(("split", ()))
        starts = []
        for way in ways:
            starts.append(len(program))
            self._emit(way, program)
            ends.append(len(program))
            program.append(("jump", 0))
        program[start] = ("split", tuple(starts))
        for end in ends:
            program[end] = ("jump", len(program))

    def _emit_repeat(self, least: int, most: Any, inner: Any, program: Program) -> None:
        if least > _LARGEST:
            raise _refused(self._pattern, "it repeats too much")
        for _ in range(least):
            self._emit(inner, program)
        if most is _constants.MAXREPEAT:
            start = len(program)
            program.append(("split", ()))
            self._emit(inner, program)
            program.append(("jump", start))
            program[start] = ("split", (start + 1, len(program)))
            return
        if most - least > _LARGEST:
            raise _refused(self._pattern, "it repeats too much")
        splits = []
        for _ in range(most - least):
            splits.append(len(program))
            program.append(("split", ()))
            self._emit(inner, program)
        for split in splits:
            program[split] = ("split", (split + 1, len(program)))


def _refused(pattern: str, why: str) -> BothwaysError:
    return BothwaysError(
        f"the pattern {pattern!r} cannot be matched in bounded time: {why}; name the layers instead",
        "unsupported-pattern",
        pattern,
    )


# ---------------------------------------------------------------------- matching


def _run(program: Program, text: str, start: int, whole: bool) -> bool:
    """Whether a program matches from `start` on: up to the end of the text, or any length of it."""
    seen: set[tuple[int, int]] = set()
    todo = [(0, start)]
    while todo:
        state = todo.pop()
        if state in seen:
            continue
        seen.add(state)
        at, place = state
        if at == len(program):
            if not whole or place == len(text):
                return True
            continue
        kind, *rest = program[at]
        if kind == "char":
            if place < len(text) and _is(text[place], *rest):
                todo.append((at + 1, place + 1))
        elif kind == "split":
            todo += [(way, place) for way in rest[0]]
        elif kind == "jump":
            todo.append((rest[0], place))
        elif _AT[rest[0]](text, place) if kind == "at" else _run(rest[0], text, place, False) == rest[1]:
            todo.append((at + 1, place))
    return False


def _is(letter: str, kind: str, value: Any) -> bool:
    match kind:
        case "LITERAL":
            return bool(ord(letter) == value)
        case "NOT_LITERAL":
            return bool(ord(letter) != value)
        case "ANY":
            return letter != "\n"
    is_negated = str(value[0][0]) == "NEGATE"
    return any(_is_in(letter, str(part), detail) for part, detail in value[is_negated:]) != is_negated


def _is_in(letter: str, kind: str, value: Any) -> bool:
    if kind == "RANGE":
        return bool(value[0] <= ord(letter) <= value[1])
    if kind == "CATEGORY":
        name = str(value).removeprefix("CATEGORY_")
        return _CATEGORIES[name.removeprefix("NOT_")](letter) != name.startswith("NOT_")
    return bool(ord(letter) == value)


def _is_word(letter: str) -> bool:
    return letter.isalnum() or letter == "_"


def _is_boundary(text: str, place: int) -> bool:
    before, after = text[place - 1 : place] if place else "", text[place : place + 1]
    return bool(text) and (_is_word(before) if before else False) != (_is_word(after) if after else False)


_CATEGORIES = {
    "DIGIT": lambda letter: unicodedata.category(letter) == "Nd",
    "SPACE": str.isspace,
    "WORD": _is_word,
}
_AT: dict[str, Callable[[str, int], bool]] = {
    "AT_BEGINNING": lambda text, place: place == 0,
    "AT_BEGINNING_STRING": lambda text, place: place == 0,
    "AT_END": lambda text, place: text[place:] in ("", "\n"),
    "AT_END_STRING": lambda text, place: place == len(text),
    "AT_BOUNDARY": _is_boundary,
    "AT_NON_BOUNDARY": lambda text, place: bool(text) and not _is_boundary(text, place),
}
