"""How much better than its group each completion did: rewards in, advantages out, in NumPy float64.

A group is the set of completions that carry the same group id, wherever they stand in the list. A completion that
left its group (its grader failed) is given by `valid` and counts nowhere.
"""

from __future__ import annotations

import dataclasses
from typing import Literal

import numpy as np
from jaxtyping import Bool, Float, Int

Normalization = Literal["std", "none", "batch"]
STD_EPSILON = 1e-6


def group_advantages(
    rewards: Float[np.ndarray, " n"],
    group_ids: Int[np.ndarray, " n"],
    normalization: Normalization = "std",
    valid: Bool[np.ndarray, " n"] | None = None,
) -> Float[np.ndarray, " n"]:
    """Reward minus the group's mean, scaled by `normalization`; 0 for completions that are not valid.

    `std`:   divided by the group's sample standard deviation (ddof 1) + 1e-6 (GRPO, arXiv 2402.03300).
    `none`:  not divided (Dr. GRPO, arXiv 2503.20783).
    `batch`: divided by the sample standard deviation of all valid rewards + 1e-6; the mean stays the group's.

    A group whose rewards are all equal, or that has one valid completion, gets exactly 0. Equality is tested on the
    rewards: the mean of seven times 0.1 is not 0.1, and a tiny difference over a tiny deviation would be an advantage.
    """
    rewards, group_ids, valid = _checked(rewards, group_ids, valid)
    advantages = np.zeros(len(rewards), np.float64)
    batch_std = np.std(rewards[valid], ddof=1) if valid.sum() > 1 else 0.0
    for group_id in np.unique(group_ids):
        members = valid & (group_ids == group_id)
        if _teaches_nothing(rewards[members]):
            continue
        centred = rewards[members] - np.mean(rewards[members])
        if normalization == "std":
            centred /= np.std(rewards[members], ddof=1) + STD_EPSILON
        elif normalization == "batch":
            centred /= batch_std + STD_EPSILON
        elif normalization != "none":
            raise ValueError(f"advantage normalization is {normalization!r}, expected 'std', 'none' or 'batch'")
        advantages[members] = centred
    return advantages


def zero_advantage_groups(
    rewards: Float[np.ndarray, " n"], group_ids: Int[np.ndarray, " n"], valid: Bool[np.ndarray, " n"] | None = None
) -> Int[np.ndarray, " g"]:
    """Ids of the groups that teach nothing: all valid rewards equal, or fewer than two valid completions."""
    rewards, group_ids, valid = _checked(rewards, group_ids, valid)
    ids = np.unique(group_ids)
    return np.array([g for g in ids if _teaches_nothing(rewards[valid & (group_ids == g)])], dtype=ids.dtype)


@dataclasses.dataclass(frozen=True)
class GroupCounts:
    """How the groups of a step fared. The three solved counts cover the groups with a valid completion."""

    groups: int
    zero_advantage: int
    all_solved: int
    none_solved: int
    partly_solved: int

    @property
    def frac_zero_advantage(self) -> float:
        """Share of groups that teach nothing."""
        return self.zero_advantage / self.groups if self.groups else 0.0


def count_groups(
    rewards: Float[np.ndarray, " n"],
    group_ids: Int[np.ndarray, " n"],
    solved: Bool[np.ndarray, " n"],
    valid: Bool[np.ndarray, " n"] | None = None,
) -> GroupCounts:
    """Counts the groups without an advantage, and those that solved their prompt always, never or sometimes."""
    zero_advantage = zero_advantage_groups(rewards, group_ids, valid)
    _, group_ids, valid = _checked(rewards, group_ids, valid)
    solved = np.asarray(solved, bool)
    shares = [float(np.mean(solved[valid & (group_ids == g)])) for g in np.unique(group_ids[valid])]
    return GroupCounts(
        groups=len(np.unique(group_ids)),
        zero_advantage=len(zero_advantage),
        all_solved=sum(share == 1.0 for share in shares),
        none_solved=sum(share == 0.0 for share in shares),
        partly_solved=sum(0.0 < share < 1.0 for share in shares),
    )


def _teaches_nothing(rewards: np.ndarray) -> bool:
    return len(rewards) < 2 or bool(np.max(rewards) == np.min(rewards))


def _checked(
    rewards: np.ndarray, group_ids: np.ndarray, valid: np.ndarray | None
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    rewards, group_ids = np.asarray(rewards, np.float64), np.asarray(group_ids)
    valid = np.ones(rewards.shape, bool) if valid is None else np.asarray(valid, bool)
    if rewards.ndim != 1 or rewards.shape != group_ids.shape or rewards.shape != valid.shape:
        raise ValueError(
            f"rewards {rewards.shape}, group ids {group_ids.shape} and valid {valid.shape} must be of one length"
        )
    if not np.all(np.isfinite(rewards[valid])):
        culprit = int(np.flatnonzero(valid & ~np.isfinite(rewards))[0])
        raise ValueError(f"reward {culprit} is {rewards[culprit]}; a completion without a reward must not be valid")
    return rewards, group_ids, valid
