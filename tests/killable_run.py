"""A run in a process of its own that kills itself, as `kill -9` would, at a named place.

`killable_run.py MODEL NAME PLACE`, where a place is the name and number of a call and `before`, `after` or `half` (of
the line that it would append): `a.b:C.d 2 after`; or the number of a renaming and an expression that finds what is
renamed to: `rename 1 /hf$`; or `nowhere`.
"""

import importlib
import itertools
import os
import re
import signal
import sys
from pathlib import Path
from typing import Any

from burnish.observe import json_lines
from burnish.rl.loop import train
from tiny_runs import HangsOnce, tiny_run

CONFIGURATION = (
    "steps=12",
    "checkpoint.every=2",
    "evaluation.every=4",
    "rollout.decode_steps_per_dispatch=3",
    "rollout.temperature=0.8",
    "rollout.top_k=50",
    "rollout.top_p=0.95",
    "algorithm.updates_per_rollout=2",
    "algorithm.kl_coefficient=0.05",
    "optimizer.schedule=cosine",
    "optimizer.warmup_steps=3",
    "grading.timeout_seconds=5",
    "grading.max_failed_share=0.1",
    "tracking.tensorboard=true",
)


def die() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def kill_at_call(name: str, number: int, moment: str) -> None:
    """Replace what `module:attribute` names by something that dies at its n-th call."""
    module, _, path = name.partition(":")
    owner: Any = importlib.import_module(module)
    *parents, attribute = path.split(".")
    for parent in parents:
        owner = getattr(owner, parent)
    original, calls = getattr(owner, attribute), itertools.count(1)

    def dying(*args: Any, **kwargs: Any) -> Any:
        if next(calls) != number:
            return original(*args, **kwargs)
        if moment == "half":
            line = json_lines._encode(args[1])
            with Path(args[0]).open("ab") as file:
                file.write(line[: len(line) // 2])
        elif moment == "after":
            original(*args, **kwargs)
        die()

    setattr(owner, attribute, dying)


def kill_at_renaming(number: int, expression: str) -> None:
    """Die before something is renamed to a path that the expression finds, for the n-th time, in whatever thread."""
    calls = itertools.count(1)

    def hook(event: str, args: tuple[Any, ...]) -> None:
        if event == "os.rename" and re.search(expression, os.fsdecode(args[1])) and next(calls) == number:
            die()

    sys.addaudithook(hook)


def main(model: str, name: str, place: str) -> None:
    if place != "nowhere":
        what, number, detail = place.split(" ", 2)
        if what == "rename":
            kill_at_renaming(int(number), detail)
        else:
            kill_at_call(what, int(number), detail)
    folder = Path(model).parent
    task = HangsOnce(marker=str(folder / f"{name}-has-hung"))
    train(tiny_run(Path(model), f"run_name={name}", *CONFIGURATION), task)


if __name__ == "__main__":
    main(*sys.argv[1:])
