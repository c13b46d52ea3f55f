"""Tasks whose graders do what graders must not, importable by a worker process."""

import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from burnish.tasks import Completion, Row


@dataclass
class ObedientTask:
    """Its grader does what the completion's text says."""

    name: str = "obedient"
    reward_weights: dict[str, float] = field(default_factory=lambda: {"correct": 1.0, "style": 0.25})

    def train_rows(self) -> Sequence[Row]:
        return [row_with()]

    def eval_rows(self) -> Sequence[Row]:
        return [row_with()]

    def grade(self, completion: Completion) -> Any:
        order, _, argument = completion.text.partition(" ")
        match order:
            case "score":
                return {"correct": float(argument), "style": 1.0}
            case "return":
                return {
                    "None": None,
                    "number": 1.0,
                    "nan": {"correct": float("nan"), "style": 1.0},
                    "inf": {"correct": float("inf"), "style": 1.0},
                    "text": {"correct": "1", "style": 1.0},
                    "missing": {"correct": 1.0},
                    "extra": {"correct": 1.0, "style": 1.0, "length": 1.0},
                    "none-part": {"correct": None, "style": 1.0},
                    "bool": {"correct": True, "style": 0},
                }[argument]
            case "raise":
                raise RuntimeError(argument)
            case "exit":
                sys.exit(3)
            case "hang":
                time.sleep(3600)
            case "hang-holding-the-lock":
                re.match(r"(a+)+$", "a" * 60 + "b")
            case "hang-with-child":
                child = subprocess.Popen(["sleep", "3600"])
                Path(argument).write_text(str(child.pid))
                time.sleep(3600)
            case "segfault":
                os.kill(os.getpid(), signal.SIGSEGV)
            case "out-of-memory":
                os.kill(os.getpid(), signal.SIGKILL)
            case "leave":
                os._exit(7)
            case "pid":
                return {"correct": os.getpid(), "style": 0.0}
            case "jax":
                return {"correct": float("jax" in sys.modules), "style": 0.0}
            case "fields":
                return {
                    "correct": float(completion.row.fields["nested"]["value"]),
                    "style": len(completion.row.messages),
                }
        raise ValueError(order)


@dataclass
class UnloadableTask(ObedientTask):
    """It can be pickled but not unpickled."""

    def __setstate__(self, state: Any) -> None:
        raise ValueError("this task does not travel")


@dataclass
class DeadlyTask(ObedientTask):
    """A worker dies of receiving it."""

    def __setstate__(self, state: Any) -> None:
        os._exit(9)


@dataclass
class UnpicklableTask(ObedientTask):
    """It holds what can't be sent to a worker."""

    secret: Any = field(default_factory=lambda: lambda: None)


@dataclass
class QuickTask(ObedientTask):
    """It knows the grades of `score …` without a worker."""

    def quick_grade(self, completion: Completion) -> Any:
        if completion.text == "quick-raise":
            raise RuntimeError("quickly")
        return self.grade(completion) if completion.text.startswith("score") else None


def row_with(**fields: Any) -> Row:
    """A row with the given fields."""
    return Row("row", [{"role": "user", "content": "?"}], fields)


def says(text: str, **fields: Any) -> Completion:
    """A completion with the given text."""
    return Completion(row_with(**fields), text, "eos", 1)
