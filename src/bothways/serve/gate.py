"""What every request passes: its id, the API key, its line in the log, its count in the metrics."""

import hmac
import re
import time
import uuid
from collections.abc import Collection

from starlette.datastructures import Headers, MutableHeaders
from starlette.responses import JSONResponse
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from bothways.serve.log import Log
from bothways.serve.metrics import Metrics
from bothways.serve.refusal import SHAPES, RefusedError, refusal_of

OPEN_PATHS = ("/health", "/ready", "/docs", "/openapi.json", "/")
"""They need no key, nor do the files of a page: none of them tells an answer of a model."""
_ID = re.compile(r"[\w.-]{1,64}", re.ASCII)


class Gate:
    """The outermost part of the application."""

    def __init__(
        self, app: ASGIApp, metrics: Metrics, log: Log, api_key: str, paths: Collection[str], shapes: dict[str, str]
    ) -> None:
        self.app, self.metrics, self.log, self.paths, self.shapes = app, metrics, log, paths, shapes
        self._key = api_key.encode()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        started, seen, headers = time.monotonic(), dict[str, int](), Headers(scope=scope)
        given = headers.get("x-request-id", "")
        request_id = given if _ID.fullmatch(given) else uuid.uuid4().hex
        noted: dict[str, object] = {}
        scope["state"] = {**scope.get("state", {}), "noted": noted}

        async def answer(message: Message) -> None:
            if message["type"] == "http.response.start":
                seen["status"] = message["status"]
                MutableHeaders(scope=message)["x-request-id"] = request_id
            await send(message)

        path = scope["path"] if scope["path"] in self.paths else "other"
        try:
            await self._admit(scope, receive, answer, headers)
        except Exception as error:
            self.log.failure(error, id=request_id, path=path)
            if "status" in seen:
                raise
            await self.refused(refusal_of(error), scope)(scope, receive, answer)
        finally:
            seconds, status = time.monotonic() - started, seen.get("status", 499)  # as nginx counts clients that left
            self.metrics.request(path, status, seconds)
            line = {"method": scope["method"], "path": path, "status": status, "seconds": round(seconds, 6)}
            self.log("request", id=request_id, **line, **noted)

    async def _admit(self, scope: Scope, receive: Receive, send: Send, headers: Headers) -> None:
        if self._key and self._is_guarded(scope["path"]) and not self._has_key(headers):
            says = "the API key is missing or wrong: send it as `Authorization: Bearer KEY`"
            await self.refused(RefusedError(401, says, "invalid_api_key"), scope)(scope, receive, send)
            return
        await self.app(scope, receive, send)

    def _is_guarded(self, path: str) -> bool:
        return path.startswith(("/v1/", "/v2/")) or (path in self.paths and path not in OPEN_PATHS)

    def _has_key(self, headers: Headers) -> bool:
        kind, _, key = headers.get("authorization", "").partition(" ")
        # In constant time: how long it takes must not tell how much of a key is right.
        return hmac.compare_digest(key.strip().encode("latin-1"), self._key) and kind.lower() == "bearer"

    def refused(self, refusal: RefusedError, scope: Scope) -> JSONResponse:
        """A refusal in the shape of the path's API."""
        shape = SHAPES[self.shapes.get(scope["path"], "openai")]
        return JSONResponse(shape(refusal), refusal.status, refusal.headers)
