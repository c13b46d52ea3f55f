"""The optimizer: gradients clipped by their global norm, AdamW or Adafactor, a warm-up sized from the run itself.

Weight decay is decoupled (multiplied by the learning rate, like the step) and falls on matrices only, embeddings
included; norms and biases are not decayed. Whether something is a matrix is said by one layer's shape, because the
stacked norms of all layers look like one.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal, Protocol

import jax
import jax.numpy as jnp
import optax

ADAM_EPSILON = 1e-8
ADAFACTOR_CLIP = 1.0
"""Largest root mean square of one tensor's Adafactor step, before the learning rate (arXiv 1804.04235, section 6)."""


class Shaped(Protocol):
    """A parameter's entry in the model's table, as far as weight decay needs it."""

    @property
    def shape(self) -> tuple[int, ...]:
        """Shape of one layer's tensor, without the axis that stacks the layers."""


def decay_mask(parameters: Mapping[str, Shaped]) -> dict[str, bool]:
    """Which parameters are decayed: those that are matrices in one layer."""
    return {name: len(parameter.shape) >= 2 for name, parameter in parameters.items()}


def schedule_updates(
    *,
    steps: int,
    updates_per_rollout: int = 1,
    epochs_per_rollout: int = 1,
    warmup_steps: int | None = None,
    warmup_fraction: float = 0.0,
) -> tuple[int, int]:
    """(total, warm-up) of a run in optimizer updates, which several mini-batches and epochs make more than its steps.

    `warmup_steps` counts training steps and wins over `warmup_fraction`, a share of the run.
    """
    per_step = updates_per_rollout * epochs_per_rollout
    total = steps * per_step
    warmup = round(total * warmup_fraction) if warmup_steps is None else warmup_steps * per_step
    return total, min(warmup, total)


def learning_rate_schedule(
    *, peak: float, total_updates: int, warmup_updates: int, schedule: Literal["constant", "cosine"]
) -> optax.Schedule:
    """Learning rate of update n, counted from 0 over the whole run.

    Warm-up is linear and ends at the peak on its last update; its first is peak / warmup_updates, not 0, since a step
    at 0 would throw a rollout away. After it the rate is constant, or falls along half a cosine that would reach 0 at
    update `total_updates`, one after the last.
    """
    if schedule not in ("constant", "cosine"):
        raise ValueError(f"learning rate schedule is {schedule!r}, expected 'constant' or 'cosine'")
    after_warmup = max(total_updates - warmup_updates, 1)

    def learning_rate(update: jax.typing.ArrayLike) -> jax.Array:
        update = jnp.asarray(update, jnp.float32)
        warming = (update + 1.0) / max(warmup_updates, 1)
        progress = jnp.clip((update - warmup_updates) / after_warmup, 0.0, 1.0)
        falling = 0.5 * (1.0 + jnp.cos(jnp.pi * progress)) if schedule == "cosine" else jnp.float32(1.0)
        return peak * jnp.where(update < warmup_updates, warming, falling)

    return learning_rate


def make_optimizer(
    learning_rate: optax.Schedule,
    *,
    name: Literal["adamw", "adafactor"] = "adamw",
    beta1: float = 0.9,
    beta2: float = 0.95,
    weight_decay: float = 0.01,
    max_grad_norm: float | None = 1.0,
    decayed: Any = None,
) -> optax.GradientTransformation:
    """Clip by global norm → scale → decoupled weight decay → learning rate; `max_grad_norm` None clips nothing.

    `decayed` is a tree of bools as `decay_mask` makes it (None decays everything). Adafactor keeps factored second
    moments and no first one; its step is not multiplied by the parameter's size, so that a learning rate means about
    the same as for AdamW. Its clip goes by stored tensor, so for stacked layers by the stack.
    """
    if name == "adamw":
        scale = [optax.scale_by_adam(b1=beta1, b2=beta2, eps=ADAM_EPSILON)]
    elif name == "adafactor":
        scale = [optax.scale_by_factored_rms(), optax.clip_by_block_rms(ADAFACTOR_CLIP)]
    else:
        raise ValueError(f"optimizer is {name!r}, expected 'adamw' or 'adafactor'")
    clip = [] if max_grad_norm is None else [optax.clip_by_global_norm(max_grad_norm)]
    return optax.chain(
        *clip,
        *scale,
        optax.add_decayed_weights(weight_decay, mask=decayed),
        optax.scale_by_learning_rate(learning_rate),
    )
