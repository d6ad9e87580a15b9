"""bothways encode FILE --out FILE"""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, get_args

import typer

from bothways.cli.options import (
    BaseModel,
    Device,
    Devices,
    Dtype,
    Encoding,
    EncodingModel,
    OldField,
    On,
    PrintJson,
    RefusedLong,
    RowsPerPart,
    Sheet,
    TextColumn,
    Threads,
)
from bothways.cli.output import file_progress, parts_progress, print_json, say
from bothways.errors import BothwaysError
from bothways.model.pooling_modes import PoolingMode
from bothways.predict.encode_options import Combine, Unit
from bothways.progress import Progress
from bothways.scale.bulk_options import ROWS_PER_PART, VectorFormat

if TYPE_CHECKING:
    from bothways.engine.reader import Tally


def encode(
    files: Annotated[
        list[Path],
        typer.Argument(
            metavar="FILE...",
            help="File of texts: lines of .txt, rows of .jsonl, .csv, .tsv (also .gz, .xz), .xlsx, .parquet, a folder "
            "of Hugging Face datasets; - for standard input. Or several files, folders or patterns.",
            show_default=False,
        ),
    ],
    out: Annotated[
        Path,
        typer.Option(
            "--out",
            metavar="FILE|DIR",
            help="Output file: .npy, .jsonl or .parquet. With several inputs: a folder.",
            show_default=False,
        ),
    ],
    model: EncodingModel = None,
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
    per: Annotated[Unit, typer.Option(help="What to compute a vector for.")] = "text",
    pool: Annotated[
        str | None,
        typer.Option(
            metavar="MODE[,MODE]",
            help=f"Pooling for --per text: {', '.join(get_args(PoolingMode))}, or several. If given, the folder's "
            "Dense and Normalize modules are not applied.  [default: as the model's folder says, else mean]",
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
    long: RefusedLong = "error",
    text: TextColumn = None,
    encoding: Encoding = None,
    sheet: Sheet = None,
    field: OldField = None,
    format: Annotated[
        VectorFormat | None,
        typer.Option(help="Format of the outputs of several inputs.  [default: npy]", show_default=False),
    ] = None,
    device: Device = "auto",
    dtype: Dtype = "auto",
    threads: Threads = None,
    devices: Devices = "",
    on: On = "",
    rows_per_part: RowsPerPart = ROWS_PER_PART,
    as_json: PrintJson = False,
) -> None:
    """Compute embeddings of texts, tokens or words.

    Rows keep the order of the texts. An .npy of tokens or words comes with an .npy.jsonl that describes each row.
    Several inputs give a folder with one output each. With several inputs, --devices or --on, an
    interrupted command resumes when it is given again.

    Example: bothways encode examples/sample.txt --out sample.npy
    """
    from bothways.engine.engine import Engine
    from bothways.engine.reader import Tally
    from bothways.model.box import model_for_encoding
    from bothways.model.opened import open_model
    from bothways.model.static import is_static, load_static
    from bothways.predict.features import Features, text_recipe, warn_of_prompts
    from bothways.predict.vectors import beside, write_vectors, writer_for
    from bothways.scale.bulk import encode_files, is_one_file
    from bothways.scale.jobs import static_blocks, vector_blocks
    from bothways.text.files import read_any_texts, read_texts, require_files

    pools: Any = pool.split(",") if pool else None
    for mode in pools or ():
        if mode not in get_args(PoolingMode):
            raise typer.BadParameter(f"--pool cannot be {mode!r}: expected {', '.join(get_args(PoolingMode))}")
    if devices or on or format or not is_one_file(files):
        with parts_progress("encoding") as on_progress:
            report = encode_files(
                files,
                out,
                model,
                base=base,
                pool=pools,
                prompt=prompt,
                prompt_name=prompt_name,
                layers=layers,
                combine=combine,
                weights=_numbers(weights),
                per=per,
                long=long,
                text=text or field,
                format=format,
                device=device,
                dtype=dtype,
                devices=devices,
                on=on,
                rows_per_part=rows_per_part,
                on_progress=on_progress,
            )
        _print_report(out, report.vectors, report.width, report.tally, as_json)
        return
    file = require_files(files)[0]
    writer_for(out)
    if file.resolve() in (out.resolve(), beside(out).resolve()):
        raise BothwaysError(f"{out} would overwrite the input {file}: name another `out`", "overwrites-input", file)
    if per != "text" and (pool or prompt or prompt_name):
        raise BothwaysError(
            f"`per` is {per}, and only vectors of whole texts have a `pool`, `prompt` or `prompt_name`",
            "bad-combination",
            per,
        )
    if model is not None and is_static(model):
        if per != "text" or pool or prompt or prompt_name or layers != "last" or weights:
            raise BothwaysError(
                "a static model has one vector for each token: it takes no `per`, `pool`, `prompt`, `prompt_name`, "
                "`layers` or `weights`",
                "bad-combination",
                model,
            )
        with Progress("loading the model"):
            table = load_static(model)
        with file_progress("encoding", [file]) as bar:
            rows = write_vectors(out, static_blocks(bar.over(read_texts(file, text or field)), table), table.width)
        _print_report(out, rows, table.width, Tally(texts=rows), as_json)
        return
    model = model_for_encoding(model, base, per, pool, layers)
    with Progress("loading the model"):
        engine = Engine(open_model(model, base), device=device, dtype=dtype)
    loaded = engine.model
    features = Features(layers, combine, _numbers(weights), long)
    recipe = text_recipe(loaded, features, pools, prompt, prompt_name) if per == "text" else None
    if recipe is not None:
        warn_of_prompts(recipe, prompt, prompt_name)
    tally = Tally()
    width = (recipe or features).width(loaded.config.encoder)
    with file_progress("encoding", [file]) as bar:
        texts = bar.over(read_any_texts(file, text or field) if per == "text" else read_texts(file, text or field))
        rows = write_vectors(out, vector_blocks(texts, engine, per, recipe, features, tally), width)
    _print_report(out, rows, width, tally, as_json)


def _print_report(out: Path, rows: int, width: int, tally: "Tally", as_json: bool) -> None:
    if as_json:
        print_json({"out": str(out), "rows": rows, "width": width, **vars(tally)})
    else:
        say(f"{tally} → {rows:,} × {width} in {out}")


def _numbers(written: str) -> list[float] | None:
    try:
        return [float(number) for number in written.split(",")] if written else None
    except ValueError:
        raise BothwaysError(
            f"`weights` is {written!r}: expected numbers separated by commas", "not-a-number", written
        ) from None
