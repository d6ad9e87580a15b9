"""What a model folder holds, in short, to tell whether two are the same."""

import hashlib
from pathlib import Path

_SMALL = 2**20  # bytes; a file of a model up to this size is compared by its content, a larger one by its time


def fingerprint(folder: Path) -> dict[str, str]:
    """What a model folder holds, by file: a hash of small files, size and time of large ones."""
    files = [folder] if folder.is_file() else sorted(file for file in folder.rglob("*") if file.is_file())
    found = {}
    for file in files:
        facts = file.stat()
        is_small = facts.st_size <= _SMALL
        content = file.read_bytes() if is_small else f"{facts.st_size} {facts.st_mtime_ns}".encode()
        found[file.name if file == folder else str(file.relative_to(folder))] = hashlib.sha256(content).hexdigest()[:16]
    return found
