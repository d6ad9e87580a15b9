"""bothways export"""

from pathlib import Path
from typing import Annotated, Literal

import typer

from bothways.cli.options import BaseModel, BoxedTask, PrintJson, SameModel, answering, one_model
from bothways.cli.output import print_json, print_table, say
from bothways.errors import needs


def export(
    out: Annotated[Path, typer.Option("--out", metavar="DIR", help="Folder to write.", show_default=False)],
    model: Annotated[
        str | None,
        typer.Argument(
            metavar="[DIR]",
            help="Model folder, run folder, or the name of an included model.  [default: en]",
            show_default=False,
        ),
    ] = None,
    same_model: SameModel = None,
    to: Annotated[Literal["onnx"], typer.Option("--to", help="Format.")] = "onnx",
    task: BoxedTask = None,
    base: BaseModel = None,
    precision: Annotated[
        Literal["fp32", "fp16", "int8", "int8-blocks", "int4", "int8-dynamic"],
        typer.Option(
            help="Precision of the matrices. int8: integer matrix products, each token with a scale of its own. "
            "int8-blocks, int4: weights in blocks of 32 (MatMulNBits). int8-dynamic: one scale for the whole batch, so "
            "that the result of a text depends on the other texts of its batch."
        ),
    ] = "fp32",
    tables: Annotated[
        Literal["fp32", "fp16", "int8"] | None,
        typer.Option(help="Precision of the token embeddings.  [default: as the matrices]", show_default=False),
    ] = None,
    output: Annotated[
        str | None,
        typer.Option(
            metavar="NAME",
            help="What the graph computes: a head of the model, states (hidden states), vectors (of texts) or tokens "
            "(ColBERT).  [default: what the model was trained for]",
            show_default=False,
        ),
    ] = None,
    attentions: Annotated[bool, typer.Option("--attentions", help="Attention weights as further outputs.")] = False,
    as_json: PrintJson = False,
) -> None:
    """Write a model as an ONNX graph with its tokenizer and labels: for ONNX Runtime, transformers.js and browsers.

    The graph takes input_ids and attention_mask (and token_type_ids, if the model has segments), padded or not. It is
    compared with the model if onnxruntime is installed. The same folder may get several precisions.

    Example: bothways export --task emotion --precision int8 --out emotion-onnx
    """
    from bothways.export.folder import export_onnx
    from bothways.model.box import model_folder
    from bothways.progress import Progress

    given = one_model(model, same_model)
    source = answering(given, task) if task else model_folder(given)
    with Progress("exporting"):
        found = export_onnx(
            source, out, precision=precision, tables=tables, attentions=attentions, output=output, base=base
        )
    if precision == "int8-dynamic":
        say("the tokens of a batch share one scale, so the result of a text depends on its batch: in int8 it does not")
    if as_json:
        print_json(
            {"file": str(found.file), "output": found.output, "bytes": found.size, "difference": found.difference}
        )
        return
    rows = [
        ("file", str(found.file)),
        ("output", found.output),
        ("size", f"{found.size / 1e6:.1f} MB"),
        (
            "largest difference from the model",
            "not measured" if found.difference is None else f"{found.difference:.1e}",
        ),
    ]
    print_table(("ONNX", ""), rows)
    if found.difference is None:
        say(needs("comparing the graph with the model", "onnxruntime"))
