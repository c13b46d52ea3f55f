"""The losses of policy-gradient post-training, as pure functions of arrays, and the numbers logged beside them.

Normalisation lives in weights that `trajectory_weights` computes once over a whole update. A loss is then the
plain sum of weight · token loss, and the sum over micro-batches (and devices) is the sum over the update: no way of
cutting it can change the gradient. Losses and metrics return (sum, count) pairs; pairs add up, and a metric divides
once at the end (`mean`), while a loss is its sum alone (the count says how many tokens it covers).

All arrays are [rows, tokens] unless said. Values outside the loss may be anything, NaN included: they are replaced
before the arithmetic, since 0 · NaN is NaN in the value and in the gradient.
"""

from __future__ import annotations

from typing import Literal, get_args

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int

Aggregation = Literal["token-mean", "sequence-mean-token-mean", "sequence-mean-token-sum-norm"]
SumCount = tuple[Float[Array, ""], Float[Array, ""]]

LOG_RATIO_LIMIT = 20.0
"""exp(±20) stays finite in float32 and is far outside any clip range: the limit only keeps a broken token from making
the whole update infinite."""


def trajectory_weights(
    counted_tokens: Int[np.ndarray, " n"], aggregation: Aggregation, max_tokens: int | None = None
) -> Float[np.ndarray, " n"]:
    """Weight of each token's loss by trajectory, such that an update's loss is Σ weight · token loss (NumPy).

    Give it the number of tokens in the loss of every trajectory of one optimizer update, whatever rows they will lie
    in. A trajectory counts (as a "sequence") when one of its tokens does.

    `token-mean`: 1 / counted tokens (DAPO, arXiv 2503.14476).
    `sequence-mean-token-mean`: 1 / (counted trajectories · the trajectory's counted tokens) (GRPO).
    `sequence-mean-token-sum-norm`: 1 / (counted trajectories · max_tokens) (Dr. GRPO, arXiv 2503.20783).

    A trajectory without a counted token has weight 0; when nothing counts, the loss and its gradient are 0, not NaN.
    """
    counts = counted_tokens > 0
    sequences = max(int(counts.sum()), 1)
    if aggregation == "token-mean":
        weights = np.full(len(counts), 1.0 / max(int(counted_tokens.sum()), 1))
    elif aggregation == "sequence-mean-token-mean":
        weights = 1.0 / (sequences * np.maximum(counted_tokens, 1))
    elif aggregation == "sequence-mean-token-sum-norm":
        if max_tokens is None:
            raise ValueError("sequence-mean-token-sum-norm divides by max_tokens, which was not given")
        weights = np.full(len(counts), 1.0 / (sequences * max_tokens))
    else:
        raise ValueError(f"loss aggregation is {aggregation!r}, expected one of {get_args(Aggregation)}")
    return np.where(counts, weights, 0.0)


def policy_loss(
    logprobs: Float[Array, "rows tokens"],
    sampled_logprobs: Float[Array, "rows tokens"],
    advantages: Float[Array, "rows tokens"],
    loss_weights: Float[Array, "rows tokens"],
    clip_low: float,
    clip_high: float,
) -> SumCount:
    """The clipped surrogate −min(ratio · A, clip(ratio, 1 − clip_low, 1 + clip_high) · A) (PPO, arXiv 1707.06347).

    The ratio is taken against the log-probability the token was sampled with, not a recomputed one; with different
    low and high clips it is DAPO's clip-higher.
    """
    ratio = importance_ratio(logprobs, sampled_logprobs, loss_weights)
    clipped = jnp.clip(ratio, 1.0 - clip_low, 1.0 + clip_high)
    return _sum_count(-jnp.minimum(ratio * advantages, clipped * advantages), loss_weights, loss_weights)


def importance_ratio(
    logprobs: Float[Array, "rows tokens"],
    sampled_logprobs: Float[Array, "rows tokens"],
    mask: Float[Array, "rows tokens"],
) -> Float[Array, "rows tokens"]:
    """exp(clip(logp − logp_sampled, ±20)), and 1 outside the mask."""
    return jnp.exp(jnp.clip(_log_ratio(logprobs, sampled_logprobs, mask), -LOG_RATIO_LIMIT, LOG_RATIO_LIMIT))


def kl_loss(
    logprobs: Float[Array, "rows tokens"],
    reference_logprobs: Float[Array, "rows tokens"],
    loss_weights: Float[Array, "rows tokens"],
    estimator: Literal["k3", "k2"],
) -> SumCount:
    """KL(policy ‖ reference) as a loss, for tokens drawn from the policy; the caller multiplies by its coefficient.

    k1 is refused: its gradient is E[∇ log p] = 0 on average, noise and no pull. It belongs in the reward.
    """
    if estimator not in ("k3", "k2"):
        raise ValueError(
            f"KL estimator in the loss is {estimator!r}, expected 'k3' or 'k2' (k1 only goes into the reward)"
        )
    estimate = k3 if estimator == "k3" else k2
    return _sum_count(estimate(_log_ratio(logprobs, reference_logprobs, loss_weights)), loss_weights, loss_weights)


