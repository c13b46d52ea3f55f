"""`burnish train rl` says beforehand what it would do, and afterwards what came of it and what to type next."""

import os
import shlex
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import jax
import pytest
from click.testing import Result
from typer.testing import CliRunner

from burnish.cli import main
from burnish.cli.main import app
from burnish.config.loading import dump_yaml
from burnish.errors import Interrupted, UserError
from tiny_models import write_tiny_hf_folder
from tiny_runs import tiny_model, tiny_run

ARITHMETIC = "task.options.eval_prompts=4", "steps=2", "rollout.max_prompt_tokens=80", "training.row_tokens=null"


@pytest.fixture(scope="module", autouse=True)
def _quick_compilation() -> Iterator[None]:
    """Here the programs run a few times, which does not make up for compiling them well."""
    jax.config.update("jax_disable_most_optimizations", True)
    yield
    jax.config.update("jax_disable_most_optimizations", False)


def invoke(*arguments: str) -> Result:
    return CliRunner(env={"COLUMNS": "100"}).invoke(app, ["train", "rl", *arguments], catch_exceptions=False)


@pytest.fixture
def recipe(tmp_path: Path) -> Path:
    """A recipe of two steps with a tiny random model."""
    config = tiny_run(tiny_model(tmp_path / "model"), *ARITHMETIC, "run_name=run")
    path = tmp_path / "recipe.yaml"
    path.write_text(dump_yaml(config))
    return path


def test_dry_run_says_what_would_happen_without_jax_and_leaves_nothing(recipe: Path) -> None:
    check = """if True:
        import sys
        from burnish.cli.main import run
        run_ended = None
        try:
            run()
        except SystemExit as end:
            assert not end.code, end.code
        assert not {"jax", "torch"} & set(sys.modules)
    """
    found = subprocess.run(
        [sys.executable, "-c", check, "train", "rl", str(recipe), "seed=3", "--dry-run"],
        capture_output=True, text=True, check=True, timeout=120, env={**os.environ, "COLUMNS": "100"},
    ).stdout  # fmt: skip
    assert "\nseed: 3\n" in found
    for expected in (
        "llama, 0.0M parameters, context 256",
        "arithmetic: 896 prompts to train on, 4 held out",
        "4 prompts x 4 completions of at most 8 tokens, so up to 128 tokens; 1 update",
        "before, after: 4 prompts, 1 sampled and 1 greedily",
        f"{recipe.parent / 'run'}: new",
    ):
        assert expected in found
    assert not (recipe.parent / "run").exists()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["stepz=3"], "there is no key stepz; did you mean steps?"),
        (["rollout.num_generations=1"], "type rollout.num_generations=8"),
        (["model=nowhere"], "'nowhere' is no model"),
        (["task=arithmetik"], "there is no task 'arithmetik'"),
        (["gsm8k"], "there is no recipe gsm8k"),
    ],
)
def test_dry_run_refuses_what_the_run_would_refuse(recipe: Path, arguments: list[str], message: str) -> None:
    own_recipe = [] if "=" not in arguments[0] else [str(recipe)]
    with pytest.raises(UserError) as refusal:
        invoke(*own_recipe, *arguments, "--dry-run")
    assert message in str(refusal.value)


def test_run_ends_with_what_came_of_it_and_commands_that_work(recipe: Path) -> None:
    ended = invoke(str(recipe))
    assert ended.exit_code == 0, ended.output
    assert "held-out problems, step 0 and step 2" in ended.stdout
    assert "accuracy, greedy" in ended.stdout
    lines = {line[:15].strip(): line[16:] for line in ended.stdout.splitlines()}
    run = recipe.parent / "run"
    assert Path(lines["trained model"].split()[0]) == run / "hf"
    for name in ("reward curve", "metrics", "every answer"):
        assert Path(lines[name]).exists()

    measured = CliRunner().invoke(app, [*shlex.split(lines["measure it"])[1:], "--limit", "4"], catch_exceptions=False)
    assert measured.exit_code == 0, measured.output
    assert "pass@1, greedy" in measured.stdout
    asked = CliRunner().invoke(app, [*shlex.split(lines["ask it"])[1:], "--max-tokens", "4"], catch_exceptions=False)
    assert asked.exit_code == 0, asked.output

    # The same command again finds a finished run; so does a look beforehand, which also tells what can't change.
    assert "finished" in invoke(str(recipe), "--dry-run").stdout
    assert "would go on after step 2 of 3; changed: steps: 2 → 3" in invoke(str(recipe), "steps=3", "--dry-run").stdout
    with pytest.raises(UserError, match="can't be resumed with seed: 0 → 1"):
        invoke(str(recipe), "seed=1", "--dry-run")


def test_run_that_was_asked_to_stop_says_so_and_calls_it_no_error(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def stopped(**_: object) -> None:
        raise Interrupted("stopped by SIGTERM", 143)

    monkeypatch.setattr(main, "app", stopped)
    with pytest.raises(SystemExit) as ended:
        main.run()
    assert ended.value.code == 143
    assert capsys.readouterr().err == "stopped by SIGTERM\n"


def test_eval_command_carries_every_setting_that_the_questions_depend_on(tmp_path: Path) -> None:
    from burnish.cli.summary import evaluation_arguments

    settings = ["task.options.system=''", "task.options.operators=['+', '-']", "rollout.stop_strings=['; ']"]
    config = tiny_run(write_tiny_hf_folder(tmp_path / "model"), *settings, "evaluation.max_tokens=7")
    assert evaluation_arguments(config) == [
        *("--task", "arithmetic", "--max-tokens", "7", "--greedy", "--stop", "; "),
        *('task.options.system=""', "task.options.operators=[+, '-']"),
    ]
