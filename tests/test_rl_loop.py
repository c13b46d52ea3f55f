"""A run keeps its promises: all it did is on disk, evaluating changes nothing, and one that was stopped in any way and
resumed leaves the same bits as one that was not.
"""

import itertools
import json
import os
import shutil
import signal
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest

import burnish
from burnish.checkpoint.run_folder import RunFolder
from burnish.config.loading import load_config
from burnish.errors import Interrupted, RunStopped, UserError
from burnish.rl.loop import RunResult, train
from burnish.rl.trainer import Trainer
from burnish.rl.update import update
from burnish.rollout.decode import decode
from burnish.tasks import Completion, Grade, GradingPool, Row
from tiny_models import write_tiny_hf_folder
from tiny_runs import (
    GENERATIONS,
    PROMPTS_PER_STEP,
    ParityTask,
    assert_runs_equal,
    files,
    records,
    samples,
    tiny_model,
    tiny_run,
)

EVERY_SECOND_STEP = "checkpoint.every=2", "evaluation.every=2"
UNEVALUATED = "evaluation.before=false", "evaluation.after=false"
TRAIN_METRICS = {
    *("reward/mean", "reward/std", "reward/correct/mean", "reward/correct/std", "reward/short/mean"),
    *("groups/all_solved", "groups/none_solved", "groups/partly_solved", "groups/frac_zero_advantage"),
    *("completion_tokens/mean", "completion_tokens/max", "truncated_share", "failed_grades", "prompts/dropped"),
    *("entropy", "sampler_kl", "logprob_difference/mean", "logprob_difference/max", "ratio"),
    *("clip_share_low", "clip_share_high", "loss", "grad_norm", "share_of_weights_changed", "learning_rate", "updates"),
    *("time/rollout_seconds", "time/grading_seconds", "time/update_seconds", "time/step_seconds"),
    *("perf/rollout_tokens_per_second", "perf/update_tokens_per_second", "perf/peak_memory_gib"),
}
EVAL_METRICS = {
    f"{name}/{mode}"
    for name in ("accuracy", "reward", "pass@1", "completion_tokens", "truncated_share", "dropped_prompts")
    for mode in ("sampled", "greedy")
}


@pytest.fixture(scope="module", autouse=True)
def _quick_compilation() -> Iterator[None]:
    """A tiny model's gradient takes ten seconds to compile well and four to compile."""
    jax.config.update("jax_disable_most_optimizations", True)
    yield
    jax.config.update("jax_disable_most_optimizations", False)


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_model(tmp_path_factory.mktemp("runs") / "tiny")


@pytest.fixture(scope="module")
def finished(model: Path) -> RunResult:
    """A run of four steps that nothing disturbed. Nobody may write to its folder."""
    return train(tiny_run(model, "run_name=finished", *EVERY_SECOND_STEP), ParityTask())


@pytest.fixture
def copied(finished: RunResult, tmp_path: Path) -> Path:
    """A copy of it in another output_dir."""
    shutil.copytree(finished.run_folder, tmp_path / "finished")
    return tmp_path


def stop_with_sigterm(completion: Completion) -> None:
    signal.raise_signal(signal.SIGTERM)


def once(action: Any, when: Any) -> Any:
    """A `before_grading` that acts at the first completion for which `when` holds."""
    done = []

    def before_grading(completion: Completion) -> Any:
        if not done and when(completion):
            done.append(completion)
            return action(completion)
        return None

    return before_grading


class Graded:
    """Counts completions, so that a test can act at the n-th."""

    def __init__(self, number: int) -> None:
        self.left = number

    def __call__(self, completion: Completion) -> bool:
        self.left -= 1
        return self.left < 0


# What a run leaves


