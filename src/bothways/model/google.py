"""Google's original BERT folders, read without TensorFlow: bert_config.json, vocab.txt, bert_model.ckpt.*

A TensorFlow 1 checkpoint is an index and one or more data files. The index is a table in LevelDB's format: blocks
of sorted keys, each key without the beginning it shares with the one before. Its values are protocol buffers that
say where in the data files each variable lies. Every checksum of what is read is verified.
"""

import functools
import io
import math
import re
import struct
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from bothways.errors import BothwaysError

# Google's names into Hugging Face's: all of these, one after the other.
_NAMES = (
    (r"^output_(?=(weights|bias)$)", "classifier/output_"),  # run_classifier.py
    (r"^cls/squad/", "qa_outputs/"),  # run_squad.py
    (r"/output_(?=(weights|bias)$)", "/"),
    (r"/(weights|kernel|gamma)$", "/weight"),
    (r"/beta$", "/bias"),
    (r"_embeddings$", "_embeddings/weight"),
    (r"/layer_(\d+)/", r"/layer/\1/"),
    (r"/", "."),
)
# What only serves to go on training: adam_m, adam_v, lamb_m, AdamWeightDecayOptimizer_1, …
_OPTIMISER = re.compile(r"(^|/)(global_step|beta[12]_power|(adam|lamb)(_\w+|\w*optimizer\w*)?)(/|$)", re.IGNORECASE)
_DTYPES = {1: torch.float32, 3: torch.int32, 9: torch.int64, 14: torch.bfloat16, 19: torch.float16}


@dataclass(frozen=True)
class _Entry:
    """Where a variable lies."""

    dtype: int
    shape: tuple[int, ...]
    shard: int
    offset: int
    size: int
    checksum: int
    is_partitioned: bool


def read(folder: Path, raw: dict[str, Any]) -> tuple[dict[str, Any], dict[str, Tensor]]:
    """A checkpoint's config and tensors in Hugging Face's terms; `raw` is what bert_config.json says."""
    try:
        tensors = _read_tensors(_find_index(folder))
    except OSError as error:
        raise BothwaysError(f"{error.filename or folder} cannot be read: {error.strerror}") from error
    # "gelu" stays, and means erf: so it was computed when these models were trained, and so Hugging Face reads the
    # same files. Google's code turned to the tanh approximation only later.
    return {"model_type": "bert", "layer_norm_eps": 1e-12} | raw, tensors


def _find_index(folder: Path) -> Path:
    usual, latest = folder / "bert_model.ckpt.index", folder / "checkpoint"
    if usual.exists():
        return usual
    found = sorted(folder.glob("*.ckpt*.index")) or sorted(folder.glob("*.index"))
    if len(found) > 1 and latest.exists():  # TensorFlow's note of what it wrote last; the path may be another machine's
        named = re.search(r'"(?:.*/)?(.+)"', latest.read_text(encoding="utf-8", errors="replace"))
        found = [path for path in found if named and path.name == f"{named[1]}.index"] or found
    if len(found) == 1:
        return found[0]
    names = ", ".join(path.name for path in found) or "none"
    raise BothwaysError(f"{folder} should hold one checkpoint, {usual.name}, and holds {names}")


def _read_tensors(index: Path) -> dict[str, Tensor]:
    entries, shards = _read_index(index)
    tensors: dict[str, Tensor] = {}
    for variable, entry in entries.items():
        if _OPTIMISER.search(variable):
            continue
        path = index.with_name(f"{index.name.removesuffix('.index')}.data-{entry.shard:05}-of-{shards:05}")
        try:
            tensor = _read_tensor(path, entry)
        except ValueError as error:
            raise BothwaysError(f"{path}: the variable {variable} {error}") from error
        name = variable
        for pattern, replacement in _NAMES:
            name = re.sub(pattern, replacement, name)
        if name in tensors:
            raise BothwaysError(f"{index} holds two variables that would both be called {name}")
        # TensorFlow multiplies from the other side: its kernels are (in, out) and ours (out, in).
        is_kernel = variable.endswith("/kernel") and tensor.ndim == 2
        tensors[name] = tensor.T.contiguous() if is_kernel else tensor
    return tensors


