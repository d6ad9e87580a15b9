"""The objectives by their names in recipes. A new one is a file here and a line in this list."""

from collections.abc import Mapping

from bothways.pretraining.objective import Objective, Recipe
from bothways.pretraining.objectives.distill import Distillation
from bothways.pretraining.objectives.mlm import MaskedLM
from bothways.pretraining.objectives.nsp import NextSentencePrediction
from bothways.pretraining.objectives.rtd import ReplacedTokenDetection
from bothways.pretraining.objectives.sbo import SpanBoundaryObjective
from bothways.pretraining.objectives.sop import SentenceOrderPrediction
from bothways.text.tokenizer import Tokenizer

_ALL: tuple[type[Objective], ...] = (
    MaskedLM,  # first: the others may read its selection
    NextSentencePrediction,
    SentenceOrderPrediction,
    SpanBoundaryObjective,
    ReplacedTokenDetection,
    Distillation,
)
OBJECTIVES: dict[str, type[Objective]] = {objective.name: objective for objective in _ALL}


def make_objectives(recipe: Recipe, tokenizer: Tokenizer) -> dict[str, Objective]:
    """The objectives that a recipe uses, by name; without those that another one runs itself."""
    made: dict[str, Objective] = {}
    for name, objective in OBJECTIVES.items():
        if objective.is_on(recipe):
            made[name] = objective.make(recipe, tokenizer, made)
    return {name: one for name, one in made.items() if name not in {other.wraps for other in made.values()}}


def heads_for(objectives: Mapping[str, Objective]) -> tuple[str, ...]:
    """The heads that the model needs."""
    return tuple(dict.fromkeys(head for objective in objectives.values() for head in objective.heads))
