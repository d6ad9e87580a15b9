"""The service: its answers are those of direct calls, in the shapes of the APIs that it speaks."""

import base64
import json
import warnings
from collections.abc import Iterator
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import numpy as np
import openai
import pytest
from starlette.testclient import TestClient

import bothways
from bothways.predict.rerank import Reranker
from bothways.serve.app import ENDPOINTS
from bothways.serve.model import READS
from bothways.serve.openapi import openapi
from bothways.serve.schema import check
from bothways.serve.service import Service, named, require_folders
from bothways.serve.settings import ServeSettings, key_from
from bothways.tasks.registry import TASKS as REGISTERED
from bothways.text.tokenizer import Tokenizer
from helpers import refused
from helpers.serve import Lines, client_of, held, listening, make_folders

TEXTS = ["the cat sleeps in the house .", "北京 is the capital of china .", "unbelievable !", "a dog walks"]
LONG = "the black cat walks " * 30


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory, tokenizer: Tokenizer) -> dict[str, Path]:
    return make_folders(tmp_path_factory.mktemp("served"), tokenizer)


@pytest.fixture(scope="module")
def index(tmp_path_factory: pytest.TempPathFactory, folders: dict[str, Path]) -> Path:
    home = tmp_path_factory.mktemp("index")
    (home / "corpus.txt").write_text("\n".join(TEXTS), encoding="utf-8")
    bothways.Index.build(home / "corpus.txt", home / "index", folders["tiny"], device="cpu")
    return home / "index"


@pytest.fixture(scope="module")
def opened(folders: dict[str, Path], index: Path) -> Iterator[Service]:
    service = Service.open(dict(folders), {"cats": index}, device="cpu")
    yield service
    service.close()


@pytest.fixture
def service(opened: Service) -> Iterator[Service]:
    """With the usual limits before and after."""
    opened.settings = ServeSettings()
    yield opened
    opened.settings = ServeSettings()
    assert opened.metrics.in_service == 0, "a place was not given back"


@pytest.fixture
def own(folders: dict[str, Path]) -> Iterator[Service]:
    """A service that a test may end."""
    service = Service.open({"tiny": folders["tiny"]}, device="cpu")
    yield service
    service.close()
    assert service.metrics.in_service == 0, "a place was not given back"


@pytest.fixture
def client(service: Service) -> TestClient:
    return client_of(service)


def of_length_1(vectors: Any) -> Any:
    return vectors / np.linalg.norm(vectors, axis=1, keepdims=True)


def close(found: Any, expected: Any) -> None:
    assert np.shape(found) == np.shape(expected)
    assert np.abs(np.asarray(found) - np.asarray(expected)).max() < 2e-6


# ---------------------------------------------------------------------- vectors


def test_embeddings_are_those_of_encode(client: TestClient, folders: dict[str, Path], tokenizer: Tokenizer) -> None:
    asked = {"model": "tiny", "input": TEXTS}
    answer = client.post("/v1/embeddings", json={**asked, "normalize": False}).json()
    direct = bothways.encode(TEXTS, folders["tiny"], device="cpu")
    close([row["embedding"] for row in answer["data"]], direct)
    assert [row["index"] for row in answer["data"]] == [0, 1, 2, 3]
    assert answer["usage"] == dict.fromkeys(("prompt_tokens", "total_tokens"), sum(len(tokenizer(t)) for t in TEXTS))
    whole = client.post("/v1/embeddings", json={**asked, "encoding_format": "base64"}).json()
    raw = [np.frombuffer(base64.b64decode(row["embedding"]), "<f4") for row in whole["data"]]
    close(raw, of_length_1(direct))
    one = client.post("/v1/embeddings", json={"model": "tiny", "input": TEXTS[0], "user": None}).json()
    close([one["data"][0]["embedding"]], of_length_1(direct[:1]))


