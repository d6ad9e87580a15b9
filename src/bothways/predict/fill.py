"""Fill-mask: the most probable words for the masks of a text."""

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import overload

import numpy as np
from numpy.typing import NDArray

from bothways.data.words import is_cjk
from bothways.engine.chunks import chunks
from bothways.engine.engine import Engine, Forward
from bothways.engine.sequences import Sequences
from bothways.errors import BothwaysError
from bothways.model.device import Device, Precision
from bothways.model.facts import ModelFacts
from bothways.model.opened import AnsweringModel
from bothways.model.readable import check_readable
from bothways.predict.places import Places, log_probabilities, most_probable, places_of
from bothways.text.frames import not_a_text
from bothways.text.plain_ids import LONG, PlainIds
from bothways.text.tokenizer import Encoding, Tokenizer

_PLAIN = ("WordPiece", "WordLevel")
_SPACES = ("Ġ", "▁")
_MAX_BEAM = 256  # each step runs the model on as many sequences
_ANYTHING, _NEW_WORD, _CONTINUATION = range(3)
"""The lists of excluded tokens: see `_exclusions`."""


@dataclass(frozen=True)
class Filled:
    """One way to fill all masks of a text."""

    score: float
    """The probability of the word given the rest of the text; for several masks, the geometric mean."""
    words: tuple[str, ...]
    tokens: tuple[int, ...]
    text: str
    """The text with its masks filled; the rest is unchanged. RoBERTa's mask includes the space before it: there, that
    space is dropped if the piece continues the word before."""


@dataclass(frozen=True)
class _Guess:
    tokens: tuple[tuple[int, int], ...] = ()
    """(position, token) in the order they were filled."""
    log_probability: float = 0.0


@dataclass(frozen=True)
class _Masked:
    """A text with masks."""

    text: str
    encoding: Encoding
    masks: dict[int, int]
    """The position of each mask, and the number of its list of excluded tokens."""


@overload
def fill(  # type: ignore[overload-overlap]  # a string is an iterable of strings too
    text: str,
    model: AnsweringModel | Path | str | None = None,
    *,
    top: int = 5,
    device: Device | None = None,
    dtype: Precision | None = None,
) -> list[Filled]: ...
@overload
def fill(
    text: Iterable[str],
    model: AnsweringModel | Path | str | None = None,
    *,
    top: int = 5,
    device: Device | None = None,
    dtype: Precision | None = None,
) -> list[list[Filled]]: ...
def fill(
    text: str | Iterable[str],
    model: AnsweringModel | Path | str | None = None,
    *,
    top: int = 5,
    device: Device | None = None,
    dtype: Precision | None = None,
) -> list[Filled] | list[list[Filled]]:
    """The `top` best ways to fill the [MASK]s of a text, best first; of several texts, a list of these.

    The default model is the included model en. Several masks are filled together. A beam search fills the most
    confident mask first, and each choice informs the next; the candidates are then ranked by pseudo-likelihood, each
    word scored with all the others in place. At the start of a word, such as after a space, a continuation (WordPiece's
    ##ing) is no candidate; directly after a word, as in play[MASK], only a continuation is one. For `device` and
    `dtype` see `encode`.
    """
    if not isinstance(text, Iterable):
        raise BothwaysError(f"a text or several were expected, and {text!r} was given", "bad-input", text)
    engine = Engine(model, device=device, dtype=dtype)
    found = list(iter_filled([text] if isinstance(text, str) else text, engine, top))
    return found[0] if isinstance(text, str) else found


def iter_filled(texts: Iterable[str], engine: Engine, top: int = 5) -> Iterator[list[Filled]]:
    """`fill` for a stream of texts, in order and in constant memory."""
    model = engine.model
    tokenizer = _require(model)
    if top < 1:
        raise BothwaysError(f"`top` is {top}: expected 1 or more", "out-of-range", top)
    excluded = _exclusions(model)
    number = 0
    for some in chunks(texts, engine.device):
        blanks = list(_masked(some, number, model, top))
        number += len(some)
        guesses = _beam(engine, blanks, top, excluded)
        _rank_by_pseudo_likelihood(engine, blanks, guesses)
        for blank, own in zip(blanks, guesses, strict=True):
            yield [_filled(guess, blank.text, blank.encoding, tokenizer) for guess in own[:top]]


