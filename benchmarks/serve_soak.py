"""Many requests to `bothways serve` on loopback, with malformed, oversized, slow and dropped ones among them.

    python benchmarks/serve_soak.py --requests 100000 --minutes 15

A small model that the script makes. Every answer with status 200 is compared with a direct call, every other with the
status that the request deserves. The memory of the server is read after every tenth of the requests.
"""

import argparse
import asyncio
import base64
import json
import platform
import random
import tempfile
import time
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import starlette
import torch
import uvicorn
from numpy.typing import NDArray
from serve_client import Connection, Server, ours, started

import bothways
from bothways.model.config import Learned
from bothways.model.pooling import Pooling
from bothways.model.sentence import Normalize, Sentence

EXAMPLES = Path(__file__).parents[1] / "examples"
LENGTH = 64
MAX_BODY = 20_000
READ_TIMEOUT = 0.5
LIMITS = ["--max-body", str(MAX_BODY), "--max-texts", "32", "--read-timeout", str(READ_TIMEOUT), "--max-requests", "60"]
FAR = 1e-5
"""The largest difference of a number of a vector of length 1 from that of a direct call."""
EXPECTED = {"malformed": 400, "wrong": 422, "oversized": 413, "too long": 413, "unknown": 404, "slow": 408}
SHARES = {
    "one": 66, "several": 14, "predict": 8, "malformed": 3, "wrong": 2, "oversized": 1, "too long": 2, "unknown": 1,
    "dropped": 2, "slow": 1,
}  # fmt: skip
"""Percent of the requests of each kind."""


def make_model(home: Path) -> tuple[Path, Path]:
    """Folders of a model of sentence vectors and of a classifier, untrained."""
    tokenizer = bothways.train_vocabulary([EXAMPLES / "sample.txt"], size=1600)
    shape = bothways.EncoderConfig(
        tokenizer.size, width=32, layers=2, num_heads=2, ffn_width=64, positions=Learned(LENGTH)
    )
    vectors = bothways.Model.new(bothways.ModelConfig(shape), tokenizer)
    vectors.sentence = Sentence(Pooling(), [Normalize()])
    bothways.save(vectors, home / "vectors")
    head = bothways.ModelConfig(shape, ("pooler", "sequence"), labels=("good", "bad", "so-so"))
    bothways.save(bothways.Model.new(head, tokenizer), home / "labels")
    return home / "vectors", home / "labels"


