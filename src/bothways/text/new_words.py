"""Extends a vocabulary with the words of a domain.

find_words        the words of a text that cost the most pieces
add_words         a tokenizer in which each of them is one piece
pieces_per_word   the fertility before and after
"""

import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import tokenizers
from tokenizers import AddedToken
from tokenizers.pre_tokenizers import Whitespace

from bothways.errors import BothwaysError
from bothways.text.files import Meter, find_rereadable, no_text, read_texts
from bothways.text.tokenizer import Tokenizer

OnBytes = Callable[[int, int], None]
"""Called with the progress of reading: bytes done, bytes in all."""

# Thai, Lao, Burmese, Khmer, kana and Chinese: no space tells where their words end.
_UNSPACED = re.compile(
    "[\u0e00-\u0eff\u1000-\u109f\u1780-\u17ff\u3040-\u30ff\u31f0-\u31ff\u3400-\u4dbf\u4e00-\u9fff"
    "\uf900-\ufaff\uff66-\uff9f\U00020000-\U0003ffff]"
)
_SPACES = {"▁", "Ġ"}  # pieces that are only a space: no part of a word
_BATCH = 2**20  # characters


@dataclass(frozen=True)
class NewWords:
    """A tokenizer with new words, and what became of every word given."""

    tokenizer: Tokenizer
    added: tuple[str, ...]
    """As spelled in the vocabulary, in the order of their ids."""
    cuts: tuple[tuple[int, ...], ...]
    """For each of them, the ids of the pieces that it was before."""
    known: tuple[str, ...] = ()
    """Words that were one piece already."""
    repeated: tuple[str, ...] = ()
    """Words with the same normalised form as an earlier one, such as `Covid` and `covid`."""
    spaced: tuple[str, ...] = ()
    """Words with white space inside: a piece is one word."""
    refused: tuple[str, ...] = ()
    """Words that cannot be a new piece, because the vocabulary has a piece of that spelling, used inside words."""
    empty: int = 0
    """Lines that are empty, also after normalisation."""


def add_words(tokenizer: Tokenizer, words: Iterable[str]) -> NewWords:
    """A copy of the tokenizer in which each of these words is one piece, with ids after all others.

    They are added tokens: matched in the normalised text before it is split into pieces, as whole words; words of
    scripts without spaces, such as Chinese, match anywhere, the longest first. As ordinary pieces of the vocabulary,
    "corona" would change how "coronavirus" is split, and 北京 could never match. So a text without a new word keeps
    its ids.

    >>> from bothways.text.tokenizer import Tokenizer
    >>> letters = Tokenizer.from_pieces(["[PAD]", "[UNK]", "[CLS]", "[SEP]", "a", "##b", "##s", "北", "京"])
    >>> add_words(letters, ["ab", "北京"]).tokenizer("Ab abs 在北京").pieces[1:-1]
    ['ab', 'a', '##b', '##s', '[UNK]', '北京']
    """
    given = [word.strip() for word in words]
    spaced = [word for word in given if len(word.split()) > 1]
    plain = [word for word in given if len(word.split()) == 1]
    forms = {word: _normal(tokenizer, word) for word in plain}
    first: dict[str, str] = {}
    for word in plain:
        if forms[word]:
            first.setdefault(forms[word], word)
    cuts = dict(zip(first, _piece_ids(tokenizer, list(first.values())), strict=True))
    unknown = tokenizer.roles.get("unk_token")
    known = {form for form, cut in cuts.items() if len(cut) == 1 and tokenizer.piece(cut[0]) != unknown}
    names = set(tokenizer.pieces)
    inside = getattr(tokenizer.backend.model, "continuing_subword_prefix", None) or "\0"
    fresh = [form for form in first if form not in known | names and not form.startswith(inside)]
    grown = _with(tokenizer, {form: first[form] for form in fresh})
    whole = _piece_ids(grown, [first[form] for form in fresh])
    if any(len(cut) != 1 or cut[0] < tokenizer.size for cut in whole):  # the normaliser changes its own output
        fresh = [f for f, cut in zip(fresh, whole, strict=True) if len(cut) == 1 and cut[0] >= tokenizer.size]
        grown = _with(tokenizer, {form: first[form] for form in fresh})
    if grown.size != tokenizer.size + len(fresh):
        raise BothwaysError("this vocabulary has unused ids, which new words would get", "vocabulary-gap")
    return NewWords(
        grown,
        tuple(fresh),
        tuple(cuts[form] for form in fresh),
        tuple(first[form] for form in first if form in known),
        tuple(_repeats(plain, forms)),
        tuple(spaced),
        tuple(first[form] for form in first if form not in known and form not in set(fresh)),
        len(given) - len(spaced) - sum(bool(forms[word]) for word in plain),
    )