def test_prompts_windows_and_cuts_are_those_of_encode(client: TestClient, folders: dict[str, Path]) -> None:
    def vectors(**more: Any) -> Any:
        body = {"inputs": [LONG, TEXTS[0]], "model": "tiny", "normalize": False, **more}
        return client.post("/embed", json=body).json()

    def direct(**more: Any) -> Any:
        with warnings.catch_warnings(action="ignore"):
            return bothways.encode([LONG, TEXTS[0]], folders["tiny"], device="cpu", **more)

    close(vectors(long="window"), direct(long="window"))
    close(vectors(truncate=True), direct(long="cut"))
    close(vectors(truncate=True, prompt_name="title"), direct(long="cut", prompt_name="title"))
    with pytest.raises(AssertionError):
        close(vectors(truncate=True), direct(long="window"))


def test_token_ids_are_texts(client: TestClient, tokenizer: Tokenizer, folders: dict[str, Path]) -> None:
    ids = [tokenizer.raw_batch([text], specials=False)[0].ids for text in TEXTS]
    asked = {"model": "tiny", "normalize": False}
    several = client.post("/v1/embeddings", json={**asked, "input": ids}).json()
    direct = bothways.encode(TEXTS, folders["tiny"], device="cpu")
    close([row["embedding"] for row in several["data"]], direct)
    one = client.post("/v1/embeddings", json={**asked, "input": ids[2]}).json()
    close([row["embedding"] for row in one["data"]], direct[2:3])
    assert client.post("/v1/embeddings", json={**asked, "input": [100_000]}).status_code == 422
    # ##ing alone is written as a word, which is other tokens.
    answer = client.post("/v1/embeddings", json={**asked, "input": [tokenizer.id("##ing")]})
    assert (answer.status_code, answer.json()["error"]["code"]) == (422, "unknown-token")


def test_dimensions_where_the_model_was_trained_for_them(client: TestClient, folders: dict[str, Path]) -> None:
    direct = bothways.encode(TEXTS, folders["short"], device="cpu")
    asked = {"model": "short", "input": TEXTS}
    answer = client.post("/v1/embeddings", json={**asked, "dimensions": 8}).json()
    close([row["embedding"] for row in answer["data"]], of_length_1(direct[:, :8]))
    for model, size, code in (
        ("short", 9, "out-of-range"),
        ("short", 64, "out-of-range"),
        ("tiny", 8, "no-dimensions"),
    ):
        answer = client.post("/v1/embeddings", json={**asked, "model": model, "dimensions": size})
        assert (answer.status_code, answer.json()["error"]["code"]) == (400, code)
    assert client.post("/v1/embeddings", json={**asked, "model": "tiny", "dimensions": 32}).status_code == 200


def test_the_lengths_of_our_own_training_are_known(folders: dict[str, Path], tmp_path: Path) -> None:
    from bothways.serve.model import ServedModel
    from bothways.tasks.folder import with_task
    from bothways.tasks.registry import new_config

    tuned = with_task(bothways.load(folders["tiny"]), new_config("embed", matryoshka=(8, 32)))
    bothways.save(tuned, tmp_path / "tuned")
    assert ServedModel("tuned", tmp_path / "tuned", "cpu").dimensions == (8, 32)


def test_the_openai_client(own: Service, folders: dict[str, Path], loopback: None) -> None:
    direct = of_length_1(bothways.encode(TEXTS, folders["tiny"], device="cpu"))
    own.settings = ServeSettings(api_key="the-key")
    with listening(own) as (host, port, _):
        there = openai.OpenAI(base_url=f"http://{host}:{port}/v1", api_key="the-key", max_retries=0)
        found = there.embeddings.create(model="tiny", input=TEXTS)
        close([row.embedding for row in found.data], direct)  # as base64, without being told
        found = there.embeddings.create(model="tiny", input=TEXTS[0], encoding_format="float")
        close([row.embedding for row in found.data], direct[:1])
        assert [model.id for model in there.models.list()] == ["tiny"]
        assert there.models.retrieve("tiny").id == "tiny"
        with pytest.raises(openai.NotFoundError) as missing:
            there.embeddings.create(model="text-embedding-3-small", input="a")
        assert missing.value.code == "model_not_found"
        with pytest.raises(openai.BadRequestError) as wrong:
            there.embeddings.create(model="tiny", input="a", dimensions=8)
        assert (wrong.value.code, wrong.value.param) == ("no-dimensions", "dimensions")
        with pytest.raises(openai.AuthenticationError):
            there.with_options(api_key="another").embeddings.create(model="tiny", input="a")
        there.close()


