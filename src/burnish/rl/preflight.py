"""What is refused before a run starts: a folder that holds another run, and lengths that the model can't hold."""

from __future__ import annotations

from burnish.checkpoint.run_folder import RunFolder
from burnish.checkpoint.run_state import Checkpoints
from burnish.config.differences import Difference, check_resume
from burnish.config.loading import load_config
from burnish.config.schema import RunConfig
from burnish.errors import UserError
from burnish.model.spec import ModelSpec


def step_to_resume(
    config: RunConfig, folder: RunFolder, checkpoints: Checkpoints
) -> tuple[int | None, list[Difference]]:
    """The step to continue from (None for a new run), and what the configuration changes about the run so far.

    Raises:
        UserError: if the folder holds a run that this configuration does not continue.
    """
    latest, begun = checkpoints.latest_step(), folder.saved_config() is not None
    if begun and not config.checkpoint.resume:
        raise UserError(
            f"{folder.path} already holds a run and checkpoint.resume is false; "
            "choose another run_name=… or delete the folder"
        )
    if latest is None:
        return None, []
    if not begun:
        raise UserError(f"{folder.path} has checkpoints but no config.yaml to compare with; choose another run_name=…")
    changes = check_resume(load_config(folder.config), config)
    if latest > config.steps:
        raise UserError(
            f"{folder.path} has a checkpoint of step {latest}, beyond steps={config.steps}; type steps={latest} or more"
        )
    return latest, changes


def check_context(config: RunConfig, spec: ModelSpec) -> None:
    """Refuse prompts and completions that together are longer than what the model was made for."""
    completion = max(config.rollout.max_tokens, config.evaluation.max_tokens or 0)
    longest = config.rollout.max_prompt_tokens + completion
    if longest > spec.max_position_embeddings:
        raise UserError(
            f"rollout.max_prompt_tokens={config.rollout.max_prompt_tokens} and max_tokens={completion} make {longest} "
            f"tokens, more than the model's context of {spec.max_position_embeddings}; "
            "type a smaller rollout.max_tokens"
        )
