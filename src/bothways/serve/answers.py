"""Answers in our own shape: /predict, /fill and /search."""

from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

from bothways.serve.endpoint import Body, Endpoint, long_of, of, usage, with_truncated
from bothways.serve.model import Asked
from bothways.serve.refusal import RefusedError
from bothways.serve.schema import LONG, MODEL, TEXT, TEXTS, TOP, TRUNCATE, fields
from bothways.serve.service import Request, Service, search_work

_PAIR = {"type": "array", "items": TEXT, "minItems": 2}
_QUESTION = fields(("question",), question=TEXT, context=TEXT, options=TEXTS)
_WAYS = ("inputs", "text", "texts", "pairs", "question")


def _inputs(body: Body) -> tuple[list[Any], str, bool]:
    """The inputs of a request, how it gives them, and whether it is one."""
    ways = [name for name in _WAYS if body.get(name) is not None]
    if len(ways) != 1:
        says = f"the body has {' and '.join(ways) or 'no input'}: expected one of {', '.join(_WAYS)}"
        raise RefusedError(422, says, "bad-combination", ways[-1] if ways else "inputs")
    way = ways[0]
    if way != "question" and (body.get("context") is not None or body.get("options") is not None):
        raise RefusedError(
            422, "`context` and `options` belong to a `question`, and there is none", "bad-combination", way
        )
    if way == "question":
        return [{name: body[name] for name in ("question", "context", "options") if body.get(name)}], way, True
    if way == "text" or (way == "inputs" and not isinstance(body[way], list)):
        return [body[way]], way, True
    return body[way], way, False


def _predict(service: Service, body: Body) -> Request:
    model = service.model(body.get("model"), "predict")
    inputs, way, is_one = _inputs(body)
    service.require_texts(inputs, way)
    long = None if body.get("long") is None and body.get("truncate") is None else long_of(body, "error")
    asked = model.predict(inputs, long, of(body, "top", 1), of(body, "probabilities", False))

    def answer(results: Sequence[Any]) -> Any:
        found: dict[str, Any] = {"model": model.name, "task": model.predictor(None).name}
        found |= {"answer": results[0]} if is_one else {"answers": list(results)}
        return with_truncated({**found, "usage": usage(asked)}, asked)

    return service.request(service.batchers[model.name], asked, answer)


def _fill(service: Service, body: Body) -> Request:
    model = service.model(body.get("model"), "fill")
    given = body["text"]
    texts = [given] if isinstance(given, str) else given
    service.require_texts(texts, "text")
    asked = model.fill(texts, of(body, "top", 5))

    def answer(results: Sequence[Any]) -> Any:
        lists = [[asdict(one) for one in each] for each in results]
        found = {"answer": lists[0]} if isinstance(given, str) else {"answers": lists}
        return {"model": model.name, **found, "usage": usage(asked)}

    return service.request(service.batchers[model.name], asked, answer)


def _search(service: Service, body: Body) -> Request:
    name, index = service.index(body.get("index"))
    given = body["query"]
    queries = [given] if isinstance(given, str) else given
    service.require_texts(queries, "query")
    for i, query in enumerate(queries):
        if not query.strip():
            raise RefusedError(422, f"query {i + 1} is empty: there is nothing to search for", "empty", "query")
    ranker = None if body.get("rerank") is None else service.model(body["rerank"], "rerank")
    work = search_work(index, queries, of(body, "k", 10), of(body, "mode", "dense"), ranker, of(body, "depth", 100))

    def answer(results: Sequence[Any]) -> Any:
        hits = [[asdict(one) for one in each] for each in results]
        return {"index": name, **({"hits": hits[0]} if isinstance(given, str) else {"results": hits})}

    return service.request(service.batchers[f"index {name}"], Asked(work, [0] * len(queries)), answer)


PREDICT = Endpoint(
    "/predict",
    "Answers of a fine-tuned model: labels, entities, answers to questions, scores of pairs.",
    "openai",
    fields(
        model=MODEL,
        inputs={
            "anyOf": [
                TEXT,
                _QUESTION,
                {
                    "type": "array",
                    "items": {
                        "anyOf": [TEXT, TEXTS, _QUESTION],
                        "title": ("a text, a list of texts, or a question with its context or options"),
                    },
                    "minItems": 1,
                },
            ],
            "title": "a text, a question with its context or options, or a list of texts, pairs or questions",
        },
        text=TEXT,
        texts=TEXTS,
        pairs={"type": "array", "items": _PAIR, "minItems": 1},
        question=TEXT,
        context=TEXT,
        options={**TEXTS, "description": "Options of a multiple-choice question."},
        top={**TOP, "description": "Number of predictions for each input."},
        probabilities={"type": "boolean", "description": "The probability of every label."},
        truncate=TRUNCATE,
        long={**LONG, "description": f"{LONG['description']} By default as the model's folder says."},
    ),
    {"texts": ["Thank you so much!", "I am so sorry for your loss."], "probabilities": False},
    _predict,
)
FILL = Endpoint(
    "/fill",
    "The most probable words for the masks of texts.",
    "openai",
    fields(
        ("text",),
        text={"anyOf": [TEXT, TEXTS], "title": "a text or a list of texts"},
        model=MODEL,
        top={**TOP, "description": "Number of candidates for each text."},
    ),
    {"text": "Paris is the [MASK] of France.", "top": 3},
    _fill,
)
SEARCH = Endpoint(
    "/search",
    "The documents of an index that fit a query best.",
    "openai",
    fields(
        ("query",),
        query={"anyOf": [TEXT, TEXTS], "title": "a text or a list of texts"},
        index={"type": "string", "description": "Name of the index; by default the first."},
        k={"type": "integer", "minimum": 1, "maximum": 1000, "description": "Number of documents."},
        mode={"type": "string", "enum": ["dense", "bm25", "fused"]},
        rerank={
            "type": "string",
            "description": "Name of a reranker of this service, which reranks the best documents.",
        },
        depth={"type": "integer", "minimum": 1, "maximum": 1000, "description": "Documents that are reranked."},
    ),
    {"query": "a trip to the sea", "k": 3, "mode": "dense"},
    _search,
)
