"""Reads and writes checkpoints of TensorFlow 1 without TensorFlow: an index and its data files.

The index is a table in LevelDB's format: blocks of sorted keys, each stored without the prefix that it shares with the
key before it. Its values are protocol buffers with the location of each variable in the data files. Every checksum is
verified. The files written are those that TensorFlow writes, byte for byte.
"""

import functools
import io
import math
import re
import struct
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from bothways.errors import BothwaysError

_DTYPES = {1: torch.float32, 3: torch.int32, 9: torch.int64, 14: torch.bfloat16, 19: torch.float16}
_MAGIC = bytes.fromhex("57fb808b247547db")
"""The last 8 bytes of every index."""


@dataclass(frozen=True)
class _Entry:
    """The location and type of a variable."""

    dtype: int
    shape: tuple[int, ...]
    shard: int
    offset: int
    size: int
    checksum: int
    is_partitioned: bool


# ---------------------------------------------------------------------- reading


class _UnsupportedError(ValueError):
    """The file is intact, but uses a feature that is not supported."""


def _refused(path: Path, error: ValueError, name: str = "") -> BothwaysError:
    where = f"the variable {name} in {path}" if name else str(path)
    if isinstance(error, _UnsupportedError):
        return BothwaysError(f"{where} uses {error}, which is not supported", "unsupported-format", (path, str(error)))
    return BothwaysError(f"{where} is damaged: {error}", "damaged-file", path)


def read(index: Path, *, skip: re.Pattern[str]) -> Iterator[tuple[str, Tensor]]:
    """The variables in the order of their names, without those whose name matches `skip`."""
    entries, shards = _read_index(index)
    for name, entry in entries.items():
        if skip.search(name):
            continue
        path = index.with_name(f"{index.name.removesuffix('.index')}.data-{entry.shard:05}-of-{shards:05}")
        try:
            tensor = _read_tensor(path, entry)
        except ValueError as error:
            raise _refused(path, error, name) from error
        yield name, tensor


def _read_tensor(shard: Path, entry: _Entry) -> Tensor:
    if entry.is_partitioned:
        raise _UnsupportedError("slices")
    if entry.dtype not in _DTYPES:
        raise _UnsupportedError(f"dtype {entry.dtype}")
    expected = math.prod(entry.shape) * _DTYPES[entry.dtype].itemsize
    if not entry.size or entry.size != expected:
        raise ValueError(f"it has {entry.size} bytes, and its shape {list(entry.shape)} needs {expected}")
    end, size = entry.offset + entry.size, shard.stat().st_size
    if end > size:
        raise ValueError(f"it ends at byte {end}, and the file has only {size}")
    # Not a memory map: its data would be copied anyway, and it kills the process if the file shrinks meanwhile.
    data = np.fromfile(shard, np.uint8, entry.size, offset=entry.offset)
    if _checksum(data) != entry.checksum:
        raise ValueError("its checksum is wrong")
    return torch.from_numpy(data).view(_DTYPES[entry.dtype]).reshape(entry.shape)


def _read_index(path: Path) -> tuple[dict[str, _Entry], int]:
    """The variables in the order of their names, and the number of data files."""
    try:
        table = dict(_read_table(path.read_bytes()))
        header, _ = _read_message(table.pop(b"", b""))
        entries = {key.decode(errors="backslashreplace"): _read_entry(value) for key, value in table.items()}
        if header.get(2):
            raise _UnsupportedError("big-endian numbers")
        if "_CHECKPOINTABLE_OBJECT_GRAPH" in entries:
            raise _UnsupportedError("the format of TensorFlow 2")
    except ValueError as error:
        raise _refused(path, error) from error
    return entries, header.get(1, 0)