def test_run_folder_holds_all_that_is_promised(finished):
    folder = finished.run_folder
    assert {path.name for path in folder.iterdir() if not path.name.startswith(".")} == {
        *("config.yaml", "metrics.jsonl", "samples", "checkpoints", "hf", "reward_curve.png"),
    }
    assert {path.name for path in (folder / "checkpoints" / "actor").iterdir()} == {"2", "4"}
    for step in ("2", "4"):
        parts = {path.name for path in (folder / "checkpoints" / "actor" / step).iterdir() if path.is_dir()}
        assert parts >= {"model_params", "optimizer_state", "loop_state"}
    config = load_config(folder / "config.yaml")
    # The task was given as an object: its name is what the run remembers of it.
    assert config.task.name == ParityTask.name
    given = tiny_run(Path(config.model), "run_name=finished", *EVERY_SECOND_STEP)
    assert config == given.model_copy(update={"task": given.task.model_copy(update={"name": ParityTask.name})})
    assert (finished.hf_folder, finished.reward_curve) == (folder / "hf", folder / "reward_curve.png")
    assert sorted(finished.evaluations) == [0, 2, 4]


def test_every_step_and_evaluation_has_its_line_of_metrics(finished):
    lines = [json.loads(line) for line in (finished.run_folder / "metrics.jsonl").read_text().splitlines()]
    order = [(0, "eval"), (1, "train"), (2, "train"), (2, "eval"), (3, "train"), (4, "train"), (4, "eval")]
    assert [(line["step"], line["kind"]) for line in lines] == order
    for line in lines:
        assert line.keys() >= (TRAIN_METRICS if line["kind"] == "train" else EVAL_METRICS)
    trained = [line for line in lines if line["kind"] == "train"]
    assert all(line["share_of_weights_changed"] > 0.9 for line in trained)
    assert all(line["logprob_difference/max"] < 1e-4 for line in trained)
    assert any(line["groups/partly_solved"] for line in trained)
    measured = finished.evaluations[4]
    assert lines[-1]["accuracy/sampled"] == measured[0].accuracy
    assert lines[-1]["accuracy/greedy"] == measured[1].accuracy


def test_samples_hold_every_completion_and_agree_with_the_metrics(finished):
    task = ParityTask()
    for line in records(finished.run_folder, "train"):
        written = samples(finished.run_folder, f"step_{line['step']:06d}")
        places = [(sample["group_id"], sample["completion_index"]) for sample in written]
        assert places == [(group, index) for group in range(PROMPTS_PER_STEP) for index in range(GENERATIONS)]
        for sample in written:
            assert sample["reward_parts"] == regraded(task, sample)
            assert sample["reward"] == sample["reward_parts"]["correct"] + 0.25 * sample["reward_parts"]["short"]
            assert len(sample["logprobs"]) == len(sample["token_ids"])
            assert (sample["stop_reason"] == "length") == (sample["token_ids"][-1] not in (0, 2))
        rewards = np.array([sample["reward"] for sample in written]).reshape(PROMPTS_PER_STEP, GENERATIONS)
        assert line["reward/mean"] == pytest.approx(rewards.mean())
        advantages = (rewards - rewards.mean(1, keepdims=True)) / (rewards.std(1, ddof=1, keepdims=True) + 1e-6)
        np.testing.assert_allclose([sample["advantage"] for sample in written], advantages.ravel(), atol=1e-6)
        assert line["completion_tokens/max"] == max(len(sample["token_ids"]) for sample in written)
    assert len(samples(finished.run_folder, "eval_000004")) == 4
    assert len(samples(finished.run_folder, "eval_greedy_000004")) == 4


def regraded(task: ParityTask, sample: Mapping[str, Any]) -> Mapping[str, float]:
    row = next(row for row in task.train_rows() if row.id == sample["prompt_id"])
    return task.grade(Completion(row, sample["completion"], sample["stop_reason"], len(sample["token_ids"])))


def test_prompts_that_are_too_long_are_dropped_and_counted(finished):
    # Sixteen prompts out of ten rows: 0 to 9 without 3 and 8, twice.
    asked = [sample["prompt_id"] for step in range(1, 5) for sample in samples(finished.run_folder, f"step_{step:06d}")]
    assert set(asked) == {f"train {index}" for index in (0, 1, 2, 4, 5, 6, 7, 9)}
    dropped = [line["prompts/dropped"] for line in records(finished.run_folder, "train")]
    assert sum(dropped) in (3, 4), "the last rows of the second epoch may not have been looked at"


