"""What `bothways doctor` would say of the data of a run, in one line each, before the run starts."""

from collections.abc import Iterator, Sequence
from typing import Any

from bothways.data.findings import DataCounts, have, percent
from bothways.engine.reader import Tally
from bothways.tasks.task import Task
from bothways.text.same_text import same_key


def data_notes(task: type[Task], train: Sequence[Any], dev: Sequence[Any]) -> Iterator[str]:
    """Labels that the training data lack, and rows that both data share. One label alone is an error elsewhere."""
    counts, others = _counted(task, train), _counted(task, dev)
    kind = task.data_kind(counts)
    if counts.labelled and others.labelled:
        yield from (one.says for one in task.check_dev(counts, others, kind) if one.severity != "ok")
    known = {_key(task, example) for example in train if not task.is_empty(example)}
    if shared := sum(not task.is_empty(example) and _key(task, example) in known for example in dev):
        yield (
            f"{shared:,} of the {len(dev):,} development rows ({percent(shared, len(dev))}) {have(shared)} a text of "
            "the training data: scores on them show memory, not skill"
        )


def cut_note(tally: Tally) -> str:
    """A sentence if every text was cut; else nothing."""
    if not tally.cut or tally.cut < tally.texts:
        return ""
    return f"all {tally.texts:,} texts are cut: set window.long to window to read all of them, or window.length higher"


def _counted(task: type[Task], examples: Sequence[Any]) -> DataCounts:
    counts = DataCounts()
    for example in examples:
        counts.rows += 1
        if task.gold_key(example) is None:
            counts.fault("unlabelled", example.where)
        task.survey(example, counts)
    return counts


def _key(task: type[Task], example: Any) -> int:
    """A number that rows share if they have the same texts, whatever their order, case and punctuation."""
    return hash(tuple(sorted(map(same_key, task.texts_of(example)))))
