"""`burnish eval`: how good a model is at a task's held-out problems."""

import contextlib
import json
import math
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Annotated, Any

import typer

if TYPE_CHECKING:
    from burnish.config.schema import RunConfig
    from burnish.rl.evaluation import EvaluationResult

SETTINGS = ("task.", "grading.", "rollout.chat_template_kwargs.")
"""The keys of a run's configuration that an evaluation has too; its other settings are options."""


def evaluate(
    model: Annotated[
        str, typer.Argument(help="A Hugging Face folder, a .gguf file, a hub id, or smollm2-135m-instruct.")
    ],
    settings: Annotated[
        list[str] | None,
        typer.Argument(metavar="[KEY=VALUE]", help="task.…, grading.… and rollout.chat_template_kwargs.… settings."),
    ] = None,
    task: Annotated[
        str, typer.Option(help="arithmetic, gsm8k, openmathinstruct2, reasoning_gym:NAME, or file.py:make_task.")
    ] = "arithmetic",
    n: Annotated[int, typer.Option("--n", min=1, help="Samples per problem.")] = 1,
    k: Annotated[
        str, typer.Option("--k", help="The k of pass@k and maj@k, as in 1,4; default: powers of two up to --n.")
    ] = "",
    temperature: Annotated[float, typer.Option(help="Of the samples; 0 decodes greedily.")] = 1.0,
    top_k: Annotated[int, typer.Option(help="Draw among so many likeliest tokens; 0 is off.")] = 0,
    top_p: Annotated[float, typer.Option(help="Draw among the likeliest that reach this share; 1 is off.")] = 1.0,
    min_p: Annotated[float, typer.Option(help="Draw among those at least this likely; 0 is off.")] = 0.0,
    max_tokens: Annotated[int, typer.Option(help="Longest completion, in tokens.")] = 256,
    max_prompt_tokens: Annotated[
        int | None, typer.Option(min=1, help="Longer prompts are left out; default: what the model's context allows.")
    ] = None,
    stop: Annotated[list[str] | None, typer.Option(help="End a completion at this text; may be repeated.")] = None,
    greedy: Annotated[bool, typer.Option("--greedy", help="Also measure greedy decoding.")] = False,
    limit: Annotated[int | None, typer.Option(min=1, help="Only this many of the held-out problems.")] = None,
    seed: Annotated[int, typer.Option(min=0, max=2**31 - 1, help="The same seed draws the same samples.")] = 0,
    concurrent: Annotated[int, typer.Option(min=1, help="Completions decoded at the same time.")] = 64,
    dtype: Annotated[str, typer.Option(help="float32, bfloat16, or auto (bfloat16 on accelerators).")] = "auto",
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object in place of the table.")] = False,
) -> None:
    """Measure a model on a task: accuracy, unbiased pass@k, maj@k."""
    from burnish.errors import UserError
    from burnish.tasks import GoldChecker, GradingPool, load_task

    ks = _ks(k, n)
    if n > 1 and temperature == 0:
        raise UserError(f"--n {n} samples at temperature 0 would all be the same; add --temperature 1 or leave out --n")
    config = _config(model, task, settings or [])
    the_task = load_task(config.task, seed)
    held_out = the_task.eval_rows()[:limit]

    from burnish.rl.evaluation import evaluate as run_evaluation
    from burnish.rollout.language_model import checked_sampling, load

    drawing: dict[str, Any] = {
        "top_k": top_k,
        "top_p": top_p,
        "min_p": min_p,
        "max_tokens": max_tokens,
        "stop_strings": stop or [],
    }
    checked_sampling(temperature=temperature, **drawing)
    language_model = load(model, dtype=dtype)
    room = language_model.spec.max_position_embeddings - max_tokens
    if room < 1:
        context = language_model.spec.max_position_embeddings
        raise UserError(f"--max-tokens {max_tokens} fills the model's context of {context} tokens; give fewer")
    engine = language_model.make_engine(max_lanes=concurrent)
    grading = config.grading
    results: list[EvaluationResult] = []
    with GradingPool(the_task, grading.workers, grading.timeout_seconds) as pool:
        rows = GoldChecker(the_task, pool, grading.max_failed_share).keep(held_out)
        for samples, its_temperature in [(n, temperature)] + [(1, 0.0)] * (greedy and temperature > 0):
            with _progress("greedy" if its_temperature == 0 else "sampled") as report:
                result = run_evaluation(
                    engine,
                    the_task,
                    rows,
                    language_model.tokenizer,
                    pool,
                    samples_per_prompt=samples,
                    temperature=its_temperature,
                    max_prompt_tokens=min(room, max_prompt_tokens or room),
                    seed=seed,
                    chat_template_kwargs=config.rollout.chat_template_kwargs,
                    ks=ks if samples == n else [1],
                    max_failed_share=grading.max_failed_share,
                    on_progress=report,
                    **drawing,
                )
            results.append(result)
    if as_json:
        typer.echo(json.dumps(_record(model, the_task.name, results, len(held_out) - len(rows))))
    else:
        _print_table(f"{model} on {the_task.name}", results, len(held_out) - len(rows))


