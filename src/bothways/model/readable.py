"""Texts that a model cannot read are said, once: their letters are in no word of its vocabulary."""

import warnings
from collections.abc import Sequence
from weakref import WeakSet

from bothways.errors import SaidOnceWarning
from bothways.model.box import boxed_for
from bothways.text.scripts import find_strange, starts_of
from bothways.text.tokenizer import TextInput, Tokenizer

_SAID: "WeakSet[Tokenizer]" = WeakSet()


def check_readable(texts: Sequence[TextInput], tokenizer: Tokenizer, for_vectors: bool = False) -> None:
    """Warn if texts are, to a good share, in a writing system that the vocabulary has no words of.

    Once for each model, with the number of such texts among these. `for_vectors`: the model makes vectors of texts.
    """
    if tokenizer in _SAID or not (starts := starts_of(texts, tokenizer.scripts)):
        return
    if (found := find_strange(starts, tokenizer.scripts)) is None:
        return
    _SAID.add(tokenizer)
    script = "in Latin letters" if found.script == "Latin" else found.script
    what = f"is {script}" if found.is_mostly else f"is partly {script}"
    count = f"{found.texts:,} of {len(texts):,} texts" if len(texts) > 1 else f"{found.letters:,} letters"
    other = boxed_for(found.script, for_vectors)
    instead = f": the included model {other} can" if other else ""
    start = found.start[:20]
    says = f"{start!r} … {what}, which this model cannot read ({count}){instead}"
    warnings.warn(says, SaidOnceWarning, stacklevel=2)
