"""bothways blimp"""

from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer

from bothways.cli.options import AnyModel
from bothways.cli.output import print_json, print_table, progress


def blimp(
    file: Annotated[
        Path,
        typer.Argument(
            help="Rows with sentence_good, sentence_bad and UID: .jsonl, .csv, .tsv (.gz, .xz too), .parquet.",
            show_default=False,
        ),
    ],
    model: AnyModel = None,
    limit: Annotated[int, typer.Option(help="At most so many pairs of each UID; 0: all.", min=0)] = 0,
    as_json: Annotated[bool, typer.Option("--json", help="The result for programs.")] = False,
) -> None:
    """Ask a pretrained model which of two sentences is the better one: what it knows of grammar, without training.

    A model that fills blanks says how likely each token is beside the others; a detector of replaced tokens, how sure
    it is that none was replaced.

    Example: bothways blimp blimp.jsonl --model my-model --limit 50
    """
    import torch

    from bothways.model.load import load
    from bothways.predict.likelihood import read_pairs, score_minimal_pairs

    total = sum(1 for _ in read_pairs(file, limit))
    loaded = load(model).to("cuda" if torch.cuda.is_available() else "cpu")
    found = score_minimal_pairs(progress(read_pairs(file, limit), "comparing", total), loaded)
    if as_json:
        print_json(asdict(found))
        return
    rows = [(group, f"{share:.3f}") for group, share in sorted(found.groups.items(), key=lambda row: row[1])]
    print_table((f"{found.pairs:,} pairs", "right"), [*rows, ("mean", f"{found.accuracy:.3f}")], right=("right",))
