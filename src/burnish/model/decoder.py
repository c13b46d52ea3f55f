"""The decoder: one layer written once, run over packed rows for training and one token per lane for sampling.

Parameters are a dict from the names of the parameter table (`model.layers.*.…`) to arrays. A layered entry is either
one stacked array (num_layers, …), over which the layers are scanned, or a tuple with one array per layer, in which case
they are unrolled: scanning compiles fast and suits long rows, unrolled layers spare decoding a copy of every weight.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Literal

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from burnish.model.attention import packed_attention, visibility
from burnish.model.products import product
from burnish.model.rope import rotate, rotation
from burnish.model.spec import ModelSpec

Parameters = dict[str, Any]
LAYER = "model.layers.*."
Remat = Literal["none", "dots", "full"]
# attend(queries, keys, values, state) -> (context, new state); how a layer's tokens see one another.
Attend = Callable[[Array, Array, Array, Any], tuple[Array, Any]]


def rms_norm(x: Float[Array, "... size"], weight: Float[Array, " size"], epsilon: float) -> Float[Array, "... size"]:
    """Root-mean-square normalisation (Zhang and Sennrich 2019), computed in float32."""
    wide = x.astype(jnp.float32)
    wide = wide * jax.lax.rsqrt(jnp.mean(jnp.square(wide), axis=-1, keepdims=True) + epsilon)
    return (wide * weight.astype(jnp.float32)).astype(x.dtype)


def linear(weights: Parameters, name: str, x: Float[Array, "... size"]) -> Float[Array, "... out"]:
    """x · Wᵀ (+ bias): matrices are (out, in), as in the Hugging Face file."""
    y = product("...i,oi->...o", x, weights[f"{name}.weight"]).astype(x.dtype)
    bias = weights.get(f"{name}.bias")
    return y if bias is None else y + bias


def layer(
    weights: Parameters,
    spec: ModelSpec,
    x: Float[Array, "*batch hidden"],
    angles: tuple[Array, Array],
    attend: Attend,
    state: Any,
) -> tuple[Float[Array, "*batch hidden"], Any]:
    """One transformer layer; `weights` are one layer's, without the `model.layers.*.` of their names."""
    normed = rms_norm(x, weights["input_layernorm.weight"], spec.rms_norm_eps)

    def heads(projection: str, count: int) -> Array:
        y = linear(weights, f"self_attn.{projection}_proj", normed)
        return y.reshape(*x.shape[:-1], count, spec.head_dim)

    queries, keys, values = heads("q", spec.num_heads), heads("k", spec.num_kv_heads), heads("v", spec.num_kv_heads)
    if spec.qk_norm:
        queries = rms_norm(queries, weights["self_attn.q_norm.weight"], spec.rms_norm_eps)
        keys = rms_norm(keys, weights["self_attn.k_norm.weight"], spec.rms_norm_eps)
    context, state = attend(rotate(queries, *angles), rotate(keys, *angles), values, state)
    x = x + linear(weights, "self_attn.o_proj", context.reshape(*x.shape[:-1], spec.num_heads * spec.head_dim))
    normed = rms_norm(x, weights["post_attention_layernorm.weight"], spec.rms_norm_eps)
    gated = jax.nn.silu(linear(weights, "mlp.gate_proj", normed)) * linear(weights, "mlp.up_proj", normed)
    return x + linear(weights, "mlp.down_proj", gated), state


def run_layers(
    parameters: Parameters,
    spec: ModelSpec,
    tokens: Int[Array, "*batch"],
    positions: Int[Array, "*batch"],
    attend: Attend,
    states: Any = None,
    *,
    remat: Remat = "none",
) -> tuple[Float[Array, "*batch hidden"], Any]:
    """Embed, run every layer, normalise: (hidden states, each layer's new state).

    `states` is None, a pytree stacked over layers (with stacked parameters), or one state per layer (with unrolled).
    """
    layered = {name.removeprefix(LAYER): value for name, value in parameters.items() if name.startswith(LAYER)}
    angles = rotation(spec.rope, spec.head_dim, positions)
    x = parameters["model.embed_tokens.weight"][tokens]

    def step(x: Array, weights: Parameters, state: Any) -> tuple[Array, Any]:
        return layer(weights, spec, x, angles, attend, state)

    if remat != "none":
        policy = jax.checkpoint_policies.dots_with_no_batch_dims_saveable if remat == "dots" else None
        step = jax.checkpoint(step, policy=policy)
    new_states: Any
    if any(isinstance(value, tuple) for value in layered.values()):
        new_states = []
        for index in range(spec.num_layers):
            weights = {name: value[index] for name, value in layered.items()}
            x, new_state = step(x, weights, None if states is None else states[index])
            new_states.append(new_state)
    else:
        x, new_states = jax.lax.scan(lambda x, inputs: step(x, *inputs), x, (layered, states))
    return rms_norm(x, parameters["model.norm.weight"], spec.rms_norm_eps), new_states


def forward(
    parameters: Parameters,
    spec: ModelSpec,
    tokens: Int[Array, "rows tokens"],
    positions: Int[Array, "rows tokens"],
    segment_ids: Int[Array, "rows tokens"],
    prefix_ids: Int[Array, "rows tokens"] | None = None,
    *,
    remat: Remat = "none",
) -> Float[Array, "rows tokens hidden"]:
    """Final hidden states of packed rows: a token sees its own segment and the prefix it hangs on (`visibility`)."""
    visible = visibility(segment_ids, prefix_ids)

    def attend(queries: Array, keys: Array, values: Array, state: None) -> tuple[Array, None]:
        return packed_attention(queries, keys, values, visible), None

    return run_layers(parameters, spec, tokens, positions, attend, remat=remat)[0]


def output_embedding(parameters: Parameters, spec: ModelSpec) -> Float[Array, "vocab hidden"]:
    """The matrix that turns hidden states into logits: the input embedding where the model ties them."""
    return parameters["model.embed_tokens.weight" if spec.tie_word_embeddings else "lm_head.weight"]


def logits(parameters: Parameters, spec: ModelSpec, hidden: Float[Array, "... hidden"]) -> Float[Array, "... vocab"]:
    """Unnormalised log-probabilities of the next token, always float32."""
    return product("...i,vi->...v", hidden, output_embedding(parameters, spec))


def cast(parameters: Parameters, dtype: Any) -> Parameters:
    """The one cast from master weights to what computes, shared by the sampler and the trainer."""
    return jax.tree.map(lambda array: array.astype(dtype), parameters)


def unroll(parameters: Parameters) -> Parameters:
    """Split every stacked parameter into a tuple with one array per layer."""

    def split(name: str, value: Array) -> Array | Sequence[Array]:
        return tuple(value[index] for index in range(value.shape[0])) if name.startswith(LAYER) else value

    return {name: split(name, value) for name, value in parameters.items()}