# ---------------------------------------------------------------------- ranking, answers, search


def test_reranking_is_that_of_the_reranker(client: TestClient, folders: dict[str, Path]) -> None:
    ranker = Reranker(folders["ranker"], device="cpu")
    hits = ranker.rank(TEXTS[0], TEXTS)
    rows = client.post("/rerank", json={"query": TEXTS[0], "texts": TEXTS, "return_text": True}).json()
    assert [(row["index"], row["text"]) for row in rows] == [(hit.index, hit.text) for hit in hits]
    close([row["score"] for row in rows], [hit.score for hit in hits])
    raw = client.post("/rerank", json={"query": TEXTS[0], "texts": TEXTS, "raw_scores": True}).json()
    close([row["score"] for row in raw], np.sort(ranker.raw_scores([(TEXTS[0], text) for text in TEXTS]))[::-1])
    assert "text" not in raw[0]
    for path in ("/v1/rerank", "/v2/rerank"):
        documents = [{"text": text} for text in TEXTS]
        body = {"query": TEXTS[0], "documents": documents, "top_n": 2, "return_documents": True}
        answer = client.post(path, json=body).json()
        assert [row["index"] for row in answer["results"]] == [hit.index for hit in hits[:2]]
        assert answer["results"][0]["document"] == {"text": hits[0].text}
        close([row["relevance_score"] for row in answer["results"]], [hit.score for hit in hits[:2]])


def test_long_documents_are_read_in_windows(client: TestClient, folders: dict[str, Path]) -> None:
    documents = [LONG, TEXTS[1]]
    for more, long in (({}, "window"), ({"truncate": True}, "cut")):
        ranker = Reranker(folders["ranker"], device="cpu", long=long)  # type: ignore[arg-type]
        with warnings.catch_warnings(action="ignore"):
            hits = ranker.rank(TEXTS[0], documents)
        answer = client.post("/rerank", json={"query": TEXTS[0], "texts": documents, **more})
        close([row["score"] for row in answer.json()], [hit.score for hit in hits])
        assert ("x-truncated-tokens" in answer.headers) == (long == "cut")
    answer = client.post("/rerank", json={"query": TEXTS[0], "texts": documents, "truncate": False})
    assert (answer.status_code, answer.json()["error_type"]) == (413, "Validation")


CHOICE = {"question": "the cat", "options": ["sleeps", "a dog runs"], "context": TEXTS[0]}
INPUTS: list[tuple[str, dict[str, Any], Any]] = [
    ("classify", {"texts": TEXTS}, TEXTS),
    ("classify", {"inputs": TEXTS}, TEXTS),
    ("classify", {"text": TEXTS[0]}, TEXTS[0]),
    ("classify", {"inputs": LONG}, LONG),
    ("ranker", {"pairs": [TEXTS[:2], TEXTS[2:]]}, [tuple(TEXTS[:2]), tuple(TEXTS[2:])]),
    ("tag", {"texts": TEXTS}, TEXTS),
    ("tag", {"inputs": [["the", "cat", "sleeps"], "a dog"]}, [("the", "cat", "sleeps"), "a dog"]),
    ("answer", {"question": "the cat ?", "context": TEXTS[0]}, {"question": "the cat ?", "context": TEXTS[0]}),
    ("answer", {"inputs": [{"question": "who ?", "context": LONG}]}, [{"question": "who ?", "context": LONG}]),
    ("choose", CHOICE, CHOICE),
]


def same(found: Any, expected: Any) -> None:
    """Equal, with numbers to six digits."""
    if isinstance(expected, dict):
        assert found.keys() == expected.keys()
        for key in expected:
            same(found[key], expected[key])
    elif isinstance(expected, list | tuple):
        assert len(found) == len(expected)
        for one, other in zip(found, expected, strict=True):
            same(one, other)
    elif isinstance(expected, float):
        assert found == pytest.approx(expected, rel=1e-5, abs=1e-6)
    else:
        assert found == expected


