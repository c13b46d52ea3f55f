"""The gold check: rows that nobody can solve are dropped and counted, and too many of them stop the run."""

from typing import Any

import pytest

from burnish.errors import RunStopped
from burnish.tasks import GoldChecker, GradingPool, Row, check_gold
from misbehaving_tasks import ObedientTask


class GoldTask(ObedientTask):
    """Each row's gold answer is what its grader is told to do."""

    def gold_text(self, row: Row) -> str | None:
        text: str | None = row.fields["answer"]
        return text


def rows(*answers: Any) -> list[Row]:
    return [Row(f"row {index}", [], {"answer": answer}) for index, answer in enumerate(answers)]


def test_each_gold_answer_is_graded_by_the_tasks_own_grader() -> None:
    good, bad, broken, unknown = rows("score 1", "score 0", "raise no gold", None)
    task = GoldTask()
    assert check_gold(task, good) is None
    assert "'score 0' is graded {'correct': 0.0" in (check_gold(task, bad) or "")
    assert "RuntimeError: no gold" in (check_gold(task, broken) or "")
    assert check_gold(task, unknown) is None
    assert check_gold(ObedientTask(), bad) is None


def test_bad_rows_are_dropped_and_counted_once() -> None:
    task = GoldTask()
    checker = GoldChecker(task, GradingPool(task, in_process=True))
    batch = rows("score 1", "score 0", "score 1")
    assert checker.keep(batch) == [batch[0], batch[2]]
    assert checker.keep(batch) == [batch[0], batch[2]]
    assert (checker.checked, list(checker.failures)) == (5, ["row 1"])


def test_more_than_the_allowed_share_stops_the_run_with_the_first_reason() -> None:
    task = GoldTask()
    checker = GoldChecker(task, GradingPool(task, in_process=True))
    with pytest.raises(RunStopped, match=r"2 of 3 rows of task obedient.*the first is row row 0.*score 0"):
        checker.keep(rows("score 0", "score 1", "score 0"))


def test_a_resumed_check_goes_on_from_its_two_counts() -> None:
    task = GoldTask()
    pool = GradingPool(task, in_process=True)
    checker = GoldChecker(task, pool, checked=500, failures={f"old {i}": "bad" for i in range(5)})
    with pytest.raises(RunStopped, match="6 of 501"):
        checker.keep(rows("score 0"))
    assert GoldChecker(task, pool, checked=700, failures={"row 0": "bad"}).keep(rows("score 1")) == []
