"""Tasks: prompts, and how answers to them are scored."""

from burnish.tasks.base import Completion, Row, Task
from burnish.tasks.custom import require_task
from burnish.tasks.gold import GoldChecker, check_gold
from burnish.tasks.grading import Grade, GradingPool
from burnish.tasks.loading import BUILT_IN_TASKS, load_task
from burnish.tasks.order import row_index, training_rows

__all__ = [
    "BUILT_IN_TASKS",
    "Completion",
    "GoldChecker",
    "Grade",
    "GradingPool",
    "Row",
    "Task",
    "check_gold",
    "load_task",
    "require_task",
    "row_index",
    "training_rows",
]
