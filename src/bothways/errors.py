"""The one exception a user can cause."""


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
        super().__init__(message)
        self.code, self.value = code, value


class StoppedError(BothwaysError):
    """A run was asked to stop, by Ctrl-C or a signal, and has saved: the same call goes on from there."""


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
        raise BothwaysError(f"{name} must be {expected}, not {value}", "out-of-range", value)


EXTRAS = {
    "bm25s": "bm25", "jieba": "chinese", "matplotlib": "plots", "mlflow": "mlflow", "onnx": "onnx",
    "onnxruntime": "onnx", "openpyxl": "xlsx", "pyarrow": "parquet", "pypdf": "pdf", "ray": "ray",
    "tensorboard": "track", "usearch": "ann", "wandb": "wandb",
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
