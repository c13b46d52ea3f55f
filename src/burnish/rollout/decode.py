"""The compiled programs of the rollout: prefill of prompts, many decoding steps per dispatch, and re-arranging lanes.

Lanes stand in a grid of `groups` rows and `lanes` columns: every lane of a row continues the same prompt, whose keys
and values are held and read once per row. All lanes write their new token at the same slot of their own cache, so one
update serves them all; a lane that started later sees its own slots only.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int, UInt32

from burnish.model.attention import lane_attention, packed_attention, visibility
from burnish.model.decoder import Parameters, logits, run_layers
from burnish.model.spec import ModelSpec
from burnish.rollout.sampling import draw, draw_truncated, uniforms


@partial(
    jax.tree_util.register_dataclass,
    data_fields=["tokens", "positions", "starts", "remaining", "keys", "temperatures"],
    meta_fields=[],
)
@dataclass(frozen=True)
class Lanes:
    """What each lane of the grid is doing; a lane with nothing remaining is finished or empty."""

    tokens: Int[Array, "groups lanes"]
    """The next input: the prompt's last token, then the token drawn last."""
    positions: Int[Array, "groups lanes"]
    """Position of that input in its sequence."""
    starts: Int[Array, "groups lanes"]
    """The cache slot that holds the lane's first input."""
    remaining: Int[Array, "groups lanes"]
    """Tokens the lane may still draw."""
    keys: UInt32[Array, "groups lanes 2"]
    temperatures: Float[Array, "groups lanes"]


class Truncation(NamedTuple):
    """Numbers of a truncated draw (see `draw_truncated`)."""

    top_k: Array
    top_p: Array
    min_p: Array


class Drawn(NamedTuple):
    """What one dispatch drew, a column per decoding step; a lane's first `counts` columns are its own."""

    tokens: Int[Array, "groups lanes steps"]
    logprobs: Float[Array, "groups lanes steps"]
    kept_ids: Int[Array, "groups lanes steps bound"] | None
    counts: Int[Array, "groups lanes"]


LayerCache = tuple[Array, Array]
"""Keys and values of one layer."""


@partial(jax.jit, static_argnames=("spec",))
def prefill(
    parameters: Parameters, tokens: Int[Array, "rows tokens"], lengths: Int[Array, " rows"], *, spec: ModelSpec
) -> list[LayerCache]:
    """Keys and values of right-padded prompts, per layer as (rows, kv_heads, tokens, head_dim)."""
    positions = jnp.broadcast_to(jnp.arange(tokens.shape[1]), tokens.shape)
    visible = visibility((positions < lengths[:, None]).astype(jnp.int32))

    def attend(queries: Array, keys: Array, values: Array, state: None) -> tuple[Array, LayerCache]:
        cache = keys.swapaxes(1, 2), values.swapaxes(1, 2)
        return packed_attention(queries, keys, values, visible), cache

    _, caches = run_layers(parameters, spec, tokens, positions, attend)
    if isinstance(caches, list):
        return caches
    keys, values = caches
    return [(keys[index], values[index]) for index in range(spec.num_layers)]


