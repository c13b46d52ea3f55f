"""The update: one jitted function from a state and a packed batch to the next state and the step's metrics.

The loss is a plain sum of weighted token losses (`Batch.loss_weights` holds the normalisation of the whole update), so
gradients of micro-batches add up and how the rows are cut can't change them.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import Any, Literal, NamedTuple

import jax
import jax.numpy as jnp
import optax
from jaxtyping import Array, Float, Int

from burnish.model.decoder import Parameters, Remat, cast, forward
from burnish.model.logprobs import TokenScores, score_tokens
from burnish.model.spec import ModelSpec
from burnish.rl.batch import Batch
from burnish.rl.losses import SumCount, kl_loss, masked_sum, max_logprob_difference, policy_loss, policy_metrics


@partial(jax.tree_util.register_dataclass, data_fields=["parameters", "optimizer_state", "version"], meta_fields=[])
@dataclass(frozen=True)
class State:
    """What training changes."""

    parameters: Parameters
    """Master weights, layers stacked."""
    optimizer_state: Any
    version: Int[Array, ""]
    """Optimizer updates so far: the version of the weights."""


@dataclass(frozen=True)
class UpdateSettings:
    """The numbers of an update that are fixed for a run (they are compiled in)."""

    spec: ModelSpec
    compute_dtype: Literal["float32", "bfloat16"]
    remat: Remat
    rows_per_micro_batch: int
    temperature: float
    clip_low: float
    clip_high: float
    kl_coefficient: float = 0.0
    """Weight of the KL term in the loss; 0 without one."""
    kl_estimator: Literal["k3", "k2"] = "k3"


class UpdateMetrics(NamedTuple):
    """What one update measured."""

    loss: Float[Array, ""]
    grad_norm: Float[Array, ""]
    """Global norm before clipping."""
    share_of_weights_changed: Float[Array, ""]
    """Share of the weights, as cast for computing, that the update changed."""
    max_logprob_difference: Float[Array, ""]
    pairs: dict[str, SumCount]


def score_rows(parameters: Parameters, settings: UpdateSettings, rows: Batch) -> TokenScores:
    """Log-probability and entropy of every target of packed rows, [rows, tokens], as the sampler would give them.

    Raises nothing; differentiable in `parameters` (already cast).
    """
    hidden = forward(
        parameters,
        settings.spec,
        rows.tokens,
        rows.positions,
        rows.segment_ids,
        rows.prefix_ids,
        remat=settings.remat,
    )
    shape = rows.tokens.shape
    kept_ids = None if rows.kept_ids is None else rows.kept_ids.reshape(-1, rows.kept_ids.shape[-1])
    scores = score_tokens(
        parameters,
        settings.spec,
        hidden.reshape(-1, hidden.shape[-1]),
        rows.targets.reshape(-1),
        temperature=settings.temperature,
        kept_ids=kept_ids,
    )
    return TokenScores(*(values.reshape(shape) for values in scores))


def micro_batch(batch: Batch, index: Int[Array, ""], rows: int) -> Batch:
    """Rows `index * rows` and following of a batch."""
    return jax.tree.map(lambda leaf: jax.lax.dynamic_slice_in_dim(leaf, index * rows, rows), batch)


def loss_and_metrics(
    parameters: Parameters, settings: UpdateSettings, rows: Batch
) -> tuple[Float[Array, ""], tuple[Float[Array, ""], dict[str, SumCount]]]:
    """The share of the update's loss that these rows hold, and (max |Δlogp|, metric pairs) of their tokens."""
    scores = score_rows(cast(parameters, settings.compute_dtype), settings, rows)
    clips = settings.clip_low, settings.clip_high
    loss, _ = policy_loss(scores.logprobs, rows.sampled_logprobs, rows.advantages, rows.loss_weights, *clips)
    logprobs = jax.lax.stop_gradient(scores.logprobs)
    pairs = policy_metrics(logprobs, rows.sampled_logprobs, rows.advantages, rows.loss_mask, *clips)
    pairs["entropy"] = masked_sum(scores.entropies, rows.loss_mask)
    if rows.reference_logprobs is not None:
        if settings.kl_coefficient:
            kl, _ = kl_loss(scores.logprobs, rows.reference_logprobs, rows.loss_weights, settings.kl_estimator)
            loss += settings.kl_coefficient * kl
        pairs["kl_to_reference"] = kl_loss(logprobs, rows.reference_logprobs, rows.loss_mask, "k3")
    return loss, (max_logprob_difference(logprobs, rows.sampled_logprobs, rows.loss_mask), pairs)


