"""The picture of a run: reward at every step, smoothed, and accuracy on held-out prompts, from its metrics.jsonl."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from burnish.errors import UserError
from burnish.observe.metrics import METRICS_FILE, read_metrics

if TYPE_CHECKING:
    from matplotlib.axes import Axes

REWARD = "reward/mean"
"""The metric of `train` records that is drawn as a curve."""

INK, REWARD_COLOR = "#3b3b3b", "#2a6f97"


class _Accuracy(NamedTuple):
    metric: str
    label: str
    color: str
    marker: str


ACCURACIES = (
    _Accuracy("accuracy/greedy", "held-out accuracy, greedy", "#7b4f9d", "D"),
    _Accuracy("accuracy/sampled", "held-out accuracy, sampled", "#d1495b", "o"),
)
"""The metrics of `eval` records that are drawn as points."""


def draw_reward_curve(run_folder: Path, picture: Path, title: str = "") -> Path:
    """Draw the run's reward and accuracy into `picture` (.png, .svg or .pdf) and return its path."""
    train = [record for record in read_metrics(run_folder, "train") if record.get(REWARD) is not None]
    if not train:
        raise UserError(f"{run_folder / METRICS_FILE} holds no step with a reward yet; let the run finish a step first")

    # The figure is made without pyplot, so that no window system is looked for and nothing outlives this call.
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(8, 4.5), dpi=160, layout="constrained")
    FigureCanvasAgg(figure)
    axes = figure.add_subplot()
    rewards = [record[REWARD] for record in train]
    _draw_rewards(axes, [record["step"] for record in train], rewards)
    rewards_are_shares = all(0 <= reward <= 1 for reward in rewards)
    accuracy_axes = axes if rewards_are_shares else axes.twinx()
    highest = _draw_accuracies(accuracy_axes, list(read_metrics(run_folder, "eval")))

    if rewards_are_shares:
        _scale_as_share(axes, max(highest, *rewards))
        axes.set_ylabel("reward, accuracy" if highest else "reward")
    else:
        axes.set_ylabel("reward")
        _scale_as_share(accuracy_axes, highest)
        accuracy_axes.set_ylabel("accuracy")
    for drawn_on in {axes, accuracy_axes}:
        _style(drawn_on)
    axes.set_xlabel("step", color=INK)
    axes.set_title(title or run_folder.name, loc="left", fontsize=13, fontweight="bold", color=INK, pad=12)
    figure.legend(loc="outside lower center", ncols=2, frameon=False, fontsize=9, labelcolor=INK)
    picture.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(picture)
    return picture


def smoothed(values: Sequence[float], span: int) -> list[float]:
    """Mean of each value and its `span` // 2 neighbours on either side, as far as there are any."""
    half = span // 2
    windows = [values[max(0, index - half) : index + half + 1] for index in range(len(values))]
    return [sum(window) / len(window) for window in windows]


def _draw_rewards(axes: Axes, steps: list[int], rewards: list[float]) -> None:
    from matplotlib.ticker import MaxNLocator

    span = max(3, len(rewards) // 8) | 1
    axes.plot(steps, rewards, color=REWARD_COLOR, alpha=0.35, linewidth=1.1, label="reward of each step")
    axes.plot(steps, smoothed(rewards, span), color=REWARD_COLOR, linewidth=2.6, label=f"mean of {span} steps")
    axes.grid(axis="y", color="#e6e6e6", linewidth=0.8)
    axes.set_axisbelow(True)
    axes.xaxis.set_major_locator(MaxNLocator(integer=True, steps=[1, 2, 5, 10]))


def _style(axes: Axes) -> None:
    axes.spines["top"].set_visible(False)
    axes.spines["right"].set_visible(axes.yaxis.get_label_position() == "right")
    axes.spines[["left", "bottom", "right"]].set_color("#b5b5b5")
    axes.tick_params(colors=INK, color="#b5b5b5", labelsize=9)
    axes.yaxis.label.set_color(INK)


def _draw_accuracies(axes: Axes, evaluations: list[dict[str, Any]]) -> float:
    """Draw what was evaluated, each first and last point with its value, and return the highest."""
    # Room for the numbers beside the first and last points.
    axes.margins(x=0.08)
    highest = 0.0
    ends: dict[int, list[tuple[float, str]]] = {}
    for metric, label, color, marker in ACCURACIES:
        points = [(record["step"], record[metric]) for record in evaluations if record.get(metric) is not None]
        if points:
            steps, accuracies = zip(*points, strict=True)
            axes.plot(
                steps, accuracies, color=color, marker=marker, markersize=8, markeredgecolor="white",
                linewidth=1.3, linestyle=(0, (4, 3)), label=label, clip_on=False, zorder=4,
            )  # fmt: skip
            highest = max(highest, *accuracies)
            for step, accuracy in {points[0], points[-1]}:
                ends.setdefault(step, []).append((accuracy, color))
    middle = sum(axes.get_xlim()) / 2
    for step, values in ends.items():
        for (accuracy, color), height in zip(sorted(values), _apart(sorted(values), highest), strict=True):
            axes.annotate(
                f"{accuracy:.0%}", (step, height), xytext=(10 if step > middle else -10, 0),
                textcoords="offset points", ha="left" if step > middle else "right", va="center",
                color=color, fontweight="bold", fontsize=10, annotation_clip=False,
            )  # fmt: skip
    return highest


def _apart(values: list[tuple[float, str]], highest: float) -> list[float]:
    """Heights for the labels of ascending `values`, moved up where two would overlap."""
    heights: list[float] = []
    for value, _ in values:
        heights.append(max([value, *(height + 0.07 * highest for height in heights[-1:])]))
    return heights


def _scale_as_share(axes: Axes, highest: float) -> None:
    from matplotlib.ticker import PercentFormatter

    axes.set_ylim(0, min(1.0, 1.12 * highest) if highest else 1.0)
    axes.yaxis.set_major_formatter(PercentFormatter(1.0, decimals=0))
