"""Options that several verbs share."""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from bothways.errors import BothwaysError
from bothways.predict.encode_options import Long
from bothways.text.excel import read_sheet
from bothways.text.streams import read_as

if TYPE_CHECKING:
    from bothways.model.opened import AnsweringModel
    from bothways.model.static import StaticModel

_OR_NAME = ", run folder, or the name of a model that is included (bothways models) or in the Hugging Face cache"


def named_folder(model: Path | str | None) -> Path | str | None:
    """The folder of a model that is given by its path, by a run or by a name."""
    from bothways.model.box import model_folder

    return None if model is None else type(model)(model_folder(model))


def _read_as(context: typer.Context, encoding: str | None) -> str | None:
    context.with_resource(read_as(encoding))
    return encoding


def _with_threads(context: typer.Context, threads: int | None) -> int | None:
    if threads is not None:
        context.with_resource(_threads(threads))
    return threads


@contextmanager
def _threads(number: int) -> Iterator[None]:
    """Compute on this many threads in this block, and in processes that it starts."""
    from bothways.engine.threads import set_threads

    before = os.environ.get(_OMP)
    os.environ[_OMP] = str(number)
    set_threads(number)
    try:
        yield
    finally:
        set_threads(None)
        os.environ.pop(_OMP)
        os.environ |= {_OMP: before} if before else {}


_OMP = "OMP_NUM_THREADS"
Encoding = Annotated[
    str | None,
    typer.Option(
        "--encoding",
        metavar="NAME",
        help="Encoding of the text files, such as gb18030 or cp1252.  [default: UTF-8, or what is guessed]",
        show_default=False,
        callback=_read_as,
    ),
]
"""It holds for all files that the verb reads."""


def _read_sheet(context: typer.Context, sheet: str | None) -> str | None:
    context.with_resource(read_sheet(sheet))
    return sheet


Sheet = Annotated[
    str | None,
    typer.Option(
        "--sheet",
        metavar="NAME",
        help="Sheet of the .xlsx files.  [default: the only one with rows]",
        show_default=False,
        callback=_read_sheet,
    ),
]
"""It holds for all files that the verb reads."""


def tokenizer_place(model: Path | None) -> Path:
    """The folder or the file of the tokenizer of --model."""
    from bothways.model.box import model_folder, no_such_model

    found = model_folder(model)
    if model is not None and not found.exists():
        raise no_such_model(model)
    return found


def _model_or(default: str) -> Any:
    return typer.Option(
        "--model",
        metavar="DIR",
        help=f"Model folder{_OR_NAME}.  [default: {default}]",
        show_default=False,
        callback=named_folder,
    )


AnyModel = Annotated[Path | None, _model_or("en")]
VectorModel = Annotated[Path | None, _model_or("sentence")]
EncodingModel = Annotated[Path | None, _model_or("sentence; en with --layers, --pool or --per")]
TokenizerModel = Annotated[
    Path | None,
    typer.Option(
        "--model",
        metavar="DIR",
        help="Model folder, run folder, tokenizer.json or vocab.txt, or the name of a model that is included (bothways "
        "models) or in the Hugging Face cache.  [default: en]",
        show_default=False,
        callback=tokenizer_place,
    ),
]
"""Never None in the verb."""
FirstModel = Annotated[
    str | None,
    typer.Option(
        "--model",
        metavar="DIR",
        help=f"Model to start from: model folder{_OR_NAME}.  [default: en]",
        show_default=False,
        callback=named_folder,
    ),
]
TunedModel = Annotated[
    Path | None,
    typer.Option(
        "--model",
        metavar="DIR",
        help="Folder of a fine-tuned model or of its run, or its name in the Hugging Face cache. With --task: the name "
        "of an included model.",
        show_default=False,
        callback=named_folder,
    ),
]
SameModel = Annotated[
    str | None,
    typer.Option("--model", metavar="DIR", help="The model, as in the argument: give either.", show_default=False),
]
"""For verbs whose argument is the model, because others take it as --model."""
BaseModel = Annotated[
    Path | None,
    typer.Option(
        "--base",
        metavar="DIR",
        help="Base model, if the model is an adapter.  [default: as its adapter_config.json says]",
        show_default=False,
    ),
]
BoxedTask = Annotated[
    str | None,
    typer.Option("--task", metavar="NAME", help="A task of an included model, such as emotion.", show_default=False),
]
TextColumn = Annotated[
    str | None,
    typer.Option(
        "--text",
        metavar="NAME",
        help="Name of the text column.  [default: the one with a usual name, such as text or review]",
        show_default=False,
    ),
]
OldField = Annotated[str | None, typer.Option("--field", hidden=True)]
"""What --text was called before, on verbs that read texts without labels."""
PairColumn = Annotated[str | None, typer.Option("--pair", help="Name of the second text column.", show_default=False)]
LabelColumn = Annotated[
    str | None,
    typer.Option(
        "--label",
        metavar="NAME",
        help="Name of the label column; joy+awe for several labels with a column of 0 and 1 each.",
        show_default=False,
    ),
]
LongTexts = Annotated[
    Long | None,
    typer.Option(
        "--long",
        help="How to handle texts longer than the model's maximum length: refuse them, truncate them (cut), or read "
        "them in overlapping windows.  [default: as the model's folder says]",
        show_default=False,
    ),
]
RefusedLong = Annotated[
    Long,
    typer.Option(
        "--long",
        help="How to handle texts longer than the model's maximum length: refuse them, truncate them (cut), or read "
        "them in overlapping windows.",
    ),
]
Device = Annotated[
    str, typer.Option(metavar="NAME", help="Device: cpu, cuda, cuda:1 or mps; auto: a GPU if there is one.")
]
TrainDevice = Annotated[
    Literal["auto", "cpu", "cuda"] | None,
    typer.Option(
        "--device",
        help="Device to train on, as run.device in a recipe; auto: a GPU if there is one.  [default: auto]",
        show_default=False,
    ),
]
Threads = Annotated[
    int | None,
    typer.Option(
        "--threads",
        metavar="N",
        min=1,
        help="Number of CPU threads of each process.  [default: all cores, and one thread for small work]",
        show_default=False,
        callback=_with_threads,
    ),
]
"""It holds for all that the verb computes."""
Dtype = Annotated[
    Literal["auto", "fp32", "bf16", "fp16"],
    typer.Option(help="Precision; fp32 is the reference, auto: bf16 on a GPU that computes in it, else fp32."),
]


