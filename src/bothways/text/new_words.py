"""Words of a domain as pieces of their own: which ones, and how a tokenizer learns them.

find_words     the words of a text that cost the most pieces
add_words      a tokenizer that has them, each one piece
pieces_per_word   what that saves
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
from bothways.text.files import STDIN, Meter, find_files, read_texts
from bothways.text.tokenizer import Tokenizer

OnBytes = Callable[[int, int], None]
"""Told how far a reading is: bytes done, bytes in all."""

# Thai, Lao, Burmese, Khmer, kana and Chinese: no space tells where their words end.
_UNSPACED = re.compile(
    "[\u0e00-\u0eff\u1000-\u109f\u1780-\u17ff\u3040-\u30ff\u31f0-\u31ff\u3400-\u4dbf\u4e00-\u9fff"
    "\uf900-\ufaff\uff66-\uff9f\U00020000-\U0003ffff]"
)
_BARE = {"▁", "Ġ"}  # a space that became a piece: it is no part of a word
_AT_ONCE = 2**20  # characters


@dataclass(frozen=True)
class NewWords:
    """A tokenizer with new words, and what became of every word that was asked for."""

    tokenizer: Tokenizer
    added: tuple[str, ...]
    """As the vocabulary spells them, in the order of their ids."""
    cuts: tuple[tuple[int, ...], ...]
    """For each of them, the ids of the pieces that it used to be cut into."""
    known: tuple[str, ...] = ()
    """Words that were one piece already."""
    repeated: tuple[str, ...] = ()
    """Words that the tokenizer cannot tell from one before, as `Covid` and `covid` once lower-cased."""
    spaced: tuple[str, ...] = ()
    """With white space inside: a piece is one word."""
    refused: tuple[str, ...] = ()
    """Words that cannot be a piece of their own: their spelling is that of another one, which stands inside words."""
    empty: int = 0
    """Lines with nothing in them, or nothing that the tokenizer reads."""


def add_words(tokenizer: Tokenizer, words: Iterable[str]) -> NewWords:
    """A copy of the tokenizer in which each of these words is one piece, with ids after all others.

    They are matched before the text is cut, as whole words and in the form that the tokenizer gives to text; those of
    scripts without spaces, such as Chinese, wherever they stand, the longest first. In the vocabulary itself "corona"
    would change how "coronavirus" is cut, and 北京 could never be found: so a text without a new word keeps its ids.

    >>> from bothways.text.tokenizer import Tokenizer
    >>> letters = Tokenizer.from_pieces(["[PAD]", "[UNK]", "[CLS]", "[SEP]", "a", "##b", "##s", "北", "京"])
    >>> add_words(letters, ["ab", "北京"]).tokenizer("Ab abs 在北京").pieces[1:-1]
    ['ab', 'a', '##b', '##s', '[UNK]', '北京']
    """
    said = [word.strip() for word in words]
    spaced = [word for word in said if len(word.split()) > 1]
    plain = [word for word in said if len(word.split()) == 1]
    forms = {word: _normal(tokenizer, word) for word in plain}
    first: dict[str, str] = {}
    for word in plain:
        if forms[word]:
            first.setdefault(forms[word], word)
    cuts = dict(zip(first, _cuts(tokenizer, list(first.values())), strict=True))
    unknown = tokenizer.roles.get("unk_token")
    known = {form for form, cut in cuts.items() if len(cut) == 1 and tokenizer.piece(cut[0]) != unknown}
    names = set(tokenizer.pieces)
    inside = getattr(tokenizer.backend.model, "continuing_subword_prefix", None) or "\0"
    fresh = [form for form in first if form not in known | names and not form.startswith(inside)]
    grown = _with(tokenizer, {form: first[form] for form in fresh})
    whole = _cuts(grown, [first[form] for form in fresh])
    if any(len(cut) != 1 or cut[0] < tokenizer.size for cut in whole):  # a normaliser that changes its own output
        fresh = [f for f, cut in zip(fresh, whole, strict=True) if len(cut) == 1 and cut[0] >= tokenizer.size]
        grown = _with(tokenizer, {form: first[form] for form in fresh})
    if grown.size != tokenizer.size + len(fresh):
        raise BothwaysError("this vocabulary has ids that no piece has, and new words would not get ids of their own")
    return NewWords(
        grown,
        tuple(fresh),
        tuple(cuts[form] for form in fresh),
        tuple(first[form] for form in first if form in known),
        tuple(_repeats(plain, forms)),
        tuple(spaced),
        tuple(first[form] for form in first if form not in known and form not in set(fresh)),
        len(said) - len(spaced) - sum(bool(forms[word]) for word in plain),
    )


def find_words(
    files: Sequence[Path | str],
    tokenizer: Tokenizer,
    count: int,
    *,
    field: str = "text",
    on_bytes: OnBytes | None = None,
) -> list[str]:
    """The `count` words of the text that cost the most pieces: frequency × (pieces - 1), and one more if unknown.

    A word is a run of letters, digits and underscores with a letter in it. Of scripts without spaces none is found:
    where their words end is not written, so name these yourself.
    """
    if count < 1:
        raise BothwaysError(f"{count} words cannot be looked for: expected 1 or more")
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
    nothing = tokenizer.id(unknown) if unknown else -1
    found = sorted(times)
    prices = [len(cut) - 1 + (nothing in cut) for cut in _cuts(tokenizer, found)]
    costs = {word: times[word] * price for word, price in zip(found, prices, strict=True) if price > 0}
    return sorted(costs, key=lambda word: (-costs[word], word))[:count]


def pieces_per_word(
    files: Sequence[Path | str],
    several: Sequence[Tokenizer],
    *,
    field: str = "text",
    on_bytes: OnBytes | None = None,
) -> list[float]:
    """How many pieces each of these tokenizers makes of a word, on average; marks, and characters of scripts without
    spaces, count as words."""
    words, pieces = 0, [0] * len(several)
    for texts in read_batches(files, field, on_bytes):
        for text in texts:
            words += sum(len(_UNSPACED.findall(run)) or 1 for run, _ in Whitespace().pre_tokenize_str(text))
        for i, tokenizer in enumerate(several):
            pieces[i] += sum(map(len, tokenizer.backend.encode_batch_fast(texts, add_special_tokens=False)))
    if not words:
        raise BothwaysError(f"no text was found in {', '.join(map(str, files))}")
    return [count / words for count in pieces]


def read_batches(files: Sequence[Path | str], field: str, on_bytes: OnBytes | None = None) -> Iterator[list[str]]:
    """The texts of these files, some at a time; standard input is refused, because it can be read once only."""
    found = find_files(files)
    if STDIN in found:
        raise BothwaysError("a vocabulary is measured in several readings, and standard input has one: use a file")
    meter, total = Meter(), sum(file.stat().st_size for file in found)
    texts: list[str] = []
    size = 0
    for file in found:
        for text in read_texts(file, field, meter):
            texts.append(text)
            size += len(text)
            if size >= _AT_ONCE:
                yield texts
                texts, size = [], 0
                if on_bytes:
                    on_bytes(meter.bytes, total)
    yield texts


def _with(tokenizer: Tokenizer, words: dict[str, str]) -> Tokenizer:
    """A copy with these words, each given as the tokenizer spells it and as it was said."""
    backend = tokenizers.Tokenizer.from_str(tokenizer.backend.to_str())
    # Where a space is a piece, or part of one, a new word takes the space before it with it, as <mask> does.
    split = backend.pre_tokenizer
    takes_space = split is not None and bool(split.pre_tokenize_str(" "))
    tokens = []
    for form, word in words.items():
        anywhere = bool(_UNSPACED.search(form))
        # Found in normalised text; but the library would then call 北京 " 北  京 ", as BERT's normaliser spaces it.
        only = form == word and not _UNSPACED.sub("", form)
        tokens.append(
            AddedToken(form, single_word=not anywhere, lstrip=takes_space and not anywhere, normalized=not only)
        )
    backend.add_tokens(tokens)
    return tokenizer.with_backend(backend)


def _normal(tokenizer: Tokenizer, word: str) -> str:
    """The word as the vocabulary would spell it; empty if nothing is left of it."""
    normalizer = tokenizer.backend.normalizer
    return "".join((normalizer.normalize_str(word) if normalizer is not None else word).split())


def _cuts(tokenizer: Tokenizer, words: Sequence[str]) -> list[tuple[int, ...]]:
    """The ids of each word inside a text, without a bare space before it."""
    texts = [word if _UNSPACED.search(word) else f" {word}" for word in words]
    bare = {i for i in map(tokenizer.backend.token_to_id, _BARE) if i is not None}
    found = []
    for encoding in tokenizer.backend.encode_batch_fast(texts, add_special_tokens=False):
        ids = tuple(encoding.ids)
        found.append(ids[1:] if len(ids) > 1 and ids[0] in bare else ids)
    return found


def _repeats(words: Sequence[str], forms: dict[str, str]) -> Iterator[str]:
    seen: set[str] = set()
    for word in words:
        if forms[word] in seen:
            yield word
        if forms[word]:
            seen.add(forms[word])
