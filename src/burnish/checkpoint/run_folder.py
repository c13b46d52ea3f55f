"""The folder of a run: where everything lies, and the lock that lets one process at a time write there.

<output_dir>/<run_name>/{config.yaml, metrics.jsonl, samples/, tensorboard/, checkpoints/actor/<step>/, hf/}
"""

import fcntl
import os
import socket
from pathlib import Path
from types import TracebackType
from typing import Self

from burnish.errors import UserError

# POSIX locks do not keep a process from locking twice, and closing any descriptor of the file would drop the lock.
_owned_here: set[Path] = set()


class RunFolder:
    """The paths of one run; while it is open no other process can open the same.

    The lock is the operating system's (`fcntl.lockf`), so it ends with the process however that dies, and forked
    grading workers that outlive it don't hold it.
    """

    def __init__(self, output_dir: str | Path, run_name: str) -> None:
        if run_name in ("", ".", "..") or "/" in run_name or "\0" in run_name:
            raise UserError(
                f"run_name={run_name!r} can't name a folder; give a plain name, for example run_name=first-try."
            )
        self.path = Path(output_dir).expanduser().absolute() / run_name
        self.config = self.path / "config.yaml"
        self.metrics = self.path / "metrics.jsonl"
        self.samples = self.path / "samples"
        self.tensorboard = self.path / "tensorboard"
        self.checkpoints = self.path / "checkpoints" / "actor"
        self.hf = self.path / "hf"
        self._lock = self._acquire()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def saved_config(self) -> str | None:
        """The text of the `config.yaml` this run was started with, `None` in a new folder."""
        return self.config.read_text() if self.config.exists() else None

    def write_config(self, text: str) -> None:
        """Write `config.yaml`: after this either the old text is there or all of the new."""
        write_atomically(self.config, text.encode())

    def close(self) -> None:
        """Let the next process in."""
        if self.path in _owned_here:
            _owned_here.remove(self.path)
            os.close(self._lock)

    def _acquire(self) -> int:
        if self.path in _owned_here:
            raise self._refusal(str(os.getpid()))
        try:
            self.path.mkdir(parents=True, exist_ok=True)
            lock = os.open(self.path / ".lock", os.O_RDWR | os.O_CREAT, 0o644)
        except OSError as error:
            raise UserError(
                f"The run folder {self.path} can't be written ({error.strerror}); choose another place with"
                " output_dir=…"
            ) from error
        try:
            fcntl.lockf(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            owner = os.pread(lock, 200, 0).decode(errors="replace").strip()
            os.close(lock)
            raise self._refusal(owner or "not yet known") from None
        os.ftruncate(lock, 0)
        os.pwrite(lock, f"{os.getpid()} on {socket.gethostname()}\n".encode(), 0)
        _owned_here.add(self.path)
        return lock

    def _refusal(self, owner: str) -> UserError:
        return UserError(
            f"The run {self.path} is being written by another process (pid {owner}); wait for it or stop it, or start"
            " a run of your own with another run_name=…"
        )


def newest_checkpoint(run_folder: Path) -> int | None:
    """The step that a run in this folder would go on from, for those who only look: nothing is opened or locked."""
    saved = (run_folder / "checkpoints" / "actor").glob("*")
    return max((int(path.name) for path in saved if path.name.isdecimal()), default=None)


def write_atomically(path: Path, content: bytes) -> None:
    """Put `content` at `path` so that a reader, or a machine that dies, sees the old file or the whole new one."""
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        with temporary.open("wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        temporary.replace(path)
    except OSError:
        temporary.unlink(missing_ok=True)
        raise
    folder = os.open(path.parent, os.O_RDONLY)
    try:
        os.fsync(folder)
    finally:
        os.close(folder)