def find_words(
    files: Sequence[Path | str],
    tokenizer: Tokenizer,
    count: int,
    *,
    field: str | None = None,
    on_bytes: OnBytes | None = None,
) -> list[str]:
    """The `count` words of the text that cost the most pieces: frequency × (pieces - 1), or × pieces if unknown.

    A word is a run of letters, digits and underscores with a letter in it. Words of scripts without spaces are never
    found, because their ends are not marked: list these yourself.
    """
    if count < 1:
        raise BothwaysError(f"`count` is {count}: expected 1 or more", "out-of-range", count)
    raw: Counter[str] = Counter()
    for texts in read_batches(files, field, on_bytes):
        for text in texts:
            raw.update(run for run, _ in Whitespace().pre_tokenize_str(text))
    times: Counter[str] = Counter()
    for word, frequency in raw.items():
        if any(map(str.isalpha, word)) and not _UNSPACED.search(word):
            times[_normal(tokenizer, word)] += frequency
    del times[""]
    unknown = tokenizer.roles.get("unk_token")
    unknown_id = tokenizer.id(unknown) if unknown else -1
    found = sorted(times)
    excess = [len(ids) - 1 + (unknown_id in ids) for ids in _piece_ids(tokenizer, found)]
    costs = {word: times[word] * more for word, more in zip(found, excess, strict=True) if more > 0}
    return sorted(costs, key=lambda word: (-costs[word], word))[:count]


def pieces_per_word(
    files: Sequence[Path | str],
    compared: Sequence[Tokenizer],
    *,
    field: str | None = None,
    on_bytes: OnBytes | None = None,
) -> list[float]:
    """The mean number of pieces per word for each of these tokenizers.

    Punctuation marks, and characters of scripts without spaces, count as words.
    """
    words, pieces = 0, [0] * len(compared)
    for texts in read_batches(files, field, on_bytes):
        for text in texts:
            words += sum(len(_UNSPACED.findall(run)) or 1 for run, _ in Whitespace().pre_tokenize_str(text))
        for i, tokenizer in enumerate(compared):
            pieces[i] += sum(map(len, tokenizer.backend.encode_batch_fast(texts, add_special_tokens=False)))
    if not words:
        raise no_text(files)
    return [count / words for count in pieces]


def read_batches(
    files: Sequence[Path | str], field: str | None, on_bytes: OnBytes | None = None
) -> Iterator[list[str]]:
    """The texts of these files in batches."""
    found = find_rereadable(files)
    meter, total = Meter(), sum(file.stat().st_size for file in found)
    texts: list[str] = []
    size = 0
    for file in found:
        for text in read_texts(file, field, meter):
            texts.append(text)
            size += len(text)
            if size >= _BATCH:
                yield texts
                texts, size = [], 0
                if on_bytes:
                    on_bytes(meter.bytes, total)
    yield texts
    if on_bytes:
        on_bytes(meter.bytes, total)


def _with(tokenizer: Tokenizer, words: dict[str, str]) -> Tokenizer:
    """A copy with these words, given by normalised form."""
    backend = tokenizers.Tokenizer.from_str(tokenizer.backend.to_str())
    # Where a space is a piece, or part of one, a new word includes the space before it, as <mask> does.
    split = backend.pre_tokenizer
    takes_space = split is not None and bool(split.pre_tokenize_str(" "))
    tokens = []
    for form, word in words.items():
        anywhere = bool(_UNSPACED.search(form))
        # Matched in normalised text; but BERT's normaliser would spell 北京 as " 北  京 ".
        as_is = form == word and not _UNSPACED.sub("", form)
        tokens.append(
            AddedToken(form, single_word=not anywhere, lstrip=takes_space and not anywhere, normalized=not as_is)
        )
    backend.add_tokens(tokens)
    return tokenizer.with_backend(backend)


def _normal(tokenizer: Tokenizer, word: str) -> str:
    """The word in its normalised form, which may be empty."""
    normalizer = tokenizer.backend.normalizer
    return "".join((normalizer.normalize_str(word) if normalizer is not None else word).split())


def _piece_ids(tokenizer: Tokenizer, words: Sequence[str]) -> list[tuple[int, ...]]:
    """The ids of each word inside a text, without the piece of a space before it."""
    texts = [word if _UNSPACED.search(word) else f" {word}" for word in words]
    spaces = {i for i in map(tokenizer.backend.token_to_id, _SPACES) if i is not None}
    found = []
    for encoding in tokenizer.backend.encode_batch_fast(texts, add_special_tokens=False):
        ids = tuple(encoding.ids)
        found.append(ids[1:] if len(ids) > 1 and ids[0] in spaces else ids)
    return found


def _repeats(words: Sequence[str], forms: dict[str, str]) -> Iterator[str]:
    seen: set[str] = set()
    for word in words:
        if forms[word] in seen:
            yield word
        if forms[word]:
            seen.add(forms[word])
