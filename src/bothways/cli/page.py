"""bothways page"""

from pathlib import Path
from typing import Annotated

import typer

from bothways.cli.options import BaseModel, PrintJson, answering, named_folder
from bothways.cli.output import print_json, say


def page(
    out: Annotated[Path, typer.Option("--out", metavar="DIR", help="Folder to write.", show_default=False)],
    models: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="[MODEL...]",
            help="Model folders, run folders, or names of included models.  [default: all included models]",
            show_default=False,
        ),
    ] = None,
    model: Annotated[
        str | None,
        typer.Option(
            "--model",
            metavar="DIR",
            help="A further model; with --task: the included model whose tasks they are.  [default: en]",
            show_default=False,
        ),
    ] = None,
    tasks: Annotated[
        list[str] | None,
        typer.Option(
            "--task",
            metavar="NAME",
            help="A task of an included model, such as emotion. It may be given several times.",
            show_default=False,
        ),
    ] = None,
    base: BaseModel = None,
    as_json: PrintJson = False,
) -> None:
    """Write a web page that runs models in the browser: static files, for any web server, offline.

    It fills masks, shows attention, classifies, tags words, answers questions and finds similar sentences, in English
    and Chinese. The texts stay in the browser.

    Example: bothways page --out my-page
    """
    from bothways.page.write import write_page

    named = None if model is None else Path(named_folder(model) or model)
    of_model = [answering(named, task) for task in tasks or ()] or ([named] if named else [])
    found = write_page(out, [*(models or ()), *of_model], base=base)
    if as_json:
        print_json({"folder": str(found.folder), "models": found.models, "bytes": found.size})
        return
    say(f"{found.folder}: {', '.join(found.models)}; {found.size / 1e6:.1f} MB")
    say(f"to see it: python -m http.server --bind 127.0.0.1 --directory {found.folder}, then http://127.0.0.1:8000/")
