"""How good the model is at a task: held-out prompts are answered, graded, and summed up as accuracy, pass@k and maj@k.

An evaluation takes nothing from the training state and leaves nothing in it: it draws with noise of its own, the same
in every evaluation with the same seed, so that two of them differ by the weights alone.
"""

from __future__ import annotations

import traceback
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from burnish.errors import RunStopped, UserError
from burnish.rl.estimators import majority_at_k, mean_and_standard_error, pass_at_k
from burnish.rollout.engine import Engine
from burnish.rollout.records import Prompt, Trajectory
from burnish.rollout.sampling import Sampling
from burnish.tasks import Completion, Grade, GradingPool, Row, Task
from burnish.text.tokenizer import ChatTokenizer

NOISE_STEP = 2**31 - 1
"""Noise is keyed by a step; no training step has this number, so no training completion shares noise with these."""


@dataclass(frozen=True)
class EvaluatedCompletion:
    """One graded answer."""

    row_index: int
    """Place of its row among those given, dropped ones counted."""
    row: Row
    trajectory: Trajectory
    grade: Grade
    answer: str | None
    """Its final answer in normal form; None where it has none, or the task can't tell."""


@dataclass(frozen=True)
class EvaluationResult:
    """What one evaluation found. Means over problems leave out completions that could not be graded."""

    greedy: bool
    samples_per_prompt: int
    completions: list[EvaluatedCompletion]
    """By row, then by completion index."""
    dropped_prompts: int
    """Prompts that were longer than allowed and so not asked."""
    failed_grades: int
    """Completions that could not be graded."""
    accuracy: float
    """pass@1: mean over problems of the share of solved completions."""
    accuracy_standard_error: float
    """Over problems; NaN where there is only one."""
    mean_reward: float
    mean_parts: dict[str, float]
    """Mean of each reward part."""
    pass_at: dict[int, float]
    """Unbiased pass@k by k, over the problems with at least k graded completions."""
    majority_at: dict[int, float]
    """maj@k by k, over the same problems; empty where the task gives no normalised answers."""
    mean_completion_tokens: float
    truncated_share: float
    """Share of completions that the length limit cut."""

    @property
    def num_problems(self) -> int:
        """Problems with at least one graded completion."""
        return len({completion.row_index for completion in self.completions if completion.grade.error is None})

    def metrics(self) -> dict[str, float]:
        """The numbers for the metric stream; each name says `sampled` or `greedy`, so that both fit one record."""
        mode = "greedy" if self.greedy else "sampled"
        return {
            f"accuracy/{mode}": self.accuracy,
            f"accuracy/{mode}_standard_error": self.accuracy_standard_error,
            f"reward/{mode}": self.mean_reward,
            **{f"reward/{mode}/{name}": value for name, value in self.mean_parts.items()},
            **{f"pass@{k}/{mode}": value for k, value in self.pass_at.items()},
            **{f"maj@{k}/{mode}": value for k, value in self.majority_at.items() if k > 1},
            f"completion_tokens/{mode}": self.mean_completion_tokens,
            f"truncated_share/{mode}": self.truncated_share,
            f"dropped_prompts/{mode}": self.dropped_prompts,
            f"failed_grades/{mode}": self.failed_grades,
        }


def evaluate(
    engine: Engine,
    task: Task,
    rows: Sequence[Row],
    tokenizer: ChatTokenizer,
    grading_pool: GradingPool,
    *,
    samples_per_prompt: int,
    temperature: float,
    max_tokens: int,
    max_prompt_tokens: int,
    seed: int,
    top_k: int = 0,
    top_p: float = 1.0,
    min_p: float = 0.0,
    stop_strings: Sequence[str] = (),
    chat_template_kwargs: Mapping[str, Any] | None = None,
    ks: Sequence[int] = (),
    max_failed_share: float = 0.01,
    on_progress: Callable[[int, int], None] | None = None,
) -> EvaluationResult:
    """Answer and grade `rows` with the weights that the idle `engine` holds.

    Temperature 0 is greedy. `ks` are those of pass@k and maj@k; by default 1, 2, 4, … up to `samples_per_prompt`, and
    that number itself. `on_progress(done, total)` is called as completions finish.

    Raises:
        UserError: if every prompt is longer than `max_prompt_tokens`.
        RunStopped: if more than `max_failed_share` of the completions could not be graded.
    """
    prompts = _prompts(rows, tokenizer, max_prompt_tokens, chat_template_kwargs or {})
    sampling = Sampling(
        num_generations=samples_per_prompt,
        temperature=temperature,
        top_k=top_k,
        top_p=top_p,
        min_p=min_p,
        max_tokens=max_tokens,
        stop_strings=tuple(stop_strings),
    )
    trajectories = _draw(engine, prompts, sampling, seed, on_progress)
    grades = grading_pool.grade(
        [Completion(rows[t.group_id], t.text, t.stop_reason, len(t.token_ids)) for t in trajectories]
    )
    _stop_if_too_many_failed(task, trajectories, grades, max_failed_share)
    completions = [
        EvaluatedCompletion(t.group_id, rows[t.group_id], t, grade, _answer(task, t))
        for t, grade in zip(trajectories, grades, strict=True)
    ]
    return summarise(
        completions,
        greedy=temperature == 0,
        samples_per_prompt=samples_per_prompt,
        dropped_prompts=len(rows) - len(prompts),
        ks=ks or default_ks(samples_per_prompt),
        has_answers=hasattr(task, "answer"),
    )


