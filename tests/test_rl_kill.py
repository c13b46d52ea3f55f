"""A run that is killed two dozen times, all over its life, leaves the same bits as one that never was."""

import json
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tiny_runs import assert_runs_equal, records, samples, tiny_model

# In this order; a process resumes what the one before left. Twelve steps, a checkpoint every second, evaluations at 0,
# 4, 8 and 12.
KILLS = {
    "rollout of an evaluation": "burnish.rollout.engine:Engine.poll 2 after",
    "gold answers": "burnish.rl.step_grading:JournaledPool.grade 4 before",
    "first rollout": "burnish.rollout.engine:Engine.submit 3 after",
    "a grade timed out": "burnish.rl.step_grading:JournaledPool._record 1 after",
    "step is graded": "burnish.rl.loop:check_grades 1 after",
    "before the update": "burnish.rl.trainer:Trainer.train 1 before",
    "between mini-batches": "burnish.rl.trainer:update 2 before",
    "after the update": "burnish.rl.trainer:Trainer.train 1 after",
    "samples half written": r"rename 1 step_000001\.jsonl$",
    "samples written": "burnish.observe.samples:SampleWriter.write 3 after",
    "metrics half written": "burnish.observe.json_lines:append 2 half",
    "metrics written": "burnish.observe.metrics:MetricsWriter.write 3 after",
    "before a save": "burnish.checkpoint.run_state:Checkpoints.save 1 before",
    "save is under way": "orbax.checkpoint:AsyncCheckpointer.save 1 after",
    "save is nearly whole": r"rename 1 /actor/\d+$",
    "third step after a checkpoint": "burnish.observe.metrics:MetricsWriter.write 7 after",
    "state restored": "burnish.checkpoint.run_state:Checkpoints.restore 1 after",
    "metrics half cut back": r"rename 1 /metrics\.jsonl$",
    "between two evaluations": "burnish.rl.loop:evaluate 1 after",
    "rollout after a resume": "burnish.rollout.engine:Engine.poll 5 after",
    "old checkpoint goes": r"rename 1 \.superseded$",
    "old checkpoint half deleted": "shutil:rmtree 1 before",
    "export half written": "rename 1 /hf$",
    "export written": "burnish.rl.loop:draw_reward_curve 1 before",
}


def run(model: Path, name: str, place: str) -> subprocess.CompletedProcess[str]:
    script = Path(__file__).with_name("killable_run.py")
    command = [sys.executable, str(script), str(model), name, place]
    return subprocess.run(command, capture_output=True, text=True, timeout=600)


@pytest.mark.slow
@pytest.mark.timeout(3600)
def test_run_killed_all_over_its_life_equals_one_that_was_not(tmp_path):
    model = tiny_model(tmp_path / "tiny")
    whole = run(model, "whole", "nowhere")
    assert whole.returncode == 0, whole.stderr
    for moment, place in KILLS.items():
        killed = run(model, "killed", place)
        assert killed.returncode == -signal.SIGKILL, f"{moment}: {killed.returncode}\n{killed.stderr}"
    last = run(model, "killed", "nowhere")
    assert last.returncode == 0, last.stderr

    assert_runs_equal(tmp_path / "killed", tmp_path / "whole")
    assert [line["step"] for line in records(tmp_path / "whole", "train")] == list(range(1, 13))
    late = [sample for sample in samples(tmp_path / "whole", "step_000001") if sample["grade_error"]]
    assert [sample["grade_error"] for sample in late] == ["timed out after 5 s"]
    for folder in ("killed", "whole"):
        (entry,) = (tmp_path / folder / "timed_out_grades.jsonl").read_text().splitlines()
        assert json.loads(entry)["part"] == "step 1"
