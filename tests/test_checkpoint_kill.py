"""A process killed at any moment of its saves leaves only whole checkpoints; the next one starts from the newest."""

import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np

from burnish.checkpoint.run_folder import RunFolder
from burnish.checkpoint.run_state import Checkpoints

# Saves as fast as it can, from the newest checkpoint on; the state after a step is known from the step alone.
RUN = """
import sys
import jax, jax.numpy as jnp
from burnish.checkpoint.run_folder import RunFolder
from burnish.checkpoint.run_state import Checkpoints

with RunFolder(sys.argv[1], "run") as run, Checkpoints(run.checkpoints, keep=2) as checkpoints:
    start = checkpoints.latest_step() or 0
    print("started at", start, flush=True)
    for step in range(start + 1, start + 10_000):
        state = {str(i): jnp.full((64, 1024), step * 10 + i, jnp.float32) for i in range(8)}
        checkpoints.save(step, state, {"count": jnp.int32(step)}, {"step": step})
        print("saving", step, flush=True)
"""


def expected(step: int) -> dict[str, jax.Array]:
    return {str(i): jnp.full((64, 1024), step * 10 + i, jnp.float32) for i in range(8)}


def test_kill_at_random_moments_leaves_only_whole_checkpoints(tmp_path: Path):
    moments = random.Random(0)
    newest = 0
    unfinished = 0
    for _ in range(6):
        process = subprocess.Popen([sys.executable, "-c", RUN, tmp_path], stdout=subprocess.PIPE, text=True)
        assert process.stdout is not None
        assert process.stdout.readline() == f"started at {newest}\n"
        for _ in range(moments.randint(2, 6)):
            assert process.stdout.readline().startswith("saving")
        time.sleep(moments.uniform(0, 0.05))
        process.send_signal(signal.SIGKILL)
        process.wait()
        process.stdout.close()

        with RunFolder(tmp_path, "run") as run:
            unfinished += sum(not path.name.isdecimal() for path in run.checkpoints.iterdir())
            with Checkpoints(run.checkpoints, keep=2) as checkpoints:
                assert all(path.name.isdecimal() for path in run.checkpoints.iterdir())
                assert len(checkpoints.steps()) <= 3
                for step in checkpoints.steps():
                    state = checkpoints.restore(step, expected(step), {"count": jnp.int32(0)})
                    assert state.loop_state == {"step": step}
                    assert int(state.optimizer_state["count"]) == step
                    for name, array in expected(step).items():
                        np.testing.assert_array_equal(np.asarray(state.parameters[name]), np.asarray(array))
                assert (checkpoints.latest_step() or 0) >= newest
                newest = checkpoints.latest_step() or 0
    assert newest > 0
    assert unfinished > 0, "no kill fell into a save: the test has lost its point"
