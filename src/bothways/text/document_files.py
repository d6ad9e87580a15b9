"""Documents: files that are one text each (.txt, .md, .html, .pdf), as a whole and in passages."""

import glob
import os
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from itertools import chain
from pathlib import Path

from bothways.errors import BothwaysError
from bothways.text.files import cut_text, visible_files
from bothways.text.html_text import html_text
from bothways.text.pdf import has_pypdf, pdf_pages, require_pypdf
from bothways.text.sentences import split_sentences
from bothways.text.streams import Meter, read_blocks, read_whole
from bothways.text.tables import kind_of

_HTML = (".html", ".htm", ".xhtml")
DOCUMENTS = (".txt", ".md", ".markdown", *_HTML, ".pdf")
_MARKDOWN = (".md", ".markdown")
_BLOCK = 2**16  # bytes of .txt and .md that are read at a time

LONGEST = 1_000
"""Characters of a passage: about 200 English tokens, which is a paragraph of SQuAD."""
_GAP = re.compile(r"\n\s*\n")
_GAP_OR_HEADING = re.compile(r"\n\s*\n|\n(?=#{1,6}\s)")
_HEADING = re.compile(r"#{1,6}\s")
_FRONT_MATTER = re.compile(r"(---|\+\+\+)[^\S\n]*\n(?=\S)(?:.*\n)*?(?:\1|\.\.\.)[^\S\n]*(?:\n|\Z)")

Span = tuple[int, int]
"""The first character, and the one after the last."""


@dataclass(frozen=True)
class Passage:
    """A part of a document that a model reads."""

    text: str
    start: int
    """Its first character: in a .txt or .md file, in the text of an .html file, in the text of a page of a .pdf."""
    lines: tuple[int, ...]
    """The number in the file of each of its lines; none of .pdf."""
    page: int | None = None
    """Of .pdf: the page, counted from 1."""


@dataclass(frozen=True)
class FoundDocuments:
    """The documents that some paths stand for."""

    files: list[Path]
    skipped: list[Path]
    """Files of folders and patterns that are of another kind, or .pdf without pypdf."""


def is_document(path: Path) -> bool:
    """Whether a file is a document, by the end of its name; a compressed .pdf is none."""
    return (kind := kind_of(path)) in DOCUMENTS and (kind != ".pdf" or path.suffix.lower() == kind)


def is_readable(path: Path) -> bool:
    """Whether a file of a folder is a document that can be read here: a .pdf needs pypdf, and is else skipped."""
    return is_document(path) and (kind_of(path) != ".pdf" or has_pypdf())


def find_documents(paths: Iterable[Path | str]) -> FoundDocuments:
    """Files, folders with all they hold except hidden files, and patterns such as `notes/**/*.md`; each file once."""
    found: dict[Path, Path] = {}
    skipped: dict[Path, Path] = {}
    for path in map(Path, paths):
        some = _files_of(path)
        if not any(map(is_document, some)):
            kinds = ", ".join(DOCUMENTS)
            if path.is_file():
                says = f"{path} is not a document of a known kind: expected {kinds}"
                raise BothwaysError(says, "unknown-file-kind", path)
            raise BothwaysError(f"there is no document in {path}: expected {kinds}", "no-known-files", path)
        if not any(map(is_readable, some)):
            require_pypdf()
        for file in some:
            (found if is_readable(file) else skipped).setdefault(file.resolve(), file)
    if not found:
        raise BothwaysError("no document was given", "no-input")
    return FoundDocuments(list(found.values()), list(skipped.values()))


def _files_of(path: Path) -> list[Path]:
    if os.path.isdir(path):  # Path's own methods fail at a text that is too long for a name
        return visible_files(path)
    if os.path.exists(path):
        return [path]
    if not glob.has_magic(str(path)):
        raise BothwaysError(f"there is no file or folder {str(path)[:200]}", "no-file", path)
    matches = [Path(name) for name in sorted(glob.glob(str(path), recursive=True))]
    if not matches:
        raise BothwaysError(f"no file matches {str(path)[:200]}", "no-file", path)
    return [file for match in matches for file in (visible_files(match) if match.is_dir() else [match])]


