"""What benchmarks/serve.py and serve_soak.py share: a service in a process of its own, and a small HTTP client."""

import asyncio
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

_TICKS = os.sysconf("SC_CLK_TCK")


@dataclass(frozen=True)
class Server:
    """A service that listens on 127.0.0.1."""

    port: int
    process: int

    def cpu_seconds(self) -> float:
        """What its process has computed, user and system."""
        fields = Path(f"/proc/{self.process}/stat").read_text().rpartition(") ")[2].split()
        return (int(fields[11]) + int(fields[12])) / _TICKS

    def memory(self) -> float:
        """Its resident memory in MB."""
        pages = int(Path(f"/proc/{self.process}/statm").read_text().split()[1])
        return pages * os.sysconf("SC_PAGE_SIZE") / 1e6


@contextmanager
def started(words: list[str], port: int = 0, environment: Mapping[str, str] | None = None) -> Iterator[Server]:
    """A server until the block ends. Ours says its port; another's is given."""
    variables = {**os.environ, **(environment or {})}
    # Another's server may print a line for each request, and would stop at a pipe that is full.
    output = subprocess.DEVNULL if port else subprocess.PIPE
    process = subprocess.Popen(words, stdout=output, stderr=subprocess.DEVNULL, text=True, env=variables)
    try:
        if not port:
            assert process.stdout is not None
            port = int(json.loads(process.stdout.readline())["address"].rpartition(":")[2])
        asyncio.run(_ready(port, process))
        yield Server(port, process.pid)
    finally:
        process.send_signal(signal.SIGTERM)
        try:
            process.wait(60)
        except subprocess.TimeoutExpired:
            process.kill()


def ours(*words: str) -> list[str]:
    """The command of our service on a free port."""
    return [sys.executable, "-m", "bothways", "serve", *words, "--port", "0", "--json", "--no-log", "--device", "cpu"]


async def _ready(port: int, process: "subprocess.Popen[str]") -> None:
    end = time.monotonic() + 180
    while time.monotonic() < end and process.poll() is None:
        try:
            connection = await Connection.open(port)
            status, _ = await connection.ask("GET", "/health")
            await connection.close()
            if status == 200:
                return
        except OSError:
            pass
        await asyncio.sleep(0.2)
    raise SystemExit("the server did not start")


class Connection:
    """One connection that is kept open."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader, self.writer = reader, writer

    @classmethod
    async def open(cls, port: int) -> "Connection":
        return cls(*await asyncio.open_connection("127.0.0.1", port, limit=2**24))

    async def close(self) -> None:
        self.writer.close()
        with suppress(OSError):
            await self.writer.wait_closed()

    def send(self, method: str, path: str, body: bytes = b"", length: int | None = None) -> None:
        """`length`: what the head says of the body, if that is a lie."""
        size = len(body) if length is None else length
        head = f"{method} {path} HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\n"
        self.writer.write(f"{head}content-length: {size}\r\n\r\n".encode() + body)

    async def answer(self) -> tuple[int, bytes]:
        """The status and the body of the next answer."""
        head = (await self.reader.readuntil(b"\r\n\r\n")).decode("latin-1").lower()
        status = int(head.split(" ", 2)[1])
        if "transfer-encoding: chunked" in head:
            parts = []
            while size := int((await self.reader.readline()).strip(), 16):
                parts.append(await self.reader.readexactly(size))
                await self.reader.readline()
            await self.reader.readline()
            return status, b"".join(parts)
        length = next(line for line in head.split("\r\n") if line.startswith("content-length:"))
        return status, await self.reader.readexactly(int(length.split(":")[1]))

    async def ask(self, method: str, path: str, value: Any = None) -> tuple[int, bytes]:
        self.send(method, path, b"" if value is None else json.dumps(value).encode())
        return await self.answer()