def test_exported_model_loads_with_its_tokenizer_and_differs_from_the_start(finished, model):
    trained = burnish.load(finished.hf_folder, progress=False)
    prompt = trained.tokenizer.encode_chat([{"role": "user", "content": "say ab"}])
    start = burnish.load(model, progress=False)
    assert prompt == start.tokenizer.encode_chat([{"role": "user", "content": "say ab"}])
    assert np.abs(trained.logits(prompt) - start.logits(prompt)).max() > 0.1
    assert files(finished.hf_folder).keys() == files(model).keys()


# Runs that must be equal


def test_evaluation_leaves_training_as_it_was(finished, model, tmp_path):
    without = train(tiny_run(model, f"output_dir={tmp_path}", *UNEVALUATED), ParityTask())
    assert records(without.run_folder) == records(finished.run_folder, "train")
    assert files(without.hf_folder) == files(finished.hf_folder)


def test_run_in_two_parts_equals_one_in_one_and_says_what_changed(finished, model, tmp_path, capsys):
    both = f"output_dir={tmp_path}", "run_name=parts", *EVERY_SECOND_STEP
    train(tiny_run(model, *both, "steps=2"), ParityTask())
    assert "steps" not in capsys.readouterr().err.replace("step ", "")
    compiled = decode._cache_size(), update._cache_size()
    second = train(tiny_run(model, *both, "steps=4"), ParityTask())
    # Every run has an optimizer of its own, and so one compilation of the update.
    assert (decode._cache_size(), update._cache_size() - 1) == compiled, "a resumed run compiled something else"
    assert "changed since the run started: steps: 2 → 4" in capsys.readouterr().err
    assert sorted(second.evaluations) == [4]
    assert_runs_equal(second.run_folder, finished.run_folder)


def test_run_stopped_by_signals_and_a_broken_grader_equals_one_that_was_not(finished, model, tmp_path, capsys):
    config = tiny_run(model, f"output_dir={tmp_path}", "run_name=stopped", *EVERY_SECOND_STEP)
    folder, step_2 = tmp_path / "stopped", Graded(8 + 16 + 4)
    with pytest.raises(Interrupted, match="SIGTERM") as stopped:
        train(config, ParityTask(before_grading=once(stop_with_sigterm, step_2)))
    assert stopped.value.exit_code == 128 + signal.SIGTERM
    assert "step 1 is saved" in capsys.readouterr().err
    assert [line["step"] for line in records(folder)] == [0, 1]

    def broken(completion: Completion) -> Any:
        raise RuntimeError("the grader has had enough")

    with pytest.raises(RunStopped, match=r"step 4: 1 of 16 (.|\n)*RuntimeError: the grader has had enough"):
        train(config, ParityTask(before_grading=once(broken, Graded(16 + 8 + 16 + 5))))
    # The checkpoint is that of step 2, so step 3 is done again.
    with pytest.raises(Interrupted):
        train(config, ParityTask(before_grading=once(stop_with_sigterm, Graded(32 + 2))))
    assert records(folder)[-1] == records(finished.run_folder)[-2], "step 4 is done and its evaluation is not"
    resumed = train(config, ParityTask())
    assert sorted(resumed.evaluations) == [4]
    assert_runs_equal(folder, finished.run_folder)


def test_finished_run_called_again_only_mends_its_export(finished, copied, model):
    def grading(completion: Completion) -> None:
        pytest.fail("a finished run graded something")

    folder = copied / "finished"
    shutil.rmtree(folder / "hf")
    before = {name: content for name, content in files(folder).items() if name.startswith(("samples", "metrics"))}
    again = train(
        tiny_run(model, "run_name=finished", f"output_dir={copied}", *EVERY_SECOND_STEP),
        ParityTask(before_grading=grading),
    )
    assert again.evaluations == {}
    assert before.items() <= files(folder).items()
    assert_runs_equal(folder, finished.run_folder)


# What is refused


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        (
            ["optimizer.learning_rate=0.5"],
            r"optimizer\.learning_rate: 0\.01 → 0\.5; type optimizer\.learning_rate=0\.01",
        ),
        (["seed=7", "rollout.max_tokens=4"], r"seed: 0 → 7; rollout\.max_tokens: 8 → 4"),
        (["steps=3"], r"checkpoint of step 4, beyond steps=3; type steps=4"),
        (["checkpoint.resume=false"], r"already holds a run"),
    ],
)
def test_resume_refuses_what_would_be_another_run(finished, model, changes, message):
    config = tiny_run(model, "run_name=finished", *EVERY_SECOND_STEP, *changes)
    before = files(finished.run_folder)
    with pytest.raises(UserError, match=message):
        train(config, ParityTask())
    assert files(finished.run_folder) == before


