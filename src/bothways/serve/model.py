"""A model of the service: what it can answer, and the work that texts make for it."""

import math
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from bothways.engine.engine import Engine
from bothways.engine.reader import Tally
from bothways.errors import BothwaysError
from bothways.lazy import imported
from bothways.model.box import model_folder
from bothways.model.device import Device, Precision
from bothways.model.static import StaticModel
from bothways.predict.encode import encode_blocks
from bothways.predict.encode_options import Long
from bothways.predict.features import Features, TextRecipe, text_recipe
from bothways.predict.fill import fills_at_most, iter_filled
from bothways.predict.predictor import Predictor
from bothways.predict.rerank import Pair, Reranker, folder_limit, reranker_config
from bothways.predict.source import open_source
from bothways.serve.batching import Run, Work
from bothways.serve.refusal import RefusedError
from bothways.tasks.embed import SentenceVectors
from bothways.text.encoding import TextInput

if TYPE_CHECKING:
    from bothways.predict.late_interaction import LateInteraction

BATCH_TOKENS = {"cpu": 2_048, "cuda": 32_768}
"""Token budget of a batch, by device: a request that comes waits for the batch before it."""
_OVERLAP = 0.75
"""The share of a window that is new, at least."""


@dataclass(frozen=True)
class Asked:
    """Work for a model, with what its answer has to say."""

    work: Work
    lengths: list[int]
    """Tokens of each text as it was given."""
    cut: dict[int, int] = field(default_factory=dict)
    """Tokens that are cut off, by the number of the text."""

    @property
    def tokens(self) -> int:
        """Tokens of all texts that are read."""
        return sum(self.lengths) - sum(self.cut.values())


