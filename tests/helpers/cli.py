"""The command line as tests call it."""

import csv
import gzip
import io
import json
import lzma
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from helpers import NETWORK

# Any use of the network ends the process with status 99, whatever catches exceptions.
GUARDED = f"""
import os, sys
def guard(event, arguments):
    if event in {sorted(NETWORK)!r}:
        sys.stderr.write("network: " + event)
        os._exit(99)
sys.addaudithook(guard)
from bothways.cli import main
main()
"""


Done = subprocess.CompletedProcess[str]


Run = Callable[..., Done]


def run_apart(*arguments: object, stdin: str = "") -> Done:
    """The command in a process of its own, with warnings as errors and the network guarded."""
    return subprocess.run(
        [sys.executable, "-W", "error", "-c", GUARDED, *map(str, arguments)],
        input=stdin, capture_output=True, timeout=120, encoding="utf-8", check=False,
    )  # fmt: skip


def is_one_error(stderr: str, value: str) -> bool:
    """One line, for a person, that names what is wrong."""
    return stderr.startswith("bothways: ") and stderr.count("\n") == 1 and value in stderr


def write_rows(path: Path, rows: list[str]) -> Path:
    """The rows in the kind of file that the name says, in a column `body` between two others."""
    table = [{"id": str(i), "body": row, "other": "-"} for i, row in enumerate(rows)]
    plain = path.with_suffix("") if path.suffix in (".gz", ".xz") else path
    if plain.suffix == ".parquet":
        pq.write_table(pa.Table.from_pylist(table), path, row_group_size=4)
        return path
    if plain.suffix == ".csv":
        stream = io.StringIO(newline="")
        writer = csv.DictWriter(stream, ["id", "body", "other"])
        writer.writeheader()
        writer.writerows(table)
        content = stream.getvalue()
    elif plain.suffix == ".tsv":
        content = "".join(
            "\t".join(row) + "\n" for row in [["id", "body", "other"], *[list(r.values()) for r in table]]
        )
    else:
        content = "".join(json.dumps(row) + "\n" for row in table)
    pack: dict[str, Callable[[bytes], bytes]] = {".gz": gzip.compress, ".xz": lzma.compress}
    path.write_bytes(pack.get(path.suffix, bytes)(content.encode()))
    return path
