"""What doctor found as HTML, for notebooks: the data, the labels, the findings, the next command."""

import html

from bothways.doctor.data_report import DataReport
from bothways.marked_text import html_table

_MOST_LABELS = 30


def report_html(found: DataReport) -> str:
    """Tables that need no style sheet."""
    kind = f"{found.task}, {found.kind}" if found.kind else found.task
    facts = [("task", kind), ("rows", f"{found.rows:,}, {found.labelled:,} with a label")]
    facts += [("columns", found.columns)] if found.columns else []
    facts += [("development rows", f"{found.dev_rows:,}")] if found.dev_rows else []
    if reading := found.reading:
        facts.append(("tokens", f"{reading.tokens:,}, {reading.longest:,} in the longest row"))
    parts = [html_table(("", ""), facts, "Data")]
    if found.labels:
        labels = [(one.name, f"{one.count:,}", f"{100 * one.share:.1f} %") for one in found.labels[:_MOST_LABELS]]
        more = len(found.labels) - _MOST_LABELS
        labels += [(f"… and {more:,} more", "", "")] if more > 0 else []
        parts.append(html_table(("", "count", "share"), labels, "Labels", numbers=2))
    rows = [(one.severity, " ".join([one.says, one.do, *one.places]).strip()) for one in found.findings]
    parts.append(html_table(("", "finding"), rows, "Findings"))
    if found.command:
        parts.append(f"<p>next: <code>{html.escape(found.command)}</code></p>")
    return "\n".join(parts)
