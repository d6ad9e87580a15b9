"""What `bothways doctor` reports: plain values that print as JSON."""

from dataclasses import dataclass

from bothways.data.findings import Finding, Severity, Share
from bothways.printable import counted


@dataclass(frozen=True)
class Length:
    """How long something is."""

    mean: float
    longest: int
    where: str


@dataclass(frozen=True)
class Reading:
    """The data as the model's tokenizer reads them."""

    limit: int
    """Tokens of the longest sequence that the model reads."""
    tokens: int
    longest: int
    where: str
    beyond: int
    """Rows with more tokens than the limit: they are read in windows."""
    beyond_share: float
    sequences: int
    """Sequences to train on, windows included."""
    tokens_per_word: float
    """In the first rows; a CJK character counts as a word."""
    unknown_share: float
    """Unknown tokens among all tokens."""
    model: str = ""
    """The included model whose tokens these are, if no model was given."""


@dataclass(frozen=True)
class TrainingPlan:
    """Suggested settings, and how long training takes with them."""

    batch: int
    lr: float
    epochs: float
    steps: int
    why: str
    seconds: float
    """An estimate from a few timed steps."""
    machine: str


@dataclass(frozen=True, repr=False)
class DataReport:
    """What labelled data are, what is wrong with them, and what to do."""

    task: str
    kind: str
    """Text classification: single, multi or regression. Token classification: entities or plain."""
    rows: int
    labelled: int
    dev_rows: int
    cjk_share: float
    """Chinese, Japanese and Korean characters among all characters but spaces."""
    labels: tuple[Share, ...]
    lengths: dict[str, Length]
    findings: tuple[Finding, ...]
    """Errors first."""
    command: str
    """The command to run next; "" if it would fail."""
    reading: Reading | None = None
    plan: TrainingPlan | None = None
    not_checked: tuple[str, ...] = ()
    """Checks that need more than was given."""
    columns: str = ""
    """The columns that were read, as in `text = review, label = stars`; "" if the files are no tables."""

    def _repr_html_(self) -> str:
        from bothways.doctor.report_html import report_html  # it imports this module

        return report_html(self)

    def __repr__(self) -> str:
        counts = ((severity, len(self.of(severity))) for severity in ("error", "warning"))
        found = ", ".join(counted(count, name) for name, count in counts if count) or "nothing wrong"
        kind = f"{self.task}, {self.kind}" if self.kind else self.task
        lines = [f"DataReport({kind}: {self.rows:,} rows, {self.labelled:,} labelled; {found})"]
        lines += [f"  {one.severity}: {one.says} {one.do}".rstrip() for one in self.findings if one.severity != "ok"]
        return "\n".join([*lines, *([f"  next: {self.command}"] if self.command else [])])

    def of(self, severity: Severity) -> tuple[Finding, ...]:
        """The findings of one severity."""
        return tuple(finding for finding in self.findings if finding.severity == severity)