@partial(jax.jit, static_argnames=("settings", "optimizer"), donate_argnames=("state",))
def update(
    state: State,
    batch: Batch,
    micro_batches: Int[Array, ""],
    *,
    settings: UpdateSettings,
    optimizer: optax.GradientTransformation,
) -> tuple[State, UpdateMetrics]:
    """One optimizer step on a batch, of which the first `micro_batches` micro-batches hold rows and the rest padding.

    The number of rows is static and that of micro-batches is not, so that steps of any size share one compilation.
    """
    gradient = jax.value_and_grad(loss_and_metrics, has_aux=True)
    rows = settings.rows_per_micro_batch

    def accumulate(index: Array, carry: Any) -> Any:
        grads, loss, worst, pairs = carry
        (part, (difference, more)), part_grads = gradient(state.parameters, settings, micro_batch(batch, index, rows))
        add = partial(jax.tree.map, jnp.add)  # A bfloat16 part is added in float32: the sum's dtype wins.
        return add(grads, part_grads), loss + part, jnp.maximum(worst, difference), add(pairs, more)

    measure = partial(loss_and_metrics, settings=settings)
    shapes = jax.eval_shape(measure, state.parameters, rows=micro_batch(batch, jnp.int32(0), rows))
    no_pairs = jax.tree.map(lambda leaf: jnp.zeros(leaf.shape, leaf.dtype), shapes[1][1])
    no_grads = jax.tree.map(lambda leaf: jnp.zeros(leaf.shape, jnp.float32), state.parameters)
    start = (no_grads, jnp.float32(0), jnp.float32(0), no_pairs)
    grads, loss, worst, pairs = jax.lax.fori_loop(0, micro_batches, accumulate, start)
    grads = jax.tree.map(lambda grad, leaf: grad.astype(leaf.dtype), grads, state.parameters)
    updates, optimizer_state = optimizer.update(grads, state.optimizer_state, state.parameters)
    parameters = optax.apply_updates(state.parameters, updates)
    metrics = UpdateMetrics(
        loss=loss,
        grad_norm=optax.global_norm(grads),
        share_of_weights_changed=_share_changed(state.parameters, parameters, settings),
        max_logprob_difference=worst,
        pairs=pairs,
    )
    return State(parameters, optimizer_state, state.version + 1), metrics


@partial(jax.jit, static_argnames=("settings",))
def score_batch(
    parameters: Parameters, batch: Batch, micro_batches: Int[Array, ""], *, settings: UpdateSettings
) -> Float[Array, "rows tokens"]:
    """Log-probabilities of a batch's targets under other weights (a reference model); 0 on rows of padding."""
    rows = settings.rows_per_micro_batch
    parameters = cast(parameters, settings.compute_dtype)

    def score(index: Array, result: Array) -> Array:
        logprobs = score_rows(parameters, settings, micro_batch(batch, index, rows)).logprobs
        return jax.lax.dynamic_update_slice_in_dim(result, logprobs, index * rows, axis=0)

    return jax.lax.fori_loop(0, micro_batches, score, jnp.zeros(batch.tokens.shape, jnp.float32))


def _share_changed(before: Parameters, after: Parameters, settings: UpdateSettings) -> Array:
    old, new = (jax.tree.leaves(cast(parameters, settings.compute_dtype)) for parameters in (before, after))
    # Counted in float32 per tensor: exact enough for a share, and an int32 sum would overflow at 2^31 weights.
    changed = sum(jnp.sum((a != b).astype(jnp.float32)) for a, b in zip(old, new, strict=True))
    return changed / sum(leaf.size for leaf in old)
