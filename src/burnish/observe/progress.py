"""How a run shows itself in a terminal: a progress bar, or one plain line per step where there is no terminal."""

import time
from collections import deque
from typing import Self

from rich.console import Console
from rich.progress import BarColumn, Progress, ProgressColumn, SpinnerColumn, Task, TextColumn
from rich.text import Text

_RECENT_STEPS = 10
"""The remaining time is judged by so many steps; the first one, which compiles, soon drops out."""


class RunProgress:
    """Steps done, reward, tokens/s, the phase at work and the time left, while used as a context manager."""

    def __init__(self, total_steps: int, first_step: int = 0, console: Console | None = None) -> None:
        """`first_step` is how many steps a resumed run has done already."""
        self._console = console or Console(stderr=True, highlight=False)
        self._total = total_steps
        self._clock = time.monotonic
        self._last = self._clock()
        self._seconds: deque[float] = deque(maxlen=_RECENT_STEPS)
        self._bar: Progress | None = None
        if self._console.is_terminal:
            self._bar = Progress(
                SpinnerColumn(),
                TextColumn("step {task.completed}/{task.total}"),
                BarColumn(bar_width=None),
                TextColumn("{task.fields[numbers]}"),
                _TimeLeft(),
                TextColumn("[dim]{task.fields[phase]}"),
                console=self._console,
                expand=True,
            )
            self._task = self._bar.add_task(
                "", total=total_steps, completed=first_step, numbers="", phase="", seconds_left=None
            )

    def __enter__(self) -> Self:
        self._last = self._clock()
        if self._bar:
            self._bar.start()
        return self

    def __exit__(self, *_: object) -> None:
        if self._bar:
            self._bar.stop()

    def phase(self, name: str) -> None:
        """Say what is being done now, for example `rollout`."""
        if self._bar:
            self._bar.update(self._task, phase=name)

    def step(self, step: int, reward: float | None, tokens_per_second: float) -> None:
        """Step number `step` (from 1) is done; `reward` is the mean of its completions."""
        now = self._clock()
        seconds, self._last = now - self._last, now
        self._seconds.append(seconds)
        left = sum(self._seconds) / len(self._seconds) * (self._total - step)
        numbers = f"reward {'–' if reward is None else f'{reward:.3f}'}  {tokens_per_second:,.0f} tokens/s"
        if self._bar:
            self._bar.update(self._task, completed=step, numbers=numbers, seconds_left=left)
        else:
            line = f"step {step}/{self._total}  {numbers}  {seconds:.1f} s  {duration(left)} left"
            self._console.print(Text(line), soft_wrap=True)

    def note(self, text: str) -> None:
        """Print a line that stays, above the bar where there is one."""
        self._console.print(Text(text), soft_wrap=True)

    def skip_time(self) -> None:
        """Leave the time since the last step (an evaluation, a checkpoint) out of the estimate."""
        self._last = self._clock()


def duration(seconds: float) -> str:
    """A time for people: `42 s`, `3 min 20 s`, `2 h 5 min`."""
    whole = round(seconds)
    if whole < 60:
        return f"{whole} s"
    if whole < 3600:
        return f"{whole // 60} min {whole % 60} s"
    return f"{whole // 3600} h {whole % 3600 // 60} min"


class _TimeLeft(ProgressColumn):
    def render(self, task: Task) -> Text:
        left = task.fields["seconds_left"]
        return Text("" if left is None else f"{duration(left)} left", style="cyan")
