"""bothways serve FOLDER…"""

import sys
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from bothways.cli.options import Device, Dtype, PrintJson, Threads
from bothways.cli.output import print_json, say
from bothways.errors import BothwaysError, missing_package
from bothways.printable import counted

if TYPE_CHECKING:
    from bothways.serve.service import Service


def serve(
    folders: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="[FOLDER...]",
            help="Model folders, run folders, or names of included models (bothways models). Requests name a model by "
            "the last part of its folder, or as NAME=FOLDER says.  [default: en]",
            show_default=False,
        ),
    ] = None,
    index: Annotated[
        list[str] | None,
        typer.Option(
            "--index",
            metavar="DIR...",
            help="Folder of an index for /search, or NAME=DIR; or several.",
            show_default=False,
        ),
    ] = None,
    host: Annotated[
        str, typer.Option(metavar="ADDRESS", help="Address to listen on; 0.0.0.0 is every one of this machine.")
    ] = "127.0.0.1",
    port: Annotated[
        int, typer.Option(metavar="N", help="Port to listen on; 0 is a free one.", min=0, max=65_535)
    ] = 8000,
    max_requests: Annotated[
        int, typer.Option(metavar="N", help="Requests in the service at once; more get status 429.", min=1)
    ] = 256,
    max_body: Annotated[int, typer.Option(metavar="BYTES", help="Bytes of a request.", min=1)] = 4_194_304,
    max_texts: Annotated[int, typer.Option(metavar="N", help="Texts of a request.", min=1)] = 2_048,
    max_tokens: Annotated[int, typer.Option(metavar="N", help="Tokens of a request.", min=1)] = 131_072,
    batch_tokens: Annotated[
        int | None,
        typer.Option(
            metavar="N",
            help="Token budget of a batch.  [default: 2048 on a CPU, 32768 on a GPU]",
            min=1,
            show_default=False,
        ),
    ] = None,
    timeout: Annotated[float, typer.Option(metavar="SECONDS", help="Time for a request.", min=0.1)] = 60.0,
    read_timeout: Annotated[
        float, typer.Option(metavar="SECONDS", help="Time that a client may be silent within a request.", min=0.1)
    ] = 10.0,
    cors: Annotated[
        list[str] | None,
        typer.Option(
            metavar="ORIGIN",
            help="Origin whose pages may ask from a browser, or *; may be repeated.  [default: none]",
            show_default=False,
        ),
    ] = None,
    page: Annotated[
        Path | None,
        typer.Option(
            metavar="DIR",
            help="Folder of static files for /. If there is none, the page of these models is written there, as by "
            "bothways page.  [default: / leads to /docs]",
            show_default=False,
        ),
    ] = None,
    log: Annotated[bool, typer.Option("--log/--no-log", help="One JSON line for each request, without texts.")] = True,
    device: Device = "auto",
    dtype: Dtype = "auto",
    threads: Threads = None,
    as_json: PrintJson = False,
) -> None:
    """Serve models over HTTP with the APIs of OpenAI, TEI and Cohere (extra serve). Stop it with Ctrl-C or SIGTERM.

    Prints the address and the models, then logs on standard error. If the environment variable BOTHWAYS_API_KEY is
    set, requests must carry it.

    Example: bothways serve sentence emotion --port 8000
    """
    _require_packages()
    from bothways.serve.log import Log
    from bothways.serve.server import run_server
    from bothways.serve.service import named, require_folders
    from bothways.serve.settings import ServeSettings, key_from

    models, indexes = named(folders or ["en"]), named(index or [])
    require_folders(models)
    if page is not None:
        _require_page(page, list(models.values()))
    limits = (max_requests, max_body, max_texts, max_tokens, batch_tokens, timeout, read_timeout)
    settings = ServeSettings(*limits, cors=tuple(cors or ()), api_key=key_from())
    run_server(
        models,
        indexes,
        host=host,
        port=port,
        settings=settings,
        device=device,
        dtype=dtype,
        page=page,
        log=Log(sys.stderr if log else None),
        on_start=_json_start if as_json else _start,
    )


def _require_packages() -> None:
    for name in ("starlette", "uvicorn"):
        if find_spec(name) is None:
            raise missing_package("the service", name)


def _require_page(page: Path, models: list[str]) -> None:
    """Write a page of the models unless there is a folder."""
    if page.exists():
        if not page.is_dir():
            raise BothwaysError(f"{page} is no folder: expected one for `page`, or nothing", "no-folder", page)
        return
    from bothways.page.write import write_page
    from bothways.progress import Progress

    with Progress(f"writing {page}"):
        write_page(page, models)


def _json_start(address: str, service: "Service") -> None:
    models = {name: {"abilities": model.abilities} for name, model in service.models.items()}
    print_json({"address": address, "models": models, "indexes": list(service.indexes)})


def _start(address: str, service: "Service") -> None:
    for name, model in service.models.items():
        say(f"{name}: {', '.join(model.abilities)}")
    for name, found in service.indexes.items():
        say(f"{name}: search among {counted(len(found), 'document')}")
    say(f"{address} (try {address}/docs)")
