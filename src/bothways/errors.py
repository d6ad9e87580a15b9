"""The one exception a user can cause."""


class BothwaysError(Exception):
    """One sentence: what was found, what was expected, what to do.

    The command line prints it and exits with 1; a bug raises anything else.
    """


class StoppedError(BothwaysError):
    """A run was asked to stop, by Ctrl-C or a signal, and has saved: the same call goes on from there."""


def require_choice(name: str, value: object, allowed: tuple[str, ...]) -> None:
    """Refuse a value that is none of those allowed: a misspelt choice must not mean another one."""
    if value not in allowed:
        raise BothwaysError(f"{name} cannot be {value!r}: expected {', '.join(allowed)}")
