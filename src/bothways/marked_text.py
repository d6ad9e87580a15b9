"""Texts with marked spans, such as entities: in colours on a terminal, in brackets as plain text, or as HTML."""

import colorsys
import html
import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING, Any

from bothways.printable import printable

if TYPE_CHECKING:
    from rich.text import Text

INK = "#1a1a1a"
"""The colour of marked words. The colours behind them are light, so it is readable on dark and light pages alike."""
_LANGUAGES = (("ja", "ぁ-ヿ"), ("ko", "가-힣"), ("zh", "㐀-鿿豈-﫿"))
"""Languages that letters tell, which decide how browsers draw Chinese characters; the first that a text has counts."""
_GOLDEN = 137.508  # degrees: neighbours in a list of any length get different hues
_BOX = (
    "padding:.1em .35em;margin:0 1px;border-radius:.3em;box-decoration-break:clone;-webkit-box-decoration-break:clone"
)


@dataclass(frozen=True)
class Mark:
    """A span of a text with its label."""

    start: int
    end: int
    label: str


@dataclass(frozen=True)
class MarkedText:
    """A text with marks. Of marks that overlap, the first one given is kept.

    >>> marked = MarkedText("Ada met Bo in 北京。", (Mark(0, 3, "PER"), Mark(8, 10, "PER"), Mark(14, 16, "LOC")))
    >>> marked.plain()
    '[Ada PER] met [Bo PER] in [北京 LOC]。'
    """

    text: str
    marks: tuple[Mark, ...]
    title: str = ""
    """A line above it, such as the question that the mark answers."""

    def pieces(self) -> Iterator[tuple[str, str]]:
        """The parts of the text in order, each with its label, or "" if it is not marked."""
        at = 0
        for mark in self.kept():
            if mark.start > at:
                yield self.text[at : mark.start], ""
            yield self.text[mark.start : mark.end], mark.label
            at = mark.end
        if at < len(self.text):
            yield self.text[at:], ""

    def kept(self) -> list[Mark]:
        """The marks that are shown, in the order of the text."""
        inside = [mark for mark in self.marks if 0 <= mark.start < mark.end <= len(self.text)]
        ordered = sorted(inside, key=lambda mark: mark.start)
        if all(one.end <= two.start for one, two in pairwise(ordered)):
            return ordered
        kept: list[Mark] = []
        for mark in inside:
            if all(mark.end <= other.start or other.end <= mark.start for other in kept):
                kept.append(mark)
        return sorted(kept, key=lambda mark: mark.start)

    def near(self, marks: Iterable[Mark], most: int = 300) -> "MarkedText":
        """The part around these marks, or as many of them as fit, if the text is longer than `most` characters."""
        if len(self.text) <= most:
            return self
        places = list(marks) or [Mark(0, 0, "")]
        first = min(mark.start for mark in places)
        last = min(max(mark.end for mark in places), first + most)
        start = max(0, min(first - (most - (last - first)) // 2, len(self.text) - most))
        end = start + most
        for mark in self.kept():  # none is cut
            start = mark.start if mark.start < start < mark.end else start
            end = mark.end if mark.start < end < mark.end else end
        before, after = "…" * (start > 0), "…" * (end < len(self.text))
        shift = len(before) - start
        inside = [mark for mark in self.kept() if start <= mark.start and mark.end <= end]
        moved = tuple(Mark(mark.start + shift, mark.end + shift, mark.label) for mark in inside)
        return MarkedText(before + self.text[start:end] + after, moved, self.title)

    def plain(self) -> str:
        """With marks as [words LABEL]."""
        return "".join(f"[{part} {label}]" if label else part for part, label in self.pieces())

    def rich(self, colours: "Colours") -> "Text":
        """With colours, for `rich`."""
        from rich.text import Text

        shown = Text()
        for part, label in self.pieces():
            part = printable(part)  # a text must not command the terminal
            if label:
                shown.append(f" {part} ", f"{INK} on {colours[label]}")
                shown.append(f"{printable(label)} ", f"bold {INK} on {colours[label]}")
            else:
                shown.append(part)
        return shown

    def html(self, colours: "Colours") -> str:
        """As an HTML element that needs no style sheet."""
        parts = [
            f'<mark style="background:{colours[label]};color:{INK};{_BOX}">{html.escape(part)}&nbsp;'
            f'<b style="font-size:.75em">{html.escape(label)}</b></mark>'
            if label
            else html.escape(part)
            for part, label in self.pieces()
        ]
        style = "line-height:2;white-space:pre-wrap;overflow-wrap:anywhere"
        start = f'<div dir="auto" lang="{language_of(self.text)}" style="{style}">'
        return f"{titled(self.title)}{start}{''.join(parts)}</div>"


def language_of(text: str) -> str:
    """The language of a text, for HTML: zh, ja or ko; or "", which means unknown.

    >>> language_of("我住在北京"), language_of("東京に住む"), language_of("I live in Bonn")
    ('zh', 'ja', '')
    """
    return next((name for name, letters in _LANGUAGES if re.search(f"[{letters}]", text)), "")


def titled(title: str) -> str:
    """A line above a marked text as HTML; nothing if there is none."""
    element = f'<div dir="auto" lang="{language_of(title)}"><b>{html.escape(title)}</b></div>'
    return element if title else ""


class Colours(dict[str, str]):
    """A light colour for each label, by its place in a model's list: the same in every text and every run.

    B- and I- of a type are one label. Labels that are not in the list get further colours.

    >>> colours = Colours(["O", "B-LOC", "I-LOC", "B-PER", "I-PER"])
    >>> list(colours)
    ['LOC', 'PER']
    """

    def __init__(self, labels: Sequence[str] = ()) -> None:
        super().__init__()
        for label in labels:
            if label != "O":
                self[label[2:] if label.startswith(("B-", "I-")) else label]

    def __missing__(self, label: str) -> str:
        place = len(self)
        hue = (205 + place * _GOLDEN) % 360 / 360
        parts = colorsys.hls_to_rgb(hue, 0.72 if place % 3 == 2 else 0.82, 0.75)
        self[label] = "#" + "".join(f"{round(255 * part):02x}" for part in parts)
        return self[label]


def marks_of(answer: Any) -> tuple[Mark, ...]:
    """The places that an answer names: of entities with their type, of question answering as "answer"."""
    parts = answer if isinstance(answer, list) else [answer]
    return tuple(Mark(one["start"], one["end"], one.get("entity_group", "answer")) for one in parts)


def page_start(title: str, colours: "Colours") -> str:
    """The beginning of a self-contained HTML page of marked texts, with a legend."""
    legend = " ".join(
        f'<mark style="background:{colour};color:{INK};{_BOX}">{html.escape(label)}</mark>'
        for label, colour in colours.items()
    )
    return f"""<!doctype html>
<html lang="en"><head><meta charset="utf-8"><meta name="viewport" content="width=device-width">
<title>{html.escape(title)}</title>
<style>
:root {{ color-scheme: light dark; }}
body {{ font: 16px/1.5 system-ui, sans-serif; max-width: 60em; margin: 2em auto; padding: 0 1em; }}
article, header {{ padding: .7em 0; border-bottom: 1px solid #8884; }}
</style></head>
<body>{f"<header>{legend}</header>" if legend else ""}
"""


PAGE_END = "</body></html>\n"


def html_table(header: Sequence[str], rows: Iterable[Sequence[object]], title: str = "", numbers: int = 0) -> str:
    """An HTML table, escaped. `numbers`: how many of the last columns are right-aligned."""

    def row(cells: Sequence[object], tag: str) -> str:
        left = len(cells) - numbers
        return "".join(
            f'<{tag} style="text-align:{"left" if i < left else "right"}">{html.escape(str(cell))}</{tag}>'
            for i, cell in enumerate(cells)
        )

    head = f"<thead><tr>{row(header, 'th')}</tr></thead>" if any(header) else ""
    body = "".join(f"<tr>{row(cells, 'td')}</tr>" for cells in rows)
    above = f"<h4>{html.escape(title)}</h4>" if title else ""
    return f"{above}<table>{head}<tbody>{body}</tbody></table>"
