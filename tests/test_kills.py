"""Every command that writes is killed at moments of its work: the old or the new, and the same bytes in the end.

A moment is a number of operations on files. Here a few of each command; `make kills` tries 50 of each.
"""

import os
import random
import shlex
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from typer.main import get_command

from bothways.cli import app
from bothways.text.tokenizer import Tokenizer
from helpers.kills import Ended, Server, digest_of, digests, shown
from helpers.writing_verbs import READERS, REFUSED, WRITERS, WRITES, Writer, make_inputs

MOMENTS = int(os.environ.get("MOMENTS", "0"))
"""Of each command; 0: the last and one between, and mostly the first."""


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory, tokenizer: Tokenizer) -> Path:
    folder = tmp_path_factory.mktemp("data")
    make_inputs(folder, tokenizer)
    return folder


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    with Server(tmp_path_factory.mktemp("logs"), is_quick=not MOMENTS) as started:
        yield started


class Trial:
    """A command in a folder that can be put back to how it was before."""

    def __init__(self, writer: Writer, server: Server, data: Path, home: Path) -> None:
        self.writer, self.server, self.data = writer, server, data
        self.work, self.start = home / "work", home / "start"
        self.work.mkdir(parents=True)
        for command in writer.before:
            assert self.run(command).code == 0
        shutil.copytree(self.work, self.start)
        self.old = self.state()

    def run(self, command: str, dies_at: int = 0) -> Ended:
        return self.server.run(shlex.split(command.format(data=self.data)), self.work, dies_at)

    def begin_again(self) -> None:
        shutil.rmtree(self.work)
        shutil.copytree(self.start, self.work)

    def state(self) -> list[Any]:
        """What is to be the old or the new: each output by its content, and the answer of what reads them."""
        found = [digest_of(self.work / name) for name in self.writer.outputs]
        if self.writer.asks:
            asked = self.run(self.writer.asks)
            assert asked.code in (0, 1), asked.err
            found.append((asked.code, asked.out))
        return found


def moments(operations: int, name: str) -> list[int]:
    """The numbers of the operations to be killed before."""
    if MOMENTS:
        return sorted(random.Random(name).sample(range(1, operations + 1), min(MOMENTS, operations)))
    between = random.Random(name).randint(2, max(2, operations - 1))
    first = {1} if operations < 60 else set()  # commands of many moments take long
    return sorted({*first, between, operations})


@pytest.mark.parametrize("name", WRITERS)
def test_a_kill_leaves_the_old_or_the_new(name: str, server: Server, data: Path, tmp_path: Path) -> None:
    writer = WRITERS[name]
    trial = Trial(writer, server, data, tmp_path)
    whole = trial.run(writer.command)
    assert whole.code == 0, whole.err
    new, expected = trial.state(), digests(trial.work, writer.varies)
    assert new != trial.old
    again = trial.run(writer.command)
    assert again.code == writer.twice, again.err
    assert whole.operations > 2
    for moment in moments(whole.operations, name):
        trial.begin_again()
        assert trial.run(writer.command, moment).is_killed, moment
        left = trial.state()
        assert all(found in (before, after) for found, before, after in zip(left, trial.old, new, strict=True)), moment
        done = trial.run(writer.command)
        assert done.code == 0 or (done.code == writer.twice and left == new), (moment, done.err)
        found = digests(trial.work, writer.varies)
        assert found == expected, (moment, whole.operations, [*shown(found, expected)])


@pytest.mark.parametrize("command", REFUSED)
def test_a_refusal_leaves_nothing(command: str, server: Server, data: Path, tmp_path: Path) -> None:
    (tmp_path / "work").mkdir()
    ended = server.run(shlex.split(command.format(data=data)), tmp_path / "work")
    assert ended.code == 1, ended
    assert "bothways: " in ended.err
    assert not list((tmp_path / "work").rglob("*"))


@pytest.mark.parametrize("devices", ["--device cpu", "--devices cpu:2"])
def test_a_refused_addition_leaves_the_index(devices: str, server: Server, data: Path, tmp_path: Path) -> None:
    def run(command: str) -> int:
        return server.run(shlex.split(command.format(data=data)), tmp_path).code

    assert run("search build {data}/old.txt --out index --long error --model {data}/model --device cpu") == 0
    before = digests(tmp_path)
    assert run(f"search add index {{data}}/long.txt {devices}") == 1
    assert digests(tmp_path) == before
    assert run(f"search add index {{data}}/texts.txt {devices}") == 0


def commands() -> dict[str, Any]:
    """Every command, with the words that call it."""

    def leaves(command: Any, words: str) -> Iterator[tuple[str, Any]]:
        if not hasattr(command, "commands"):
            yield words.strip(), command
            return
        for name, inner in command.commands.items():
            yield from leaves(inner, f"{words} {name}")

    return dict(leaves(get_command(app), ""))


def test_no_command_that_writes_is_missing() -> None:
    """A new command is killed here, or is listed among those that write nothing."""
    killed = {
        words for words in commands() for writer in WRITERS.values() if f"{writer.command} ".startswith(f"{words} ")
    }
    assert killed | READERS == set(commands())
    assert {words for words in commands() if any(f"{one} ".startswith(f"{words} ") for one in REFUSED)} == killed
    assert not killed & READERS


def test_no_way_of_writing_is_missing() -> None:
    for words, command in commands().items():
        own = [f"{writer.command} " for writer in WRITERS.values() if f"{writer.command} ".startswith(f"{words} ")]
        for parameter in command.params:
            if parameter.name in WRITES:
                assert words not in READERS, (words, parameter.name)
                if parameter.param_type_name == "option":
                    assert any(f" {parameter.opts[0]} " in line for line in own), (words, parameter.name)
