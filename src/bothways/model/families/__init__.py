"""The models of the BERT family, each as data: how its config.json and its tensors map to ours."""

from dataclasses import replace

from bothways.errors import BothwaysError, require_choice
from bothways.model.config import ModelConfig
from bothways.model.families import albert, bert, deberta, distilbert, electra, modernbert, mpnet, roberta
from bothways.model.families.family import Family

FAMILIES: dict[str, Family] = {
    family.name: family
    for family in (
        bert.FAMILY,
        *roberta.FAMILIES,
        albert.FAMILY,
        distilbert.FAMILY,
        electra.FAMILY,
        mpnet.FAMILY,
        deberta.FIRST,
        deberta.SECOND,
        modernbert.FAMILY,
    )
}


def with_pooling(config: ModelConfig, reads: str) -> ModelConfig:
    """The same model, whose classifier reads the "first" vector or the "mean"; only if its config.json can say so."""
    if isinstance(FAMILIES[config.family].heads["sequence"].reads, str):
        able = [name for name, family in FAMILIES.items() if not isinstance(family.heads["sequence"].reads, str)]
        raise BothwaysError(f"model.pooling is for {', '.join(able)}: what {config.family} reads is fixed")
    names = {"first": "cls", "mean": "mean"}
    require_choice("model.pooling", reads, tuple(names))
    return replace(config, hf_config={**config.hf_config, "classifier_pooling": names[reads]})
