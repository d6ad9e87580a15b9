"""bothways predict"""

import glob
import os
import re
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from bothways.cli.options import (
    BaseModel,
    BoxedTask,
    Device,
    Devices,
    Dtype,
    Encoding,
    LongTexts,
    On,
    PairColumn,
    PrintJson,
    RowsPerPart,
    Sheet,
    TextColumn,
    Threads,
    TunedModel,
    answering,
)
from bothways.cli.output import (
    echo_parts,
    file_progress,
    parts_progress,
    print_json,
    print_json_line,
    print_table,
    say,
    shorten,
    watch,
    with_options,
)
from bothways.errors import BothwaysError
from bothways.predict.ask_options import PASSAGES
from bothways.progress import Progress
from bothways.scale.bulk_options import ROWS_PER_PART, TableFormat
from bothways.text.same_text import is_blank

if TYPE_CHECKING:
    from bothways.data.notes import Notes
    from bothways.engine.reader import Tally
    from bothways.predict.predictor import Predictor
    from bothways.tasks.task import Task

_SHOWN = 200  # characters of a passage in the table
_LONGEST_NAME = 1_000  # characters of a path or pattern


def predict(
    inputs: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="[FILE...|TEXT [TEXT]|QUESTION PATH...]",
            help="A file of texts (.txt, .jsonl, .csv, .tsv, .xlsx, .parquet), or - for standard input; or one text, "
            "or two, such as a question and its context; or a question and the documents to find the answer in: .txt, "
            ".md, .html and .pdf files, folders, patterns. With --out also several files, folders or patterns.",
            show_default=False,
        ),
    ] = None,
    model: TunedModel = None,
    base: BaseModel = None,
    task: BoxedTask = None,
    text: TextColumn = None,
    pair: PairColumn = None,
    encoding: Encoding = None,
    sheet: Sheet = None,
    long: LongTexts = None,
    top: Annotated[int, typer.Option(help="Number of answers to print for each text.", min=1)] = 1,
    passages: Annotated[
        int | None,
        typer.Option(
            "--passages",
            help="Of a question over documents: the passages to read, those that share most words with it.  "
            f"[default: {PASSAGES}]",
            show_default=False,
            min=1,
        ),
    ] = None,
    out: Annotated[
        Path | None,
        typer.Option(
            "--out",
            metavar="FILE|DIR",
            help="Write the answers to this .jsonl, .csv or .parquet, after the columns of the input. Of several "
            "inputs: to a folder.",
            show_default=False,
        ),
    ] = None,
    keep: Annotated[
        list[str] | None,
        typer.Option(
            "--keep",
            metavar="COLUMN",
            help="Column of the input to keep in --out; may be repeated.  [default: all]",
            show_default=False,
        ),
    ] = None,
    probabilities: Annotated[
        bool, typer.Option("--probabilities", help="With --out: a column with the probability of each label.")
    ] = False,
    format: Annotated[
        TableFormat | None,
        typer.Option("--format", help="Format of the results in a folder.  [default: jsonl]", show_default=False),
    ] = None,
    bom: Annotated[
        bool, typer.Option("--bom", help="Begin a .csv of --out with a byte order mark: Excel needs it.")
    ] = False,
    show: Annotated[
        bool, typer.Option("--show", help="Print each text with its entities, tags or answer marked, in colours.")
    ] = False,
    html: Annotated[
        Path | None,
        typer.Option(
            "--html", metavar="FILE", help="Write the texts, marked in the same way, as a page.", show_default=False
        ),
    ] = None,
    device: Device = "auto",
    dtype: Dtype = "auto",
    threads: Threads = None,
    devices: Devices = "",
    on: On = "",
    rows_per_part: RowsPerPart = ROWS_PER_PART,
    as_json: PrintJson = False,
) -> None:
    """Predict with a fine-tuned model: for one text, or for every line or row of a file, in order.

    Prints one line for each text: the answers with their scores, a tab, the text. Streams in constant memory. With
    --out, the same command resumes if interrupted. --show and --html mark the entities, tags or answers in the texts.

    A question is answered from documents: bothways predict "Where do owls sleep?" notes/ --task answer prints the
    answer, its score, its file and line (.pdf: page), and the passage.

    Example: bothways predict "I cannot believe it, thank you so much!" --task emotion
    """
    from bothways.data.notes import Notes
    from bothways.predict.display import require_marks
    from bothways.predict.predictor import Predictor
    from bothways.predict.rows import note_without_label
    from bothways.scale.bulk import predict_files
    from bothways.tasks.labelled_files import FinetuneData

    if (show or html) and (out or as_json):
        raise typer.BadParameter("--show and --html mark texts, and --out and --json give answers without: choose")
    if html and html.suffix.lower() not in (".html", ".htm"):
        raise BothwaysError(f"--html is {html}: expected a name that ends in .html", "unknown-format", html)
    if out is not None:
        first, *others = inputs or ["-"]
        if others and not (_is_file(first) or glob.glob(first)) and all(map(os.path.exists, others)):
            raise typer.BadParameter("--out is for files of texts: answers from documents are printed, also as --json")
        with parts_progress("predicting") as on_progress:
            report = predict_files(
                [Path(word) for word in inputs or ["-"]],
                out,
                answering(model, task),
                base=base,
                text=text or "",
                pair=pair or "",
                keep=keep,
                probabilities=probabilities,
                long=long,
                top=top,
                format=format,
                bom=bom,
                device=device,
                dtype=dtype,
                devices=devices,
                on=on,
                rows_per_part=rows_per_part,
                on_progress=on_progress,
            )
        if as_json:
            print_json({"out": str(out), "rows": report.rows, **vars(report.tally)})
        _say_counts(report.notes, report.tally)
        return
    if devices or on or keep or probabilities or format or bom:
        raise typer.BadParameter("--devices, --on, --keep, --probabilities, --format and --bom need --out")
    with Progress("loading the model"):
        predictor = Predictor.load(answering(model, task), base=base, device=device, dtype=dtype, long=long)
    notes = Notes(whole=True)
    data = FinetuneData(text=text or "", pair=pair or "")
    given = inputs or ["-"]
    if predictor.name == "answer" and _asks_documents(given):
        _ask(predictor, given, top, passages or PASSAGES, as_json, show, html)
        return
    if passages is not None:
        raise typer.BadParameter("--passages is for a question over documents: bothways predict QUESTION PATH...")
    is_single = predictor.task.max_texts == 1
    files = [word for word in given if len(given) > 1 and _is_file(word)]
    documents = "names a file or folder: questions over documents need a model for the task answer"
    if files or len(given) > predictor.task.max_texts:
        raise BothwaysError(
            f"expected one file{' or one text' if is_single else ', one text or two texts'}, and {len(given)} "
            f"arguments were given{f', of which {files[0]} {documents}' if files else ''}",
            "too-many-inputs",
            files[0] if files else len(given),
        )
    examples: Iterable[Any]
    if len(given) == 1 and _is_file(given[0]):
        examples = predictor.task.read_inputs(given[0], data.columns, notes)
        if os.path.isdir(given[0]):
            say(f"{given[0]} is a folder: the lines and rows of its files are the texts")
    elif any(map(is_blank, given)):
        raise BothwaysError("a text is empty: there is nothing to predict", "empty-text")
    else:
        examples = [predictor.example(given[0] if len(given) == 1 else tuple(given))]
    if show or html:
        require_marks(type(predictor.task))
    with file_progress("predicting", given) as bar:
        answers = predictor.answers(bar.over(examples), top=top)
        if show or html:
            _mark(predictor, answers, show, html)
        else:
            for example, answer in answers:
                note_without_label(predictor, example, answer, notes)
                if as_json:
                    print_json_line(answer)
                else:
                    echo_parts(_line(predictor.task, example, answer))
    sys.stdout.flush()
    _say_counts(notes, predictor.tally)