@partial(jax.jit, static_argnames=("spec", "eos_ids", "max_steps", "bound"), donate_argnames=("own", "lanes"))
def decode(
    parameters: Parameters,
    prefix: list[LayerCache],
    prefix_lengths: Int[Array, " groups"],
    own: list[LayerCache],
    lanes: Lanes,
    slot: Int[Array, ""],
    truncation: Truncation,
    *,
    spec: ModelSpec,
    eos_ids: tuple[int, ...],
    max_steps: int,
    bound: int,
) -> tuple[list[LayerCache], Lanes, Int[Array, ""], Drawn]:
    """Draw up to `max_steps` tokens per lane, as far as the slots reach, ending early when every lane has finished.

    `bound` is 0 to draw from the whole vocabulary, else the number of candidates of a truncated draw.
    """
    shape = lanes.tokens.shape
    slots = own[0][0].shape[3]
    prefix_visible = jnp.arange(prefix[0][0].shape[2]) < prefix_lengths[:, None]
    stops = jnp.asarray(eos_ids, jnp.int32)
    drawn = Drawn(
        tokens=jnp.zeros((*shape, max_steps), jnp.int32),
        logprobs=jnp.zeros((*shape, max_steps), jnp.float32),
        kept_ids=jnp.full((*shape, max_steps, bound), -1, jnp.int32) if bound else None,
        counts=jnp.zeros(shape, jnp.int32),
    )

    def unfinished(carry: tuple[Any, ...]) -> Array:
        _, lanes, slot, step, _ = carry
        return (step < max_steps) & (slot < slots) & jnp.any(lanes.remaining > 0)

    def advance(carry: tuple[Any, ...]) -> tuple[Any, ...]:
        own, lanes, slot, step, drawn = carry
        own_visible = (jnp.arange(slots) <= slot) & (jnp.arange(slots) >= lanes.starts[..., None])

        def attend(queries: Array, keys: Array, values: Array, state: Any) -> tuple[Array, LayerCache]:
            (prefix_keys, prefix_values), (own_keys, own_values) = state
            own_keys = jax.lax.dynamic_update_slice_in_dim(own_keys, keys[:, :, :, None], slot, axis=3)
            own_values = jax.lax.dynamic_update_slice_in_dim(own_values, values[:, :, :, None], slot, axis=3)
            context = lane_attention(
                queries, prefix_keys, prefix_values, prefix_visible, own_keys, own_values, own_visible
            )
            return context, (own_keys, own_values)

        states = list(zip(prefix, own, strict=True))
        hidden, own = run_layers(parameters, spec, lanes.tokens, lanes.positions, attend, states)
        scores = logits(parameters, spec, hidden)
        noise = uniforms(lanes.keys, lanes.positions + 1)
        kept_ids = None
        if bound:
            token, logprob, kept_ids = draw_truncated(
                scores, lanes.temperatures, noise, bound=bound, **truncation._asdict()
            )
        else:
            token, logprob = draw(scores, lanes.temperatures, noise)
        alive = lanes.remaining > 0
        stopped = (token[..., None] == stops).any(-1)
        lanes = Lanes(
            tokens=jnp.where(alive, token, lanes.tokens),
            positions=lanes.positions + alive,
            starts=lanes.starts,
            remaining=jnp.where(alive & ~stopped, lanes.remaining - 1, 0),
            keys=lanes.keys,
            temperatures=lanes.temperatures,
        )
        put = partial(jax.lax.dynamic_update_slice_in_dim, start_index=step, axis=2)
        drawn = Drawn(
            tokens=put(drawn.tokens, token[..., None]),
            logprobs=put(drawn.logprobs, logprob[..., None]),
            kept_ids=None if kept_ids is None else put(drawn.kept_ids, kept_ids[:, :, None]),
            counts=drawn.counts + alive,
        )
        return own, lanes, slot + 1, step + 1, drawn

    own, lanes, slot, _, drawn = jax.lax.while_loop(unfinished, advance, (own, lanes, slot, jnp.int32(0), drawn))
    return own, lanes, slot, drawn


@partial(jax.jit, static_argnames=("length",))
def gather_prefix(
    old: Float[Array, "groups kv_heads prefix head_dim"],
    new: Float[Array, "prompts kv_heads prompt head_dim"],
    rows: Int[Array, " new_groups"],
    *,
    length: int,
) -> Float[Array, "new_groups kv_heads length head_dim"]:
    """Prompts of the new grid's rows: an index below `groups` is an old row, one from there on a prefilled prompt."""
    return jnp.concatenate([_resize(old, length, axis=2), _resize(new, length, axis=2)])[rows]


@partial(jax.jit, static_argnames=("length",))
def gather_own(
    old: Float[Array, "groups lanes kv_heads slots head_dim"],
    sources: Int[Array, "new_groups new_lanes 2"],
    shift: Int[Array, ""],
    *,
    length: int,
) -> Float[Array, "new_groups new_lanes kv_heads length head_dim"]:
    """The lanes' own caches in the new grid, all moved `shift` slots towards the front."""
    moved = jnp.roll(old[sources[..., 0], sources[..., 1]], -shift, axis=3)
    return _resize(moved, length, axis=3)


def _resize(array: Array, length: int, axis: int) -> Array:
    if array.shape[axis] >= length:
        return jax.lax.slice_in_dim(array, 0, length, axis=axis)
    padding = [(0, 0)] * array.ndim
    padding[axis] = (0, length - array.shape[axis])
    return jnp.pad(array, padding)
