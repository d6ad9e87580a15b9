"""BERTScore (Zhang et al. 2020): how well the tokens of a candidate match those of a reference, by cosine similarity.

    precision   mean over the candidate's tokens of the maximum similarity with a token of the reference
    recall      mean over the reference's tokens of the maximum similarity with a token of the candidate

Every text is encoded once, and pairs are matched as soon as both texts are there. The numbers are those of the
bert_score package.

S different texts · P pairs · V vocabulary · W width.
"""

import warnings
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from bothways.engine.engine import Engine
from bothways.engine.reader import Tally
from bothways.engine.sequences import Indices, on_device, ragged
from bothways.errors import BothwaysError
from bothways.model.device import Device, Precision
from bothways.model.maxsim import PackedTexts, maxsim_both
from bothways.model.model import Model
from bothways.predict.encode import PackedStates, iter_states, text_chunks
from bothways.predict.encode_options import Long
from bothways.predict.features import Features
from bothways.predict.given_texts import require_several
from bothways.predict.published_scores import best_layer, read_baseline
from bothways.progress import in_notebook
from bothways.text.frames import not_a_text
from bothways.text.tokenizer import Tokenizer

Floats = NDArray[np.float32]
Watch = Callable[[Iterable[str], str], Iterable[str]]
_NUMBERS_HELD = {"cpu": 2**24, "cuda": 2**27}
"""Numbers in the vectors that are held before pairs are matched, by device."""


@dataclass(frozen=True)
class BertScores:
    """One score for each candidate. `P, R, F1 = bert_score(...)` works too."""

    precision: Floats
    recall: Floats
    f1: Floats
    layer: int
    """The layer whose vectors were compared."""

    def __iter__(self) -> Iterator[Floats]:
        return iter((self.precision, self.recall, self.f1))


def bert_score(
    candidates: Sequence[str],
    references: Sequence[str] | Sequence[Sequence[str]],
    model: Model | Path | str | None = None,
    *,
    layer: int | None = None,
    idf: bool | Sequence[str] = False,
    baseline: Path | str | None = None,
    long: Long = "error",
    device: Device | None = None,
    dtype: Precision | None = None,
    watch: Watch = in_notebook,
) -> BertScores:
    """Precision, recall and F1 of each candidate, compared with its reference, or with the best of several.

    The default model is the included model en. `layer` counts from 0, the embeddings; -1 is the last. By default it is
    the published layer if the model's folder has the name of a model that BERTScore's authors tuned, such as
    bert-base-chinese, else the last. Of several references each score is the highest one, as in the package.

    `idf` weights tokens by their inverse document frequency in the references, or in a list of texts. `baseline` is a
    published file of baselines: scores are rescaled so that unrelated sentences are about 0. [CLS] and [SEP] may be
    matched, but their own weight is 0. A pair with an empty text scores 0. `watch` shows the progress over texts. For
    `long` see `Features`; for `device` and `dtype` see `encode`: fp32 is the reference.
    """
    require_several(candidates)
    require_several(references)
    engine = Engine(model, device=device, dtype=dtype)
    depth = engine.weights("BERTScore").config.encoder.layers
    if layer is None:
        layer = depth if model is None or isinstance(model, Model) else best_layer(model, depth)
    layer = Features(layer).numbers(depth)[0]
    lowest = read_baseline(baseline, layer) if baseline is not None else np.zeros(3)
    pairs = _Pairs.of(candidates, references, _leading_space(engine.model.require_tokenizer()))
    weights = _weights(idf, pairs, engine.weights("BERTScore"), long, watch)
    scores = _rescaled(_scores(pairs, _cut_off(engine, layer), layer, weights, long, watch), lowest)
    best = np.full((len(candidates), 3), -np.inf, np.float32)
    np.maximum.at(best, pairs.owners, scores.astype(np.float32))
    return BertScores(best[:, 0], best[:, 1], best[:, 2], layer)


# ---------------------------------------------------------------------- texts and pairs


