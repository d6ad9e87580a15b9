"""Structured logs: one JSON object a line, never with a text that a client sent."""

import json
import logging
import traceback
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from threading import Lock
from typing import Any, TextIO


class Log:
    """Writes events to a stream; None: nowhere."""

    def __init__(self, stream: TextIO | None) -> None:
        self._stream, self._lock = stream, Lock()

    def __call__(self, event: str, **values: Any) -> None:
        if self._stream is None:
            return
        now = datetime.now(UTC).isoformat(timespec="milliseconds")
        line = json.dumps({"time": now, "event": event, **values}, ensure_ascii=False, default=str)
        with self._lock:
            self._stream.write(line + "\n")
            self._stream.flush()

    def failure(self, error: BaseException, **values: Any) -> None:
        """An error by its type and place. Its sentence may quote a text."""
        frames = traceback.extract_tb(error.__traceback__)[-3:]
        places = [f"{frame.filename.rpartition('/')[2]}:{frame.lineno}" for frame in frames]
        self("error", type=type(error).__name__, where=places, **values)


class _Forward(logging.Handler):
    """The messages of the HTTP server, without those of exceptions."""

    def __init__(self, log: Log) -> None:
        super().__init__()
        self._log = log

    def emit(self, record: logging.LogRecord) -> None:
        if record.exc_info and record.exc_info[1] is not None:
            self._log.failure(record.exc_info[1])
        elif record.levelno >= logging.WARNING:
            self._log("server", level=record.levelname.lower(), message=record.getMessage())


@contextmanager
def forwarded(log: Log) -> Iterator[None]:
    """Log what the HTTP server says in this block; and of warnings, which may quote texts, only their place."""

    def show(message: Warning | str, category: type[Warning], filename: str, lineno: int, *_: Any, **__: Any) -> None:
        log("warning", type=category.__name__, where=f"{filename.rpartition('/')[2]}:{lineno}")

    server, handler = logging.getLogger("uvicorn"), _Forward(log)
    level, propagate = server.level, server.propagate
    server.addHandler(handler)
    server.setLevel(logging.WARNING)
    server.propagate = False
    with warnings.catch_warnings():
        warnings.showwarning = show
        try:
            yield
        finally:
            server.removeHandler(handler)
            server.setLevel(level)
            server.propagate = propagate


NOWHERE = Log(None)
