"""Answers the requests of one endpoint, and gives up when time is out or the client left."""

import asyncio
import json
import time
from collections.abc import AsyncIterator, Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager
from typing import Any, TypeVar

from starlette.datastructures import Headers
from starlette.responses import JSONResponse, Response
from starlette.types import Receive, Scope, Send

from bothways.errors import BothwaysError
from bothways.serve.endpoint import Endpoint
from bothways.serve.log import Log
from bothways.serve.refusal import SHAPES, RefusedError, refusal_of
from bothways.serve.schema import check, parse
from bothways.serve.service import Request, Service

T = TypeVar("T")


class ClientGoneError(Exception):
    """The client left before its answer."""


class Handler:
    """An endpoint as an ASGI application."""

    def __init__(self, endpoint: Endpoint, service: Service, readers: ThreadPoolExecutor, log: Log) -> None:
        self.endpoint, self.service, self.settings, self.log = endpoint, service, service.settings, log
        self._readers, self._shape = readers, SHAPES[endpoint.shape]

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        noted = scope.get("state", {}).get("noted", {})
        deadline = time.monotonic() + self.settings.timeout
        try:
            async with self._place():
                response = await self._answer(Headers(scope=scope), receive, deadline, noted)
                await response(scope, receive, send)
        except ClientGoneError:
            self.service.metrics.gone += 1
        except (RefusedError, BothwaysError) as error:
            refusal = refusal_of(error)
            noted["code"] = refusal.code
            await JSONResponse(self._shape(refusal), refusal.status, refusal.headers)(scope, receive, send)

    @asynccontextmanager
    async def _place(self) -> AsyncIterator[None]:
        """A place among the requests in the service; a refusal if there is none."""
        metrics, service = self.service.metrics, self.service
        if service.is_stopping:
            raise RefusedError(503, "the service is stopping: ask another one", "stopping")
        if metrics.in_service >= self.settings.max_requests:
            says = f"the service has {metrics.in_service:,} requests already: try again later"
            raise RefusedError(429, says, "overloaded")
        metrics.in_service += 1
        try:
            yield
        finally:
            metrics.in_service -= 1

    async def _answer(self, headers: Headers, receive: Receive, deadline: float, noted: dict[str, Any]) -> Response:
        body = await self._body(headers, receive, deadline)
        request = await self._apart(lambda: self._asked(body))
        asked = request.asked
        noted |= {"model": request.batcher.name, "texts": len(asked.work.items), "tokens": asked.tokens}
        job = request.batcher.submit(asked.work)
        try:
            results = await self._wait(job.future, receive, deadline)
        finally:
            job.drop()
        noted["waited"] = round(job.waited, 6)
        content = await self._apart(lambda: encoded(request.answer(results)))
        found = Response(content, media_type="application/json")
        if asked.cut:
            found.headers["x-truncated-texts"] = str(len(asked.cut))
            found.headers["x-truncated-tokens"] = str(sum(asked.cut.values()))
        return found

    def _asked(self, body: bytes) -> Request:
        value = parse(body)
        check(value, self.endpoint.schema)
        return self.endpoint.ask(self.service, value)

    async def _apart(self, work: Callable[[], T]) -> T:
        """In a thread: reading a large body would hold up all other clients."""
        return await asyncio.get_running_loop().run_in_executor(self._readers, work)

    # ------------------------------------------------------------------ the client

    async def _body(self, headers: Headers, receive: Receive, deadline: float) -> bytes:
        """The body of the request, if it is not too large and comes in time."""
        most = self.settings.max_body
        if headers.get("content-encoding", "identity") != "identity":
            raise RefusedError(415, "compressed bodies are not read: send plain JSON", "content-encoding")
        length = headers.get("content-length", "")
        if length.isdigit() and int(length) > most:
            raise _too_large(most)
        parts, size = list[bytes](), 0
        while True:
            left = min(self.settings.read_timeout, deadline - time.monotonic())
            try:
                message = await asyncio.wait_for(receive(), max(left, 0))
            except TimeoutError:
                raise RefusedError(408, "the body did not come in time", "slow-client") from None
            if message["type"] == "http.disconnect":
                raise ClientGoneError
            parts.append(message.get("body", b""))
            size += len(parts[-1])
            if size > most:
                raise _too_large(most)
            if not message.get("more_body", False):
                return b"".join(parts)

    async def _wait(self, answer: "asyncio.Future[list[Any]]", receive: Receive, deadline: float) -> list[Any]:
        """The results, unless time is out or the client leaves before."""
        left = asyncio.ensure_future(_until_gone(receive))
        try:
            seconds = max(deadline - time.monotonic(), 0)
            done, _ = await asyncio.wait((answer, left), timeout=seconds, return_when=asyncio.FIRST_COMPLETED)
        finally:
            left.cancel()
        if answer in done:
            return answer.result()
        if left in done:
            raise ClientGoneError
        says = f"the answer took longer than {self.settings.timeout:g} seconds: send fewer texts, or try again later"
        raise RefusedError(504, says, "timeout")


async def _until_gone(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass


def _too_large(most: int) -> RefusedError:
    return RefusedError(413, f"the body is larger than {most:,} bytes: send several requests", "too-large")


def encoded(value: Any) -> bytes:
    """A value as strict JSON."""
    return json.dumps(value, ensure_ascii=False, allow_nan=False, separators=(",", ":")).encode("utf-8")
