"""Atomic writes of files and folders.

Each writer works under a hidden name beside the target, flushes to disk and renames. A kill at any moment leaves the
old content or the new, never a mixture.
"""

import contextlib
import ctypes
import fcntl
import glob
import itertools
import os
import platform
import re
import secrets
import shutil
import zlib
from collections.abc import Collection, Iterator
from pathlib import Path

from bothways.errors import BothwaysError

_AT_FDCWD, _RENAME_EXCHANGE = -100, 2  # Linux renameat2(2)
_HIDDEN = re.compile(r"\..+\.[0-9a-f]{8}-\d+-[0-9a-f]{8}(\.\w+)*")
"""What `_hidden_name` gives."""


@contextlib.contextmanager
def new_file(path: Path) -> Iterator[Path]:
    """Yield a temporary path beside `path`; it replaces `path` if the block succeeds.

    A link stays, and its target is replaced. What is no file, such as a pipe or a device, is refused.
    """
    path = Path(os.path.realpath(path))
    require_file_or_nothing(path)
    with _os_errors_explained(path), made_folder(path.parent, path):
        temporary = _hidden_name(path)
        try:
            temporary.touch(exist_ok=False)
            yield temporary
            _flush(temporary)
            os.replace(temporary, path)
            _flush(path.parent)
        finally:
            temporary.unlink(missing_ok=True)


def require_file_or_nothing(path: Path) -> None:
    """Refuse a place where a file is to be written later, if something else than a file is there."""
    if path.exists() and not path.is_file() and not path.is_dir():
        raise BothwaysError(
            f"{path} is a pipe or a device, and a file was to be written there: name a file", "not-a-file", path
        )
    if path.is_dir():
        raise BothwaysError(f"{path} is a folder, and a file was to be written there", "is-a-folder", path)


@contextlib.contextmanager
def new_folder(path: Path, *, replaces: Collection[str]) -> Iterator[Path]:
    """Yield a temporary folder beside `path`; it replaces `path` if the block succeeds.

    An existing folder is replaced only if all its files have names in `replaces`: a mistyped path must not destroy
    other files.
    """
    path = Path(os.path.realpath(path))  # a link stays, and its target is replaced
    with _os_errors_explained(path):
        if path.exists() and not path.is_dir():
            raise BothwaysError(f"{path} is a file, and a folder was to be written there", "is-a-file", path)
        _require_ours(path, replaces)
        with made_folder(path.parent, path):
            temporary = _hidden_name(path)
            try:
                temporary.mkdir()
                yield temporary
                for written in [*temporary.rglob("*"), temporary]:
                    if written.is_file():  # safetensors makes files that only their owner may read
                        written.chmod(temporary.stat().st_mode & 0o666)
                    _flush(written)
                _require_ours(path, replaces)  # again, for files that came in the meantime
                _replace_folder(temporary, path)
                _flush(path.parent)
            finally:
                shutil.rmtree(temporary, ignore_errors=True)  # after an exchange, the old folder


@contextlib.contextmanager
def made_folder(folder: Path, target: Path | None = None) -> Iterator[None]:
    """Make a folder with its parents. After an error in the block, those of them that are empty are removed again.

    `target`: what is to be written in it, which an error names.
    """
    missing: list[Path] = []
    try:
        with _os_errors_explained(target or folder):
            missing += itertools.takewhile(lambda one: not one.exists(), (folder, *folder.parents))
            folder.mkdir(parents=True, exist_ok=True)
        yield
    except BaseException:
        for made in missing:
            with contextlib.suppress(OSError):  # it holds what others wrote, or an earlier block
                made.rmdir()
        raise


def copy_folder(source: Path, target: Path) -> None:
    """Copy a folder; an earlier copy of the same files is replaced."""
    with new_folder(target, replaces=tuple(path.name for path in source.iterdir())) as fresh:
        shutil.copytree(source, fresh, dirs_exist_ok=True)


@contextlib.contextmanager
def only_writer(home: Path) -> Iterator[None]:
    """Refuse a second writer in the same folder, which is made if there is none.

    The lock ends with the process, however it ends. After an error, a folder that was made and is empty is removed.
    """
    with contextlib.ExitStack() as made:
        try:
            made.enter_context(made_folder(home))
            handle = os.open(home, os.O_RDONLY)
        except OSError as error:
            raise BothwaysError(f"{home} could not be written: {error.strerror}", "unwritable", home) from error
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(handle)
            raise BothwaysError(f"another process is at work in {home}: wait for it", "already-running", home) from None
        except OSError:
            pass  # a file system without locks
        try:
            yield
        finally:
            os.close(handle)


def other_files(folder: Path, known: Collection[str]) -> list[str]:
    """The names in a folder that are neither known nor what a killed writer has left."""
    names = {file.name for file in folder.iterdir()} if folder.exists() else set()
    return sorted(name for name in names - set(known) if not _HIDDEN.fullmatch(name))


def _require_ours(path: Path, replaces: Collection[str]) -> None:
    if others := other_files(path, replaces):
        raise BothwaysError(
            f"{path} already holds other files, such as {others[0]}: name a new or empty folder", "other-files", path
        )


def _replace_folder(new: Path, path: Path) -> None:
    """Move folder `new` to `path`; an older folder there ends up under `new`'s name."""
    if not path.exists():
        os.rename(new, path)
        return
    libc = ctypes.CDLL(None, use_errno=True)
    exchange = getattr(libc, "renameat2", None)
    names = os.fsencode(new), os.fsencode(path)
    if exchange and exchange(_AT_FDCWD, names[0], _AT_FDCWD, names[1], _RENAME_EXCHANGE) == 0:
        return
    # No atomic exchange on this system: after a kill between the two renames the old folder has its hidden name.
    aside = new.with_name(new.name + ".old")
    os.rename(path, aside)
    os.rename(new, path)
    os.rename(aside, new)


@contextlib.contextmanager
def _os_errors_explained(path: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        # numpy raises an OSError without a number or a reason when the disk is full; shutil's has a list of reasons.
        reason = error.strerror or f"No space left on device ({error})"
        if isinstance(error, shutil.Error):
            reason = str(error.args[0][0][-1])
        raise BothwaysError(f"{path} could not be written: {reason}", "unwritable", path) from error


def _flush(path: Path) -> None:
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def _hidden_name(path: Path) -> Path:
    """A temporary name, chosen before anything is created, so that an interrupt finds the clean-up in place.

    It holds the machine and the process: the next writer removes what a killed process of this machine has left.
    """
    _clear(path.parent, glob.escape(path.name))
    return path.with_name(f".{path.name}.{_here()}-{os.getpid()}-{secrets.token_hex(4)}{path.suffix}")


def clear(folder: Path) -> None:
    """Remove what killed writers of this machine have left in a folder."""
    _clear(folder, "*")


def _clear(folder: Path, name: str) -> None:
    for left in folder.glob(f".{name}.{_here()}-*"):
        writer = left.name.rpartition(f".{_here()}-")[2].partition("-")[0]
        if writer.isdigit() and not _is_alive(int(writer)):
            shutil.rmtree(left, ignore_errors=True) if left.is_dir() else left.unlink(missing_ok=True)


def _here() -> str:
    return f"{zlib.crc32(platform.node().encode()):08x}"


def _is_alive(process: int) -> bool:
    try:
        os.kill(process, 0)
    except ProcessLookupError:
        return False
    except OSError:  # a process of another user
        pass
    return True
