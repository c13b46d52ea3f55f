"""Grading: whatever a grader does, each completion ends with a grade or a recorded error; no process stays behind."""

import math
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from burnish.errors import UserError
from burnish.tasks import Completion, Grade, GradingPool
from misbehaving_tasks import DeadlyTask, ObedientTask, QuickTask, UnloadableTask, UnpicklableTask, row_with, says


@pytest.fixture(scope="module")
def pool() -> Iterator[GradingPool]:
    """Two workers that outlive everything the tests of this file do to them."""
    with GradingPool(ObedientTask(), workers=2, timeout_seconds=60.0) as pool:
        yield pool


@pytest.fixture(scope="module")
def impatient_pool() -> Iterator[GradingPool]:
    """One whose time limit tests can wait for."""
    with GradingPool(ObedientTask(), workers=2, timeout_seconds=2.0) as pool:
        yield pool


def ends_within(seconds: float, pid: int) -> bool:
    """Whether the process ends (or is a zombie that nobody has looked at yet) within so many seconds."""
    until = time.monotonic() + seconds
    while time.monotonic() < until:
        try:
            if Path(f"/proc/{pid}/stat").exists() and Path(f"/proc/{pid}/stat").read_text().split()[2] == "Z":
                return True
            os.kill(pid, 0)
        except ProcessLookupError:
            return True
        time.sleep(0.02)
    return False


def test_grades_come_in_the_order_of_the_completions_with_the_weighted_sum(pool: GradingPool) -> None:
    grades = pool.grade([says(f"score {index}") for index in range(40)])
    assert grades == [Grade({"correct": float(i), "style": 1.0}, i + 0.25) for i in range(40)]


@pytest.mark.parametrize("in_process", [True, False])
@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("return None", "returned None"),
        ("return number", "returned 1.0"),
        ("return nan", "nan for 'correct'"),
        ("return inf", "inf for 'correct'"),
        ("return text", "'1' for 'correct'"),
        ("return none-part", "None for 'correct'"),
        ("return missing", "the parts 'correct' instead of 'correct', 'style'"),
        ("return extra", "'length'"),
        ("raise the reason", "RuntimeError: the reason"),
        ("exit", "SystemExit: 3"),
    ],
)
def test_what_is_no_grade_is_an_error_of_that_completion(
    pool: GradingPool, in_process: bool, text: str, message: str
) -> None:
    grader = GradingPool(ObedientTask(), in_process=True) if in_process else pool
    bad, good = grader.grade([says(text), says("score 1")])
    assert bad.parts is None
    assert bad.reward is None
    assert bad.error is not None
    assert message in bad.error
    assert not bad.timed_out
    assert not bad.solved
    assert good == Grade({"correct": 1.0, "style": 1.0}, 1.25)


def test_a_raising_grader_leaves_its_traceback(pool: GradingPool) -> None:
    (grade,) = pool.grade([says("raise the reason")])
    assert grade.error is not None
    assert "misbehaving_tasks.py" in grade.error


@pytest.mark.parametrize("how", ["hang", "hang-holding-the-lock"])
def test_a_grader_that_hangs_is_killed_and_the_others_are_graded(impatient_pool: GradingPool, how: str) -> None:
    started = time.monotonic()
    grades = impatient_pool.grade([says(how), *(says("score 1") for _ in range(5))])
    assert time.monotonic() - started < 20
    assert grades[0] == Grade(None, None, "timed out after 2 s", timed_out=True)
    assert all(grade.solved for grade in grades[1:])


def test_what_a_hanging_grader_has_started_is_killed_with_it(impatient_pool: GradingPool, tmp_path: Path) -> None:
    impatient_pool.grade([says(f"hang-with-child {tmp_path / 'pid'}")])
    assert ends_within(5, int((tmp_path / "pid").read_text()))


@pytest.mark.parametrize(
    ("how", "message"),
    [("segfault", "killed by SIGSEGV"), ("out-of-memory", "killed by SIGKILL"), ("leave", "exit code 7")],
)
def test_a_worker_that_dies_costs_its_own_completion_only(pool: GradingPool, how: str, message: str) -> None:
    grades = pool.grade([says("score 1"), says(how), says("score 1"), says("score 1")])
    assert [grade.solved for grade in grades] == [True, False, True, True]
    assert grades[1].error is not None
    assert message in grades[1].error
    assert not grades[1].timed_out


def test_a_worker_that_dies_while_idle_costs_nothing(pool: GradingPool) -> None:
    for grade in pool.grade([says("pid"), says("pid"), says("pid"), says("pid")]):
        assert grade.parts is not None
        worker = int(grade.parts["correct"])
        if not ends_within(0.0, worker):
            os.kill(worker, signal.SIGKILL)
            assert ends_within(5, worker)
    assert all(grade.solved for grade in pool.grade([says("score 1") for _ in range(4)]))


def test_every_field_of_the_row_reaches_the_grader(pool: GradingPool) -> None:
    (grade,) = pool.grade([says("fields", nested={"value": 5})])
    assert grade.parts == {"correct": 5.0, "style": 1.0}


def test_a_row_that_cannot_be_sent_is_an_error_of_that_completion(pool: GradingPool) -> None:
    grades = pool.grade([says("score 1", secret=lambda: None), says("score 1")])
    assert grades[0].error is not None
    assert "can't be sent" in grades[0].error
    assert grades[1].solved


