"""A run's state comes back bit by bit, or the run is told in one sentence why it can't."""

import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from burnish.checkpoint.fingerprint import fingerprints
from burnish.checkpoint.run_state import Checkpoints
from burnish.errors import RunStopped, UserError

LOOP_STATE = {"step": 3, "rng": 2**100 + 1, "position": {"epoch": 0, "row": 17}, "reward": 0.1}


def make_state(seed: int = 0, rows: int = 16) -> tuple[dict[str, jax.Array], Any]:
    keys = jax.random.split(jax.random.key(seed), 3)
    parameters = {
        "model.embed_tokens.weight": jax.random.normal(keys[0], (rows, 8)),
        "model.layers.*.mlp.up_proj.weight": jax.random.normal(keys[1], (2, 8, 8), jnp.bfloat16),
    }
    optimizer = optax.adamw(1e-3)
    gradients = jax.tree.map(lambda p: jax.random.normal(keys[2], p.shape, p.dtype), parameters)
    _, optimizer_state = optimizer.update(gradients, optimizer.init(parameters), parameters)
    return parameters, optimizer_state


def bits(tree: Any) -> list[bytes]:
    return [np.asarray(leaf).tobytes() for leaf in jax.tree.leaves(tree)]


def abstract(tree: Any) -> Any:
    return jax.tree.map(lambda leaf: jax.ShapeDtypeStruct(leaf.shape, leaf.dtype), tree)


@pytest.fixture
def checkpoints(tmp_path: Path):
    with Checkpoints(tmp_path / "actor", keep=2) as opened:
        yield opened


def test_state_comes_back_with_the_same_bits_in_the_same_tree(checkpoints: Checkpoints):
    parameters, optimizer_state = make_state()
    checkpoints.save(3, parameters, optimizer_state, LOOP_STATE)
    checkpoints.wait()
    assert sorted(p.name for p in checkpoints.path(3).iterdir() if p.is_dir()) == [
        "loop_state",
        "model_params",
        "optimizer_state",
    ]
    state = checkpoints.restore(3, abstract(parameters), abstract(optimizer_state))
    assert jax.tree.structure(state.optimizer_state) == jax.tree.structure(optimizer_state)
    assert list(state.parameters) == list(parameters)
    assert bits(state.parameters) == bits(parameters)
    assert bits(state.optimizer_state) == bits(optimizer_state)
    assert state.parameters["model.layers.*.mlp.up_proj.weight"].dtype == jnp.bfloat16
    assert state.loop_state == checkpoints.loop_state(3) == LOOP_STATE


def test_arrays_donated_right_after_a_save_do_not_change_what_is_saved(checkpoints: Checkpoints):
    overwrite = jax.jit(lambda x: x * 0 - 1, donate_argnums=0)
    parameters = {"weight": jax.random.normal(jax.random.key(1), (512, 1024))}
    expected = np.array(parameters["weight"])
    for step in range(1, 4):
        donated = {"weight": jnp.array(expected)}
        checkpoints.save(step, donated, {"count": jnp.int32(step)}, {})
        for _ in range(3):
            donated = {"weight": overwrite(donated["weight"])}
        donated["weight"].block_until_ready()
        checkpoints.wait()
        state = checkpoints.restore(step, abstract(parameters), {"count": jax.ShapeDtypeStruct((), jnp.int32)})
        np.testing.assert_array_equal(np.asarray(state.parameters["weight"]), expected)


def test_only_the_newest_checkpoints_are_kept(checkpoints: Checkpoints):
    parameters, optimizer_state = make_state()
    for step in (5, 10, 15, 20):
        checkpoints.save(step, parameters, optimizer_state, {"step": step})
    checkpoints.wait()
    assert checkpoints.steps() == [15, 20]
    assert checkpoints.latest_step() == 20
    assert {path.name for path in checkpoints.folder.iterdir()} == {"15", "20"}


def test_an_empty_run_has_no_latest_step(checkpoints: Checkpoints):
    assert checkpoints.latest_step() is None
    with pytest.raises(UserError, match=r"no checkpoint of step 7 .* there is: none"):
        checkpoints.loop_state(7)


