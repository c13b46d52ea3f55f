"""Attention over packed rows (training, prefill), and over a group's prefix plus each lane's own tokens (decoding).

Scores and softmax are float32 whatever the compute dtype. Queries come as (…, num_heads, head_dim), keys and values as
(…, num_kv_heads, head_dim); query head h reads key/value head h // (num_heads / num_kv_heads).
"""

from __future__ import annotations

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int

from burnish.model.products import product

MASKED = -1e30
"""Score of what may not be seen: finite, so that a token which sees nothing averages over everything, never NaN."""


def visibility(
    segment_ids: Int[Array, "rows tokens"], prefix_ids: Int[Array, "rows tokens"] | None = None
) -> Bool[Array, "rows tokens tokens"]:
    """Which token (last axis) each query may see: its own segment and the prefix it hangs on, up to its own index.

    Segment 0 is padding: it sees only padding and nothing sees it.
    """
    tokens = segment_ids.shape[1]
    causal = jnp.tril(jnp.ones((tokens, tokens), bool))
    same = segment_ids[:, :, None] == segment_ids[:, None, :]
    if prefix_ids is not None:
        hangs_on = (prefix_ids[:, :, None] == segment_ids[:, None, :]) & (prefix_ids[:, :, None] > 0)
        same = same | hangs_on
    return causal & same


def packed_attention(
    queries: Float[Array, "rows tokens heads head_dim"],
    keys: Float[Array, "rows tokens kv_heads head_dim"],
    values: Float[Array, "rows tokens kv_heads head_dim"],
    visible: Bool[Array, "rows tokens tokens"],
) -> Float[Array, "rows tokens heads head_dim"]:
    """Scaled dot-product attention under an explicit mask."""
    rows, tokens, heads, head_dim = queries.shape
    kv_heads = keys.shape[2]
    # The queries of all heads that read one key/value head stand in one matrix: large products are fast everywhere.
    shape = rows, kv_heads, heads // kv_heads, tokens, head_dim
    grouped = queries.reshape(rows, tokens, kv_heads, heads // kv_heads, head_dim).transpose(0, 2, 3, 1, 4)
    stacked = grouped.reshape(rows, kv_heads, -1, head_dim)
    keys, values = keys.swapaxes(1, 2), values.swapaxes(1, 2)
    scores = product("rkqd,rksd->rkqs", stacked, keys)
    scores = scores.reshape(*shape[:4], tokens) * (head_dim**-0.5)
    weights = jax.nn.softmax(jnp.where(visible[:, None, None], scores, MASKED), axis=-1).astype(values.dtype)
    weights = weights.reshape(*stacked.shape[:3], tokens)
    context = product("rkqs,rksd->rkqd", weights, values)
    return context.reshape(shape).transpose(0, 3, 1, 2, 4).reshape(queries.shape).astype(queries.dtype)


def lane_attention(
    queries: Float[Array, "groups lanes heads head_dim"],
    prefix_keys: Float[Array, "groups kv_heads prefix head_dim"],
    prefix_values: Float[Array, "groups kv_heads prefix head_dim"],
    prefix_visible: Bool[Array, "groups prefix"],
    own_keys: Float[Array, "groups lanes kv_heads slots head_dim"],
    own_values: Float[Array, "groups lanes kv_heads slots head_dim"],
    own_visible: Bool[Array, "groups lanes slots"],
) -> Float[Array, "groups lanes heads head_dim"]:
    """One new token per lane against its group's prompt (read once for all lanes) and the lane's own tokens."""
    groups, lanes, heads, head_dim = queries.shape
    kv_heads = prefix_keys.shape[1]
    grouped = queries.reshape(groups, lanes, kv_heads, heads // kv_heads, head_dim)
    prefix_scores = product("glkhd,gksd->gklhs", grouped, prefix_keys) * (head_dim**-0.5)
    prefix_scores = jnp.where(prefix_visible[:, None, None, None], prefix_scores, MASKED)
    own_scores = product("glkhd,glksd->glkhs", grouped, own_keys) * (head_dim**-0.5)
    own_scores = jnp.where(own_visible[:, :, None, None], own_scores, MASKED)
    highest = jnp.maximum(prefix_scores.max(-1).swapaxes(1, 2), own_scores.max(-1))
    prefix_weights = jnp.exp(prefix_scores - highest.swapaxes(1, 2)[..., None])
    own_weights = jnp.exp(own_scores - highest[..., None])
    total = prefix_weights.sum(-1).swapaxes(1, 2) + own_weights.sum(-1)
    dtype = own_values.dtype
    context = product("gklhs,gksd->glkhd", prefix_weights.astype(dtype), prefix_values)
    context += product("glkhs,glksd->glkhd", own_weights.astype(dtype), own_values)
    return (context / total[..., None]).reshape(queries.shape).astype(queries.dtype)
