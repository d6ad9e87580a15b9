"""Fill-mask: the most probable words for the masks of a text."""

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from bothways.data.words import is_cjk
from bothways.engine.engine import Engine, on_device
from bothways.errors import BothwaysError
from bothways.model.batch import Batch
from bothways.model.box import boxed
from bothways.model.model import Model
from bothways.text.tokenizer import Encoding, Tokenizer

_PLAIN = ("WordPiece", "WordLevel")
_SPACES = ("Ġ", "▁")
_MAX_BEAM = 256  # each step runs the model on as many sequences


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
class _Job:
    """A sequence to run, and the positions of its masks."""

    ids: list[int]
    places: list[int]

    @property
    def segments(self) -> list[int]:
        return [0] * len(self.ids)


@dataclass(frozen=True)
class _Guess:
    tokens: tuple[tuple[int, int], ...] = ()
    """(position, token) in the order they were filled."""
    log_probability: float = 0.0


def fill(
    text: str, model: Model | Path | str | None = None, *, top: int = 5, device: str | None = None
) -> list[Filled]:
    """The `top` best ways to fill the [MASK]s of a text, best first. The default model is the one in the box.

    Several masks are filled together. A beam search fills the most confident mask first, and each choice informs the
    next; the candidates are then ranked by pseudo-likelihood, each word scored with all the others in place. Where a
    word begins, such as after a space, a continuation (WordPiece's ##ing) is no answer; directly after a word, as in
    play[MASK], only a continuation is one. For `device` see `encode`.
    """
    if not isinstance(text, str):
        raise BothwaysError(f"one text was expected, and {text!r} was given", "bad-input", text)
    model = on_device(model if isinstance(model, Model) else model or boxed("fill"), device)
    tokenizer = _require(model)
    if top < 1:
        raise BothwaysError(f"`top` is {top}: expected 1 or more", "out-of-range", top)
    encoding = tokenizer(text, limit=model.config.encoder.max_length)
    places = [i for i, token in enumerate(encoding.ids) if token == tokenizer.id(tokenizer.mask or "")]
    if not places:
        raise BothwaysError(
            f"there is no mask to fill: write {tokenizer.mask} where a word is missing", "no-mask", text
        )
    if len(places) > 1 and top > _MAX_BEAM:
        raise BothwaysError(
            f"`top` is {top}, and a text with several masks gets at most {_MAX_BEAM} answers", "out-of-range", top
        )
    width = top if len(places) == 1 else min(max(2 * top, 16), _MAX_BEAM)
    guesses = _beam(model, encoding, _excluded(text, encoding, places, tokenizer), width)
    if len(places) > 1:
        guesses = _by_pseudo_likelihood(model, encoding, guesses)
    return [_filled(guess, text, encoding, tokenizer) for guess in guesses[:top]]


def _require(model: Model) -> Tokenizer:
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


def _excluded(text: str, encoding: Encoding, places: list[int], tokenizer: Tokenizer) -> dict[int, Tensor]:
    """For each mask, the ids that cannot follow what is written before it."""
    excluded: dict[int, Tensor] = {}
    for place in places:
        start = encoding.offsets[place][0]
        ids: Iterable[int] = tokenizer.rest_ids
        if place - 1 in excluded and encoding.offsets[place - 1][1] == start:
            ids = ()  # two masks without a space: one word or two
        elif tokenizer.rest_ids and _is_word_character(text[start - 1 : start]):
            ids = (i for i, piece in enumerate(tokenizer.pieces) if _is_word_character(piece[:1]))
        excluded[place] = torch.tensor(list(ids), dtype=torch.long)
    return excluded


def _is_word_character(character: str) -> bool:
    """Whether it can be part of a longer word. A Chinese character is a word of its own."""
    return character.isalnum() and not is_cjk(character)


def _beam(model: Model, encoding: Encoding, places: dict[int, Tensor], width: int) -> list[_Guess]:
    """The `width` most probable ways to fill all masks; `places` maps each mask to its excluded ids."""
    guesses = [_Guess()]
    for _ in places:
        open_places = [[p for p in places if p not in dict(guess.tokens)] for guess in guesses]
        jobs = [_Job(_with(encoding, guess), left) for guess, left in zip(guesses, open_places, strict=True)]
        scored = _log_probabilities(model, jobs)
        grown: dict[tuple[tuple[int, int], ...], _Guess] = {}
        for guess, left, table in zip(guesses, open_places, scored, strict=True):
            table = table.clone()  # inference tensors cannot be changed outside inference mode
            for row, place in enumerate(left):
                table[row, places[place]] = -math.inf
            most_confident = int(table.amax(1).argmax())
            best, tokens = table[most_confident].topk(min(width, table.shape[1]))
            for log_probability, token in zip(best.tolist(), tokens.tolist(), strict=True):
                if log_probability == -math.inf:
                    continue
                found = _Guess((*guess.tokens, (left[most_confident], token)), guess.log_probability + log_probability)
                # Two orders of filling may give the same words: keep the more probable.
                key = tuple(sorted(found.tokens))
                if key not in grown or grown[key].log_probability < found.log_probability:
                    grown[key] = found
        guesses = sorted(grown.values(), key=lambda guess: -guess.log_probability)[:width]
    return guesses


def _by_pseudo_likelihood(model: Model, encoding: Encoding, guesses: list[_Guess]) -> list[_Guess]:
    """The guesses ranked again: each word alone is masked and scored with all the others in place."""
    jobs = []
    for guess in guesses:
        for place, _ in guess.tokens:
            others = _Guess(tuple(pair for pair in guess.tokens if pair[0] != place))
            jobs.append(_Job(_with(encoding, others), [place]))
    tables = iter(_log_probabilities(model, jobs))
    ranked = [
        _Guess(guess.tokens, sum(float(next(tables)[0, token]) for _, token in guess.tokens)) for guess in guesses
    ]
    return sorted(ranked, key=lambda guess: -guess.log_probability)


def _log_probabilities(model: Model, jobs: Sequence[_Job]) -> list[Tensor]:
    """For each job, (places, vocabulary): the log-probability of every token at each place."""
    never = _never(model)

    def read(batch: Batch, jobs: list[_Job]) -> Sequence[Tensor]:
        at = [first + place for first, job in zip(batch.first.tolist(), jobs, strict=True) for place in job.places]
        logits = model.masked(model.encoder(batch)[torch.tensor(at, device=model.device)]).float()
        table = logits.log_softmax(-1).cpu()
        table[:, never] = -math.inf  # after the softmax: the other tokens keep the model's own probabilities
        found: Sequence[Tensor] = table.split([len(job.places) for job in jobs])
        return found

    return list(Engine(model).run(jobs, read))


def _never(model: Model) -> list[int]:
    """Ids that are never an answer: special and unused tokens, and rows without a piece in the tokenizer."""
    assert model.tokenizer is not None
    return [*model.tokenizer.wordless_ids, *range(model.tokenizer.size, model.config.encoder.vocab_size)]


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
