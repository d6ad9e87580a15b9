"""The models of the BERT family, each as data: how its config.json and its tensors map to ours."""

from bothways.model.families import bert
from bothways.model.families.family import Family

FAMILIES: dict[str, Family] = {"bert": bert.FAMILY}
