"""Log-probabilities of given tokens, without ever holding the logits of all positions at once."""

from __future__ import annotations

from typing import NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from burnish.model.attention import MASKED
from burnish.model.decoder import Parameters, output_embedding
from burnish.model.products import product
from burnish.model.spec import ModelSpec

CHUNK = 256
"""Positions whose logits exist at the same time."""


class TokenScores(NamedTuple):
    """Per position, float32: the target's log-probability and the entropy (nats) of the distribution."""

    logprobs: Float[Array, " positions"]
    entropies: Float[Array, " positions"]


def score_tokens(
    parameters: Parameters,
    spec: ModelSpec,
    hidden: Float[Array, "positions hidden"],
    targets: Int[Array, " positions"],
    *,
    temperature: float = 1.0,
    kept_ids: Int[Array, "positions kept"] | None = None,
) -> TokenScores:
    """Score each target under softmax(logits / temperature), renormalised over `kept_ids` where sampling was truncated.

    Rows of `kept_ids` are padded with -1; a row of -1 alone (a prompt's position) keeps the whole vocabulary. Positions
    go through the vocabulary projection in chunks, whose logits are computed again in the backward pass.
    """
    positions = hidden.shape[0]
    chunk = min(CHUNK, positions)
    padding = -positions % chunk

    def chunked(array: Array) -> Array:
        padded = jnp.pad(array, [(0, padding)] + [(0, 0)] * (array.ndim - 1))
        return padded.reshape(-1, chunk, *array.shape[1:])

    # Chunks add up their gradients of the projection: in float32, whatever the dtype that computes.
    head = output_embedding(parameters, spec).astype(jnp.float32)

    @jax.checkpoint
    def score(inputs: tuple[Array, Array, Array | None]) -> TokenScores:
        hidden, targets, kept = inputs
        scaled = product("pi,vi->pv", hidden, head.astype(hidden.dtype)) / temperature
        if kept is not None:
            scaled = jnp.where(_is_kept(kept, spec.vocab_size), scaled, MASKED)
        log_total = jax.nn.logsumexp(scaled, axis=-1)
        logprobs = jnp.take_along_axis(scaled, targets[:, None], axis=-1)[:, 0] - log_total
        probabilities = jax.lax.stop_gradient(jnp.exp(scaled - log_total[:, None]))
        entropies = jax.lax.stop_gradient(log_total - jnp.sum(probabilities * scaled, axis=-1))
        return TokenScores(logprobs, entropies)

    inputs = (chunked(hidden), chunked(targets), None if kept_ids is None else chunked(kept_ids))
    scores = jax.lax.map(score, inputs)
    return TokenScores(*(values.reshape(-1)[:positions] for values in scores))


def _is_kept(kept_ids: Int[Array, "positions kept"], vocab_size: int) -> Array:
    rows = jnp.arange(kept_ids.shape[0])[:, None]
    # -1 is sent past the end, where a scatter drops it.
    ids = jnp.where(kept_ids >= 0, kept_ids, vocab_size)
    mask = jnp.zeros((kept_ids.shape[0], vocab_size), bool).at[rows, ids].set(True, mode="drop")
    return mask | (kept_ids < 0).all(axis=-1, keepdims=True)
