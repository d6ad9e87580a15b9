"""Texts that a model cannot read are said, once: their letters are in no word of its vocabulary."""

import warnings
from collections.abc import Sequence
from weakref import WeakSet

from bothways.model.box import boxed_for
from bothways.text.scripts import not_ascii, strange_text
from bothways.text.tokenizer import TextInput, Tokenizer

_SAID: "WeakSet[Tokenizer]" = WeakSet()


def check_readable(texts: Sequence[TextInput], tokenizer: Tokenizer) -> None:
    """Warn if a text is in a writing system that the vocabulary has no words of; once for each model."""
    if tokenizer in _SAID or not (odd := not_ascii(texts)) or (found := strange_text(odd, tokenizer.scripts)) is None:
        return
    _SAID.add(tokenizer)
    start, script = found
    other = boxed_for(script)
    instead = f": the included model {other} can" if other else ""
    warnings.warn(f"{start[:20]!r} … is {script}, which this model cannot read{instead}", stacklevel=2)
