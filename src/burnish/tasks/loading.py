"""From the configuration's `task` to the task: the built-in ones by name, your own by file."""

from burnish.config.schema import TaskConfig
from burnish.errors import UserError
from burnish.tasks.arithmetic import make_arithmetic
from burnish.tasks.base import Task
from burnish.tasks.custom import load_custom_task
from burnish.tasks.gsm8k import make_gsm8k
from burnish.tasks.openmathinstruct2 import make_openmathinstruct2
from burnish.tasks.options import did_you_mean
from burnish.tasks.reasoning_gym import make_reasoning_gym

_REASONING_GYM = "reasoning_gym"
BUILT_IN_TASKS = ("arithmetic", "gsm8k", "openmathinstruct2", f"{_REASONING_GYM}:<name>")


def load_task(config: TaskConfig, seed: int = 0) -> Task:
    """The task that `config` names; UserError with what to type instead where there is none.

    `seed` is the run's; only tasks of your own get it (a parameter called `seed`). The built-in ones hold the same
    rows out whatever the run's seed is.
    """
    name, _, puzzle = config.name.partition(":")
    if name.endswith(".py"):
        return load_custom_task(config.name, config.options, config.path, seed)
    if config.name == "gsm8k":
        return make_gsm8k(config.options, config.path)
    if config.name == "openmathinstruct2":
        return make_openmathinstruct2(config.options, config.path)
    if config.name != "arithmetic" and (name != _REASONING_GYM or not puzzle):
        near = did_you_mean(config.name, list(BUILT_IN_TASKS))
        raise UserError(
            f"there is no task {config.name!r}{near}; the tasks are {', '.join(BUILT_IN_TASKS)}, and your own as "
            "path/to/file.py:make_task"
        )
    if config.path is not None:
        raise UserError(f"task {config.name} is generated and reads no file; leave out task.path={config.path}")
    return (
        make_arithmetic(config.options) if config.name == "arithmetic" else make_reasoning_gym(puzzle, config.options)
    )