@pytest.mark.parametrize(("model", "body", "inputs"), INPUTS, ids=lambda value: str(value)[:30])
def test_predictions_are_those_of_the_predictor(
    client: TestClient, folders: dict[str, Path], model: str, body: dict[str, Any], inputs: Any
) -> None:
    answer = client.post("/predict", json={"model": model, **body}).json()
    direct = bothways.Predictor.load(folders[model], device="cpu")(inputs)
    same(answer["answers" if isinstance(inputs, list) else "answer"], direct)
    assert answer["usage"]["total_tokens"] > 0


def test_probabilities_and_the_best_answers(client: TestClient, folders: dict[str, Path]) -> None:
    predictor = bothways.Predictor.load(folders["classify"], device="cpu")
    answer = client.post("/predict", json={"model": "classify", "text": TEXTS[0], "probabilities": True}).json()
    same(answer["answer"], predictor(TEXTS[0], top=3))
    assert sum(one["score"] for one in answer["answer"]) == pytest.approx(1)
    answer = client.post("/predict", json={"model": "classify", "texts": TEXTS, "top": 2}).json()
    same(answer["answers"], predictor(TEXTS, top=2))
    answer = client.post("/predict", json={"model": "answer", "question": "a", "context": "b", "probabilities": True})
    assert (answer.status_code, answer.json()["error"]["code"]) == (422, "no-probabilities")


def test_masks_are_filled_as_by_fill(client: TestClient, folders: dict[str, Path]) -> None:
    texts = ["the [MASK] sleeps .", "the [MASK] [MASK] in paris ."]
    answer = client.post("/fill", json={"text": texts, "top": 3}).json()
    direct = bothways.fill(texts, folders["tiny"], top=3, device="cpu")
    same(answer["answers"], [[{**asdict(one)} for one in each] for each in direct])
    one = client.post("/fill", json={"text": texts[0]}).json()
    same(one["answer"], [asdict(each) for each in bothways.fill(texts[0], folders["tiny"], device="cpu")])


@pytest.mark.parametrize("mode", ["dense", "bm25", "fused"])
def test_search_is_that_of_the_index(client: TestClient, folders: dict[str, Path], index: Path, mode: Any) -> None:
    opened = bothways.Index.open(index, device="cpu")
    answer = client.post("/search", json={"query": "the cat", "k": 2, "mode": mode}).json()
    same(answer["hits"], [asdict(hit) for hit in opened.search("the cat", 2, mode=mode)])
    ranker = Reranker(folders["ranker"], device="cpu")
    several = client.post("/search", json={"query": ["the cat", "北京"], "mode": mode, "rerank": "ranker"}).json()
    direct = opened.search_many(["the cat", "北京"], mode=mode, rerank=ranker)
    same(several["results"], [[{**asdict(hit), "score": float(hit.score)} for hit in each] for each in direct])


def test_an_index_and_a_model_of_one_folder_share_the_weights(service: Service) -> None:
    engine = service.models["tiny"].engine
    assert engine is not None
    assert service.indexes["cats"]._model is engine.model


# ---------------------------------------------------------------------- what is refused

