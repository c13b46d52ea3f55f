"""The packed batch: the one typed object that travels from trajectories to the update.

Rows hold several segments. A query at index i of a row attends the key at index j ≤ i when `segment_ids[i]` is not
padding and `segment_ids[j]` is either `segment_ids[i]` or `prefix_ids[i]`. Every leaf's first axis is rows, so a
micro-batch is a slice of rows of every leaf.
"""

from __future__ import annotations

import dataclasses
from typing import Any

import jax
from jaxtyping import Float32, Int32

Array = Any
"""A NumPy array where rows are packed, a jax array inside the update."""


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class Batch:
    """Packed rows, in NumPy where they are packed and in jax inside the update. Padding is segment 0."""

    tokens: Int32[Array, "rows tokens"]
    """Input token of each position."""
    targets: Int32[Array, "rows tokens"]
    """The token each position predicts; meaningful where `trajectory_ids` ≥ 0, 0 elsewhere."""
    positions: Int32[Array, "rows tokens"]
    """Position within the token's own conversation, for RoPE."""
    segment_ids: Int32[Array, "rows tokens"]
    """0 for padding; unique within the row."""
    prefix_ids: Int32[Array, "rows tokens"]
    """Segment id of the prefix this token's segment hangs on; 0 for none."""
    loss_mask: Float32[Array, "rows tokens"]
    """1 where the target was drawn by the policy and counts, 0 elsewhere."""
    advantages: Float32[Array, "rows tokens"]
    sampled_logprobs: Float32[Array, "rows tokens"]
    """Log-probability of the target as it was sampled; 0 where there is none."""
    trajectory_ids: Int32[Array, "rows tokens"]
    """Index into the list of trajectories that was packed; −1 on prefixes and padding."""
    loss_weights: Float32[Array, "rows tokens"]
    """What each token's loss is multiplied by before the plain sum over the whole update: it holds the global
    normalisation (`losses.trajectory_weights`), so that cutting into micro-batches can't change the gradient."""
    reference_logprobs: Float32[Array, "rows tokens"] | None = None
    """Log-probability of the target under the reference model, when a KL term is used."""
    kept_ids: Int32[Array, "rows tokens k"] | None = None
    """Ids the target's distribution was renormalised over, −1 padded, when sampling was truncated."""
