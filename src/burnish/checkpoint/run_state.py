"""The state a run resumes from: written by Orbax in the background, whole or not there, checked as it comes back.

    <run>/checkpoints/actor/<step>/{model_params, optimizer_state, loop_state}

A save is written to a temporary folder beside its place and renamed when complete; an old checkpoint is renamed away
before its files are deleted. So a folder whose name is a number is a whole checkpoint, whenever the process dies.
"""

import json
import logging
import shutil
import zlib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import jax
import orbax.checkpoint as ocp

from burnish.checkpoint.fingerprint import fingerprints
from burnish.errors import RunStopped, UserError

Tree = Any
"""A pytree of arrays, or of `jax.ShapeDtypeStruct` where only shape, dtype and sharding matter."""

ARRAY_ITEMS = ("model_params", "optimizer_state")
_SUPERSEDED = ".superseded"
_UNFINISHED = ".orbax-checkpoint-tmp"


@dataclass(frozen=True)
class RunState:
    """What a checkpoint gives back: the trees it was asked for, and the loop's own words (JSON)."""

    parameters: Tree
    optimizer_state: Tree
    loop_state: dict[str, Any]


class Checkpoints:
    """The checkpoints of one run; `folder` is the run's `checkpoints/actor`, `keep` how many of the newest stay.

    Saving runs in the background while training goes on. The next `save` or `wait` learns how it ended: it raises what
    failed, or deletes the checkpoints that are now one too many.
    Leftovers of interrupted saves and deletions are removed when this object is made, so only the run's owner
    (`run_folder.RunFolder`) may make one.
    """

    def __init__(self, folder: Path, *, keep: int) -> None:
        if keep < 1:
            raise ValueError(f"keep is {keep}: at least the newest checkpoint has to stay")
        # Orbax accepts absolute paths only.
        self.folder = folder.absolute()
        self.keep = keep
        self.folder.mkdir(parents=True, exist_ok=True)
        self._remove_leftovers()
        # Orbax logs a traceback for a failed save, which is raised and told in one sentence anyway.
        logging.getLogger("absl").setLevel(logging.CRITICAL)
        self._checkpointer = ocp.AsyncCheckpointer(
            ocp.CompositeCheckpointHandler(
                model_params=ocp.StandardCheckpointHandler(),
                optimizer_state=ocp.StandardCheckpointHandler(),
                loop_state=ocp.JsonCheckpointHandler(),
            )
        )

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def steps(self) -> list[int]:
        """Steps of the whole checkpoints, ascending."""
        return sorted(int(path.name) for path in self.folder.iterdir() if path.name.isdecimal() and path.is_dir())

    def latest_step(self) -> int | None:
        """Step of the newest whole checkpoint, `None` when there is none."""
        return max(self.steps(), default=None)

    def path(self, step: int) -> Path:
        """Where the checkpoint of a step lies, or would lie."""
        return self.folder / str(step)

    def save(
        self, step: int, parameters: Tree, optimizer_state: Tree, loop_state: Mapping[str, Any], *, wait: bool = False
    ) -> None:
        """Save the state after `step`; returns once the arrays are copied, or with `wait` once all is on disk.

        The arrays may be donated to the next update at once. Nothing is done when this step is already saved: the
        state after a step is a function of the run, so the two would be the same.
        """
        self.wait()
        if self.path(step).exists():
            return
        arrays = dict(zip(ARRAY_ITEMS, (_flatten(parameters), _flatten(optimizer_state)), strict=True))
        content = {"arrays": {item: _describe(flat) for item, flat in arrays.items()}, "loop_state": dict(loop_state)}
        # What JSON makes of the content (tuples become lists, keys text) is what comes back, so that is what is summed.
        content = json.loads(json.dumps(content))
        items = {item: ocp.args.StandardSave(flat) for item, flat in arrays.items()}
        items["loop_state"] = ocp.args.JsonSave({"content": content, "crc32": _crc32(content)})
        try:
            self._checkpointer.save(self.path(step), args=ocp.args.Composite(**items))
        except (OSError, ValueError, jax.errors.JaxRuntimeError) as error:
            raise self._save_failed(error) from error
        if wait:
            self.wait()

    def wait(self) -> None:
        """Return when no save is under way and the old ones are deleted; raise `RunStopped` if the last one failed."""
        try:
            self._checkpointer.wait_until_finished()
        except Exception as error:
            # Whatever ended the background save is told in its own words.
            raise self._save_failed(error) from error
        self._prune()

    def restore(self, step: int, parameters: Tree, optimizer_state: Tree) -> RunState:
        """Read the checkpoint of `step` with the shapes, dtypes and shardings of these (abstract or concrete) trees."""
        content = self._read_content(step)
        targets = dict(zip(ARRAY_ITEMS, (parameters, optimizer_state), strict=True))
        flat_targets = {item: _flatten(tree) for item, tree in targets.items()}
        for item, flat in flat_targets.items():
            differences = _differences(saved=content["arrays"][item], wanted=flat)
            if differences:
                raise UserError(
                    f"The checkpoint {self.path(step)} does not fit this run: in {item}, {_some(differences)}. Resume"
                    " with the model and optimizer it was saved with, or start a new run with another run_name=…"
                )
        restored = {
            item: self._read(
                step, item, ocp.args.StandardRestore({name: _abstract(leaf) for name, leaf in flat.items()})
            )
            for item, flat in flat_targets.items()
        }
        for item, flat in restored.items():
            found = fingerprints(flat)
            damaged = [name for name, saved in content["arrays"][item].items() if found[name] != saved["fingerprint"]]
            if damaged:
                raise self._damaged(step, f"in {item}, {_some(damaged)} came back with other bits than were saved")
        state_of = {
            item: jax.tree.unflatten(jax.tree.structure(tree), [restored[item][name] for name in flat_targets[item]])
            for item, tree in targets.items()
        }
        return RunState(state_of["model_params"], state_of["optimizer_state"], content["loop_state"])

    def loop_state(self, step: int) -> dict[str, Any]:
        """The loop's own words in the checkpoint of `step`, without reading any array."""
        loop_state: dict[str, Any] = self._read_content(step)["loop_state"]
        return loop_state

    def close(self) -> None:
        """Wait for the save under way, then let go of Orbax's threads."""
        try:
            self.wait()
        finally:
            self._checkpointer.close()

    def _read_content(self, step: int) -> dict[str, Any]:
        if not self.path(step).is_dir():
            steps = ", ".join(map(str, self.steps())) or "none"
            raise UserError(f"There is no checkpoint of step {step} in {self.folder}; there is: {steps}.")
        try:
            saved = self._read(step, "loop_state", ocp.args.JsonRestore())
            content: dict[str, Any] = saved["content"]
            whole = saved["crc32"] == _crc32(content)
        except (KeyError, TypeError) as error:
            raise self._damaged(step, f"loop_state has no {error}") from error
        if not whole:
            raise self._damaged(step, "loop_state is not what was saved")
        return content

    def _read(self, step: int, item: str, arguments: ocp.args.CheckpointArgs) -> Any:
        try:
            return self._checkpointer.restore(self.path(step), args=ocp.args.Composite(**{item: arguments}))[item]
        except (MemoryError, PermissionError, jax.errors.JaxRuntimeError):
            # The machine's trouble, not the checkpoint's: nothing that deleting it would mend.
            raise
        except Exception as error:
            # A damaged file surfaces as anything from KeyError to a bare Exception, depending on which one it is.
            raise self._damaged(step, f"{item} could not be read ({_cause(error)})") from error

    def _damaged(self, step: int, finding: str) -> UserError:
        older = [other for other in self.steps() if other < step]
        then = f"resume from step {older[-1]}" if older else "start again from the beginning"
        return UserError(
            f"The checkpoint {self.path(step)} is damaged: {finding}. Delete that folder, and the same command will"
            f" {then}."
        )

    def _save_failed(self, error: BaseException) -> RunStopped:
        # The half-written folder only takes the space that the next try needs. Orbax may still be writing other parts
        # of it; what that leaves is removed at the next start.
        self._remove_leftovers(ignore_errors=True)
        newest = self.latest_step()
        still = "there is no earlier checkpoint" if newest is None else f"the checkpoint of step {newest} is whole"
        return RunStopped(
            f"The checkpoint could not be written to {self.folder} ({_cause(error)}); {still}. Free some space or"
            " mend the disk, then run the same command again."
        )

    def _remove_leftovers(self, *, ignore_errors: bool = False) -> None:
        if jax.process_index() == 0:
            for path in self.folder.iterdir():
                if path.name.endswith(_SUPERSEDED) or _UNFINISHED in path.name:
                    shutil.rmtree(path, ignore_errors=ignore_errors)

    def _prune(self) -> None:
        """Delete all but the newest `keep`."""
        if jax.process_index() == 0:
            for step in self.steps()[: -self.keep]:
                doomed = self.path(step).with_name(f"{step}{_SUPERSEDED}")
                self.path(step).rename(doomed)
                shutil.rmtree(doomed)


