"""A 32-bit fingerprint of each array, computed where it lies, so that a damaged checkpoint can't pass for a whole one.

Orbax's storage carries no checksum of the array data itself: a flipped bit or a zeroed block (a disk that lost power)
would come back as weights. Each word is mixed with its index and the results are added up; integer addition is exact
and has no order, so the fingerprint of a sharded array is that of the same array on one device.
"""

from collections.abc import Mapping

import jax
import jax.numpy as jnp
from jaxtyping import Array, Shaped, UInt32

_UNSIGNED = {1: jnp.uint8, 2: jnp.uint16, 4: jnp.uint32, 8: jnp.uint32}


def _words(array: Shaped[Array, "..."]) -> UInt32[Array, "..."]:
    """The array's bits as 32-bit words, one per element (two, on a last axis of their own, for elements of 8 bytes)."""
    if array.dtype == jnp.bool_:
        return array.astype(jnp.uint32)
    return jax.lax.bitcast_convert_type(array, _UNSIGNED[array.dtype.itemsize]).astype(jnp.uint32)


def _mix(words: UInt32[Array, "..."]) -> UInt32[Array, "..."]:
    """Spread every bit of a word over all 32 (the finalizer of MurmurHash3)."""
    words = (words ^ (words >> 16)) * jnp.uint32(0x85EBCA6B)
    words = (words ^ (words >> 13)) * jnp.uint32(0xC2B2AE35)
    return words ^ (words >> 16)


def fingerprint(array: Shaped[Array, "..."]) -> UInt32[Array, ""]:
    """Sum of the array's words, each mixed with the index it stands at; equal for equal bits, whatever the sharding."""
    words = _words(array)
    index = jnp.zeros(words.shape, jnp.uint32)
    for axis, size in enumerate(words.shape):
        index = index * jnp.uint32(size % 2**32) + jax.lax.broadcasted_iota(jnp.uint32, words.shape, axis)
    return jnp.sum(_mix(words ^ _mix(index + jnp.uint32(1))), dtype=jnp.uint32)


@jax.jit
def _fingerprints(arrays: dict[str, Array]) -> dict[str, Array]:
    return {name: fingerprint(array) for name, array in arrays.items()}


def fingerprints(arrays: Mapping[str, Array]) -> dict[str, int]:
    """The fingerprint of every array, in one dispatch."""
    return {name: int(value) for name, value in jax.device_get(_fingerprints(dict(arrays))).items()}
