"""Where metrics can go besides metrics.jsonl: TensorBoard files, Weights & Biases, Trackio.

None of them is told a secret: logins come from each service's own environment variable or login command, and what is
passed on is the run's configuration and its numbers.
"""

import importlib
import logging
import shutil
import uuid
from collections.abc import Mapping
from pathlib import Path
from types import ModuleType
from typing import Any, Protocol

from burnish.config.schema import RunConfig
from burnish.errors import UserError


class Tracker(Protocol):
    """Takes the finite numbers of a step; after a resume, steps it has seen come again with the same numbers."""

    def log(self, step: int, kind: str, values: Mapping[str, float]) -> None:
        """Take the numbers of one step; `kind` is `train` or `eval`."""

    def close(self) -> None:
        """Finish sending."""


def open_trackers(config: RunConfig, run_folder: Path, resumed_step: int | None = None) -> list[Tracker]:
    """The trackers the configuration asks for; `resumed_step` is the step a resumed run continues after."""
    tracking = config.tracking
    values = config.model_dump(mode="json")
    trackers: list[Tracker] = []
    if tracking.tensorboard:
        trackers.append(_TensorBoard(run_folder / "tensorboard", resumed_step))
    if tracking.wandb_project:
        trackers.append(_WeightsAndBiases(tracking.wandb_project, run_folder, values, resumed_step is not None))
    if tracking.trackio_project:
        trackers.append(_Trackio(tracking.trackio_project, run_folder, values, resumed_step is not None))
    return trackers


class _TensorBoard:
    def __init__(self, folder: Path, resumed_step: int | None) -> None:
        writer = _import("tensorboardX", "tracking.tensorboard", "tensorboardx").SummaryWriter
        if resumed_step is None:
            # Events of a run that was killed before its first checkpoint: it starts again from nothing.
            shutil.rmtree(folder, ignore_errors=True)
            self._writer = writer(str(folder))
        else:
            # What a killed run wrote after its checkpoint is struck out, in a file of its own: files are named by the
            # second they were begun in, and the same name would overwrite.
            suffix = f".after-step-{resumed_step}"
            self._writer = writer(str(folder), purge_step=resumed_step + 1, filename_suffix=suffix)

    def log(self, step: int, kind: str, values: Mapping[str, float]) -> None:
        for name, value in values.items():
            self._writer.add_scalar(f"{kind}/{name}", value, step)
        self._writer.flush()

    def close(self) -> None:
        self._writer.close()


class _WeightsAndBiases:
    def __init__(self, project: str, run_folder: Path, config: dict[str, Any], resumed: bool) -> None:
        wandb = _import("wandb", "tracking.wandb_project", "burnish[wandb]")
        try:
            self._run = wandb.init(
                project=project,
                name=run_folder.name,
                id=_run_id(run_folder / "wandb_run_id", resumed),
                resume="allow",
                config=config,
                dir=str(run_folder),
            )
        except wandb.errors.Error as error:
            raise UserError(
                f"tracking.wandb_project={project}: Weights & Biases refuses ({error}); "
                "type wandb login, or set WANDB_API_KEY, or type tracking.wandb_project=null"
            ) from None
        # Its own step only ever grows, and a resumed run sends some steps again.
        self._run.define_metric("*", step_metric="step")

    def log(self, step: int, kind: str, values: Mapping[str, float]) -> None:
        self._run.log({"step": step, **{f"{kind}/{name}": value for name, value in values.items()}})

    def close(self) -> None:
        self._run.finish()


class _Trackio:
    def __init__(self, project: str, run_folder: Path, config: dict[str, Any], resumed: bool) -> None:
        trackio = _import("trackio", "tracking.trackio_project", "burnish[trackio]")
        name = f"{run_folder.name}-{_run_id(run_folder / 'trackio_run_id', resumed)}"
        self._module = trackio
        trackio.init(project=project, name=name, config=config, resume="allow")

    def log(self, step: int, kind: str, values: Mapping[str, float]) -> None:
        self._module.log({f"{kind}/{name}": value for name, value in values.items()}, step=step)

    def close(self) -> None:
        self._module.finish()


def _run_id(path: Path, resumed: bool) -> str:
    """The name under which a service knows this run: kept in the run folder, new for a new run."""
    if not (resumed and path.exists()):
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(uuid.uuid4().hex[:12])
    return path.read_text()


def _import(module: str, key: str, package: str) -> ModuleType:
    # tensorboardX announces what it can't import for features that are not used here.
    logging.getLogger("tensorboardX").setLevel(logging.ERROR)
    try:
        return importlib.import_module(module)
    except ModuleNotFoundError as error:
        if error.name is None or error.name.partition(".")[0] != module:
            raise
        raise UserError(f"{key} needs a package that is missing; type python -m pip install '{package}'") from None
