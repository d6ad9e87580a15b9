"""What readers left out, repaired or found odd: counted, so that nothing is dropped in silence."""

from dataclasses import dataclass, field


@dataclass
class Notes:
    """A count for each kind of thing that was noticed. Prints as one short sentence each.

    >>> notes = Notes()
    >>> notes.add("rows with too few columns, left out", "train.tsv, line 7")
    >>> notes.add("rows with too few columns, left out", "train.tsv, line 9")
    >>> print(notes)
    Rows with too few columns, left out: 2, first in train.tsv, line 7.
    """

    counts: dict[str, int] = field(default_factory=dict)
    first: dict[str, str] = field(default_factory=dict)
    """Where each kind was noticed first."""
    whole: bool = False
    """True if no row may be left out, because each is to have its answer: what would be is an error."""

    def add(self, what: str, where: str) -> None:
        self.counts[what] = self.counts.get(what, 0) + 1
        self.first.setdefault(what, where)

    def __bool__(self) -> bool:
        return bool(self.counts)

    def __str__(self) -> str:
        return "\n".join(
            f"{what[0].upper()}{what[1:]}: {count:,}, first in {self.first[what]}."
            for what, count in self.counts.items()
        )
