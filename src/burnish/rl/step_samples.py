"""The samples of a step or an evaluation, as they are written down."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from burnish.observe.samples import Sample
from burnish.rl.evaluation import EvaluationResult
from burnish.rollout.records import Trajectory
from burnish.tasks import Grade, Row


def training_samples(
    trajectories: Sequence[Trajectory], rows: Mapping[int, Row], grades: Sequence[Grade], advantages: np.ndarray
) -> list[Sample]:
    """Every completion of a step; `rows` are the step's by group id."""
    return [
        _sample(trajectory, rows[trajectory.group_id], grade, float(advantage))
        for trajectory, grade, advantage in zip(trajectories, grades, advantages, strict=True)
    ]


def evaluation_samples(result: EvaluationResult) -> list[Sample]:
    """Every completion of an evaluation, which has no advantages."""
    return [_sample(done.trajectory, done.row, done.grade, None) for done in result.completions]


def _sample(trajectory: Trajectory, row: Row, grade: Grade, advantage: float | None) -> Sample:
    return Sample(
        prompt_id=trajectory.prompt_id,
        group_id=trajectory.group_id,
        completion_index=trajectory.completion_index,
        messages=row.messages,
        completion=trajectory.text,
        token_ids=trajectory.token_ids,
        logprobs=trajectory.logprobs,
        reward_parts=grade.parts,
        reward=grade.reward,
        advantage=None if grade.parts is None else advantage,
        stop_reason=trajectory.stop_reason,
        grade_error=grade.error,
    )