# ---------------------------------------------------------------------- texts


def read_document(path: Path) -> str:
    """The text of a document: of .txt as it stands in the file, of .md without front matter, of others as extracted."""
    kind = kind_of(path)
    if kind == ".pdf":
        return "\n\n".join(pdf_pages(path))
    text = read_whole(path)
    if kind in _MARKDOWN and (front := _FRONT_MATTER.match(text)):
        return text[front.end() :]
    return html_text(text)[0] if kind in _HTML else text


def read_passages(path: Path) -> Iterator[Passage]:
    """The passages of a document, in order. .txt and .md stream in constant memory, .pdf page by page."""
    kind = kind_of(path)
    if kind == ".pdf":
        for number, page in enumerate(pdf_pages(path), 1):
            yield from (replace(passage, lines=(), page=number) for passage in split_passages([page]))
    elif kind in _HTML:
        text, lines = html_text(read_whole(path))
        for passage in split_passages([text]):
            yield replace(passage, lines=tuple(lines[number - 1] for number in passage.lines))
    else:
        yield from split_passages(read_blocks(path, Meter(), _BLOCK), is_markdown=kind in _MARKDOWN)


# ---------------------------------------------------------------------- passages


def split_passages(blocks: Iterable[str], is_markdown: bool = False) -> Iterator[Passage]:
    """The passages of a text that comes in blocks; where a block ends makes no difference.

    A passage is as many neighbouring paragraphs as have at most LONGEST characters together; a longer paragraph is
    divided where a sentence ends. In Markdown, a heading begins a new passage, and front matter is left out.
    """
    # What has not been given away, the place of its first character, and the line where it begins.
    text, base, line = "", 0, 1
    is_first = True
    for block in chain(blocks, [None]):
        text += block or ""
        if block is not None and len(text) <= 2 * LONGEST:
            continue
        done = 0
        if is_first and is_markdown and (front := _FRONT_MATTER.match(text)):
            done = front.end()
        is_first = False
        spans = passage_spans(text, is_markdown, done)
        if block is not None:  # what follows may belong to the last ones
            spans = [span for span in spans if span[1] < len(text) - LONGEST]
        at = 0
        for start, end in spans:
            line += text.count("\n", at, start)
            passage, at = text[start:end], start
            yield Passage(passage, base + start, tuple(range(line, line + passage.count("\n") + 1)))
        done = spans[-1][1] if spans else len(text) if text.isspace() else done
        line += text.count("\n", at, done)
        text, base = text[done:], base + done


def passage_spans(text: str, is_markdown: bool = False, start: int = 0) -> list[Span]:
    """The passages of a text from `start` on, without white space around them."""
    found: list[Span] = []
    is_bare = False  # whether the last passage has nothing but headings yet
    for begin, end in _pieces(text, _GAP_OR_HEADING if is_markdown else _GAP, start):
        is_heading = is_markdown and bool(_HEADING.match(text, begin))
        if found and end - found[-1][0] <= LONGEST and (is_bare or not is_heading):
            found[-1] = (found[-1][0], end)
            is_bare = is_bare and is_heading and "\n" not in text[begin:end]
        else:
            found.append((begin, end))
            is_bare = is_heading and "\n" not in text[begin:end]
    return found


def _pieces(text: str, gap: re.Pattern[str], at: int) -> Iterator[Span]:
    """Paragraphs; of those longer than LONGEST, their sentences, of which long ones are cut at white space."""
    stops = chain((match.start() for match in gap.finditer(text, at)), [len(text)])
    for stop in stops:
        paragraph = text[at:stop].strip()
        parts = [paragraph] if paragraph else []
        if len(paragraph) > LONGEST:
            parts = [part for sentence in split_sentences(paragraph) for part in cut_text(sentence, LONGEST)]
        for part in parts:
            begin = text.index(part, at)
            at = begin + len(part)
            yield begin, at
        at = max(at, stop)
