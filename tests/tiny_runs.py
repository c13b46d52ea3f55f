"""Whole runs that take seconds: a task whose rewards a random model spreads over, a configuration, what a run left."""

import json
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from burnish.config.loading import load_config
from burnish.config.schema import RunConfig
from burnish.tasks import Completion, Row
from tiny_models import write_tiny_hf_folder

OPTIMIZER = {"learning_rate": 1e-2, "beta1": 0.9, "beta2": 0.95, "weight_decay": 0.1, "max_grad_norm": 0.5}
ROW_TOKENS = 48
MAX_TOKENS = 8
PROMPTS_PER_STEP = 4
GENERATIONS = 4


def tiny_model(folder: Path) -> Path:
    """A model that is unsure enough to give every group different answers."""
    return write_tiny_hf_folder(folder, scale=0.3)


def tiny_run(model: Path, *overrides: str, **optimizer: float) -> RunConfig:
    """A run of four groups of four short completions; what is compiled for one such run serves the next."""
    return load_config(
        None,
        [
            f"model={model}",
            f"output_dir={model.parent}",
            "steps=4",
            f"prompts_per_step={PROMPTS_PER_STEP}",
            f"rollout.num_generations={GENERATIONS}",
            f"rollout.max_tokens={MAX_TOKENS}",
            "rollout.max_prompt_tokens=24",
            f"training.row_tokens={ROW_TOKENS}",
            "training.remat=none",
            "evaluation.prompts=4",
            "tracking.tensorboard=false",
            *(f"optimizer.{name}={value}" for name, value in (OPTIMIZER | optimizer).items()),
            *overrides,
        ],
    )


def let_be(completion: Completion) -> None:
    """Nothing happens before this is graded."""


@dataclass
class ParityTask:
    """Right is an answer whose bytes add up to an even number, which is as good as a coin for a random model."""

    name: str = "parity"
    needs_workers: bool = False
    reward_weights: dict[str, float] = field(default_factory=lambda: {"correct": 1.0, "short": 0.25})
    before_grading: Callable[[Completion], Any] = let_be
    """What a test does to the run while it grades; what it returns, if anything, is the grade."""

    def train_rows(self) -> Sequence[Row]:
        """Ten rows, two of which are too long for `tiny_run`."""
        return [
            row(f"train {index}", "ab" * 30 if index in (3, 8) else "say " + "abcdefghij"[: index // 2])
            for index in range(10)
        ]

    def eval_rows(self) -> Sequence[Row]:
        return [row(f"held out {index}", "see " + "c" * index) for index in range(6)]

    def grade(self, completion: Completion) -> Mapping[str, float]:
        forced = self.before_grading(completion)
        if forced is not None:
            return forced() if callable(forced) else forced
        return {
            "correct": float(sum(completion.text.encode()) % 2 == 0),
            "short": 1 - completion.token_count / MAX_TOKENS,
        }


@dataclass
class HangsOnce(ParityTask):
    """Its grader hangs at the first completion of all, once: the next one finds the mark that it left.

    That completion's group has an advantage all the same, and rows have gold answers that are no completion.
    """

    name: str = "hangs-once"
    needs_workers: bool = True
    marker: str = ""

    def gold_text(self, row: Row) -> str:
        return "bb"

    def grade(self, completion: Completion) -> Mapping[str, float]:
        if completion.row.id.startswith("train") and completion.text != "bb" and not Path(self.marker).exists():
            Path(self.marker).touch()
            time.sleep(600)
        return super().grade(completion)


def row(name: str, question: str) -> Row:
    return Row(name, [{"role": "user", "content": question}], {"answer": name})


def records(folder: Path, kind: str | None = None) -> list[dict[str, Any]]:
    """The lines of metrics.jsonl, without what was measured by a clock or on a machine."""
    lines = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    return [
        {name: value for name, value in line.items() if not name.startswith(("time/", "perf/"))}
        for line in lines
        if kind in (None, line["kind"])
    ]


def samples(folder: Path, name: str) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (folder / "samples" / f"{name}.jsonl").read_text().splitlines()]


def files(folder: Path) -> dict[str, bytes]:
    """Every file below a folder, by its path in it."""
    return {str(path.relative_to(folder)): path.read_bytes() for path in sorted(folder.rglob("*")) if path.is_file()}


def assert_runs_equal(found: Path, expected: Path) -> None:
    """Metrics (but for time), samples and the exported model, bit for bit and in the same order."""
    for one, other in zip(records(found), records(expected), strict=True):
        assert one == other
    for part in ("samples", "hf"):
        one, other = files(found / part), files(expected / part)
        assert one.keys() == other.keys()
        assert [name for name in other if one[name] != other[name]] == []