def _masked(texts: Sequence[str], before: int, model: ModelFacts, top: int) -> Iterator[_Masked]:
    """The texts and the places of their masks. `before`: the number of texts before them, for errors."""
    tokenizer, limit = model.require_tokenizer(), model.config.encoder.max_length
    for text in texts:
        if not isinstance(text, str):
            raise not_a_text(text)
        if len(text) > LONG and (tokens := len(PlainIds(tokenizer).any_length([text]).ids)) > limit:
            raise _too_long(before + 1 + texts.index(text), tokens, limit)
    mask = tokenizer.id(tokenizer.mask or "")
    check_readable([text.replace(tokenizer.mask or "", " ") for text in texts], tokenizer)
    for number, (text, encoding) in enumerate(zip(texts, tokenizer.batch(texts), strict=True), before + 1):
        if len(encoding) > limit:
            raise _too_long(number, len(encoding), limit)
        places = [i for i, token in enumerate(encoding.ids) if token == mask]
        if not places:
            where = f"in text {number}" if number > 1 else ""
            raise BothwaysError(
                f"there is no mask to fill{where and ' ' + where}: write {tokenizer.mask} where a word is missing",
                "no-mask",
                text,
            )
        if len(places) > 1 and top > _MAX_BEAM:
            raise BothwaysError(
                f"`top` is {top}, and a text with several masks gets at most {_MAX_BEAM} answers", "out-of-range", top
            )
        yield _Masked(text, encoding, _lists(text, encoding, places, tokenizer))


def _too_long(number: int, length: int, limit: int) -> BothwaysError:
    says = f"text {number} has {length} tokens and this model reads {limit}: {length - limit} too many"
    return BothwaysError(says, "too-long", (length, limit))


def _require(model: ModelFacts) -> Tokenizer:
    tokenizer = model.require_tokenizer()
    if "masked" not in model.heads:
        raise BothwaysError(
            f"this model has no masked language modelling head (it has: {', '.join(model.heads) or 'none'}), so it "
            "cannot fill masks",
            "no-head",
            "masked",
        )
    if model.config.encoder.causal:
        raise BothwaysError("this model reads left to right only, so it cannot fill masks", "causal-model")
    if tokenizer.mask is None:
        raise BothwaysError("this model's tokenizer has no mask token, so it cannot fill masks", "no-mask-token")
    return tokenizer


def _lists(text: str, encoding: Encoding, places: list[int], tokenizer: Tokenizer) -> dict[int, int]:
    """For each mask, the number of the list of tokens that cannot follow what is written before it."""
    found: dict[int, int] = {}
    for place in places:
        start, before = encoding.offsets[place][0], encoding.offsets[place - 1] if place else (0, -1)
        if place - 1 in found and before[1] == start:
            found[place] = _ANYTHING  # two masks without a space: one word or two
        elif tokenizer.rest_ids and _is_word_character(text[start - 1 : start]):
            found[place] = _CONTINUATION
        else:
            found[place] = _NEW_WORD
    return found


def _exclusions(model: ModelFacts) -> NDArray[np.bool_]:
    """(3, vocabulary) the tokens that are no answer, for a mask that may be anything, a new word, or a continuation.

    Never an answer are special and unused tokens, and rows without a piece in the tokenizer.
    """
    tokenizer = model.require_tokenizer()
    found = np.zeros((3, model.config.encoder.vocab_size), bool)
    found[:, list(tokenizer.wordless_ids)] = True
    found[:, tokenizer.size :] = True
    found[_NEW_WORD, list(tokenizer.rest_ids)] = True
    if tokenizer.rest_ids:
        begins = [i for i, piece in enumerate(tokenizer.pieces) if _is_word_character(piece[:1])]
        found[_CONTINUATION, begins] = True
    return found


def _is_word_character(character: str) -> bool:
    """Whether it can be part of a longer word. A Chinese character is a word of its own."""
    return character.isalnum() and not is_cjk(character)


def fills_at_most(masks: int, top: int) -> int:
    """How many times a text with so many masks is read to fill them.

    >>> fills_at_most(1, top=5), fills_at_most(3, top=5)
    (1, 81)
    """
    return 1 if masks == 1 else 1 + (masks - 1) * _width(masks, top) + masks * _width(masks, top)


def _width(masks: int, top: int) -> int:
    """The number of guesses that the beam search keeps."""
    return top if masks == 1 else min(max(2 * top, 16), _MAX_BEAM)


def _beam(engine: Engine, blanks: Sequence[_Masked], top: int, excluded: NDArray[np.bool_]) -> list[list[_Guess]]:
    """For each text, the most probable ways to fill all its masks: as many as `top`, more for several masks."""
    widths = [_width(len(blank.masks), top) for blank in blanks]
    found = [[_Guess()] for _ in blanks]
    ask = most_probable(engine, max(widths, default=1), excluded)
    for filled in range(max((len(blank.masks) for blank in blanks), default=0)):
        left = [i for i, blank in enumerate(blanks) if len(blank.masks) > filled]
        owners = [i for i in left for _ in found[i]]
        asked = [(blanks[i], guess, _open_masks(blanks[i], guess)) for i in left for guess in found[i]]
        grown: dict[int, dict[tuple[tuple[int, int], ...], _Guess]] = {i: {} for i in left}
        for i, (_, guess, masks), table in zip(owners, asked, _ask(engine, ask, asked), strict=True):
            _grow(guess, list(masks), table, widths[i], grown[i])
        for i in left:
            found[i] = sorted(grown[i].values(), key=lambda guess: -guess.log_probability)[: widths[i]]
    return found


