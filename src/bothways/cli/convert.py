"""bothways convert SRC DST --to hf|google"""

from pathlib import Path
from typing import Annotated, Literal

import typer

from bothways.cli.options import BaseModel
from bothways.cli.output import say
from bothways.progress import Progress


def convert(
    source: Annotated[
        Path,
        typer.Argument(
            metavar="SRC",
            help="A model folder (Hugging Face or Google's TensorFlow 1), or a fairseq .pt file of RoBERTa.",
            show_default=False,
        ),
    ],
    target: Annotated[Path, typer.Argument(metavar="DST", help="The folder to write.", show_default=False)],
    base: BaseModel = None,
    to: Annotated[
        Literal["hf", "google"],
        typer.Option(help="The format to write: Hugging Face's, or Google's TensorFlow 1 checkpoint."),
    ] = "hf",
    dtype: Annotated[
        Literal["fp32", "fp16", "bf16"], typer.Option(help="The dtype of the weights; google: fp32 only.")
    ] = "fp32",
) -> None:
    """Convert a model to another checkpoint format. Weights are unchanged unless --dtype is given.

    The tokenizer of a fairseq model is read from dict.txt beside the .pt file, and if it is GPT-2's, from encoder.json
    and vocab.bpe. Without these files, the model is written without a tokenizer.

    Example: bothways convert zh zh-bf16 --dtype bf16
    """
    from bothways.model.convert import convert as run
    from bothways.model.device import dtype_of

    with Progress("converting"):
        model = run(source, target, base=base, to=to, dtype=dtype_of(dtype))
    parameters = sum(parameter.numel() for parameter in model.parameters())
    heads = ", ".join(model.config.heads) or "none"
    say(f"{target}: {model.config.family}, {parameters:,} parameters, heads: {heads}")
