"""The metric stream is valid JSON, survives kills, is cut back for a resume, and reaches every tracker."""

import json
import subprocess
import sys
import types
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from burnish.config.loading import load_config
from burnish.errors import UserError
from burnish.observe.metrics import MetricsWriter, read_metrics
from burnish.observe.trackers import open_trackers


class Listener:
    def __init__(self) -> None:
        self.heard: list[tuple[int, str, Mapping[str, float]]] = []
        self.closed = False

    def log(self, step: int, kind: str, values: Mapping[str, float]) -> None:
        self.heard.append((step, kind, values))

    def close(self) -> None:
        self.closed = True


def lines(folder: Path) -> list[dict[str, Any]]:
    def refuse(constant: str) -> None:
        raise AssertionError(f"{constant} is not JSON")

    text = (folder / "metrics.jsonl").read_text()
    assert text.endswith("\n")
    return [json.loads(line, parse_constant=refuse) for line in text.splitlines()]


def test_numbers_of_any_kind_become_valid_json(tmp_path: Path) -> None:
    with MetricsWriter(tmp_path) as writer:
        writer.write(1, "train", {"loss": np.float32(0.5), "tokens": np.int64(7), "kl": float("nan"), "part": None})
        writer.write(1, "eval", {"accuracy/greedy": 1, "ratio": float("inf"), "array": np.array(2.0)})
    assert lines(tmp_path) == [
        {"step": 1, "kind": "train", "loss": 0.5, "tokens": 7, "kl": None, "part": None},
        {"step": 1, "kind": "eval", "accuracy/greedy": 1, "ratio": None, "array": 2.0},
    ]
    assert [record["kind"] for record in read_metrics(tmp_path, "eval")] == ["eval"]


def test_metrics_reach_trackers_as_finite_numbers(tmp_path: Path) -> None:
    listener = Listener()
    with MetricsWriter(tmp_path, [listener]) as writer:
        writer.write(2, "train", {"loss": 0.25, "kl": float("nan")})
    assert listener.heard == [(2, "train", {"loss": 0.25})]
    assert listener.closed


def test_stream_cut_back_and_continued_equals_one_never_interrupted(tmp_path: Path) -> None:
    def write(writer: MetricsWriter, first: int, last: int) -> None:
        for step in range(first, last + 1):
            writer.write(step, "train", {"loss": 1 / 3**step})
            writer.write(step, "eval", {"accuracy": step / 7})

    straight, killed = MetricsWriter(tmp_path / "straight"), MetricsWriter(tmp_path / "killed")
    write(straight, 1, 6)
    write(killed, 1, 5)
    with (tmp_path / "killed/metrics.jsonl").open("ab") as file:
        file.write(b'{"step": 6, "kind": "tra')
    resumed = MetricsWriter(tmp_path / "killed")
    resumed.truncate_after(3)
    write(resumed, 4, 6)
    assert (tmp_path / "killed/metrics.jsonl").read_bytes() == (tmp_path / "straight/metrics.jsonl").read_bytes()
    resumed.truncate_after(-1)
    assert (tmp_path / "killed/metrics.jsonl").read_bytes() == b""


def test_line_half_written_by_a_kill_is_cut_when_the_stream_is_opened(tmp_path: Path) -> None:
    (tmp_path / "metrics.jsonl").write_bytes(b'{"step": 1, "kind": "train"}\n{"step": 2, "ki')
    MetricsWriter(tmp_path).write(2, "train", {})
    assert [record["step"] for record in lines(tmp_path)] == [1, 2]


def test_damaged_line_in_the_middle_is_named(tmp_path: Path) -> None:
    (tmp_path / "metrics.jsonl").write_bytes(b'{"step": 1}\n{"step\n{"step": 3}\n')
    with pytest.raises(UserError, match="line 2 is not JSON"):
        MetricsWriter(tmp_path)


def test_killed_writer_leaves_every_step_it_returned_from(tmp_path: Path) -> None:
    script = (
        "import os, signal, sys; from pathlib import Path; from burnish.observe.metrics import MetricsWriter\n"
        "w = MetricsWriter(Path(sys.argv[1]))\n"
        "for s in range(1, 4): w.write(s, 'train', {'loss': s})\n"
        "os.kill(os.getpid(), signal.SIGKILL)"
    )
    subprocess.run([sys.executable, "-c", script, str(tmp_path)], check=False, timeout=60)
    assert [record["loss"] for record in lines(tmp_path)] == [1, 2, 3]


def test_metric_may_not_take_the_name_of_a_records_own_field(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="step"):
        MetricsWriter(tmp_path).write(1, "train", {"step": 3})


def test_tensorboard_files_hold_the_numbers_and_strike_out_what_a_resume_repeats(tmp_path: Path) -> None:
    from tensorboardX.proto.event_pb2 import Event

    config = load_config("demo")
    for resumed, last in ((None, 3), (2, 4)):
        (tracker,) = open_trackers(config, tmp_path, resumed)
        for step in range((resumed or 0) + 1, last + 1):
            tracker.log(step, "train", {"reward/mean": step / 4})
        tracker.close()
    found, purged = [], []
    for file in sorted((tmp_path / "tensorboard").iterdir()):
        data = file.read_bytes()
        while data:
            length = int.from_bytes(data[:8], "little")
            event = Event.FromString(data[12 : 12 + length])
            data = data[16 + length :]
            found += [(event.step, value.tag, value.simple_value) for value in event.summary.value]
            if event.HasField("session_log"):
                purged.append(event.step)
    assert sorted(set(found)) == [(step, "train/reward/mean", step / 4) for step in range(1, 5)]
    assert purged == [3]


@pytest.mark.parametrize("name", ["wandb", "trackio"])
def test_missing_tracker_names_the_command_that_installs_it(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, name, None)
    config = load_config("demo", ["tracking.tensorboard=false", f"tracking.{name}_project=p"])
    with pytest.raises(UserError, match=rf"tracking.{name}_project needs .* pip install 'burnish\[{name}\]'"):
        open_trackers(config, tmp_path)


@pytest.mark.parametrize("name", ["wandb", "trackio"])
def test_resumed_run_stays_the_same_run_at_the_service(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    started: list[dict[str, Any]] = []
    sent: list[tuple[Any, ...]] = []
    module = types.ModuleType(name)

    def log(values: dict[str, float], step: int | None = None) -> None:
        sent.append((values, step))

    def init(**arguments: Any) -> types.SimpleNamespace:
        started.append(arguments)
        return types.SimpleNamespace(define_metric=lambda *_, **__: None, log=log, finish=lambda: None)

    module.init, module.log, module.finish = init, log, lambda: None  # type: ignore[attr-defined]
    module.errors = types.SimpleNamespace(Error=OSError)  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, name, module)
    monkeypatch.setenv("HF_TOKEN", "hf_secret")
    config = load_config("demo", ["tracking.tensorboard=false", f"tracking.{name}_project=p"])
    for resumed in (None, 5, None):
        (tracker,) = open_trackers(config, tmp_path, resumed)
        tracker.log(6, "train", {"loss": 1.0})
        tracker.close()
    identity = "id" if name == "wandb" else "name"
    first, second, third = (arguments[identity] for arguments in started)
    assert first == second != third
    assert started[0]["project"] == "p"
    assert started[0]["config"]["optimizer"]["learning_rate"] == config.optimizer.learning_rate
    assert "hf_secret" not in repr(started)
    values, step = sent[0]
    assert values["train/loss"] == 1.0
    assert 6 in (step, values.get("step"))
