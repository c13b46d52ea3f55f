"""An evaluation reports what a pencil would from the same grades, and leaves no trace in what it evaluates."""

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import pytest

import burnish
from burnish.errors import RunStopped, UserError
from burnish.rl.evaluation import EvaluationResult, default_ks, evaluate
from burnish.rollout.engine import Engine
from burnish.rollout.language_model import LanguageModel
from burnish.rollout.records import Prompt, Trajectory
from burnish.rollout.sampling import Sampling
from burnish.tasks import Completion, GradingPool, Row
from burnish.tasks.base import chat
from tiny_models import write_tiny_hf_folder


class Echo:
    """The last word is the answer; texts that say so raise or are no number."""

    name = "echo"
    needs_workers = False

    def __init__(self, **weights: float) -> None:
        self.reward_weights = weights or {"correct": 1.0}

    def grade(self, completion: Completion) -> Mapping[str, float]:
        if "raise" in completion.text:
            raise RuntimeError("the grader has had enough")
        correct = float(self.answer(completion.text) == completion.row.fields["answer"])
        return {name: correct if name == "correct" else 0.5 for name in self.reward_weights}

    def answer(self, text: str) -> str | None:
        return text.split()[-1] if text else None


class Scripted:
    """Stands for an engine and its tokenizer: the completions of each row are given."""

    def __init__(self, texts: Sequence[Sequence[str]]) -> None:
        self.texts = texts
        self.busy = False
        self.submitted: list[tuple[list[Prompt], Sampling, int, int]] = []

    def encode_chat(self, messages: list[dict[str, str]], **_: Any) -> list[int]:
        return [1] * len(messages[-1]["content"])

    def submit(self, prompts: list[Prompt], sampling: Sampling, *, seed: int, step: int) -> None:
        self.submitted.append((prompts, sampling, seed, step))
        self.busy = True
        self._finished = [
            trajectory(prompt.group_id, index, self.texts[prompt.group_id][index])
            for prompt in prompts
            for index in range(sampling.num_generations)
        ][::-1]

    def poll(self) -> list[Trajectory]:
        now, self._finished = self._finished[:2], self._finished[2:]
        self.busy = bool(self._finished)
        return now


def trajectory(group_id: int, index: int, text: str) -> Trajectory:
    count = len(text.split()) + 1
    return Trajectory(
        prompt_id=f"row {group_id}",
        group_id=group_id,
        completion_index=index,
        prompt_ids=np.ones(3, np.int32),
        token_ids=np.ones(count, np.int32),
        sampled_mask=np.ones(count, bool),
        logprobs=np.zeros(count, np.float32),
        versions=np.zeros(count, np.int32),
        turn=np.zeros(count, np.int32),
        kept_ids=None,
        stop_reason="length" if "cut" in text else "eos",
        text=text,
    )


def rows_asking(*questions: str) -> list[Row]:
    return [Row(f"row {n}", chat(None, question), {"answer": "yes"}) for n, question in enumerate(questions)]


def evaluate_texts(texts: Sequence[Sequence[str]], task: Any = None, **options: Any) -> EvaluationResult:
    task = task or Echo()
    engine = Scripted(texts)
    settings = {"samples_per_prompt": len(texts[0]), "temperature": 1.0, "max_tokens": 8, "max_prompt_tokens": 9}
    rows = rows_asking(*["question"] * len(texts))
    with GradingPool(task, in_process=True) as pool:
        return evaluate(engine, task, rows, engine, pool, seed=0, **{**settings, **options})  # type: ignore[arg-type]


