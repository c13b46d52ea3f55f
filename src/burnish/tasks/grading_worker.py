"""What runs in a grading worker: receive the task, then grade one completion after the other until the pool goes away.

Started by `grading.py` as `python -c "…main()" CONNECTION PARENT`; it imports the task's module and nothing of jax.
"""

import os
import pickle
import signal
import sys
import threading
import time
import traceback
from dataclasses import dataclass
from multiprocessing.connection import Connection

from burnish.tasks.custom import import_file
from burnish.tasks.grades import call_grader

_PARENT_CHECK_SECONDS = 1.0


@dataclass(frozen=True)
class Setup:
    """What a worker needs before its first completion."""

    files: dict[str, str]
    """Modules that exist only as files, by the name under which the task's pickle refers to them."""
    task: bytes
    """The pickled task."""
    timeout_seconds: float


def main() -> None:
    """Serves the connection whose file descriptor is the first argument, for the process that is the second."""
    connection: Connection = Connection(int(sys.argv[1]))
    threading.Thread(target=_end_with_parent, args=(int(sys.argv[2]),), daemon=True).start()
    setup: Setup = connection.recv()
    try:
        for name, path in setup.files.items():
            import_file(path, name)
        task = pickle.loads(setup.task)
    except (Exception, SystemExit):  # noqa: BLE001 - it is the user's code, and the pool gets the traceback
        connection.send(traceback.format_exc())
        return
    connection.send(None)
    # The pool kills a worker whose time is up. Should the pool be gone by then, the kernel does, even while C code
    # holds the interpreter's lock.
    processor_seconds = (setup.timeout_seconds + 10.0) * (os.cpu_count() or 1)
    while True:
        try:
            completion = connection.recv()
        except EOFError:
            return
        signal.setitimer(signal.ITIMER_PROF, processor_seconds)
        grade = call_grader(task.grade, completion, task.reward_weights)
        signal.setitimer(signal.ITIMER_PROF, 0.0)
        connection.send(grade)


def _end_with_parent(parent: int) -> None:
    """Ends this process when its parent has: a grader that hangs would never see the connection close."""
    while os.getppid() == parent:
        time.sleep(_PARENT_CHECK_SECONDS)
    os._exit(1)
