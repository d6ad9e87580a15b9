"""Options that several commands have: which model is meant."""

from pathlib import Path
from typing import Annotated

import typer

from bothways.errors import BothwaysError

_OR_BOX = "  [default: the one in the box]"

AnyModel = Annotated[
    Path | None, typer.Option("--model", metavar="DIR", help=f"A model folder.{_OR_BOX}", show_default=False)
]
FirstModel = Annotated[
    str | None, typer.Option("--model", metavar="DIR", help=f"The model to start from.{_OR_BOX}", show_default=False)
]
TunedModel = Annotated[
    Path | None, typer.Option("--model", metavar="DIR", help="A fine-tuned model folder.", show_default=False)
]
BoxedTask = Annotated[
    str | None,
    typer.Option(
        "--task", metavar="NAME", help="Instead: one of the tasks that the box answers, as emotion.", show_default=False
    ),
]


def answering(model: Path | None, task: str | None) -> Path:
    """The folder that is meant: a model's, or one of those in the box."""
    from bothways.model.box import boxed, boxed_tasks

    known = ", ".join(boxed_tasks())
    if (model is None) == (task is None):
        raise typer.BadParameter(
            f"give --model DIR, or --task {f'with one of {known}' if known else 'NAME'}, one of the two"
        )
    if known and task is not None and task not in boxed_tasks():
        raise BothwaysError(f"the box answers no {task!r}: expected {known}")
    return model or boxed(task or "")
