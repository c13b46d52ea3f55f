"""`burnish demo` shows on one screen that a model got better, and an interrupted demo is gone on with."""

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jax
import pytest
from typer.testing import CliRunner

from burnish.cli.demo import choose_run
from burnish.cli.main import app
from burnish.config.loading import dump_yaml, load_config
from burnish.errors import UserError
from burnish.rl import tiny_model
from burnish.tasks import Row, load_task
from burnish.text.tokenizer import ChatTokenizer

SHORT = (
    *("steps=2", "prompts_per_step=4", "task.options.eval_prompts=6", "rollout.concurrent_sequences=16"),
    *("optimizer.warmup_steps=1", "tracking.tensorboard=false"),
)


OWN_TASK = '''"""A task of one's own."""

from burnish.tasks import Row


class Own:
    name = "own"
    reward_weights = {"correct": 1.0}

    def train_rows(self):
        return [Row("hi", [{"role": "user", "content": "hi"}])]

    eval_rows = train_rows

    def grade(self, completion):
        return {"correct": 1.0}
'''


@pytest.fixture(scope="module", autouse=True)
def _quick_compilation() -> Iterator[None]:
    """Here the programs run a few times, which does not make up for compiling them well."""
    jax.config.update("jax_disable_most_optimizations", True)
    yield
    jax.config.update("jax_disable_most_optimizations", False)


def evaluations(run: Path) -> list[dict[str, Any]]:
    lines = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    return [line for line in lines if line["kind"] == "eval"]


@pytest.mark.parametrize("recipe", ["demo", "demo-tiny"])
def test_each_demo_has_a_folder_of_its_own_unless_it_goes_on(recipe: str, tmp_path: Path) -> None:
    settings = [f"output_dir={tmp_path}"]

    def chosen(*more: str) -> tuple[str | None, str]:
        config, note = choose_run(recipe, [*settings, *more])
        if recipe == "demo-tiny":
            assert config.model == str(config.run_folder / "start")
        return config.run_name, note

    name, note = chosen()
    assert name == f"{recipe}-1"
    assert "A new demo" in note
    (tmp_path / name).mkdir()
    assert chosen()[0] == f"{recipe}-1"

    begun, _ = choose_run(recipe, settings)
    (tmp_path / name / "config.yaml").write_text(dump_yaml(begun))
    name, note = chosen()
    assert name == f"{recipe}-1"
    assert "Going on with the unfinished demo" in note
    name, note = chosen("seed=1")
    assert name == f"{recipe}-2"
    assert "begun with other settings (seed: 0 → 1)" in note

    (tmp_path / f"{recipe}-1" / "reward_curve.png").touch()
    (tmp_path / f"{recipe}-else").mkdir()
    name, note = chosen()
    assert name == f"{recipe}-2"
    assert "finished" in note
    assert chosen("run_name=mine")[0] == "mine"


def test_tiny_demo_shows_the_change_and_the_same_again_when_it_goes_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tiny_model, "STEPS", 3)
    taught: list[Row] = []
    lessons = tiny_model._Lessons.__init__

    def spy(self: Any, tokenizer: Any, rows: list[Row]) -> None:
        taught.extend(rows)
        lessons(self, tokenizer, rows)

    monkeypatch.setattr(tiny_model._Lessons, "__init__", spy)

    def demo() -> str:
        arguments = ["demo", "--tiny", "--seed", "5", "--output-dir", str(tmp_path), *SHORT]
        ended = CliRunner(env={"COLUMNS": "110"}).invoke(app, arguments, catch_exceptions=False)
        assert ended.exit_code == 0, ended.output
        return ended.stdout

    run = tmp_path / "demo-tiny-1"
    shown = demo()
    held_out = load_task(load_config(run / "config.yaml").task).eval_rows()
    assert taught
    assert not {row.id for row in held_out} & {row.id for row in taught}
    assert [record["step"] for record in evaluations(run)] == [0, 2]
    for expected in (
        "accuracy, sampled", "accuracy, greedy", "answers         greedy, of 6:", "What is ", "reward  ",
        str(run / "hf"), str(run / "reward_curve.png"), f"burnish generate {run / 'hf'} 'What is ",
    ):  # fmt: skip
        assert expected in shown, shown

    # Everything shown comes from the run's folder, so a demo that was cut short at its very end shows it all the same.
    (run / "reward_curve.png").unlink()
    again = demo()
    assert again.startswith("Going on with the unfinished demo")

    def results(text: str) -> str:
        return text[text.index("held-out problems, step 0") : text.index("took ")]

    assert results(again) == results(shown)
    assert not (tmp_path / "demo-tiny-2").exists()


def test_tiny_demo_refuses_other_tasks(tmp_path: Path) -> None:
    (tmp_path / "own.py").write_text(OWN_TASK)
    settings = [f"task={tmp_path / 'own.py'}:Own", f"output_dir={tmp_path / 'runs'}"]
    with pytest.raises(UserError, match=r"knows sums only, not task=.*own.py:Own"):
        CliRunner().invoke(app, ["demo", "--tiny", *settings], catch_exceptions=False)
    assert not (tmp_path / "runs").exists()


def test_tokenizer_of_the_tiny_model_writes_any_text_and_tells_first_digits_apart() -> None:
    tokenizer = tiny_model.tiny_tokenizer()
    for text in ("What is 27 + 45?", " 72", "naïve → 😀\n\ttab", "a  b<|end|>c"):
        assert tokenizer.decode(tokenizer.encode(text)) == text
    assert tokenizer.convert_ids_to_tokens(tokenizer.encode("is 27 + 4")) == ["i", "s", "Ġ2", "7", "Ġ+", "Ġ4"]
    chat = ChatTokenizer(tokenizer)
    messages = [{"role": "system", "content": "Add."}, {"role": "user", "content": "What is 10 + 11?"}]
    assert tokenizer.decode(chat.encode_chat(messages)) == "<|system|>Add.<|user|>What is 10 + 11?<|assistant|>"


def test_same_seed_makes_the_same_start_model(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tiny_model, "STEPS", 3)
    rows = load_task(load_config("demo-tiny").task).train_rows()
    one, other, another = (
        tiny_model.make_tiny_model(tmp_path / str(number), rows, seed=seed) / "model.safetensors"
        for number, seed in enumerate((0, 0, 1))
    )
    assert one.read_bytes() == other.read_bytes() != another.read_bytes()


@pytest.mark.slow
@pytest.mark.parametrize("seed", [0, 1, 2])
def test_tiny_demo_raises_accuracy_sampled_and_greedy(seed: int, tmp_path: Path) -> None:
    command = [sys.executable, "-c", "from burnish.cli.main import run; run()", "demo", "--tiny", "--seed", str(seed)]
    subprocess.run([*command, "--output-dir", str(tmp_path)], check=True, timeout=800, env={**os.environ})
    before, after = evaluations(tmp_path / "demo-tiny-1")
    assert 0.05 <= before["accuracy/sampled"] <= 0.70
    assert before["accuracy/greedy"] <= 0.85
    assert after["accuracy/sampled"] >= before["accuracy/sampled"] + 0.25
    assert after["accuracy/greedy"] >= before["accuracy/greedy"] + 0.10
