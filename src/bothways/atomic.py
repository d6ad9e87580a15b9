"""Files and folders that appear whole or not at all.

Each writer works under a hidden name beside the target, flushes to disk and renames. A kill at any
moment leaves the old content or the new, never half of one.
"""

import contextlib
import ctypes
import glob
import os
import platform
import secrets
import shutil
import zlib
from collections.abc import Collection, Iterator
from pathlib import Path

from bothways.errors import BothwaysError

_AT_FDCWD, _RENAME_EXCHANGE = -100, 2  # Linux renameat2(2)


@contextlib.contextmanager
def new_file(path: Path) -> Iterator[Path]:
    """Yield a temporary path beside `path`; it takes `path`'s place if the block ends well."""
    if path.is_dir():
        raise BothwaysError(f"{path} is a folder, and a file was to be written there")
    with _explained(path):
        path.parent.mkdir(parents=True, exist_ok=True)
        temporary = _hidden_name(path)
        try:
            temporary.touch(exist_ok=False)
            yield temporary
            _flush(temporary)
            os.replace(temporary, path)
            _flush(path.parent)
        finally:
            temporary.unlink(missing_ok=True)


@contextlib.contextmanager
def new_folder(path: Path, *, replaces: Collection[str]) -> Iterator[Path]:
    """Yield a temporary folder beside `path`; it takes `path`'s place if the block ends well.

    A folder that is already there is replaced only if it holds nothing but files called as in `replaces`:
    nobody loses anything else to a mistyped `--out`.
    """
    path = Path(os.path.realpath(path))  # a link stays a link, and what it points to is replaced
    with _explained(path):
        if path.exists() and not path.is_dir():
            raise BothwaysError(f"{path} is a file, and a folder was to be written there")
        _require_ours(path, replaces)
        path.parent.mkdir(parents=True, exist_ok=True)
        temporary = _hidden_name(path)
        try:
            temporary.mkdir()
            yield temporary
            for written in [*temporary.rglob("*"), temporary]:
                if written.is_file():  # whoever may open the folder may read it: safetensors makes files for one alone
                    written.chmod(temporary.stat().st_mode & 0o666)
                _flush(written)
            _require_ours(path, replaces)  # again, for what came in the meantime
            _put(temporary, path)
            _flush(path.parent)
        finally:
            shutil.rmtree(temporary, ignore_errors=True)  # after an exchange this is the old folder


def _require_ours(path: Path, replaces: Collection[str]) -> None:
    others = sorted({file.name for file in path.iterdir()} - set(replaces)) if path.exists() else []
    if others:
        raise BothwaysError(f"{path} already holds other files, such as {others[0]}: name a new or empty folder")


def _put(new: Path, path: Path) -> None:
    """Move folder `new` to `path`; an older folder there ends up under `new`'s name."""
    if not path.exists():
        os.rename(new, path)
        return
    libc = ctypes.CDLL(None, use_errno=True)
    exchange = getattr(libc, "renameat2", None)
    names = os.fsencode(new), os.fsencode(path)
    if exchange and exchange(_AT_FDCWD, names[0], _AT_FDCWD, names[1], _RENAME_EXCHANGE) == 0:
        return
    # No atomic exchange on this system: the old folder survives under its hidden name if we die between the two.
    aside = new.with_name(new.name + ".old")
    os.rename(path, aside)
    os.rename(new, path)
    os.rename(aside, new)


@contextlib.contextmanager
def _explained(path: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        # numpy's has neither a number nor a reason, only how many it wrote: that is a full disk.
        reason = error.strerror or f"No space left on device ({error})"
        raise BothwaysError(f"{path} could not be written: {reason}") from error


def _flush(path: Path) -> None:
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def _hidden_name(path: Path) -> Path:
    """Chosen before anything is made, so that whoever interrupts us finds the clean-up already in place.

    It says who writes there: what a killed process of this machine has left is removed by the next writer.
    """
    here = zlib.crc32(platform.node().encode())
    for left in path.parent.glob(f".{glob.escape(path.name)}.{here:08x}-*"):
        writer = left.name.removeprefix(f".{path.name}.{here:08x}-").partition("-")[0]
        if writer.isdigit() and not _is_alive(int(writer)):
            shutil.rmtree(left, ignore_errors=True) if left.is_dir() else left.unlink(missing_ok=True)
    return path.with_name(f".{path.name}.{here:08x}-{os.getpid()}-{secrets.token_hex(4)}{path.suffix}")


def _is_alive(process: int) -> bool:
    try:
        os.kill(process, 0)
    except ProcessLookupError:
        return False
    except OSError:  # another user's
        pass
    return True