@dataclass(frozen=True)
class _Pairs:
    """Candidates and references as pairs of numbered texts, in the order in which they are matched."""

    texts: list[str]
    """(S,) different texts, in the order in which pairs need them."""
    numbers: Indices
    """(P, 2) the texts of each pair: candidate and reference."""
    owners: Indices
    """(P,) the number of the candidate in the call."""

    @classmethod
    def of(cls, candidates: Sequence[str], references: Sequence[Any], space: str) -> "_Pairs":
        """`space` is put before each text."""
        if len(candidates) != len(references):
            raise BothwaysError(
                f"there are {len(candidates):,} candidates and {len(references):,} references: expected as many",
                "length-mismatch",
                (len(candidates), len(references)),
            )
        groups = [[given] if isinstance(given, str) else list(given) for given in references]
        if [] in groups:
            number = groups.index([]) + 1
            raise BothwaysError(f"candidate {number:,} has no reference: expected one or several", "no-data", number)
        owners = np.repeat(np.arange(len(groups)), list(map(len, groups)))
        # Pairs with the same reference follow each other, so that its vectors are not held for long.
        seen: dict[str, int] = {}
        order = np.argsort([seen.setdefault(text, len(seen)) for group in groups for text in group], kind="stable")
        flat = [_clean(text, space) for group in groups for text in group]
        cleaned = [_clean(text, space) for text in candidates]
        found: dict[str, int] = {}
        numbers = [
            (found.setdefault(cleaned[owners[k]], len(found)), found.setdefault(flat[k], len(found)))
            for k in order.tolist()
        ]
        return cls(list(found), np.array(numbers, np.int64).reshape(-1, 2), owners[order])

    def name_of(self, text: int) -> str:
        """What the user calls a text: the first candidate or reference that it is."""
        pair, side = np.argwhere(self.numbers == text)[0].tolist()
        return f"{('candidate', 'the reference of candidate')[side]} {self.owners[pair] + 1:,}"


def _clean(text: Any, space: str) -> str:
    if not isinstance(text, str):
        raise not_a_text(text)
    stripped = text.strip()
    return space + stripped if stripped else stripped


def _leading_space(tokenizer: Tokenizer) -> str:
    """A space for RoBERTa's byte-level tokenizers: the package reads the first word as it reads the others."""
    is_roberta = tokenizer.kind == "BPE" and tokenizer.roles.get("cls_token") == "<s>"
    return " " if is_roberta and tokenizer(" a").ids != tokenizer("a").ids else ""


# ---------------------------------------------------------------------- weights


def _weights(idf: bool | Sequence[str], pairs: _Pairs, model: Model, long: Long, watch: Watch) -> Floats:
    """(V,) the weight of each token id."""
    if idf is False:
        weights, tokenizer = np.ones(model.config.encoder.vocab_size, np.float32), model.require_tokenizer()
        weights[
            [tokenizer.id(tokenizer.roles[role]) for role in ("cls_token", "sep_token") if role in tokenizer.roles]
        ] = 0
        return weights
    if idf is True:
        copies = np.bincount(pairs.numbers[:, 1], minlength=len(pairs.texts))
        counts = {pairs.texts[i]: int(copies[i]) for i in np.flatnonzero(copies)}
    else:
        require_several(idf)
        space = _leading_space(model.require_tokenizer())
        counts = Counter(_clean(text, space) for text in idf)
        if not counts:
            raise BothwaysError("`idf` is an empty list: expected texts to count tokens in", "no-data")
    return _inverse_frequencies(counts, model, long, watch)