def test_numbers_are_those_of_a_pencil() -> None:
    result = evaluate_texts(
        [
            ["yes", "no", "so yes", "cut no"],  # 2 of 4
            ["no", "no", "no", "never"],  # 0 of 4
            ["yes", "yes", "no", "yes"],  # 3 of 4
        ],
        Echo(correct=2.0, style=1.0),
    )
    assert result.accuracy == pytest.approx((2 / 4 + 0 + 3 / 4) / 3)
    shares = [0.5, 0.0, 0.75]
    mean = sum(shares) / 3
    variance = sum((share - mean) ** 2 for share in shares) / 2
    assert result.accuracy_standard_error == pytest.approx((variance / 3) ** 0.5)
    # Of the 6 pairs of the first problem 1 holds no solved one, of the last none.
    assert result.pass_at == pytest.approx({1: result.accuracy, 2: (5 / 6 + 0 + 1) / 3, 4: 2 / 3})
    # Pairs in order: (yes no)(yes no) tie, all wrong, (yes yes) right and (no yes) tie.
    assert result.majority_at[2] == pytest.approx((0.5 + 0 + 0.75) / 3)
    assert result.majority_at[4] == pytest.approx((0.5 + 0 + 1) / 3)
    assert result.mean_parts == pytest.approx({"correct": 5 / 12, "style": 0.5})
    assert result.mean_reward == pytest.approx(2 * 5 / 12 + 0.5)
    assert result.truncated_share == pytest.approx(1 / 12)
    assert result.mean_completion_tokens == pytest.approx((12 * 2 + 2) / 12)
    assert [(c.row_index, c.trajectory.completion_index) for c in result.completions] == [
        (row, index) for row in range(3) for index in range(4)
    ]
    assert result.completions[2].answer == "yes"


def test_metrics_of_sampled_and_greedy_fit_one_record() -> None:
    sampled = evaluate_texts([["yes", "no"], ["no", "no"]]).metrics()
    greedy = evaluate_texts([["yes"], ["no"]], temperature=0.0).metrics()
    assert sampled["accuracy/sampled"] == pytest.approx(0.25)
    assert greedy["accuracy/greedy"] == pytest.approx(0.5)
    assert sampled["reward/sampled"] == sampled["reward/sampled/correct"] == pytest.approx(0.25)
    assert not sampled.keys() & greedy.keys()


def test_without_a_part_called_correct_a_reward_of_1_solves() -> None:
    result = evaluate_texts([["yes"], ["no"]], Echo(style=1.0, form=1.0))
    assert result.accuracy == 1.0


def test_too_long_prompts_are_dropped_and_counted_and_change_no_other_noise() -> None:
    task, engine = Echo(), Scripted([["yes"], ["yes"], ["no"]])
    rows = rows_asking("short", "far too long a question", "short")
    settings = {"samples_per_prompt": 1, "temperature": 1.0, "max_tokens": 8, "max_prompt_tokens": 5, "seed": 0}
    result = evaluate(engine, task, rows, engine, GradingPool(task), **settings)  # type: ignore[arg-type]
    assert (result.dropped_prompts, result.num_problems, result.accuracy) == (1, 2, 0.5)
    assert result.metrics()["dropped_prompts/sampled"] == 1
    ((prompts, _, _, _),) = engine.submitted
    assert [prompt.group_id for prompt in prompts] == [0, 2]
    assert [completion.row.id for completion in result.completions] == ["row 0", "row 2"]
    with pytest.raises(UserError, match=r"each of the 3 .* max_prompt_tokens=4; the shortest has 5"):
        evaluate(engine, task, rows, engine, GradingPool(task), **{**settings, "max_prompt_tokens": 4})  # type: ignore[arg-type]
    with pytest.raises(UserError, match="no row to evaluate on"):
        evaluate(engine, task, [], engine, GradingPool(task), **settings)  # type: ignore[arg-type]


def test_failed_grades_are_counted_and_left_out() -> None:
    texts = [["yes", "raise", "no"], ["yes", "yes", "no"]]
    result = evaluate_texts(texts, max_failed_share=0.2)
    assert result.failed_grades == result.metrics()["failed_grades/sampled"] == 1
    assert result.accuracy == pytest.approx((1 / 2 + 2 / 3) / 2)
    # Only the second problem has three graded completions.
    assert result.pass_at[3] == 1.0
    with pytest.raises(RunStopped, match=r"(?s)1 of 6 .* completion 1 of prompt 'row 0'.*has had enough"):
        evaluate_texts(texts)


