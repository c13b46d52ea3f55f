"""What a task is: prompts to train on, held-out prompts to evaluate on, and a grader with named reward parts."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, Protocol, overload

StopReason = Literal["eos", "stop_string", "length"]


@dataclass(frozen=True)
class Row:
    """One prompt of a task."""

    id: str
    """Names the row in samples and error messages; unique within the task."""
    messages: list[dict[str, str]]
    """The prompt as chat messages, `{"role": …, "content": …}`; the model's own chat template is applied later."""
    fields: dict[str, Any] = field(default_factory=dict)
    """Everything the grader may need, the data set's own fields included. A gold answer is called `answer`."""


@dataclass(frozen=True)
class Completion:
    """One answer of the model to a row, as a grader sees it."""

    row: Row
    text: str
    """The decoded completion, without special tokens."""
    stop_reason: StopReason
    """Why it ended; `length` means that it was cut off."""
    token_count: int


class Task(Protocol):
    """Prompts and how their answers are scored.

    Beyond the members below a task may have:

    - `answer(text) -> str | None`: the final answer in a normal form, so that equal answers are equal strings;
      majority voting needs it.
    - `gold_text(row) -> str | None`: a completion that gives the row's own gold answer. It is graded before the row
      is used, and a row whose gold answer does not solve it is dropped. None: this row can't be checked.
    - `quick_grade(completion) -> Mapping[str, float] | None`: what `grade` would say where that is cheap and certain
      to return, else None. It runs in the process of the training loop and spares a trip to a worker.
    - `needs_workers: bool`: True where `grade` may hang or crash and must run in worker processes, False where it
      can't and is fast. Without it the grader runs in workers if the task can be sent to one.
    """

    name: str
    reward_weights: dict[str, float]
    """The reward is the weighted sum of the parts that `grade` returns; these are their names and weights."""

    def train_rows(self) -> Sequence[Row]:
        """The prompts to train on."""
        ...

    def eval_rows(self) -> Sequence[Row]:
        """Prompts held out from training."""
        ...

    def grade(self, completion: Completion) -> Mapping[str, float]:
        """One finite number for each name in `reward_weights`.

        A part called `correct` says by the value 1 that the row is solved; without such a part a row counts as
        solved from a reward of 1 on.
        """
        ...


class LazyRows(Sequence[Row]):
    """Rows made when they are asked for: a data set of a million problems need not lie in memory as messages."""

    def __init__(self, count: int, make_row: Callable[[int], Row]) -> None:
        self._count = count
        self._make_row = make_row

    def __len__(self) -> int:
        return self._count

    @overload
    def __getitem__(self, index: int) -> Row: ...
    @overload
    def __getitem__(self, index: slice) -> Sequence[Row]: ...
    def __getitem__(self, index: int | slice) -> Row | Sequence[Row]:
        chosen = range(self._count)[index]
        if isinstance(chosen, range):
            return LazyRows(len(chosen), lambda position: self._make_row(chosen[position]))
        return self._make_row(chosen)

    def __iter__(self) -> Iterator[Row]:
        return (self._make_row(index) for index in range(self._count))


def chat(system: str | None, user: str) -> list[dict[str, str]]:
    """The messages of a one-turn prompt; no system message where `system` is None or empty."""
    messages = [{"role": "system", "content": system}] if system else []
    return [*messages, {"role": "user", "content": user}]
