"""The text of PDF files, read page by page with pypdf."""

import logging
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from bothways.errors import BothwaysError, missing_package
from bothways.text.files import replace_surrogates


def pdf_pages(path: Path) -> Iterator[str]:
    """The text of each page, as pypdf extracts it; of a page without text, such as a scanned one, it is empty."""
    pypdf, number = require_pypdf(), 0
    logging.getLogger("pypdf").setLevel(logging.ERROR)  # its warnings tell of fonts and tables, not of lost text
    try:
        pages = pypdf.PdfReader(path).pages
        for number in range(len(pages)):
            yield replace_surrogates(pages[number].extract_text())
    except OSError as error:
        raise BothwaysError(f"{path} cannot be read: {error.strerror or error}", "unreadable-file", path) from error
    except Exception as error:  # pypdf raises errors of every kind at a damaged file
        where = f"page {number + 1}" if number else "its start"
        reason = str(error).partition("\n")[0] or type(error).__name__
        raise BothwaysError(f"{path} cannot be read as .pdf from {where}: {reason}", "damaged-file", path) from error


def require_pypdf() -> Any:
    """The package, which an extra installs."""
    try:
        import pypdf
    except ImportError:
        raise missing_package("reading .pdf", "pypdf") from None
    return pypdf


def has_pypdf() -> bool:
    try:
        require_pypdf()
    except BothwaysError:
        return False
    return True