HALF = '{"model": "tiny", "input": "\\ud800"}'
WRONG: list[tuple[str, str, int, str]] = [
    ("/v1/embeddings", "{", 400, "malformed-json"),
    ("/v1/embeddings", '{"model": "tiny", "input": NaN}', 400, "malformed-json"),
    ("/v1/embeddings", "[" * 200_000, 400, "malformed-json"),
    ("/v1/embeddings", "", 400, "malformed-json"),
    ("/v1/embeddings", "[]", 422, "wrong-type"),
    ("/v1/embeddings", '{"input": "a"}', 422, "missing-key"),
    ("/v1/embeddings", '{"model": "tiny"}', 422, "missing-key"),
    ("/v1/embeddings", '{"model": "tiny", "input": null}', 422, "wrong-type"),
    ("/v1/embeddings", '{"model": "tiny", "input": 3}', 422, "wrong-type"),
    ("/v1/embeddings", '{"model": "tiny", "input": ["a", 3]}', 422, "wrong-type"),
    ("/v1/embeddings", '{"model": "tiny", "input": [1.5]}', 422, "wrong-type"),
    ("/v1/embeddings", '{"model": "tiny", "input": [true]}', 422, "wrong-type"),
    ("/v1/embeddings", '{"model": "tiny", "input": []}', 422, "empty"),
    ("/v1/embeddings", '{"model": "tiny", "input": [" "]}', 422, "empty"),
    ("/v1/embeddings", HALF, 422, "surrogate"),
    ("/v1/embeddings", '{"model": "tiny", "input": "a", "encoding_format": "hex"}', 422, "unknown-choice"),
    ("/v1/embeddings", '{"model": "tiny", "input": "a", "dimensions": 0}', 422, "out-of-range"),
    ("/v1/embeddings", '{"model": "tiny", "input": "a", "trunkate": true}', 422, "unknown-key"),
    ("/v1/embeddings", '{"model": "tiny", "input": "a", "long": "cut", "truncate": false}', 422, "bad-combination"),
    ("/v1/embeddings", '{"model": "tiny", "input": "a", "prompt_name": "no"}', 422, "unknown-choice"),
    ("/v1/embeddings", '{"model": "other", "input": "a"}', 404, "model_not_found"),
    ("/v1/embeddings", json.dumps({"model": "tiny", "input": ["a", LONG]}), 413, "too-long"),
    ("/predict", '{"model": "tiny", "text": "a"}', 422, "wrong-model"),
    ("/predict", '{"model": "classify"}', 422, "bad-combination"),
    ("/predict", '{"model": "classify", "text": "a", "texts": ["b"]}', 422, "bad-combination"),
    ("/predict", '{"model": "classify", "text": "a", "context": "b"}', 422, "bad-combination"),
    ("/predict", '{"model": "classify", "pairs": [["a"]]}', 422, "empty"),
    ("/predict", '{"model": "answer", "text": "a"}', 422, "bad-input"),
    ("/predict", '{"model": "tag", "text": "a", "top": 2}', 422, "one-answer"),
    ("/predict", json.dumps({"model": "classify", "text": LONG, "truncate": False}), 413, "too-long"),
    ("/fill", '{"text": "no mask here"}', 422, "no-mask"),
    ("/fill", '{"text": "a [MASK]", "top": 1000}', 422, "out-of-range"),
    ("/fill", json.dumps({"text": "[MASK] " * 40, "top": 100}), 413, "too-many-tokens"),
    ("/search", '{"query": " "}', 422, "empty"),
    ("/search", '{"query": "a", "index": "dogs"}', 404, "index_not_found"),
    ("/search", '{"query": "a", "rerank": "tiny"}', 422, "wrong-model"),
    ("/nothing", "{}", 404, "no-path"),
]


@pytest.mark.parametrize(("path", "body", "status", "code"), WRONG, ids=lambda value: str(value)[:40])
def test_wrong_requests_get_one_sentence(client: TestClient, path: str, body: str, status: int, code: str) -> None:
    answer = client.post(path, content=body.encode())
    error = answer.json()["error"]
    assert (answer.status_code, error["code"]) == (status, code), error
    assert error.keys() == {"message", "type", "param", "code"}
    assert error["type"] == "invalid_request_error"
    assert error["message"].count(". ") == 0
    assert "\n" not in error["message"]
    assert len(error["message"]) < 400


