"""The metric stream of a run: one line per step and kind in metrics.jsonl, the same numbers to every tracker."""

import math
from collections.abc import Iterator, Mapping, Sequence
from numbers import Integral
from pathlib import Path
from typing import Any, Literal, Self, SupportsFloat

from burnish.observe import json_lines
from burnish.observe.trackers import Tracker

Kind = Literal["train", "eval"]

METRICS_FILE = "metrics.jsonl"


class MetricsWriter:
    """Appends to metrics.jsonl, on disk when `write` returns, and passes the numbers on to trackers.

    A number that is not finite is written as null, since JSON has no other word for it.
    """

    def __init__(self, run_folder: Path, trackers: Sequence[Tracker] = ()) -> None:
        run_folder.mkdir(parents=True, exist_ok=True)
        self._path = run_folder / METRICS_FILE
        self._trackers = trackers
        json_lines.keep(self._path, lambda _: True)

    def write(self, step: int, kind: Kind, values: Mapping[str, SupportsFloat | None]) -> None:
        """Record the numbers of a step: of its update (`train`), or of an evaluation after it (`eval`; 0: before any).

        None stands for a mean over nothing.
        """
        if taken := {"step", "kind"} & values.keys():
            raise ValueError(f"a metric can't be named {taken.pop()}")
        plain = {name: _plain(value) for name, value in values.items()}
        json_lines.append(self._path, {"step": step, "kind": kind, **plain})
        numbers = {name: value for name, value in plain.items() if value is not None}
        for tracker in self._trackers:
            tracker.log(step, kind, numbers)

    def truncate_after(self, step: int) -> None:
        """Forget everything later than `step` (-1: everything), so that a resumed run continues as if never killed."""
        json_lines.keep(self._path, lambda record: record["step"] <= step)

    def close(self) -> None:
        """Let trackers finish what they still have to send."""
        for tracker in self._trackers:
            tracker.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def read_metrics(run_folder: Path, kind: Kind | None = None) -> Iterator[dict[str, Any]]:
    """The records of a run's metrics.jsonl in the order they were written, of one kind or of both."""
    path = run_folder / METRICS_FILE
    if path.exists():
        yield from (record for record in json_lines.read(path) if kind in (None, record["kind"]))


def _plain(value: SupportsFloat | None) -> int | float | None:
    """A number of any library as Python's; None where it is not finite."""
    if value is None:
        return None
    if isinstance(value, Integral):
        return int(value)
    number = float(value)
    return number if math.isfinite(number) else None
