"""Commands that are killed at their n-th operation on files, whatever the clock says.

A server imports the library once, forks for each command, and kills the child when it is about to do its n-th
operation in the working folder: opening to write, renaming, removing, making folders, flushing to disk. It has no
threads when it forks. Run as a module, this file is the server.
"""

import contextlib
import functools
import gc
import hashlib
import importlib
import io
import json
import os
import pkgutil
import signal
import subprocess
import sys
import threading
import traceback
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Self

_OPERATIONS = ("os.rename", "os.remove", "os.rmdir", "os.mkdir", "os.truncate", "os.link", "os.symlink", "os.chmod")
_LATE = ("torch._dynamo", "rich.console", "rich.table", "pandas", "pyarrow.compute", "pyarrow.parquet", "bm25s", "onnx",
         "onnxruntime", "matplotlib.figure", "matplotlib.backends.backend_agg")  # fmt: skip
"""What commands import when they need it."""
QUICK = "QUICK_KILLS"
"""An environment variable of the server: without pictures of training and without waiting for the disk."""


@dataclass(frozen=True)
class Ended:
    """How a command ended."""

    code: int
    """The exit code; minus the signal of a killed one."""
    operations: int
    """Operations on files; 0 of a killed one."""
    out: str
    err: str

    @property
    def is_killed(self) -> bool:
        return self.code == -signal.SIGKILL


