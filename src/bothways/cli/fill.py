"""bothways fill TEXT"""

from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated

import typer

from bothways.cli.options import AnyModel, BaseModel, Device, Dtype, Encoding, PrintJson, Threads
from bothways.cli.output import echo, print_json
from bothways.progress import Progress, progress

if TYPE_CHECKING:
    from bothways.predict.fill import Filled


def fill(
    text: Annotated[
        str,
        typer.Argument(
            help="A text with one or more [MASK]s, or - to read one text from each line of standard input.",
            show_default=False,
        ),
    ],
    model: AnyModel = None,
    base: BaseModel = None,
    top: Annotated[int, typer.Option(help="Number of answers to print.", min=1)] = 5,
    device: Device = "auto",
    dtype: Dtype = "auto",
    threads: Threads = None,
    encoding: Encoding = None,
    as_json: PrintJson = False,
) -> None:
    """Fill the masks of a text by masked language modelling. Several masks are filled together.

    Each line is one answer: its score, the words, the text. The score is the probability of the word given the rest of
    the text; for several masks, the geometric mean.

    Example: bothways fill "The capital of France is [MASK]."
    """
    from bothways.engine.engine import Engine
    from bothways.model.opened import open_model
    from bothways.predict.fill import iter_filled
    from bothways.text.files import STDIN, read_lines

    with Progress("loading the model"):
        engine = Engine(open_model(model, base), device=device, dtype=dtype)
    if text != "-":
        _print(next(iter_filled([text], engine, top)), as_json)
        return
    lines = (line for line in progress(read_lines(STDIN), "filling") if line.strip())
    for answers in iter_filled(lines, engine, top):
        _print(answers, as_json)


def _print(answers: "list[Filled]", as_json: bool) -> None:
    from rich.cells import cell_len, set_cell_size

    if as_json:
        print_json([asdict(answer) for answer in answers])
        return
    words = [" ".join(answer.words) for answer in answers]
    width = max(map(cell_len, words))  # a Chinese character takes two cells
    for answer, word in zip(answers, words, strict=True):
        echo(f"{answer.score:.4f}  {set_cell_size(word, width)}  {' '.join(answer.text.split())}")
