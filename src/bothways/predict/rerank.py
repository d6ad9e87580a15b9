"""Reranking: order documents by how well they answer a query, with a cross-encoder that reads both together."""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Protocol, get_args

import numpy as np
from numpy.typing import NDArray

from bothways.data.examples import Text
from bothways.engine.engine import Engine
from bothways.engine.reader import Tally
from bothways.errors import BothwaysError, require_choice
from bothways.model.box import model_folder
from bothways.model.device import Device, Precision
from bothways.model.facts import ModelFacts
from bothways.model.opened import AnsweringModel
from bothways.model.sentence_files import max_length_of
from bothways.predict.encode import warn_of_losses
from bothways.predict.encode_options import Long
from bothways.predict.given_texts import require_several
from bothways.printable import counted
from bothways.progress import in_notebook
from bothways.tasks.answering import decode_all
from bothways.tasks.registry import task_config
from bothways.tasks.score import PairScoring
from bothways.tasks.task import TaskConfig

Scores = NDArray[np.float32]
Pair = tuple[str, str]
Watch = Callable[[Iterable[Pair], str], Iterable[Pair]]


@dataclass(frozen=True)
class Hit:
    """A document in the order of its score."""

    index: int
    """Its place in the list that was given, counted from 0."""
    score: float
    text: str


class Ranker(Protocol):
    """What orders documents: a cross-encoder (`Reranker`), or late interaction (`LateInteraction`)."""

    @property
    def tally(self) -> Tally: ...
    def scores(self, pairs: Iterable[Pair], *, watch: Watch = in_notebook) -> Scores: ...
    def rank(
        self, query: str, documents: Sequence[str], top: int | None = None, *, watch: Watch = in_notebook
    ) -> list[Hit]: ...


class Reranker:
    """A cross-encoder: a sequence classification head with one output. Thread-safe.

    It opens a folder of `finetune` for the task score, and published rerankers, with or without the files of
    sentence-transformers: cross-encoder/ms-marco-MiniLM-L6-v2, BAAI/bge-reranker-base.
    """

    def __init__(
        self,
        model: AnsweringModel | Path | str,
        *,
        device: Device | None = None,
        dtype: Precision | None = None,
        long: Long | None = None,
        max_length: int | None = None,
    ) -> None:
        """`long`: documents for which the model has no room. By default as the folder says, else in windows.

        In windows, a document gets the score of its best window, and nothing of it is lost. "cut" drops the rest, as
        sentence-transformers does, with a warning; "error" refuses. `max_length`: the maximum tokens of a pair, special
        tokens included; by default that of the folder. For `device` and `dtype` see `encode`.
        """
        if long is not None:
            require_choice("`long`", long, get_args(Long))
        self.engine = Engine(model, device=device, dtype=dtype)
        self.model = self.engine.model
        config = reranker_config(self.model)
        self._activation, self._temperature = config.options.activation, config.temperature
        if max_length is None and isinstance(model, Path | str):
            max_length = folder_limit(model_folder(model), config)
        window = replace(config.window, long=long or config.window.long)
        if max_length:
            window = replace(window, length=min(max_length, self.model.config.encoder.max_length))
        self._task = PairScoring(self.model, replace(config, window=window, options=_LOGITS))
        self._task.reader.long_setting = "`long`"

    @property
    def tally(self) -> Tally:
        """Counts of the pairs so far: how many were read in windows, how many were cut."""
        return self._task.reader.tally

    @property
    def max_length(self) -> int:
        """The maximum tokens of a pair, special tokens included."""
        return self._task.reader.length

    def raw_scores(self, pairs: Iterable[Pair]) -> NDArray[np.float64]:
        """One logit for each pair (query, document): the model's output before the activation, divided by the
        temperature of its calibration. Cut pairs are counted in `tally`, without a warning."""
        return self._outputs(pairs) / self._temperature

    def scores(self, pairs: Iterable[Pair], *, watch: Watch = in_notebook) -> Scores:
        """One score for each pair (query, document), as `CrossEncoder.predict` of sentence-transformers returns it.

        The logit goes through the activation that the folder names: a sigmoid if it names none, and for the published
        ms-marco models the identity, whose scores are logits.
        """
        return self._activated(self._logits(pairs, watch)).astype(np.float32)

    def rank(
        self, query: str, documents: Sequence[str], top: int | None = None, *, watch: Watch = in_notebook
    ) -> list[Hit]:
        """The documents in the order of their scores, the best first; only the best `top` if given.

        Documents with equal scores keep their order. `watch` shows the progress.
        """
        logits = self._logits([(query, text) for text in several(documents, top)], watch)
        scores = self._activated(logits)
        # By logits: far from 0, different logits have equal sigmoids.
        return [Hit(i, float(scores[i]), documents[i]) for i in by_score(logits, top)]

    def _activated(self, logits: NDArray[np.float64]) -> NDArray[np.float64]:
        return np.exp(-np.logaddexp(0, -logits / self._temperature)) if self._activation == "sigmoid" else logits

    def _logits(self, pairs: Iterable[Pair], watch: Watch) -> NDArray[np.float64]:
        require_several(pairs)
        lost, logits = self.tally.cut, self._outputs(watch(pairs, "scoring"))
        if self.tally.cut > lost:
            warn_of_losses(self.tally)
        return logits

    def _outputs(self, pairs: Iterable[Pair]) -> NDArray[np.float64]:
        found = decode_all(self._task, self._forward, map(as_pair, pairs), self.engine.backend, self.engine.around)
        return np.array([logit for _, logit in found], np.float64)

    def _forward(self, batch: Any) -> Any:
        return self.engine.outputs(self._task, batch)


_LOGITS = PairScoring.Options(texts=2, activation="identity")
"""The task returns logits; the activation comes after them."""


def by_score(scores: NDArray[np.floating[Any]], top: int | None = None) -> list[int]:
    """The places of the `top` highest scores, the highest first; equal ones in order."""
    order: list[int] = np.argsort(-scores, kind="stable")[:top].tolist()
    return order


def several(documents: Sequence[str], top: int | None) -> Sequence[str]:
    """The documents, after a check of what the user gives to `rank`."""
    require_several(documents)
    if top is not None and top < 1:
        raise BothwaysError(f"`top` is {top}: expected 1 or more", "out-of-range", top)
    return documents


def as_pair(given: Any) -> Text:
    """A query and a document as an example."""
    pair = tuple(given) if isinstance(given, tuple | list | np.ndarray) else ()
    if len(pair) != 2 or not all(isinstance(text, str) for text in pair):
        raise BothwaysError(f"a pair (query, document) was expected, and {given!r} was given", "bad-input", given)
    return Text(pair)


def reranker_config(model: ModelFacts) -> TaskConfig:
    """The config of a cross-encoder, which bothways or another library wrote."""
    if PairScoring.head not in model.heads or len(model.config.labels) != 1:
        has = ", ".join(model.heads) or "no head"
        raise BothwaysError(
            f"a reranker has a sequence head with one output, and this model has {has}"
            + (f" with {counted(len(model.config.labels), 'label')}" if model.config.labels else "")
            + ": give a cross-encoder, such as `bothways finetune cross-encoder` makes",
            "not-a-reranker",
            has,
        )
    config = task_config(model)
    inferred = config if config.task == PairScoring.name else PairScoring.infer(model)
    assert inferred is not None  # there is one label
    return inferred


def folder_limit(folder: Path, config: TaskConfig) -> int | None:
    """The maximum length that the files of another library give: pairs in training were no longer."""
    return None if config.window.length else max_length_of(folder, folder)
