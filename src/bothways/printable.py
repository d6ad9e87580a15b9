"""Words for people: numbers of things, and texts of strangers, whose control characters are shown, not sent."""

import re

# Control characters but line end and tab; what changes the direction of a line; separators of lines; lone surrogates.
_CONTROL = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u200e\u200f\u2028-\u202e\u2066-\u2069\ud800-\udfff]")


def counted(number: float, what: str) -> str:
    """A number of things, in words.

    >>> counted(1, "text"), counted(2_000, "text")
    ('1 text', '2,000 texts')
    """
    return f"{number:,} {what}" + ("" if number == 1 else "s")


def printable(text: str) -> str:
    r"""A text whose control characters are written as escapes, as in Python and JSON.

    >>> print(printable("a\x1b[31mred\r, 是"))
    a\u001b[31mred\u000d, 是
    """
    return text if text.isascii() and text.isprintable() else _CONTROL.sub(lambda one: f"\\u{ord(one[0]):04x}", text)
