"""The safetensors file format: headers checked against the file's size, tensors read and written one by one.

The `safetensors` package reads whole NumPy files or maps them into memory; here each tensor is one read into its own
buffer, so that the host never holds more than the tensor at hand, and one write, so that exporting needs no second copy
of the model.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np

from burnish.errors import UserError
from burnish.weights.source import TensorInfo

_DTYPES: dict[str, np.dtype[Any]] = {
    "F64": np.dtype(np.float64),
    "F32": np.dtype(np.float32),
    "F16": np.dtype(np.float16),
    "BF16": np.dtype(ml_dtypes.bfloat16),
    "I64": np.dtype(np.int64),
    "I32": np.dtype(np.int32),
    "I16": np.dtype(np.int16),
    "I8": np.dtype(np.int8),
    "U8": np.dtype(np.uint8),
    "BOOL": np.dtype(np.bool_),
}
_CODES = {str(dtype): code for code, dtype in _DTYPES.items()}
_MAX_HEADER_BYTES = 100_000_000
_ALIGNMENT = 64


@dataclass(frozen=True)
class _Entry:
    info: TensorInfo
    code: str
    start: int
    stop: int


class SafetensorsFile:
    """One file's header; `read` fetches a tensor. A file that is cut short or garbled is a UserError naming it."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._entries = _read_header(path)
        self.tensors: dict[str, TensorInfo] = {name: entry.info for name, entry in self._entries.items()}

    def read(self, name: str) -> np.ndarray:
        """Read one tensor into memory of its own."""
        entry = self._entries[name]
        if entry.code not in _DTYPES:
            raise UserError(
                f"Tensor {name} in {self.path} is stored as {entry.code}, which burnish can't read; "
                "give an unquantised checkpoint (float32, float16 or bfloat16)."
            )
        array = _aligned_empty(entry.info.shape, _DTYPES[entry.code])
        with open(self.path, "rb") as file:
            file.seek(entry.start)
            if array.nbytes and file.readinto(array.reshape(-1).view(np.uint8).data) != array.nbytes:
                raise UserError(f"{self.path} ends in the middle of tensor {name}; download it again.")
        return array


def _aligned_empty(shape: tuple[int, ...], dtype: np.dtype[Any]) -> np.ndarray:
    """An uninitialised array that starts where JAX's CPU backend can use it without copying it first."""
    num_bytes = int(np.prod(shape, dtype=np.int64)) * dtype.itemsize
    memory = np.empty(num_bytes + _ALIGNMENT, np.uint8)
    start = -memory.ctypes.data % _ALIGNMENT
    return memory[start : start + num_bytes].view(dtype).reshape(shape)


def _read_header(path: Path) -> dict[str, _Entry]:
    size = path.stat().st_size
    with open(path, "rb") as file:
        length = int.from_bytes(file.read(8), "little")
        if size < 8 or not 2 <= length <= min(_MAX_HEADER_BYTES, size - 8):
            raise UserError(f"{path} is not a whole safetensors file ({size} bytes); download it again.")
        try:
            header = json.loads(file.read(length))
            header.pop("__metadata__", None)
            entries = {name: _entry(fields, 8 + length) for name, fields in header.items()}
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise UserError(f"{path} has a garbled safetensors header ({error}); download it again.") from error
    position = 8 + length
    for name, entry in sorted(entries.items(), key=lambda item: (item[1].start, item[1].stop)):
        expected = (
            int(np.prod(entry.info.shape, dtype=np.int64)) * _DTYPES[entry.code].itemsize
            if entry.code in _DTYPES
            else None
        )
        if entry.start != position or (expected is not None and entry.stop - entry.start != expected):
            raise UserError(f"{path} places tensor {name} at bytes that don't fit its shape; download it again.")
        position = entry.stop
    if position != size:
        raise UserError(
            f"{path} should have {position} bytes and has {size}: it is cut short or damaged; download it again."
        )
    return entries


def _entry(fields: dict[str, Any], base: int) -> _Entry:
    code, shape = str(fields["dtype"]), tuple(int(extent) for extent in fields["shape"])
    start, stop = (int(offset) for offset in fields["data_offsets"])
    dtype = str(_DTYPES[code]) if code in _DTYPES else code
    return _Entry(TensorInfo(shape, dtype), code, base + start, base + stop)


def write_safetensors(path: Path, infos: Mapping[str, TensorInfo], arrays: Iterable[np.ndarray]) -> None:
    """Write a file whose header lists `infos` and whose data are `arrays`, one for each, taken in the same order.

    The bytes are flushed to the disk before this returns.
    """
    header: dict[str, Any] = {"__metadata__": {"format": "pt"}}
    offset = 0
    for name, info in infos.items():
        stop = offset + tensor_bytes(info)
        header[name] = {"dtype": _CODES[info.dtype], "shape": list(info.shape), "data_offsets": [offset, stop]}
        offset = stop
    encoded = json.dumps(header, separators=(",", ":")).encode()
    encoded += b" " * (-len(encoded) % 8)
    with open(path, "wb") as file:
        file.write(len(encoded).to_bytes(8, "little") + encoded)
        for (name, info), array in zip(infos.items(), arrays, strict=True):
            if str(array.dtype) != info.dtype or array.shape != info.shape:
                raise ValueError(f"{name}: announced as {info}, given as {array.dtype} {array.shape}")
            file.write(np.ascontiguousarray(array).reshape(-1).view(np.uint8).data)
        file.flush()
        os.fsync(file.fileno())


def tensor_bytes(info: TensorInfo) -> int:
    """How many bytes a tensor takes in a file."""
    return int(np.prod(info.shape, dtype=np.int64)) * _DTYPES[_CODES[info.dtype]].itemsize
