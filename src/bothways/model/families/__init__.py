"""The model families, each declared as data: how its config.json and its tensors map to ours."""

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
    """The same config, with a classifier that reads the "first" hidden state or the "mean" of all.

    Only for families whose config.json has a setting for it.
    """
    if isinstance(FAMILIES[config.family].heads["sequence"].reads, str):
        able = [name for name, family in FAMILIES.items() if not isinstance(family.heads["sequence"].reads, str)]
        raise BothwaysError(
            f"model.pooling is {reads!r}, and the pooling of {config.family} is fixed: it can be set for "
            f"{', '.join(able)} only",
            "unsupported-setting",
            ("model.pooling", reads),
        )
    names = {"first": "cls", "mean": "mean"}
    require_choice("model.pooling", reads, tuple(names))
    return replace(config, hf_config={**config.hf_config, "classifier_pooling": names[reads]})