def test_two_runs_do_not_share_a_folder(model, tmp_path):
    with RunFolder(tmp_path, "mine"), pytest.raises(UserError, match=rf"another process \(pid {os.getpid()}"):
        train(tiny_run(model, f"output_dir={tmp_path}", "run_name=mine"), ParityTask())


def test_model_that_can_not_hold_prompt_and_completion_is_refused(tmp_path):
    small = write_tiny_hf_folder(tmp_path / "small", max_position_embeddings=16)
    with pytest.raises(UserError, match=r"make 32 tokens, more than the model's context of 16"):
        train(tiny_run(small), ParityTask())


# Groups that teach nothing, and graders that fail


def test_groups_of_equal_rewards_are_replaced_until_none_is_found(model, tmp_path):
    def equal(completion: Completion) -> Mapping[str, float]:
        return {"correct": 0.0, "short": 0.0}

    config = tiny_run(
        model,
        f"output_dir={tmp_path}",
        "steps=2",
        "algorithm.zero_advantage_groups=resample",
        "algorithm.max_resample_rounds=2",
        *UNEVALUATED,
    )
    result = train(config, ParityTask(before_grading=equal))
    for line in records(result.run_folder, "train"):
        written = samples(result.run_folder, f"step_{line['step']:06d}")
        assert len(written) == 3 * PROMPTS_PER_STEP * GENERATIONS
        assert len({sample["group_id"] for sample in written}) == 3 * PROMPTS_PER_STEP
        assert all(sample["advantage"] == 0.0 for sample in written)
        assert (line["updates"], line["groups/frac_zero_advantage"]) == (0, 1.0)
    start, end = (burnish.load(folder, progress=False).parameters for folder in (model, result.hf_folder))
    for name, weights in start.items():
        np.testing.assert_array_equal(end[name], weights, err_msg=name)


def test_only_as_many_groups_are_drawn_again_as_taught_nothing(model, tmp_path):
    def equal_for_even_rows(completion: Completion) -> Mapping[str, float] | None:
        odd = int(completion.row.id.split()[1]) % 2
        return None if odd else {"correct": 1.0, "short": 1.0}

    config = tiny_run(
        model,
        f"output_dir={tmp_path}",
        "steps=1",
        "algorithm.zero_advantage_groups=resample",
        "algorithm.max_resample_rounds=9",
        *UNEVALUATED,
    )
    result = train(config, ParityTask(before_grading=equal_for_even_rows))
    (line,) = records(result.run_folder, "train")
    groups: dict[int, list[dict[str, Any]]] = {}
    for sample in samples(result.run_folder, "step_000001"):
        groups.setdefault(sample["group_id"], []).append(sample)
    teaching = [group for group in groups.values() if any(sample["advantage"] for sample in group)]
    assert len(teaching) == PROMPTS_PER_STEP < len(groups)
    assert line["groups/frac_zero_advantage"] == pytest.approx(1 - len(teaching) / len(groups))
    assert line["updates"] == 1


def test_completion_whose_grader_fails_leaves_its_group_and_is_counted(model, tmp_path):
    def raises() -> Any:
        raise ValueError("no idea")

    failures = {
        "train 1": lambda completion: {"correct": float("nan"), "short": 0.0},
        "train 4": lambda completion: raises,
        "train 6": lambda completion: lambda: None,
    }
    first_of_row: dict[str, Any] = {}

    def before_grading(completion: Completion) -> Any:
        name = completion.row.id
        if name in failures and first_of_row.setdefault(name, completion) is completion:
            return failures[name](completion)
        return None

    config = tiny_run(model, f"output_dir={tmp_path}", "steps=2", "grading.max_failed_share=0.2", *UNEVALUATED)
    result = train(config, ParityTask(before_grading=before_grading))
    written = [sample for step in (1, 2) for sample in samples(result.run_folder, f"step_{step:06d}")]
    failed = {sample["prompt_id"]: sample for sample in written if sample["reward_parts"] is None}
    assert failed.keys() == failures.keys()
    assert sum(line["failed_grades"] for line in records(result.run_folder, "train")) == 3
    for name, told in (("train 1", "nan"), ("train 4", "ValueError: no idea"), ("train 6", "None")):
        assert told in failed[name]["grade_error"]
        assert failed[name]["advantage"] is None
        others = [s for s in written if s["prompt_id"] == name and s["reward_parts"] is not None]
        rewards = np.array([sample["reward"] for sample in others])
        assert len(others) == GENERATIONS - 1
        if np.ptp(rewards) > 0:
            advantages = (rewards - rewards.mean()) / (rewards.std(ddof=1) + 1e-6)
            np.testing.assert_allclose([sample["advantage"] for sample in others], advantages, atol=1e-6)


