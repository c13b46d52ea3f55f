"""Grading in a run: what a clock decided is decided once, and a step that can hardly be graded stops the run.

A grader that timed out would perhaps finish when a killed run does the same part again. Its failure is therefore on
disk before it is used, and a replay reads it there: a resumed run equals one that was never killed.
"""

from __future__ import annotations

import zlib
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from burnish.errors import RunStopped
from burnish.observe import json_lines
from burnish.rollout.records import Trajectory
from burnish.tasks import Completion, Grade, GradingPool, Task

TIMEOUTS_FILE = "timed_out_grades.jsonl"


class JournaledPool(GradingPool):
    """A grading pool that keeps a journal of timeouts in the run's folder.

    An entry names the part of the run (a step, an evaluation), the place of the completion among those graded in it,
    and a checksum of the completion, so that it is taken for no other's.
    """

    def __init__(self, task: Task, workers: int, timeout_seconds: float, *, run_folder: Path) -> None:
        super().__init__(task, workers, timeout_seconds)
        self._path = run_folder / TIMEOUTS_FILE
        json_lines.keep(self._path, lambda _: True)
        entries = json_lines.read(self._path) if self._path.exists() else ()
        self._timed_out = {(entry["part"], entry["place"], entry["checksum"]): entry["error"] for entry in entries}
        self.begin("start")

    def begin(self, part: str) -> None:
        """Name the part of the run that the next completions belong to; done again, it grades the same ones."""
        self._part, self._graded = part, 0

    def grade(self, completions: Sequence[Completion]) -> list[Grade]:
        """One grade per completion; those that timed out when this part was first done are not tried again."""
        keys = [(self._part, self._graded + index, _checksum(one)) for index, one in enumerate(completions)]
        self._graded += len(completions)
        fresh = [index for index, key in enumerate(keys) if key not in self._timed_out]
        grades = dict(zip(fresh, super().grade([completions[index] for index in fresh]), strict=True))
        for index, grade in grades.items():
            if grade.timed_out:
                self._record(keys[index], grade.error or "")
        return [
            grades[index] if index in grades else Grade(None, None, self._timed_out[key], timed_out=True)
            for index, key in enumerate(keys)
        ]

    def forget_part(self) -> None:
        """Let the part that stopped the run be graded anew: whoever mends a grader wants it to be asked again."""
        self._timed_out = {key: error for key, error in self._timed_out.items() if key[0] != self._part}
        json_lines.keep(self._path, lambda entry: bool(entry["part"] != self._part))

    def _record(self, key: tuple[str, int, int], error: str) -> None:
        entry: dict[str, Any] = dict(zip(("part", "place", "checksum"), key, strict=True))
        json_lines.append(self._path, entry | {"error": error})
        self._timed_out[key] = error


def check_grades(
    step: int, trajectories: Sequence[Trajectory], grades: Sequence[Grade], max_failed_share: float
) -> None:
    """Stop the run if more than the allowed share of a step's completions has no grade.

    Raises:
        RunStopped: with the first failure.
    """
    failures = [(t, grade) for t, grade in zip(trajectories, grades, strict=True) if grade.parts is None]
    if len(failures) > max_failed_share * len(grades):
        trajectory, grade = failures[0]
        raise RunStopped(
            f"step {step}: {len(failures)} of {len(grades)} completions could not be graded, more than "
            f"grading.max_failed_share={max_failed_share:g} allows; the first is {trajectory.name}:\n{grade.error}"
        )


def _checksum(completion: Completion) -> int:
    return zlib.crc32(f"{completion.row.id}\0{completion.text}".encode("utf-8", "surrogatepass"))
