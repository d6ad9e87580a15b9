"""The service over 127.0.0.1: slow clients, clients that leave, many at once, and the stop."""

import http.client
import json
import random
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import bothways
from bothways.serve.service import Service
from bothways.serve.settings import ServeSettings
from bothways.text.tokenizer import Tokenizer
from helpers import leaves_the_process
from helpers.cli import Run, is_one_error
from helpers.serve import Lines, held, listening, make_folders

pytestmark = pytest.mark.usefixtures("loopback")
WORDS = ["the", "cat", "unbelievable", "paris", "北京", "walks", "talking", "big", "."]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory, tokenizer: Tokenizer) -> Path:
    return make_folders(tmp_path_factory.mktemp("served"), tokenizer)["tiny"]


@pytest.fixture
def service(folder: Path) -> Iterator[Service]:
    service = Service.open({"tiny": folder}, settings=ServeSettings(read_timeout=0.3), device="cpu")
    yield service
    service.close()
    assert service.metrics.in_service == 0, "a place was not given back"


def ask(host: str, port: int, text: Any, path: str = "/embed") -> tuple[int, Any]:
    connection = http.client.HTTPConnection(host, port, timeout=30)
    body = json.dumps({"inputs": text}, ensure_ascii=False).encode()
    connection.request("POST", path, body, {"content-type": "application/json"})
    answer = connection.getresponse()
    found = answer.status, json.loads(answer.read())
    connection.close()
    return found


def head(length: int) -> bytes:
    return f"POST /embed HTTP/1.1\r\nhost: a\r\ncontent-length: {length}\r\n\r\n".encode()


def all_of(connection: socket.socket) -> bytes:
    """What comes until the other side closes."""
    parts = []
    try:
        while part := connection.recv(65_536):
            parts.append(part)
    except ConnectionResetError:
        pass
    return b"".join(parts)


def until(holds: Callable[[], bool]) -> None:
    pause = threading.Event()
    for _ in range(3_000):
        if holds():
            return
        pause.wait(0.01)
    raise AssertionError("it did not happen in 30 seconds")


def test_many_clients_get_what_a_direct_call_gives(service: Service, folder: Path) -> None:
    draws = random.Random(1)
    texts = [" ".join(draws.choices(WORDS, k=draws.randint(1, 14))) for _ in range(120)]
    direct = bothways.encode(texts, folder, device="cpu")
    direct /= np.linalg.norm(direct, axis=1, keepdims=True)
    with listening(service) as (host, port, _), ThreadPoolExecutor(12) as pool:
        answers = list(pool.map(lambda text: ask(host, port, text), texts))
    for (status, found), expected in zip(answers, direct, strict=True):
        assert status == 200
        assert np.abs(np.array(found[0]) - expected).max() < 2e-6


def test_an_answer_is_sent_at_once(service: Service) -> None:
    """Its body does not wait for the client to acknowledge its head, which a client may delay by 40 ms."""
    with listening(service) as (host, port, server):
        connection = http.client.HTTPConnection(host, port, timeout=30)
        connection.request("GET", "/health")
        assert connection.getresponse().status == 200
        (protocol,) = server.server_state.connections
        accepted = protocol.transport.get_extra_info("socket")
        assert accepted.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY)
        connection.close()


def test_a_body_that_does_not_come(service: Service) -> None:
    with listening(service) as (host, port, _), socket.create_connection((host, port), timeout=30) as slow:
        slow.sendall(head(100) + b'{"inputs"')
        answer = slow.recv(65_536)
        assert answer.startswith(b"HTTP/1.1 408 ")
        assert ask(host, port, "a")[0] == 200  # others are not held up


def test_a_head_that_does_not_come(service: Service) -> None:
    with listening(service) as (host, port, _):
        for begin in (b"", b"POST /emb"):
            with socket.create_connection((host, port), timeout=30) as slow:
                slow.sendall(begin)
                assert all_of(slow) == b""
        with socket.create_connection((host, port), timeout=30) as slow:  # the same after a whole request
            slow.sendall(b"GET /health HTTP/1.1\r\nhost: a\r\n\r\n")
            assert slow.recv(65_536).startswith(b"HTTP/1.1 200 ")
            slow.sendall(b"GET /hea")
            assert b"HTTP" not in all_of(slow)


def test_an_answer_that_is_not_read(service: Service) -> None:
    with listening(service) as (host, port, server):
        with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as deaf:
            deaf.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 2_048)
            deaf.settimeout(30)
            deaf.connect((host, port))
            # An answer larger than what two kernels keep for one connection.
            body = json.dumps({"inputs": ["the cat"] * 2_000, "normalize": True}).encode()
            requests = (head(len(body)) + body) * 8
            threading.Thread(target=deaf.sendall, args=(requests,), daemon=True).start()
            until(lambda: len(server.server_state.connections) == 1)
            until(lambda: not server.server_state.connections)
        assert ask(host, port, "a")[0] == 200