def _asks_documents(given: list[str]) -> bool:
    """Whether the arguments are a question and documents; documents without a question are refused."""
    first, *others = given
    if os.path.exists(first) and (others or _has_only_documents(Path(first))):
        what = "folder" if os.path.isdir(first) else "file"
        raise BothwaysError(
            f"{first} is a {what}: expected the question first, then the documents to find its answer in",
            "no-question",
            first,
        )
    for word in others:
        # As a context, one word answers nothing: it is a name with a slip in it.
        if not _is_path(word) and re.fullmatch(r"[\w.-]{1,100}", word, re.ASCII):
            raise BothwaysError(
                f"there is no file or folder {word}, and a text to find the answer in has more than one word",
                "no-file",
                word,
            )
    return any(map(_is_path, others))


def _has_only_documents(path: Path) -> bool:
    """Whether a file, or a folder, has no rows with questions and contexts."""
    from bothways.data.sources import ROWS
    from bothways.text.document_files import is_document
    from bothways.text.files import visible_files
    from bothways.text.tables import kind_of

    files = visible_files(path) if path.is_dir() else [path]
    return any(map(is_document, files)) and not any(kind_of(file) in ROWS for file in files)


def _is_path(word: str) -> bool:
    """Whether an argument after a question names documents, not a text; a name may have spaces."""
    from bothways.text.document_files import DOCUMENTS

    if _is_file(word):
        return True
    is_line = len(word) < _LONGEST_NAME and bool(word.strip()) and not {"\n", "\r", "\0"} & set(word)
    return is_line and (word.lower().endswith(("/", os.sep, *DOCUMENTS)) or bool(glob.glob(word)))