def test_leftovers_of_an_interrupted_save_and_deletion_are_cleaned_and_never_offered(tmp_path: Path):
    parameters, optimizer_state = make_state()
    folder = tmp_path / "actor"
    with Checkpoints(folder, keep=3) as first:
        first.save(1, parameters, optimizer_state, {}, wait=True)
    shutil.copytree(folder / "1", folder / "2.orbax-checkpoint-tmp-123")
    shutil.copytree(folder / "1", folder / "0.superseded")
    with Checkpoints(folder, keep=3) as second:
        assert second.steps() == [1]
        assert [path.name for path in folder.iterdir()] == ["1"]


def change(parameters: dict[str, jax.Array], how: str) -> dict[str, Any]:
    wanted = dict(abstract(parameters))
    first = "model.embed_tokens.weight"
    if how == "shape":
        wanted[first] = jax.ShapeDtypeStruct((17, 8), jnp.float32)
    elif how == "dtype":
        wanted[first] = jax.ShapeDtypeStruct((16, 8), jnp.bfloat16)
    elif how == "missing":
        wanted["lm_head.weight"] = jax.ShapeDtypeStruct((16, 8), jnp.float32)
    else:
        del wanted[first]
    return wanted


@pytest.mark.parametrize(
    ("how", "says"),
    [
        ("shape", r"model.embed_tokens.weight is float32\[16, 8\] and should be float32\[17, 8\]"),
        ("dtype", r"model.embed_tokens.weight is float32\[16, 8\] and should be bfloat16\[16, 8\]"),
        ("missing", r"lm_head.weight is missing"),
        ("unwanted", r"model.embed_tokens.weight is not wanted"),
    ],
)
def test_a_checkpoint_of_another_model_is_refused_by_name(checkpoints: Checkpoints, how: str, says: str):
    parameters, optimizer_state = make_state()
    checkpoints.save(3, parameters, optimizer_state, LOOP_STATE, wait=True)
    with pytest.raises(UserError, match=says):
        checkpoints.restore(3, change(parameters, how), abstract(optimizer_state))


def test_another_optimizer_is_refused(checkpoints: Checkpoints):
    parameters, optimizer_state = make_state()
    checkpoints.save(3, parameters, optimizer_state, LOOP_STATE, wait=True)
    other = optax.sgd(1e-3, momentum=0.9).init(parameters)
    with pytest.raises(UserError, match=r"in optimizer_state, .*trace"):
        checkpoints.restore(3, parameters, other)


