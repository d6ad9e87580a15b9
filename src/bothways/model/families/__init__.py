"""The model families, each declared as data: how its config.json and its tensors map to ours."""

from dataclasses import replace

from bothways.errors import BothwaysError, require_choice
from bothways.model.config import ModelConfig
from bothways.model.families import (
    albert,
    alibi,
    bert,
    data2vec,
    deberta,
    distilbert,
    electra,
    ernie,
    eurobert,
    gte,
    modernbert,
    mpnet,
    neobert,
    nomic,
    roberta,
    roformer,
    splinter,
    xlm_roberta_xl,
)
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
        xlm_roberta_xl.FAMILY,
        data2vec.FAMILY,
        ernie.FAMILY,
        splinter.FAMILY,
        roformer.FAMILY,
        nomic.FAMILY,
        gte.FAMILY,
        gte.PUBLISHED,
        eurobert.FAMILY,
        neobert.FAMILY,
        alibi.MOSAIC,  # before Jina's, which has no tensor that Mosaic's has not
        alibi.JINA,
    )
}


def with_pooling(config: ModelConfig, reads: str) -> ModelConfig:
    """The same config, with a classifier that reads the "first" hidden state or the "mean" of all.

    Only for families whose config.json has a setting for it.
    """
    poolings = FAMILIES[config.family].poolings
    if not poolings:
        able = [name for name, family in FAMILIES.items() if family.poolings]
        raise BothwaysError(
            f"model.pooling is {reads!r}, and the pooling of {config.family} is fixed: it can be set for "
            f"{', '.join(able)} only",
            "unsupported-setting",
            ("model.pooling", reads),
        )
    require_choice("model.pooling", reads, tuple(poolings))
    theirs = next(name for pooling, name in poolings.items() if pooling == reads)
    return replace(config, hf_config={**config.hf_config, "classifier_pooling": theirs})
