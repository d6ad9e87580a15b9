"""The objectives by the names that recipes call them."""

from bothways.pretraining.objective import Objective, Words
from bothways.pretraining.objectives.mlm import MaskedSettings, MaskedWords
from bothways.pretraining.objectives.nsp import NextSentence
from bothways.pretraining.objectives.sbo import SpanBoundary
from bothways.pretraining.objectives.sop import SentenceOrder
from bothways.text.tokenizer import Tokenizer


def make_objectives(
    names: tuple[str, ...], masked: MaskedSettings, tokenizer: Tokenizer, causal: bool
) -> dict[str, Objective]:
    """By name, `mlm` first: the others may read what it chose."""
    known: dict[str, Objective] = {
        "mlm": MaskedWords(masked, Words.of(tokenizer), causal),
        "nsp": NextSentence(),
        "sop": SentenceOrder(),
        "sbo": SpanBoundary(),
    }
    return {name: objective for name, objective in known.items() if name in names}