# Orbax lets go of its event loop before the last of the failed reads has reported back to it.
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
def test_every_kind_of_damage_is_told_and_never_skipped(checkpoints: Checkpoints):
    parameters, optimizer_state = make_state()
    checkpoints.save(2, parameters, optimizer_state, {"step": 2}, wait=True)
    checkpoints.save(3, parameters, optimizer_state, LOOP_STATE, wait=True)
    rng = np.random.default_rng(0)
    told = 0
    for path in sorted(p for p in checkpoints.path(3).rglob("*") if p.is_file()):
        whole = path.read_bytes()
        flipped = bytearray(whole)
        flipped[rng.integers(len(whole))] ^= 1 << int(rng.integers(8))
        for damaged in (bytes(flipped), whole[: len(whole) // 2], b"", bytes(len(whole))):
            path.write_bytes(damaged)
            sentence = None
            try:
                state = checkpoints.restore(3, parameters, optimizer_state)
            except UserError as error:
                sentence = str(error)
            if sentence is None:
                assert bits(state.parameters) == bits(parameters)
                assert bits(state.optimizer_state) == bits(optimizer_state)
                assert state.loop_state == LOOP_STATE
            else:
                told += 1
                assert f"{checkpoints.path(3)} is damaged" in sentence
                assert "Delete that folder, and the same command will resume from step 2." in sentence
                assert "\n" not in sentence
        path.write_bytes(whole)
    assert told > 20
    shutil.rmtree(checkpoints.path(3) / "optimizer_state")
    with pytest.raises(UserError, match="is damaged"):
        checkpoints.restore(3, parameters, optimizer_state)
    assert checkpoints.latest_step() == 3


WRITER = """
import resource, signal, sys
from pathlib import Path
import jax, jax.numpy as jnp
from burnish.checkpoint.run_state import Checkpoints
from burnish.errors import RunStopped

signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
with Checkpoints(Path(sys.argv[1]), keep=1) as checkpoints:
    state = {"weight": jax.random.normal(jax.random.key(0), (512, 512))}
    checkpoints.save(1, state, {"count": jnp.int32(1)}, {"step": 1}, wait=True)
    # No file may grow any more: what a full disk does, without filling one.
    resource.setrlimit(resource.RLIMIT_FSIZE, (1000, 1000))
    try:
        checkpoints.save(2, state, {"count": jnp.int32(2)}, {"step": 2}, wait=True)
    except RunStopped as error:
        print(error)
    print(checkpoints.steps())
"""


def test_a_disk_that_takes_no_more_stops_the_run_in_one_sentence_and_keeps_the_last_checkpoint(tmp_path: Path):
    folder = tmp_path / "actor"
    environment = {name: value for name, value in os.environ.items() if name != "JAX_COMPILATION_CACHE_DIR"}
    done = subprocess.run(
        [sys.executable, "-c", WRITER, folder], capture_output=True, text=True, timeout=120, env=environment
    )
    assert done.returncode == 0, done.stderr
    sentence, left = done.stdout.splitlines()
    assert sentence.startswith(f"The checkpoint could not be written to {folder} (")
    assert "the checkpoint of step 1 is whole" in sentence
    assert left == "[1]"
    assert "Traceback" not in done.stderr
    with Checkpoints(folder, keep=1) as checkpoints:
        assert [path.name for path in folder.iterdir()] == ["1"]
        weight = {"weight": jax.random.normal(jax.random.key(0), (512, 512))}
        state = checkpoints.restore(1, weight, {"count": jnp.int32(0)})
        assert bits(state.parameters) == bits(weight)


def test_a_failed_background_save_is_raised_by_the_next_call(checkpoints: Checkpoints, monkeypatch: pytest.MonkeyPatch):
    def no_space(*_: object, **__: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(checkpoints._checkpointer, "wait_until_finished", no_space)
    with pytest.raises(RunStopped, match=r"No space left on device.*there is no earlier checkpoint"):
        checkpoints.save(1, *make_state(), {})
    monkeypatch.undo()


@pytest.mark.parametrize("dtype", [jnp.float32, jnp.bfloat16, jnp.int32, jnp.bool_, jnp.uint8, jnp.float16])
def test_a_fingerprint_tells_every_single_element_apart(dtype: Any):
    array, one = jnp.zeros((3, 5), dtype), jnp.ones((), dtype)
    variants = {str(i): array.at[i // 5, i % 5].set(one) for i in range(15)} | {"none": array}
    variants["two"] = array.at[0, 0].set(one).at[1, 1].set(one)
    assert len(set(fingerprints(variants).values())) == 17


MESH = """
import sys
from pathlib import Path
import jax, jax.numpy as jnp, numpy as np
from jax.sharding import NamedSharding, PartitionSpec as P
from burnish.checkpoint.fingerprint import fingerprints
from burnish.checkpoint.run_state import Checkpoints

x = np.random.default_rng(0).normal(size=(8, 6)).astype("float32")
mesh = jax.make_mesh((4, 2), ("a", "b"))
layouts = {str(axes): NamedSharding(mesh, P(*axes)) for axes in ((), ("a",), ("a", "b"), (None, "b"))}
arrays = {name: jax.device_put(x, layout) for name, layout in layouts.items()}
assert len(set(fingerprints(arrays | {"host": x}).values())) == 1

rows, columns = NamedSharding(mesh, P("a")), NamedSharding(mesh, P(None, "b"))
with Checkpoints(Path(sys.argv[1]), keep=1) as checkpoints:
    checkpoints.save(1, {"w": jax.device_put(x, rows)}, {"count": jnp.int32(1)}, {}, wait=True)
    wanted = {"w": jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=columns)}
    restored = checkpoints.restore(1, wanted, {"count": jax.ShapeDtypeStruct((), jnp.int32)}).parameters["w"]
assert restored.sharding == columns
np.testing.assert_array_equal(np.asarray(restored), x)
"""


def test_an_array_has_one_fingerprint_on_every_mesh_and_comes_back_in_another_sharding(tmp_path: Path):
    done = subprocess.run(
        [sys.executable, "-c", MESH, tmp_path],
        capture_output=True,
        text=True,
        timeout=120,
        env=os.environ | {"XLA_FLAGS": "--xla_force_host_platform_device_count=8"},
    )
    assert done.returncode == 0, done.stderr
