"""Files and folders appear whole or not at all."""

import os
import stat
import subprocess
import sys
from pathlib import Path

import pytest
import safetensors.torch
import torch

from bothways import atomic
from helpers import refused


def test_a_file_takes_its_place_at_the_end(tmp_path: Path) -> None:
    path = tmp_path / "deep" / "file.txt"
    with atomic.new_file(path) as fresh:
        fresh.write_text("new")
        assert not path.exists()
    assert path.read_text() == "new"
    assert list(path.parent.iterdir()) == [path]
    umask = os.umask(0)
    os.umask(umask)
    assert stat.S_IMODE(path.stat().st_mode) == 0o666 & ~umask


def test_a_failure_leaves_the_old_file(tmp_path: Path) -> None:
    path = tmp_path / "file.txt"
    path.write_text("old")
    with pytest.raises(ZeroDivisionError), atomic.new_file(path) as fresh:
        fresh.write_text("half")
        _ = 1 / 0
    assert path.read_text() == "old"
    assert list(tmp_path.iterdir()) == [path]


@pytest.mark.parametrize("kind", ["file", "folder", "writer"])
def test_a_failure_leaves_no_folder_that_was_not_there(kind: str, tmp_path: Path) -> None:
    """Neither the one it is in nor its parents, but those that hold something else, or were there before."""
    (tmp_path / "before").mkdir()

    def fail(path: Path, beside: str = "") -> None:
        writers = {"file": atomic.new_file, "folder": lambda path: atomic.new_folder(path, replaces=())}
        with pytest.raises(ZeroDivisionError), writers.get(kind, atomic.only_writer)(path):
            if beside:
                (path.parent / beside).touch()
            _ = 1 / 0

    fail(tmp_path / "before" / "a" / "b" / "out")
    assert list(tmp_path.rglob("*")) == [tmp_path / "before"]
    fail(tmp_path / "before" / "a" / "b" / "out", "other")
    assert [path.name for path in sorted(tmp_path.rglob("*"))] == ["before", "a", "b", "other"]


def test_a_folder_is_exchanged(tmp_path: Path) -> None:
    path = tmp_path / "folder"
    for content in ("old", "new"):
        with atomic.new_folder(path, replaces=["mark"]) as fresh:
            (fresh / "mark").write_text(content)
        assert (path / "mark").read_text() == content
    assert list(tmp_path.iterdir()) == [path]


def test_the_exchange_is_one_step(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "folder"
    path.mkdir()
    monkeypatch.setattr(os, "rename", lambda *_: pytest.fail("the folder was absent for a moment"))
    with atomic.new_folder(path, replaces=["mark"]) as fresh:
        (fresh / "mark").write_text("new")
    assert (path / "mark").read_text() == "new"


def test_everything_is_flushed_before_it_takes_its_place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A rename may reach the disk before the data does, unless the data was told to go first."""
    flushed: set[int] = set()
    monkeypatch.setattr(os, "fsync", lambda handle: flushed.add(os.fstat(handle).st_ino))
    with atomic.new_folder(tmp_path / "folder", replaces=[]) as fresh:
        (fresh / "mark").write_text("new")
    with atomic.new_file(tmp_path / "file.txt") as single:
        single.write_text("new")
    written = [tmp_path, tmp_path / "folder", tmp_path / "folder" / "mark", tmp_path / "file.txt"]
    assert {path.stat().st_ino for path in written} == flushed


def test_a_folder_is_exchanged_where_the_system_cannot(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("ctypes.CDLL", lambda *_, **__: object())
    test_a_folder_is_exchanged(tmp_path)


@pytest.mark.parametrize("mask", [0o022, 0o077])
def test_files_of_a_folder_are_as_open_as_the_folder(tmp_path: Path, mask: int) -> None:
    """Whatever the one who wrote them thought."""
    before = os.umask(mask)
    try:
        with atomic.new_folder(tmp_path / "model", replaces=()) as fresh:
            safetensors.torch.save_file({"a": torch.zeros(1)}, fresh / "weights")
            (fresh / "text").touch(mode=0o600)
    finally:
        os.umask(before)
    assert {file.stat().st_mode & 0o777 for file in (tmp_path / "model").iterdir()} == {0o666 & ~mask}


def test_a_failure_leaves_the_old_folder(tmp_path: Path) -> None:
    path = tmp_path / "folder"
    path.mkdir()
    (path / "mark").write_text("old")
    with pytest.raises(ZeroDivisionError), atomic.new_folder(path, replaces=["mark"]) as fresh:
        (fresh / "mark").write_text("half")
        _ = 1 / 0
    assert (path / "mark").read_text() == "old"
    assert list(tmp_path.iterdir()) == [path]


def test_other_peoples_folders_are_safe(tmp_path: Path) -> None:
    (tmp_path / "letters.txt").write_text("precious")
    with refused("other-files", tmp_path), atomic.new_folder(tmp_path, replaces=["mark"]):
        pytest.fail("the block ran")
    with refused("is-a-folder", tmp_path), atomic.new_file(tmp_path):
        pytest.fail("the block ran")


def test_what_a_killed_writer_left_is_removed_by_the_next(tmp_path: Path) -> None:
    """But nothing of one that is still at work."""
    script = (
        "import os, signal, sys; from pathlib import Path; from bothways import atomic\n"
        "with atomic.new_folder(Path(sys.argv[1]), replaces=['mark']) as fresh:\n"
        "    (fresh / 'mark').write_text('half')\n"
        "    os.kill(os.getpid(), signal.SIGKILL)\n"
    )
    subprocess.run([sys.executable, "-c", script, str(tmp_path / "made")], check=False)
    (left,) = tmp_path.iterdir()
    assert left.name.startswith(".made.")
    with atomic.new_folder(tmp_path / "made", replaces=["mark"]) as first:
        assert not left.exists()
        with atomic.new_folder(tmp_path / "made", replaces=["mark"]) as second:
            assert first.exists()
            (second / "mark").write_text("second")
        (first / "mark").write_text("first")
    assert [path.name for path in tmp_path.iterdir()] == ["made"]
