"""Fonts of the system for what matplotlib's own cannot draw, such as Chinese labels."""

import warnings
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from functools import cache
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from matplotlib.figure import Figure

_GOOD = (
    *("Noto Sans CJK SC", "Noto Sans SC", "Source Han Sans SC", "PingFang SC", "Heiti SC", "Microsoft YaHei", "SimHei"),
    *("WenQuanYi Micro Hei", "Arial Unicode MS"),
)
"""Taken first: others have the same characters in Japanese forms, or in a serif face."""
_PLACEHOLDERS = "Last Resort"
"""A font of matplotlib that has every character, as a box."""


@contextmanager
def fonts_for(figure: "Figure") -> Iterator[None]:
    """Give the texts of a figure fonts that have their characters; the picture is drawn within."""
    from matplotlib.font_manager import FontProperties, findfont
    from matplotlib.text import Text

    own = FontProperties()
    drawn = _characters(findfont(own))
    lacks = {text: {c for c in text.get_text() if c.isprintable()} - drawn for text in figure.findobj(Text)}
    names, missing = _fonts_with(set().union(*lacks.values()))
    for text, lacking in lacks.items():
        if lacking:
            text.set_fontfamily([*own.get_family(), *names])
    if missing:
        some = "".join(sorted(missing)[:10])
        warnings.warn(f"no installed font has {some!r}: the picture has boxes in their place", stacklevel=4)
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", r"Glyph \d+ ")  # a line for each character
        yield


def _fonts_with(missing: set[str]) -> tuple[list[str], set[str]]:
    """The names of fonts that together have these characters, and the characters that none has."""
    from matplotlib.font_manager import findSystemFonts, fontManager

    if not missing:
        return [], missing
    listed = {font.fname for font in fontManager.ttflist}
    for file in set(findSystemFonts()) - listed:  # installed since matplotlib listed the fonts
        with suppress(Exception):  # a format that it does not read
            fontManager.addfont(file)
    places = {name: place for place, name in enumerate(_GOOD)}
    names = []
    for font in sorted(fontManager.ttflist, key=lambda f: (places.get(f.name, len(places)), f.name, f.weight)):
        if missing and not font.name.startswith(_PLACEHOLDERS) and (found := missing & _characters(font.fname)):
            names.append(font.name)
            missing = missing - found
    return list(dict.fromkeys(names)), missing


@cache
def _characters(file: str) -> frozenset[str]:
    """Those that a font file has."""
    from matplotlib.ft2font import FT2Font

    with suppress(Exception):
        return frozenset(map(chr, FT2Font(file).get_charmap()))
    return frozenset()