def _open_masks(blank: _Masked, guess: _Guess) -> dict[int, int]:
    done = dict(guess.tokens)
    return {place: number for place, number in blank.masks.items() if place not in done}


def _grow(
    guess: _Guess,
    places: Sequence[int],
    table: NDArray[np.float32],
    width: int,
    into: dict[tuple[tuple[int, int], ...], _Guess],
) -> None:
    """Fill the mask of which the model is most confident. `table`: (places, 2 · K) as `most_probable` gives them."""
    best, tokens = np.split(table, 2, axis=1)
    sure = int(best[:, 0].argmax())
    for log_probability, token in zip(best[sure, :width].tolist(), tokens[sure, :width].tolist(), strict=True):
        if log_probability == -math.inf:
            continue
        found = _Guess((*guess.tokens, (places[sure], int(token))), guess.log_probability + log_probability)
        # Two orders of filling may give the same words: keep the more probable.
        key = tuple(sorted(found.tokens))
        if key not in into or into[key].log_probability < found.log_probability:
            into[key] = found


def _rank_by_pseudo_likelihood(engine: Engine, blanks: Sequence[_Masked], guesses: list[list[_Guess]]) -> None:
    """Rank the guesses for several masks again: each word alone is masked and scored with all the others in place."""
    asked = []
    several = [i for i, blank in enumerate(blanks) if len(blank.masks) > 1]
    for i in several:
        for guess in guesses[i]:
            for place, token in guess.tokens:
                others = _Guess(tuple(pair for pair in guess.tokens if pair[0] != place))
                asked.append((blanks[i], others, {place: token}))
    scores = iter(_ask(engine, log_probabilities(engine), asked))
    for i in several:
        ranked = [_Guess(guess.tokens, sum(float(next(scores)[0]) for _ in guess.tokens)) for guess in guesses[i]]
        guesses[i] = sorted(ranked, key=lambda guess: -guess.log_probability)


def _ask(
    engine: Engine, forward: Forward[Places], asked: Sequence[tuple[_Masked, _Guess, Mapping[int, int]]]
) -> list[NDArray[np.float32]]:
    """What `forward` gives for texts with some masks filled, at places with a token or list each: (places, …)."""
    if not asked:
        return []
    counts = np.array([len(places) for _, _, places in asked])
    chunk = Places(
        Sequences.of([_with(blank.encoding, guess) for blank, guess, _ in asked]),
        counts,
        np.array([place for _, _, places in asked for place in places]),
        np.array([token for _, _, places in asked for token in places.values()]),
    )
    ((_, rows),) = engine.run([chunk], forward, places_of)
    return np.split(rows, np.cumsum(counts)[:-1])


def _with(encoding: Encoding, guess: _Guess) -> list[int]:
    ids = list(encoding.ids)
    for place, token in guess.tokens:
        ids[place] = token
    return ids


def _filled(guess: _Guess, text: str, encoding: Encoding, tokenizer: Tokenizer) -> Filled:
    tokens, mask = sorted(guess.tokens), tokenizer.mask or ""
    for place, token in reversed(tokens):
        start, end = encoding.offsets[place]
        before = text[: max(start, text.find(mask, start, end))]
        kept = before.rstrip() if tokenizer.mask_takes_space else before
        text = _joined(kept, before[len(kept) :], token, tokenizer) + text[end:]
    words = tuple(_shown(token, tokenizer) for _, token in tokens)
    score = math.exp(guess.log_probability / len(tokens))
    return Filled(score, words, tuple(token for _, token in tokens), text)


def _shown(token: int, tokenizer: Tokenizer) -> str:
    """A piece for display: WordPiece's unchanged, ##ing too; others without the marks that stand for spaces."""
    piece = tokenizer.piece(token)
    return piece if tokenizer.kind in _PLAIN else tokenizer.decode([token]).strip() or piece


def _joined(before: str, taken: str, token: int, tokenizer: Tokenizer) -> str:
    """A text with a piece after it. `taken` is the white space between them that belonged to the mask."""
    piece = tokenizer.piece(token)
    if tokenizer.kind in _PLAIN:
        return before + taken + piece.removeprefix("##")
    # Byte-level BPE and SentencePiece mark the space before a word; a piece without the mark continues the word before.
    if piece.startswith(_SPACES):
        space = taken or (" " if before.rstrip() == before != "" else "")
    else:
        space = "" if taken.isspace() and taken.isprintable() else taken  # line breaks are kept
    return before + space + tokenizer.decode([token]).strip()
