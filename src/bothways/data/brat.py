"""Reads documents that were annotated with brat: an .ann file of entities beside the .txt file of the text."""

from pathlib import Path
from typing import Any

from bothways.data.notes import Notes, row_error
from bothways.errors import BothwaysError
from bothways.text.streams import COMPRESSED, read_lines, read_whole

ANN = ".ann"


def read_brat(path: Path, notes: Notes) -> dict[str, Any]:
    """The text of a document and its entities, from the T lines; events, relations and attributes are not read.

    An entity in several pieces is left out and noted: a tag per word cannot mark it.
    """
    text = read_whole(text_beside(path))
    entities: list[list[Any]] = []
    for number, line in enumerate(read_lines(path), 1):
        if not line.startswith("T"):
            continue
        where = f"{path}, line {number}"
        _, _, rest = line.partition("\t")
        mark, _, covered = rest.partition("\t")
        kind, _, places = mark.partition(" ")
        if ";" in places:
            notes.add("split-entity", where)
            continue
        start, _, end = places.partition(" ")
        if not (kind and start.isdecimal() and end.isdecimal()):
            raise row_error(
                where, f"is {line[:60]!r}: expected a type and two offsets, as in T1, PER 0 5", "bad-entity"
            )
        found = text[int(start) : int(end)]
        if " ".join(found.split()) != " ".join(covered.split()):
            says = f"marks {covered[:40]!r} from {start} to {end}, where {text_beside(path)} has {found[:40]!r}"
            raise row_error(where, f"{says}: is the text file a newer one?", "bad-entity")
        entities.append([int(start), int(end), kind])
    return {"text": text, "entities": entities}


def text_beside(path: Path) -> Path:
    """The .txt file of an .ann file."""
    plain = path.with_suffix("") if path.suffix.lower() in COMPRESSED else path
    found = plain.with_suffix(".txt")
    if not found.is_file():
        raise BothwaysError(f"{path} has no text: expected {found} beside it", "no-file", found)
    return found


def without_annotated(files: list[Path]) -> list[Path]:
    """The files without the .txt files whose .ann file is among them."""
    annotated = {file.with_suffix(".txt") for file in files if file.suffix.lower() == ANN}
    return [file for file in files if file not in annotated]