def _inverse_frequencies(counts: dict[str, int], model: Model, long: Long, watch: Watch) -> Floats:
    """log((texts + 1) / (texts with this token + 1)): (V,). `counts`: how often each text occurs."""
    size, total = model.config.encoder.vocab_size, sum(counts.values())
    having, copies, before = np.zeros(size, np.int64), np.array(list(counts.values())), 0
    features = Features(long="cut" if long == "cut" else "window")
    for chunk in text_chunks(watch(list(counts), "counting tokens"), model, features, Tally(), 0):
        owners = np.repeat(np.arange(len(chunk.texts)), chunk.lengths)
        once = np.unique(owners * size + chunk.sequences.ids[chunk.own])
        np.add.at(having, once % size, copies[before + once // size])
        before += len(chunk.texts)
    found: Floats = np.log((total + 1) / (having + 1)).astype(np.float32)
    return found


# ---------------------------------------------------------------------- scores


def _cut_off(engine: Engine, layer: int) -> Engine:
    """An engine for the first layers of a model: those above are not computed."""
    if layer in (0, engine.model.config.encoder.layers):
        return engine
    return Engine(engine.weights("BERTScore").with_layers(range(1, layer + 1)))


def _scores(
    pairs: _Pairs, engine: Engine, layer: int, weights: Floats, long: Long, watch: Watch
) -> NDArray[np.float64]:
    """(P, 3) precision, recall and F1 of each pair."""
    tally, matcher = Tally(), _Matcher(pairs, weights, engine)
    features = Features(layer if layer == 0 else "last", long=long)
    try:
        for states in iter_states(watch(pairs.texts, "scoring"), engine, features, tally):
            matcher.add(states)
    except BothwaysError as error:
        if error.code != "too-long" or not isinstance(error.value, tuple):
            raise
        number, length = error.value
        limit, name = engine.model.config.encoder.max_length, pairs.name_of(number - 1)
        raise BothwaysError(
            f"{name} has {length:,} tokens and this model reads at most {limit}: set `long` to window to read it in "
            f"windows, or to cut to drop {length - limit:,} tokens",
            "too-long",
            (name, length),
        ) from None
    if tally.cut:
        warnings.warn(str(tally), stacklevel=3)
    return matcher.finish()


class _Matcher:
    """Matches pairs while texts come in, and forgets the vectors that no later pair needs."""

    def __init__(self, pairs: _Pairs, weights: Floats, engine: Engine) -> None:
        self.numbers, self.weights, self.device = pairs.numbers, weights, engine.device
        self.specials = sum(engine.model.require_tokenizer().around)
        held = _NUMBERS_HELD.get(self.device.type, _NUMBERS_HELD["cpu"])
        self.limit = max(1, held // engine.model.config.encoder.width)
        self.needed = np.maximum.accumulate(pairs.numbers.max(1, initial=0)) + 1
        """(P,) texts that must be there before a pair and all those before it can be matched."""
        self.last_use = np.zeros(len(pairs.texts), np.int64)
        np.maximum.at(self.last_use, pairs.numbers, np.arange(len(pairs.numbers))[:, None])
        self.found = np.zeros((len(pairs.numbers), 2))
        self.is_empty, self.has_weight = np.zeros((2, len(pairs.texts)), bool)
        self.texts, self.done, self.seen = np.zeros(0, np.int64), 0, 0
        self.parts: list[PackedStates] = []
        self.tokens = self.kept = 0
        """Tokens that are held, and those of them that were there when pairs were last matched."""

    def add(self, states: PackedStates) -> None:
        """The states of the next texts."""
        new = np.arange(self.seen, self.seen + len(states.lengths))
        self.is_empty[new] = states.lengths <= self.specials
        self.texts, self.seen = np.concatenate([self.texts, new]), self.seen + len(new)
        self.parts.append(states)
        self.tokens += len(states.ids)
        # As much as is kept again: else texts that many pairs need would be copied over and over.
        if self.tokens - self.kept >= max(self.limit, self.kept):
            self._match()

    def finish(self) -> NDArray[np.float64]:
        """(P, 3) precision, recall and F1."""
        if self.parts:
            self._match()
        if unscored := int((self.is_empty | ~self.has_weight).sum()):
            warnings.warn(
                f"texts that are empty or whose tokens all have the weight 0: {unscored:,}; their scores are 0",
                stacklevel=4,
            )
        found = np.where(self.is_empty[self.numbers].any(1, keepdims=True), 0, self.found)
        sums = found.sum(1)
        f1 = np.divide(2 * found.prod(1), sums, out=np.zeros(len(found)), where=sums != 0)
        return np.column_stack([found, f1])

    def _match(self) -> None:
        """Score the pairs whose texts are there, and forget texts that only they needed."""
        lengths, ids = (np.concatenate([getattr(part, name) for part in self.parts]) for name in ("lengths", "ids"))
        states = torch.cat([part.states for part in self.parts])
        ready = int(np.searchsorted(self.needed, self.seen, "right"))
        places = np.zeros(self.seen, np.int64)
        places[self.texts] = np.arange(len(self.texts))
        texts = PackedTexts(states, lengths, on_device(self._shares(ids, lengths), self.device)).normalised()
        self.found[self.done : ready] = maxsim_both(texts, texts, places[self.numbers[self.done : ready]]).cpu().numpy()
        later = self.last_use[self.texts] >= ready
        rows = ragged((np.cumsum(lengths) - lengths)[later], lengths[later])
        self.texts, self.done = self.texts[later], ready
        kept = states.index_select(0, on_device(rows, self.device))
        self.parts = [PackedStates(lengths[later], ids[rows], kept)]
        self.tokens = self.kept = len(rows)

    def _shares(self, ids: NDArray[np.int32], lengths: Indices) -> Floats:
        """The weight of each token, divided by the sum of its text."""
        weights = self.weights[ids]
        sums = np.add.reduceat(weights, np.cumsum(lengths) - lengths)
        self.has_weight[self.texts] = sums > 0
        shares: Floats = weights / np.repeat(np.where(sums > 0, sums, 1), lengths)
        return shares


def _rescaled(scores: NDArray[np.float64], lowest: NDArray[np.float64]) -> NDArray[np.float64]:
    """Scores (P, 3) such that the baselines become 0, and 1 stays 1."""
    rescaled: NDArray[np.float64] = (scores - lowest) / (1 - lowest)
    return rescaled
