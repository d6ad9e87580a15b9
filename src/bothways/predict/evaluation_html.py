"""An evaluation as HTML, for notebooks: scores, scores by label, confusion matrix, the worst errors."""

import html

from bothways.marked_text import INK, Colours, html_table, titled
from bothways.predict.display import error_text, marked_pair, shown_number
from bothways.predict.evaluation import Evaluation
from bothways.printable import counted
from bothways.scoring.classification import shown_name
from bothways.tasks.registry import TASKS

_MOST_LABELS = 30


def evaluation_html(found: Evaluation) -> str:
    """Tables that need no style sheet."""
    rows = []
    for name, value in found.scores.items():
        between = " to ".join(f"{end:.4f}" for end in found.intervals.get(name, ()))
        rows.append((shown_name(name, found.labels), f"{value:.4f}", between))
    title = f"Scores on {counted(found.examples, 'example')}"
    parts = [html_table(("", "score", "95 % interval"), rows, title, numbers=2)]
    if 1 < len(found.details) <= _MOST_LABELS:
        columns = list(next(iter(found.details.values())))
        details = [(name, *(shown_number(row[column]) for column in columns)) for name, row in found.details.items()]
        parts.append(html_table(("", *columns), details, "Scores by label", numbers=len(columns)))
    if found.never_predicted:
        parts.append(f"<p>{html.escape(found.never_predicted)}</p>")
    if found.confusion and len(found.labels) <= _MOST_LABELS:
        parts.append(_confusion(found.confusion, found.labels))
    if found.worst:
        parts.append(_errors(found))
    return "\n".join(parts)


def _confusion(table: list[list[int]], labels: tuple[str, ...]) -> str:
    """Each cell is as dark as its share of the row."""
    rows = []
    for label, row in zip(labels, table, strict=True):
        lights = [95 - 35 * cell / max(sum(row), 1) for cell in row]
        cells = "".join(
            f'<td style="text-align:right;background:hsl(210 60% {light:.0f}%);color:{INK}">{cell:,}</td>'
            for cell, light in zip(row, lights, strict=True)
        )
        rows.append(f"<tr><th>{html.escape(label)}</th>{cells}</tr>")
    names = "".join(f"<th>{html.escape(label)}</th>" for label in labels)
    return (
        f"<h4>Confusion matrix</h4><table><thead><tr><th>gold ↓ predicted →</th>{names}</tr></thead>"
        f"<tbody>{''.join(rows)}</tbody></table>"
    )


def _errors(found: Evaluation) -> str:
    task = TASKS[found.task]
    if not task.marked_field:
        rows = [
            (f"{one['error']:.3f}", error_text(one), one["gold"], task.shown(one["answer"]), one["where"])
            for one in found.worst
        ]
        return html_table(("error", "text", "gold", "predicted", "where"), rows, found.errors_title)
    colours, parts = Colours(found.labels), [f"<h4>{html.escape(found.errors_title)}</h4>"]
    for error in found.worst:
        gold, answer = marked_pair(task, found.labels, error)
        title = titled(error[task.marked_title]) if task.marked_title else ""
        parts.append(
            f"<div style='margin-top:.8em'><i>{error['error']:.3g}, {html.escape(error['where'])}</i></div>{title}"
            f"<div>gold</div>{gold.html(colours)}<div>predicted</div>{answer.html(colours)}"
        )
    return "".join(parts)
