"""Small models in a service, asked in this process or over 127.0.0.1."""

import json
import queue
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

from starlette.testclient import TestClient

from bothways.model.checkpoint import save
from bothways.model.config import ModelConfig
from bothways.model.model import Model
from bothways.model.pooling import Pooling
from bothways.model.sentence import Normalize, Sentence
from bothways.serve.app import app_of
from bothways.serve.log import Log
from bothways.serve.model import Asked
from bothways.serve.server import bind, make_server
from bothways.serve.service import Service
from bothways.tasks.folder import with_task
from bothways.text.tokenizer import Tokenizer
from helpers import TINY, config_for, make_loud

SHAPE = replace(TINY, dropout=0.0, attention_dropout=0.0)
TASKS: dict[str, tuple[tuple[str, str], tuple[str, ...]]] = {
    "classify": (("classify", "single"), ("good", "bad", "so-so")),
    "ranker": (("score", ""), ("score",)),
    "tag": (("tag", ""), ("O", "B-x", "I-x")),
    "answer": (("answer", ""), ()),
    "choose": (("choose", ""), ()),
}


def make_folders(home: Path, tokenizer: Tokenizer) -> dict[str, Path]:
    """A folder for each thing that a service can be asked: vectors, masks, and the tasks."""
    base = Model.new(ModelConfig(SHAPE, ("pooler", "masked")), tokenizer, seed=1)
    make_loud(base)
    base.sentence = Sentence(Pooling(("mean",)), settings={"prompts": {"title": "the cat "}})
    save(base, home / "tiny")
    short = Model.new(ModelConfig(SHAPE, (), hf_config={"matryoshka_dimensions": [8, 16, 32]}), tokenizer, seed=2)
    make_loud(short)
    short.sentence = Sentence(Pooling(("cls",)), [Normalize()])
    save(short, home / "short")
    for name, ((task, kind), labels) in TASKS.items():
        start = Model.new(ModelConfig(SHAPE, ("pooler",)), tokenizer, seed=3)
        tuned = with_task(start, config_for(task, kind), labels)
        make_loud(tuned, 4)
        save(tuned, home / name)
    return {name: home / name for name in ("tiny", "short", *TASKS)}


class Lines:
    """A log that tests read: a stream of JSON lines."""

    def __init__(self) -> None:
        self.all: list[str] = []
        self._new: queue.Queue[str] = queue.Queue()
        self.log = Log(self)  # type: ignore[arg-type]

    def write(self, line: str) -> None:
        self.all.append(line)
        self._new.put(line)

    def flush(self) -> None:
        pass

    def next(self, **wanted: Any) -> dict[str, Any]:
        """The next line that has these values; waits for it."""
        while True:
            line = json.loads(self._new.get(timeout=30))
            if all(line.get(key) == value for key, value in wanted.items()):
                return dict(line)


class Held:
    """The computation of a model waits until it is let go."""

    def __init__(self, service: Service, name: str) -> None:
        self.begun, self.go = threading.Semaphore(0), threading.Event()
        self.batches: list[list[Any]] = []
        model = service.models[name]
        self._model, plain = model, model.embed

        def embed(*arguments: Any) -> Asked:
            asked = plain(*arguments)
            run = asked.work.run

            def held(items: Sequence[Any]) -> Sequence[Any]:
                self.batches.append(list(items))
                self.begun.release()
                assert self.go.wait(30)
                return run(items)

            return replace(asked, work=replace(asked.work, run=held))

        model.embed = embed  # type: ignore[method-assign, assignment]

    def wait(self) -> None:
        """Until a batch has begun."""
        assert self.begun.acquire(timeout=30)

    def end(self) -> None:
        self.go.set()
        del self._model.embed


@contextmanager
def held(service: Service, name: str = "tiny") -> Iterator[Held]:
    one = Held(service, name)
    try:
        yield one
    finally:
        one.end()


def client_of(service: Service, lines: Lines | None = None, **settings: Any) -> TestClient:
    """A client in this process. `settings`: other limits than those of the service."""
    service.settings = replace(service.settings, **settings)
    return TestClient(app_of(service, lines.log if lines else Log(None)))


@contextmanager
def listening(service: Service, lines: Lines | None = None) -> Iterator[tuple[str, int, Any]]:
    """The service on a free port of 127.0.0.1: its host, its port and the server."""
    listener = bind("127.0.0.1", 0)
    listener.listen(64)
    server = make_server(service, lines.log if lines else Log(None))
    thread = threading.Thread(target=server.run, kwargs={"sockets": [listener]})
    thread.start()
    try:
        yield (*listener.getsockname(), server)
    finally:
        server.should_exit = True
        thread.join(30)
        listener.close()
        assert not thread.is_alive()
