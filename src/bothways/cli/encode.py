"""bothways encode FILE --out FILE"""

from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, get_args

import typer

from bothways.cli.options import AnyModel, BaseModel, Device, Dtype, PrintJson
from bothways.cli.output import file_progress, print_json, say
from bothways.errors import BothwaysError
from bothways.model.pooling_modes import PoolingMode
from bothways.predict.encode_options import Combine, Long, Unit
from bothways.progress import Progress

if TYPE_CHECKING:
    from bothways.engine.engine import Engine
    from bothways.engine.reader import Tally
    from bothways.predict.features import Features, TextRecipe
    from bothways.predict.vectors import VectorBlock


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
        str | None,
        typer.Option(
            metavar="MODE[,MODE]",
            help=f"Pooling for --per text: {', '.join(get_args(PoolingMode))}, or several. Given, the folder's Dense "
            "and Normalize modules are not applied.  [default: as the model's folder says, else mean]",
            show_default=False,
        ),
    ] = None,
    prompt: Annotated[
        str | None, typer.Option(help="Text to put before every text, for --per text.", show_default=False)
    ] = None,
    prompt_name: Annotated[
        str | None,
        typer.Option(
            "--prompt-name", metavar="NAME", help="One of the prompts of the model's folder.", show_default=False
        ),
    ] = None,
    long: Annotated[
        Long,
        typer.Option(
            help="How to handle texts longer than the model's maximum length: refuse them, cut them, or read them in "
            "overlapping windows."
        ),
    ] = "error",
    field: Annotated[str, typer.Option(help="Name of the text column or field.")] = "text",
    device: Device = "auto",
    dtype: Dtype = "auto",
    as_json: PrintJson = False,
) -> None:
    """Compute embeddings of texts, tokens or words.

    Rows keep the order of the texts. An .npy of tokens or words comes with an .npy.jsonl that describes each row.

    Example: bothways encode examples/sample.txt --out sample.npy
    """
    from bothways.engine.engine import Engine
    from bothways.engine.reader import Tally
    from bothways.model.load import load
    from bothways.predict.features import Features, text_recipe
    from bothways.predict.vectors import beside, write_vectors, writer_for
    from bothways.text.files import read_texts, require_files

    pools: Any = pool.split(",") if pool else None
    for mode in pools or ():
        if mode not in get_args(PoolingMode):
            raise typer.BadParameter(f"--pool cannot be {mode!r}: expected {', '.join(get_args(PoolingMode))}")
    require_files([file])
    writer_for(out)
    if file.resolve() in (out.resolve(), beside(out).resolve()):
        raise BothwaysError(f"{out} would overwrite the input {file}: name another `out`", "overwrites-input", file)
    if per != "text" and (pool or prompt or prompt_name):
        raise BothwaysError(
            f"`per` is {per}, and only vectors of whole texts have a `pool`, `prompt` or `prompt_name`",
            "bad-combination",
            per,
        )
    with Progress("loading the model"):
        engine = Engine(load(model, base=base), device=device, dtype=dtype)
    loaded = engine.model
    features = Features(layers, combine, _numbers(weights), long)
    recipe = text_recipe(loaded, features, pools, prompt, prompt_name) if per == "text" else None
    tally = Tally()
    width = (recipe or features).width(loaded.config.encoder)
    with file_progress("encoding", [file]) as bar:
        texts = bar.over(read_texts(file, field))
        rows = write_vectors(out, _blocks(texts, engine, per, recipe, features, tally), width)
    if as_json:
        print_json({"out": str(out), "rows": rows, "width": width, **vars(tally)})
    else:
        say(f"{tally} → {rows:,} × {width} in {out}")


def _blocks(
    texts: Iterable[str],
    engine: "Engine",
    per: Unit,
    recipe: "TextRecipe | None",
    features: "Features",
    tally: "Tally",
) -> "Iterator[VectorBlock]":
    from bothways.predict.encode import encode_blocks, iter_tokens

    if recipe is not None:
        count = 0
        for vectors in encode_blocks(texts, engine, recipe, tally):
            yield {"text": range(count, count + len(vectors))}, vectors
            count += len(vectors)
        return
    assert per != "text"
    for i, found in enumerate(iter_tokens(texts, engine, per=per, features=features, tally=tally)):
        starts, ends = zip(*found.offsets, strict=True) if found.offsets else ((), ())
        yield {"text": [i] * len(starts), per: found.texts, "start": starts, "end": ends}, found.vectors


def _numbers(written: str) -> list[float] | None:
    try:
        return [float(number) for number in written.split(",")] if written else None
    except ValueError:
        raise BothwaysError(
            f"`weights` is {written!r}: expected numbers separated by commas", "not-a-number", written
        ) from None
