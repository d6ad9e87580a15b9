"""The clients' examples, the Dockerfile and the compose file do what they say."""

import json
import re
import shlex
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from bothways.serve.app import ENDPOINTS
from bothways.serve.schema import check
from bothways.serve.service import Service
from bothways.serve.settings import API_KEY, ServeSettings
from bothways.text.tokenizer import Tokenizer
from helpers.cli import Run
from helpers.serve import listening, make_folders

ROOT = Path(__file__).parent.parent
EXAMPLES = ROOT / "examples" / "serve"


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory, tokenizer: Tokenizer) -> dict[str, Path]:
    return make_folders(tmp_path_factory.mktemp("served"), tokenizer)


@pytest.fixture
def service(folders: dict[str, Path]) -> Iterator[Service]:
    """Small models under the names of the included ones."""
    tiny = folders["tiny"]
    models = {"sentence": tiny, "sentence-zh": tiny, "zh": tiny, "emotion": folders["classify"]}
    service = Service.open(dict(models), device="cpu", settings=ServeSettings(api_key="key"))
    yield service
    service.close()


@pytest.mark.parametrize("script", sorted(EXAMPLES.glob("*.sh")), ids=lambda path: path.name)
def test_requests_with_curl(script: Path) -> None:
    schemas = {endpoint.path: endpoint.schema for endpoint in ENDPOINTS}
    lines = [line for line in script.read_text(encoding="utf-8").splitlines() if line.startswith("curl")]
    assert len(lines) > 1
    for line in lines:
        words = shlex.split(line)
        path = next(word for word in words if word.startswith("$at")).removeprefix("$at")
        if "-d" in words:
            check(json.loads(words[words.index("-d") + 1]), schemas[path])
        else:
            assert path in ("/v1/models", "/metrics")


@pytest.mark.slow
def test_the_client_in_python(service: Service, loopback: None) -> None:
    done = _run_client([sys.executable, str(EXAMPLES / "ask.py")], service)
    assert done.stdout.splitlines()[0] == "['sentence', 'sentence-zh', 'zh', 'emotion']"
    assert "label" in done.stdout


@pytest.mark.slow
@pytest.mark.skipif(shutil.which("node") is None, reason="needs node")
def test_the_client_in_javascript(service: Service, loopback: None) -> None:
    assert "label" in _run_client(["node", str(EXAMPLES / "ask.mjs")], service).stdout


def _run_client(words: list[str], service: Service) -> "subprocess.CompletedProcess[str]":
    with listening(service) as (host, port, _):
        words = [*words, f"http://{host}:{port}"]
        variables = {API_KEY: "key", "PATH": "/usr/bin:/bin:/usr/local/bin", "PYTHONIOENCODING": "utf-8"}
        done = subprocess.run(
            words, capture_output=True, encoding="utf-8", env=variables, timeout=120, check=False, cwd=ROOT
        )
    assert done.returncode == 0, done.stderr
    return done


def test_the_image_starts_the_service(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its command is one that the command line takes, as a user without rights, with a health check that is served."""
    seen: dict[str, Any] = {}
    monkeypatch.setattr("bothways.serve.server.run_server", lambda *given, **named: seen.update(named, models=given[0]))
    text = (ROOT / "Dockerfile").read_text(encoding="utf-8")
    stages = re.split(r"^FROM .*$", text, flags=re.MULTILINE)
    words = [json.loads(re.findall(rf"^{name} (\[.*\])$", text, re.MULTILINE)[-1]) for name in ("ENTRYPOINT", "CMD")]
    assert run(*[*words[0], *words[1]][1:]).returncode == 0
    assert (seen["host"], seen["models"]) == ("0.0.0.0", {"en": "en"})
    assert re.search(r"^USER [1-9]\d*$", stages[-1], re.MULTILINE)
    assert "/ready" in stages[-1].partition("HEALTHCHECK")[2]
    for copied in re.findall(r"^COPY (?!--from)(.*) \S+$", text, re.MULTILINE):
        for name in copied.split():
            assert (ROOT / name).exists(), name
            assert f"!{name}" in (ROOT / ".dockerignore").read_text(encoding="utf-8").splitlines()


def test_the_health_check_of_the_image(service: Service, loopback: None) -> None:
    """It passes where a proxy is set for everything else, and fails while the service stops and once it is gone."""
    text = (ROOT / "Dockerfile").read_text(encoding="utf-8").partition("HEALTHCHECK")[2]
    _, *words = json.loads(re.findall(r"CMD (\[.*\])$", text, re.MULTILINE)[0])

    def status() -> int:
        command = [sys.executable, *(word.replace("8000", str(port)) for word in words)]
        proxies = dict.fromkeys(("HTTP_PROXY", "http_proxy"), "http://127.0.0.1:9")
        return subprocess.run(command, env=proxies, timeout=60, stderr=subprocess.DEVNULL, check=False).returncode

    with listening(service) as (_, port, _):
        assert status() == 0
        service.is_stopping = True
        assert status() == 1
    assert status() == 1


def test_the_compose_file(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    yaml = pytest.importorskip("yaml")
    seen: dict[str, Any] = {}
    monkeypatch.setattr("bothways.serve.server.run_server", lambda *given, **named: seen.update(named, models=given[0]))
    (service,) = yaml.safe_load((ROOT / "compose.yaml").read_text(encoding="utf-8"))["services"].values()
    assert run("serve", *service["command"]).returncode == 0
    assert list(seen["models"]) == service["command"]
    assert API_KEY in service["environment"]
    assert all(port.startswith("127.0.0.1:") for port in service["ports"])
    assert int(service["stop_grace_period"].removesuffix("s")) > seen["settings"].timeout