GOLD = "bb"


class GoldTask(ParityTask):
    """Its rows have gold answers, which are graded before a row is asked."""

    def gold_text(self, row: Row) -> str:
        return GOLD


def grading_that_times_out(whenever: Callable[[Completion], bool]) -> Any:
    """Stands for `GradingPool.grade`; waiting for graders that hang is tested elsewhere."""
    honest = GradingPool.grade

    def grade(pool: GradingPool, completions: Sequence[Completion]) -> list[Grade]:
        grades = honest(pool, completions)
        late = Grade(None, None, "timed out after 10 s", timed_out=True)
        return [late if whenever(one) else grade for one, grade in zip(completions, grades, strict=True)]

    return grade


def test_grade_that_timed_out_is_timed_out_when_its_part_is_done_again(finished, model, tmp_path, monkeypatch):
    first, second = list(dict.fromkeys(s["prompt_id"] for s in samples(finished.run_folder, "step_000001")))[:2]
    slow = {("held out 1", False), ("held out 2", True), (first, True), (second, False)}

    def first_of_each(completion: Completion) -> bool:
        place = completion.row.id, completion.text == GOLD
        late = place in left
        left.discard(place)
        return late

    run = tiny_run(model, f"output_dir={tmp_path}", "steps=2", "checkpoint.every=1", "grading.max_failed_share=0.4")
    undisturbed, replayed = (run.model_copy(update={"run_name": name}) for name in ("undisturbed", "replayed"))
    with monkeypatch.context() as patch:
        patch.setattr(GradingPool, "grade", grading_that_times_out(first_of_each))
        left = set(slow)
        expected = train(undisturbed, GoldTask()).run_folder
        patch.setattr(Trainer, "train", killed_at_call(1))
        left = set(slow)
        with pytest.raises(KeyboardInterrupt):
            train(replayed, GoldTask())
    assert not left
    with monkeypatch.context() as patch:
        patch.setattr(Trainer, "train", killed_at_call(2))
        with pytest.raises(KeyboardInterrupt):
            train(replayed, GoldTask())
    found = train(replayed, GoldTask()).run_folder
    failed = [sample["prompt_id"] for sample in samples(found, "step_000001") if sample["grade_error"]]
    assert failed == [second]
    assert [line["failed_grades/sampled"] for line in records(found, "eval")] == [1, 0]
    for step in (0, 2):
        asked = {sample["prompt_id"] for sample in samples(found, f"eval_{step:06d}")}
        assert asked == {"held out 0", "held out 1", "held out 3"}
    assert records(found, "train")[0]["prompts/gold_failures"] == 1
    assert_runs_equal(found, expected)


def test_timeouts_that_stopped_a_run_are_not_held_against_a_mended_grader(model, tmp_path, monkeypatch):
    config = tiny_run(model, f"output_dir={tmp_path}", "steps=1", *UNEVALUATED)
    with monkeypatch.context() as patch:
        patch.setattr(GradingPool, "grade", grading_that_times_out(lambda completion: "train" in completion.row.id))
        with pytest.raises(RunStopped, match=r"16 of 16(.|\n)*timed out after 10 s"):
            train(config, ParityTask())
    assert records(train(config, ParityTask()).run_folder)[0]["failed_grades"] == 0


def killed_at_call(number: int) -> Any:
    """Stands for `Trainer.train`."""
    honest, calls = Trainer.train, itertools.count(1)

    def dying(*args: Any) -> Any:
        if next(calls) == number:
            raise KeyboardInterrupt
        return honest(*args)

    return dying
