"""`reasoning_gym:<name>`: the procedural puzzles of the reasoning-gym package, graded by their own scorers."""

from collections.abc import Mapping, Sequence
from typing import Any

from pydantic import ConfigDict, Field

from burnish.errors import UserError
from burnish.tasks.answers import tagged_answer
from burnish.tasks.base import Completion, Row, chat
from burnish.tasks.options import TaskOptions, did_you_mean, read_options


class ReasoningGymOptions(TaskOptions):
    """How many puzzles are made and how they are asked; every other option goes to the puzzle's own generator."""

    model_config = ConfigDict(extra="allow", frozen=True, use_attribute_docstrings=True)

    system: str | None = (
        "Think about the problem step by step. Then give the final answer alone between <answer> and </answer>."
    )
    """The system message; null leaves it out (a model's chat template may then put in its own)."""
    train_prompts: int = Field(default=2000, ge=1)
    """Puzzles to train on."""
    eval_prompts: int = Field(default=200, ge=1)
    """Puzzles held out for evaluation."""
    seed: int = 0
    """Which puzzles are made. Apart from the run's seed, so that an evaluation asks nothing that was trained on."""


class ReasoningGymTask:
    """Puzzles of one kind. The part `score` is the package's own, between 0 and 1."""

    needs_workers = True

    def __init__(self, dataset_name: str, options: ReasoningGymOptions) -> None:
        self.name = f"reasoning_gym:{dataset_name}"
        self.reward_weights = {"score": 1.0}
        self._dataset_name = dataset_name
        self._options = options
        size = options.train_prompts + options.eval_prompts
        self._scorer: Any = _create(dataset_name, options, size)
        rows = [self._row(index) for index in range(size)]
        self._eval_rows = rows[: options.eval_prompts]
        held_out = {row.fields["question"] for row in self._eval_rows}
        self._train_rows = [row for row in rows[options.eval_prompts :] if row.fields["question"] not in held_out]
        if not self._train_rows:
            raise UserError(
                f"task {self.name} has too few different puzzles to hold {options.eval_prompts} of them out; lower "
                "task.options.eval_prompts or give the generator a wider range"
            )

    def train_rows(self) -> Sequence[Row]:
        """The puzzles after the held-out ones, without any that equals one of those."""
        return self._train_rows

    def eval_rows(self) -> Sequence[Row]:
        """The first puzzles that the generator makes."""
        return self._eval_rows

    def grade(self, completion: Completion) -> dict[str, float]:
        """The package's score of what stands in the last `<answer>…</answer>`."""
        answer = self.answer(completion.text)
        return {"score": float(self._scorer.score_answer(answer, dict(completion.row.fields["entry"])))}

    def answer(self, text: str) -> str | None:
        """What stands in the last `<answer>…</answer>`."""
        answer = tagged_answer(text)
        return None if answer is None else answer.strip()

    def gold_text(self, row: Row) -> str | None:
        """The gold answer as a completion; some puzzles have many solutions and name none."""
        answer = row.fields["answer"]
        return None if answer is None else f"<answer>{answer}</answer>"

    def __getstate__(self) -> dict[str, Any]:
        """A worker makes its own scorer and needs no puzzles."""
        return {
            "name": self.name,
            "reward_weights": self.reward_weights,
            "_dataset_name": self._dataset_name,
            "_options": self._options,
        }

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self._scorer = _create(self._dataset_name, self._options, 1)

    def _row(self, index: int) -> Row:
        entry = self._scorer[index]
        fields = {"question": entry["question"], "answer": entry["answer"], "entry": entry}
        return Row(f"{self.name} {index}", chat(self._options.system, entry["question"]), fields)


def make_reasoning_gym(dataset_name: str, options: Mapping[str, Any]) -> ReasoningGymTask:
    """The task of the puzzles called `dataset_name`."""
    return ReasoningGymTask(dataset_name, read_options(f"reasoning_gym:{dataset_name}", ReasoningGymOptions, options))


def _create(dataset_name: str, options: ReasoningGymOptions, size: int) -> Any:
    """The package's data set of `size` puzzles."""
    try:
        import reasoning_gym
        from reasoning_gym.factory import DATASETS
    except ImportError as error:
        raise UserError(
            f"task reasoning_gym:{dataset_name} needs the package reasoning-gym ({error}); "
            "type pip install 'burnish[reasoning-gym]'"
        ) from None
    if dataset_name not in DATASETS:
        names = sorted(DATASETS)
        near = did_you_mean(dataset_name, names)
        raise UserError(f"reasoning_gym has no puzzles called {dataset_name!r}{near}; it has {', '.join(names)}")
    generator_options = options.model_extra or {}
    try:
        return reasoning_gym.create_dataset(dataset_name, size=size, seed=options.seed, **generator_options)
    except (TypeError, ValueError, AssertionError) as error:
        raise UserError(
            f"reasoning_gym:{dataset_name} does not take the options {generator_options}: {error}"
        ) from None