def _flatten(tree: Tree) -> dict[str, Any]:
    """The leaves by name, in the tree's order: `0.mu.model.norm.weight` for the moment of `model.norm.weight`."""
    leaves = jax.tree_util.tree_flatten_with_path(tree)[0]
    flat = {jax.tree_util.keystr(path, simple=True, separator="."): leaf for path, leaf in leaves}
    if len(flat) != len(leaves):
        raise ValueError("two leaves of this tree have the same dotted name")
    return flat


def _describe(arrays: Mapping[str, jax.Array]) -> dict[str, dict[str, Any]]:
    sums = fingerprints(arrays)
    return {
        name: {"shape": list(array.shape), "dtype": str(array.dtype), "fingerprint": sums[name]}
        for name, array in arrays.items()
    }


def _abstract(leaf: Any) -> jax.ShapeDtypeStruct:
    sharding = leaf.sharding or jax.sharding.SingleDeviceSharding(jax.devices()[0])
    return jax.ShapeDtypeStruct(leaf.shape, leaf.dtype, sharding=sharding)


def _differences(*, saved: Mapping[str, Mapping[str, Any]], wanted: Mapping[str, Any]) -> list[str]:
    missing = [f"{name} is missing" for name in wanted if name not in saved]
    unexpected = [f"{name} is not wanted" for name in saved if name not in wanted]
    changed = [
        f"{name} is {saved[name]['dtype']}{saved[name]['shape']} and should be {leaf.dtype}{list(leaf.shape)}"
        for name, leaf in wanted.items()
        if name in saved and (list(leaf.shape), str(leaf.dtype)) != (saved[name]["shape"], saved[name]["dtype"])
    ]
    return missing + unexpected + changed


def _some(findings: list[str]) -> str:
    more = f", and {len(findings) - 3} more" if len(findings) > 3 else ""
    return ", ".join(findings[:3]) + more


def _crc32(content: dict[str, Any]) -> int:
    return zlib.crc32(json.dumps(content, sort_keys=True).encode())


def _cause(error: BaseException) -> str:
    """The innermost clause of the error's first line: TensorStore wraps `No space left on device` in four paths."""
    lines = str(error).strip().splitlines()
    return lines[0].rsplit('": ', 1)[-1] if lines else type(error).__name__