def test_errors_have_the_shape_of_the_api(client: TestClient) -> None:
    answer = client.post("/embed", json={"inputs": 3})
    assert (answer.status_code, answer.json().keys()) == (422, {"error", "error_type"})
    answer = client.post("/rerank", json={"query": "", "texts": ["a"]})
    assert (answer.status_code, answer.json()["error_type"]) == (422, "Validation")
    answer = client.post("/v1/rerank", json={"query": "a", "documents": [3]})
    assert (answer.status_code, answer.json().keys()) == (422, {"message"})
    answer = client.get("/v1/embeddings")
    assert (answer.status_code, answer.json()["error"]["code"]) == (405, "wrong-method")
    assert answer.headers["allow"] == "POST"
    assert client.get("/v1/models/other").json()["error"]["code"] == "model_not_found"


def test_bytes_that_are_no_text(client: TestClient) -> None:
    answer = client.post("/embed", content=b'{"inputs": "\xff"}')
    assert answer.status_code == 400
    answer = client.post("/embed", content=b"{}", headers={"content-encoding": "gzip"})
    assert answer.status_code == 415


def test_limits(service: Service) -> None:
    client = client_of(service, max_body=2_000, max_texts=3, max_tokens=100)
    for body, word in (({"inputs": ["a"] * 4}, "4 texts"), ({"inputs": ["cat " * 40] * 3}, "tokens")):
        answer = client.post("/embed", json=body)
        assert answer.status_code == 413
        assert word in answer.json()["error"]
    assert client.post("/embed", content=b" " * 2_001).status_code == 413
    chunks = (b" " * 500 for _ in range(5))  # without a content-length
    assert client.post("/embed", content=chunks).status_code == 413
    assert client.post("/embed", json={"inputs": ["a"] * 3}).status_code == 200
    for path in ("/rerank", "/v1/rerank"):
        texts = {"texts": ["a"] * 4} if path == "/rerank" else {"documents": ["a"] * 4}
        assert client.post(path, json={"query": "a", **texts}).status_code == 413


def test_what_is_cut_is_said(client: TestClient, tokenizer: Tokenizer) -> None:
    lost = len(tokenizer(LONG)) - 48
    body = {"model": "tiny", "input": ["a", LONG], "truncate": True}
    answer = client.post("/v1/embeddings", json=body)
    assert answer.json()["truncated"] == [{"index": 1, "tokens": lost}]
    assert answer.json()["usage"]["prompt_tokens"] == 3 + 48
    assert (answer.headers["x-truncated-texts"], answer.headers["x-truncated-tokens"]) == ("1", str(lost))
    answer = client.post("/embed", json={"inputs": ["a", LONG], "truncate": True})
    assert answer.headers["x-truncated-tokens"] == str(lost)
    assert "x-truncated-tokens" not in client.post("/embed", json={"inputs": ["a"], "truncate": True}).headers
    answer = client.post("/predict", json={"model": "classify", "texts": ["a", LONG], "truncate": True})
    assert answer.json()["truncated"] == [{"index": 1, "tokens": lost}]


# ---------------------------------------------------------------------- keys, origins, logs, pages


def test_the_key(service: Service) -> None:
    client = client_of(service, api_key="s3cret")
    for given in (b"", b"Bearer wrong", b"s3cret", "Bearer é".encode(), b"Basic s3cret"):
        headers = {b"authorization": given}
        for path in ("/embed", "/v1/embeddings", "/predict", "/rerank", "/search"):
            answer = client.post(path, json={"inputs": "a"}, headers=headers)
            assert answer.status_code == 401, path
            assert answer.headers["www-authenticate"] == "Bearer"
        assert client.get("/metrics", headers=headers).status_code == 401
        assert client.get("/v1/models/tiny", headers=headers).status_code == 401
    assert client.post("/embed", json={"inputs": "a"}, headers={"authorization": "Bearer s3cret"}).status_code == 200
    for path in ("/health", "/ready", "/docs", "/openapi.json"):
        assert client.get(path).status_code == 200


def test_the_key_comes_from_the_environment() -> None:
    assert key_from({"BOTHWAYS_API_KEY": " abc "}) == "abc"
    assert key_from({}) == ""
    for key in ("", "ключ"):
        with refused("bad-key"):
            key_from({"BOTHWAYS_API_KEY": key})


