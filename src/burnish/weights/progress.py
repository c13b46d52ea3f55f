"""A progress bar that appears only when something takes long enough to wonder about."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from rich.console import Console
from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TimeRemainingColumn, TransferSpeedColumn

SECONDS_BEFORE_SHOWN = 2.0


@contextmanager
def byte_progress(
    description: str, total_bytes: int, *, enabled: bool = True, after_seconds: float = SECONDS_BEFORE_SHOWN
) -> Iterator[Callable[[int], None]]:
    """Yield a function to tell how many bytes are done; the bar shows on stderr once `after_seconds` have passed."""
    if not enabled:
        yield lambda done: None
        return
    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        DownloadColumn(),
        TransferSpeedColumn(),
        TimeRemainingColumn(),
    )
    bar = Progress(*columns, console=Console(stderr=True), transient=True)
    task = bar.add_task(description, total=total_bytes)
    begun, shown = time.monotonic(), False

    def report(done: int) -> None:
        nonlocal shown
        if not shown and time.monotonic() - begun >= after_seconds:
            bar.start()
            shown = True
        bar.update(task, completed=min(done, total_bytes))

    try:
        yield report
    finally:
        if shown:
            bar.stop()