def _read_tensor(shard: Path, entry: _Entry) -> Tensor:
    if entry.is_partitioned:
        raise ValueError("is stored in slices, and only whole variables can be read here")
    if entry.dtype not in _DTYPES:
        known = ", ".join(str(dtype).removeprefix("torch.") for dtype in _DTYPES.values())
        raise ValueError(f"has TensorFlow's number type {entry.dtype}, and only {known} can be read here")
    expected = math.prod(entry.shape) * _DTYPES[entry.dtype].itemsize
    if not entry.size or entry.size != expected:
        raise ValueError(f"has {entry.size} bytes, and its shape {list(entry.shape)} asks for {expected}")
    end, there = entry.offset + entry.size, shard.stat().st_size
    if end > there:
        raise ValueError(f"ends at byte {end}, and the file has only {there}: it is cut short")
    # Not a memory map: that would have to be copied anyway, and kills the process if the file shrinks meanwhile.
    data = np.fromfile(shard, np.uint8, entry.size, offset=entry.offset)
    if _checksum(data) != entry.checksum:
        raise ValueError("has the wrong checksum: the file is damaged")
    return torch.from_numpy(data).view(_DTYPES[entry.dtype]).reshape(entry.shape)


def _read_index(path: Path) -> tuple[dict[str, _Entry], int]:
    """The variables in the order of their names, and the number of data files."""
    try:
        table = dict(_read_table(path.read_bytes()))
        header, _ = _read_message(table.pop(b"", b""))
        entries = {key.decode(errors="backslashreplace"): _read_entry(value) for key, value in table.items()}
    except ValueError as error:
        raise BothwaysError(f"{path} cannot be read as a TensorFlow checkpoint's index: {error}") from error
    if header.get(2):
        raise BothwaysError(f"{path} is of a big-endian checkpoint, and only little-endian ones can be read here")
    if "_CHECKPOINTABLE_OBJECT_GRAPH" in entries:
        raise BothwaysError(f"{path} is of a TensorFlow 2 checkpoint, and only Google's original ones can be read here")
    return entries, header.get(1, 0)


def _read_entry(value: bytes) -> _Entry:
    numbers, nested = _read_message(value)
    sizes = [_read_message(size)[0] for shape in nested.get(2, []) for size in _read_message(shape)[1].get(2, [])]
    shard, offset, size, checksum = (numbers.get(field, 0) for field in (3, 4, 5, 6))
    return _Entry(numbers.get(1, 0), tuple(s.get(1, 0) for s in sizes), shard, offset, size, checksum, 7 in nested)


def _read_table(data: bytes) -> Iterator[tuple[bytes, bytes]]:
    """All keys and values of a LevelDB table."""
    if not data.endswith(bytes.fromhex("57fb808b247547db")):
        raise ValueError("its last 8 bytes are not the ones that end every such file")
    footer = io.BytesIO(data[-48:])
    _read_number(footer), _read_number(footer)  # where a block about the blocks is, which TensorFlow leaves empty
    for _, handle in _read_block(data, footer):
        yield from _read_block(data, io.BytesIO(handle))


def _read_block(data: bytes, handle: io.BytesIO) -> Iterator[tuple[bytes, bytes]]:
    """The keys and values of the block whose offset and size `handle` gives."""
    offset, size = _read_number(handle), _read_number(handle)
    block, trailer = data[offset : offset + size], data[offset + size : offset + size + 5]
    if len(trailer) < 5:
        raise ValueError("a block is cut short")
    compression, checksum = struct.unpack("<BI", trailer)
    if _checksum(np.frombuffer(block + trailer[:1], np.uint8)) != checksum:
        raise ValueError("a block has the wrong checksum, so the file is damaged")
    if compression:
        raise ValueError("a block is compressed with Snappy, and only plain ones can be read here")
    # A block ends with the places of its unshortened keys, which serve to search it, and their number.
    end = size - 4 - 4 * int.from_bytes(block[-4:], "little")
    stream, key = io.BytesIO(block[: max(end, 0)]), b""
    while stream.tell() < end:
        shared, fresh, length = (_read_number(stream) for _ in range(3))
        key = key[:shared] + _take(stream, fresh)
        yield key, _take(stream, length)