class Server:
    """Runs commands in forks of one process that has imported everything."""

    def __init__(self, folder: Path, *, is_quick: bool) -> None:
        tests, sources = Path(__file__).parents[1], Path(__file__).parents[2] / "src"
        paths = os.pathsep.join([str(sources), str(tests), os.environ.get("PYTHONPATH", "")])
        single = dict.fromkeys(("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "RAYON_NUM_THREADS"), "1")
        quick = {QUICK: "1"} if is_quick else {}
        self.process = subprocess.Popen(
            [sys.executable, "-m", "helpers.kills", str(folder)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env={**os.environ, **single, **quick, "PYTHONPATH": paths, "COLUMNS": "120"},
        )

    def run(self, words: list[str], folder: Path, dies_at: int = 0) -> Ended:
        """Run a command in a folder. `dies_at`: the number of the operation before which it is killed, from 1."""
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self.process.stdin.write(json.dumps([words, str(folder), dies_at]) + "\n")
        self.process.stdin.flush()
        return Ended(**json.loads(self.process.stdout.readline()))

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.process.communicate()  # ends the server, and closes both pipes


def digests(folder: Path, varies: tuple[str, ...] = ()) -> dict[str, str]:
    """What each file of a folder holds; of files that vary from run to run only that they are there."""
    found = {}
    for file in sorted(folder.rglob("*")):
        name = str(file.relative_to(folder))
        if file.is_dir():
            found[name + "/"] = ""
        else:
            is_known = file.name in varies or file.name == ".lock"
            found[name] = "" if is_known else hashlib.sha256(file.read_bytes()).hexdigest()
    return found


def digest_of(path: Path) -> Any:
    """What a file or folder holds, without hidden files, which are no part of a result; None if it is not there."""
    if path.is_dir():
        return {name: sha for name, sha in digests(path).items() if not Path(name).name.startswith(".")}
    return hashlib.sha256(path.read_bytes()).hexdigest() if path.exists() else None


# ---------------------------------------------------------------------- the server


def main() -> None:
    """Serve until standard input ends."""
    results, logs = os.fdopen(os.dup(1), "w"), Path(sys.argv[1])
    os.dup2(2, 1)
    _import_all()
    for line in sys.stdin:
        words, folder, dies_at = json.loads(line)
        results.write(json.dumps(asdict(_fork(words, folder, dies_at, logs))) + "\n")
        results.flush()


def _import_all() -> None:
    import torch

    import bothways

    torch.set_num_threads(1)
    for module in pkgutil.walk_packages(bothways.__path__, "bothways."):
        if not module.name.endswith("__main__"):
            importlib.import_module(module.name)
    for name in _LATE:
        with contextlib.suppress(ImportError):
            importlib.import_module(name)
    if QUICK in os.environ:
        _patch("bothways.train.session", "draw_curve", lambda *_: True)
    # Small files have many moments: parts of 16 texts, and turns of one part.
    _patch("bothways.engine.chunks", "_TEXTS", {"cpu": 16})
    _patch("bothways.scale.turns", "SECONDS", 0.0)
    _warm_up()
    assert threading.active_count() == 1


def _patch(module: str, name: str, value: Any) -> None:
    found = importlib.import_module(module)
    assert hasattr(found, name)
    setattr(found, name, value)


def _warm_up() -> None:
    """Do once what each command would do again: import the rest of typer, and build the commands."""
    import typer.main

    from bothways.cli import main as bothways

    _patch("typer.main", "get_command", functools.cache(typer.main.get_command))
    sys.argv = ["bothways", "models", "--json"]
    with contextlib.redirect_stdout(io.StringIO()), contextlib.suppress(SystemExit):
        bothways()
    gc.collect()
    gc.freeze()  # so that forks share what is there


def _fork(words: list[str], folder: str, dies_at: int, logs: Path) -> Ended:
    files = [logs / name for name in ("out", "err", "count")]
    for file in files:
        file.write_bytes(b"")
    child = os.fork()
    if not child:
        _command(words, folder, dies_at, files)
    _, status = os.waitpid(child, 0)
    out, err, count = (file.read_text(encoding="utf-8", errors="replace") for file in files)
    return Ended(os.waitstatus_to_exitcode(status), int(count or 0), out, err)


def _command(words: list[str], folder: str, dies_at: int, files: list[Path]) -> None:
    """The child. It leaves by os._exit, whatever happens."""
    code = 70
    try:
        for number, file in enumerate(files[:2], 1):
            os.dup2(os.open(file, os.O_WRONLY), number)
        os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
        os.chdir(folder)
        sys.argv = ["bothways", *words]
        counter = _Counter(folder, dies_at)
        from bothways.cli import main as bothways

        try:
            bothways()
            code = 0
        except SystemExit as stop:
            code = stop.code if isinstance(stop.code, int) else int(stop.code is not None)
        counter.is_over = True
        files[2].write_text(str(counter.seen))
        sys.stdout.flush()
        sys.stderr.flush()
    except BaseException:
        traceback.print_exc()
        sys.stderr.flush()
    finally:
        os._exit(code)


class _Counter:
    """Counts the operations of this process in a folder, and kills it before one of them."""

    def __init__(self, folder: str, dies_at: int) -> None:
        self.folder, self.dies_at, self.seen, self.is_over = os.path.realpath(folder), dies_at, 0, False
        self.lock = threading.RLock()
        sys.addaudithook(self._hear)
        flush, is_quick = os.fsync, QUICK in os.environ

        def fsync(handle: int) -> None:
            self._count()
            if not is_quick:
                flush(handle)

        setattr(os, "fsync", fsync)  # noqa: B010  # it raises no audit event; an assignment would need its exact type

    def _hear(self, event: str, arguments: tuple[Any, ...]) -> None:
        if event == "open":
            path, _, flags = arguments
            is_written = isinstance(flags, int) and flags & (os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC)
            if is_written and self._is_inside(path):
                self._count()
        elif event in _OPERATIONS:
            if self._is_inside(arguments[0]):
                self._count()
        elif event == "ctypes.dlsym" and arguments[1] == "renameat2":
            self._count()  # the exchange of two folders, which raises no event of its own

    def _is_inside(self, path: Any) -> bool:
        if isinstance(path, int):
            return False
        return os.path.realpath(os.fsdecode(path)).startswith(self.folder)

    def _count(self) -> None:
        with self.lock:
            if self.is_over:
                return
            self.seen += 1
            if self.seen == self.dies_at:
                os.kill(os.getpid(), signal.SIGKILL)
                signal.pause()


def shown(found: dict[str, str], expected: dict[str, str]) -> Iterator[str]:
    """What is different, for a person."""
    for name in sorted({*found, *expected}):
        if found.get(name) != expected.get(name):
            yield f"{name}: " + ("left" if name not in expected else "missing" if name not in found else "other bytes")


if __name__ == "__main__":
    main()