def test_other_origins_are_refused_by_default(service: Service) -> None:
    asked = {"origin": "https://a.example", "access-control-request-method": "POST"}
    answer = client_of(service).options("/embed", headers=asked)
    assert "access-control-allow-origin" not in answer.headers
    client = client_of(service, cors=("https://a.example",), api_key="key")
    answer = client.options("/embed", headers=asked)
    assert answer.headers["access-control-allow-origin"] == "https://a.example"
    answer = client.options("/embed", headers={**asked, "origin": "https://b.example"})
    assert "access-control-allow-origin" not in answer.headers
    answer = client.post("/embed", json={"inputs": "a"}, headers={"origin": "https://a.example"})
    assert (answer.status_code, answer.headers["access-control-allow-origin"]) == (401, "https://a.example")


def test_logs_have_no_texts(service: Service, monkeypatch: pytest.MonkeyPatch) -> None:
    lines, secret = Lines(), "unbelievablesecret"
    client = client_of(service, lines)
    answer = client.post("/embed?q=" + secret, json={"inputs": secret}, headers={"x-request-id": "id-1"})
    assert answer.headers["x-request-id"] == "id-1"
    client.post("/embed", json={"inputs": secret, secret: 1})
    client.post("/" + secret, json={})
    client.post("/predict", json={"model": "answer", "text": secret})
    client.post("/v1/embeddings", json={"model": secret, "input": secret}, headers={"x-request-id": secret * 9})

    def broken(*_: Any) -> Any:
        raise RuntimeError(secret)

    monkeypatch.setattr(service.models["tiny"], "embed", broken)
    answer = client.post("/embed", json={"inputs": secret})
    assert (answer.status_code, secret in answer.text) == (500, False)
    assert lines.next(event="request")["tokens"] > 2
    assert lines.next(path="other")["status"] == 404
    assert lines.next(event="error")["type"] == "RuntimeError"
    assert secret not in "".join(lines.all)


def test_metrics(service: Service) -> None:
    client = client_of(service)
    before = numbers(client)
    client.post("/embed", json={"inputs": ["a", "b"]})
    client.post("/embed", json={"inputs": 3})
    client.get("/ab/cd")
    after = numbers(client)

    def more(name: str) -> float:
        return after.get(name, 0) - before.get(name, 0)

    assert more('bothways_requests_total{path="/embed",status="200"}') == 1
    assert more('bothways_requests_total{path="/embed",status="422"}') == 1
    assert more('bothways_requests_total{path="other",status="404"}') == 1
    assert more('bothways_texts_total{model="tiny"}') == 2
    assert more('bothways_tokens_total{model="tiny"}') == 6
    assert after["bothways_ready"] == 1
    assert after['bothways_request_seconds_bucket{path="/embed",le="+Inf"}'] == sum(
        value for name, value in after.items() if name.startswith('bothways_requests_total{path="/embed"')
    )


def numbers(client: TestClient) -> dict[str, float]:
    """The samples of /metrics, each line of which has a name and a number."""
    answer = client.get("/metrics")
    assert answer.headers["content-type"].startswith("text/plain; version=0.0.4")
    lines = [line for line in answer.text.splitlines() if not line.startswith("#")]
    return {name: float(value) for name, value in (line.rsplit(" ", 1) for line in lines)}


def test_the_examples_of_the_docs_fit_their_schemas(client: TestClient) -> None:
    described = client.get("/openapi.json").json()
    for endpoint in ENDPOINTS:
        check(dict(endpoint.example), endpoint.schema)
        assert described["paths"][endpoint.path]["post"]["requestBody"]["content"]["application/json"]["schema"]
    for path in ("/v1/embeddings", "/embed", "/rerank", "/v2/rerank", "/fill"):
        example = described["paths"][path]["post"]["requestBody"]["content"]["application/json"]["example"]
        assert client.post(path, json=example).status_code == 200, path
    page = client.get("/docs")
    assert "default-src 'self'" in page.headers["content-security-policy"]
    assert "http://" not in page.text
    assert "https://" not in page.text
    assert client.get("/", follow_redirects=False).headers["location"] == "/docs"


