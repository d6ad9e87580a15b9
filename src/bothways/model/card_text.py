"""The words of a model card: what can be written without torch."""

import json
import re
from collections.abc import Iterable, Mapping

CARD = "README.md"
_SHOWN = 30
"""Thresholds that are listed one by one."""


def with_section(card: str, title: str, lines: Iterable[str]) -> str:
    """The card with another section above its usage, in place of one with this title."""
    section = "\n".join([f"## {title}", "", *lines, "", ""])
    card = re.sub(rf"^## {re.escape(title)}\n.*?(?=^## )", "", card, flags=re.MULTILINE | re.DOTALL)
    head, usage, rest = card.partition("## Usage\n")
    return f"{head}{section}{usage}{rest}"


def thresholds_shown(thresholds: Mapping[str, float]) -> str:
    """The threshold of each label, of many labels the lowest and the highest."""
    if len(thresholds) > _SHOWN:
        return f"{min(thresholds.values()):.2f} to {max(thresholds.values()):.2f}, of {len(thresholds):,} labels"
    return ", ".join(f"{name} {value:.2f}" for name, value in thresholds.items())


def yaml_text(text: str) -> str:
    """A text in double quotes, whatever it holds.

    >>> yaml_text('a: "b" #1\\n是')
    '"a: \\\\"b\\\\" #1\\\\n是"'
    """
    quoted = json.dumps(text, ensure_ascii=False)
    return "".join(c if c.isprintable() else f"\\U{ord(c):08x}" for c in quoted)


def markdown(text: str) -> str:
    """A text in a cell or a line of Markdown, shown as it is.

    >>> markdown("B-LOC|x *y*\\nz")
    'B-LOC\\\\|x \\\\*y\\\\* z'
    """
    plain = " ".join("".join(c if c.isprintable() else " " for c in text).split())
    return re.sub(r"([\\`*_\[\]<>|~$&#])", r"\\\1", plain)
