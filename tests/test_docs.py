"""Every code block of the README and the docs runs; every link leads somewhere."""

import re
import runpy
import shlex
import shutil
import sys
from pathlib import Path
from typing import Any

import pytest

import bothways
from bothways import EncoderConfig, Model, ModelConfig
from bothways.cli import main
from bothways.model.config import Learned
from bothways.serve.service import Service

ROOT = Path(__file__).parent.parent
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
STORIES = sorted((ROOT / "docs/stories").glob("*.md"))  # their code runs in test_stories.py
BLOCK = re.compile(r"^```(\w*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
TABLE_COMMAND = re.compile(r"^\|.*\| `(bothways .*?)`.*\|$", re.MULTILINE)
SHORT = {
    "finetune": ["--set", "run.steps=2"],
    "compress": ["--set", "run.steps=2"],
    "pretrain": ["--set", "run.minutes=0.01"],
    "adapt": ["--set", "run.steps=2"],
}
"""The docs show how, not how well."""
MINUTES = re.compile(r"(?<=run\.minutes=)[\d.]+")


def open_only(models: Any, indexes: Any, *, settings: Any, device: Any, dtype: Any, **_: Any) -> None:
    """In place of a server, which would run until it is stopped: its models and indexes are opened."""
    Service.open(models, indexes, settings, device, dtype).close()


def run_command(words: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("bothways.serve.server.run_server", open_only)
    monkeypatch.setattr(sys, "argv", words)
    with pytest.raises(SystemExit) as stop:
        main()
    assert stop.value.code == 0, words


@pytest.fixture(scope="module")
def tiny_model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What `examples/tiny.py` saves, untrained: the docs show how, not how well."""
    tokenizer = bothways.train_vocabulary([ROOT / "examples" / "sample.txt"], size=1600)
    shape = EncoderConfig(tokenizer.size, width=32, layers=2, num_heads=2, ffn_width=64, positions=Learned(64))
    folder = tmp_path_factory.mktemp("docs") / "tiny-model"
    bothways.save(Model.new(ModelConfig(shape, ("masked",)), tokenizer), folder)
    return folder


@pytest.mark.slow
@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_code_runs(page: Path, tiny_model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    shutil.copytree(tiny_model, tmp_path / "tiny-model")
    shutil.copytree(ROOT / "examples", tmp_path / "examples")
    monkeypatch.chdir(tmp_path)
    names: dict[str, object] = {}
    blocks = BLOCK.findall(MINUTES.sub("0.01", page.read_text(encoding="utf-8")))
    assert blocks, f"{page.name} shows no code"
    for language, code in blocks:
        if language == "python":
            exec(compile(code, str(page), "exec"), names)
        for line in code.splitlines() if language == "sh" else ():
            if line.startswith("bothways "):
                run_command(shlex.split(line, comments=True), monkeypatch)


@pytest.mark.slow
def test_the_table_of_commands_runs(tiny_model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Every command of the README's table but those that need a data set, which is named in capitals; with a tiny
    model in place of the included one, to save time."""
    shutil.copytree(tiny_model, tmp_path / "tiny-model")
    shutil.copytree(ROOT / "examples", tmp_path / "examples")
    monkeypatch.chdir(tmp_path)
    commands = TABLE_COMMAND.findall((ROOT / "README.md").read_text(encoding="utf-8"))
    runnable = [shlex.split(command) for command in commands if "_DIR" not in command]
    assert len(runnable) >= 15
    for words in runnable:
        is_open = words[1] in ("finetune", "doctor") and not {"--model", "--teacher"} & set(words)
        run_command(words + SHORT.get(words[1], []) + ["--model", "tiny-model"] * is_open, monkeypatch)


@pytest.mark.slow
@pytest.mark.filterwarnings("default")  # one of the documents of the handbook is in another encoding
@pytest.mark.parametrize(
    ("example", "seen"), [("demo", "unseen reviews are right (95 %"), ("tiny", "The day after Friday is")]
)
def test_examples_run(
    example: str, seen: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """To the end, if only for a few steps; what `make demo` and the docs promise is there afterwards."""
    words = [str(ROOT / f"examples/{example}.py"), "--steps", "3"]
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "argv", words)
    runpy.run_path(words[0], run_name="__main__")
    said = capsys.readouterr().out
    assert seen in " ".join(said.split())
    (folder,) = (file.parent for file in tmp_path.rglob("config.json") if "checkpoints" not in file.parts)
    assert bothways.load(folder).config.encoder.layers in (2, 12)
    assert f"--model {folder.relative_to(tmp_path)}" in said


def test_make_targets_exist() -> None:
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    for page in [*PAGES, ROOT / "CONTRIBUTING.md"]:
        for target in re.findall(r"^make ([\w-]+)|`make ([\w-]+)`", page.read_text(encoding="utf-8"), re.MULTILINE):
            name = target[0] or target[1]
            assert re.search(rf"^{name}:", makefile, re.MULTILINE), f"{page.name}: make {name}"


def test_links_and_named_files_exist() -> None:
    for page in [*PAGES, *STORIES, ROOT / "CONTRIBUTING.md", ROOT / "CHANGELOG.md"]:
        text = page.read_text(encoding="utf-8")
        for target in re.findall(r"\]\(([^)#:]+)\)", text):
            assert (page.parent / target).exists(), f"{page.name}: {target}"
        for name in re.findall(r"`((?:tests|src|benchmarks|examples|docs)/[\w/.-]+)`", text):
            assert (ROOT / name).exists(), f"{page.name}: {name}"


def test_the_file_tree_is_true() -> None:
    """Each file that the tree of CONTRIBUTING.md names is there, and each part of the library is named."""
    page = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")
    tree = page.split("## Layout")[1].split("```")[1]
    named = set(re.findall(r"\b(\w+\.py)\b", tree))
    source = ROOT / "src" / "bothways"
    there = {file.name for folder in (source, ROOT / "examples", ROOT / "tools") for file in folder.rglob("*.py")}
    assert named <= there
    rooms = {file.name for room in ("cli", "doctor") for file in (source / room).glob("*.py")}  # one line each
    assert there - named - rooms - {"__init__.py"} == set()
