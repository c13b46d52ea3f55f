"""GSM8K: grade-school word problems with whole-number answers (Cobbe et al. 2021), from the hub or a local copy."""

from collections.abc import Mapping
from typing import Any

from burnish.tasks.math_task import MathOptions, MathTask, make_math_task
from burnish.tasks.options import read_options
from burnish.tasks.sources import Table, load_hub, read_local, text_field

_GOLD_MARK = "####"


class Gsm8kOptions(MathOptions):
    """How a problem is put to the model, and where it comes from."""

    system: str | None = (
        "Solve the problem step by step. Then give the final answer, a single number, between <answer> and </answer>."
    )
    """The system message; null leaves it out (a model's chat template may then put in its own)."""
    hub_dataset: str = "openai/gsm8k"
    """The data set on the hub, used where task.path is not given."""
    hub_subset: str | None = "main"
    """The data set's configuration on the hub."""


def make_gsm8k(options: Mapping[str, Any], path: str | None) -> MathTask:
    """The task from `path`, else from the hub."""
    read = read_options("gsm8k", Gsm8kOptions, options)
    tables: tuple[Table, Table | None]
    if path is not None:
        tables = read_local(path)
    else:
        tables = (
            load_hub(read.hub_dataset, read.hub_subset, "train"),
            load_hub(read.hub_dataset, read.hub_subset, "test"),
        )
    return make_math_task("gsm8k", read, tables, "question", gsm8k_fields, check_all=True)


def gsm8k_fields(row: Mapping[str, Any]) -> dict[str, Any]:
    """The row's fields with the gold answer as `answer` and what the data set calls so, the worked solution, as
    `solution`."""
    solution = text_field(row, "answer")
    _, mark, gold = solution.rpartition(_GOLD_MARK)
    if not mark or not gold.strip():
        raise ValueError(f'its "answer" does not end with "{_GOLD_MARK} <number>"')
    return {**row, "question": text_field(row, "question"), "solution": solution, "answer": gold.strip()}
