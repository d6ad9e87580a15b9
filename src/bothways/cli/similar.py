"""bothways similar FILE"""

from pathlib import Path
from typing import Annotated, Any

import typer

from bothways.cli.options import (
    BaseModel,
    Device,
    Dtype,
    Encoding,
    OldField,
    PrintJson,
    RefusedLong,
    Sheet,
    TextColumn,
    TextFile,
    Threads,
    VectorModel,
    vector_model,
)
from bothways.cli.output import print_json, print_table, read_rows, require_jsonl, say, shorten, watch, write_jsonl
from bothways.printable import counted


def similar(
    file: TextFile,
    model: VectorModel = None,
    base: BaseModel = None,
    top: Annotated[
        int | None,
        typer.Option(
            "--top", metavar="N", help="Number of pairs.  [default: 20; with --above, all]", min=1, show_default=False
        ),
    ] = None,
    above: Annotated[
        float | None,
        typer.Option(
            "--above",
            metavar="COSINE",
            help="Minimum cosine similarity of a pair, from -1 to 1.  [default with --duplicates: 0.95]",
            show_default=False,
        ),
    ] = None,
    duplicates: Annotated[
        bool, typer.Option("--duplicates", help="Print groups of near-duplicates instead of pairs.")
    ] = False,
    out: Annotated[
        Path | None,
        typer.Option("--out", metavar="FILE", help="Write the pairs or groups to a .jsonl file.", show_default=False),
    ] = None,
    long: RefusedLong = "error",
    text: TextColumn = None,
    encoding: Encoding = None,
    sheet: Sheet = None,
    field: OldField = None,
    device: Device = "auto",
    dtype: Dtype = "auto",
    threads: Threads = None,
    as_json: PrintJson = False,
) -> None:
    """Find the most similar pairs of texts in a file, or near-duplicates.

    All pairs are compared, by the cosine of their vectors; memory does not grow with their number. Empty texts are left
    out. Equal texts are compared once; --duplicates finds them. Results name texts by their index, counted from 0.

    Example: bothways similar examples/reviews.tsv --top 5
    """
    from bothways.search.pairs import THRESHOLD, near_duplicates, similar_pairs

    if duplicates and top is not None:
        raise typer.BadParameter("--top cannot be given with --duplicates, which finds all groups")
    require_jsonl(out, file)
    texts, numbers = read_rows(file, text or field)
    loaded = vector_model(model, base, device, dtype)
    rows: list[dict[str, Any]]
    if duplicates:
        threshold = THRESHOLD if above is None else above
        groups = near_duplicates(texts, loaded, threshold=threshold, long=long, device=device, watch=watch)
        rows = [{"size": len(g), "rows": [numbers[i] for i in g], "texts": [texts[i] for i in g]} for g in groups]
        surplus = sum(len(group) - 1 for group in groups)
        say(
            f"{counted(len(texts), 'text')}: {counted(len(groups), 'group')} of near-duplicates, "
            f"{counted(surplus, 'text')} more than needed"
        )
    else:
        limit = 20 if top is None and above is None else top
        pairs = similar_pairs(texts, loaded, top=limit, above=above, long=long, device=device, watch=watch)
        rows = [
            {"score": score, "rows": [numbers[i], numbers[j]], "texts": [texts[i], texts[j]]} for score, i, j in pairs
        ]
        say(f"{counted(len(texts), 'text')}: {counted(len(pairs), 'pair')}")
    if out is not None:
        write_jsonl(out, rows)
    if as_json:
        print_json(rows)
    elif out is None:
        _print(rows)


def _print(rows: list[dict[str, Any]]) -> None:
    if not rows:
        return
    if "score" in rows[0]:
        table = [(f"{row['score']:.4f}", *map(shorten, row["texts"])) for row in rows]
        print_table(("cosine", "first", "second"), table, right=("cosine",))
        return
    lines = [
        (row["size"] if i == 0 else "", number, shorten(text))
        for row in rows
        for i, (number, text) in enumerate(zip(row["rows"], row["texts"], strict=True))
    ]
    print_table(("size", "row", "text"), lines, right=("size", "row"))
