"""`burnish train rl`: run a recipe to its end, or on from where it was stopped."""

from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from pathlib import Path

    from rich.console import Console

    from burnish.config.schema import RunConfig

app = typer.Typer(no_args_is_help=True, help="Train a model.")


@app.callback()
def _verbs() -> None:
    """Train a model."""


@app.command(name="rl")
def reinforce(
    arguments: Annotated[
        list[str] | None,
        typer.Argument(metavar="[RECIPE] [KEY=VALUE]...", help="A packaged recipe or a YAML file, and changes to it."),
    ] = None,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Check the configuration, say what would happen, and stop.")
    ] = False,
) -> None:
    """Post-train a model with reinforcement learning (GRPO). The same command resumes a run that was stopped."""
    from rich.console import Console

    from burnish.config.loading import load_config, split_arguments

    recipe, overrides = split_arguments(arguments or [])
    config = load_config(recipe, overrides)
    console = Console(highlight=False)
    if dry_run:
        _say_what_would_happen(config, console)
        return
    from burnish.rl.loop import train

    result = train(config)
    report(result.run_folder, console)
    console.print(f"trained model   {result.hf_folder}", soft_wrap=True)
    console.print(f"reward curve    {result.reward_curve}", soft_wrap=True)
    console.print(f"next            burnish generate {result.hf_folder}", soft_wrap=True)


def report(run_folder: "Path", console: "Console") -> None:
    """Print how accuracy changed from the run's first evaluation to its last."""
    from burnish.observe.metrics import read_metrics
    from burnish.observe.tables import comparison_table

    evaluations = list(read_metrics(run_folder, "eval"))
    if len(evaluations) < 2:
        return
    shown = [
        {
            f"{mode} accuracy": record[f"accuracy/{mode}"]
            for mode in ("sampled", "greedy")
            if f"accuracy/{mode}" in record
        }
        for record in (evaluations[0], evaluations[-1])
    ]
    title = f"held-out accuracy, step {evaluations[0]['step']} and step {evaluations[-1]['step']}"
    console.print(comparison_table(title, *shown))


def _say_what_would_happen(config: "RunConfig", console: "Console") -> None:
    from burnish.config.loading import dump_yaml
    from burnish.tasks import load_task, training_rows

    task = load_task(config.task, config.seed)
    rows = len(training_rows(task, config.task.max_prompts))
    longest = config.rollout.max_prompt_tokens + config.rollout.max_tokens
    console.print(dump_yaml(config), markup=False, soft_wrap=True)
    console.print(
        f"{config.steps} steps of {config.prompts_per_step} prompts x {config.rollout.num_generations} completions, at "
        f"most {longest} tokens each; {rows} training and {len(task.eval_rows())} held-out prompts; "
        f"the run would be written to {config.run_folder}",
        soft_wrap=True,
    )
