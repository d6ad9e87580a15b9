"""The objectives by the names that recipes call them."""

from collections.abc import Mapping

from bothways.model.distill import Teacher
from bothways.pretraining.objective import Objective, Words
from bothways.pretraining.objectives.distill import Distillation
from bothways.pretraining.objectives.mlm import MaskedSettings, MaskedWords
from bothways.pretraining.objectives.nsp import NextSentence
from bothways.pretraining.objectives.rtd import ReplacedSettings, ReplacedTokens
from bothways.pretraining.objectives.sbo import SpanBoundary
from bothways.pretraining.objectives.sop import SentenceOrder
from bothways.text.tokenizer import Tokenizer


def make_objectives(
    names: tuple[str, ...],
    masked: MaskedSettings,
    tokenizer: Tokenizer,
    causal: bool,
    replaced: ReplacedSettings | None = None,
    teacher: Teacher | None = None,
) -> dict[str, Objective]:
    """By name, `mlm` first: the others may read what it chose."""
    known: dict[str, Objective] = {
        "mlm": MaskedWords(masked, Words.of(tokenizer), causal),
        "nsp": NextSentence(),
        "sop": SentenceOrder(),
        "sbo": SpanBoundary(),
        "rtd": ReplacedTokens(replaced or ReplacedSettings()),
    }
    chosen = {name: objective for name, objective in known.items() if name in names}
    return chosen if teacher is None else {**chosen, "distill": Distillation(teacher)}


def heads_for(objectives: Mapping[str, Objective]) -> tuple[str, ...]:
    """The heads that the model itself needs; with rtd, mlm is the generator's."""
    own = [objective for name, objective in objectives.items() if not (name == "mlm" and "rtd" in objectives)]
    return tuple(dict.fromkeys(head for objective in own for head in objective.heads))
