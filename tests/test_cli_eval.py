"""`burnish eval` measures a model on a task's held-out problems and prints it for people or as JSON."""

import json
from pathlib import Path

import pytest
from click.testing import Result
from typer.testing import CliRunner

from burnish.cli.main import app
from burnish.errors import RunStopped, UserError
from tiny_models import write_tiny_hf_folder

TASK = '''"""Counts letters."""

from burnish.tasks import Row


class Task:
    name = "letters"
    reward_weights = {"correct": 1.0, "short": 0.5}
    needs_workers = False

    def __init__(self, broken):
        self.broken = broken

    def train_rows(self):
        return self.eval_rows()

    def eval_rows(self):
        words = ["a", "be", "sea", "x" * 300]
        return [Row(word, [{"role": "user", "content": word}], {"answer": str(len(word))}) for word in words]

    def grade(self, completion):
        if self.broken:
            raise RuntimeError("broken grader")
        return {"correct": 1.0, "short": float(completion.stop_reason == "eos")}

    def answer(self, text):
        return text


def make_task(broken: bool = False):
    return Task(broken)
'''


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = write_tiny_hf_folder(tmp_path_factory.mktemp("tiny"), scale=0.3)
    (folder / "letters.py").write_text(TASK)
    return folder


def invoke(folder: Path, *arguments: str) -> Result:
    task = str(folder / "letters.py") + ":make_task"
    return CliRunner().invoke(
        app, ["eval", str(folder), "--task", task, "--max-tokens", "8", *arguments], catch_exceptions=False
    )


def test_json_of_a_task_of_ones_own(folder: Path) -> None:
    result = invoke(folder, "--n", "2", "--k", "1,2", "--greedy", "--limit", "4", "--json")
    assert result.exit_code == 0, result.output
    record = json.loads(result.stdout)
    assert record["task"] == "letters"
    # The fourth prompt is longer than the context.
    assert (record["problems"], record["dropped_prompts/sampled"], record["failed_grades/greedy"]) == (3, 1, 0)
    for name in ("accuracy/sampled", "accuracy/greedy", "pass@1/sampled", "pass@2/sampled", "maj@2/sampled"):
        assert record[name] == 1.0
    assert record["accuracy/sampled_standard_error"] == 0.0
    assert record["reward/sampled"] == pytest.approx(1 + 0.5 * record["reward/sampled/short"])


def test_table_for_people(folder: Path) -> None:
    result = invoke(folder, "--limit", "1")
    assert result.exit_code == 0, result.output
    assert "pass@1, sampled" in result.stdout
    assert "100.0%" in result.stdout
    assert "nan" not in result.stdout


def test_arithmetic_with_options_of_the_task(folder: Path) -> None:
    arguments = ["eval", str(folder), "task.options.max_operand=9", "--limit", "3", "--max-tokens", "8", "--json"]
    result = CliRunner().invoke(app, arguments, catch_exceptions=False)
    assert result.exit_code == 0, result.output
    record = json.loads(result.stdout)
    assert (record["task"], record["problems"]) == ("arithmetic", 3)
    assert 0 <= record["accuracy/sampled"] <= 1


def test_failing_grader_stops_with_its_traceback(folder: Path) -> None:
    with pytest.raises(RunStopped, match=r"(?s)3 of 3 .*broken grader"):
        invoke(folder, "task.options.broken=true")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["steps=3"], "steps=3 is no setting of an evaluation"),
        (["task.pth=x"], "there is no key task.pth; did you mean task.path"),
        (["--task", "gms8k"], "there is no task 'gms8k'"),
        (["--k", "4"], "add --n 4"),
        (["--k", "one"], "not a list of whole numbers"),
        (["--n", "2", "--temperature", "0"], "would all be the same"),
        (["--max-tokens", "300"], "fills the model's context of 256"),
        (["--max-prompt-tokens", "3"], r"longer than max_prompt_tokens=3"),
        (["--min-p", "1"], "min_p=1.0 must be at least 0"),
    ],
)
def test_mistakes_are_answered_in_a_sentence(folder: Path, arguments: list[str], message: str) -> None:
    with pytest.raises(UserError, match=message):
        invoke(folder, *arguments)
