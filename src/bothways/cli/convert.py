"""bothways convert SRC DST --to hf|google"""

from pathlib import Path
from typing import Annotated, Literal

import typer

from bothways.cli.output import say, warnings_said


def convert(
    source: Annotated[
        Path,
        typer.Argument(
            metavar="SRC",
            help="A model folder, Google's TF1 checkpoints included, or fairseq's .pt file of a RoBERTa.",
            show_default=False,
        ),
    ],
    target: Annotated[Path, typer.Argument(metavar="DST", help="The folder to write.", show_default=False)],
    to: Annotated[
        Literal["hf", "google"], typer.Option(help="Hugging Face's layout, or a TF1 checkpoint as Google's.")
    ] = "hf",
    dtype: Annotated[
        Literal["fp32", "fp16", "bf16"], typer.Option(help="The precision of the weights; Google's is fp32.")
    ] = "fp32",
) -> None:
    """Write a model in another layout: every number stays, unless --dtype asks for fewer bits.

    Beside fairseq's .pt file lie its dict.txt and, for a vocabulary of GPT-2's, encoder.json and vocab.bpe. Without
    them the model is written without a tokenizer.

    Example: bothways convert my-model my-google-model --to google
    """
    from bothways.model.convert import convert as run
    from bothways.train.machine import DTYPES

    with warnings_said():
        model = run(source, target, to=to, dtype=DTYPES[dtype])
    parameters = sum(parameter.numel() for parameter in model.parameters())
    heads = ", ".join(model.config.heads) or "none"
    say(f"{target}: {model.config.family}, {parameters:,} parameters, heads: {heads}")
