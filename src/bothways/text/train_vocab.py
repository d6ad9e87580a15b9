"""Trains a WordPiece vocabulary on text files."""

import re
import warnings
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from pathlib import Path

import tokenizers
from tokenizers.models import WordPiece
from tokenizers.trainers import WordPieceTrainer

from bothways.errors import BothwaysError
from bothways.text.files import Meter, find_rereadable, no_text, read_texts
from bothways.text.tokenizer import Tokenizer

# The first ids of Google's vocabularies: [PAD] 0, [unused0] … [unused98] 1–99, [UNK] 100, [CLS] 101, [SEP] 102,
# [MASK] 103. Tools with hard-coded ids keep working, and the unused pieces are free for words of a domain.
FIRST_PIECES = ("[PAD]", *(f"[unused{i}]" for i in range(99)), "[UNK]", "[CLS]", "[SEP]", "[MASK]")

_LONGEST = 100  # max_input_chars_per_word of BERT: a longer word is [UNK]
_LONG = re.compile(rf"\S{{{_LONGEST + 1},}}")
_TOLD = 2**18  # bytes between two reports of progress


def train_vocabulary(
    files: Sequence[Path | str],
    *,
    size: int = 30_522,
    lower: bool = True,
    strip_accents: bool | None = None,
    split_cjk: bool = True,
    minimum: int = 2,
    text: str | None = None,
    most: int = 500_000_000,
    on_bytes: Callable[[int, int], None] = lambda done, total: None,
) -> Tokenizer:
    """Train a WordPiece vocabulary of `size` tokens on text files, folders or patterns: see `find_files`.

    The files are streamed; only the table of distinct words is in memory. To bound it, an evenly spaced sample of the
    lines is used if the text has more than `most` characters, with a warning. `minimum` is the number of times a pair
    of tokens must occur to be merged. The same files give the same vocabulary. The files are read two or three
    times; `on_bytes(done, total)` reports the progress of each reading.
    """
    files = find_rereadable(files)
    if not 1 <= minimum <= 2**31:
        raise BothwaysError(f"`minimum` must be from 1 to 2**31, not {minimum}", "out-of-range", minimum)
    least = len(FIRST_PIECES) + 2
    if not least <= size <= 2**31:
        raise BothwaysError(
            f"`size` must be from {least}, BERT's special tokens included, to 2**31, not {size}", "out-of-range", size
        )
    shape = Tokenizer.from_pieces(FIRST_PIECES, lower=lower, strip_accents=strip_accents, split_cjk=split_cjk)
    # The library's default of 1,000 characters would make most of Chinese unknown; a third of the vocabulary leaves
    # room for words when a text is full of rare symbols, and a letter may come twice, as x and as ##x.
    texts = partial(_texts, files, text, on_bytes)
    letters, length = _letters(files, texts, shape.backend, most=min(size // 3, (size - len(FIRST_PIECES)) // 2))
    share = min(1.0, most / length)
    if share < 1:
        warnings.warn(
            f"the text has {length:,} characters: an even sample of {share:.1%} of its lines was used", stacklevel=2
        )
    pieces = learn_pieces(_sample(texts(), share), letters, shape, size=size, minimum=minimum)
    return Tokenizer.from_pieces(pieces, lower=lower, strip_accents=strip_accents, split_cjk=split_cjk)


def learn_pieces(
    texts: Iterable[str], letters: Sequence[str], shape: Tokenizer, *, size: int, minimum: int = 2
) -> list[str]:
    """The pieces of a vocabulary: those before all letters, the letters, and what is merged from them in the texts.

    The texts are normalised and split as by `shape`.
    """
    backend = tokenizers.Tokenizer(WordPiece(unk_token="[UNK]"))
    backend.normalizer, backend.pre_tokenizer = shape.backend.normalizer, shape.backend.pre_tokenizer
    trainer = WordPieceTrainer(
        vocab_size=size,
        min_frequency=minimum,
        # The trainer would number the ##x pieces in the order of a hash table, which differs from run to run and
        # decides ties between merges (huggingface/tokenizers #1794). Passed here in sorted order, they are stable.
        special_tokens=[*FIRST_PIECES, *_continuations(letters, backend)],
        initial_alphabet=letters,
        limit_alphabet=len(letters),
        show_progress=False,
    )
    # A copy: while the trainer draws a text, its own parts are locked.
    splitter = tokenizers.Tokenizer.from_str(backend.to_str())
    backend.train_from_iterator((_with_short_words(text, splitter) for text in texts), trainer)
    by_id = sorted((i, piece) for piece, i in backend.get_vocab().items())
    return [piece for _, piece in by_id]


def _with_short_words(text: str, backend: tokenizers.Tokenizer) -> str:
    """The text with long words in parts: no word of more than 100 characters is ever divided into pieces, and the
    trainer takes time with the square of their length."""
    return _LONG.sub(lambda run: _in_parts(run[0], backend), text)


def _in_parts(run: str, backend: tokenizers.Tokenizer) -> str:
    words = [word for word, _ in backend.pre_tokenizer.pre_tokenize_str(_normal(backend, run))]
    if max(map(len, words), default=0) <= _LONGEST:
        return run
    return " ".join(word[i : i + _LONGEST] for word in words for i in range(0, len(word), _LONGEST))


def _letters(
    files: Sequence[Path], texts: Callable[[], Iterable[str]], backend: tokenizers.Tokenizer, most: int
) -> tuple[list[str], int]:
    """Every character of the text after normalisation, or the `most` frequent; and the length of the text."""
    raw: set[str] = set()
    length = 0
    for text in texts():
        raw.update(text)
        length += len(text)
    normal = {letter: set(backend.normalizer.normalize_str(letter)) - {" "} for letter in raw}
    found = set().union(*normal.values())
    if not found:
        raise no_text(files)
    if len(found) > most:
        counts: Counter[str] = Counter()  # a second pass, because counting is three times slower than collecting
        for text in texts():
            counts.update(text)
        frequency = dict.fromkeys(found, 0)
        for letter, times in counts.items():
            for result in normal[letter]:
                frequency[result] += times
        found = set(sorted(found, key=lambda letter: (-frequency[letter], letter))[:most])
    return sorted(found), length


def _sample(texts: Iterator[str], share: float) -> Iterator[str]:
    """Every text, or evenly spaced ones that make up this share."""
    for i, text in enumerate(texts):
        if int((i + 1) * share) > int(i * share):
            yield text


def _continuations(letters: Sequence[str], backend: tokenizers.Tokenizer) -> list[str]:
    """##x for every letter that can occur inside a word: not punctuation, nor Chinese where it is split."""
    return [f"##{x}" for x in letters if len(backend.pre_tokenizer.pre_tokenize_str(_normal(backend, f"a{x}"))) == 1]


def _normal(backend: tokenizers.Tokenizer, text: str) -> str:
    normal: str = backend.normalizer.normalize_str(text)
    return normal


def _texts(files: Sequence[Path], field: str | None, on_bytes: Callable[[int, int], None]) -> Iterator[str]:
    meter, told, total = Meter(), 0, sum(file.stat().st_size for file in files)
    for file in files:
        for text in read_texts(file, field, meter):
            yield text
            if meter.bytes - told >= _TOLD:
                told = meter.bytes
                on_bytes(told, total)
    on_bytes(meter.bytes, total)
