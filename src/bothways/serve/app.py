"""The application: all endpoints of the service, as an ASGI app of Starlette."""

from collections.abc import AsyncIterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.middleware.cors import CORSMiddleware
from starlette.requests import Request as HttpRequest
from starlette.responses import HTMLResponse, JSONResponse, PlainTextResponse, RedirectResponse, Response
from starlette.routing import BaseRoute, Mount, Route
from starlette.staticfiles import StaticFiles

from bothways.model.device import Device, Precision
from bothways.serve.answers import FILL, PREDICT, SEARCH
from bothways.serve.embeddings import EMBED, EMBEDDINGS
from bothways.serve.endpoint import Endpoint
from bothways.serve.gate import Gate
from bothways.serve.handler import Handler
from bothways.serve.log import NOWHERE, Log
from bothways.serve.openapi import docs_page, openapi
from bothways.serve.ranking import COHERE, RERANK
from bothways.serve.refusal import SHAPES, RefusedError
from bothways.serve.service import Service
from bothways.serve.settings import ServeSettings

ENDPOINTS: tuple[Endpoint, ...] = (EMBEDDINGS, EMBED, RERANK, *COHERE, PREDICT, FILL, SEARCH)
_READERS = 4
"""Threads that read requests and write answers."""
_PAGE_RULES = "default-src 'self' 'unsafe-inline'; img-src 'self' data:; frame-ancestors 'none'"


def asgi_app(
    models: Mapping[str, Path | str | None] | None = None,
    indexes: Mapping[str, Path | str] | None = None,
    *,
    settings: ServeSettings | None = None,
    device: Device = "auto",
    dtype: Precision = "auto",
) -> Starlette:
    """The service as an ASGI application, for a server of your own; `run_server` has one.

    `models`: folders or names by the names that requests use; None is the included model, under en. `indexes`: those
    of `Index.build`, by name. The models are opened now.
    """
    return app_of(Service.open(models or {"en": None}, indexes, settings, device, dtype))


def app_of(service: Service, log: Log = NOWHERE, page: Path | None = None) -> Starlette:
    """The application of an open service. `page`: a folder of static files for /."""
    readers = ThreadPoolExecutor(_READERS, "bothways-readers")
    endpoints = [one for one in ENDPOINTS if service.indexes or one is not SEARCH]
    shapes = {endpoint.path: endpoint.shape for endpoint in ENDPOINTS}
    routes: list[BaseRoute] = [
        *(Route(one.path, Handler(one, service, readers, log), methods=["POST"]) for one in endpoints),
        *_pages(service, endpoints),
        Mount("/", StaticFiles(directory=page, html=True)) if page else Route("/", lambda _: RedirectResponse("/docs")),
    ]

    @asynccontextmanager
    async def lifespan(_: Starlette) -> AsyncIterator[None]:
        yield
        service.is_stopping = True
        service.close()
        readers.shutdown(wait=False)

    async def not_served(request: HttpRequest, error: Exception) -> Response:
        assert isinstance(error, HTTPException)
        refusal = _unknown(request, error, endpoints)
        shape = SHAPES[shapes.get(request.url.path, "openai")]
        return JSONResponse(shape(refusal), refusal.status, error.headers)

    paths = {route.path for route in routes if isinstance(route, Route)}
    gate = Middleware(Gate, service.metrics, log, service.settings.api_key, paths, shapes)
    app = Starlette(
        routes=routes,
        middleware=[*_cors(service.settings.cors), gate],
        exception_handlers={HTTPException: not_served},
        lifespan=lifespan,
    )
    app.state.service = service
    return app


def _cors(origins: Sequence[str]) -> list[Middleware]:
    """None by default: then no browser gives another site's page an answer."""
    if not origins:
        return []
    exposed = ["x-request-id", "x-truncated-texts", "x-truncated-tokens", "retry-after"]
    return [
        Middleware(
            CORSMiddleware,
            allow_origins=list(origins),
            allow_methods=["GET", "POST"],
            allow_headers=["authorization", "content-type", "x-request-id"],
            expose_headers=exposed,
        )
    ]


def _pages(service: Service, endpoints: Sequence[Endpoint]) -> list[Route]:
    """What is not asked of a model."""
    models = {name: model.abilities for name, model in service.models.items()}
    described = openapi(endpoints, models, bool(service.settings.api_key))

    async def health(_: HttpRequest) -> Response:
        return JSONResponse({"status": "ok"})

    async def ready(_: HttpRequest) -> Response:
        state = "ready" if service.is_ready else "stopping" if service.is_stopping else "failed"
        return JSONResponse({"status": state}, 200 if service.is_ready else 503)

    async def metrics(_: HttpRequest) -> Response:
        waiting = {name: batcher.waiting for name, batcher in service.batchers.items()}
        text = service.metrics.text(waiting, service.is_ready)
        return PlainTextResponse(text, media_type="text/plain; version=0.0.4")

    async def listed(_: HttpRequest) -> Response:
        return JSONResponse({"object": "list", "data": _listed(service)})

    async def model(request: HttpRequest) -> Response:
        found = next((one for one in _listed(service) if one["id"] == request.path_params["name"]), None)
        if found is not None:
            return JSONResponse(found)
        refusal = RefusedError(404, "there is no model of this name: /v1/models lists them", "model_not_found", "model")
        return JSONResponse(SHAPES["openai"](refusal), 404)

    async def schema(_: HttpRequest) -> Response:
        return JSONResponse(described)

    async def docs(_: HttpRequest) -> Response:
        return HTMLResponse(docs_page(described, endpoints), headers={"content-security-policy": _PAGE_RULES})

    return [
        Route("/health", health),
        Route("/ready", ready),
        Route("/metrics", metrics),
        Route("/v1/models", listed),
        Route("/v1/models/{name:path}", model),
        Route("/openapi.json", schema),
        Route("/docs", docs),
    ]


def _listed(service: Service) -> list[dict[str, Any]]:
    """The models as OpenAI lists them, with what each can."""
    return [
        {
            "id": name,
            "object": "model",
            "created": service.created,
            "owned_by": "bothways",
            "abilities": list(model.abilities),
            "max_length": model.max_length or None,
            **({"width": model.width} if "embed" in model.abilities else {}),
            **({"task": model.predictor(None).name} if "predict" in model.abilities else {}),
        }
        for name, model in service.models.items()
    ]


def _unknown(request: HttpRequest, error: HTTPException, endpoints: Sequence[Endpoint]) -> RefusedError:
    """A path or a method that is not served."""
    if error.status_code == 405:
        return RefusedError(405, f"{request.method} is not answered here: see /docs", "wrong-method")
    if error.status_code == 404 and request.url.path == SEARCH.path:
        return RefusedError(404, "this service has no index: start it with `--index`", "index_not_found")
    if error.status_code == 404:
        names = ", ".join(one.path for one in endpoints)
        return RefusedError(404, f"there is nothing at this path: expected {names}, /v1/models, /docs", "no-path")
    return RefusedError(error.status_code, "the request cannot be answered", "http-error")