def default_ks(samples_per_prompt: int) -> list[int]:
    """1, 2, 4, … up to the number of samples, and that number itself."""
    powers = [2**exponent for exponent in range(samples_per_prompt.bit_length())]
    return sorted({*powers, samples_per_prompt})


def summarise(
    completions: list[EvaluatedCompletion],
    *,
    greedy: bool,
    samples_per_prompt: int,
    dropped_prompts: int,
    ks: Sequence[int],
    has_answers: bool,
) -> EvaluationResult:
    """Sum up graded completions."""
    graded = [completion for completion in completions if completion.grade.parts is not None]
    if not graded:
        raise RunStopped("none of the evaluation's completions could be graded")
    problems: dict[int, list[EvaluatedCompletion]] = {}
    for completion in graded:
        problems.setdefault(completion.row_index, []).append(completion)
    solved = {index: [completion.grade.solved for completion in of_row] for index, of_row in problems.items()}
    accuracy, standard_error = mean_and_standard_error([float(np.mean(of_row)) for of_row in solved.values()])
    pass_at: dict[int, float] = {}
    majority_at: dict[int, float] = {}
    for k in ks:
        enough = [index for index, of_row in solved.items() if len(of_row) >= k]
        if not enough:
            continue
        pass_at[k] = float(np.mean([pass_at_k(len(solved[index]), sum(solved[index]), k) for index in enough]))
        if has_answers:
            votes = [majority_at_k([c.answer for c in problems[index]], solved[index], k) for index in enough]
            majority_at[k] = float(np.mean(votes))
    parts = [completion.grade.parts or {} for completion in graded]
    return EvaluationResult(
        greedy=greedy,
        samples_per_prompt=samples_per_prompt,
        completions=completions,
        dropped_prompts=dropped_prompts,
        failed_grades=len(completions) - len(graded),
        accuracy=accuracy,
        accuracy_standard_error=standard_error,
        mean_reward=float(np.mean([completion.grade.reward for completion in graded])),
        mean_parts={name: float(np.mean([part[name] for part in parts])) for name in parts[0]},
        pass_at=pass_at,
        majority_at=majority_at,
        mean_completion_tokens=float(np.mean([len(completion.trajectory.token_ids) for completion in completions])),
        truncated_share=float(np.mean([completion.trajectory.truncated for completion in completions])),
    )


def _prompts(
    rows: Sequence[Row], tokenizer: ChatTokenizer, max_prompt_tokens: int, chat_template_kwargs: Mapping[str, Any]
) -> list[Prompt]:
    """The rows that are short enough; a prompt's group is its row's place, so dropping one changes no other's noise."""
    if not rows:
        raise UserError("there is no row to evaluate on; give the task some held-out rows")
    prompts = []
    shortest = None
    for index, row in enumerate(rows):
        ids = tokenizer.encode_chat(row.messages, **chat_template_kwargs)
        shortest = len(ids) if shortest is None else min(shortest, len(ids))
        if len(ids) <= max_prompt_tokens:
            prompts.append(Prompt(row.id, index, tuple(ids)))
    if not prompts:
        raise UserError(
            f"each of the {len(rows)} evaluation prompts is longer than max_prompt_tokens={max_prompt_tokens}; "
            f"the shortest has {shortest} tokens"
        )
    return prompts


def _draw(
    engine: Engine,
    prompts: list[Prompt],
    sampling: Sampling,
    seed: int,
    on_progress: Callable[[int, int], None] | None,
) -> list[Trajectory]:
    if engine.busy:
        raise ValueError("the engine is still drawing something else; poll until it is idle")
    total = len(prompts) * sampling.num_generations
    engine.submit(prompts, sampling, seed=seed, step=NOISE_STEP)
    trajectories: list[Trajectory] = []
    while len(trajectories) < total:
        trajectories.extend(engine.poll())
        if on_progress is not None:
            on_progress(len(trajectories), total)
    return sorted(trajectories, key=lambda trajectory: (trajectory.group_id, trajectory.completion_index))


def _stop_if_too_many_failed(
    task: Task, trajectories: Sequence[Trajectory], grades: Sequence[Grade], max_failed_share: float
) -> None:
    failures = [(t, grade.error) for t, grade in zip(trajectories, grades, strict=True) if grade.parts is None]
    if len(failures) > max_failed_share * len(grades):
        first, error = failures[0]
        raise RunStopped(
            f"{len(failures)} of {len(grades)} evaluation completions of task {task.name} could not be graded, more "
            f"than max_failed_share={max_failed_share:g} allows; the first is {first.name}:\n{error}"
        )


def _answer(task: Task, trajectory: Trajectory) -> str | None:
    answer = getattr(task, "answer", None)
    if answer is None:
        return None
    try:
        return None if (found := answer(trajectory.text)) is None else str(found)
    except Exception:  # noqa: BLE001 - it is the user's code, and its traceback becomes the message
        raise RunStopped(
            f"the answer method of task {task.name} raised on {trajectory.name}:\n{traceback.format_exc()}"
        ) from None