def test_nonsense_is_no_harm(service: Service) -> None:
    draws = random.Random(2)
    with listening(service) as (host, port, _):
        for _ in range(30):
            with socket.create_connection((host, port), timeout=30) as other:
                other.sendall(bytes(draws.choices(range(256), k=200)) + b"\r\n\r\n")
                assert b" 200 " not in all_of(other)
        assert ask(host, port, "a")[0] == 200


def test_a_client_that_leaves_frees_its_place(service: Service) -> None:
    lines = Lines()
    with listening(service, lines) as (host, port, _), held(service) as gate:
        for text in ("first", "second"):
            body = json.dumps({"inputs": text}).encode()
            leaving = socket.create_connection((host, port), timeout=30)
            leaving.sendall(head(len(body)) + body)
            if text == "first":
                gate.wait()
            else:
                until(lambda: service.batchers["tiny"].waiting[0] == 1)
            leaving.close()
            lines.next(event="request", status=499)
        assert service.metrics.in_service == 0
        assert service.metrics.gone == 2
        gate.go.set()
        assert ask(host, port, "third")[0] == 200
    assert gate.batches == [["first"], ["third"]]


def test_a_stop_answers_what_was_accepted(service: Service) -> None:
    with listening(service) as (host, port, server), held(service) as gate, ThreadPoolExecutor(1) as pool:
        answer = pool.submit(ask, host, port, "a")
        gate.wait()
        server.should_exit = True
        until(lambda: service.is_stopping)
        assert not service.is_ready
        until(lambda: _refuses(host, port))
        gate.go.set()
        assert answer.result(30)[0] == 200


def _refuses(host: str, port: int) -> bool:
    try:
        socket.create_connection((host, port), timeout=30).close()
    except ConnectionRefusedError:
        return True
    return False


# Only a connection to elsewhere ends the process: listening on 127.0.0.1 is what the command is for.
SERVING = """
import os, sys
sys.path.insert(0, {tests!r})
from helpers import leaves_the_process
def guard(event, arguments):
    if leaves_the_process(event, arguments, True) or event == "socket.connect":
        sys.stderr.write("network: " + event)
        os._exit(99)
sys.addaudithook(guard)
from bothways.cli import main
main()
"""


@pytest.mark.slow
def test_the_command_until_sigterm(folder: Path, tmp_path: Path) -> None:
    """It listens on 127.0.0.1 only, connects to nothing, logs JSON lines, and ends with 0. It writes the page of /."""
    code = SERVING.format(tests=str(Path(__file__).parent))
    words = [sys.executable, "-c", code, "serve", f"cats={folder}", "--port", "0", "--json", "--device", "cpu"]
    words += ["--page", str(tmp_path / "page")]
    process = subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, encoding="utf-8")
    assert process.stdout is not None
    try:
        started = json.loads(process.stdout.readline())
        assert started["models"] == {"cats": {"abilities": ["embed", "fill"]}}
        assert started["address"].startswith("http://127.0.0.1:")
        port = int(started["address"].rpartition(":")[2])
        assert ask("127.0.0.1", port, "北京")[0] == 200
        connection = http.client.HTTPConnection("127.0.0.1", port, timeout=30)
        connection.request("GET", "/models.json")
        assert [one["name"] for one in json.loads(connection.getresponse().read())["models"]] == [folder.name]
        connection.close()
    finally:
        process.send_signal(signal.SIGTERM)
        _, err = process.communicate(timeout=60)
    assert process.returncode == 0
    events = [json.loads(line)["event"] for line in err.splitlines()]
    assert events == ["start", "request", "request", "stop"]
    assert (tmp_path / "page/index.html").exists()
    assert "北京" not in err


def test_what_cannot_be_served(run: Run, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        done = run("serve", folder, "--port", port)
        assert (done.returncode, is_one_error(done.stderr, str(port))) == (1, True)
    done = run("serve", "nowhere")
    assert (done.returncode, is_one_error(done.stderr, "nowhere")) == (1, True)
    done = run("serve", folder, "--page", folder / "config.json")
    assert (done.returncode, is_one_error(done.stderr, "config.json")) == (1, True)
    done = run("serve", folder, f"tiny={folder}")
    assert (done.returncode, is_one_error(done.stderr, "'tiny'")) == (1, True)
    monkeypatch.setenv("BOTHWAYS_API_KEY", "")
    done = run("serve", folder, "--port", 0)
    assert (done.returncode, is_one_error(done.stderr, "BOTHWAYS_API_KEY")) == (1, True)


def test_what_the_guard_of_the_tests_lets_through() -> None:
    inside, outside = ("127.0.0.1", 80), ("192.0.2.1", 80)
    assert leaves_the_process("socket.connect", (None, inside))
    assert not leaves_the_process("socket.connect", (None, inside), True)
    assert leaves_the_process("socket.connect", (None, outside), True)
    assert leaves_the_process("socket.connect", (None, "/run/a.sock"), True)
    assert leaves_the_process("socket.bind", (None, ("0.0.0.0", 80)), True)
    assert leaves_the_process("socket.getaddrinfo", ("example.org", 80, 0, 0, 0), True)
    assert not leaves_the_process("socket.__new__", (None, socket.AF_UNIX, 1, 0))
    assert leaves_the_process("socket.__new__", (None, socket.AF_INET, 1, 0))
