"""Throughput and latency of `bothways serve` on loopback: batched, one text at a time, and against infinity.

    python benchmarks/serve.py
    python benchmarks/serve.py --model MINILM_DIR --infinity VENV

Each client sends its next request when it has its answer. The client is a process on the same cores as the server, so
only the ratios mean something. "One at a time" is the same server with a token budget of 1: every text is a batch.
"""

import argparse
import asyncio
import json
import platform
import random
import statistics
import time
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

from serve_client import Connection, Server, ours, started

import bothways

EXAMPLES = Path(__file__).parents[1] / "examples"
CLIENTS = (1, 8, 32, 128)
Given = tuple[list[str], str, int]
"""The command of a server, its path for vectors, and its port; 0: it says which."""


@dataclass(frozen=True)
class Measured:
    """What some clients saw."""

    rate: float
    """Requests a second."""
    p50: float
    """Milliseconds."""
    p99: float
    cpu: float
    """CPU seconds of the server for a thousand requests."""
    failed: int


def drawn_texts(number: int) -> list[str]:
    """Reviews of the examples, one to three together: some 5 to 60 words."""
    lines = [line.split("\t") for line in (EXAMPLES / "reviews.tsv").read_text(encoding="utf-8").splitlines()[1:]]
    reviews = [max(line, key=len) for line in lines]
    draws = random.Random(0)
    return [" ".join(draws.choices(reviews, k=draws.choice([1, 1, 2, 3]))) for _ in range(number)]


async def measure(server: Server, path: str, model: str, clients: int, count: int, seconds: float) -> Measured:
    """So many clients until so many requests are done, or the time is over."""
    texts, times, failed = iter(drawn_texts(count)), list[float](), 0
    end = time.monotonic() + seconds

    async def client() -> None:
        nonlocal failed
        connection = await Connection.open(server.port)
        for text in texts:
            if time.monotonic() > end:
                break
            begun = time.perf_counter()
            status, _ = await connection.ask("POST", path, {"model": model, "input": text, "encoding_format": "base64"})
            times.append(time.perf_counter() - begun)
            failed += status != 200
        await connection.close()

    begun, cpu = time.perf_counter(), server.cpu_seconds()
    await asyncio.gather(*(client() for _ in range(clients)))
    wall, cpu = time.perf_counter() - begun, server.cpu_seconds() - cpu
    cuts = statistics.quantiles(times, n=100)
    return Measured(len(times) / wall, cuts[49] * 1e3, cuts[98] * 1e3, cpu / len(times) * 1e3, failed)


def measure_all(servers: Mapping[str, Given], arguments: argparse.Namespace) -> dict[str, list[Measured]]:
    """For each number of clients all servers in turn, several times, so that other work on the machine meets all."""
    variables = {
        "OMP_NUM_THREADS": str(arguments.threads),
        "HF_HUB_OFFLINE": "1",
        "INFINITY_ANONYMOUS_USAGE_STATS": "0",
    }
    with ExitStack() as stack:
        running = {
            name: (stack.enter_context(started(words, port, variables)), path)
            for name, (words, path, port) in servers.items()
        }
        for server, path in running.values():
            asyncio.run(measure(server, path, "m", 8, 64, 30))  # warm
        found: dict[str, list[Measured]] = {name: [] for name in servers}
        for clients in CLIENTS:
            count = max(arguments.requests, 4 * clients)
            rounds: dict[str, list[Measured]] = {name: [] for name in servers}
            for _ in range(arguments.rounds):
                for name, (server, path) in running.items():
                    rounds[name].append(asyncio.run(measure(server, path, "m", clients, count, arguments.seconds)))
            for name, seen in rounds.items():
                found[name].append(middle(seen))
    return found


def middle(seen: Sequence[Measured]) -> Measured:
    """The median of each figure."""
    rows = [(one.rate, one.p50, one.p99, one.cpu) for one in seen]
    rate, p50, p99, cpu = map(statistics.median, zip(*rows, strict=True))
    return Measured(rate, p50, p99, cpu, sum(one.failed for one in seen))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", default="en", help="folder of a model")
    parser.add_argument("--infinity", metavar="VENV", help="environment with infinity-emb")
    parser.add_argument("--requests", type=int, default=1_000)
    parser.add_argument("--seconds", type=float, default=15, help="the most for one measurement")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--threads", type=int, default=1)
    arguments = parser.parse_args()
    folder = f"m={arguments.model}"
    servers: dict[str, Given] = {
        "batched": (ours(folder), "/v1/embeddings", 0),
        "one at a time": (ours(folder, "--batch-tokens", "1"), "/v1/embeddings", 0),
    }
    if arguments.infinity:
        words = [f"{arguments.infinity}/bin/infinity_emb", "v2", "--model-id", arguments.model, "--port", "7997"]
        words += ["--host", "127.0.0.1", "--engine", "torch", "--device", "cpu", "--served-model-name", "m"]
        words += ["--no-model-warmup", "--no-bettertransformer"]
        servers["infinity"] = (words, "/embeddings", 7997)
    found = measure_all(servers, arguments)
    print(
        f"{platform.machine()}, Python {platform.python_version()}, bothways {bothways.__version__}, {arguments.model}"
    )
    print(
        "| clients | server | requests/s, of batched | p50, of batched | p99, of batched | CPU, of batched | failed |"
    )
    print("|---|---|---|---|---|---|---|")
    for place, clients in enumerate(CLIENTS):
        ours_now = found["batched"][place]
        for name, all_of in found.items():
            now = all_of[place]
            ratios = (now.rate / ours_now.rate, now.p50 / ours_now.p50, now.p99 / ours_now.p99, now.cpu / ours_now.cpu)
            print(f"| {clients} | {name} | {' | '.join(f'{ratio:.2f}' for ratio in ratios)} | {now.failed} |")
    print(json.dumps({name: [vars(one) for one in all_of] for name, all_of in found.items()}))


if __name__ == "__main__":
    main()
