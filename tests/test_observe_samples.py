"""Every completion of a step is written down, whole or not at all, and cut back for a resume."""

import dataclasses
import json
from pathlib import Path

import numpy as np

from burnish.observe.samples import Sample, SampleWriter, read_samples

SAMPLE = Sample(
    prompt_id="train-17",
    group_id=3,
    completion_index=1,
    messages=[{"role": "user", "content": "2 + 2 = ?"}],
    completion="zwölf \ud800 \u2028 4",
    token_ids=np.array([5, 6, 2], np.int32),
    logprobs=np.array([-0.1, -2.5, -1e-9], np.float32),
    reward_parts={"correct": np.float32(1.0)},
    reward=1.0,
    advantage=np.float32(0.5),
    stop_reason="eos",
)


def test_a_sample_keeps_everything_a_completion_has(tmp_path: Path) -> None:
    failed = dataclasses.replace(SAMPLE, reward_parts=None, reward=None, advantage=None, grade_error="timed out")
    path = SampleWriter(tmp_path).write(1, [SAMPLE, failed])
    assert path == tmp_path / "samples/step_000001.jsonl"
    first, second = read_samples(tmp_path, 1)
    assert first == {
        "prompt_id": "train-17",
        "group_id": 3,
        "completion_index": 1,
        "messages": [{"role": "user", "content": "2 + 2 = ?"}],
        "completion": "zwölf \ud800 \u2028 4",
        "token_ids": [5, 6, 2],
        "logprobs": [-0.1, -2.5, 0.0],
        "reward_parts": {"correct": 1.0},
        "reward": 1.0,
        "advantage": 0.5,
        "stop_reason": "eos",
        "grade_error": None,
    }
    assert (second["reward"], second["reward_parts"], second["grade_error"]) == (None, None, "timed out")
    assert len(path.read_bytes().splitlines()) == 2
    json.loads(path.read_bytes().splitlines()[0])


def test_cutting_back_removes_later_steps_and_unfinished_files(tmp_path: Path) -> None:
    writer = SampleWriter(tmp_path)
    for step in range(4):
        writer.write(step, [SAMPLE], stream="eval_greedy" if step == 0 else "step")
    (tmp_path / "samples/step_000004.jsonl.partial").write_text('{"half')
    writer.truncate_after(2)
    names = sorted(path.name for path in (tmp_path / "samples").iterdir())
    assert names == ["eval_greedy_000000.jsonl", "step_000001.jsonl", "step_000002.jsonl"]
    writer.truncate_after(-1)
    assert list((tmp_path / "samples").iterdir()) == []


def test_the_same_samples_are_the_same_bytes(tmp_path: Path) -> None:
    one, two = SampleWriter(tmp_path / "a").write(1, [SAMPLE]), SampleWriter(tmp_path / "b").write(1, [SAMPLE])
    assert one.read_bytes() == two.read_bytes()
