"""bothways bertscore CANDIDATES REFERENCES"""

import csv
import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from bothways.cli.options import (
    AnyModel,
    BaseModel,
    Device,
    Dtype,
    Encoding,
    OldField,
    PrintJson,
    RefusedLong,
    Sheet,
    TextColumn,
    Threads,
)
from bothways.cli.output import print_json, print_table, watch
from bothways.errors import BothwaysError
from bothways.progress import Progress

if TYPE_CHECKING:
    from bothways.predict.bertscore import BertScores

_KINDS = (".csv", ".jsonl")


def bertscore(
    candidates: Annotated[
        Path,
        typer.Argument(
            help="File of generated texts: lines of .txt, rows of .jsonl, .csv, .tsv (also .gz, .xz), .parquet.",
            show_default=False,
        ),
    ],
    references: Annotated[
        list[Path],
        typer.Argument(
            metavar="REFERENCES...",
            help="File of reference texts, in the same order. Or several files: each has one reference for every "
            "candidate, and the best counts.",
            show_default=False,
        ),
    ],
    model: AnyModel = None,
    base: BaseModel = None,
    layer: Annotated[
        int | None,
        typer.Option(
            help="Layer: 0 is the embeddings, -1 the last.  [default: the published one if the model's folder has the "
            "name of a known model, such as bert-base-chinese, else the last]",
            show_default=False,
        ),
    ] = None,
    idf: Annotated[
        bool, typer.Option("--idf", help="Weight tokens by inverse document frequency in the references.")
    ] = False,
    baseline: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            help="Rescale by a published file of baselines, with the columns LAYER, P, R, F.",
            show_default=False,
        ),
    ] = None,
    long: RefusedLong = "error",
    text: TextColumn = None,
    encoding: Encoding = None,
    sheet: Sheet = None,
    field: OldField = None,
    out: Annotated[
        Path | None,
        typer.Option(
            "--out", metavar="FILE", help="Write one row for each candidate: .csv or .jsonl.", show_default=False
        ),
    ] = None,
    device: Device = "auto",
    dtype: Dtype = "auto",
    threads: Threads = None,
    as_json: PrintJson = False,
) -> None:
    """Score generated texts against references: BERTScore precision, recall and F1.

    Prints the means. For scores to compare with published ones, use the same model and layer, and --dtype fp32.

    Example: bothways bertscore examples/sample.txt examples/sample.txt
    """
    from bothways.engine.engine import Engine
    from bothways.model.load import load
    from bothways.predict.bertscore import bert_score
    from bothways.predict.published_scores import best_layer
    from bothways.text.files import read_texts, require_files

    files = require_files([candidates, *references])
    if out is not None:
        _check_output(out, files)
    texts, *others = [list(watch(read_texts(file, text or field), "reading", [str(file)])) for file in files]
    for file, read in zip(references, others, strict=True):
        if len(read) != len(texts):
            raise BothwaysError(
                f"{candidates} has {len(texts):,} texts and {file} has {len(read):,}: expected as many",
                "length-mismatch",
                (len(texts), len(read)),
            )
    if not texts:
        raise BothwaysError(f"no text was found in {candidates}", "no-text", candidates)
    with Progress("loading the model"):
        loaded = Engine(load(model, base=base), device=device, dtype=dtype).weights("BERTScore")
    if layer is None and model is not None:
        layer = best_layer(model, loaded.config.encoder.layers)
    groups = list(zip(*others, strict=True))
    found = bert_score(texts, groups, loaded, layer=layer, idf=idf, baseline=baseline, long=long, watch=watch)
    if out is not None:
        _write(out, texts, found)
    _print(found, as_json)


def _check_output(out: Path, files: list[Path]) -> None:
    if out.suffix not in _KINDS:
        raise BothwaysError(
            f"scores cannot be written to {out}: expected a name that ends in {' or '.join(_KINDS)}",
            "unknown-format",
            out,
        )
    for file in files:
        if file.resolve() == out.resolve():
            raise BothwaysError(f"{out} would overwrite the input {file}: name another `out`", "overwrites-input", file)


def _write(out: Path, texts: list[str], found: "BertScores") -> None:
    """One row for each candidate: its text and its scores."""
    from bothways import atomic

    columns = [[float(str(score)) for score in scores] for scores in found]  # the shortest decimals of the float32
    names = ("candidate", "precision", "recall", "f1")
    rows = zip(texts, *columns, strict=True)
    with atomic.new_file(out) as fresh, fresh.open("w", encoding="utf-8", newline="") as stream:
        if out.suffix == ".csv":
            writer = csv.writer(stream, lineterminator="\n")
            writer.writerow(names)
            writer.writerows(rows)
        else:
            stream.writelines(json.dumps(dict(zip(names, row, strict=True)), ensure_ascii=False) + "\n" for row in rows)


def _print(found: "BertScores", as_json: bool) -> None:
    means = {
        name: float(scores.mean(dtype="f8")) for name, scores in zip(("precision", "recall", "f1"), found, strict=True)
    }
    if as_json:
        print_json({"candidates": len(found.f1), "layer": found.layer, **means})
        return
    header = (f"{len(found.f1):,} candidates, layer {found.layer}", "mean")
    print_table(header, [(name, f"{mean:.4f}") for name, mean in means.items()], right=("mean",))
