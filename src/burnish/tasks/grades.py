"""The score of one completion, and how a grader's return value becomes one or a recorded error."""

import math
import traceback
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from burnish.tasks.base import Completion


@dataclass(frozen=True)
class Grade:
    """The score of one completion, or why it has none."""

    parts: dict[str, float] | None
    """The named reward parts; None where grading failed."""
    reward: float | None
    """Their weighted sum; None where grading failed."""
    error: str | None = None
    """What went wrong: a traceback, `timed out after 10 s`, or what the grader returned instead of numbers."""
    timed_out: bool = False

    @property
    def solved(self) -> bool:
        """Whether the part `correct` is 1 or, without such a part, the reward is at least 1. False without a grade."""
        if self.parts is None or self.reward is None:
            return False
        return self.parts["correct"] == 1.0 if "correct" in self.parts else self.reward >= 1.0


def failed(error: str, timed_out: bool = False) -> Grade:
    """The grade of a completion that could not be graded."""
    return Grade(parts=None, reward=None, error=error, timed_out=timed_out)


def call_grader(
    grade: Callable[[Completion], Any], completion: Completion, weights: Mapping[str, float], may_pass: bool = False
) -> Grade | None:
    """One grader call in this process, whatever it raises; None only for a None where the grader may pass."""
    try:
        returned = grade(completion)
        return None if returned is None and may_pass else grade_from(returned, weights)
    except (Exception, SystemExit):  # noqa: BLE001 - it is the user's code, and the traceback becomes the error
        return failed(traceback.format_exc())


def grade_from(returned: object, weights: Mapping[str, float]) -> Grade:
    """The grade that a grader's return value means; one with an error where it is not what was agreed."""
    if not isinstance(returned, Mapping):
        return failed(f"the grader returned {returned!r:.200} instead of a number for each of {_names(weights)}")
    if set(returned) != set(weights):
        return failed(f"the grader returned the parts {_names(returned)} instead of {_names(weights)}")
    parts: dict[str, float] = {}
    for name in weights:
        value: Any = returned[name]
        if isinstance(value, str) or not hasattr(type(value), "__float__"):
            return failed(f"the grader returned {value!r:.200} for {name!r} instead of a number")
        parts[name] = float(value)
        if not math.isfinite(parts[name]):
            return failed(f"the grader returned {parts[name]} for {name!r} instead of a finite number")
    reward = math.fsum(weights[name] * value for name, value in parts.items())
    if not math.isfinite(reward):
        return failed(f"the weighted sum of the reward parts {parts} is {reward} instead of a finite number")
    return Grade(parts, reward)


def _names(names: Mapping[Any, Any]) -> str:
    return ", ".join(repr(name) for name in names) or "(none)"
