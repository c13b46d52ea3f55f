"""The samples of a run: every completion of a step in a file of its own, with what it earned and why it ended."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

import numpy as np

from burnish.observe import json_lines

SAMPLES_FOLDER = "samples"


@dataclass(frozen=True)
class Sample:
    """One completion as it is written down."""

    prompt_id: str
    group_id: int
    completion_index: int
    messages: Sequence[Mapping[str, Any]]
    """The prompt, as messages."""
    completion: str
    token_ids: Sequence[int] | np.ndarray
    """Of the completion, with the end-of-sequence token where it was drawn."""
    logprobs: Sequence[float] | np.ndarray
    """Of each token as it was sampled."""
    reward_parts: Mapping[str, float] | None
    """What the grader gave, by name; None where grading failed."""
    reward: float | None
    advantage: float | None
    stop_reason: str
    grade_error: str | None = None
    """Why grading failed: the grader's traceback, or that it timed out."""


class SampleWriter:
    """Writes samples/<stream>_<step>.jsonl, whole or not at all."""

    def __init__(self, run_folder: Path) -> None:
        self._folder = run_folder / SAMPLES_FOLDER
        self._folder.mkdir(parents=True, exist_ok=True)

    def write(self, step: int, samples: Sequence[Sample], stream: str = "step") -> Path:
        """All completions of a step; `stream` tells those of an evaluation (`eval`, `eval_greedy`) from training's."""
        path = _path(self._folder, step, stream)
        json_lines.write(path, (_record(sample) for sample in samples))
        return path

    def truncate_after(self, step: int) -> None:
        """Forget the samples of every step later than `step` (-1: all), and files a kill left unfinished."""
        later = [path for path in self._folder.glob("*_*.jsonl") if int(path.stem.rpartition("_")[2]) > step]
        json_lines.remove([*later, *self._folder.glob("*.partial")], self._folder)


def read_samples(run_folder: Path, step: int, stream: str = "step") -> Iterator[dict[str, Any]]:
    """The samples of a step, in the order they were written."""
    yield from json_lines.read(_path(run_folder / SAMPLES_FOLDER, step, stream))


def _path(folder: Path, step: int, stream: str) -> Path:
    return folder / f"{stream}_{step:06d}.jsonl"


def _record(sample: Sample) -> dict[str, Any]:
    record = {field.name: getattr(sample, field.name) for field in fields(sample)}
    record["messages"] = [dict(message) for message in sample.messages]
    record["token_ids"] = np.asarray(sample.token_ids).astype(int).tolist()
    # Seven decimals are finer than float32 is for any token but a nearly certain one, at half the size.
    logprobs = np.round(np.asarray(sample.logprobs, np.float64), 7)
    record["logprobs"] = [value if np.isfinite(value) else None for value in logprobs.tolist()]
    if sample.reward_parts is not None:
        record["reward_parts"] = {name: float(part) for name, part in sample.reward_parts.items()}
    for name in ("reward", "advantage"):
        record[name] = None if record[name] is None else float(record[name])
    return record
