"""Weights in: every tensor of a source, one by one, to its place in the stacked parameters on the device."""

from __future__ import annotations

import re
from collections.abc import Mapping
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
from jax.typing import DTypeLike
from jaxtyping import Array, Float

from burnish.errors import UserError
from burnish.model.spec import ModelSpec, TensorPlace, hf_tensors, parameters
from burnish.weights.progress import byte_progress
from burnish.weights.source import FLOAT_DTYPES, Source, TensorInfo

_TIED_HEAD, _EMBEDDING = "lm_head.weight", "model.embed_tokens.weight"
_BUFFER_SUFFIX = ".rotary_emb.inv_freq"
"""A constant that old versions of transformers saved with the weights; the model computes it."""
_LAYER = re.compile(r"(model\.layers\.)(\d+)(\..*)")


def load_parameters(
    source: Source, spec: ModelSpec, dtype: DTypeLike, *, progress: bool = True
) -> dict[str, jax.Array]:
    """Load a checkpoint as the parameters of `spec`: layered ones stacked [num_layers, *shape], each of `dtype`.

    Tensors are read one at a time and written into their stack in place, so that the host holds no more than the
    model and its largest tensor. Tensors that are missing, unexpected, misshapen or not floating-point are all named
    in one UserError before any is read.
    """
    places = hf_tensors(spec)
    check_tensors(source, spec, places)
    by_key: dict[str, list[tuple[str, TensorPlace]]] = {}
    for name, place in places.items():
        by_key.setdefault(place.key, []).append((name, place))
    table = parameters(spec)
    loaded: dict[str, jax.Array] = {}
    done = 0
    total = sum(_num_bytes(source.tensors[name]) for name in places)
    with byte_progress("Loading weights", total, enabled=progress) as report:
        for key, tensors in by_key.items():
            if table[key].layered:
                loaded[key] = jnp.zeros((spec.num_layers, *table[key].shape), dtype)
            for name, place in tensors:
                values = source.read(name)
                if place.layer is None:
                    loaded[key] = _on_device(values, dtype)
                else:
                    loaded[key] = _write_layer(loaded[key], values, place.layer)
                # Dispatch is asynchronous: without this, reading runs ahead and tensors pile up on the host.
                loaded[key].block_until_ready()
                done += values.nbytes
                report(done)
                if key == _EMBEDDING and spec.tie_word_embeddings and _TIED_HEAD in source.tensors:
                    _check_tied_head(source, values)
                del values
    return loaded


def check_tensors(source: Source, spec: ModelSpec, places: Mapping[str, TensorPlace]) -> None:
    """Raise one UserError that names all tensors which don't fit the model."""
    known = places.keys() | ({_TIED_HEAD} if spec.tie_word_embeddings else set())
    found = {name: info for name, info in source.tensors.items() if name in places}
    faults = {
        "missing": [name for name in places if name not in found],
        "unexpected": [name for name in source.tensors if name not in known and not name.endswith(_BUFFER_SUFFIX)],
        "misshapen": [
            f"{name} is {list(info.shape)} and should be {list(places[name].shape)}"
            for name, info in found.items()
            if info.shape != places[name].shape
        ],
        "of no supported dtype": [
            f"{name} ({info.dtype})" for name, info in found.items() if info.dtype not in FLOAT_DTYPES
        ],
    }
    if any(faults.values()):
        told = "; ".join(f"{len(names)} {fault}: {_listed(names)}" for fault, names in faults.items() if names)
        raise UserError(
            f"The weights of {source.name} don't fit its config.json ({spec.family}, {spec.num_layers} layers): {told}."
        )


@partial(jax.jit, donate_argnums=0)
def _write_layer(
    stack: Float[Array, "layers ..."], values: Float[Array, ...], layer: int
) -> Float[Array, "layers ..."]:
    return jax.lax.dynamic_update_index_in_dim(stack, values.astype(stack.dtype), layer, axis=0)


@partial(jax.jit, static_argnums=1)
def _on_device(values: Float[Array, ...], dtype: DTypeLike) -> Float[Array, ...]:
    # copy=True: on a CPU the array could otherwise share NumPy's memory, which no update can reuse in place.
    return jnp.array(values, dtype=dtype, copy=True)


def _check_tied_head(source: Source, embedding: np.ndarray) -> None:
    """A tied model's file may repeat the embedding as lm_head.weight; a different one would be lost in silence."""
    info = source.tensors[_TIED_HEAD]
    if info.shape != embedding.shape or not _same_bits(source.read(_TIED_HEAD), embedding):
        raise UserError(
            f"{source.name} says tie_word_embeddings, yet its {_TIED_HEAD} differs from {_EMBEDDING}; "
            "set tie_word_embeddings to false in config.json, or remove the tensor."
        )


def _same_bits(left: np.ndarray, right: np.ndarray) -> bool:
    bits = f"u{left.itemsize}"
    return left.dtype == right.dtype and np.array_equal(left.view(bits), right.view(bits))


def _num_bytes(info: TensorInfo) -> int:
    return int(np.prod(info.shape, dtype=np.int64)) * FLOAT_DTYPES[info.dtype].itemsize


def _listed(faults: list[str]) -> str:
    """The faults in one line; those that differ only in their layer stand together: `model.layers.{0-29}.…`."""
    layers: dict[tuple[str, str], list[int]] = {}
    for fault in faults:
        before, layer, after = match.groups() if (match := _LAYER.fullmatch(fault)) else (fault, "-1", "")
        layers.setdefault((before, after), []).append(int(layer))
    return ", ".join(
        f"{before}{_ranges(sorted(numbers))}{after}" if after else before for (before, after), numbers in layers.items()
    )


def _ranges(numbers: list[int]) -> str:
    runs: list[list[int]] = []
    for number in numbers:
        if runs and number == runs[-1][-1] + 1:
            runs[-1].append(number)
        else:
            runs.append([number])
    told = ",".join(f"{run[0]}-{run[-1]}" if len(run) > 1 else str(run[0]) for run in runs)
    return f"{{{told}}}" if len(numbers) > 1 else told
