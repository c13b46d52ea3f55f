"""A run is readable in a terminal, in a log file, and as a picture."""

import io
import subprocess
import sys
from pathlib import Path

import pytest
from rich.console import Console

from burnish.errors import UserError
from burnish.observe.metrics import MetricsWriter
from burnish.observe.progress import RunProgress, duration
from burnish.observe.reward_curve import draw_reward_curve, smoothed
from burnish.observe.tables import AnswerPair, answers_table, comparison_table, evaluation_table


def console(terminal: bool) -> tuple[Console, io.StringIO]:
    stream = io.StringIO()
    return Console(file=stream, width=100, force_terminal=terminal, highlight=False), stream


def test_log_file_gets_one_plain_line_per_step() -> None:
    plain, stream = console(terminal=False)
    with RunProgress(3, console=plain) as progress:
        for step in (1, 2, 3):
            progress.phase("rollout")
            progress.step(step, reward=step / 4, tokens_per_second=1234.5)
        progress.note("saved [checkpoint]")
    lines = stream.getvalue().splitlines()
    assert len(lines) == 4
    assert lines[0].startswith("step 1/3  reward 0.250  1,234 tokens/s")
    assert lines[2].endswith("0 s left")
    assert lines[3] == "saved [checkpoint]"
    assert "\x1b" not in stream.getvalue()


def test_terminal_gets_a_bar_with_reward_speed_and_time_left() -> None:
    terminal, stream = console(terminal=True)
    with RunProgress(10, first_step=4, console=terminal) as progress:
        progress.phase("update")
        progress.step(5, reward=None, tokens_per_second=80.0)
    shown = stream.getvalue()
    for part in ("step 5/10", "reward –", "80 tokens/s", "left", "update"):
        assert part in shown


def test_evaluations_keep_out_of_the_time_left(monkeypatch: pytest.MonkeyPatch) -> None:
    now = [0.0]
    monkeypatch.setattr("burnish.observe.progress.time.monotonic", lambda: now[0])
    plain, stream = console(terminal=False)
    with RunProgress(12, console=plain) as progress:
        now[0] = 2.0
        progress.step(1, 0.0, 1.0)
        now[0] = 100.0
        progress.skip_time()
        now[0] = 104.0
        progress.step(2, 0.0, 1.0)
    assert stream.getvalue().splitlines()[-1].endswith("4.0 s  30 s left")


def test_durations_are_told_in_two_units() -> None:
    assert [duration(seconds) for seconds in (0.4, 59.6, 200, 7500)] == ["0 s", "1 min 0 s", "3 min 20 s", "2 h 5 min"]


def test_tables_show_shares_in_percent_and_changes_in_points() -> None:
    plain, stream = console(terminal=False)
    before = {"sampled accuracy": 0.18, "greedy accuracy": 0.4, "problems": 300}
    after = {"sampled accuracy": 0.55, "greedy accuracy": 0.385, "problems": 300}
    plain.print(evaluation_table("arithmetic", before))
    plain.print(comparison_table("before and after", before, after))
    text = stream.getvalue()
    for part in ("18.0%", "55.0%", "+37.0 points", "-1.5 points", "300"):
        assert part in text


def test_answers_stand_side_by_side_and_cannot_take_over_the_terminal() -> None:
    plain, stream = console(terminal=False)
    pairs = [
        AnswerPair("What is 3 + 4?", "7", "The [bold]sum\x1b[2J is 8", "7", False, True),
        AnswerPair("What is 1 + 1?", "2", "", "x" * 5000, False, False),
    ]
    plain.print(answers_table("Answers", pairs))
    text = stream.getvalue()
    row = next(line for line in text.splitlines() if "[bold]sum" in line)
    assert "✗" in row
    assert "✓ 7" in row
    assert "\x1b" not in text
    assert "(empty)" in text
    assert text.count("x") < 500


def test_smoothing_is_the_mean_of_the_neighbours_there_are() -> None:
    assert smoothed([0.0, 3.0, 6.0, 3.0], 3) == [1.5, 3.0, 4.0, 4.5]
    assert smoothed([2.0], 9) == [2.0]


@pytest.mark.parametrize("scale", [1.0, -2.0])
@pytest.mark.parametrize("steps", [1, 2, 30])
@pytest.mark.parametrize("evaluated", [True, False])
def test_reward_curve_is_drawn_for_short_and_long_runs(
    scale: float, steps: int, evaluated: bool, tmp_path: Path
) -> None:
    from matplotlib.image import imread

    with MetricsWriter(tmp_path) as writer:
        if evaluated:
            writer.write(0, "eval", {"accuracy/sampled": 0.2, "accuracy/greedy": 0.4})
        for step in range(1, steps + 1):
            writer.write(step, "train", {"reward/mean": None if step == 2 else scale * step / steps})
        if evaluated:
            writer.write(steps, "eval", {"accuracy/sampled": 0.41, "accuracy/greedy": 0.42})
    picture = draw_reward_curve(tmp_path, tmp_path / "pictures/reward.png", "title")
    pixels = imread(picture)
    assert pixels.shape[:2] == (720, 1280)
    assert pixels[..., :3].std() > 0.05


def test_reward_curve_of_a_run_without_steps_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="no step with a reward"):
        draw_reward_curve(tmp_path, tmp_path / "reward.png")


def test_observing_imports_neither_jax_nor_matplotlib() -> None:
    script = (
        "import sys\n"
        "from burnish.observe import metrics, progress, reward_curve, samples, tables, trackers\n"
        "assert not {'jax', 'matplotlib', 'tensorboardX'} & set(sys.modules)"
    )
    subprocess.run([sys.executable, "-c", script], check=True, timeout=60)
