"""reasoning_gym:<name>: the package's puzzles and its own scores, or a sentence on how to install it."""

import sys
from typing import Any

import pytest

from burnish.config.schema import TaskConfig
from burnish.errors import UserError
from burnish.tasks import Completion, GradingPool, check_gold, load_task


def load(name: str, **options: Any) -> Any:
    return load_task(TaskConfig(name=f"reasoning_gym:{name}", options=options))


def test_without_the_package_the_sentence_says_what_to_type(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "reasoning_gym", None)
    with pytest.raises(UserError, match=r"pip install 'burnish\[reasoning-gym\]'"):
        load("leg_counting")


def test_puzzles_are_scored_by_their_own_scorer_in_a_worker() -> None:
    pytest.importorskip("reasoning_gym", reason="the extra reasoning-gym is not installed")
    task = load("leg_counting", train_prompts=20, eval_prompts=5, max_animals=4)
    questions = [{row.fields["question"] for row in rows} for rows in (task.train_rows(), task.eval_rows())]
    assert questions[0].isdisjoint(questions[1])
    row = task.eval_rows()[0]
    assert check_gold(task, row) is None
    with GradingPool(task, timeout_seconds=20.0) as pool:
        right, wrong = pool.grade(
            [Completion(row, f"<answer>{row.fields['answer']}</answer>", "eos", 1), Completion(row, "?", "eos", 1)]
        )
    assert right.solved
    assert wrong.parts == {"score": 0.0}


def test_unknown_puzzles_and_options_are_named() -> None:
    pytest.importorskip("reasoning_gym", reason="the extra reasoning-gym is not installed")
    with pytest.raises(UserError, match=r"no puzzles called 'leg_countin' \(did you mean 'leg_counting'\?\)"):
        load("leg_countin")
    with pytest.raises(UserError, match=r"does not take the options .*min_anmals"):
        load("leg_counting", min_anmals=3)
    with pytest.raises(UserError, match="has too few different puzzles"):
        load("coin_flip", train_prompts=1, eval_prompts=100, min_trials=1, max_trials=1)
