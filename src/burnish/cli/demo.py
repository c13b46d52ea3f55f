"""`burnish demo`: the whole of burnish on one screen, from a model that often errs to one that errs less."""

import re
import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from rich.console import Console

    from burnish.config.schema import RunConfig
    from burnish.observe.tables import AnswerPair

ANSWERS_SHOWN = 3

START = "start"
"""Where in its run's folder the tiny demo's start model lies."""


def demo(
    settings: Annotated[
        list[str] | None, typer.Argument(metavar="[KEY=VALUE]...", help="Changes to the demo's recipe.")
    ] = None,
    tiny: Annotated[
        bool, typer.Option("--tiny", help="With a model of a million weights that is made on the spot: 90 seconds.")
    ] = False,
    seed: Annotated[
        int | None, typer.Option(min=0, max=2**31 - 1, help="Of everything drawn at random; the demo's own is 0.")
    ] = None,
    output_dir: Annotated[str | None, typer.Option(help="Folder for the run's folder; default: runs.")] = None,
) -> None:
    """Train a small model on sums with reinforcement learning and show what that changed: 10 minutes on two cores.

    Each demo gets a folder of its own, runs/demo-1, runs/demo-2, …; one that was interrupted is gone on with.
    """
    from rich.console import Console

    begun = time.monotonic()
    given = [f"seed={seed}"] if seed is not None else []
    given += [f"output_dir={output_dir}"] if output_dir is not None else []
    console = Console(highlight=False)
    config, note = choose_run("demo-tiny" if tiny else "demo", [*given, *(settings or [])])
    console.print(note, markup=False, soft_wrap=True)
    start = config.run_folder / START
    if Path(config.model) == start and not (start.expanduser() / "config.json").is_file():
        console.print("First a model of about a million weights is made, which adds but seldom carries.")
        _make_start_model(config)
    console.print(
        f"{config.steps} steps of {config.prompts_per_step} problems with {config.rollout.num_generations} answers "
        "each, scored right or wrong and nothing else:",
        soft_wrap=True,
    )

    from burnish.cli.summary import line, print_next, print_places, print_results
    from burnish.rl.loop import train
    from burnish.rl.step_metrics import peak_memory_gib

    result = train(config)
    console.print()
    print_results(result.run_folder, console)
    _print_answers(config, result.run_folder, console)
    print_places(result.run_folder, result.hf_folder, result.reward_curve, console)
    line(console, "took", f"{time.monotonic() - begun:.0f} s, {peak_memory_gib():.1f} GiB of memory at most")
    console.print("\nWhat to try next:", style="bold")
    print_next(result.run_folder, result.hf_folder, config, console)
    line(console, "your own task", "burnish train rl model=smollm2-135m-instruct task=path/to/file.py:make_task")
    line(console, "all settings", "burnish config keys")


def choose_run(recipe: str, settings: list[str]) -> tuple["RunConfig", str]:
    """The demo's run, and a sentence that says whether it is new or goes on.

    It goes on with the newest demo if that is unfinished and was begun with the same settings; else it is a new one
    under the next number. A `run_name` among the settings is taken as it is.
    """
    from burnish.cli.summary import near
    from burnish.config.differences import config_differences
    from burnish.config.loading import load_config

    plain = load_config(recipe, settings)
    output_dir = Path(plain.output_dir)

    def called(name: str) -> "RunConfig":
        made_here = [f"model={output_dir / name / START}"] if recipe == "demo-tiny" else []
        return load_config(recipe, [*made_here, f"run_name={name}", *settings])

    if plain.run_name is not None and plain.run_name != recipe:
        return called(plain.run_name), f"The demo's folder is {near(plain.run_folder)}."
    found = [re.fullmatch(rf"{recipe}-(\d+)", path.name) for path in output_dir.expanduser().glob(f"{recipe}-*")]
    newest = max((int(match[1]) for match in found if match), default=0)
    before, after = called(f"{recipe}-{newest}"), called(f"{recipe}-{newest + 1}")
    old, new = near(before.run_folder), near(after.run_folder)
    if not newest:
        return after, f"A new demo, in {new}."
    folder = before.run_folder.expanduser()
    # The picture is the last thing that a run writes.
    if (folder / "reward_curve.png").is_file():
        return after, f"{old} is a finished demo; a new one, in {new}."
    saved = folder / "config.yaml"
    changes = config_differences(load_config(saved), before) if saved.is_file() else []
    if changes:
        return after, f"{old} is unfinished and was begun with other settings ({changes[0]}); a new demo, in {new}."
    return before, f"Going on with the unfinished demo in {old}."


def _make_start_model(config: "RunConfig") -> None:
    from burnish.checkpoint.run_folder import RunFolder
    from burnish.errors import UserError
    from burnish.tasks import load_task, training_rows

    task = load_task(config.task, config.seed)
    if task.name != "arithmetic":
        raise UserError(f"the tiny demo's model knows sums only, not task={config.task.name}; type burnish train rl …")

    from burnish.rl.tiny_model import make_tiny_model

    with RunFolder(config.output_dir, config.run_folder.name) as run:
        make_tiny_model(run.path / START, training_rows(task, config.task.max_prompts), config.seed)


def _print_answers(config: "RunConfig", run_folder: Path, console: "Console") -> None:
    """Some answers before and after side by side: first of all those that were wrong and became right."""
    from burnish.cli.summary import line
    from burnish.observe.tables import answers_table

    pairs = answer_pairs(config, run_folder)
    if not pairs:
        return
    learned = sum(pair.after_correct and not pair.before_correct for pair in pairs)
    lost = sum(pair.before_correct and not pair.after_correct for pair in pairs)
    mode = "greedy" if config.evaluation.greedy else "sampled"
    line(console, "answers", f"{mode}, of {len(pairs)}: {learned} went from wrong to right, {lost} from right to wrong")
    pairs.sort(key=lambda pair: (pair.before_correct, not pair.after_correct))
    # Spread out, since neighbours may be mirror images of each other.
    shown = pairs[:: max(1, learned // ANSWERS_SHOWN)][:ANSWERS_SHOWN]
    console.print(answers_table(f"{len(shown)} of these answers", shown))


def answer_pairs(config: "RunConfig", run_folder: Path) -> list["AnswerPair"]:
    """The answers to each held-out prompt in the run's first and last evaluation; none without two evaluations."""
    from burnish.observe.metrics import read_metrics
    from burnish.observe.samples import read_samples
    from burnish.observe.tables import AnswerPair
    from burnish.tasks import Grade, load_task

    steps = [record["step"] for record in read_metrics(run_folder, "eval")]
    if len(steps) < 2:
        return []
    stream = "eval_greedy" if config.evaluation.greedy else "eval"
    golds = {row.id: str(row.fields.get("answer", "")) for row in load_task(config.task, config.seed).eval_rows()}
    before, after = (
        {sample["prompt_id"]: sample for sample in read_samples(run_folder, step, stream)}
        for step in (steps[0], steps[-1])
    )
    return [
        AnswerPair(
            prompt=before[prompt]["messages"][-1]["content"],
            gold=golds[prompt],
            before=before[prompt]["completion"],
            after=after[prompt]["completion"],
            before_correct=Grade(before[prompt]["reward_parts"], before[prompt]["reward"]).solved,
            after_correct=Grade(after[prompt]["reward_parts"], after[prompt]["reward"]).solved,
        )
        for prompt in before
        if prompt in after
    ]
