"""Your own task: `path/to/file.py:make_task`, or a Python object with the members of `Task`."""

import hashlib
import importlib.util
import inspect
import math
import sys
from collections.abc import Mapping
from pathlib import Path
from types import ModuleType
from typing import Any, cast

from burnish.errors import UserError
from burnish.tasks.base import Task
from burnish.tasks.options import did_you_mean

_MODULE_PREFIX = "burnish_task_file_"
_METHODS = ("train_rows", "eval_rows", "grade")


def load_custom_task(reference: str, options: Mapping[str, Any], path: str | None, seed: int) -> Task:
    """The task that `file.py:name` makes: a function called with the options, or a task object itself.

    The function also gets `seed` and `path` if it has parameters of these names.
    """
    file_name, _, attribute = (
        reference.rpartition(":") if reference.rpartition(":")[0].endswith(".py") else (reference, "", "")
    )
    if not attribute:
        raise UserError(f"task={reference} names no function; write it as task={reference.rstrip(':')}:make_task")
    file = Path(file_name).expanduser()
    if not file.is_file():
        raise UserError(f"task={reference}: there is no file {file} (looked from {Path.cwd()})")
    try:
        module = import_file(str(file.resolve()), module_name(file))
    except (Exception, SystemExit) as error:
        raise UserError(f"task={reference}: importing {file} failed: {_one_line(error)}") from error
    if not hasattr(module, attribute):
        public = [name for name, value in vars(module).items() if not name.startswith("_") and callable(value)]
        near = did_you_mean(attribute, public)
        raise UserError(f"task={reference}: {file} has no {attribute!r}{near or f'; it defines {_listed(public)}'}")
    maker = getattr(module, attribute)
    if not callable(maker):
        if options or path is not None:
            raise UserError(
                f"task={reference} is an object and takes no options or path; name a function that makes it"
            )
        return require_task(maker, f"task={reference}")
    arguments = _arguments(reference, maker, options, {"seed": seed, "path": path})
    try:
        made = maker(**arguments)
    except UserError:
        raise
    except (Exception, SystemExit) as error:
        raise UserError(f"task={reference}: {attribute}() failed: {_one_line(error)}") from error
    return require_task(made, f"task={reference}: what {attribute}() returned")


def require_task(candidate: object, origin: str) -> Task:
    """`candidate`, checked to have the members of a Task; UserError with what is missing where it hasn't."""
    kind = type(candidate).__name__
    if isinstance(candidate, type):
        raise UserError(f"{origin} is the class {candidate.__name__}, not a task; give an instance of it")
    missing = [name for name in ("name", "reward_weights") if not hasattr(candidate, name)]
    missing += [f"{name}()" for name in _METHODS if not callable(getattr(candidate, name, None))]
    if missing:
        raise UserError(f"{origin} is no task: it is a {kind} without {_listed(missing)} (see docs/tasks.md)")
    task = cast(Task, candidate)
    if not isinstance(task.name, str) or not task.name:
        raise UserError(f"{origin} has the name {task.name!r}; a task's name must be a non-empty string")
    weights: Any = task.reward_weights
    if not isinstance(weights, Mapping) or not weights:
        raise UserError(
            f'{origin} has reward_weights={weights!r}; give a weight for each reward part, {{"correct": 1.0}}'
        )
    for part, weight in weights.items():
        if isinstance(weight, bool) or not isinstance(weight, int | float) or not math.isfinite(weight):
            raise UserError(f"{origin} has the reward weight {weight!r} for {part!r}; a weight must be a finite number")
    return task


def import_file(path: str, name: str) -> ModuleType:
    """The module in the file `path` under the name `name`; what lies beside the file can be imported too."""
    folder = str(Path(path).parent)
    if folder not in sys.path:
        sys.path.append(folder)
    spec = importlib.util.spec_from_file_location(name, path)
    if spec is None or spec.loader is None:
        raise ImportError(f"{path} is not a Python file")
    module = importlib.util.module_from_spec(spec)
    # Before it runs, as for any import: dataclasses and pickle look a class's module up by its name.
    sys.modules[name] = module
    try:
        spec.loader.exec_module(module)
    except BaseException:
        del sys.modules[name]
        raise
    return module


def module_name(file: Path) -> str:
    """The name that a task file's module has in every process: pickled tasks refer to it."""
    return f"{_MODULE_PREFIX}{file.stem}_{hashlib.blake2b(str(file.resolve()).encode(), digest_size=4).hexdigest()}"


def imported_files(pickled: bytes) -> dict[str, str]:
    """The task files that a pickled task refers to, as module name → path."""
    files = {name: module.__file__ for name, module in sys.modules.items() if name.startswith(_MODULE_PREFIX)}
    return {name: path for name, path in files.items() if path is not None and name.encode() in pickled}


def _arguments(reference: str, maker: Any, options: Mapping[str, Any], offered: Mapping[str, Any]) -> dict[str, Any]:
    """What to call `maker` with; UserError where the options don't fit its parameters."""
    parameters = inspect.signature(maker).parameters
    keywords = [name for name, p in parameters.items() if p.kind in (p.POSITIONAL_OR_KEYWORD, p.KEYWORD_ONLY)]
    takes_any = any(p.kind is p.VAR_KEYWORD for p in parameters.values())
    names = [name for name in keywords if name not in offered]
    for name in options:
        if name not in keywords and not takes_any:
            raise UserError(
                f"task={reference} has no option {name!r}{did_you_mean(name, names)}; its options are {_listed(names)}"
            )
    if offered["path"] is not None and "path" not in keywords:
        raise UserError(f"task={reference} was given task.path, but has no parameter called path")
    arguments = {name: value for name, value in offered.items() if name in keywords} | dict(options)
    for name, parameter in parameters.items():
        if name in keywords and parameter.default is parameter.empty and name not in arguments:
            raise UserError(f"task={reference} needs the option {name!r}; add task.options.{name}=…")
    return arguments


def _one_line(error: BaseException) -> str:
    return " ".join(f"{type(error).__name__}: {error}".split())


def _listed(names: list[str]) -> str:
    return ", ".join(names) if names else "none"
