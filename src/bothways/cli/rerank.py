"""bothways rerank QUERY FILE"""

from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer

from bothways.cli.options import (
    BaseModel,
    Device,
    Dtype,
    Encoding,
    LongTexts,
    OldField,
    PrintJson,
    Sheet,
    TextColumn,
    Threads,
)
from bothways.cli.output import echo, print_json, say, watch
from bothways.errors import BothwaysError
from bothways.progress import Progress


def rerank(
    query: Annotated[str, typer.Argument(help="The query.", show_default=False)],
    documents: Annotated[
        Path,
        typer.Argument(
            metavar="FILE",
            help="File of documents: lines of .txt, rows of .jsonl, .csv, .tsv (also .gz, .xz), .parquet; - for "
            "standard input.",
            show_default=False,
        ),
    ],
    model: Annotated[
        Path,
        typer.Option(
            "--model",
            metavar="DIR",
            help="Folder of a reranker: a cross-encoder (one logit), or a ColBERT.",
            show_default=False,
        ),
    ],
    base: BaseModel = None,
    top: Annotated[int, typer.Option(help="Number of documents to print.", min=1)] = 10,
    long: LongTexts = None,
    text: TextColumn = None,
    encoding: Encoding = None,
    sheet: Sheet = None,
    field: OldField = None,
    device: Device = "auto",
    dtype: Dtype = "auto",
    threads: Threads = None,
    as_json: PrintJson = False,
) -> None:
    """Rank documents by how well they answer a query, with a cross-encoder or by late interaction (ColBERT).

    Prints one line for each of the best: its score, its row in the file, the text. Empty documents are left out. A
    document too long for the model is read in windows.

    Example: bothways rerank "Where is the cat?" examples/sample.txt --model ranker/model
    """
    from bothways.predict.rankers import open_ranker
    from bothways.text.files import no_text, read_texts, require_files

    if not query.strip():
        raise BothwaysError("the query is empty: there is nothing to rank by", "empty-text")
    (file,) = require_files([documents])
    rows = [
        (number, document)
        for number, document in enumerate(watch(read_texts(file, text or field), "reading", [str(file)]))
        if document.strip()
    ]
    if not rows:
        raise no_text([file])
    with Progress("loading the model"):
        ranker = open_ranker(model, base=base, device=device, dtype=dtype, long=long)
    hits = ranker.rank(query, [document for _, document in rows], top, watch=watch)
    found = [{**asdict(hit), "index": rows[hit.index][0]} for hit in hits]
    if as_json:
        print_json(found)
    else:
        for hit in found:
            echo(f"{hit['score']:.4f}\t{hit['index']}\t{' '.join(hit['text'].split())}")
    say(str(ranker.tally))
