"""The one exception a user can cause."""

import re
from collections.abc import Iterable

_QUOTED = 200  # characters of an input that a message quotes


class BothwaysError(Exception):
    """One sentence: what was found, what was expected, what to do.

    The command line prints it and exits with 1; a bug raises anything else. Programs match `code`, which names the
    kind of error, and `value`, which is what was wrong: the sentence may be improved at any time. Names of arguments
    stand in backticks; the command line shows them as its options.

    >>> error = BothwaysError("there is no folder nowhere", "no-folder", "nowhere")
    >>> error.code, error.value
    ('no-folder', 'nowhere')
    """

    def __init__(self, message: str, code: str = "", value: object = None) -> None:
        super().__init__(with_short_quotes(message, value))
        self.code, self.value = code, value


def with_short_quotes(message: str, value: object = None) -> str:
    """A message that quotes at most 200 characters of an input: of `value` or its parts, of a text in quotes, or of one
    without a space, such as a path.

    >>> with_short_quotes(f"there is no label {'a' * 10_000!r}, nor another") == (
    ...     f"there is no label '{'a' * 99}…{'a' * 99}', nor another"
    ... )
    True
    """
    if len(message) <= _QUOTED:
        return message
    for one in (value, *(value if isinstance(value, tuple | list) else ())):
        for quoted in (repr(one), str(one)) if isinstance(one, str | dict | list | tuple) else ():
            if len(quoted) > _QUOTED:
                message = message.replace(quoted, _cut(quoted))
    message = re.sub(r"(?s)'((?:[^'\\]|\\.){201,})'|\"((?:[^\"\\]|\\.){201,})\"", _cut_quoted, message)
    return re.sub(r"\S{203,}", lambda found: _cut(found[0]), message)


def _cut_quoted(found: re.Match[str]) -> str:
    return found[0][0] + _cut(found[0][1:-1]) + found[0][-1]


def _cut(text: str) -> str:
    return text if len(text) <= _QUOTED else f"{text[: _QUOTED // 2 - 1]}…{text[1 - _QUOTED // 2 :]}"


def name_list(names: Iterable[object]) -> str:
    """Names of an input in a message: those of its first 200 characters, and the number of the others.

    >>> name_list(["text", "label"]), name_list(range(1, 1_000))[-24:]
    ('text, label', ' 50, 51, 52 and 947 more')
    """
    shown, size, left = list[str](), 0, 0
    for name in map(str, names):
        size += len(name) + 2
        if shown and size > _QUOTED:
            left += 1
        else:
            shown.append(name)
    return ", ".join(shown) + (f" and {left:,} more" if left else "")


class StoppedError(BothwaysError):
    """A run was asked to stop, by Ctrl-C or a signal, and has saved: the same call resumes from there."""


class SaidOnceWarning(UserWarning):
    """A warning that is said once, though each of several workers words it by its own texts."""


def is_out_of_memory(error: BaseException) -> bool:
    """Whether an allocation failed: torch has errors of its own for it."""
    own = type(error).__name__ == "OutOfMemoryError" or "can't allocate memory" in str(error)
    return isinstance(error, MemoryError) or (isinstance(error, RuntimeError) and own)


def require_choice(name: str, value: object, allowed: tuple[str, ...]) -> None:
    """Refuse a value that is none of those allowed: a misspelt choice must not mean another one."""
    if value not in allowed:
        raise BothwaysError(f"{name} cannot be {value!r}: expected {', '.join(allowed)}", "unknown-choice", value)


def require_range(name: str, value: object, holds: bool, expected: str) -> None:
    """Refuse a value that is not as expected: `require_range("mlm.rate", rate, 0 < rate < 1, "between 0 and 1")`."""
    if not holds:
        is_huge = isinstance(value, int) and value.bit_length() > 1_024
        shown = "a number of more than a thousand bits" if is_huge else value
        raise BothwaysError(f"{name} must be {expected}, not {shown}", "out-of-range", value)


EXTRAS = {
    "bm25s": "bm25", "jieba": "chinese", "matplotlib": "plots", "mlflow": "mlflow", "onnx": "export",
    "onnxruntime": "onnx", "openpyxl": "xlsx", "pyarrow": "parquet", "pypdf": "pdf", "ray": "ray",
    "starlette": "serve", "tensorboard": "track", "torch": "torch", "usearch": "ann", "uvicorn": "serve",
    "wandb": "wandb",
}  # fmt: skip
"""The extra that installs a package."""


def needs(what: str, package: str) -> str:
    """The sentence about a package that is not installed.

    >>> needs("reading .pdf", "pypdf")
    "reading .pdf needs the package pypdf: pip install 'bothways[pdf]'"
    """
    install = f"'bothways[{EXTRAS[package]}]'" if package in EXTRAS else package
    return f"{what} needs the package {package}: pip install {install}"


def missing_package(what: str, package: str) -> BothwaysError:
    """The error for a package that is not installed: `raise missing_package("reading .pdf", "pypdf") from None`."""
    return BothwaysError(needs(what, package), "missing-package", package)
