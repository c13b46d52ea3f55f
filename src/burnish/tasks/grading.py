"""Grading completions: every completion ends with a grade or a recorded error, whatever its grader does.

A grader is somebody's code, and so is the computer algebra behind math grading: it may raise, return None or NaN,
hang, or take its process down. `GradingPool` therefore runs it in worker processes (`grading_worker.py`), one
completion at a time each, and kills a worker whose time is up. A worker is a fresh interpreter with a connection of
its own: multiprocessing's spawn would run the user's script again inside each of them, and with it jax.
"""

import contextlib
import os
import pickle
import signal
import subprocess
import sys
import time
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from multiprocessing.connection import Connection, Pipe, wait
from types import TracebackType
from typing import Self

from burnish.errors import UserError
from burnish.tasks.base import Completion, Task
from burnish.tasks.custom import imported_files
from burnish.tasks.grades import Grade, call_grader, failed
from burnish.tasks.grading_worker import Setup

__all__ = ["Grade", "GradingPool"]

# A worker imports the task's module, which may be large, but has no reason to take longer than this.
_START_SECONDS = 300.0
# How often in a row a worker may end before it has graded anything.
_MAX_FAILED_STARTS = 3


class GradingPool:
    """Grades completions with one task, in worker processes or in this one.

    in_process: True grades here, without a time limit; False insists on workers; None decides: what the task's
    `needs_workers` says, else workers if the task can be sent to one (`reason_in_process` tells why it can't).
    Workers start when a completion needs one and live until `close()`; they also end when this process does.
    """

    def __init__(
        self, task: Task, workers: int = 1, timeout_seconds: float = 10.0, in_process: bool | None = None
    ) -> None:
        self._task = task
        self._timeout_seconds = timeout_seconds
        self._num_workers = max(1, workers)
        self._workers: list[_Worker] = []
        self._setup: Setup | None = None
        self.reason_in_process: str | None = None
        """Why grading happens in this process although nobody asked for it; None where it doesn't."""
        needs_workers = getattr(task, "needs_workers", None)
        if in_process is None and needs_workers is not None:
            in_process = not needs_workers
        if not in_process:
            pickled, obstacle = _pickled(task)
            if pickled is not None:
                self._setup = Setup(imported_files(pickled), pickled, timeout_seconds)
            elif in_process is None:
                self.reason_in_process = obstacle
            else:
                raise UserError(f"task {task.name} can't be graded in worker processes: {obstacle}")

    @property
    def in_process(self) -> bool:
        """Whether grading happens in this process, where nothing can stop a grader that hangs."""
        return self._setup is None

    def grade(self, completions: Sequence[Completion]) -> list[Grade]:
        """One grade per completion, in their order. Never raises for what a grader does."""
        weights = self._task.reward_weights
        grades: dict[int, Grade] = {}
        here = self._task.grade if self._setup is None else getattr(self._task, "quick_grade", None)
        if here is not None:
            for index, completion in enumerate(completions):
                grade = call_grader(here, completion, weights, may_pass=self._setup is not None)
                if grade is not None:
                    grades[index] = grade
        waiting = [index for index in range(len(completions)) if index not in grades]
        if waiting:
            self._grade_in_workers(completions, deque(waiting), grades)
        return [grades[index] for index in range(len(completions))]

    def close(self) -> None:
        """Ends all workers."""
        for worker in self._workers:
            worker.kill()
        self._workers.clear()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _grade_in_workers(
        self, completions: Sequence[Completion], waiting: deque[int], grades: dict[int, Grade]
    ) -> None:
        """Grades the completions whose indices are `waiting`, into `grades`."""
        assert self._setup is not None
        failed_starts = 0
        finished = False
        try:
            while waiting or any(worker.index is not None for worker in self._workers):
                while len(self._workers) < self._num_workers and len(self._free_workers()) < len(waiting):
                    self._workers.append(_start_worker(self._setup))
                self._hand_out(completions, waiting, grades)
                for worker, message in self._next_messages():
                    if message is None:
                        worker.ready, worker.deadline = True, None
                    elif isinstance(message, Grade) and worker.index is not None:
                        grades[worker.index] = message
                        worker.index, worker.deadline = None, None
                        failed_starts = 0
                    else:
                        loss = self._lose(worker, message)
                        if worker.index is not None:
                            grades[worker.index] = loss
                            continue
                        if worker.ready:
                            continue  # It died while idle: nothing is lost, and it says nothing of the next one.
                        failed_starts += 1
                        if isinstance(message, str) or failed_starts >= _MAX_FAILED_STARTS:
                            unstarted = failed(f"no grading worker could start: {loss.error}")
                            grades.update((waiting.popleft(), unstarted) for _ in range(len(waiting)))
            finished = True
        finally:
            if not finished:
                # Interrupted: an answer that is still on its way must not be taken for that of a later completion.
                self.close()

    def _free_workers(self) -> "list[_Worker]":
        """The workers that are idle or about to be."""
        return [worker for worker in self._workers if worker.index is None]

    def _hand_out(self, completions: Sequence[Completion], waiting: deque[int], grades: dict[int, Grade]) -> None:
        """Gives each idle worker a completion."""
        for worker in self._free_workers():
            if not waiting or not worker.ready:
                continue
            index = waiting.popleft()
            try:
                worker.connection.send(completions[index])
            except OSError:
                # It died while idle: its connection will say so, and another worker takes the completion.
                waiting.appendleft(index)
            except Exception as error:  # noqa: BLE001 - pickling calls the code of whatever is in the row's fields
                grades[index] = failed(f"the row can't be sent to a worker ({type(error).__name__}: {error})")
            else:
                worker.index = index
                worker.deadline = time.monotonic() + self._timeout_seconds

    def _lose(self, worker: "_Worker", message: object) -> Grade:
        """Ends a worker that is of no more use, and says what that means for the completion it was grading."""
        self._workers.remove(worker)
        how_it_ended = worker.kill(patience=1.0 if isinstance(message, _Ended) else 0.0)
        if isinstance(message, str):
            return failed(message)
        if isinstance(message, _Ended):
            return failed(f"the grading worker {how_it_ended}")
        limit = _START_SECONDS if worker.index is None else self._timeout_seconds
        return failed(f"timed out after {limit:g} s", timed_out=worker.index is not None)

    def _next_messages(self) -> "list[tuple[_Worker, object]]":
        """Waits for the workers, and returns what they sent, or that they ended, or that their time is up."""
        deadlines = [worker.deadline for worker in self._workers if worker.deadline is not None]
        patience = max(0.0, min(deadlines) - time.monotonic()) if deadlines else None
        ready = wait([worker.connection for worker in self._workers], patience)
        now = time.monotonic()
        messages: list[tuple[_Worker, object]] = []
        for worker in self._workers:
            if worker.connection in ready:
                messages.append((worker, worker.receive()))
            elif worker.deadline is not None and worker.deadline <= now:
                messages.append((worker, _TimeIsUp()))
        return messages


