"""The options of a task (`task.options.<name>=<value>`), checked: an unknown or mistyped one is named."""

import difflib
from collections.abc import Mapping
from typing import Any, TypeVar

from pydantic import BaseModel, ConfigDict, ValidationError

from burnish.errors import UserError


class TaskOptions(BaseModel):
    """The options of one task; each field's docstring is its documentation."""

    model_config = ConfigDict(extra="forbid", frozen=True, use_attribute_docstrings=True)


Options = TypeVar("Options", bound=TaskOptions)


def read_options(task: str, schema: type[Options], given: Mapping[str, Any]) -> Options:
    """`given` as the task's options; UserError with what is valid where they aren't."""
    valid = list(schema.model_fields)
    for name in given:
        if name not in valid and schema.model_config.get("extra") != "allow":
            raise UserError(
                f"task {task} has no option {name!r}{did_you_mean(name, valid)}; its options are {', '.join(valid)}"
            )
    try:
        return schema.model_validate(dict(given))
    except ValidationError as error:
        problem = error.errors()[0]
        option = str(problem["loc"][0]) if problem["loc"] else "options"
        message = problem["msg"].removeprefix("Value error, ")
        raise UserError(
            f"task.options.{option}={problem['input']!r} can't be used for task {task}: {message}; "
            f"its options are {', '.join(valid)}"
            if problem["loc"]
            else f"the options of task {task} can't be used together: {message}"
        ) from None


def did_you_mean(given: str, valid: list[str]) -> str:
    """` (did you mean 'x'?)` for the nearest valid name, or nothing."""
    near = difflib.get_close_matches(given, valid, n=1, cutoff=0.6)
    return f" (did you mean {near[0]!r}?)" if near else ""
