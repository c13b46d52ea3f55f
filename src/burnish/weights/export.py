"""Weights out: a complete Hugging Face folder that appears whole or not at all."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import jax
import numpy as np

from burnish.errors import UserError
from burnish.model.spec import ModelSpec, TensorPlace, hf_tensors
from burnish.model.spec import parameters as parameter_table
from burnish.weights.hf_folder import INDEX_FILE, SINGLE_FILE, has_tokenizer
from burnish.weights.progress import byte_progress
from burnish.weights.safetensors_file import tensor_bytes, write_safetensors
from burnish.weights.source import FLOAT_DTYPES, Source, TensorInfo

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerFast

MAX_SHARD_BYTES = 5_000_000_000
EXPORT_DTYPES = ("source", *FLOAT_DTYPES)


def save_hf(
    folder: str | Path,
    parameters: Mapping[str, jax.Array],
    spec: ModelSpec,
    source: Source,
    dtype: str = "source",
    tokenizer: PreTrainedTokenizerFast | None = None,
    *,
    max_shard_bytes: int = MAX_SHARD_BYTES,
    progress: bool = True,
) -> Path:
    """Write parameters as a Hugging Face folder and return its path.

    `dtype` "source" gives each tensor the dtype that it has in `source`. Side files (tokenizer, chat template,
    generation_config, …) are the source's, byte for byte, and so is config.json but for its dtype; `tokenizer` is used
    only where the source has none. The folder is built beside its place and renamed into it when all of it is on the
    disk; one that stands there is replaced as a whole.
    """
    folder = Path(folder)
    if dtype not in EXPORT_DTYPES:
        raise UserError(f"Can't export as {dtype!r}; expected one of {', '.join(EXPORT_DTYPES)}.")
    _check_complete(parameters, spec, source)
    side_files = _side_files(source, tokenizer)
    places = hf_tensors(spec)
    infos = {
        name: TensorInfo(info.shape, info.dtype if dtype == "source" else dtype)
        for name, info in source.tensors.items()
        if name in places
    }
    total = sum(map(tensor_bytes, infos.values()))

    def write_into(building: Path) -> None:
        for name, content in side_files.items():
            _write_file(building / name, content if isinstance(content, bytes) else content.read_bytes())
        with byte_progress(f"Writing {folder}", total, enabled=progress) as report:
            _write_weights(building, infos, places, parameters, max_shard_bytes, report)
        # Last, because a folder without it is no model.
        _write_file(building / "config.json", _config_bytes(source, dtype))

    try:
        _replace_folder(folder, write_into)
    except OSError as error:
        raise UserError(
            f"Could not write the model ({total / 1e9:.1f} GB) to {folder}: {error}; "
            "free space or give another folder; nothing was changed there."
        ) from error
    return folder


def _check_complete(given: Mapping[str, jax.Array], spec: ModelSpec, source: Source) -> None:
    expected = {
        key: (spec.num_layers, *parameter.shape) if parameter.layered else parameter.shape
        for key, parameter in parameter_table(spec).items()
    }
    shapes = {key: tuple(array.shape) for key, array in given.items()}
    wrong = sorted(key for key in expected.keys() | shapes.keys() if expected.get(key) != shapes.get(key))
    if wrong:
        told = ", ".join(f"{key} is {shapes.get(key)} and should be {expected.get(key)}" for key in wrong)
        raise ValueError(f"these parameters are not the model's: {told}")
    absent = sorted(hf_tensors(spec).keys() - source.tensors.keys())
    if absent:
        raise ValueError(f"{source.name} is not where these parameters came from: it has no {', '.join(absent)}")


def _side_files(source: Source, tokenizer: PreTrainedTokenizerFast | None) -> dict[str, bytes | Path]:
    from burnish.text.gguf_tokenizer import tokenizer_files

    side_files = source.side_files()
    if has_tokenizer(side_files):
        return side_files
    if tokenizer is None:
        raise UserError(
            f"{source.name} has no tokenizer files, so the exported folder would lack them; add them to it."
        )
    return {**side_files, **tokenizer_files(tokenizer)}


def _write_weights(
    building: Path,
    infos: Mapping[str, TensorInfo],
    places: Mapping[str, TensorPlace],
    parameters: Mapping[str, jax.Array],
    max_shard_bytes: int,
    report: Callable[[int], None],
) -> None:
    done = 0

    def arrays(names: list[str]) -> Iterator[np.ndarray]:
        nonlocal done
        for name in names:
            stack, layer = parameters[places[name].key], places[name].layer
            values = np.asarray(stack if layer is None else stack[layer])
            yield values.astype(FLOAT_DTYPES[infos[name].dtype], copy=False)
            done += tensor_bytes(infos[name])
            report(done)

    shards = _shards(infos, max_shard_bytes)
    if len(shards) == 1:
        write_safetensors(building / SINGLE_FILE, infos, arrays(shards[0]))
        return
    weight_map: dict[str, str] = {}
    for number, names in enumerate(shards, start=1):
        file_name = f"model-{number:05d}-of-{len(shards):05d}.safetensors"
        write_safetensors(building / file_name, {name: infos[name] for name in names}, arrays(names))
        weight_map |= dict.fromkeys(names, file_name)
    total = sum(map(tensor_bytes, infos.values()))
    index = {"metadata": {"total_size": total}, "weight_map": dict(sorted(weight_map.items()))}
    _write_file(building / INDEX_FILE, _json_bytes(index))


def _shards(infos: Mapping[str, TensorInfo], max_bytes: int) -> list[list[str]]:
    """Tensor names in order, cut where a file would grow over `max_bytes`."""
    shards: list[list[str]] = [[]]
    filled = 0
    for name, info in infos.items():
        size = tensor_bytes(info)
        if shards[-1] and filled + size > max_bytes:
            shards.append([])
            filled = 0
        shards[-1].append(name)
        filled += size
    return shards


def _config_bytes(source: Source, dtype: str) -> bytes:
    """config.json as it came in; only a dtype that changed is written anew."""
    field = "dtype" if "dtype" in source.config else "torch_dtype"
    if dtype == "source" or source.config.get(field) == dtype:
        return (source.folder / "config.json").read_bytes() if source.folder else _json_bytes(source.config)
    return _json_bytes({**source.config, field: dtype})


def _json_bytes(content: Mapping[str, Any]) -> bytes:
    return (json.dumps(content, indent=2, ensure_ascii=False) + "\n").encode()


def _replace_folder(folder: Path, write_into: Callable[[Path], None]) -> None:
    """Build a folder beside its place, then rename it there; what an interrupted export left is cleared first."""
    parent = folder.absolute().parent
    building, replaced = parent / f".{folder.name}.partial", parent / f".{folder.name}.replaced"
    _remove(building)
    try:
        building.mkdir(parents=True)
        write_into(building)
        _sync(building)
        if folder.exists():
            _remove(replaced)
            os.replace(folder, replaced)
        os.replace(building, folder)
        _sync(parent)
    except BaseException:
        shutil.rmtree(building, ignore_errors=True)
        raise
    _remove(replaced)


def _remove(folder: Path) -> None:
    if folder.exists():
        shutil.rmtree(folder)


def _write_file(path: Path, content: bytes) -> None:
    path.parent.mkdir(exist_ok=True)
    with open(path, "wb") as file:
        file.write(content)
        file.flush()
        os.fsync(file.fileno())


def _sync(folder: Path) -> None:
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
