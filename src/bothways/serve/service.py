"""The models and indexes of a service, each with its queue, and what a request asks of them."""

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from bothways.errors import BothwaysError
from bothways.lazy import imported
from bothways.model.box import lasting_name, model_folder
from bothways.model.device import Device, Precision
from bothways.search.search_options import Mode
from bothways.serve.batching import Batcher, Work
from bothways.serve.metrics import Metrics
from bothways.serve.model import Asked, ServedModel
from bothways.serve.refusal import RefusedError
from bothways.serve.settings import ServeSettings

if TYPE_CHECKING:
    from bothways.search.index import Index

_QUERIES = 32
"""Queries that are searched together."""


@dataclass(frozen=True)
class Request:
    """A request on its way to the models."""

    batcher: Batcher
    asked: Asked
    answer: Callable[[Sequence[Any]], Any]
    """The results of its work → the JSON value of the answer."""


@dataclass
class Service:
    """What answers, by name."""

    models: dict[str, ServedModel]
    indexes: dict[str, "Index"]
    settings: ServeSettings
    metrics: Metrics
    batchers: dict[str, Batcher] = field(default_factory=dict)
    is_stopping: bool = False
    created: int = field(default_factory=lambda: int(time.time()))

    @classmethod
    def open(
        cls,
        models: Mapping[str, Path | str | None],
        indexes: Mapping[str, Path | str] | None = None,
        settings: ServeSettings | None = None,
        device: Device = "auto",
        dtype: Precision = "auto",
    ) -> "Service":
        """Open folders by their names, and let each model compute once, so that the first answer need not wait."""
        settings = settings or ServeSettings()
        opened = {name: ServedModel(name, folder, device, dtype) for name, folder in models.items()}
        for name, model in opened.items():
            if not model.abilities:
                says = f"the model {name} can answer nothing: expected vectors, a masked language model, or a task head"
                raise BothwaysError(says, "no-task-head", name)
        by_folder = {lasting_name(model.folder): model for model in opened.values()}
        found = {name: _open_index(home, by_folder, device, dtype) for name, home in (indexes or {}).items()}
        service = cls(opened, found, settings, Metrics(tuple(opened), tuple(found)))
        for name, model in opened.items():
            budget = settings.batch_tokens or model.budget
            service.batchers[name] = Batcher(name, budget, service.metrics.batch)
        for name in found:
            service.batchers[f"index {name}"] = Batcher(f"index {name}", _QUERIES, service.metrics.batch)
        return service

    @property
    def is_ready(self) -> bool:
        return not self.is_stopping and all(batcher.is_alive for batcher in self.batchers.values())

    def close(self) -> None:
        """Compute what was accepted, and end the threads."""
        for batcher in self.batchers.values():
            batcher.close(self.settings.timeout)

    # ------------------------------------------------------------------ who answers

    def model(self, name: str | None, ability: str) -> ServedModel:
        """The model of this name, or the first one with an ability: embed, rerank, predict, fill."""
        if name is None:
            found = next((model for model in self.models.values() if ability in model.abilities), None)
            if found is None:
                says = f"no model of this service can {ability}: it has {self._known()}"
                raise RefusedError(404, says, "model_not_found", "model")
            return found
        if name not in self.models:
            says = f"there is no model {_short(name)!r}: this service has {self._known()}"
            raise RefusedError(404, says, "model_not_found", "model")
        model = self.models[name]
        if ability not in model.abilities:
            says = f"the model {name} cannot {ability}: it can {', '.join(model.abilities)}"
            raise RefusedError(422, says, "wrong-model", "model")
        return model

    def _known(self) -> str:
        return ", ".join(f"{name} ({', '.join(model.abilities)})" for name, model in self.models.items()) or "none"

    def index(self, name: str | None) -> tuple[str, "Index"]:
        """The index of this name, by default the first."""
        if name is None and self.indexes:
            return next(iter(self.indexes.items()))
        if name is None or name not in self.indexes:
            says = "this service has no index" if name is None else f"there is no index {_short(name)!r}"
            raise RefusedError(404, f"{says}: it has {', '.join(self.indexes) or 'none'}", "index_not_found", "index")
        return name, self.indexes[name]

    # ------------------------------------------------------------------ limits

    def require_texts(self, texts: Sequence[Any], param: str) -> None:
        """Refuse more texts than a request may have."""
        most = self.settings.max_texts
        if len(texts) > most:
            says = f"`{param}` has {len(texts):,} texts, and this service reads at most {most:,} at once"
            raise RefusedError(413, f"{says}: send several requests", "too-many-texts", param)

    def request(self, batcher: Batcher, asked: Asked, answer: Callable[[Sequence[Any]], Any]) -> Request:
        """Work as a request, if it is not too much."""
        tokens, most = sum(asked.work.costs), self.settings.max_tokens
        if batcher.name in self.models and tokens > most:
            says = f"the request has the model read {tokens:,} tokens, and this service reads at most {most:,}"
            raise RefusedError(413, f"{says} at once: send several requests", "too-many-tokens")
        return Request(batcher, asked, answer)


def _open_index(
    home: Path | str, by_folder: Mapping[str | None, ServedModel], device: Device, dtype: Precision
) -> "Index":
    """An index with its model: that of the service, if it serves the folder that made the index."""
    kind: type[Index] = imported("bothways.search.index").Index
    index = kind.open(home, device=device, dtype=dtype)
    same = None if index.model == "" else by_folder.get(lasting_name(model_folder(index.model)))
    if same is not None and same.engine is not None:
        index = kind.open(home, same.engine.model)
    index.search(".", k=1)  # its model is loaded and compared with the one that made it
    return index


def search_work(
    index: "Index", queries: Sequence[str], k: int, mode: Mode, rerank: ServedModel | None, depth: int
) -> Work:
    """The search for some queries."""
    ranker = None if rerank is None else rerank.ranker("window")

    def run(some: Sequence[str]) -> Sequence[Any]:
        return index.search_many(some, k, mode=mode, rerank=ranker, depth=depth)

    key = ("search", k, mode, None if rerank is None else rerank.name, depth)
    return Work(key, run, queries, [1] * len(queries))


def named(given: Sequence[str]) -> dict[str, str]:
    """Folders by name: `name=folder`, or a folder, whose last part is its name.

    >>> named(["reviews=runs/first/model", "runs/tagger", "emotion"])
    {'reviews': 'runs/first/model', 'tagger': 'runs/tagger', 'emotion': 'emotion'}
    """
    found: dict[str, str] = {}
    for one in given:
        name, separator, folder = one.partition("=")
        if not separator or Path(one).exists():
            name, folder = Path(one).resolve().name if Path(one).exists() else Path(one).name, one
        if not name or not folder:
            raise BothwaysError(f"{one!r} is no name=folder", "bad-name", one)
        if name in found:
            says = f"two are named {name!r}: give one another name, as name=folder"
            raise BothwaysError(says, "name-twice", name)
        found[name] = folder
    return found


def require_folders(folders: Mapping[str, str]) -> None:
    """Refuse names of folders that are not there, before any is opened."""
    for folder in folders.values():
        if not model_folder(folder).exists():
            raise BothwaysError(f"there is no folder {folder}", "no-folder", folder)


def _short(name: str) -> str:
    return name if len(name) <= 60 else name[:59] + "…"
