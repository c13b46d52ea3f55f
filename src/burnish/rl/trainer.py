"""The trainer: holds the state, lays a step's trajectories into batches and runs the updates on them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax

from burnish.config.schema import RunConfig
from burnish.errors import RunStopped
from burnish.model.decoder import Parameters, cast
from burnish.model.spec import ModelSpec, parameters
from burnish.rl.batch import Batch
from burnish.rl.losses import sequence_kl
from burnish.rl.optimizer import decay_mask, learning_rate_schedule, make_optimizer, schedule_updates
from burnish.rl.packing import (
    counted_trajectories,
    pack,
    packing_efficiency,
    pad_rows,
    pad_rows_to_multiple,
    split_by_group,
    unpack,
)
from burnish.rl.update import State, UpdateMetrics, UpdateSettings, score_batch, update
from burnish.rollout.records import Trajectory

DEFAULT_ROW_TOKENS = 512
_ROW_MULTIPLE = 64


def row_length(config: RunConfig) -> int:
    """Tokens of a packed row: as configured, else 512, or what one prompt with one completion needs."""
    needed = config.rollout.max_prompt_tokens + config.rollout.max_tokens
    return config.training.row_tokens or max(DEFAULT_ROW_TOKENS, -(-needed // _ROW_MULTIPLE) * _ROW_MULTIPLE)


def compute_dtype(config: RunConfig) -> str:
    """What the weights are cast to for sampling and training on this machine."""
    if config.training.compute_dtype != "auto":
        return config.training.compute_dtype
    return "float32" if jax.default_backend() == "cpu" else "bfloat16"


@dataclass(frozen=True)
class StepUpdates:
    """What the updates of one step measured."""

    metrics: list[UpdateMetrics]
    """Of each update; empty when there was no gradient and the weights stayed as they were."""
    learning_rate: float
    packing_efficiency: float
    trained_tokens: int
    """Tokens that went through the model, prompts included, padding not."""


class Trainer:
    """Owns the master weights, the optimizer's state and, with a KL term, the reference model's weights."""

    def __init__(self, config: RunConfig, spec: ModelSpec, initial: Parameters) -> None:
        algorithm, optimizer = config.algorithm, config.optimizer
        self._config = config
        self._row_tokens = row_length(config)
        total, warmup = schedule_updates(
            steps=config.steps,
            updates_per_rollout=algorithm.updates_per_rollout,
            epochs_per_rollout=algorithm.epochs_per_rollout,
            warmup_steps=optimizer.warmup_steps,
            warmup_fraction=optimizer.warmup_fraction,
        )
        self._learning_rate = learning_rate_schedule(
            peak=optimizer.learning_rate, total_updates=total, warmup_updates=warmup, schedule=optimizer.schedule
        )
        self._optimizer: optax.GradientTransformation = make_optimizer(
            self._learning_rate,
            name=optimizer.name,
            beta1=optimizer.beta1,
            beta2=optimizer.beta2,
            weight_decay=optimizer.weight_decay,
            max_grad_norm=optimizer.max_grad_norm,
            decayed=decay_mask(parameters(spec)),
        )
        in_loss = algorithm.kl_coefficient > 0 and algorithm.kl_estimator != "k1"
        self._settings = UpdateSettings(
            spec=spec,
            compute_dtype=compute_dtype(config),  # type: ignore[arg-type]
            remat=config.training.remat,
            rows_per_micro_batch=config.training.rows_per_micro_batch,
            temperature=config.rollout.temperature,
            clip_low=algorithm.clip_low,
            clip_high=algorithm.clip_high,
            kl_coefficient=algorithm.kl_coefficient if in_loss else 0.0,
            kl_estimator="k2" if algorithm.kl_estimator == "k2" else "k3",
        )
        # The update donates its state, so the reference needs arrays of its own.
        self._reference = jax.tree.map(jnp.copy, initial) if algorithm.kl_coefficient > 0 else None
        self.state = _committed(State(initial, jax.jit(self._optimizer.init)(initial), jnp.int32(0)))

    def restore(self, parameters: Parameters, optimizer_state: Any, version: int) -> None:
        """Go on from a saved state."""
        self.state = _committed(State(parameters, optimizer_state, jnp.int32(version)))

    def sampling_weights(self) -> Parameters:
        """The weights as they compute: what the engine samples from and the update differentiates."""
        return cast(self.state.parameters, self._settings.compute_dtype)

    def reference_logprobs(self, trajectories: Sequence[Trajectory]) -> list[np.ndarray] | None:
        """Per trajectory, the reference model's log-probability of each completion token; None without a KL term."""
        if self._reference is None:
            return None
        batch = self._pack(trajectories, np.zeros(len(trajectories)))
        padded, micro_batches = self._padded(batch, len(trajectories))
        scores = score_batch(self._reference, padded, micro_batches, settings=self._settings)
        return unpack(np.asarray(scores)[: len(batch.tokens)], np.asarray(batch.trajectory_ids), len(trajectories))

    def kl_penalties(
        self, trajectories: Sequence[Trajectory], reference: Sequence[np.ndarray] | None
    ) -> np.ndarray | None:
        """What each reward loses where the KL term is taken from the reward (k1), else None."""
        algorithm = self._config.algorithm
        if reference is None or algorithm.kl_estimator != "k1":
            return None
        batch = self._pack(trajectories, np.zeros(len(trajectories)))
        spread = _spread(reference, np.asarray(batch.trajectory_ids))
        kl = sequence_kl(
            np.asarray(batch.sampled_logprobs),
            spread,
            np.asarray(batch.loss_mask),
            np.asarray(batch.trajectory_ids),
            len(trajectories),
        )
        return algorithm.kl_coefficient * kl

    def train(
        self,
        step: int,
        trajectories: Sequence[Trajectory],
        advantages: np.ndarray,
        reference: Sequence[np.ndarray] | None,
        run_folder: Path,
    ) -> StepUpdates:
        """All updates of one step: `updates_per_rollout` mini-batches, `epochs_per_rollout` times.

        Raises:
            RunStopped: when a loss or gradient is not finite; the batch lies in the run's folder for inspection.
        """
        algorithm = self._config.algorithm
        first_update = int(self.state.version)
        measured: list[UpdateMetrics] = []
        efficiencies: list[float] = []
        trained_tokens = 0
        parts: list[np.ndarray] = []
        if trajectories:
            group_ids = np.asarray([trajectory.group_id for trajectory in trajectories])
            parts = split_by_group(group_ids, algorithm.updates_per_rollout)
        for part in parts * algorithm.epochs_per_rollout:
            members = [trajectories[index] for index in part]
            # Without a KL term, an advantage of exactly 0 makes a gradient of exactly 0: such tokens only count.
            laid_out = advantages[part] != 0 if self._reference is None else np.ones(len(part), bool)
            laid_out &= self._counted(members)
            if not laid_out.any():
                continue  # No gradient: momentum and weight decay must not move the weights either.
            batch = self._pack(members, advantages[part], laid_out)
            efficiencies.append(packing_efficiency(batch))
            if reference is not None:
                spread = _spread([reference[index] for index in part], np.asarray(batch.trajectory_ids))
                batch = replace(batch, reference_logprobs=spread)
            most = self._config.completions_per_step // algorithm.updates_per_rollout
            padded, micro_batches = self._padded(batch, max(most, len(part)))
            self.state, metrics = update(
                self.state, padded, micro_batches, settings=self._settings, optimizer=self._optimizer
            )
            metrics = jax.device_get(metrics)
            self._stop_if_not_finite(step, metrics, batch, run_folder)
            measured.append(metrics)
            trained_tokens += int(np.count_nonzero(batch.segment_ids))
        return StepUpdates(
            metrics=measured,
            learning_rate=float(self._learning_rate(first_update)),
            packing_efficiency=float(np.mean(efficiencies)) if efficiencies else 0.0,
            trained_tokens=trained_tokens,
        )

    def _counted(self, trajectories: Sequence[Trajectory]) -> np.ndarray:
        return counted_trajectories(trajectories, self._config.algorithm.truncated_completions)

    def _pack(
        self, trajectories: Sequence[Trajectory], advantages: np.ndarray, laid_out: np.ndarray | None = None
    ) -> Batch:
        algorithm = self._config.algorithm
        return pack(
            trajectories,
            advantages,
            row_tokens=self._row_tokens,
            aggregation=algorithm.loss_aggregation,
            max_tokens=self._config.rollout.max_tokens,
            counted=self._counted(trajectories),
            laid_out=laid_out,
        )

    def _padded(self, batch: Batch, most_rows: int) -> tuple[Batch, jax.Array]:
        """The batch with as many rows as any batch of the run, so that it needs no compilation of its own."""
        rows = self._settings.rows_per_micro_batch
        micro_batches = -(-len(batch.tokens) // rows)
        return pad_rows_to_multiple(pad_rows(batch, most_rows), rows), jnp.int32(micro_batches)

    def _stop_if_not_finite(self, step: int, metrics: UpdateMetrics, batch: Batch, run_folder: Path) -> None:
        if np.isfinite(metrics.loss) and np.isfinite(metrics.grad_norm):
            return
        path = run_folder / f"not_finite_step_{step:06d}.npz"
        arrays = {name: value for name, value in vars(batch).items() if value is not None}
        np.savez_compressed(path, **arrays)
        raise RunStopped(
            f"step {step}: the loss is {metrics.loss:g} and the gradient's norm {metrics.grad_norm:g}; the batch was "
            f"saved to {path}. The same command resumes from the last checkpoint; a lower "
            f"optimizer.learning_rate than {self._config.optimizer.learning_rate:g} may help"
        )


def _committed(state: State) -> State:
    """The state, bound to where it lies: what comes from a checkpoint is, and what a new run starts from has to be too,
    or a resumed run would compile every program anew."""
    return jax.tree.map(lambda array: jax.device_put(array, array.sharding), state)


def _spread(values: Sequence[np.ndarray], trajectory_ids: np.ndarray) -> np.ndarray:
    """Per-trajectory values at the places of their tokens, [rows, tokens]: the inverse of `unpack`."""
    result = np.zeros(trajectory_ids.shape, np.float32)
    for index, own in enumerate(values):
        result[trajectory_ids == index] = own
    return result
