"""Which texts count as the same, whatever their case, white space and punctuation."""

import re
import unicodedata

_KEPT = re.compile(r"[^\W_]+|(?<=\d)[.,:/-](?=\d)")
"""Letters and digits, and what separates the digits of a number."""


_BLANK = (
    "".join(chr(c) for c in range(0x3001) if chr(c).isspace())
    + "\u00ad\u180e\u200b\u200c\u200d\u200e\u200f\u2060\ufeff"
)


def is_blank(text: str) -> bool:
    """Whether a text shows nothing: it is empty, white space, or characters without a width.

    >>> is_blank(" \\u200b\\ufeff"), is_blank("是")
    (True, False)
    """
    return not text.strip(_BLANK)


def same_key(text: str) -> str:
    """A key that texts share if they have the same letters and digits; a text with neither is its own key.

    >>> same_key("A cat sleeps!"), same_key("a CAT  sleeps ."), same_key("猫睡了。"), same_key("3.5"), same_key("?!")
    ('acatsleeps', 'acatsleeps', '猫睡了', '3.5', '?!')
    """
    folded = unicodedata.normalize("NFKC", text).casefold()
    return "".join(_KEPT.findall(folded)) or text.strip()
