"""A run folder has one owner at a time, and its files are there whole or not at all."""

import os
import signal
import stat
import subprocess
import sys
import time
from pathlib import Path

import pytest

from burnish.checkpoint.run_folder import RunFolder, write_atomically
from burnish.errors import UserError

OWNER = """
import os, sys, time
from burnish.checkpoint.run_folder import RunFolder
run = RunFolder(sys.argv[1], "run")
if os.fork() == 0:
    time.sleep(60)  # a grading worker that outlives its parent
print("owned", flush=True)
time.sleep(60)
"""


def test_a_second_process_is_refused_with_the_pid_and_let_in_after_kill_9(tmp_path: Path):
    owner = subprocess.Popen(
        [sys.executable, "-c", OWNER, tmp_path], stdout=subprocess.PIPE, text=True, start_new_session=True
    )
    assert owner.stdout is not None
    try:
        assert owner.stdout.readline() == "owned\n"
        with pytest.raises(UserError, match=rf"pid {owner.pid} on .*run_name="):
            RunFolder(tmp_path, "run")
        RunFolder(tmp_path, "another").close()
        os.kill(owner.pid, signal.SIGKILL)
        owner.wait()
        deadline = time.monotonic() + 10
        while time.monotonic() < deadline:
            try:
                RunFolder(tmp_path, "run").close()
                break
            except UserError:
                time.sleep(0.05)
        else:
            pytest.fail("the lock outlived its owner")
    finally:
        os.killpg(owner.pid, signal.SIGKILL)
        owner.wait()
        owner.stdout.close()


def test_the_same_process_cannot_own_a_folder_twice(tmp_path: Path):
    with RunFolder(tmp_path, "run"), pytest.raises(UserError, match=f"pid {os.getpid()}"):
        RunFolder(tmp_path, "run")
    with RunFolder(tmp_path, "run") as again:
        assert again.path == tmp_path / "run"


def test_config_is_replaced_whole(tmp_path: Path):
    with RunFolder(tmp_path, "run") as run:
        assert run.saved_config() is None
        run.write_config("model: a\n")
        run.write_config("model: b\n")
        assert run.saved_config() == "model: b\n"
        assert {path.name for path in run.path.iterdir()} == {".lock", "config.yaml"}


def test_a_write_that_fails_leaves_the_old_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    path = tmp_path / "config.yaml"
    write_atomically(path, b"old")

    def no_space(_: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", no_space)
    with pytest.raises(OSError, match="No space left"):
        write_atomically(path, b"new")
    assert path.read_bytes() == b"old"
    assert [path.name for path in tmp_path.iterdir()] == ["config.yaml"]


@pytest.mark.parametrize("name", ["", ".", "..", "a/b"])
def test_a_run_name_that_names_no_folder_is_refused(tmp_path: Path, name: str):
    with pytest.raises(UserError, match="run_name="):
        RunFolder(tmp_path, name)


def test_a_place_that_cannot_be_written_is_told(tmp_path: Path):
    (tmp_path / "file").write_text("not a folder")
    with pytest.raises(UserError, match=r"can't be written .*output_dir="):
        RunFolder(tmp_path / "file", "run")
    locked = tmp_path / "locked"
    locked.mkdir()
    locked.chmod(stat.S_IRUSR | stat.S_IXUSR)
    if os.geteuid() != 0:
        with pytest.raises(UserError, match="Permission denied"):
            RunFolder(locked, "run")
