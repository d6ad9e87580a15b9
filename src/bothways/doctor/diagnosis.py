"""What `bothways doctor` reports: plain values that print as JSON."""

from dataclasses import dataclass, field
from typing import Literal

Severity = Literal["wrong", "look", "fine"]
"""Must be mended, worth a look, or in order."""
ORDER: tuple[Severity, ...] = ("wrong", "look", "fine")


@dataclass(frozen=True)
class Finding:
    """One thing that was looked for."""

    severity: Severity
    what: str
    """In one word, the same for the same thing in all data: duplicates, leakage, balance …"""
    says: str
    """A sentence with the count."""
    do: str = ""
    """What to do."""
    count: int = 0
    places: tuple[str, ...] = ()
    """The first of them."""


@dataclass(frozen=True)
class Share:
    """A label, a type of entities, a tag, or the place of the right option."""

    name: str
    count: int
    share: float
    """Of the labelled rows; of entities or tags, of all of them."""


@dataclass(frozen=True)
class Length:
    """How long something is."""

    mean: float
    longest: int
    where: str


@dataclass(frozen=True)
class Reading:
    """The data as a model's tokenizer sees them."""

    limit: int
    """Tokens that are read at once."""
    tokens: int
    longest: int
    where: str
    beyond: int
    """Rows with more tokens than the limit …"""
    beyond_share: float
    sequences: int
    """… which are read in windows, so that there are so many sequences to learn from."""
    tokens_per_word: float
    """In the first rows; a CJK character is a word here."""
    unknown_share: float
    """Of all tokens."""


@dataclass(frozen=True)
class TrainingPlan:
    """How to train, and how long that will take about."""

    batch: int
    lr: float
    epochs: int
    steps: int
    why: str
    seconds: float
    """An estimate: a few real steps were timed."""
    machine: str


@dataclass(frozen=True)
class Diagnosis:
    """What labelled data are, what is wrong with them, and what to do."""

    task: str
    kind: str
    """Of classify: single, multi or regression. Of tag: entities or plain."""
    rows: int
    labelled: int
    dev_rows: int
    cjk_share: float
    """Of all characters but spaces: 0 is English and its like, near 1 Chinese or Japanese."""
    labels: tuple[Share, ...]
    lengths: dict[str, Length]
    findings: tuple[Finding, ...]
    """The worst first."""
    command: str
    """What to run next; empty if that would fail."""
    reading: Reading | None = None
    plan: TrainingPlan | None = None
    not_checked: tuple[str, ...] = field(default=())
    """What would need more than was given."""

    def of(self, severity: Severity) -> tuple[Finding, ...]:
        """The findings of one severity."""
        return tuple(finding for finding in self.findings if finding.severity == severity)


def have(count: int) -> str:
    """has or have."""
    return "has" if count == 1 else "have"


def percent(part: float, whole: float) -> str:
    """A share in words, never 0 for something nor all for less.

    >>> percent(1, 8), percent(1, 100_000), percent(99_999, 100_000), percent(3, 3)
    ('12.5 %', 'under 0.1 %', 'over 99.9 %', '100 %')
    """
    share = 100 * part / whole if whole else 0.0
    if 0 < share < 0.1:
        return "under 0.1 %"
    if 99.9 < share < 100:
        return "over 99.9 %"
    return f"{share:.3g} %" if share in (0, 100) else f"{share:.1f} %"
