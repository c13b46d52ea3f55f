"""Matrix products that mean what their dtype says on every device."""

from __future__ import annotations

import jax
import jax.numpy as jnp
from jaxtyping import Array


def product(subscripts: str, x: Array, y: Array) -> Array:
    """`einsum` of two arrays, summed and returned in float32.

    Float32 operands are multiplied in float32: by default a GPU would round them to TF32 and a TPU to bfloat16.
    """
    precision = jax.lax.Precision.HIGHEST if x.dtype == jnp.float32 else None
    return jnp.einsum(subscripts, x, y, precision=precision, preferred_element_type=jnp.float32)