def _read_message(data: bytes) -> tuple[dict[int, int], dict[int, list[bytes]]]:
    """A protocol buffer's numbers and its nested messages, by field."""
    numbers: dict[int, int] = {}
    nested: dict[int, list[bytes]] = {}
    stream = io.BytesIO(data)
    while stream.tell() < len(data):
        field, kind = divmod(_read_number(stream), 8)
        if kind == 2:
            nested.setdefault(field, []).append(_take(stream, _read_number(stream)))
        elif kind in (1, 5):
            numbers[field] = int.from_bytes(_take(stream, 8 if kind == 1 else 4), "little")
        else:
            numbers[field] = _read_number(stream)
    return numbers, nested


def _read_number(stream: io.BytesIO) -> int:
    """A number in groups of seven bits, the lowest first; the highest bit says that more follow."""
    value = 0
    for shift in range(0, 64, 7):
        byte = _take(stream, 1)[0]
        value |= (byte & 127) << shift
        if byte < 128:
            return value
    raise ValueError("a number has more than 64 bits")


def _take(stream: io.BytesIO, size: int) -> bytes:
    taken = stream.read(min(size, 1 << 40))  # a larger number may not fit into what read() takes
    if len(taken) < size:
        raise ValueError("an entry is cut short")
    return taken


# CRC-32C byte by byte would take Python minutes for the 440 MB of BERT-Base. But a state after zeros is a linear
# function of the state before, a table to look up. So _LANES words go side by side, each skipping the others as if
# they were zeros, and are folded in half until one is left: 0.5 s for 100 MB.
_LANES = 1 << 14
_START = np.frombuffer(bytes.fromhex("54641f64"), np.uint8)  # takes a state of all zeros to the usual start, all ones


def _checksum(data: NDArray[np.uint8]) -> int:
    """CRC-32C, rotated and shifted as these files store it."""
    zeros = np.zeros(-(len(data) + len(_START)) % (4 * _LANES), np.uint8)  # in front of all, they change nothing
    rows = np.concatenate([zeros, _START, data]).view(np.uint32).reshape(-1, _LANES)
    states = functools.reduce(lambda states, row: _skip(states, 32 * _LANES) ^ row, rows)
    while (half := len(states) // 2) > 0:
        states = _skip(states[:half], 32 * half) ^ states[half:]
    crc = ~int(_skip(states, 32)[0]) & 0xFFFFFFFF
    return ((crc >> 15 | crc << 17) + 0xA282EAD8) & 0xFFFFFFFF


def _skip(states: NDArray[np.uint32], zeros: int) -> NDArray[np.uint32]:
    """Each state after so many zero bits, a power of two."""
    (low, high), halves = _tables(zeros), states.view(np.uint16)
    return low[halves[::2]] ^ high[halves[1::2]]


@functools.cache
def _tables(zeros: int) -> tuple[NDArray[np.uint32], NDArray[np.uint32]]:
    """What each lower and each upper half of a state becomes after so many zero bits."""
    bits = np.left_shift(1, np.arange(32, dtype=np.uint32), dtype=np.uint32)
    bits = _skip(_skip(bits, zeros // 2), zeros // 2) if zeros > 1 else np.where(bits & 1, 0x82F63B78, 0) ^ bits >> 1
    tables = np.zeros((2, 1), np.uint32)
    for column in bits.astype(np.uint32).reshape(2, 16).T:
        tables = np.concatenate([tables, tables ^ column[:, None]], axis=1)
    return tables[0], tables[1]
