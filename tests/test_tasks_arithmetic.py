"""Arithmetic: held-out problems are never trained on, and the last number alone decides."""

from typing import Any

import pytest

from burnish.config.schema import TaskConfig
from burnish.errors import UserError
from burnish.tasks import Completion, GradingPool, Row, Task, check_gold, load_task


def arithmetic(**options: Any) -> Task:
    return load_task(TaskConfig(name="arithmetic", options=options))


def question(row: Row) -> str:
    return str(row.fields["question"])


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"operators": ["+", "-"], "max_operand": 20, "eval_prompts": 300},
        {"operators": ["*"], "min_operand": 2, "max_operand": 12},
        {"operators": ["+", "-", "*"], "min_operand": -5, "max_operand": 9, "eval_prompts": 300},
    ],
)
def test_training_and_held_out_questions_are_all_different(options: dict[str, Any]) -> None:
    task = arithmetic(**options)
    train, held_out = ([question(row) for row in rows] for rows in (task.train_rows(), task.eval_rows()))
    assert len(held_out) == options.get("eval_prompts", len(held_out)) > 0
    assert len(set(train) | set(held_out)) == len(train) + len(held_out)


def test_no_mirror_image_of_a_held_out_question_is_trained_on() -> None:
    task = arithmetic(max_operand=24, operators=["+", "*"], eval_prompts=301)

    def unordered(rows: Any) -> set[tuple[Any, ...]]:
        return {(row.fields["operator"], *sorted((row.fields["left"], row.fields["right"]))) for row in rows}

    assert not unordered(task.train_rows()) & unordered(task.eval_rows())
    everything = {row.id for rows in (task.train_rows(), task.eval_rows()) for row in rows}
    assert len(everything) == 2 * 24 * 24 - 1  # all questions but the mirror image of the last held-out one


def test_gold_answers_are_right() -> None:
    task = arithmetic(operators=["+", "-", "*"], min_operand=-9, max_operand=9)
    for row in [*task.train_rows(), *task.eval_rows()]:
        assert int(row.fields["answer"]) == eval(question(row))
        assert check_gold(task, row) is None


def test_all_three_operators_and_the_whole_range_appear() -> None:
    rows = arithmetic(operators=["+", "-", "*"], min_operand=3, max_operand=7).train_rows()
    assert {row.fields["operator"] for row in rows} == {"+", "-", "*"}
    assert {row.fields["left"] for row in rows} == {row.fields["right"] for row in rows} == {3, 4, 5, 6, 7}


def test_the_held_out_questions_do_not_depend_on_the_seed_of_the_run() -> None:
    first, second = (load_task(TaskConfig(name="arithmetic"), seed).eval_rows() for seed in (0, 1))
    assert list(first) == list(second)
    assert list(first) != list(arithmetic(seed=1).eval_rows())


def test_the_prompt_is_made_of_messages() -> None:
    (row,) = arithmetic(min_operand=4, max_operand=5, train_prompts=1, eval_prompts=1).eval_rows()
    assert row.messages == [{"role": "user", "content": f"What is {question(row)}? Reply with the number only."}]
    (row,) = arithmetic(system="Be brief.", instruction="", train_prompts=1, eval_prompts=1).eval_rows()
    assert row.messages == [
        {"role": "system", "content": "Be brief."},
        {"role": "user", "content": f"What is {question(row)}?"},
    ]


@pytest.mark.parametrize(
    ("text", "correct"),
    [
        ("1008", 1.0),
        ("The answer is 1,008.", 1.0),
        ("24 * 42 = 1008", 1.0),
        ("<answer>7</answer> 1008", 1.0),
        ("1008, or was it 7", 0.0),
        ("-1008", 0.0),
        ("none", 0.0),
        ("", 0.0),
    ],
)
def test_the_last_number_alone_decides(text: str, correct: float) -> None:
    row = Row("row", [], {"answer": "1008"})
    (grade,) = GradingPool(arithmetic()).grade([Completion(row, text, "eos", 1)])
    assert grade.parts == {"correct": correct}
    assert grade.solved is (correct == 1.0)


def test_votes_are_numbers() -> None:
    task: Any = arithmetic()
    assert task.answer("it is 1,008.") == task.answer("1008.0") == "1008"
    assert task.answer("no idea") is None


def test_answers_are_graded_in_this_process_without_a_worker() -> None:
    pool = GradingPool(arithmetic(), workers=2)
    assert pool.in_process
    row = arithmetic().eval_rows()[0]
    grades = pool.grade([Completion(row, "Let me add them: 1 + 2 = 3. " * 10, "length", 96)] * 10)
    assert [grade.error for grade in grades] == [None] * 10


def test_a_huge_range_costs_nothing() -> None:
    task = arithmetic(min_operand=-(10**6), max_operand=10**6, operators=["+", "*"])
    assert len(task.train_rows()) == 2 * ((2 * 10**6 + 1) ** 2 - 1) - 300
    assert question(task.train_rows()[-1]) == question(task.train_rows()[len(task.train_rows()) - 1])
    assert [question(row) for row in task.train_rows()[5:8]] == [question(task.train_rows()[i]) for i in (5, 6, 7)]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"max_operand": 9, "eval_prompts": 300}, r"only 80 different questions.*raise task\.options\.max_operand"),
        ({"max_operand": 1}, "only 0 different questions"),
        ({"max_operand": 9, "train_prompts": 80}, "only 80"),
        ({"min_operand": 40}, "min_operand=40 is above max_operand=30"),
        ({"operators": ["/"]}, "'\\+', '-' or '\\*'"),
        ({"operators": []}, "operators"),
        ({"operators": ["+", "+"]}, "twice"),
        ({"max_operand": "many"}, "task.options.max_operand='many' can't be used"),
        ({"max_operan": 9}, r"no option 'max_operan' \(did you mean 'max_operand'\?\); its options are operators"),
        ({"eval_prompts": 0}, "task.options.eval_prompts=0"),
    ],
)
def test_options_that_do_not_work_are_named_with_what_to_change(options: dict[str, Any], message: str) -> None:
    with pytest.raises(UserError, match=message):
        arithmetic(**options)


def test_a_generated_task_reads_no_file() -> None:
    with pytest.raises(UserError, match="reads no file"):
        load_task(TaskConfig(name="arithmetic", path="train.jsonl"))