@dataclass
class _Worker:
    """One worker process as the pool sees it."""

    process: subprocess.Popen[bytes]
    connection: Connection
    deadline: float | None
    """When it must have answered, by the monotonic clock; None while nothing is asked of it."""
    ready: bool = False
    """Whether it has received the task."""
    index: int | None = None
    """The completion that it is grading."""

    def receive(self) -> object:
        """What it sent: a Grade, None when it is ready, the traceback if the task can't be loaded; or that it ended."""
        try:
            return self.connection.recv()
        except (EOFError, OSError, pickle.UnpicklingError):
            return _Ended()

    def kill(self, patience: float = 0.0) -> str:
        """Ends it and whatever it started; says how it ended, itself within `patience` seconds or killed here."""
        self.connection.close()
        patient_until = time.monotonic() + patience
        # WNOWAIT leaves the process unreaped, so that its number still names its own group and nobody else's.
        while os.waitid(os.P_PID, self.process.pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is None:
            if time.monotonic() >= patient_until:
                break
            time.sleep(0.01)
        with contextlib.suppress(ProcessLookupError, PermissionError):  # what macOS says of a group that has ended
            os.killpg(self.process.pid, signal.SIGKILL)
        return _how_it_ended(self.process.wait())


@dataclass(frozen=True)
class _TimeIsUp:
    """Stands for the answer of a worker that has not answered in time."""


@dataclass(frozen=True)
class _Ended:
    """Stands for the answer of a worker that has ended."""


def _pickled(task: Task) -> tuple[bytes | None, str]:
    """The task as bytes, or None and why it can't be sent to a worker."""
    try:
        pickled = pickle.dumps(task)
    except Exception as error:  # noqa: BLE001 - pickling calls the user's code, which may raise anything
        return None, f"it can't be pickled ({type(error).__name__}: {error})"
    if b"__main__" in pickled:
        return None, "it is defined in the script that is being run; move it to a file of its own and import it"
    return pickled, ""


def _start_worker(setup: Setup) -> _Worker:
    """Starts a worker and sends it the task; it says on its connection when it is ready."""
    ours, theirs = Pipe()
    environment = os.environ | {
        "PYTHONPATH": os.pathsep.join(path or os.getcwd() for path in sys.path),
        # A task that imports jax must not take the accelerator away from the run.
        "JAX_PLATFORMS": "cpu",
    }
    program = "from burnish.tasks.grading_worker import main; main()"
    process = subprocess.Popen(
        [sys.executable, "-P", "-c", program, str(theirs.fileno()), str(os.getpid())],
        stdin=subprocess.DEVNULL,
        stdout=2,  # what a grader prints must not mix with the output of the command
        pass_fds=[theirs.fileno()],
        env=environment,
        start_new_session=True,  # Ctrl-C is for the run, which ends its workers itself
    )
    theirs.close()
    with contextlib.suppress(OSError):  # it ended at once, which its connection will say
        ours.send(setup)
    return _Worker(process, ours, deadline=time.monotonic() + _START_SECONDS)


def _how_it_ended(return_code: int) -> str:
    if return_code >= 0:
        return f"ended with exit code {return_code}"
    name = signal.Signals(-return_code).name
    return f"was killed by {name}" + (", perhaps for want of memory" if name == "SIGKILL" else "")
