"""The GGUF file format: metadata and the table of tensors, checked against the file's size; one tensor at a time.

The `gguf` package knows the quantisations and undoes them; its reader makes several NumPy views for every token of a
vocabulary, which takes a large model's file half a minute to open, so the header is read here.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
from gguf import GGML_QUANT_SIZES, GGMLQuantizationType
from gguf.quants import dequantize

from burnish.errors import UserError

# Value types of the metadata, by their number in the file.
_SCALARS = {0: "B", 1: "b", 2: "H", 3: "h", 4: "I", 5: "i", 6: "f", 7: "?", 10: "Q", 11: "q", 12: "d"}
_STRING, _ARRAY = 8, 9
_DEFAULT_ALIGNMENT = 32


@dataclass(frozen=True)
class GgufTensor:
    """Where one tensor lies in the file and how it is packed; `shape` has the outermost axis first, as in NumPy."""

    shape: tuple[int, ...]
    quantization: str
    start: int
    num_bytes: int


class GgufFile:
    """An open GGUF file (versions 2 and 3, little-endian)."""

    def __init__(self, path: Path) -> None:
        self.path = path
        try:
            with open(path, "rb") as file:
                self.metadata, self.tensors = _read_header(file)
        except (ValueError, KeyError, struct.error, MemoryError) as error:
            raise UserError(f"{path} can't be read as a GGUF file ({error}); download it again.") from error
        size = path.stat().st_size
        for name, tensor in self.tensors.items():
            if tensor.start + tensor.num_bytes > size:
                raise UserError(f"{path} ends before tensor {name} does ({size} bytes): download it again.")

    def read(self, name: str) -> np.ndarray:
        """One tensor, dequantised to float32."""
        tensor = self.tensors[name]
        with open(self.path, "rb") as file:
            file.seek(tensor.start)
            packed = np.fromfile(file, np.uint8, tensor.num_bytes)
        kind = GGMLQuantizationType[tensor.quantization]
        if kind == GGMLQuantizationType.F32:
            return packed.view("<f4").reshape(tensor.shape)
        rows = packed.view("<f2") if kind == GGMLQuantizationType.F16 else packed
        values: np.ndarray = dequantize(rows.reshape(*tensor.shape[:-1], -1), kind)
        return values.reshape(tensor.shape)


def _read_header(file: BinaryIO) -> tuple[dict[str, Any], dict[str, GgufTensor]]:
    magic, version = file.read(4), _scalar(file, "I")
    if magic != b"GGUF" or version not in (2, 3):
        raise ValueError(f"it starts with {magic!r} and version {version}, expected b'GGUF' and version 2 or 3")
    num_tensors, num_fields = _scalar(file, "Q"), _scalar(file, "Q")
    metadata = {}
    for _ in range(num_fields):
        key = _string(file)
        metadata[key] = _value(file, _scalar(file, "I"))
    places = {}
    for _ in range(num_tensors):
        name = _string(file)
        shape = tuple(_scalar(file, "Q") for _ in range(_scalar(file, "I")))[::-1]
        places[name] = (shape, GGMLQuantizationType(_scalar(file, "I")), _scalar(file, "Q"))
    alignment = metadata.get("general.alignment", _DEFAULT_ALIGNMENT)
    base = file.tell() + -file.tell() % alignment
    tensors = {}
    for name, (shape, kind, offset) in places.items():
        block_size, block_bytes = GGML_QUANT_SIZES[kind]
        if not shape or shape[-1] % block_size:
            raise ValueError(f"tensor {name} of shape {shape} does not divide into {kind.name} blocks of {block_size}")
        num_bytes = int(np.prod(shape, dtype=np.int64)) // block_size * block_bytes
        tensors[name] = GgufTensor(shape, kind.name, base + offset, num_bytes)
    return metadata, tensors


def _take(file: BinaryIO, count: int) -> bytes:
    data = file.read(count)
    if len(data) != count:
        raise ValueError("it is cut short in its header")
    return data


def _scalar(file: BinaryIO, code: str) -> Any:
    return struct.unpack("<" + code, _take(file, struct.calcsize("<" + code)))[0]


def _string(file: BinaryIO) -> str:
    return _take(file, _scalar(file, "Q")).decode("utf-8")


def _value(file: BinaryIO, kind: int) -> Any:
    if kind == _STRING:
        return _string(file)
    if kind in _SCALARS:
        return _scalar(file, _SCALARS[kind])
    if kind != _ARRAY:
        raise ValueError(f"metadata of the unknown type {kind}")
    item, count = _scalar(file, "I"), _scalar(file, "Q")
    if item in _SCALARS:
        data = _take(file, count * struct.calcsize("<" + _SCALARS[item]))
        return list(struct.unpack(f"<{count}{_SCALARS[item]}", data))
    return [_value(file, item) for _ in range(count)]
