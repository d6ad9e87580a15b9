"""bothways encode FILE --out FILE"""

from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from bothways.cli.options import AnyModel, BaseModel, PrintJson
from bothways.cli.output import print_json, progress, say
from bothways.errors import BothwaysError
from bothways.predict.encode_options import Combine, Long, Pool, Unit

if TYPE_CHECKING:
    from bothways.engine.reader import Tally
    from bothways.model.model import Model
    from bothways.predict.encode import Features
    from bothways.predict.vectors import VectorRow


def encode(
    file: Annotated[
        Path,
        typer.Argument(
            help="File of texts: lines of .txt, rows of .jsonl, .csv, .tsv (also .gz, .xz), .parquet; - for standard "
            "input.",
            show_default=False,
        ),
    ],
    out: Annotated[
        Path, typer.Option("--out", metavar="FILE", help="Output file: .npy, .jsonl or .parquet.", show_default=False)
    ],
    model: AnyModel = None,
    base: BaseModel = None,
    layers: Annotated[
        str,
        typer.Option(
            help="Layers: last, second-to-last, last-four, all, or numbers (0: the embeddings, -1: the last layer); "
            "static: the token embedding table, without context."
        ),
    ] = "last",
    combine: Annotated[Combine, typer.Option(help="How to combine several layers.")] = "concat",
    weights: Annotated[
        str, typer.Option(help="Weighted sum of layers: one weight each, as in 0.1,0.2,0.3,0.4.", show_default=False)
    ] = "",
    per: Annotated[Unit, typer.Option(help="What gets a vector.")] = "text",
    pool: Annotated[
        Pool, typer.Option(help="Pooling for --per text: mean or max over the tokens, or the hidden state of [CLS].")
    ] = "mean",
    long: Annotated[
        Long,
        typer.Option(
            help="How to handle texts longer than the model's maximum length: refuse them, cut them, or read them in "
            "overlapping windows."
        ),
    ] = "error",
    field: Annotated[str, typer.Option(help="Name of the text column or field.")] = "text",
    as_json: PrintJson = False,
) -> None:
    """Compute embeddings of texts, tokens or words.

    Rows keep the order of the texts. An .npy of tokens or words comes with an .npy.jsonl that describes each row.

    Example: bothways encode examples/sample.txt --out sample.npy
    """
    from bothways.engine.reader import Tally
    from bothways.model.load import load
    from bothways.predict.encode import Features
    from bothways.predict.vectors import beside, write_vectors, writer_for
    from bothways.text.files import STDIN, read_texts, require_files

    require_files([file])
    writer_for(out)
    if file.resolve() in (out.resolve(), beside(out).resolve()):
        raise BothwaysError(f"{out} would overwrite the input {file}: name another `out`", "overwrites-input", file)
    loaded = load(model, base=base)
    features = Features(layers, combine, _numbers(weights), long)
    tally = Tally()
    total = None if file == STDIN else sum(1 for _ in read_texts(file, field))
    texts = progress(read_texts(file, field), "encoding", total)
    width = features.width(loaded.config.encoder)
    rows = write_vectors(out, _rows(texts, loaded, per, pool, features, tally), width)
    if as_json:
        print_json({"out": str(out), "rows": rows, "width": width, **vars(tally)})
    else:
        say(f"{tally} → {rows:,} × {width} in {out}")


def _rows(
    texts: Iterable[str], model: "Model", per: Unit, pool: Pool, features: "Features", tally: "Tally"
) -> "Iterator[VectorRow]":
    from bothways.predict.encode import iter_texts, iter_tokens

    if per == "text":
        for i, vector in enumerate(iter_texts(texts, model, pool=pool, features=features, tally=tally)):
            yield {"text": i}, vector
        return
    for i, found in enumerate(iter_tokens(texts, model, per=per, features=features, tally=tally)):
        for name, (start, end), vector in zip(found.texts, found.offsets, found.vectors, strict=True):
            fields: dict[str, Any] = {"text": i, per: name, "start": start, "end": end}
            yield fields, vector


def _numbers(written: str) -> list[float] | None:
    try:
        return [float(number) for number in written.split(",")] if written else None
    except ValueError:
        raise BothwaysError(
            f"`weights` is {written!r}: expected numbers separated by commas", "not-a-number", written
        ) from None
