"""Which texts count as the same, whatever their case, white space and punctuation."""

import unicodedata


def same_key(text: str) -> str:
    """A key that texts share if they have the same letters and digits; a text with neither is its own key.

    >>> same_key("The cat sleeps!"), same_key("the CAT  sleeps ."), same_key("猫睡了。"), same_key("?!")
    ('thecatsleeps', 'thecatsleeps', '猫睡了', '?!')
    """
    folded = unicodedata.normalize("NFKC", text).casefold()
    return "".join(filter(str.isalnum, folded)) or text.strip()