def test_workers_do_not_import_jax(pool: GradingPool) -> None:
    (grade,) = pool.grade([says("jax")])
    assert grade.parts == {"correct": 0.0, "style": 0.0}


def test_numbers_of_other_kinds_are_numbers() -> None:
    (grade,) = GradingPool(ObedientTask(), in_process=True).grade([says("return bool")])
    assert grade == Grade({"correct": 1.0, "style": 0.0}, 1.0)
    assert grade.solved


def test_solved_is_the_part_correct_or_else_a_reward_of_one() -> None:
    assert not Grade({"correct": 0.5, "bonus": 5.0}, 5.5).solved
    assert Grade({"score": 1.0}, 1.0).solved
    assert not Grade({"score": 0.9}, 0.9).solved
    assert not Grade(None, None, "broken").solved


def test_closing_leaves_no_process() -> None:
    with GradingPool(ObedientTask(), workers=2) as pool:
        pids = {int(grade.reward or 0) for grade in pool.grade([says("pid") for _ in range(8)])}
        assert all(Path(f"/proc/{pid}").exists() for pid in pids if Path("/proc").exists())
    assert all(ends_within(0.1, pid) for pid in pids)


def test_an_interrupted_call_does_not_leak_its_answers_into_the_next() -> None:
    with GradingPool(ObedientTask(), timeout_seconds=30.0) as pool:
        assert pool.grade([says("score 1")])[0].solved
        # A process started in the background of a shell ignores Ctrl-C.
        before = signal.signal(signal.SIGINT, signal.default_int_handler)
        main_thread = threading.get_ident()
        timer = threading.Timer(0.5, lambda: signal.pthread_kill(main_thread, signal.SIGINT))
        timer.start()
        with pytest.raises(KeyboardInterrupt):
            pool.grade([says("hang")])
        timer.join()
        signal.signal(signal.SIGINT, before)
        assert [grade.reward for grade in pool.grade([says("score 2"), says("score 3")])] == [2.25, 3.25]


@pytest.mark.parametrize(
    ("task", "message"), [(UnloadableTask(), "this task does not travel"), (DeadlyTask(), "exit code 9")]
)
def test_a_task_that_no_worker_can_load_is_an_error_of_every_completion(task: ObedientTask, message: str) -> None:
    with GradingPool(task, workers=2) as pool:
        grades = pool.grade([says("score 1"), says("score 1"), says("score 1")])
    assert all(grade.error is not None and message in grade.error for grade in grades)


def test_a_task_that_cannot_travel_is_graded_here_and_the_reason_is_told() -> None:
    pool = GradingPool(UnpicklableTask())
    assert pool.in_process
    assert pool.reason_in_process is not None
    assert "pickled" in pool.reason_in_process
    assert pool.grade([says("score 1")])[0].solved


def test_a_task_that_insists_on_workers_and_cannot_travel_is_refused() -> None:
    task = UnpicklableTask()
    task.needs_workers = True  # type: ignore[attr-defined]
    with pytest.raises(UserError, match="can't be graded in worker processes"):
        GradingPool(task)


def test_a_task_decides_whether_it_needs_workers() -> None:
    task = ObedientTask()
    assert not GradingPool(task).in_process
    task.needs_workers = False  # type: ignore[attr-defined]
    assert GradingPool(task).in_process
    assert not GradingPool(task, in_process=False).in_process


def test_quick_grades_need_no_worker_and_their_errors_are_recorded() -> None:
    with GradingPool(QuickTask()) as pool:
        grades = pool.grade([says("score 1"), says("quick-raise"), says("score 0")])
        assert [grade.reward for grade in grades] == [1.25, None, 0.25]
        assert grades[1].error is not None
        assert "quickly" in grades[1].error
        pid = pool.grade([says("pid"), says("score 1")])[0].reward
        assert pid != os.getpid()


def test_an_empty_batch_has_no_grades(pool: GradingPool) -> None:
    assert pool.grade([]) == []


SCRIPT = """
import sys
sys.path.insert(0, {tests!r})
print("the script runs", flush=True)
from misbehaving_tasks import ObedientTask, says
from burnish.tasks import GradingPool
pool = GradingPool(ObedientTask(), workers=2, timeout_seconds=60.0)
print(*(int(grade.parts["correct"]) for grade in pool.grade([says("pid")] * 8)), flush=True)
pool.grade([says("hang"), says("hang")])
"""


def test_workers_end_with_a_killed_run_and_never_run_its_script(tmp_path: Path) -> None:
    script = tmp_path / "unguarded.py"
    script.write_text(SCRIPT.format(tests=str(Path(__file__).parent)))
    run = subprocess.Popen([sys.executable, script], stdout=subprocess.PIPE, text=True)
    assert run.stdout is not None
    assert run.stdout.readline() == "the script runs\n"
    workers = {int(pid) for pid in run.stdout.readline().split()}
    assert workers
    time.sleep(0.3)  # both are hanging by now
    run.kill()
    assert run.stdout.read() == ""
    run.wait()
    run.stdout.close()
    assert all(ends_within(5, pid) for pid in workers)


def test_rewards_that_overflow_are_an_error() -> None:
    task = ObedientTask(reward_weights={"correct": 1e308, "style": 1.0})
    (grade,) = GradingPool(task, in_process=True).grade([Completion(row_with(), "score 1e10", "eos", 1)])
    assert grade.error is not None
    assert "weighted sum" in grade.error
    assert not math.isnan(grade.reward or 0.0)
