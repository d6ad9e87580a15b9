"""The models of the BERT family, each as data: how its config.json and its tensors map to ours."""

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
