"""bothways fill TEXT --model DIR"""

from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer

from bothways.cli.output import print_json


def fill(
    text: Annotated[
        str,
        typer.Argument(
            help="A text with one or more [MASK]s, or - to read one from each line of standard input.",
            show_default=False,
        ),
    ],
    model: Annotated[Path, typer.Option("--model", metavar="DIR", help="A model folder.", show_default=False)],
    top: Annotated[int, typer.Option(help="How many answers.", min=1)] = 5,
    as_json: Annotated[bool, typer.Option("--json", help="For programs: one line for each text.")] = False,
) -> None:
    """Fill the blanks of a text; several blanks are filled together.

    Each line is one answer: its score, the words, the text. The score is the probability of the words,
    each given all the others; for several words, their geometric mean.

    Example: bothways fill "The capital of France is [MASK]." --model my-model
    """
    import bothways
    from bothways.text.files import STDIN, read_lines

    loaded = bothways.load(model)
    texts = (line for line in read_lines(STDIN) if line.strip()) if text == "-" else [text]
    for one in texts:
        answers = bothways.fill(one, loaded, top=top)
        if as_json:
            print_json([asdict(answer) for answer in answers])
            continue
        width = max(len(" ".join(answer.words)) for answer in answers)
        for answer in answers:
            typer.echo(f"{answer.score:.4f}  {' '.join(answer.words):{width}}  {answer.text}")
