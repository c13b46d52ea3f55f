"""The generated arithmetic task: `What is 3 + 4?`, graded by the last number of the answer alone."""

import math
from collections.abc import Mapping, Sequence
from fractions import Fraction
from typing import Any, Literal, Self

from pydantic import Field, model_validator

from burnish.errors import UserError
from burnish.tasks.base import Completion, LazyRows, Row, chat
from burnish.tasks.numbers import canonical, last_number
from burnish.tasks.options import TaskOptions, read_options
from burnish.tasks.order import shuffled

Operator = Literal["+", "-", "*"]


class ArithmeticOptions(TaskOptions):
    """Which problems are generated, and how they are asked."""

    operators: list[Operator] = Field(default=["+"], min_length=1)
    """The operators that problems use: any of +, -, *."""
    min_operand: int = 1
    """The smallest operand."""
    max_operand: int = 30
    """The largest operand."""
    instruction: str = "Reply with the number only."
    """A sentence after the question; empty for none."""
    system: str | None = None
    """A system message; null leaves it out (a model's chat template may then put in its own)."""
    train_prompts: int | None = Field(default=None, ge=1)
    """Training problems; null uses every problem that is not held out."""
    eval_prompts: int | None = Field(default=None, ge=1)
    """Problems held out for evaluation; null holds out 300, or a third of all where there are fewer than 900."""
    seed: int = 0
    """Which problems are held out. Apart from the run's seed, so that an evaluation after a run with any seed asks
    nothing that was trained on."""

    @model_validator(mode="after")
    def _an_interval(self) -> Self:
        if self.min_operand > self.max_operand:
            raise ValueError(f"min_operand={self.min_operand} is above max_operand={self.max_operand}")
        if len(set(self.operators)) < len(self.operators):
            raise ValueError(f"operators={self.operators} names one of them twice")
        return self


def make_arithmetic(options: Mapping[str, Any]) -> "ArithmeticTask":
    """The task with the given options; UserError where they leave too few distinct problems."""
    return ArithmeticTask(read_options("arithmetic", ArithmeticOptions, options))


class ArithmeticTask:
    """Every problem is a different question, and none that is trained on is a held-out one, nor its mirror image.

    Whoever has learned 3 + 8 knows 8 + 3; so questions come in twos, and the twos are what is shuffled and held out.
    """

    name = "arithmetic"
    needs_workers = False

    def __init__(self, options: ArithmeticOptions) -> None:
        self.reward_weights = {"correct": 1.0}
        self._options = options
        self._operands = options.max_operand - options.min_operand + 1
        # Doubles (3 + 3) have no mirror image and are put together in twos; an odd one is left out.
        self._twos = self._operands**2 // 2
        self._num_questions = 2 * len(options.operators) * self._twos
        self._num_eval = options.eval_prompts or max(1, min(300, self._num_questions // 3))
        self._first_trained = self._num_eval + self._num_eval % 2
        train_prompts = options.train_prompts or 1
        if self._num_questions < self._first_trained + train_prompts:
            raise UserError(
                f"arithmetic with operators {' '.join(options.operators)} and operands from {options.min_operand} to "
                f"{options.max_operand} has only {self._num_questions} different questions, fewer than the "
                f"{self._num_eval} held out for evaluation and {train_prompts} to train on; raise "
                "task.options.max_operand, add to task.options.operators, or lower task.options.eval_prompts"
            )
        self._num_train = options.train_prompts or self._num_questions - self._first_trained

    def train_rows(self) -> Sequence[Row]:
        """The problems after the held-out ones in the shuffled list of all questions."""
        return LazyRows(self._num_train, lambda index: self._row(self._first_trained + index))

    def eval_rows(self) -> Sequence[Row]:
        """The first problems in the shuffled list of all questions."""
        return LazyRows(self._num_eval, self._row)

    def grade(self, completion: Completion) -> dict[str, float]:
        """Whether the last number is the right one; nothing for the format."""
        return {"correct": float(last_number(completion.text) == Fraction(completion.row.fields["answer"]))}

    def answer(self, text: str) -> str | None:
        """The last number."""
        number = last_number(text)
        return None if number is None else canonical(number)

    def gold_text(self, row: Row) -> str:
        """The gold answer as a completion."""
        return str(row.fields["answer"])

    def _row(self, place: int) -> Row:
        """The row at `place` in the shuffled list of all questions."""
        options = self._options
        two = shuffled(place // 2, self._num_questions // 2, f"arithmetic/{options.seed}")
        which, two = divmod(two, self._twos)
        left, right = (operand + options.min_operand for operand in _operands(two, place % 2, self._operands))
        operator = options.operators[which]
        answer = {"+": left + right, "-": left - right, "*": left * right}[operator]
        question = f"{left} {operator} {f'({right})' if right < 0 else right}"
        user = f"What is {question}? {options.instruction}".strip()
        fields = {"question": question, "left": left, "operator": operator, "right": right, "answer": str(answer)}
        return Row(f"arithmetic {question}", chat(options.system, user), fields)


def _operands(two: int, second: int, operands: int) -> tuple[int, int]:
    """The operands, counted from 0, of one of the two questions numbered `two`: a pair in either order, or a double."""
    pairs = operands * (operands - 1) // 2
    if two >= pairs:
        double = 2 * (two - pairs) + second
        return double, double
    # Pairs (low, high) with low < high, in the order of high: there are high · (high − 1) / 2 below each.
    high = (1 + math.isqrt(8 * two + 1)) // 2
    low = two - high * (high - 1) // 2
    return (high, low) if second else (low, high)
