"""What a finished run tells on the terminal: accuracy before and after, the reward, where things lie, what to do next.

Everything is read from the run's folder, so that it is the same whether the run was done in one go or resumed.
"""

import shlex
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from rich.console import Console

    from burnish.config.schema import RunConfig

MODES = ("sampled", "greedy")
EMPTY = '""'
_LONGEST_PROMPT = 80
"""Characters of a prompt that are still good to type after a command."""


def print_results(run_folder: Path, console: "Console") -> None:
    """Held-out accuracy from the run's first evaluation to its last, and the reward in between."""
    from burnish.observe.metrics import read_metrics
    from burnish.observe.reward_curve import REWARD
    from burnish.observe.sparkline import means, sparkline
    from burnish.observe.tables import comparison_table, evaluation_table

    evaluations = list(read_metrics(run_folder, "eval"))
    if len(evaluations) > 1:
        first, last = evaluations[0], evaluations[-1]
        title = f"held-out problems, step {first['step']} and step {last['step']}"
        console.print(comparison_table(title, _results(first), _results(last)))
    elif evaluations:
        title = f"held-out problems, step {evaluations[0]['step']}"
        console.print(evaluation_table(title, _results(evaluations[0])))
    rewards = [record[REWARD] for record in read_metrics(run_folder, "train") if record.get(REWARD) is not None]
    if rewards:
        ends = means(rewards, 10)
        line(console, "reward", f"{ends[0]:.2f} {sparkline(rewards)} {ends[-1]:.2f}")


def print_places(run_folder: Path, hf_folder: Path, reward_curve: Path, console: "Console") -> None:
    """Where the run's results lie."""
    line(console, "trained model", f"{near(hf_folder)}  (a Hugging Face folder)")
    line(console, "reward curve", near(reward_curve))
    line(console, "metrics", near(run_folder / "metrics.jsonl"))
    line(console, "every answer", near(run_folder / "samples"))


def print_next(run_folder: Path, hf_folder: Path, config: "RunConfig", console: "Console") -> None:
    """Commands that go on from here."""
    line(console, "ask it", shlex.join(["burnish", "generate", near(hf_folder), *_question(run_folder)]))
    line(console, "measure it", shlex.join(["burnish", "eval", near(hf_folder), *evaluation_arguments(config)]))


def evaluation_arguments(config: "RunConfig") -> list[str]:
    """What `burnish eval` needs besides the model to ask the run's held-out problems as the run did."""
    from burnish.config.yaml_text import one_line

    task = config.task
    settings = {f"task.options.{key}": value for key, value in task.options.items()}
    settings |= {"task.path": task.path} if task.path is not None else {}
    template = config.rollout.chat_template_kwargs
    settings |= {f"rollout.chat_template_kwargs.{key}": value for key, value in template.items()}
    max_tokens = config.evaluation.max_tokens or config.rollout.max_tokens
    stops = [argument for stop in config.rollout.stop_strings for argument in ("--stop", stop)]
    return [
        *("--task", task.name, "--max-tokens", str(max_tokens), "--greedy", *stops),
        # Quotes of the other kind than a shell's, which would need quoting themselves.
        *(f"{key}={one_line(value) if value != '' else EMPTY}" for key, value in settings.items()),
    ]


def line(console: "Console", name: str, text: str) -> None:
    """One `name  text` line, never broken, so that a path or a command can be copied."""
    from rich.text import Text

    console.print(Text.assemble((f"{name:<15} ", "dim"), text), soft_wrap=True)


def near(path: Path) -> str:
    """The path as one would type it from here."""
    absolute, here = path.absolute(), Path.cwd()
    return str(absolute.relative_to(here)) if absolute.is_relative_to(here) else str(absolute)


def _results(evaluation: dict[str, Any]) -> dict[str, float | int | str]:
    results: dict[str, float | int | str] = {}
    for mode in MODES:
        accuracy, reward = (evaluation.get(f"{name}/{mode}") for name in ("accuracy", "reward"))
        if accuracy is None:
            continue
        results[f"accuracy, {mode}"] = accuracy
        if reward is not None and reward != accuracy:
            results[f"mean reward, {mode}"] = f"{reward:.3f}"
        results[f"mean tokens, {mode}"] = f"{evaluation[f'completion_tokens/{mode}']:.1f}"
    return results


def _question(run_folder: Path) -> list[str]:
    """A held-out prompt that is short enough to be typed, as arguments of `burnish generate`."""
    from burnish.observe.samples import SAMPLES_FOLDER, read_samples

    evaluated = sorted((run_folder / SAMPLES_FOLDER).glob("eval_0*.jsonl"))
    samples = read_samples(run_folder, int(evaluated[-1].stem.rpartition("_")[2]), "eval") if evaluated else ()
    for sample in samples:
        content = {message["role"]: message["content"] for message in sample["messages"]}
        prompt, system = content.get("user", ""), content.get("system")
        one_turn = len(sample["messages"]) == len(content) and content.keys() <= {"system", "user"}
        if one_turn and 0 < len(prompt) <= _LONGEST_PROMPT and "\n" not in prompt + (system or ""):
            return [prompt, *(["--system", system] if system else [])]
    return []
