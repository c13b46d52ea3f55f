"""Rotary position embeddings (Su et al. 2021), in Hugging Face's half-split convention, with the scalings of Llama."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from burnish.errors import UserError

if TYPE_CHECKING:
    from jaxtyping import Array, Float, Int

SUPPORTED_TYPES = ("default", "linear", "llama3")


@dataclass(frozen=True)
class RopeSpec:
    """How positions turn into angles; `factor` and what follows matter only to the scaled types."""

    theta: float = 10_000.0
    type: str = "default"
    factor: float = 1.0
    low_freq_factor: float = 1.0
    high_freq_factor: float = 4.0
    original_max_position_embeddings: float = 8192

    @staticmethod
    def from_config(config: dict[str, Any]) -> RopeSpec:
        """Read both spellings: `rope_theta` and `rope_scaling` (transformers 4), `rope_parameters` (transformers 5)."""
        spellings = [config.get(name) or {} for name in ("rope_scaling", "rope_parameters")]
        for given in spellings:
            if not isinstance(given, dict):
                raise UserError(f"config.json gives its rope scaling as {given!r}; expected a mapping with a rope_type")
        if all(spellings) and spellings[0] != spellings[1]:
            raise UserError("config.json has rope_scaling and rope_parameters, and they differ; remove one of them")
        scaling = dict(spellings[0] or spellings[1])
        theta = positive("rope_theta", scaling.pop("rope_theta", config.get("rope_theta", 10_000.0)))
        old_spelling = scaling.pop("type", "default")
        kind = scaling.pop("rope_type", old_spelling)
        if kind not in SUPPORTED_TYPES:
            raise UserError(
                f"config.json asks for rope_type {kind!r}, which burnish can't compute; "
                f"supported: {', '.join(SUPPORTED_TYPES)}"
            )
        if scaling.pop("partial_rotary_factor", None) not in (None, 1.0):
            raise UserError(
                "config.json sets partial_rotary_factor in its rope parameters, which burnish can't compute"
            )
        required = {
            "default": (),
            "linear": ("factor",),
            "llama3": ("factor", "low_freq_factor", "high_freq_factor", "original_max_position_embeddings"),
        }[kind]
        values = {}
        for field in required:
            if field not in scaling:
                raise UserError(f"config.json asks for rope_type {kind!r} without its field {field!r}")
            values[field] = positive(field, scaling.pop(field))
        if kind == "llama3" and values["low_freq_factor"] >= values["high_freq_factor"]:
            raise UserError(
                f"config.json has low_freq_factor {values['low_freq_factor']:g}, which must be below its "
                f"high_freq_factor {values['high_freq_factor']:g}"
            )
        unknown = [field for field, value in scaling.items() if value is not None and field not in _UNUSED_WITH[kind]]
        if unknown:
            raise UserError(
                f"config.json has the rope field {unknown[0]!r}, which burnish can't honour with type {kind!r}"
            )
        return RopeSpec(theta=theta, type=kind, **values)


# Fields that files carry beside a type that does not read them; transformers ignores them too.
_UNUSED_WITH = {
    "default": ("original_max_position_embeddings",),
    "linear": ("original_max_position_embeddings",),
    "llama3": (),
}


def positive(field: str, value: Any) -> float:
    """A number of a config that has to be above 0; a UserError names the field."""
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 < value < math.inf:
        raise UserError(f"config.json needs a positive number for {field!r}, not {value!r}")
    return float(value)


def inverse_frequencies(rope: RopeSpec, head_dim: int) -> np.ndarray:
    """Angle per position of each pair of channels, float32 [head_dim / 2].

    `llama3` keeps short wavelengths, divides long ones by `factor`, and blends between (Llama 3.1's published rule).
    """
    exponents = np.arange(0, head_dim, 2, dtype=np.float32) / np.float32(head_dim)
    frequencies = (1.0 / np.power(np.float32(rope.theta), exponents, dtype=np.float32)).astype(np.float32)
    if rope.type == "linear":
        return (frequencies / np.float32(rope.factor)).astype(np.float32)
    if rope.type == "llama3":
        wavelengths = 2 * math.pi / frequencies
        original = rope.original_max_position_embeddings
        blend = (original / wavelengths - rope.low_freq_factor) / (rope.high_freq_factor - rope.low_freq_factor)
        blend = np.clip(blend, 0.0, 1.0)
        return ((1 - blend) * frequencies / rope.factor + blend * frequencies).astype(np.float32)
    return frequencies


def rotation(
    rope: RopeSpec, head_dim: int, positions: Int[Array, "*batch"]
) -> tuple[Float[Array, "... half"], Float[Array, "... half"]]:
    """Cosines and sines of every position, float32 [..., head_dim / 2]."""
    import jax.numpy as jnp

    angles = positions[..., None].astype(jnp.float32) * inverse_frequencies(rope, head_dim)
    return jnp.cos(angles), jnp.sin(angles)


def rotate(
    x: Float[Array, "... heads head_dim"], cosines: Float[Array, "... half"], sines: Float[Array, "... half"]
) -> Float[Array, "... heads head_dim"]:
    """Rotate the pairs (x[i], x[i + head_dim/2]); computed in float32, returned in x's dtype."""
    import jax.numpy as jnp

    first, second = jnp.split(x.astype(jnp.float32), 2, axis=-1)
    cosines, sines = cosines[..., None, :], sines[..., None, :]
    rotated = jnp.concatenate([first * cosines - second * sines, second * cosines + first * sines], axis=-1)
    return rotated.astype(x.dtype)
