"""`burnish train rl`: run a recipe to its end, or on from where it was stopped."""

from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
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

    from burnish.cli.summary import print_next, print_places, print_results
    from burnish.config.loading import load_config, split_arguments

    config = load_config(*split_arguments(arguments or []))
    console = Console(highlight=False)
    if dry_run:
        _print_plan(config, console)
        return
    from burnish.rl.loop import train

    result = train(config)
    print_results(result.run_folder, console)
    print_places(result.run_folder, result.hf_folder, result.reward_curve, console)
    print_next(result.run_folder, result.hf_folder, config, console)


def _print_plan(config: "RunConfig", console: "Console") -> None:
    """The whole configuration, and what a run with it would do; only looks, and needs no jax."""
    from burnish.cli.summary import line, near
    from burnish.config.loading import dump_yaml
    from burnish.tasks import load_task, training_rows

    # All that can be refused is refused before anything is printed.
    folder, model = _folder_state(config), _model(config)
    task = load_task(config.task, config.seed)
    trained, held_out = len(training_rows(task, config.task.max_prompts)), len(task.eval_rows())
    console.print(dump_yaml(config), markup=False, soft_wrap=True)
    line(console, "model", model)
    line(console, "task", f"{task.name}: {trained:,} prompts to train on, {held_out:,} held out")
    completions, longest = config.completions_per_step, config.rollout.max_tokens
    updates = config.algorithm.updates_per_rollout * config.algorithm.epochs_per_rollout
    line(
        console,
        "each step",
        f"{config.prompts_per_step} prompts x {config.rollout.num_generations} completions of at most {longest:,} "
        f"tokens, so up to {completions * longest:,} tokens; {updates} update{'s' if updates > 1 else ''}",
    )
    prompts = config.steps * config.prompts_per_step
    times = f"{prompts / trained:.1f} times through the task"
    line(console, "all steps", f"{config.steps:,}, with {prompts:,} prompts: {times}")
    line(console, "evaluation", _evaluations(config, held_out))
    line(console, "run folder", f"{near(config.run_folder)}: {folder}")


def _folder_state(config: "RunConfig") -> str:
    """What the run's folder holds already; UserError if this run can't go on from it."""
    from burnish.checkpoint.run_folder import newest_checkpoint
    from burnish.config.differences import check_resume
    from burnish.config.loading import load_config

    folder = config.run_folder.expanduser()
    saved = folder / "config.yaml"
    if not saved.is_file():
        return "new"
    changes = [str(change) for change in check_resume(load_config(saved), config)]
    step = newest_checkpoint(folder)
    state = "begun, nothing saved yet" if step is None else f"would go on after step {step} of {config.steps}"
    if step == config.steps:
        state = "finished, would only be evaluated and exported"
    return state + (f"; changed: {', '.join(changes)}" if changes else "")


def _model(config: "RunConfig") -> str:
    """The model's size, where that takes no download."""
    from burnish.model.spec import ModelSpec
    from burnish.weights.sources import may_need_download, open_source

    if may_need_download(config.model):
        return f"{config.model} (not opened here: it may have to be downloaded)"
    spec = ModelSpec.from_config(open_source(config.model).config)
    size, context = spec.num_parameters / 1e6, spec.max_position_embeddings
    return f"{config.model}: {spec.family}, {size:,.1f}M parameters, context {context:,}"


def _evaluations(config: "RunConfig", held_out: int) -> str:
    settings = config.evaluation
    moments = ["before"] * settings.before + ["after"] * settings.after
    moments += [f"every {settings.every} steps"] * (settings.every > 0)
    if not moments:
        return "none"
    greedy = " and 1 greedily" if settings.greedy else ""
    problems = min(settings.prompts, held_out)
    return f"{', '.join(moments)}: {problems} prompts, {settings.samples_per_prompt} sampled{greedy}"
