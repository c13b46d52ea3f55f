"""A task with a question and a gold answer per row, graded as mathematics: what GSM8K and OpenMathInstruct-2 share."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from pydantic import Field, field_validator

from burnish.errors import UserError
from burnish.tasks.answers import extract_answer, normalise_answer
from burnish.tasks.base import Completion, LazyRows, Row, chat
from burnish.tasks.math_grading import grade_math, grade_plainly
from burnish.tasks.options import TaskOptions
from burnish.tasks.sources import Table, hold_out

ReadFields = Callable[[Mapping[str, Any]], dict[str, Any]]
"""From a row of the data set to a task row's fields, `question` and `answer` among them; ValueError if it can't."""


class MathOptions(TaskOptions):
    """How a question is put to the model, and what is held out."""

    system: str | None = None
    """The system message; null leaves it out (a model's chat template may then put in its own)."""
    user: str = "{question}"
    """The user message, with {question} where the question goes."""
    eval_share: float = Field(default=0.05, gt=0, lt=1)
    """The share of the questions that is held out for evaluation where the data has no split of its own for that."""

    @field_validator("user")
    @classmethod
    def _has_question(cls, user: str) -> str:
        if "{question}" not in user:
            raise ValueError("it must contain {question}, where the question goes")
        return user


@dataclass(frozen=True)
class Questions:
    """Chosen rows of a table, and how their fields are read."""

    table: Table
    chosen: Sequence[int]
    read: ReadFields

    def fields(self, place: int) -> dict[str, Any]:
        """The fields of the row at `place` of the table; UserError with its file and line if they can't be used."""
        try:
            return self.read(self.table.row(place))
        except ValueError as error:
            raise UserError(f"{self.table.where(place)} can't be used: {error}") from None


class MathTask:
    """The final answer (the last `<answer>…</answer>`, `\\boxed{…}` or number) is compared with the gold answer."""

    needs_workers = True

    def __init__(self, name: str, options: MathOptions, train: Questions, evaluation: Questions) -> None:
        self.name = name
        self.reward_weights = {"correct": 1.0}
        self._options = options
        self._splits = {"train": train, "eval": evaluation}

    def train_rows(self) -> Sequence[Row]:
        """The training split."""
        return self._rows("train")

    def eval_rows(self) -> Sequence[Row]:
        """The held-out split."""
        return self._rows("eval")

    def grade(self, completion: Completion) -> dict[str, float]:
        """Whether the final answer equals the gold answer. May hang on what a model writes: for workers."""
        return {"correct": grade_math(completion.text, completion.row.fields["answer"])}

    def quick_grade(self, completion: Completion) -> dict[str, float] | None:
        """The grade where it needs no computer algebra."""
        correct = grade_plainly(completion.text, completion.row.fields["answer"])
        return None if correct is None else {"correct": correct}

    def answer(self, text: str) -> str | None:
        """The final answer in a normal form."""
        answer = extract_answer(text)
        return None if answer is None else normalise_answer(answer)

    def gold_text(self, row: Row) -> str:
        """The gold answer as a completion."""
        return f"<answer>{row.fields['answer']}</answer>"

    def __getstate__(self) -> dict[str, Any]:
        """A worker grades from the completion's own row and needs no data set."""
        return self.__dict__ | {"_splits": {}}

    def _rows(self, split: str) -> Sequence[Row]:
        questions = self._splits[split]

        def row(index: int) -> Row:
            place = questions.chosen[index]
            fields = questions.fields(place)
            user = self._options.user.replace("{question}", fields["question"])
            return Row(f"{self.name} {split} {place}", chat(self._options.system, user), fields)

        return LazyRows(len(questions.chosen), row)


def make_math_task(
    name: str,
    options: MathOptions,
    tables: tuple[Table, Table | None],
    question_field: str,
    read: ReadFields,
    *,
    check_all: bool,
) -> MathTask:
    """The task over a training and an evaluation table, or over one table of which a share is held out.

    check_all: read every row now, so that a bad one is named before a run starts rather than in the middle of it.
    """
    train, evaluation = tables
    if evaluation is not None:
        splits = Questions(train, range(train.num_rows), read), Questions(evaluation, range(evaluation.num_rows), read)
    else:
        # A question that is no text is named with its file and line when its row is read.
        chosen, held_out = hold_out([str(question) for question in train.column(question_field)], options.eval_share)
        splits = Questions(train, chosen, read), Questions(train, held_out, read)
    for questions, kind in zip(splits, ("to train on", "to evaluate on"), strict=True):
        if not questions.chosen:
            raise UserError(
                f"task {name} has no rows {kind}; give a data set with more rows or change task.options.eval_share"
            )
        for place in questions.chosen if check_all else ():
            questions.fields(place)
    return MathTask(name, options, *splits)
