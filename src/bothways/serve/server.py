"""The HTTP server: uvicorn with time-outs for slow clients, and a stop that answers what was accepted."""

import asyncio
import signal
import socket
import sys
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

import uvicorn
from uvicorn.protocols.http.h11_impl import H11Protocol

from bothways.errors import BothwaysError
from bothways.model.device import Device, Precision
from bothways.serve.app import app_of
from bothways.serve.log import NOWHERE, Log, forwarded
from bothways.serve.service import Service
from bothways.serve.settings import ServeSettings

_LOOPBACK = ("127.", "::1", "localhost")
_KEEP_ALIVE = 30
"""Seconds that a connection without a request is kept."""


def timed_protocol(seconds: float) -> type[H11Protocol]:
    """uvicorn's protocol, which waits for ever for the head of a request, and for a client that does not read.

    Connections are ended that say no whole head, or read nothing of their answer, for so many seconds.
    """

    class TimedProtocol(H11Protocol):
        _head: asyncio.TimerHandle | None = None
        _write: asyncio.TimerHandle | None = None

        def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
            super().connection_made(transport)
            self._watch_head()

        def data_received(self, data: bytes) -> None:
            super().data_received(data)
            self._watch_head()

        def on_response_complete(self) -> None:
            super().on_response_complete()
            self._watch_head()

        def connection_lost(self, exc: Exception | None) -> None:
            _cancel(self._head, self._write)
            super().connection_lost(exc)

        def pause_writing(self) -> None:
            super().pause_writing()
            self._write = self._write or self.loop.call_later(seconds, self.transport.abort)

        def resume_writing(self) -> None:
            super().resume_writing()
            _cancel(self._write)
            self._write = None

        def _watch_head(self) -> None:
            """A timer runs while a head is awaited, but not between requests: then uvicorn has its own."""
            is_awaited = self.cycle is None or self.cycle.response_complete
            if not is_awaited or self.timeout_keep_alive_task is not None:
                _cancel(self._head)
                self._head = None
            elif self._head is None:
                self._head = self.loop.call_later(seconds, self.transport.abort)

    return TimedProtocol


def _cancel(*timers: asyncio.TimerHandle | None) -> None:
    for timer in timers:
        if timer is not None:
            timer.cancel()


class Server(uvicorn.Server):
    """Tells the service when it is asked to stop."""

    def __init__(self, config: uvicorn.Config, service: Service) -> None:
        super().__init__(config)
        self._service = service

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        # New requests on open connections are refused; those that were accepted are answered.
        self._service.is_stopping = True
        await super().shutdown(sockets)


def make_server(service: Service, log: Log = NOWHERE, page: Path | None = None) -> Server:
    """uvicorn for a service."""
    settings = service.settings
    config = uvicorn.Config(
        app_of(service, log, page),
        http=timed_protocol(settings.read_timeout),
        ws="none",
        lifespan="on",
        log_config=None,
        access_log=False,
        server_header=False,
        timeout_keep_alive=_KEEP_ALIVE,
        timeout_graceful_shutdown=int(settings.timeout + settings.read_timeout) + 1,
    )
    return Server(config, service)


def run_server(
    models: Mapping[str, Path | str | None] | None = None,
    indexes: Mapping[str, Path | str] | None = None,
    *,
    host: str = "127.0.0.1",
    port: int = 8000,
    settings: ServeSettings | None = None,
    device: Device = "auto",
    dtype: Precision = "auto",
    page: Path | None = None,
    log: Log = NOWHERE,
    on_start: Callable[[str, Service], None] = lambda *_: None,
) -> None:
    """Open models and answer over HTTP until SIGTERM or Ctrl-C; what was accepted by then is answered.

    For the arguments see `asgi_app`. `port` 0 is a free one. `on_start` gets the address and the service.
    """
    settings = settings or ServeSettings()
    listener = bind(host, port)
    try:
        service = Service.open(models or {"en": None}, indexes, settings, device, dtype)
        serve_on(listener, service, log, page, on_start)
    finally:
        listener.close()


def serve_on(
    listener: socket.socket,
    service: Service,
    log: Log,
    page: Path | None,
    on_start: Callable[[str, Service], None],
) -> None:
    """Serve on a bound socket until a signal comes."""
    settings = service.settings
    host, port = listener.getsockname()[:2]
    address = f"http://{f'[{host}]' if ':' in host else host}:{port}"
    log("start", address=address, models=list(service.models), indexes=list(service.indexes))
    if not host.startswith(_LOOPBACK) and not settings.api_key:
        log("open", message="anyone who reaches this address can ask: there is no API key", address=address)
    listener.listen(2_048)
    on_start(address, service)
    with forwarded(log), _quiet_signals():
        make_server(service, log, page).run(sockets=[listener])
    log("stop")


@contextmanager
def _quiet_signals() -> Iterator[None]:
    """uvicorn sends itself the signal again once it has stopped: here nothing is left to do."""
    if threading.current_thread() is not threading.main_thread():  # which alone may handle signals
        yield
        return
    before = {one: signal.signal(one, lambda *_: None) for one in (signal.SIGTERM, signal.SIGINT)}
    try:
        yield
    finally:
        for one, handler in before.items():
            signal.signal(one, handler)


def bind(host: str, port: int) -> socket.socket:
    """A socket at an address. Taken ports are an error for a person."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    # asyncio sets TCP_NODELAY only if the protocol is named. Without it an answer, whose head and body are two writes,
    # waits 40 ms for the client's delayed acknowledgement.
    made = socket.socket(family, socket.SOCK_STREAM, socket.IPPROTO_TCP)
    if sys.platform != "win32":
        made.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        made.bind((host, port))
    except OSError as error:
        made.close()
        says = (
            f"{host}, port {port}, cannot be listened on ({error.strerror or error}): choose another `host` or `port`"
        )
        raise BothwaysError(says, "no-address", (host, port)) from error
    return made
