"""Your own task: a file with a function, or an object; what is wrong with it is said in one sentence."""

import textwrap
from pathlib import Path
from typing import Any

import pytest

from burnish.config.schema import TaskConfig
from burnish.errors import UserError
from burnish.tasks import Completion, GradingPool, load_task, require_task
from misbehaving_tasks import ObedientTask

TASK = """
    from dataclasses import dataclass, field
    from wordlist import WORDS
    from burnish.tasks import Row

    @dataclass
    class Echo:
        name: str = "echo"
        prompts: int = 3
        path: str | None = None
        seed: int = 0
        reward_weights: dict = field(default_factory=lambda: {"exact": 1.0, "brevity": -0.5})

        def train_rows(self):
            return [Row(f"echo {i}", [{"role": "user", "content": WORDS[i]}], {"answer": WORDS[i]})
                    for i in range(self.prompts)]

        def eval_rows(self):
            return self.train_rows()

        def grade(self, completion):
            return {"exact": completion.text == completion.row.fields["answer"], "brevity": completion.token_count > 2}

    def make_task(prompts=3, *, seed, path=None):
        return Echo(prompts=prompts, seed=seed, path=path)

    def needs_option(size):
        return Echo(prompts=size)

    def takes_anything(**options):
        return Echo(**options)

    def returns_nothing():
        pass

    def breaks():
        raise RuntimeError("not today\\nnor tomorrow")

    ready_made = Echo(prompts=1)
"""


@pytest.fixture
def task_file(tmp_path: Path) -> Path:
    (tmp_path / "wordlist.py").write_text('WORDS = ["one", "two", "three", "four", "five"]\n')
    file = tmp_path / "echo_task.py"
    file.write_text(textwrap.dedent(TASK))
    return file


def load(reference: str, path: str | None = None, seed: int = 0, **options: Any) -> Any:
    return load_task(TaskConfig(name=reference, path=path, options=options), seed)


def test_a_function_in_a_file_makes_the_task(task_file: Path) -> None:
    task = load(f"{task_file}:make_task", path="some/data", seed=7, prompts=5)
    assert (len(task.train_rows()), task.seed, task.path) == (5, 7, "some/data")
    assert load(f"{task_file}:takes_anything", prompts=2).prompts == 2
    assert load(f"{task_file}:ready_made").prompts == 1


def test_it_is_graded_in_a_worker_although_it_is_in_no_package(task_file: Path) -> None:
    task = load(f"{task_file}:make_task")
    row = task.train_rows()[1]
    with GradingPool(task) as pool:
        assert not pool.in_process
        grades = pool.grade([Completion(row, "two", "eos", 1), Completion(row, "two", "eos", 5)])
    assert [grade.parts for grade in grades] == [{"exact": 1.0, "brevity": 0.0}, {"exact": 1.0, "brevity": 1.0}]
    assert [grade.reward for grade in grades] == [1.0, 0.5]
    assert not grades[1].solved


@pytest.mark.parametrize(
    ("attribute", "options", "message"),
    [
        ("make_tusk", {}, r"has no 'make_tusk' \(did you mean 'make_task'\?\)"),
        ("zzz", {}, "has no 'zzz'; it defines .*make_task"),
        ("make_task", {"promts": 2}, r"no option 'promts' \(did you mean 'prompts'\?\); its options are prompts"),
        ("needs_option", {}, r"needs the option 'size'; add task\.options\.size="),
        (
            "returns_nothing",
            {},
            r"what returns_nothing\(\) returned is no task: it is a NoneType without name, reward_w",
        ),
        ("breaks", {}, r"breaks\(\) failed: RuntimeError: not today nor tomorrow$"),
        ("Row", {"id": "x", "messages": []}, r"is no task: it is a Row without name, reward_weights, train_rows\(\)"),
        ("ready_made", {"prompts": 2}, "is an object and takes no options"),
    ],
)
def test_what_is_wrong_with_a_task_is_said_in_one_sentence(
    task_file: Path, attribute: str, options: dict[str, Any], message: str
) -> None:
    with pytest.raises(UserError, match=message):
        load(f"{task_file}:{attribute}", **options)


def test_a_function_without_path_refuses_one(task_file: Path) -> None:
    with pytest.raises(UserError, match="no parameter called path"):
        load(f"{task_file}:needs_option", path="data", size=2)


@pytest.mark.parametrize(
    ("source", "message"),
    [
        ("import no_such_package", "importing .* failed: ModuleNotFoundError: No module named 'no_such_package'"),
        ("def f(:", "failed: SyntaxError"),
        ("raise ValueError('a\\nb')", "failed: "),
        ("raise SystemExit(4)", "failed: SystemExit: 4"),
    ],
)
def test_an_error_at_import_is_the_last_line_of_the_sentence(tmp_path: Path, source: str, message: str) -> None:
    (tmp_path / "broken.py").write_text(source)
    with pytest.raises(UserError, match=message):
        load(f"{tmp_path / 'broken.py'}:make_task")


def test_a_missing_file_and_a_missing_name_are_told_apart(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"there is no file .*nowhere\.py"):
        load(f"{tmp_path}/nowhere.py:make_task")
    for reference in (f"{tmp_path}/nowhere.py", f"{tmp_path}/nowhere.py:"):
        with pytest.raises(UserError, match=r"names no function; write it as task=.*nowhere\.py:make_task"):
            load(reference)


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("gsm8", r"no task 'gsm8' \(did you mean 'gsm8k'\?\); the tasks are arithmetic"),
        ("reasoning_gym", r"did you mean 'reasoning_gym:<name>'"),
        ("zzz", "path/to/file.py:make_task"),
    ],
)
def test_an_unknown_name_gets_the_nearest_real_one(name: str, message: str) -> None:
    with pytest.raises(UserError, match=message):
        load(name)


def test_an_object_is_a_task_if_it_has_the_members() -> None:
    assert require_task(ObedientTask(), "the task").name == "obedient"
    with pytest.raises(UserError, match="is the class ObedientTask"):
        require_task(ObedientTask, "the task")
    for weights in ({}, {"correct": float("nan")}, {"correct": "1"}, {"correct": True}, [1.0]):
        with pytest.raises(UserError, match="reward"):
            require_task(ObedientTask(reward_weights=weights), "the task")  # type: ignore[arg-type]
    with pytest.raises(UserError, match="name"):
        require_task(ObedientTask(name=""), "the task")