def test_an_answer_method_that_raises_is_named() -> None:
    class Broken(Echo):
        def answer(self, text: str) -> str | None:
            raise KeyError("no such answer")

        def grade(self, completion: Completion) -> Mapping[str, float]:
            return {"correct": 1.0}

    with pytest.raises(RunStopped, match=r"(?s)answer method of task echo.*no such answer"):
        evaluate_texts([["yes"]], Broken())


def test_task_without_answers_has_no_majority() -> None:
    class Mute:
        name, reward_weights, needs_workers = "mute", {"correct": 1.0}, False

        def grade(self, completion: Completion) -> Mapping[str, float]:
            return {"correct": 1.0}

    result = evaluate_texts([["yes", "yes"]], Mute())
    assert result.majority_at == {}
    assert np.isnan(result.accuracy_standard_error)


def test_default_ks() -> None:
    assert [default_ks(n) for n in (1, 2, 6, 8)] == [[1], [1, 2], [1, 2, 4, 6], [1, 2, 4, 8]]


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> LanguageModel:
    return burnish.load(write_tiny_hf_folder(tmp_path_factory.mktemp("tiny"), scale=0.3), progress=False)


@pytest.fixture(scope="module")
def engine(model: LanguageModel) -> Engine:
    return model.make_engine(max_lanes=4, steps_per_dispatch=8)


@pytest.fixture(scope="module")
def evaluate_tiny(model: LanguageModel, engine: Engine) -> Callable[..., EvaluationResult]:
    def run(**options: Any) -> EvaluationResult:
        task = Echo()
        settings = {"samples_per_prompt": 2, "temperature": 1.0, "max_tokens": 8, "max_prompt_tokens": 32, "seed": 5}
        rows = rows_asking("a", "be", "sea", "deed")
        return evaluate(engine, task, rows, model.tokenizer, GradingPool(task), **{**settings, **options})

    return run


def drawn(result: EvaluationResult) -> list[list[int]]:
    return [completion.trajectory.token_ids.tolist() for completion in result.completions]


def test_evaluation_repeats_itself_and_touches_nothing(
    model: LanguageModel, engine: Engine, evaluate_tiny: Callable[..., EvaluationResult]
) -> None:
    before = {name: np.array(array) for name, array in model.parameters.items()}
    done: list[tuple[int, int]] = []
    first = evaluate_tiny(on_progress=lambda *progress: done.append(progress))
    evaluate_tiny(temperature=0.0, samples_per_prompt=1)
    again = evaluate_tiny()
    assert drawn(first) == drawn(again)
    assert dataclasses.replace(first, completions=[]) == dataclasses.replace(again, completions=[])
    assert drawn(first) != drawn(evaluate_tiny(seed=6))
    assert done[-1] == (8, 8)
    for name, array in before.items():
        np.testing.assert_array_equal(np.array(model.parameters[name]), array)
    assert not engine.busy


def test_greedy_evaluation_is_the_greedy_answer(
    model: LanguageModel, evaluate_tiny: Callable[..., EvaluationResult]
) -> None:
    result = evaluate_tiny(temperature=0.0, samples_per_prompt=1)
    assert result.greedy
    for completion in result.completions:
        (answer,) = model.generate(completion.row.messages, max_tokens=8)
        assert completion.trajectory.token_ids.tolist() == answer.token_ids.tolist()


def test_training_draws_with_other_noise(
    model: LanguageModel, engine: Engine, evaluate_tiny: Callable[..., EvaluationResult]
) -> None:
    result = evaluate_tiny()
    prompts = [Prompt(c.row.id, c.row_index, tuple(c.trajectory.prompt_ids)) for c in result.completions[::2]]
    engine.submit(prompts, Sampling(num_generations=2, max_tokens=8), seed=5, step=0)
    trained_on = sorted(engine.run(), key=lambda t: (t.group_id, t.completion_index))
    assert all(t.token_ids.tolist() != ids for t, ids in zip(trained_on, drawn(result), strict=True))
