"""What differs between two configurations, and which of it a resumed run may take over.

Whatever shapes the sequence of updates (model, task, sampling, loss, optimizer, seed, memory layout) can't change
within a run: a resumed run equals one that was never interrupted. What only decides how long, how often or where may.
"""

from collections.abc import Iterator
from typing import Any, NamedTuple

from burnish.config.keys import all_keys
from burnish.config.schema import RunConfig
from burnish.config.yaml_text import one_line
from burnish.errors import UserError

MAY_CHANGE_ON_RESUME = (
    "run_name",
    "output_dir",
    "steps",
    "evaluation.",
    "checkpoint.",
    "tracking.",
    "grading.",
    "profile.",
    "export.",
)
"""Keys, or (ending in a dot) groups, that a resumed run may change."""


class Difference(NamedTuple):
    """One key with the value it had and the value it has."""

    key: str
    old: Any
    new: Any

    @property
    def may_change(self) -> bool:
        """Whether a run may resume with it changed."""
        return any(
            self.key.startswith(allowed) if allowed.endswith(".") else self.key == allowed
            for allowed in MAY_CHANGE_ON_RESUME
        )

    def __str__(self) -> str:
        return f"{self.key}: {one_line(self.old)} → {one_line(self.new)}"


def config_differences(old: RunConfig, new: RunConfig) -> list[Difference]:
    """Every key whose value differs, in the order of the schema."""
    before, after = dict(_values(old)), dict(_values(new))
    return [Difference(key, before[key], after[key]) for key in before if before[key] != after[key]]


def check_resume(saved: RunConfig, current: RunConfig) -> list[Difference]:
    """What a run resumed with `current` changes; `UserError` where a change would make it another run."""
    differences = config_differences(saved, current)
    # The learning rate of these schedules is sized from the number of steps.
    sized = current.optimizer.schedule == "cosine" or current.optimizer.warmup_fraction > 0
    refused = [
        difference for difference in differences if not difference.may_change or (sized and difference.key == "steps")
    ]
    if refused:
        back = " ".join(f"{difference.key}={one_line(difference.old)}" for difference in refused)
        raise UserError(
            f"the run in {current.run_folder} can't be resumed with {'; '.join(map(str, refused))}; "
            f"type {back} to continue it, or another run_name for a new run"
        )
    return differences


def _values(config: RunConfig) -> Iterator[tuple[str, Any]]:
    for name in all_keys():
        value: Any = config
        for part in name.split("."):
            value = getattr(value, part)
        yield name, value