class ServedModel:
    """One folder under its name. Models that share nothing may compute at once."""

    def __init__(
        self, name: str, folder: Path | str | None, device: Device = "auto", dtype: Precision = "auto"
    ) -> None:
        self.name, self.folder, self._device, self._dtype = name, model_folder(folder), device, dtype
        self.source = open_source(self.folder, device=device, dtype=dtype)
        engine = self.source if isinstance(self.source, Engine) else None
        self.engine = engine
        self.tokenizer = self.source.tokenizer if isinstance(self.source, StaticModel) else engine_tokenizer(engine)
        self._predictors: dict[Long | None, Predictor] = {}
        self._rankers: dict[Long, Reranker | LateInteraction] = {}
        self._recipes: dict[tuple[str | None, Long], TextRecipe] = {}
        self.abilities = tuple(name for name, opens in self._openers().items() if _works(opens))
        """Of embed, predict, rerank and fill, those that the folder is made for."""

    def _openers(self) -> dict[str, Callable[[], object]]:
        return {
            "embed": self._require_vectors,
            "rerank": lambda: self.ranker("window"),
            "predict": self._require_answers,
            "fill": lambda: next(iter_filled([], self._require_engine()), None),
        }

    @property
    def budget(self) -> int:
        kind = "cpu" if self.engine is None else self.engine.device.type
        return BATCH_TOKENS.get(kind, BATCH_TOKENS["cpu"])

    @cached_property
    def dimensions(self) -> tuple[int, ...] | None:
        """The lengths to which vectors can be cut (Matryoshka); () is any. None: the folder names none."""
        known = {} if self.engine is None else self.engine.model.config.hf_config
        own = known.get("bothways")
        sizes = known.get("matryoshka_dimensions") or (own.get("matryoshka") if isinstance(own, dict) else None)
        if isinstance(sizes, list | tuple) and sizes:
            return tuple(sorted(int(size) for size in sizes))
        return () if known.get("is_matryoshka") is True else None

    @property
    def width(self) -> int:
        """The width of the vectors."""
        if isinstance(self.source, StaticModel):
            return self.source.width
        return self.recipe(None, "error").width(self._require_engine().model.config.encoder)

    @property
    def max_length(self) -> int:
        """Tokens of the longest text that is read at once; 0: there is no limit."""
        return 0 if self.engine is None else self.engine.model.config.encoder.max_length

    # ------------------------------------------------------------------ what answers

    def recipe(self, prompt_name: str | None, long: Long) -> TextRecipe:
        if (prompt_name, long) not in self._recipes:
            made = text_recipe(self._require_engine().model, Features(long=long), prompt_name=prompt_name)
            self._recipes[prompt_name, long] = made
        return self._recipes[prompt_name, long]

    def predictor(self, long: Long | None) -> Predictor:
        """`long`: None is as the folder says."""
        if long not in self._predictors:
            model = self._require_engine().model
            self._predictors[long] = Predictor(model, device=self._device, dtype=self._dtype, long=long)
        return self._predictors[long]

    def ranker(self, long: Long) -> "Reranker | LateInteraction":
        if long not in self._rankers:
            model = self._require_engine().model
            if model.late is not None:
                kind = imported("bothways.predict.late_interaction").LateInteraction
                self._rankers[long] = kind(model, long=long)
            else:
                limit = folder_limit(self.folder, reranker_config(model))
                self._rankers[long] = Reranker(model, long=long, max_length=limit)
        return self._rankers[long]

    def _require_engine(self) -> Engine:
        if self.engine is None:
            raise BothwaysError("a static model only makes vectors of texts", "static-model")
        return self.engine

    def _require_vectors(self) -> None:
        if self.engine is not None and self.engine.model.late is not None:
            raise BothwaysError("this model has a vector for every token", "token-vectors")
        assert self.width > 0
        if self.engine is not None:
            next(encode_blocks([], self.engine, self.recipe(None, "error"), Tally()), None)

    def _require_answers(self) -> None:
        if self.predictor(None).name == SentenceVectors.name:
            raise BothwaysError("this model makes vectors of texts, which are no answers", "no-task-head")

    # ------------------------------------------------------------------ work

    def embed(self, texts: Sequence[str], long: Long, prompt_name: str | None) -> Asked:
        """Vectors of texts, as `encode` makes them."""
        if isinstance(self.source, StaticModel):
            if prompt_name is not None:
                raise BothwaysError("a static model takes no `prompt_name`", "bad-combination", prompt_name)
            static, lengths = self.source, self.source.ids(list(texts))[1].tolist()
            return _asked("embed", lambda some: list(static.encode(some)), texts, lengths, 0, "window")
        engine, recipe = self._require_engine(), self.recipe(prompt_name, long)
        lengths = self.lengths([recipe.prompt + text for text in texts])

        def run(some: Sequence[str]) -> Sequence[Any]:
            return [row for rows in encode_blocks(some, engine, recipe, Tally()) for row in rows]

        return _asked(("embed", prompt_name, long), run, texts, lengths, recipe.max_length, long)

    def rerank(self, query: str, documents: Sequence[str], long: Long) -> Asked:
        """Logits of pairs; of a ColBERT the scores of late interaction."""
        ranker = self.ranker(long)
        pairs: list[Pair] = [(query, document) for document in documents]
        if isinstance(ranker, Reranker):
            lengths, limit = self.lengths(pairs), ranker.max_length
        else:
            limit = ranker.late.settings.document_length or self.max_length
            lengths, limit = self.lengths(documents), self.max_length if long == "window" else limit

        def run(some: Sequence[Any]) -> Sequence[Any]:
            return list(map(float, ranker.raw_scores(some)))

        return _asked(("rerank", long), run, pairs, lengths, limit, long)

    def predict(self, inputs: Sequence[Any], long: Long | None, top: int, with_all: bool) -> Asked:
        """Answers as `Predictor` gives them. `with_all`: the probability of every label."""
        predictor = self.predictor(long)
        if with_all:
            if not predictor.task.has_probabilities:
                says = f"`probabilities` are of labels, and a model for the task {predictor.name} has none"
                raise BothwaysError(says, "no-probabilities", predictor.name)
            top = max(2, len(predictor.labels))
        predictor.require_top(top)
        examples = [_numbered(predictor, one, i) for i, one in enumerate(inputs)]
        read = [predictor.task.texts_read(example) for example in examples]
        lengths = [self._length_of(texts) for texts in read]

        def run(some: Sequence[Any]) -> Sequence[Any]:
            return [answer for _, answer in predictor.answers(some, top=top)]

        # An example of several texts, such as options, is several sequences: which of them is cut, the reader knows.
        how = predictor.task.config.window.long if all(len(texts) <= 2 for texts in read) else "window"
        return _asked(("predict", long, top), run, examples, lengths, predictor.task.reader.length, how)

    def fill(self, texts: Sequence[str], top: int) -> Asked:
        """The best ways to fill the masks of texts."""
        engine, mask = self._require_engine(), str(self.tokenizer.mask)
        lengths = self.lengths(texts)
        losses(lengths, self.max_length, "error")
        for i, text in enumerate(texts):
            if mask not in text:
                says = f"text {i + 1} has no mask to fill: write {mask} where a word is missing"
                raise RefusedError(422, says, "no-mask", f"[{i}]")
        costs = [length * fills_at_most(text.count(mask), top) for length, text in zip(lengths, texts, strict=True)]

        def run(some: Sequence[Any]) -> Sequence[Any]:
            return list(iter_filled(some, engine, top))

        return Asked(Work(("fill", top), run, texts, costs), lengths)

    # ------------------------------------------------------------------ tokens

    def lengths(self, texts: Sequence[TextInput]) -> list[int]:
        """The tokens of each text or pair, special tokens included."""
        return [len(one) for one in self.tokenizer.raw_batch(texts, has_offsets=False)]

    def _length_of(self, texts: Sequence[str]) -> int:
        """The tokens of an example: of a text, a pair, or all that is read of it."""
        if len(texts) == 2:
            return self.lengths([(texts[0], texts[1])])[0]
        return sum(self.lengths(list(texts)))

    def text_of(self, ids: Sequence[int], number: int) -> str:
        """The text of token ids without special tokens. Refused if it would be read as other tokens."""
        size = self.tokenizer.size
        if wrong := [i for i in ids if i >= size]:
            says = f"input {number + 1} has the token {wrong[0]}, and the vocabulary of {self.name} has {size}"
            raise RefusedError(
                422, f"{says}: token ids are those of this model's own tokenizer", "unknown-token", "input"
            )
        text = self.tokenizer.decode(ids)
        if self.tokenizer.raw_batch([text], specials=False, has_offsets=False)[0].ids != list(ids):
            says = f"the token ids of input {number + 1} are not those of a text in {self.name}'s own tokenizer"
            raise RefusedError(422, f"{says}: send the text instead", "unknown-token", "input")
        return text