def test_the_example_names_a_model_that_makes_vectors() -> None:
    able = {"emotion": ["predict"], "sentences": ["embed"]}
    described = openapi(ENDPOINTS, able, has_key=False)["paths"]["/v1/embeddings"]["post"]
    assert described["requestBody"]["content"]["application/json"]["example"]["model"] == "sentences"


def test_a_service_without_an_index_says_so(own: Service) -> None:
    answer = client_of(own).post("/search", json={"query": "a"})
    assert (answer.status_code, answer.json()["error"]["code"]) == (404, "index_not_found")


def test_a_wrong_input_is_told_what_the_model_reads(client: TestClient) -> None:
    question = {"question": "a", "context": "b"}
    given_to = {"answer": "a", "choose": "a", "ranker": question, "tag": question, "classify": question}
    for model, given in given_to.items():
        task = client.get(f"/v1/models/{model}").json()["task"]
        error = client.post("/predict", json={"model": model, "inputs": [given]}).json()["error"]
        assert error["message"] == f"input 1 is not what this model reads: expected {READS[task]}"
    assert set(READS) == set(REGISTERED) - {"embed"}


def test_the_page_of_a_folder(service: Service, tmp_path: Path) -> None:
    from bothways.serve.app import app_of

    (tmp_path / "index.html").write_text("<p>hello</p>", encoding="utf-8")
    (tmp_path / "app.js").write_text("1", encoding="utf-8")
    service.settings = replace(service.settings, api_key="key")
    client = TestClient(app_of(service, page=tmp_path))
    assert client.get("/").text == "<p>hello</p>"
    assert client.get("/app.js").text == "1"
    assert client.get("/../../etc/passwd").status_code == 404
    assert client.post("/embed", json={"inputs": "a"}).status_code == 401


# ---------------------------------------------------------------------- names


def test_names_of_models(tmp_path: Path) -> None:
    (tmp_path / "a=b").mkdir()
    assert named([str(tmp_path / "a=b"), "x=emotion"]) == {"a=b": str(tmp_path / "a=b"), "x": "emotion"}
    for wrong in ("=a", "a="):
        with refused("bad-name", wrong):
            named([wrong])
    with refused("name-twice", "a"):
        named(["a", "b=c", "a=d"])


def test_folders_that_are_not_there() -> None:
    with refused("no-folder", "nowhere"):
        require_folders({"a": "nowhere"})


def test_a_busy_service_refuses(service: Service) -> None:
    """With the only place taken, the next request gets 429 and Retry-After, and health is still answered."""
    client = client_of(service, max_requests=1)
    with held(service) as gate:
        first = in_thread(lambda: client.post("/embed", json={"inputs": "a", "model": "tiny"}))
        gate.wait()
        answer = client.post("/embed", json={"inputs": "b"})
        assert (answer.status_code, answer.json()["error_type"]) == (429, "Overloaded")
        assert int(answer.headers["retry-after"]) >= 1
        assert client.get("/health").status_code == client.get("/ready").status_code == 200
        gate.go.set()
        assert first().status_code == 200
    assert client.post("/embed", json={"inputs": "b"}).status_code == 200


def test_time_is_out(service: Service) -> None:
    """What waits is dropped when its time is out, and is never computed."""
    patient, hurried = client_of(service), client_of(service, timeout=0.05)
    with held(service) as gate:
        first = in_thread(lambda: patient.post("/embed", json={"inputs": "a"}))
        gate.wait()
        answer = hurried.post("/v1/embeddings", json={"input": "b", "model": "tiny"})
        assert (answer.status_code, answer.json()["error"]["code"]) == (504, "timeout")
        gate.go.set()
        assert first().status_code == 200
    assert patient.post("/embed", json={"inputs": "c"}).status_code == 200
    assert gate.batches == [["a"]]


def in_thread(work: Any) -> Any:
    """Runs in a thread; the call returns its result."""
    from concurrent.futures import ThreadPoolExecutor

    pool = ThreadPoolExecutor(1)
    future = pool.submit(work)
    pool.shutdown(wait=False)
    return lambda: future.result(30)
