"""Grading a step: every completion gets a grade or a recorded failure, and what a clock decided is decided once.

A grader that timed out would perhaps finish when a killed run replays the step. Its failure is therefore on disk before
it is used, and a replay reads it there: a resumed run equals one that was never killed.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping, Sequence
from pathlib import Path

from burnish.errors import RunStopped
from burnish.rollout.records import Trajectory
from burnish.tasks import Completion, Grade, GradingPool, Row

TIMEOUTS_FILE = "timed_out_grades.jsonl"


class StepGrader:
    """Grades the completions of steps with one pool, and keeps the journal of timeouts in the run's folder."""

    def __init__(self, pool: GradingPool, run_folder: Path, *, max_failed_share: float) -> None:
        self._pool = pool
        self._path = run_folder / TIMEOUTS_FILE
        self._max_failed_share = max_failed_share
        self._timed_out = _read_journal(self._path)

    def forget_all(self) -> None:
        """Start the journal of a new run."""
        self._timed_out.clear()
        self._path.unlink(missing_ok=True)

    def grade(self, step: int, trajectories: Sequence[Trajectory], rows: Mapping[int, Row]) -> list[Grade]:
        """One grade per trajectory; `rows` are the step's by group id.

        Raises:
            RunStopped: if more than the allowed share has no grade, with the first failure.
        """
        keys = [f"{step}/{trajectory.group_id}/{trajectory.completion_index}" for trajectory in trajectories]
        fresh = [index for index, key in enumerate(keys) if key not in self._timed_out]
        completions = [
            Completion(rows[t.group_id], t.text, t.stop_reason, len(t.token_ids))
            for t in (trajectories[index] for index in fresh)
        ]
        grades = dict(zip(fresh, self._pool.grade(completions), strict=True))
        self._record({keys[index]: grade.error or "" for index, grade in grades.items() if grade.timed_out})
        result = [
            grades[index] if index in grades else Grade(None, None, self._timed_out[key], timed_out=True)
            for index, key in enumerate(keys)
        ]
        failures = [(trajectories[index], grade) for index, grade in enumerate(result) if grade.parts is None]
        if len(failures) > self._max_failed_share * len(result):
            trajectory, grade = failures[0]
            raise RunStopped(
                f"step {step}: {len(failures)} of {len(result)} completions could not be graded, more than "
                f"grading.max_failed_share={self._max_failed_share:g} allows; the first is {trajectory.name}:\n"
                f"{grade.error}"
            )
        return result

    def _record(self, timeouts: Mapping[str, str]) -> None:
        if not timeouts:
            return
        with self._path.open("a", encoding="utf-8") as file:
            for key, error in timeouts.items():
                file.write(json.dumps({"completion": key, "error": error}) + "\n")
            file.flush()
            os.fsync(file.fileno())
        self._timed_out.update(timeouts)


def _read_journal(path: Path) -> dict[str, str]:
    if not path.exists():
        return {}
    timeouts = {}
    for line in path.read_text(encoding="utf-8").splitlines():
        try:
            entry = json.loads(line)
        except json.JSONDecodeError:
            continue  # The half-written last line of a killed process: nothing was decided by it yet.
        timeouts[entry["completion"]] = entry["error"]
    return timeouts
