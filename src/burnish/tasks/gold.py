"""Is the gold answer of a row one that the task's own grader accepts? Rows where it isn't would reward nothing."""

from collections.abc import Sequence
from dataclasses import dataclass, field

from burnish.errors import RunStopped
from burnish.tasks.base import Completion, Row, Task
from burnish.tasks.grading import GradingPool

# The allowed share is taken of at least this many rows, so that one bad row among the first few stops nothing.
_LEAST_ROWS = 100


def check_gold(task: Task, row: Row, pool: GradingPool | None = None) -> str | None:
    """Why the row's gold answer does not solve the row; None where it does or where there is nothing to check.

    Without a pool the grader runs in this process, where nothing stops it if it hangs.
    """
    return check_golds(task, [row], pool or GradingPool(task, in_process=True))[0]


def check_golds(task: Task, rows: Sequence[Row], pool: GradingPool) -> list[str | None]:
    """`check_gold` of each row, graded together."""
    gold_text = getattr(task, "gold_text", None)
    texts = [None if gold_text is None else gold_text(row) for row in rows]
    checked = [(row, text) for row, text in zip(rows, texts, strict=True) if text is not None]
    grades = iter(pool.grade([Completion(row, text, "eos", 0) for row, text in checked]))
    problems: list[str | None] = []
    for text in texts:
        grade = None if text is None else next(grades)
        if grade is None or grade.solved:
            problems.append(None)
        else:
            problems.append(grade.error or f"the gold answer {text!r} is graded {grade.parts}")
    return problems


@dataclass
class GoldChecker:
    """Drops rows with a gold answer that does not solve them, and stops the run when there are too many.

    `checked` and `failures` are its whole state: a resumed run starts from the saved ones.
    """

    task: Task
    pool: GradingPool
    max_failed_share: float = 0.01
    checked: int = 0
    """Rows looked at so far; a row that failed once is not looked at again."""
    failures: dict[str, str] = field(default_factory=dict)
    """Why each dropped row was dropped, by its id."""

    def keep(self, rows: Sequence[Row]) -> list[Row]:
        """The rows whose gold answer is good; RunStopped once more than the allowed share of all rows was not."""
        new = [row for row in rows if row.id not in self.failures]
        problems = check_golds(self.task, new, self.pool)
        self.checked += len(new)
        self.failures |= {row.id: problem for row, problem in zip(new, problems, strict=True) if problem is not None}
        if len(self.failures) > self.max_failed_share * max(self.checked, _LEAST_ROWS):
            row_id, problem = next(iter(self.failures.items()))
            raise RunStopped(
                f"the gold answers of {len(self.failures)} of {self.checked} rows of task {self.task.name} are "
                f"rejected by its own grader; the first is row {row_id}: {problem}"
            )
        return [row for row, problem in zip(new, problems, strict=True) if problem is None]