def k1(log_ratio: Float[Array, "*shape"]) -> Float[Array, "*shape"]:
    """log p − log q of tokens drawn from p: unbiased for KL(p ‖ q), may be negative (Schulman, "Approximating KL")."""
    return log_ratio


def k2(log_ratio: Float[Array, "*shape"]) -> Float[Array, "*shape"]:
    """½ (log p − log q)²: never negative, biased as an estimate, and its gradient is that of KL(p ‖ q) on average."""
    return 0.5 * jnp.square(log_ratio)


def k3(log_ratio: Float[Array, "*shape"]) -> Float[Array, "*shape"]:
    """q/p − 1 − log(q/p): unbiased for KL(p ‖ q) and never negative; the log-ratio is limited to ±20 to stay finite."""
    reverse = -jnp.clip(log_ratio, -LOG_RATIO_LIMIT, LOG_RATIO_LIMIT)
    return jnp.expm1(reverse) - reverse


def sequence_kl(
    logprobs: Float[np.ndarray, "rows tokens"],
    reference_logprobs: Float[np.ndarray, "rows tokens"],
    loss_mask: Float[np.ndarray, "rows tokens"],
    trajectory_ids: Int[np.ndarray, "rows tokens"],
    num_trajectories: int,
) -> Float[np.ndarray, " n"]:
    """k1 summed over a trajectory's counted tokens (NumPy): the KL-penalised reward is reward − coefficient · this."""
    counted = loss_mask > 0
    log_ratio = logprobs[counted].astype(np.float64) - reference_logprobs[counted]
    return np.bincount(trajectory_ids[counted], weights=log_ratio, minlength=num_trajectories)


def policy_metrics(
    logprobs: Float[Array, "rows tokens"],
    sampled_logprobs: Float[Array, "rows tokens"],
    advantages: Float[Array, "rows tokens"],
    loss_mask: Float[Array, "rows tokens"],
    clip_low: float,
    clip_high: float,
) -> dict[str, SumCount]:
    """(sum, count) of what a step logs about the policy against the sampler.

    `clip_share_low`/`clip_share_high`: tokens whose gradient the clip removes; `ratio`: the importance ratio;
    `sampler_kl`: KL(sampler ‖ trainer) by k3, and `logprob_difference`: |Δlogp|, both raw, before any limit.
    """
    log_ratio = _log_ratio(logprobs, sampled_logprobs, loss_mask)
    ratio = importance_ratio(logprobs, sampled_logprobs, loss_mask)
    values = {
        "clip_share_low": (ratio < 1.0 - clip_low) & (advantages < 0),
        "clip_share_high": (ratio > 1.0 + clip_high) & (advantages > 0),
        "ratio": ratio,
        "sampler_kl": jnp.expm1(log_ratio) - log_ratio,
        "logprob_difference": jnp.abs(log_ratio),
    }
    return {name: masked_sum(value, loss_mask) for name, value in values.items()}


def max_logprob_difference(
    logprobs: Float[Array, "rows tokens"],
    sampled_logprobs: Float[Array, "rows tokens"],
    loss_mask: Float[Array, "rows tokens"],
) -> Float[Array, ""]:
    """Largest raw |Δlogp| between sampling and training over counted tokens (0 when none); reduce it with a maximum."""
    return jnp.max(jnp.abs(_log_ratio(logprobs, sampled_logprobs, loss_mask)))


def masked_sum(values: Float[Array, "rows tokens"], mask: Float[Array, "rows tokens"]) -> SumCount:
    """(sum, count) of values where the mask is on, e.g. of per-token entropies."""
    return _sum_count(values.astype(jnp.float32), jnp.where(mask > 0, 1.0, 0.0), mask)


def mean(pair: SumCount) -> Float[Array, ""]:
    """The mean a (sum, count) pair stands for; 0 for an empty one."""
    total, count = pair
    return total / jnp.maximum(count, 1.0)


def _log_ratio(logprobs: jax.Array, other: jax.Array, mask: jax.Array) -> jax.Array:
    return jnp.where(mask > 0, logprobs, 0.0) - jnp.where(mask > 0, other, 0.0)


def _sum_count(values: jax.Array, weights: jax.Array, mask: jax.Array) -> SumCount:
    counted = mask > 0
    return jnp.sum(jnp.where(counted, values, 0.0) * weights), jnp.sum(counted.astype(jnp.float32))
