"""bothways blimp"""

from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer

from bothways.cli.options import AnyModel, Device, Dtype, Encoding, PrintJson, Threads
from bothways.cli.output import file_progress, print_json, print_table
from bothways.printable import counted
from bothways.progress import Progress


def blimp(
    file: Annotated[
        Path,
        typer.Argument(
            help="Rows with sentence_good, sentence_bad and UID: .jsonl, .csv, .tsv (also .gz, .xz), .parquet.",
            show_default=False,
        ),
    ],
    model: AnyModel = None,
    limit: Annotated[int, typer.Option(help="Maximum number of pairs of each UID; 0: all.", min=0)] = 0,
    device: Device = "auto",
    dtype: Dtype = "auto",
    threads: Threads = None,
    encoding: Encoding = None,
    as_json: PrintJson = False,
) -> None:
    """Score a pretrained model on minimal pairs: how often it prefers the grammatical sentence. No training.

    Sentences are scored by pseudo-log-likelihood; for a replaced token detector, by the log-probability that no token
    is replaced.

    Example: bothways blimp examples/minimal-pairs.jsonl
    """
    from bothways.engine.engine import Engine
    from bothways.predict.likelihood import read_minimal_pairs, score_minimal_pairs

    with Progress("loading the model"):
        loaded = Engine(model, device=device, dtype=dtype).model
    with file_progress("scoring", [file]) as bar:
        found = score_minimal_pairs(bar.over(read_minimal_pairs(file, limit)), loaded)
    if as_json:
        print_json(asdict(found))
        return
    rows = [(group, f"{share:.3f}") for group, share in sorted(found.groups.items(), key=lambda row: row[1])]
    print_table(
        (counted(found.pairs, "pair"), "accuracy"), [*rows, ("mean", f"{found.accuracy:.3f}")], right=("accuracy",)
    )
