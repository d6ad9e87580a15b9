"""Encodes many texts at once, plain ones in less time and with the same result.

Of printable ASCII the normaliser of BERT only lower-cases letters, yet it takes a third of the tokenizer's time.
"""

from collections.abc import Sequence
from typing import Any

import tokenizers
from tokenizers import normalizers

from bothways.text.encoding import TextInput
from bothways.text.files import replace_surrogates
from bothways.text.tokenizer_json import rust_errors

_COMPOSING = (normalizers.NFC, normalizers.NFD, normalizers.NFKC, normalizers.NFKD)


class BatchEncoder:
    """Texts and pairs as the encodings of the `tokenizers` library, on all cores."""

    def __init__(self, backend: tokenizers.Tokenizer) -> None:
        self.backend = backend
        is_lowering = _is_lowering(backend.normalizer)
        self.lowers = bool(is_lowering)
        marks = marks_of(backend)
        self.marks = marks or ""
        self.without: tokenizers.Tokenizer | None = None
        """The tokenizer without its normaliser; None if that may change plain texts in another way."""
        if backend.normalizer is not None and is_lowering is not None and marks is not None:
            self.without = _without_normalizer(backend)

    def __call__(self, texts: Sequence[TextInput], specials: bool, has_offsets: bool) -> list[tokenizers.Encoding]:
        plain = [] if self.without is None else [i for i, text in enumerate(texts) if self.is_plain(text)]
        if self.without is None or not plain:
            return _encoded(self.backend, texts, specials, has_offsets)
        prepared = [_lowered(texts[i]) for i in plain] if self.lowers else [texts[i] for i in plain]
        found = _encoded(self.without, prepared, specials, has_offsets)
        if len(found) == len(texts):
            return found
        both = dict(zip(plain, found, strict=True))
        others = [i for i in range(len(texts)) if i not in both]
        both |= zip(others, _encoded(self.backend, [texts[i] for i in others], specials, has_offsets), strict=True)
        return [both[i] for i in range(len(texts))]

    def is_plain(self, text: TextInput) -> bool:
        """Whether the normaliser changes a text, or both of a pair, at most to lower case."""
        if isinstance(text, str):
            return text.isascii() and text.isprintable() and not any(mark in text for mark in self.marks)
        return isinstance(text, tuple) and all(isinstance(part, str) and self.is_plain(part) for part in text)


def marks_of(backend: tokenizers.Tokenizer) -> str | None:
    """The characters with which added tokens begin: texts without them contain none. None if any text may."""
    added = backend.get_added_tokens_decoder().values()
    # With this setting a special token in a text is ordinary text.
    marks = {one.content[:1] for one in added if not (one.special and backend.encode_special_tokens)}
    return None if any(mark.isalnum() or mark.isspace() for mark in marks) else "".join(marks)


def _without_normalizer(backend: tokenizers.Tokenizer) -> tokenizers.Tokenizer:
    found = tokenizers.Tokenizer(backend.model)  # which both share
    if backend.pre_tokenizer is not None:
        found.pre_tokenizer = backend.pre_tokenizer
    if backend.post_processor is not None:
        found.post_processor = backend.post_processor
    return found


def _is_lowering(normalizer: Any) -> bool | None:
    """Whether a normaliser lower-cases printable ASCII; None if it may change it in another way."""
    if isinstance(normalizer, _COMPOSING):
        return False
    if isinstance(normalizer, normalizers.BertNormalizer):
        return normalizer.lowercase
    if isinstance(normalizer, normalizers.Lowercase):
        return True
    if type(normalizer) is not normalizers.Sequence:
        return None
    parts = [_is_lowering(part) for part in normalizer]  # type: ignore[attr-defined]
    return None if None in parts else any(parts)


def _encoded(
    backend: tokenizers.Tokenizer, texts: Sequence[TextInput], specials: bool, has_offsets: bool
) -> list[tokenizers.Encoding]:
    encode = backend.encode_batch if has_offsets else backend.encode_batch_fast
    with rust_errors("a text cannot be tokenized, because the tokenizer is damaged"):
        try:
            return encode(list(texts), add_special_tokens=specials)
        except (TypeError, UnicodeEncodeError):
            # A lone surrogate is a Python string but not Unicode text; replacing it one for one keeps offsets.
            return encode([_without_surrogates(text) for text in texts], add_special_tokens=specials)


def _lowered(text: TextInput) -> TextInput:
    return text.lower() if isinstance(text, str) else (text[0].lower(), text[1].lower())


def _without_surrogates(text: TextInput) -> TextInput:
    if isinstance(text, tuple):
        return replace_surrogates(text[0]), replace_surrogates(text[1])
    return replace_surrogates(text)
