"""bothways static MODEL --out DIR"""

from pathlib import Path
from typing import Annotated

import typer

from bothways.cli.options import (
    BaseModel,
    Device,
    Dtype,
    Encoding,
    OldField,
    PrintJson,
    SameModel,
    Sheet,
    TextColumn,
    Threads,
    one_model,
)
from bothways.cli.output import print_json, say, watch
from bothways.progress import Progress


def static(
    out: Annotated[Path, typer.Option("--out", metavar="DIR", help="Folder to write.", show_default=False)],
    model: Annotated[
        Path | None,
        typer.Argument(
            metavar="[MODEL]",
            help="Model folder, run folder, or the name of a model.  [default: en]",
            show_default=False,
        ),
    ] = None,
    same_model: SameModel = None,
    base: BaseModel = None,
    texts: Annotated[
        Path | None,
        typer.Option(
            "--texts",
            metavar="FILE",
            help="File of texts like yours, in which to count tokens: frequent ones get less weight.  [default: guess]",
            show_default=False,
        ),
    ] = None,
    width: Annotated[
        int, typer.Option(help="Number of dimensions of the vectors; at most those of the encoder.", min=1)
    ] = 256,
    text: TextColumn = None,
    encoding: Encoding = None,
    sheet: Sheet = None,
    field: OldField = None,
    device: Device = "auto",
    dtype: Dtype = "auto",
    threads: Threads = None,
    as_json: PrintJson = False,
) -> None:
    """Distil an encoder into a static embedding model (as Model2Vec): a text is the mean of its token vectors.

    On a CPU it is hundreds of times as fast as the encoder, and less exact. The folder works as --model of encode,
    search, similar, cluster and mine, and sentence-transformers opens it.

    Example: bothways static --texts examples/stories.txt --out static
    """
    from bothways.engine.engine import Engine
    from bothways.model.load import load
    from bothways.model.static import save_static
    from bothways.predict.token_table import distil_static
    from bothways.text.files import read_texts, require_files

    given = one_model(model, same_model)
    if texts is not None:
        require_files([texts])
    with Progress("loading the model"):
        loaded = Engine(load(given, base=base), device=device, dtype=dtype).weights("a static model")
    table = distil_static(
        loaded, width=width, texts=read_texts(texts, text or field) if texts is not None else None, watch=watch
    )
    save_static(table, out)
    if as_json:
        print_json({"out": str(out), "tokens": len(table.table), "width": table.width})
    else:
        say(f"{len(table.table):,} tokens × {table.width} in {out}")
