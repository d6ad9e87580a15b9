"""Tells the family, the heads and the labels of a model folder from its config.json and the names of its tensors."""

from collections.abc import Collection, Iterable, Mapping
from pathlib import Path
from typing import Any

from bothways.errors import BothwaysError, name_list
from bothways.model.families import FAMILIES
from bothways.model.families.family import Family, Head
from bothways.model.families.unread import refuse_by_tensors, unread


def find_family(raw: Mapping[str, Any], tensors: Iterable[str], folder: Path) -> Family:
    """The family of a folder: by `model_type`, and by the names of its tensors where that leaves a choice."""
    kind, names = raw.get("model_type"), set(tensors)
    known = [family for family in FAMILIES.values() if family.type == kind]
    if known or kind is None:
        refuse_by_tensors(names, folder)
    if kind is None:  # files from before model_type existed: the tensor names tell; without a prefix it is BERT
        known = [family for family in FAMILIES.values() if family.prefix + family.body[0].parts[0] in names]
        known = known or [family for family in (FAMILIES["bert"],) if family.body[0].parts[0] in names]
    if not known:
        raise unread(kind, folder)
    signed = [one for one in known if one.sign and {prefix + one.sign for prefix in one.prefixes} & names]
    return next(iter(signed or [family for family in known if not family.sign] or known))


def heads_of(family: Family, raw: Mapping[str, Any]) -> frozenset[str]:
    """The heads of the first known class in `architectures` of config.json."""
    declared = raw.get("architectures") or ()
    return next((heads for name, heads in family.architectures if name in declared), frozenset())


def nameless(count: int) -> tuple[str, ...]:
    """Hugging Face's default label names."""
    return tuple(f"LABEL_{i}" for i in range(count))


def find_heads(family: Family, raw: Mapping[str, Any], names: set[str]) -> tuple[str, ...]:
    """The heads whose tensors are in the file.

    Some heads share tensor names. `architectures` decides between them, then fixed labels, then the first architecture
    of which all heads are present.
    """
    declared = raw.get("architectures")
    declared = declared if isinstance(declared, list) else []
    for name in (name for name in declared if name in family.unread_classes):
        raise BothwaysError(
            f"config.json has the architecture {name}, whose head bothways does not read", "no-such-head", name
        )
    named = {head for name, heads in family.architectures if name in declared for head in heads}
    present = [name for name, head in family.heads.items() if _is_present(head, names, family, name in named)]
    labels = read_labels(raw)
    order = sorted(
        family.architectures,
        key=lambda one: (one[0] not in declared, not any(family.heads[head].labels == labels != () for head in one[1])),
    )
    preferred = next((heads for _, heads in order if heads <= set(present)), frozenset())
    claimed: set[str] = set()
    found: list[str] = []
    for name in sorted(present, key=lambda name: name not in preferred):
        parts = {part for row in family.heads[name].rows for part in row.parts}
        if not parts & claimed:
            found.append(name)
            claimed |= parts
    needed = {need for name in found for need in family.heads[name].needs}
    return tuple(name for name in family.heads if name in found or name in needed)


def _is_present(head: Head, names: set[str], family: Family, is_named: bool) -> bool:
    """Whether the weights hold a head: some of its tensors, and the last of its layers.

    A head that only has tied tensors leaves no trace in the weights: `architectures` tells of it, if `is_named`.
    """
    parts = {row.ours: row.parts for row in head.rows}
    outputs = [part for ours, own in parts.items() if ours.endswith(".linear.weight") for part in own]
    if is_named and all(part in family.tied or part.endswith(".bias") for own in parts.values() for part in own):
        return True
    return any(part in names for own in parts.values() for part in own) and all(part in names for part in outputs)


def require_layers(layers: int, names: Collection[str], folder: Path) -> None:
    """Refuse more layers than the weights have tensors, before anything is made for each of them."""
    if layers > len(names):
        raise BothwaysError(
            f"{folder}: config.json implies {layers:,} layers with weights of their own, and the weights hold only "
            f"{len(names):,} tensors",
            "missing-tensors",
            layers,
        )


def read_labels(raw: Mapping[str, Any]) -> tuple[str, ...]:
    """The label names of config.json, in the order of their ids."""
    names = raw.get("id2label")
    if not isinstance(names, dict) or not names:
        return ()
    try:
        numbered = {int(key): str(name) for key, name in names.items()}
    except ValueError as error:
        raise BothwaysError(
            f"config.json has an id2label whose keys are not numbers: {name_list(names)}", "bad-labels", tuple(names)
        ) from error
    if sorted(numbered) != list(range(len(names))):
        raise BothwaysError(
            f"config.json has an id2label of {len(names):,} labels whose numbers are not 0 to {len(names) - 1:,}, each "
            "once: name every output of the model",
            "bad-labels",
            tuple(names),
        )
    return tuple(numbered[i] for i in range(len(numbered)))


def architecture_of(family: Family, heads: set[str]) -> str:
    """The class of theirs with exactly these heads, otherwise the first one with some of them."""
    exact = [name for name, theirs in family.architectures if theirs == heads]
    return exact[0] if exact else next(name for name, theirs in family.architectures if theirs <= heads)
