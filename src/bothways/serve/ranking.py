"""Documents in the order of their relevance: /rerank in TEI's shape, /v1/rerank and /v2/rerank in Cohere's."""

import uuid
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from bothways.predict.rerank import Reranker, by_score
from bothways.serve.endpoint import Body, Endpoint, long_of, of, with_truncated
from bothways.serve.model import Asked, ServedModel
from bothways.serve.refusal import RefusedError
from bothways.serve.schema import LONG, MODEL, TEXT, TEXTS, TRUNCATE, fields
from bothways.serve.service import Request, Service

Scores = NDArray[np.float64]
_DOCUMENT = fields(("text",), text=TEXT)


def _asked(service: Service, body: Body, documents: list[str], param: str) -> tuple[ServedModel, Asked]:
    model = service.model(body.get("model"), "rerank")
    service.require_texts(documents, param)
    if not body["query"].strip():
        raise RefusedError(422, "the query is empty: there is nothing to rank by", "empty", "query")
    return model, model.rerank(body["query"], documents, long_of(body, "window"))


def _sigmoid(logits: Scores) -> Scores:
    found: Scores = np.exp(-np.logaddexp(0, -logits))
    return found


def _scores(model: ServedModel, results: Sequence[Any], is_raw: bool) -> tuple[list[int], list[float]]:
    """The places of the documents, the best first, and all scores. Late interaction has no logits."""
    logits = np.array(results, np.float64)
    is_logit = isinstance(model.ranker("window"), Reranker)
    return by_score(logits), (logits if is_raw or not is_logit else _sigmoid(logits)).tolist()


def _rerank(service: Service, body: Body) -> Request:
    texts = body["texts"]
    model, asked = _asked(service, body, texts, "texts")
    has_text = of(body, "return_text", False)

    def answer(results: Sequence[Any]) -> Any:
        order, scores = _scores(model, results, of(body, "raw_scores", False))
        return [{"index": i, "score": scores[i], **({"text": texts[i]} if has_text else {})} for i in order]

    return service.request(service.batchers[model.name], asked, answer)


def _cohere(service: Service, body: Body) -> Request:
    documents = [one if isinstance(one, str) else one["text"] for one in body["documents"]]
    model, asked = _asked(service, body, documents, "documents")
    has_text = of(body, "return_documents", False)

    def answer(results: Sequence[Any]) -> Any:
        order, scores = _scores(model, results, False)
        rows = [
            {"index": i, "relevance_score": scores[i], **({"document": {"text": documents[i]}} if has_text else {})}
            for i in order[: body.get("top_n")]
        ]
        meta = {"api_version": {"version": "1"}, "billed_units": {"search_units": 0}}
        return with_truncated({"id": str(uuid.uuid4()), "results": rows, "meta": meta}, asked)

    return service.request(service.batchers[model.name], asked, answer)


_QUERY = "Where do owls sleep?"
_DOCUMENTS = ["By day owls sleep in hollow trees.", "The train leaves at nine."]
RERANK = Endpoint(
    "/rerank",
    "Texts in the order of their relevance to a query, in the shape of text-embeddings-inference (TEI).",
    "tei",
    fields(
        ("query", "texts"),
        query=TEXT,
        texts=TEXTS,
        model=MODEL,
        raw_scores={"type": "boolean", "description": "Logits instead of scores between 0 and 1."},
        return_text={"type": "boolean", "description": "The texts beside their scores."},
        truncate=TRUNCATE,
        truncation_direction={"type": "string", "enum": ["Right", "right"]},
        long=LONG,
    ),
    {"query": _QUERY, "texts": _DOCUMENTS, "return_text": True},
    _rerank,
)
COHERE = [
    Endpoint(
        path,
        "Documents in the order of their relevance to a query, in the shape of Cohere.",
        "cohere",
        fields(
            ("query", "documents"),
            query=TEXT,
            documents={
                "anyOf": [TEXTS, {"type": "array", "items": _DOCUMENT, "minItems": 1}],
                "title": 'a list of texts, or of objects such as {"text": "…"}',
            },
            model=MODEL,
            top_n={"type": "integer", "minimum": 1},
            return_documents={"type": "boolean", "description": "The documents beside their scores."},
            truncate=TRUNCATE,
            long=LONG,
        ),
        {"query": _QUERY, "documents": _DOCUMENTS, "top_n": 1, "return_documents": True},
        _cohere,
    )
    for path in ("/v1/rerank", "/v2/rerank")
]
