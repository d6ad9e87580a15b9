"""The one exception a user can cause."""


class BothwaysError(Exception):
    """One sentence: what was found, what was expected, what to do.

    The command line prints it and exits with 1; a bug raises anything else.
    """
