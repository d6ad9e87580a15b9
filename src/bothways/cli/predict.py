"""bothways predict"""

import json
import os
import re
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Annotated, Any

import typer

from bothways.cli.options import BoxedTask, TunedModel, answering
from bothways.cli.output import progress, say
from bothways.errors import BothwaysError
from bothways.predict.encode_options import Long


def predict(
    inputs: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="[FILE|TEXT [TEXT]]",
            help="Texts: .txt, .jsonl, .csv, .tsv …, or standard input; or a text itself, or two, as a question and "
            "what to find its answer in.",
            show_default=False,
        ),
    ] = None,
    model: TunedModel = None,
    task: BoxedTask = None,
    text: Annotated[str | None, typer.Option(help="The column of the text.", show_default=False)] = None,
    pair: Annotated[str | None, typer.Option(help="The column of the second text.", show_default=False)] = None,
    long: Annotated[
        Long | None,
        typer.Option(
            help="Texts beyond the model's limit: read in windows, cut or refuse them.  [default: as the model says]",
            show_default=False,
        ),
    ] = None,
    top: Annotated[int, typer.Option(help="The likeliest so many answers.", min=1)] = 1,
    as_json: Annotated[bool, typer.Option("--json", help="A line of JSON for each text.")] = False,
) -> None:
    """Answer a text, or every line or row of a file, in order. Long texts are read in windows; memory stays flat.

    Example: bothways predict examples/sample.txt --model my-classifier/model
    """
    from bothways.data.notes import Notes
    from bothways.predict.predictor import Predictor
    from bothways.tasks.recipe import DataSettings

    predictor = Predictor.load(answering(model, task), long=long)
    notes = Notes(whole=True)
    data = DataSettings(text=text or "", pair=pair or "")
    given = inputs or ["-"]
    is_tagger = predictor.name == "tag"  # to which, in Python, two texts are two words
    files = [word for word in given if len(given) > 1 and os.path.isfile(word)]
    if files or len(given) > (1 if is_tagger else 2):
        raise BothwaysError(
            f"one file{' or one text' if is_tagger else ', one text or two texts'} can be answered, and {len(given)} "
            f"were given{f', of which {files[0]} is a file' if files else ''}"
        )
    examples: Iterable[Any]
    if len(given) == 1 and _is_file(given[0]):
        examples = predictor.task.read_inputs(given[0], data.columns, notes)
    elif not all(word.strip() for word in given):
        raise BothwaysError("there is nothing to answer: a text is empty")
    else:
        examples = [predictor.example(given[0] if len(given) == 1 else tuple(given))]
    for example, answer in predictor.answers(progress(examples, "answering"), top=top):
        sys.stdout.write((json.dumps(answer, ensure_ascii=False) if as_json else _line(example, answer)) + "\n")
    sys.stdout.flush()
    notes.counts.pop("no-label-column", None)  # nobody expects labels of what is to be answered
    if notes:
        say(str(notes))
    say(str(predictor.tally))


def _is_file(word: str) -> bool:
    """Whether a file is meant: one that is there, or a word that is written as files are."""
    if word == "-" or os.path.exists(word):
        return True
    ends_so = re.fullmatch(r"\.[a-z][a-z0-9]*", Path(word).suffix)  # and not as in "3.5" or "Good.Really"
    return not any(map(str.isspace, word)) and bool(ends_so or "/" in word or os.sep in word)


def _line(example: Any, answer: Any) -> str:
    """An answer for a person: the answers and their scores, - if there is none, then the text, with tabs between."""
    answers = answer if isinstance(answer, list) else [answer]
    shown = [_short(one) for one in answers]
    texts = getattr(example, "texts", None) or (getattr(example, "question", "") or getattr(example, "text", ""),)
    return "\t".join([", ".join(shown) or "-", *(" ".join(text.split()) for text in texts)])


def _short(answer: dict[str, Any]) -> str:
    name = answer.get("answer", answer.get("label", answer.get("entity_group", answer.get("entity"))))
    word = f"{answer['word']}/" if "word" in answer else ""
    return f"{word}{name} {answer['score']:.3f}"