def _ask(
    predictor: "Predictor", given: list[str], top: int, passages: int, as_json: bool, show: bool, html: Path | None
) -> None:
    """Answer a question from documents."""
    from bothways.data.examples import Question
    from bothways.predict.ask import ask

    question, *paths = given
    asked = ask(predictor, question, paths, top=top, passages=passages, watch=watch)
    # Above a passage stands its place: the question is known.
    titled = (Question("", _title(answer) or question, answer["passage"]) for answer in asked.answers)
    marked = zip(titled, map(_in_passage, asked.answers), strict=True)
    if as_json:
        for answer in asked.answers:
            print_json_line(answer)
        sys.stdout.flush()
    elif show or html:
        _mark(predictor, marked, show, html)
    else:
        rows = [
            (shorten(one["answer"]) or "no answer", f"{one['score']:.2f}", _place(one), _excerpt(one))
            for one in asked.answers
        ]
        print_table(("answer", "score", "place", "passage"), rows, right=("score",))
    for note in asked.notes():
        say(with_options(note))
    counts = (("document", asked.documents), ("passage", asked.passages))
    says = ", ".join(f"{count:,} {name}{'s' if count > 1 else ''}" for name, count in counts)
    say(f"{says}, {asked.read:,} read")
    say(str(predictor.tally))


def _title(answer: dict[str, Any]) -> str:
    return f"{_place(answer)}  {answer['score']:.2f}" if answer["file"] else ""


def _place(answer: dict[str, Any]) -> str:
    """file:line, or file, page N."""
    if not answer["file"]:
        return "-"
    return f"{answer['file']}, page {answer['page']}" if answer["page"] else f"{answer['file']}:{answer['line']}"


def _excerpt(answer: dict[str, Any]) -> str:
    """The passage on one line; of a long one, the part around the answer."""
    from bothways.marked_text import Mark, MarkedText

    place = _in_passage(answer)
    mark = Mark(place["start"], place["end"], "answer")
    return " ".join(MarkedText(answer["passage"], (mark,)).near([mark], _SHOWN).text.split())


def _in_passage(answer: dict[str, Any]) -> dict[str, Any]:
    """The answer with its place in the passage."""
    shift = answer["passage_start"] or 0
    return {**answer, "start": (answer["start"] or 0) - shift, "end": (answer["end"] or 0) - shift}


def _say_counts(notes: "Notes", tally: "Tally") -> None:
    if notes.columns:
        say(f"columns: {notes.columns}")
    if notes:
        say(str(notes))
    say(str(tally))


def _is_file(word: str) -> bool:
    """Whether an argument names a file: an existing one, or a word that looks like a path."""
    if word == "-" or os.path.exists(word):
        return True
    ends_so = re.fullmatch(r"\.[a-z][a-z0-9]*", Path(word).suffix)  # not "3.5" or "Good.Really"
    return not any(map(str.isspace, word)) and bool(ends_so or "/" in word or os.sep in word)


def _mark(predictor: "Predictor", answers: Iterable[tuple[Any, Any]], show: bool, html: Path | None) -> None:
    """Print the texts with marks, or write them as a page, or both."""
    from bothways.predict.display import write_page

    printed = _printed(predictor, answers) if show else iter(answers)
    if html:
        write_page(html, predictor, printed)
    else:
        for _ in printed:
            pass


def _printed(predictor: "Predictor", answers: Iterable[tuple[Any, Any]]) -> Iterator[tuple[Any, Any]]:
    """The same, each text of which is printed with marks: in colours on a terminal, else in brackets."""
    from bothways.cli.output import print_marked
    from bothways.marked_text import Colours
    from bothways.predict.display import marked

    colours = Colours(predictor.labels)
    for example, answer in answers:
        print_marked(marked(type(predictor.task), vars(example), answer), colours)
        yield example, answer


def _line(task: "Task", example: Any, answer: Any) -> Iterator[str]:
    """The answers with their scores, or -, then the text; separated by tabs."""
    from bothways.data.examples import LongInput

    yield task.shown(answer)
    if isinstance(example, LongInput):
        yield "\t"
        yield from (re.sub(r"\s", " ", block) for block in example.text.blocks())
    else:
        yield from ("\t" + " ".join(text.split()) for text in task.shown_texts(example))
    yield "\n"
