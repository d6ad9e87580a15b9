"""bothways encode FILE --model DIR --out FILE"""

from collections.abc import Iterable, Iterator
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from bothways.cli.output import print_json, progress, say
from bothways.errors import BothwaysError

if TYPE_CHECKING:
    from bothways.model.model import Model
    from bothways.predict.encode import Features, Tally
    from bothways.predict.vectors import Row


class Per(StrEnum):
    text = "text"
    token = "token"
    word = "word"


class Pool(StrEnum):
    mean = "mean"
    max = "max"
    cls = "cls"


class Combine(StrEnum):
    concat = "concat"
    sum = "sum"
    mean = "mean"


class Long(StrEnum):
    error = "error"
    cut = "cut"
    window = "window"


def encode(
    file: Annotated[
        Path,
        typer.Argument(
            help="Texts: a line each of .txt, or of .jsonl; .gz and .xz too; - for standard input.", show_default=False
        ),
    ],
    model: Annotated[Path, typer.Option("--model", metavar="DIR", help="A model folder.", show_default=False)],
    out: Annotated[
        Path, typer.Option("--out", metavar="FILE", help="Where to: .npy, .jsonl or .parquet.", show_default=False)
    ],
    layers: Annotated[
        str,
        typer.Option(help="last, second-to-last, last-four, all, or numbers: 0 is the embeddings, -1 the last layer."),
    ] = "last",
    combine: Annotated[Combine, typer.Option(help="How several layers become one vector.")] = Combine.concat,
    weights: Annotated[
        str, typer.Option(help="One number for each layer, as 0.1,0.2,0.3,0.4: their weighted sum.", show_default=False)
    ] = "",
    per: Annotated[Per, typer.Option(help="One vector for each text, token or word.")] = Per.text,
    pool: Annotated[
        Pool, typer.Option(help="With --per text: mean or max over the tokens, or the [CLS] state.")
    ] = Pool.mean,
    long: Annotated[
        Long, typer.Option(help="Texts beyond the model's limit: refuse, cut, or read in overlapping windows.")
    ] = Long.error,
    field: Annotated[str, typer.Option(help="The field of .jsonl that holds the text.")] = "text",
    as_json: Annotated[bool, typer.Option("--json", help="Print the report for programs.")] = False,
) -> None:
    """Turn texts into vectors.

    Rows keep the order of the texts. An .npy of tokens or words comes with a .jsonl that says what each row is.

    Example: bothways encode reviews.txt --model my-model --layers last-four --combine sum --out reviews.npy
    """
    from bothways.model.checkpoint import load
    from bothways.predict.encode import Features, Tally
    from bothways.predict.vectors import write_vectors, writer_for
    from bothways.text.files import STDIN, read_texts, require_files

    require_files([file])
    writer_for(out)
    loaded = load(model)
    features = Features(layers, combine.value, _numbers(weights), long.value)
    tally = Tally()
    total = None if file == STDIN else sum(1 for _ in read_texts(file, field))
    texts = progress(read_texts(file, field), "encoding", total)
    rows, width = write_vectors(out, _rows(texts, loaded, per, pool, features, tally))
    if as_json:
        print_json({"out": str(out), "rows": rows, "width": width, **vars(tally)})
    else:
        say(f"{tally} → {rows:,} × {width} in {out}")


def _rows(
    texts: Iterable[str], model: "Model", per: Per, pool: Pool, features: "Features", tally: "Tally"
) -> "Iterator[Row]":
    from bothways.predict.encode import iter_texts, iter_tokens

    if per is Per.text:
        for i, vector in enumerate(iter_texts(texts, model, pool=pool.value, features=features, tally=tally)):
            yield {"text": i}, vector
        return
    kind = per.value
    for i, found in enumerate(iter_tokens(texts, model, per=kind, features=features, tally=tally)):  # type: ignore[arg-type]
        for name, (start, end), vector in zip(found.texts, found.offsets, found.vectors, strict=True):
            fields: dict[str, Any] = {"text": i, kind: name, "start": start, "end": end}
            yield fields, vector


def _numbers(written: str) -> list[float] | None:
    try:
        return [float(number) for number in written.split(",")] if written else None
    except ValueError:
        raise BothwaysError(f"--weights takes numbers with commas between them, not {written!r}") from None
