"""The numbers of one step, under the names that metrics.jsonl and the trackers use.

Names under `time/` and `perf/` are measurements of the machine; every other number is the same whenever the run is
repeated or resumed.
"""

from __future__ import annotations

import resource
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager

import numpy as np

from burnish.rl.advantages import count_groups
from burnish.rl.trainer import StepUpdates
from burnish.rollout.records import Trajectory
from burnish.tasks import Grade


class Clock:
    """Seconds per phase of a step."""

    def __init__(self) -> None:
        self.seconds: dict[str, float] = {}

    @contextmanager
    def phase(self, name: str) -> Iterator[None]:
        start = time.perf_counter()
        yield
        self.seconds[name] = self.seconds.get(name, 0.0) + time.perf_counter() - start


def reward_metrics(
    trajectories: Sequence[Trajectory], grades: Sequence[Grade], group_ids: np.ndarray
) -> dict[str, float]:
    """Rewards, their parts, and how the groups came out, over the completions that have a grade."""
    valid = np.asarray([grade.parts is not None for grade in grades], bool)
    rewards = np.asarray([0.0 if grade.reward is None else grade.reward for grade in grades])
    solved = np.asarray([grade.solved for grade in grades], bool)
    metrics: dict[str, float] = {"failed_grades": int((~valid).sum())}
    if not valid.any():
        return metrics
    metrics |= _mean_and_std("reward", rewards[valid])
    parts = [grade.parts for grade in grades if grade.parts is not None]
    for name in parts[0]:
        metrics |= _mean_and_std(f"reward/{name}", np.asarray([part[name] for part in parts]))
    groups = count_groups(rewards, group_ids, solved, valid)
    metrics |= {
        "groups/all_solved": groups.all_solved,
        "groups/none_solved": groups.none_solved,
        "groups/partly_solved": groups.partly_solved,
        "groups/frac_zero_advantage": groups.frac_zero_advantage,
    }
    lengths = np.asarray([len(trajectory.token_ids) for trajectory in trajectories])
    metrics |= {
        "completion_tokens/mean": float(lengths.mean()),
        "completion_tokens/max": int(lengths.max()),
        "truncated_share": float(np.mean([trajectory.truncated for trajectory in trajectories])),
    }
    return metrics


def update_metrics(updates: StepUpdates) -> dict[str, float]:
    """Means over the tokens that went through the updates of a step; largest values stay largest.

    Without a KL term, completions whose advantage is exactly 0 give no gradient and do not go through the model.
    """
    metrics: dict[str, float] = {
        "learning_rate": updates.learning_rate,
        "packing_efficiency": updates.packing_efficiency,
        "updates": len(updates.metrics),
    }
    if not updates.metrics:
        return metrics
    for name in updates.metrics[0].pairs:
        total = sum(float(measured.pairs[name][0]) for measured in updates.metrics)
        count = sum(float(measured.pairs[name][1]) for measured in updates.metrics)
        metrics["logprob_difference/mean" if name == "logprob_difference" else name] = total / max(count, 1.0)
    metrics["logprob_difference/max"] = max(float(measured.max_logprob_difference) for measured in updates.metrics)
    for name in ("loss", "grad_norm", "share_of_weights_changed"):
        metrics[name] = float(np.mean([float(getattr(measured, name)) for measured in updates.metrics]))
    return metrics


def machine_metrics(seconds: Mapping[str, float], sampled_tokens: int, trained_tokens: int) -> dict[str, float]:
    """Seconds per phase, tokens per second, and this process's peak memory so far."""
    return {
        **{f"time/{phase}_seconds": spent for phase, spent in seconds.items()},
        "time/step_seconds": sum(seconds.values()),
        "perf/rollout_tokens_per_second": sampled_tokens / max(seconds.get("rollout", 0.0), 1e-9),
        "perf/update_tokens_per_second": trained_tokens / max(seconds.get("update", 0.0), 1e-9),
        "perf/peak_memory_gib": peak_memory_gib(),
    }


def peak_memory_gib() -> float:
    """The most memory that this process has held so far."""
    # ru_maxrss is in KiB on Linux and in bytes on macOS.
    unit = 2**30 if sys.platform == "darwin" else 2**20
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / unit


def _mean_and_std(name: str, values: np.ndarray) -> dict[str, float]:
    return {f"{name}/mean": float(values.mean()), f"{name}/std": float(values.std())}
