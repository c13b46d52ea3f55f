"""OpenMathInstruct-2: problems grown from MATH and GSM8K (Toshniwal et al. 2024), from the hub or a local copy."""

from collections.abc import Mapping
from typing import Any

from burnish.tasks.math_task import MathOptions, MathTask, make_math_task
from burnish.tasks.options import read_options
from burnish.tasks.sources import load_hub, read_local, text_field


class OpenMathInstruct2Options(MathOptions):
    """How a problem is put to the model, and where it comes from."""

    system: str | None = "Solve the problem step by step. Then give the final answer in \\boxed{}."
    """The system message; null leaves it out (a model's chat template may then put in its own)."""
    hub_dataset: str = "nvidia/OpenMathInstruct-2"
    """The data set on the hub, used where task.path is not given."""
    hub_split: str = "train_1M"
    """The split on the hub; a share of its problems is held out."""


def make_openmathinstruct2(options: Mapping[str, Any], path: str | None) -> MathTask:
    """The task from `path`, else from the hub. Of the several solutions to one problem only the first row is used."""
    read = read_options("openmathinstruct2", OpenMathInstruct2Options, options)
    tables = (load_hub(read.hub_dataset, None, read.hub_split), None) if path is None else read_local(path)
    # A million rows of the hub are read as they are drawn.
    return make_math_task(
        "openmathinstruct2", read, tables, "problem", openmathinstruct2_fields, check_all=path is not None
    )


def openmathinstruct2_fields(row: Mapping[str, Any]) -> dict[str, Any]:
    """The row's fields with the problem also as `question` and the expected answer as `answer`."""
    answer = text_field(row, "expected_answer").strip()
    return {**row, "question": text_field(row, "problem"), "answer": answer}
