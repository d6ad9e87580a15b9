"""The text of an HTML page, without scripts, styles and navigation."""

import re
from html.parser import HTMLParser


def _tags(written: str) -> frozenset[str]:
    return frozenset(written.split())


_SKIPPED = _tags("head title script style noscript template svg iframe object nav footer button select")
_BLOCKS = _tags(
    "address article aside blockquote body caption center dd details dialog div dl dt fieldset figcaption figure form "
    "h1 h2 h3 h4 h5 h6 header hgroup hr html legend main ol p pre section summary table ul"
)
_LINES = _tags("br li tr")
_CELLS = _tags("td th")
_SPACE = re.compile(r"\s+")


def html_text(page: str) -> tuple[str, list[int]]:
    """The text of a page, and for each of its lines the line of the page where it begins.

    A block element, such as a paragraph or a heading, is one line with an empty line before and after it; items of
    lists and rows of tables are lines. White space is collapsed, but not in <pre>.

    >>> html_text("<title>x</title><h1>Owls</h1>\\n<p>They <b>hunt</b>\\n at night.<script>f()</script>")
    ('Owls\\n\\nThey hunt at night.', [1, 2, 2])
    """
    parser = _Text()
    parser.feed(page)
    parser.close()
    parser.end_line()
    return "\n".join(parser.texts), parser.numbers


class _Text(HTMLParser):
    """Collects lines of text."""

    def __init__(self) -> None:
        super().__init__(convert_charrefs=True)
        self.texts: list[str] = []
        self.numbers: list[int] = []
        self._parts: list[str] = []
        self._number = 0
        """The line of the page where the text in `_parts` begins."""
        self._needs_gap = False
        self._skipped = ""
        """The element that is being left out."""
        self._depth = 0
        """How many of its kind are open."""
        self._pre = 0
        """How many <pre> are open."""

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        if tag in ("body", "main"):  # which end a <head> or <nav> that nothing closes
            self._skipped = ""
        if self._skipped:
            self._depth += tag == self._skipped
            return
        if tag in _SKIPPED or ("role", "navigation") in attrs:
            self._skipped, self._depth = tag, 1
        self._separate(tag)
        self._pre += tag == "pre"

    def handle_endtag(self, tag: str) -> None:
        if self._skipped:
            self._depth -= tag == self._skipped
            self._skipped = self._skipped if self._depth else ""
            return
        self._separate(tag)
        self._pre -= tag == "pre" and self._pre > 0

    def handle_data(self, data: str) -> None:
        if self._skipped:
            return
        before = data[: len(data) - len(data.lstrip())]
        for i, line in enumerate(data.split("\n") if self._pre else [_SPACE.sub(" ", data)]):
            if i:
                self.end_line()
            if line.strip() and not "".join(self._parts).strip():
                self._number = self.getpos()[0] + (i if self._pre else before.count("\n"))
            self._parts.append(line)

    def end_line(self) -> None:
        """End the line that has been collected, if there is text in it."""
        text = "".join(self._parts)
        text = text.rstrip() if self._pre else _SPACE.sub(" ", text).strip()
        self._parts = []
        if not text.strip():
            return
        if self._needs_gap and self.texts:
            self.texts.append("")
            self.numbers.append(self._number)
        self._needs_gap = False
        self.texts.append(text)
        self.numbers.append(self._number)

    def _separate(self, tag: str) -> None:
        if tag in _BLOCKS:
            self.end_line()
            self._needs_gap = True
        elif tag in _LINES:
            self.end_line()
        elif tag in _CELLS:
            self._parts.append(" ")
