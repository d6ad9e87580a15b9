"""Vectors of texts: /v1/embeddings in OpenAI's shape, and /embed in that of TEI (text-embeddings-inference)."""

import base64
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from bothways.serve.endpoint import Body, Endpoint, long_of, of, usage, with_truncated
from bothways.serve.model import ServedModel
from bothways.serve.refusal import RefusedError
from bothways.serve.schema import IDS, LONG, MODEL, TEXT, TEXTS, TRUNCATE, fields
from bothways.serve.service import Request, Service

Vectors = NDArray[np.float32]
_NORMALIZE = {"type": "boolean", "description": "Normalize vectors to length 1; true by default."}
_PROMPT_NAME = {"type": "string", "description": "Name of one of the folder's prompts, which is put before each text."}
_DIMENSIONS = {
    "type": "integer",
    "minimum": 1,
    "description": "Number of dimensions, if the vectors can be truncated (Matryoshka).",
}
_INPUT = {
    "anyOf": [TEXT, TEXTS, IDS, {"type": "array", "items": IDS, "minItems": 1}],
    "title": "a text, a list of texts, token ids or a list of token ids",
    "description": "Token ids are those of the model's own tokenizer, without special tokens.",
}


def _texts(given: Any, model: ServedModel, service: Service, param: str) -> list[str]:
    """The texts of an input, those of token ids too."""
    several = given if isinstance(given, list) and not isinstance(given[0], int) else [given]
    service.require_texts(several, param)
    texts = [one if isinstance(one, str) else model.text_of(one, i) for i, one in enumerate(several)]
    for i, text in enumerate(texts):
        if not text.strip():
            raise RefusedError(422, f"text {i + 1} is empty: every text needs at least one character", "empty", param)
    return texts


def finished(vectors: Vectors, normalize: bool, dimensions: int | None) -> Vectors:
    """Vectors of the wanted length, in numbers and in size. A vector of zeros stays as it is."""
    if dimensions is not None:
        vectors = vectors[:, :dimensions]
    if not normalize:
        return vectors
    lengths = np.linalg.norm(vectors.astype(np.float64), axis=1, keepdims=True)
    found: Vectors = (vectors / np.maximum(lengths, np.finfo(np.float32).tiny)).astype(np.float32)
    return found


def _dimensions(model: ServedModel, wanted: int | None) -> int | None:
    """The length of the vectors, if the model can cut them to it."""
    if wanted is None or wanted == model.width:
        return None
    can = model.dimensions
    if can is None:
        says = (
            f"the model {model.name} was not trained to have its vectors cut: leave `dimensions` out, or {model.width}"
        )
        raise RefusedError(400, says, "no-dimensions", "dimensions")
    if wanted > model.width or (can and wanted not in can):
        says = f"`dimensions` is {wanted}, and {model.name} has {', '.join(map(str, can)) or f'up to {model.width}'}"
        raise RefusedError(400, says, "out-of-range", "dimensions")
    return wanted


def _embeddings(service: Service, body: Body) -> Request:
    model = service.model(body["model"], "embed")
    texts, size = _texts(body["input"], model, service, "input"), _dimensions(model, body.get("dimensions"))
    asked = model.embed(texts, long_of(body, "error"), body.get("prompt_name"))
    is_base64, normalize = body.get("encoding_format") == "base64", of(body, "normalize", True)

    def answer(results: Sequence[Any]) -> Any:
        vectors = finished(np.stack(results), normalize, size)
        rows: list[Any] = list(map(as_base64, vectors)) if is_base64 else vectors.tolist()
        data = [{"object": "embedding", "index": i, "embedding": row} for i, row in enumerate(rows)]
        found = {"object": "list", "data": data, "model": model.name, "usage": usage(asked)}
        return with_truncated(found, asked)

    return service.request(service.batchers[model.name], asked, answer)


def as_base64(vector: NDArray[np.float32]) -> str:
    """The numbers as little-endian float32."""
    return base64.b64encode(vector.astype("<f4").tobytes()).decode("ascii")


def _embed(service: Service, body: Body) -> Request:
    model = service.model(body.get("model"), "embed")
    size = _dimensions(model, body.get("dimensions"))
    texts = _texts(body["inputs"], model, service, "inputs")
    asked = model.embed(texts, long_of(body, "error"), body.get("prompt_name"))
    normalize = of(body, "normalize", True)

    def answer(results: Sequence[Any]) -> Any:
        return finished(np.stack(results), normalize, size).tolist()

    return service.request(service.batchers[model.name], asked, answer)


EMBEDDINGS = Endpoint(
    "/v1/embeddings",
    "Vectors of texts, in the shape of OpenAI.",
    "openai",
    fields(
        ("input", "model"),
        input=_INPUT,
        model={**MODEL, "description": "Name of the model."},
        encoding_format={"type": "string", "enum": ["float", "base64"]},
        dimensions=_DIMENSIONS,
        user={"type": "string", "description": "Ignored."},
        prompt_name=_PROMPT_NAME,
        normalize=_NORMALIZE,
        truncate=TRUNCATE,
        long=LONG,
    ),
    {"model": "en", "input": ["The cat sleeps.", "A kitten is asleep."]},
    _embeddings,
)
EMBED = Endpoint(
    "/embed",
    "Vectors of texts, in the shape of text-embeddings-inference (TEI): a list of lists of numbers.",
    "tei",
    fields(
        ("inputs",),
        inputs={**_INPUT},
        model=MODEL,
        truncate=TRUNCATE,
        truncation_direction={"type": "string", "enum": ["Right", "right"]},
        normalize=_NORMALIZE,
        prompt_name=_PROMPT_NAME,
        dimensions=_DIMENSIONS,
        long=LONG,
    ),
    {"inputs": ["The cat sleeps.", "A kitten is asleep."], "truncate": True},
    _embed,
)
