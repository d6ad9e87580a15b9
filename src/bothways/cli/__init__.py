"""The command line: a thin layer over the library, one file for each verb.

Verbs import what they need when they run, so that `bothways --help` does not import torch.
"""

import os
import signal
import sys

import typer

from bothways.cli import (
    adapt,
    bertscore,
    blimp,
    cluster,
    compress,
    convert,
    doctor,
    encode,
    evaluate,
    evaluate_vectors,
    export,
    fill,
    finetune,
    info,
    mine,
    models,
    pack,
    page,
    predict,
    pretrain,
    rerank,
    search,
    serve,
    similar,
    static,
    suite,
    vocab,
)
from bothways.cli.app import App
from bothways.cli.output import echo, safe_streams, show_warnings, with_options
from bothways.errors import BothwaysError, is_out_of_memory
from bothways.lazy import without_torch

app = App(
    name="bothways",
    help="BERT and its family, offline. Results go to standard output, messages and progress to standard error.",
    pretty_exceptions_enable=False,
    rich_markup_mode="markdown",
)
app.add_typer(vocab.app, name="vocab")
app.command()(info.info)
app.command()(convert.convert)
app.command()(export.export)
app.command()(compress.compress)
app.command()(page.page)
app.command()(fill.fill)
app.command()(encode.encode)
app.command()(similar.similar)
app.command()(cluster.cluster)
app.command()(static.static)
app.command()(mine.mine)
app.command()(pack.pack)
app.command()(pretrain.pretrain)
app.command()(adapt.adapt)
app.command()(doctor.doctor)
app.command()(finetune.finetune)
app.command()(evaluate.evaluate)
app.command(name="evaluate-vectors")(evaluate_vectors.evaluate_vectors)
app.command()(predict.predict)
app.command()(models.models)
app.command()(blimp.blimp)
app.command()(bertscore.bertscore)
app.command()(rerank.rerank)
app.add_typer(search.app, name="search")
app.command()(serve.serve)
app.command()(suite.glue)
app.command()(suite.squad)
app.command()(suite.conll)


@app.callback(invoke_without_command=True)
def _every_verb(
    context: typer.Context, version: bool = typer.Option(False, "--version", help="Print the version and exit.")
) -> None:
    context.with_resource(show_warnings())
    if version:
        import bothways

        typer.echo(bothways.__version__)
        raise typer.Exit


def main() -> None:
    """The `bothways` command."""
    # SIGTERM raises SystemExit, so that open `with` blocks remove their temporary files.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))
    # Threads of torch sleep while they wait for each other: by default they spin, far slower on busy cores.
    os.environ.setdefault("OMP_WAIT_POLICY", "passive")
    safe_streams()
    try:
        app()
    except (BothwaysError, ModuleNotFoundError) as error:
        found = without_torch(error) if isinstance(error, ModuleNotFoundError) else error
        if not isinstance(found, BothwaysError):
            raise
        echo(f"bothways: {with_options(str(found))}", to_errors=True)
        sys.exit(1)
    except (MemoryError, RuntimeError) as error:
        if not is_out_of_memory(error):
            raise
        first = (str(error).splitlines() or [""])[0][:200]
        says = "there is not enough memory for this: use shorter texts, a smaller batch or a smaller model"
        typer.echo(f"bothways: {says}{first and f' ({first})'}", err=True)
        sys.exit(1)
    except OSError as error:
        echo(f"bothways: {error.filename or 'a file'}: {error.strerror or error}", to_errors=True)
        sys.exit(1)