def named_devices(context: typer.Context, param: typer.CallbackParam, devices: str) -> str:
    """The value of --devices: an empty one is not the same as none, as it comes from a variable that is not set."""
    source = context.get_parameter_source(param.name or "")
    if not devices.strip() and source is not None and source.name == "COMMANDLINE":
        raise BothwaysError("`devices` is empty: expected all, a list such as cuda:0,cuda:1, or cpu:2", "no-devices")
    return devices


Devices = Annotated[
    str,
    typer.Option(
        callback=named_devices,
        metavar="LIST",
        help="Work in several processes: all (one for each GPU), a list such as cuda:0,cuda:1, or cpu:2 for two "
        "without a GPU.",
        show_default=False,
    ),
]
On = Annotated[
    str,
    typer.Option(
        metavar="CLUSTER",
        help="Work on a Ray cluster: ray, or ray://host:port (needs the extra ray).",
        show_default=False,
    ),
]
RowsPerPart = Annotated[
    int, typer.Option("--rows-per-part", help="Number of rows of a part of the work, with --devices or --on.", min=1)
]
TextFile = Annotated[
    Path,
    typer.Argument(
        metavar="FILE",
        help="File of texts: lines of .txt, rows of .jsonl, .csv, .tsv (also .gz, .xz), .xlsx, .parquet, a folder of "
        "Hugging Face datasets; - for standard input.",
        show_default=False,
    ),
]
PrintJson = Annotated[bool, typer.Option("--json", help="Print JSON.")]


def one_model(argument: Path | str | None, option: str | None) -> Path | None:
    """The folder of the model that a verb got as its argument or by --model."""
    if argument is not None and option is not None:
        raise typer.BadParameter(f"two models were given, {argument} and --model {option}: give one")
    named = named_folder(option if argument is None else argument)
    return None if named is None else Path(named)


def vector_model(model: Path | None, base: Path | None, device: str, dtype: str) -> "AnsweringModel | StaticModel":
    """The model of --model that makes vectors of texts: an encoder on its device, or a static model."""
    from bothways.engine.engine import Engine
    from bothways.predict.source import open_source
    from bothways.progress import Progress

    with Progress("loading the model"):
        source = open_source(model, base, device, dtype)
        return source.model if isinstance(source, Engine) else source


def answering(model: Path | None, task: str | None) -> Path:
    """The folder of --model, or of a task of an included model."""
    from bothways.model.box import BOX, DEFAULT, boxed, boxed_encoders, boxed_tasks

    name = DEFAULT if model is None else model.name
    known = ", ".join(boxed_tasks(name))
    if task is None:
        if model is None:
            raise typer.BadParameter(f"give --model DIR, or --task {f'with one of {known}' if known else 'NAME'}")
        return model
    if model is not None and model.parent != BOX:
        names = ", ".join(one for one in boxed_encoders() if boxed_tasks(one))
        raise typer.BadParameter(
            f"--task {task} is of an included model, and --model is {model}: name one of {names}, or leave --task out"
        )
    if task not in boxed_tasks(name):
        what = f"expected {known}" if known else "it has no tasks"
        raise BothwaysError(f"the included model {name} has no task {task!r}: {what}", "unknown-task", task)
    return boxed(task, name)
