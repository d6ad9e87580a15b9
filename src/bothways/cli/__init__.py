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
    help="BERT-family encoders, offline. Results go to standard output, messages and progress to standard error.",
    pretty_exceptions_enable=False,
    rich_markup_mode="markdown",
)
_PANELS = {
    "Inference": (predict.predict, fill.fill, encode.encode, rerank.rerank, serve.serve, page.page),
    "Search and similarity": (similar.similar, cluster.cluster),
    "Training": (
        *(doctor.doctor, finetune.finetune, compress.compress, mine.mine, static.static),
        *(pack.pack, pretrain.pretrain, adapt.adapt),
    ),
    "Evaluation": (
        *(evaluate.evaluate, evaluate_vectors.evaluate_vectors, bertscore.bertscore, blimp.blimp),
        *(suite.glue, suite.squad, suite.conll),
    ),
    "Models": (models.models, info.info, convert.convert, export.export),
}
"""The verbs in the order of `bothways --help`."""
for _panel, _verbs in _PANELS.items():
    for _verb in _verbs:
        app.command(name=_verb.__name__.replace("_", "-"), rich_help_panel=_panel)(_verb)
app.add_typer(search.app, name="search", rich_help_panel="Search and similarity")
app.add_typer(vocab.app, name="vocab", rich_help_panel="Training")


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
    # A closed terminal asks for the same, unless nohup keeps the command from hearing it. Windows has no SIGHUP.
    if hasattr(signal, "SIGHUP") and signal.getsignal(signal.SIGHUP) is not signal.SIG_IGN:
        signal.signal(signal.SIGHUP, lambda *_: signal.raise_signal(signal.SIGTERM))
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
        echo(f"bothways: {error.filename or 'standard output or a file'}: {error.strerror or error}", to_errors=True)
        sys.exit(1)