def _read_entry(value: bytes) -> _Entry:
    numbers, nested = _read_message(value)
    sizes = [_read_message(size)[0] for shape in nested.get(2, []) for size in _read_message(shape)[1].get(2, [])]
    shard, offset, size, checksum = (numbers.get(field, 0) for field in (3, 4, 5, 6))
    return _Entry(numbers.get(1, 0), tuple(s.get(1, 0) for s in sizes), shard, offset, size, checksum, 7 in nested)


def _read_table(data: bytes) -> Iterator[tuple[bytes, bytes]]:
    """All keys and values of a LevelDB table."""
    if not data.endswith(_MAGIC):
        raise ValueError("its last 8 bytes are not those of an index")
    footer = io.BytesIO(data[-48:])
    _read_number(footer), _read_number(footer)  # the location of the metaindex block, which TensorFlow leaves empty
    for _, handle in _read_block(data, footer):
        yield from _read_block(data, io.BytesIO(handle))


def _read_block(data: bytes, handle: io.BytesIO) -> Iterator[tuple[bytes, bytes]]:
    """The keys and values of the block at the offset and size in `handle`."""
    offset, size = _read_number(handle), _read_number(handle)
    block, trailer = data[offset : offset + size], data[offset + size : offset + size + 5]
    if len(trailer) < 5:
        raise ValueError("a block is cut short")
    compression, checksum = struct.unpack("<BI", trailer)
    if _checksum(np.frombuffer(block + trailer[:1], np.uint8)) != checksum:
        raise ValueError("the checksum of a block is wrong")
    if compression:
        raise _UnsupportedError("Snappy compression")
    # A block ends with its restart points, the offsets of keys stored in full, and their number.
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
    """A varint: groups of seven bits, lowest first; the highest bit of a byte tells whether more follow."""
    value = 0
    for shift in range(0, 64, 7):
        byte = _take(stream, 1)[0]
        value |= (byte & 127) << shift
        if byte < 128:
            return value
    raise ValueError("a number has more than 64 bits")


def _take(stream: io.BytesIO, size: int) -> bytes:
    taken = stream.read(min(size, 1 << 40))  # read() refuses numbers that are too large
    if len(taken) < size:
        raise ValueError("an entry is cut short")
    return taken


# ---------------------------------------------------------------------- writing


def write(index: Path, variables: Mapping[str, Tensor]) -> None:
    """Write an index, and beside it one data file with these variables in the order of their names."""
    header = _field(1, 1) + _field(3, _field(1, 1))  # one data file, in the first version of the format
    rows = [(b"", header)]
    with open(index.with_name(f"{index.name.removesuffix('.index')}.data-00000-of-00001"), "wb") as file:
        for name in sorted(variables, key=str.encode):
            data = variables[name].contiguous().flatten().view(torch.uint8).numpy()
            rows.append((name.encode(), _entry(variables[name], file.tell(), data)))
            file.write(data.data)
    index.write_bytes(_table(rows))


def _entry(tensor: Tensor, offset: int, data: NDArray[np.uint8]) -> bytes:
    number = next(number for number, dtype in _DTYPES.items() if dtype == tensor.dtype)
    shape = b"".join(_field(2, _field(1, size)) for size in tensor.shape)
    location = (_field(4, offset) if offset else b"") + _field(5, len(data))  # protocol buffers omit zeros
    return _field(1, number) + _field(2, shape) + location + struct.pack("<BI", 6 << 3 | 5, _checksum(data))


def _table(rows: Sequence[tuple[bytes, bytes]]) -> bytes:
    """A LevelDB table of these keys and values, in one block: TensorFlow starts another after 256 KB."""
    entries, metaindex = _block(rows, 16), _block([], 16)
    after = bytes([rows[-1][0][0] + 1])  # the key of a block in the table's index sorts after all keys of the block
    blocks = _block([(after, _handle(b"", entries))], 1)
    table = _stored(entries) + _stored(metaindex)
    footer = _handle(_stored(entries), metaindex) + _handle(table, blocks)
    return table + _stored(blocks) + footer.ljust(40, b"\0") + _MAGIC