@dataclass
class Soak:
    """The requests that are left, and what came of the others."""

    server: Server
    texts: list[str]
    vectors: NDArray[np.float32]
    labels: list[dict[str, Any]]
    left: int
    end: float
    seen: Counter[tuple[str, str]] = field(default_factory=Counter)
    """Requests by their kind and what came of them."""
    wrong: list[str] = field(default_factory=list)
    farthest: float = 0.0
    memory: list[float] = field(default_factory=list)
    every: int = 0

    def note(self, kind: str, came: str) -> None:
        self.seen[kind, came] += 1
        if self.seen.total() % self.every == 0:
            self.memory.append(self.server.memory())
            print(f"{self.seen.total():,} requests, {self.memory[-1]:.0f} MB", flush=True)

    async def client(self, number: int) -> None:
        draws, kinds = random.Random(number), list(SHARES)
        connection = await Connection.open(self.server.port)
        while self.left > 0 and time.monotonic() < self.end:
            self.left -= 1
            (kind,) = draws.choices(kinds, list(SHARES.values()))
            if kind in ("dropped", "slow"):
                await self.leave(kind, draws)
                continue
            path, body, expected = self.request(kind, draws)
            connection.send("POST", path, body)
            try:
                status, found = await connection.answer()
            except (OSError, asyncio.IncompleteReadError):
                self.wrong.append(f"{kind}: no answer")
                connection = await Connection.open(self.server.port)
                continue
            self.judge(kind, status, found, expected)
        await connection.close()

    def request(self, kind: str, draws: random.Random) -> tuple[str, bytes, Any]:
        """A path, a body, and the numbers of the texts whose answer is expected."""
        rows = [draws.randrange(len(self.texts)) for _ in range(1 if kind == "one" else draws.randint(2, 20))]
        texts: Any = [self.texts[row] for row in rows]
        if kind == "predict":
            return "/predict", json.dumps({"texts": texts}).encode(), rows
        value = {"model": "vectors", "input": texts, "encoding_format": "base64"}
        if kind == "wrong":
            value["input"] = draws.choice([3, [], [""], [None], {"a": 1}, [[1.5]]])
        elif kind == "unknown":
            value["model"] = "another"
        elif kind == "too long":
            value["input"] = "the cat sleeps " * LENGTH
        elif kind == "oversized":
            value["input"] = "a" * draws.randint(MAX_BODY, 5 * MAX_BODY)
        body = json.dumps(value).encode()
        return "/v1/embeddings", body[: draws.randrange(len(body))] if kind == "malformed" else body, rows

    async def leave(self, kind: str, draws: random.Random) -> None:
        """A client that sends a half and waits, or all and goes away."""
        connection = await Connection.open(self.server.port)
        _, body, _ = self.request("several", draws)
        if kind == "slow":
            connection.send("POST", "/v1/embeddings", body[:10], length=len(body))
            status, _ = await connection.answer()
            self.judge(kind, status, b"", None)
        else:
            connection.send("POST", "/v1/embeddings", body)
            await connection.writer.drain()
            await asyncio.sleep(draws.choice([0, 0.001, 0.01]))
            self.note(kind, "left")
        await connection.close()

    def judge(self, kind: str, status: int, body: bytes, rows: Any) -> None:
        self.note(kind, str(status))
        if status == 429:  # the service is full, and says so
            return
        if status != EXPECTED.get(kind, 200):
            self.wrong.append(f"{kind}: status {status}, {body[:200]!r}")
        elif status == 200 and kind == "predict":
            found = json.loads(body)["answers"]
            for one, row in zip(found, rows, strict=True):
                direct = self.labels[row]
                if one["label"] != direct["label"] or abs(one["score"] - direct["score"]) > FAR:
                    self.wrong.append(f"predict: {one}, and {direct} directly")
        elif status == 200:
            data = json.loads(body)["data"]
            found = np.stack([np.frombuffer(base64.b64decode(one["embedding"]), "<f4") for one in data])
            far = float(np.abs(found - self.vectors[rows]).max())
            self.farthest = max(self.farthest, far)
            if far > FAR:
                self.wrong.append(f"{kind}: {far} away from a direct call")


def pool_of_texts() -> list[str]:
    """Texts of a few words to some forty tokens, English and Chinese."""
    words = (EXAMPLES / "sample.txt").read_text(encoding="utf-8").split()
    draws = random.Random(0)
    return [
        " ".join(draws.choices([word for word in words if len(word) < 6], k=draws.randint(1, 12))) for _ in range(2_000)
    ]


async def soak(state: Soak, clients: int) -> None:
    await asyncio.gather(*(state.client(number) for number in range(clients)))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--requests", type=int, default=100_000)
    parser.add_argument("--minutes", type=float, default=15)
    parser.add_argument("--clients", type=int, default=64)
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        vectors, labels = make_model(Path(name))
        texts = pool_of_texts()
        limit = bothways.load(vectors).require_tokenizer()
        texts = [text for text in texts if len(limit(text)) <= LENGTH]
        direct = bothways.encode(texts, vectors, device="cpu")
        answers = bothways.Predictor.load(labels, device="cpu")(texts)
        with started(ours(str(vectors), str(labels), *LIMITS), 0, {"OMP_NUM_THREADS": "1"}) as server:
            begun = time.monotonic()
            state = Soak(server, texts, direct, answers, arguments.requests, begun + 60 * arguments.minutes)
            state.every = max(1, arguments.requests // 20)
            state.memory.append(server.memory())
            asyncio.run(soak(state, arguments.clients))
            state.memory.append(server.memory())
            cpu = server.cpu_seconds()
    versions = f"torch {torch.__version__}, starlette {starlette.__version__}, uvicorn {uvicorn.__version__}"
    print(f"{platform.machine()}, Python {platform.python_version()}, {versions}")
    print(f"{state.seen.total():,} requests in {time.monotonic() - begun:.0f} s; {cpu:.0f} CPU seconds of the server")
    for (kind, came), count in sorted(state.seen.items()):
        print(f"  {kind}: {came}: {count:,}")
    print(f"memory of the server in MB: {' '.join(f'{one:.0f}' for one in state.memory)}")
    print(f"largest difference from a direct call: {state.farthest:.1e}; wrong: {len(state.wrong)} {state.wrong[:5]}")
    raise SystemExit(bool(state.wrong))


if __name__ == "__main__":
    main()
