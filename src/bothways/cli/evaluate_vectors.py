"""bothways evaluate-vectors FOLDER"""

from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from bothways.cli.options import BaseModel, Device, Dtype, Encoding, PrintJson, Sheet, Threads, VectorModel
from bothways.cli.output import json_text, print_json, print_table, say, watch
from bothways.errors import BothwaysError
from bothways.predict.encode_options import Long

if TYPE_CHECKING:
    from bothways.search.vector_evaluation import SetScores, VectorEvaluation


def evaluate_vectors(
    folder: Annotated[Path, typer.Argument(help="Folder of evaluation sets.", show_default=False)],
    model: VectorModel = None,
    base: BaseModel = None,
    against: Annotated[
        Path | None,
        typer.Option(
            "--against",
            metavar="DIR",
            help="Folder of another model to compare with, by a paired significance test for each set.",
            show_default=False,
        ),
    ] = None,
    out: Annotated[
        Path | None,
        typer.Option("--out", metavar="FILE", help="Also write the results to a .json file.", show_default=False),
    ] = None,
    query_prompt: Annotated[
        str | None,
        typer.Option(
            "--query-prompt",
            metavar="TEXT",
            help="Text to put before queries.  [default: as the model's folder says]",
            show_default=False,
        ),
    ] = None,
    document_prompt: Annotated[
        str | None,
        typer.Option(
            "--document-prompt",
            metavar="TEXT",
            help="Text to put before documents.  [default: as the model's folder says]",
            show_default=False,
        ),
    ] = None,
    prompt: Annotated[
        str | None,
        typer.Option(
            metavar="TEXT",
            help="Text to put before all other texts.  [default: as the model's folder says]",
            show_default=False,
        ),
    ] = None,
    long: Annotated[
        Long,
        typer.Option(
            "--long",
            help="How to handle texts longer than the model's maximum length: refuse them, truncate them (cut), or "
            "read them in overlapping windows.",
        ),
    ] = "cut",
    device: Device = "auto",
    dtype: Dtype = "auto",
    threads: Threads = None,
    encoding: Encoding = None,
    sheet: Sheet = None,
    as_json: PrintJson = False,
) -> None:
    """Evaluate the embeddings of a model on all evaluation sets in a folder, with confidence intervals.

    Each set is recognised by its content. A file with two texts and a number is STS (Spearman). A folder with
    corpus.jsonl, queries.jsonl and qrels is retrieval (nDCG@10). A file with query, positive and negative is reranking
    (MAP). A file with a text and a label is clustering (V-measure), and a folder with a train and a test file of this
    kind is classification by a linear probe (accuracy).

    Example: bothways evaluate-vectors examples/vector-sets
    """
    from bothways import atomic
    from bothways.data.notes import Notes
    from bothways.search.vector_evaluation import evaluate_vectors as run

    if out is not None and out.suffix != ".json":
        raise BothwaysError(
            f"results cannot be written to {out}: expected a name that ends in .json", "unknown-format", out
        )
    notes = Notes()
    found = run(
        folder,
        model,
        against,
        base=base,
        prompt=prompt,
        query_prompt=query_prompt,
        document_prompt=document_prompt,
        long=long,
        notes=notes,
        watch=watch,
        device=device,
        dtype=dtype,
    )
    if notes:
        say(str(notes))
    for path, reason in found.left_out.items():
        say(f"left out {path}: {reason}")
    report = {"model": model, "against": against, **asdict(found)}
    if out is not None:
        with atomic.new_file(out) as fresh:
            fresh.write_text(json_text(report) + "\n", encoding="utf-8")
    if as_json:
        print_json(report)
        return
    _print(found)
    if against is not None:
        say("difference: the first model minus the second, with its 95 % interval and p-value (paired bootstrap)")


def _print(found: "VectorEvaluation") -> None:
    """A table for each kind of set, with the mean of its main score in the last row."""
    for kind, mean in found.means.items():
        sets = [one for one in found.sets if one.kind == kind]
        names = list(sets[0].scores)
        header = [kind, *names, "95 % CI", "of"]
        last: list[object] = ["mean", f"{mean:.4f}", *[""] * (len(names) + 1)]
        if found.against_means:
            header += ["second", "difference", "95 % CI", "p"]
            last += [f"{found.against_means[kind]:.4f}", f"{mean - found.against_means[kind]:+.4f}", "", ""]
        rows = [list(_cells(one)) for one in sets]
        print_table(header, [*rows, last], right=[*names, "second", "difference", "p"])


def _cells(one: "SetScores") -> Iterator[Any]:
    yield one.name
    yield from (f"{score:.4f}" for score in one.scores.values())
    yield "{:.4f} to {:.4f}".format(*one.interval)
    yield ", ".join(f"{count:,} {what}" for what, count in one.counts.items())
    if one.against is not None:
        yield f"{one.against_scores[one.metric]:.4f}"
        yield f"{one.against.difference:+.4f}"
        yield f"{one.against.low:+.4f} to {one.against.high:+.4f}"
        yield f"{one.against.p:.3f}"