def _handle(before: bytes, block: bytes) -> bytes:
    """The offset and the size of a block that follows these bytes."""
    return _number(len(before)) + _number(len(block))


def _stored(block: bytes) -> bytes:
    """A block, uncompressed, with its checksum."""
    plain = block + b"\0"
    return plain + struct.pack("<I", _checksum(np.frombuffer(plain, np.uint8)))


def _block(rows: Sequence[tuple[bytes, bytes]], interval: int) -> bytes:
    """Keys without the prefix shared with the key before, but every `interval`-th in full; then the restart points."""
    body, restarts, last = b"", [0], b""
    for i, (key, value) in enumerate(rows):
        shared = 0
        if i % interval:
            shared = next((j for j, (a, b) in enumerate(zip(key, last, strict=False)) if a != b), len(last))
        elif i:
            restarts.append(len(body))
        body += _number(shared) + _number(len(key) - shared) + _number(len(value)) + key[shared:] + value
        last = key
    return body + struct.pack(f"<{len(restarts) + 1}I", *restarts, len(restarts))


def _field(number: int, value: int | bytes) -> bytes:
    """One field of a protocol buffer: a number or a nested message."""
    if isinstance(value, int):
        return _number(number << 3) + _number(value)
    return _number(number << 3 | 2) + _number(len(value)) + value


def _number(value: int) -> bytes:
    """The bytes that `_read_number` reads."""
    groups = bytearray()
    while value > 127:
        groups.append(value & 127 | 128)
        value >>= 7
    return bytes([*groups, value])


# ---------------------------------------------------------------------- checksums

# CRC-32C byte by byte would take Python minutes for the 440 MB of BERT-Base. But the effect of zero bits on a CRC state
# is linear, and so a table lookup. Therefore _LANES states are computed in parallel, each as if the words of the others
# were zeros, and are combined pairwise at the end: 0.5 s for 100 MB.
_LANES = 1 << 14
_START = np.frombuffer(bytes.fromhex("54641f64"), np.uint8)  # takes the state 0 to the initial state, all ones


def _checksum(data: NDArray[np.uint8]) -> int:
    """CRC-32C, rotated and shifted as these files store it."""
    zeros = np.zeros(-(len(data) + len(_START)) % (4 * _LANES), np.uint8)  # leading zeros do not change the state 0
    rows = np.concatenate([zeros, _START, data]).view(np.uint32).reshape(-1, _LANES)
    states = functools.reduce(lambda states, row: _skip(states, 32 * _LANES) ^ row, rows)
    while (half := len(states) // 2) > 0:
        states = _skip(states[:half], 32 * half) ^ states[half:]
    crc = ~int(_skip(states, 32)[0]) & 0xFFFFFFFF
    return ((crc >> 15 | crc << 17) + 0xA282EAD8) & 0xFFFFFFFF


def _skip(states: NDArray[np.uint32], zeros: int) -> NDArray[np.uint32]:
    """Each state after `zeros` zero bits, a power of two."""
    (low, high), halves = _tables(zeros), states.view(np.uint16)
    return low[halves[::2]] ^ high[halves[1::2]]


@functools.cache
def _tables(zeros: int) -> tuple[NDArray[np.uint32], NDArray[np.uint32]]:
    """The state after `zeros` zero bits, for each lower and each upper half of a state."""
    bits = np.left_shift(1, np.arange(32, dtype=np.uint32), dtype=np.uint32)
    bits = _skip(_skip(bits, zeros // 2), zeros // 2) if zeros > 1 else np.where(bits & 1, 0x82F63B78, 0) ^ bits >> 1
    tables = np.zeros((2, 1), np.uint32)
    for column in bits.astype(np.uint32).reshape(2, 16).T:
        tables = np.concatenate([tables, tables ^ column[:, None]], axis=1)
    return tables[0], tables[1]