def _ks(text: str, samples: int) -> list[int]:
    """The k's asked for; none for the default."""
    from burnish.errors import UserError

    try:
        ks = sorted({int(part) for part in text.split(",")}) if text else []
    except ValueError:
        raise UserError(f"--k {text} is not a list of whole numbers; type for example --k 1,4") from None
    if ks and not 1 <= ks[0] <= ks[-1] <= samples:
        raise UserError(f"--k {text} needs at least {ks[-1]} samples per problem and k of 1 or more; add --n {ks[-1]}")
    return ks


def _config(model: str, task: str, settings: list[str]) -> "RunConfig":
    """The settings as part of a run's configuration, so that they are checked and explained like a run's."""
    from burnish.config.loading import load_config
    from burnish.errors import UserError

    for setting in settings:
        if not setting.removeprefix("--").startswith(SETTINGS):
            raise UserError(
                f"{setting} is no setting of an evaluation, which has task.…, grading.… and "
                "rollout.chat_template_kwargs.…; see burnish eval --help for its options"
            )
    return load_config(None, [f"model={model}", f"task={task}", *settings])


@contextlib.contextmanager
def _progress(name: str) -> Iterator[Callable[[int, int], None]]:
    """A bar on the terminal while completions are drawn."""
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    console = Console(stderr=True)
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    with Progress(*columns, console=console, transient=True, disable=not console.is_terminal) as bar:
        shown = bar.add_task(name, total=None)
        yield lambda done, total: bar.update(shown, completed=done, total=total)


def _print_table(title: str, results: "list[EvaluationResult]", dropped_golds: int) -> None:
    from rich.console import Console

    from burnish.observe.tables import evaluation_table

    lines: dict[str, float | int | str] = {"problems": results[0].num_problems}
    if dropped := results[0].dropped_prompts:
        lines["left out, prompt too long"] = dropped
    if dropped_golds:
        lines["left out, gold answer unusable"] = dropped_golds
    for result in results:
        mode = "greedy" if result.greedy else "sampled"
        error = result.accuracy_standard_error
        lines[f"pass@1, {mode}"] = f"{result.accuracy:.1%}" + ("" if math.isnan(error) else f" ± {error:.1%}")
        lines |= {f"pass@{k}": value for k, value in result.pass_at.items() if k > 1}
        lines |= {f"maj@{k}": value for k, value in result.majority_at.items() if k > 1}
        lines[f"mean reward, {mode}"] = f"{result.mean_reward:.3f}"
        if len(result.mean_parts) > 1:
            lines |= {f"mean {name}, {mode}": f"{value:.3f}" for name, value in result.mean_parts.items()}
        lines[f"mean tokens, {mode}"] = f"{result.mean_completion_tokens:.1f}"
        lines[f"cut at the length limit, {mode}"] = result.truncated_share
        if result.failed_grades:
            lines[f"could not be graded, {mode}"] = result.failed_grades
    Console(highlight=False).print(evaluation_table(title, lines))


def _record(model: str, task: str, results: "list[EvaluationResult]", dropped_golds: int) -> dict[str, Any]:
    record: dict[str, Any] = {
        "model": model,
        "task": task,
        "problems": results[0].num_problems,
        "dropped_golds": dropped_golds,
    }
    for result in results:
        # JSON has no NaN, which stands for the standard error of a single problem.
        record |= {name: None if math.isnan(value) else value for name, value in result.metrics().items()}
    return record
