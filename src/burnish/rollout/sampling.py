"""Drawing one token per lane, with the log-probability of the distribution that it was drawn from.

Noise is keyed: the uniform number behind a token is a function of (seed, step, group, completion, position) alone, so
neither scheduling nor batch shape nor a restart changes what is drawn. Drawing inverts the cumulative distribution,
which needs one uniform per token where the Gumbel trick needs one per vocabulary entry.
"""

from __future__ import annotations

from dataclasses import dataclass

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int, UInt32

from burnish.config.schema import IMPLIED_TOP_K
from burnish.model.attention import MASKED

GREEDY_TEMPERATURE = 1e-30
"""Dividing by this leaves probability on the likeliest token alone: temperature 0 in the arithmetic of the others."""

_BLOCK = 256


@dataclass(frozen=True)
class Sampling:
    """How completions are drawn. `temperature` 0 is greedy; top_k 0, top_p 1 and min_p 0 are off."""

    num_generations: int = 1
    temperature: float = 1.0
    top_k: int = 0
    top_p: float = 1.0
    min_p: float = 0.0
    max_tokens: int = 256
    stop_strings: tuple[str, ...] = ()

    @property
    def kept_bound(self) -> int:
        """Entries of `kept_ids` per token: 0 when the whole vocabulary is drawn from."""
        if self.top_k:
            return self.top_k
        return IMPLIED_TOP_K if self.top_p < 1.0 or self.min_p > 0.0 else 0


def lane_keys(
    seed: int, step: int, groups: Int[Array, " lanes"], completions: Int[Array, " lanes"]
) -> UInt32[Array, "lanes 2"]:
    """The noise key of every (seed, step, group, completion), as raw threefry key data."""
    base = jax.random.fold_in(jax.random.key(seed, impl="threefry2x32"), step)

    def key(group: Array, completion: Array) -> Array:
        return jax.random.key_data(jax.random.fold_in(jax.random.fold_in(base, group), completion))

    return jax.vmap(key)(jnp.asarray(groups), jnp.asarray(completions))


def uniforms(keys: UInt32[Array, "*lanes 2"], positions: Int[Array, "*lanes"]) -> Float[Array, "*lanes"]:
    """One number in [0, 1) per lane, a function of its key and the position that is drawn."""

    def one(key: Array, position: Array) -> Array:
        return jax.random.uniform(jax.random.fold_in(jax.random.wrap_key_data(key, impl="threefry2x32"), position))

    flat = jax.vmap(one)(keys.reshape(-1, 2), positions.reshape(-1))
    return flat.reshape(positions.shape)


def draw(
    logits: Float[Array, "*lanes vocab"], temperature: Float[Array, "*lanes"], noise: Float[Array, "*lanes"]
) -> tuple[Int[Array, "*lanes"], Float[Array, "*lanes"]]:
    """Draw from softmax(logits / temperature): (token, its log-probability)."""
    temperature, noise = _greedy_where_zero(temperature, noise)
    padding = -logits.shape[-1] % _BLOCK
    if padding:
        logits = jnp.pad(logits, [(0, 0)] * (logits.ndim - 1) + [(0, padding)], constant_values=MASKED)
    highest = logits.max(-1, keepdims=True)
    masses = jnp.exp((logits - highest) / temperature[..., None])
    # Two levels, block then entry: a cumulative sum over the whole vocabulary is slow and less exact.
    blocks = masses.reshape(*masses.shape[:-1], -1, _BLOCK)
    block, remainder, total = _invert(blocks.sum(-1), noise)
    entries = jnp.take_along_axis(blocks, block[..., None, None], axis=-2)[..., 0, :]
    entry, _, _ = _invert(entries, remainder, scaled=True)
    token = block * _BLOCK + entry
    chosen = jnp.take_along_axis(logits, token[..., None], axis=-1)[..., 0]
    return token, (chosen - highest[..., 0]) / temperature - jnp.log(total)


def draw_truncated(
    logits: Float[Array, "*lanes vocab"],
    temperature: Float[Array, "*lanes"],
    noise: Float[Array, "*lanes"],
    *,
    bound: int,
    top_k: Int[Array, ""],
    top_p: Float[Array, ""],
    min_p: Float[Array, ""],
) -> tuple[Int[Array, "*lanes"], Float[Array, "*lanes"], Int[Array, "*lanes bound"]]:
    """Draw among the kept tokens: (token, its log-probability among them, kept ids padded with -1).

    In this order, as in `transformers`: temperature, the `top_k` likeliest, of these the fewest that reach `top_p`, of
    these the ones of at least `min_p` times the likeliest. `bound` >= top_k is the static number of candidates.
    """
    temperature, noise = _greedy_where_zero(temperature, noise)
    candidates, ids = jax.lax.top_k(logits, bound)
    masses = jnp.exp((candidates - candidates[..., :1]) / temperature[..., None])
    masses = jnp.where(jnp.arange(bound) < top_k, masses, 0.0)
    before = jnp.cumsum(masses, axis=-1) - masses
    # Rounding makes `before` the whole mass where a token's own is tiny; a top_p of 1 must not cut there.
    within = (before < top_p * masses.sum(-1, keepdims=True)) | (top_p >= 1)
    kept = (masses > 0) & within & (masses >= min_p)
    masses = jnp.where(kept, masses, 0.0)
    entry, _, total = _invert(masses, noise)
    token = jnp.take_along_axis(ids, entry[..., None], axis=-1)[..., 0]
    chosen = jnp.take_along_axis(candidates, entry[..., None], axis=-1)[..., 0]
    logprob = (chosen - candidates[..., 0]) / temperature - jnp.log(total)
    return token, logprob, jnp.where(kept, ids, -1)


def _greedy_where_zero(temperature: Array, noise: Array) -> tuple[Array, Array]:
    greedy = temperature <= 0
    return jnp.where(greedy, GREEDY_TEMPERATURE, temperature), jnp.where(greedy, 0.0, noise)


def _invert(masses: Array, noise: Array, *, scaled: bool = False) -> tuple[Array, Array, Array]:
    """First entry whose cumulative mass exceeds noise (times the total unless `scaled`): (entry, remainder, total)."""
    cumulative = jnp.cumsum(masses, axis=-1)
    total = cumulative[..., -1]
    target = noise if scaled else noise * total
    beyond = (cumulative > target[..., None]) & (masses > 0)
    # Rounding may leave the target at the very end of the mass: the last entry that has any is meant.
    last = masses.shape[-1] - 1 - jnp.argmax((masses > 0)[..., ::-1], axis=-1)
    entry = jnp.where(beyond.any(-1), jnp.argmax(beyond, axis=-1), last)
    before = jnp.take_along_axis(cumulative - masses, entry[..., None], axis=-1)[..., 0]
    return entry, jnp.maximum(target - before, 0.0), total
