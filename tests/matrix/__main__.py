"""Run the whole matrix: `python -m matrix [--family NAME …] [--workers N] [--json FILE] [--sample N]`.

Prints the counts of each family, the sentences of refusals, and every wrong case and crash; exits with 1 if there are any.
"""

import argparse
import json
import multiprocessing
import os
import re
import sys
import time
from collections import Counter, defaultdict
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING

os.environ["HF_HUB_OFFLINE"] = "1"
os.environ["OMP_NUM_THREADS"] = "1"
os.environ["TRANSFORMERS_VERBOSITY"] = "error"

from rich.box import MARKDOWN
from rich.console import Console
from rich.table import Table

from matrix import cases

if TYPE_CHECKING:
    from matrix.cases import Outcome, Unit


def in_pool(units: "list[Unit]", workers: int) -> "Iterator[list[Outcome]]":
    """The outcomes of each unit, as they come."""
    if workers == 1:
        yield from map(cases.run, units)
        return
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(workers, context, initializer=cases.settle) as pool:
        yield from pool.map(cases.run, units, chunksize=8)


def fields(one: "Outcome") -> dict[str, str]:
    """A case as a line of JSON."""
    unit = {"kind": one.unit.kind, "family": one.unit.family, "ending": one.unit.ending, "variant": one.unit.variant}
    return {**unit, "item": one.item, "outcome": one.outcome, "why": one.why}


def table_of(outcomes: "list[Outcome]") -> Table:
    """The counts of each family."""
    table = Table("family", *cases.OUTCOMES, "all", box=MARKDOWN)
    counts = Counter((one.unit.family if one.unit.kind != "stranger" else "others", one.outcome) for one in outcomes)
    for family in dict.fromkeys(family for family, _ in counts):
        row = [counts[family, outcome] for outcome in cases.OUTCOMES]
        table.add_row(family, *map(str, row), str(sum(row)))
    whole = [sum(one.outcome == outcome for one in outcomes) for outcome in cases.OUTCOMES]
    table.add_row("all", *map(str, whole), str(len(outcomes)))
    return table


def failures_of(outcomes: "list[Outcome]") -> list[str]:
    """What is wrong: one line for each variant and kind of difference, with the classes that have it."""
    groups: dict[tuple[str, ...], list[str]] = defaultdict(list)
    for one in (one for one in outcomes if one.outcome in cases.FAILURES):
        sentence = re.sub(r"\d(\.\d+)?e[-+]\d+", "…", one.why) if one.why.startswith("float") else one.why
        item = "" if one.unit.kind == "activation" else one.item
        key = (one.outcome, one.unit.kind, one.unit.variant, item, sentence)
        groups[key].append(f"{one.unit.family} {one.unit.ending}")
    return [
        f"{outcome} {len(found):3} × {kind} [{variant}] {item}: {sentence} ({', '.join(found)})"
        for (outcome, kind, variant, item, sentence), found in sorted(groups.items())
    ]


def main() -> int:
    """Run, print, and answer with the exit status."""
    parser = argparse.ArgumentParser(prog="matrix", description=__doc__)
    parser.add_argument("--family", nargs="*", default=(), help="only these families")
    parser.add_argument("--workers", type=int, default=os.cpu_count() or 1)
    parser.add_argument("--sample", type=int, default=0, help="this many cases only")
    parser.add_argument("--json", type=Path, help="add every case to this file, a line each")
    options = parser.parse_args()
    cases.settle()
    console, progress = Console(width=160, highlight=False), Console(stderr=True)
    units = cases.sample(options.sample) if options.sample else cases.units(options.family)
    start, outcomes, total = time.time(), [], sum(len(unit.items) for unit in units)
    for done in in_pool(units, options.workers):
        outcomes += done
        if options.json:
            with options.json.open("a", encoding="utf-8") as file:
                file.writelines(json.dumps(fields(one), ensure_ascii=False) + "\n" for one in done)
        failed = sum(one.outcome in cases.FAILURES for one in outcomes)
        line = f"{len(outcomes)} of {total} cases, {failed} failed, {time.time() - start:.0f} s"
        progress.print(line, end="\r" if progress.is_terminal else "\n") if len(outcomes) % 20 < len(done) else None
    console.print(table_of(outcomes))
    to_come = [row.family for row in cases.rows_to_come()]
    console.print(f"{len(to_come)} families skipped, as bothways does not have them: {', '.join(to_come) or 'none'}")
    sentences = Counter(one.why for one in outcomes if one.outcome == cases.REFUSED)
    for sentence, count in sentences.most_common():
        console.print(f"refused {count:4} × {sentence}", markup=False, soft_wrap=True)
    for line in failures_of(outcomes):
        console.print(line, markup=False, soft_wrap=True)
    console.print(f"{len(outcomes)} cases in {time.time() - start:.0f} s with {options.workers} workers")
    return int(any(one.outcome in cases.FAILURES for one in outcomes))


if __name__ == "__main__":
    sys.exit(main())