def engine_tokenizer(engine: Engine | None) -> Any:
    assert engine is not None
    return engine.model.require_tokenizer()


def _works(opens: Callable[[], object]) -> bool:
    try:
        opens()
    except BothwaysError:
        return False
    return True


READS = {
    "classify": "a text or a pair of texts",
    "tag": "a text or a list of words",
    "answer": "a question with a context",
    "choose": "a question with options",
    "score": "a pair of texts",
}
"""What an input is, by task."""


def _numbered(predictor: Predictor, given: Any, number: int) -> Any:
    """An input as an example. Errors name its place, and repeat nothing of it."""
    try:
        return predictor.example(tuple(given) if isinstance(given, list) else given)
    except BothwaysError as error:
        says = f"input {number + 1} is not what this model reads: expected {READS[predictor.name]}"
        raise RefusedError(422, says, error.code or "bad-input", f"inputs[{number}]") from error


def losses(lengths: Sequence[int], limit: int, long: Long) -> dict[int, int]:
    """The tokens that are cut off, by the number of the text; a refusal if they may not be."""
    if long == "window" or not limit:
        return {}
    found = {i: length - limit for i, length in enumerate(lengths) if length > limit}
    if found and long == "error":
        first = min(found)
        says = (
            f"text {first + 1} has {lengths[first]:,} tokens and this model reads at most {limit:,}: shorten it, or "
            "set `truncate` to true"
        )
        raise RefusedError(413, says, "too-long", f"[{first}]")
    return found


def windowed(length: int, limit: int) -> int:
    """The tokens that are read of a text in windows, about."""
    return length if not limit or length <= limit else limit * math.ceil(length / (limit * _OVERLAP))


def _asked(key: Hashable, run: Run, items: Sequence[Any], lengths: list[int], limit: int, long: Long) -> Asked:
    """Work on texts of these lengths, by a model that reads so many tokens at once; 0: there is no limit."""
    cut = losses(lengths, limit, long)
    costs = [windowed(max(1, length - cut.get(i, 0)), limit) for i, length in enumerate(lengths)]
    return Asked(Work(key, run, items, costs), lengths, cut)
