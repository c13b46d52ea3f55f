"""Model folders from the Hugging Face hub, downloaded once; every failure says which page to visit, what to set."""

from __future__ import annotations

from pathlib import Path

import huggingface_hub
from huggingface_hub import errors
from huggingface_hub.errors import (
    GatedRepoError,
    HfHubHTTPError,
    HFValidationError,
    LocalEntryNotFoundError,
    RepositoryNotFoundError,
)

from burnish.errors import UserError

# The base of every network failure, in whichever HTTP library the hub's package uses.
_NetworkError: type[Exception] = errors.HTTPError  # type: ignore[attr-defined]
_WANTED = [
    "*.json",
    "*.safetensors",
    "*.model",
    "*.tiktoken",
    "*.txt",
    "*.jinja",
    "*.md",
    "LICENSE*",
    "NOTICE*",
    "USE_POLICY*",
]
_UNWANTED = ["*/*"]
"""Sub-folders hold other formats of the same weights (onnx/, original/)."""


def hub_page(repo_id: str) -> str:
    """The model's page in a browser."""
    return f"{huggingface_hub.constants.ENDPOINT}/{repo_id}"


def hub_answers(repo_id: str, *, timeout_seconds: float = 5.0) -> bool:
    """Whether the hub can be reached and knows the model; the timeout bounds each step of the connection."""
    try:
        huggingface_hub.HfApi().model_info(repo_id, timeout=timeout_seconds)
    except (_NetworkError, OSError):
        return False
    return True


def cached_folder(repo_id: str) -> Path | None:
    """The model's folder in the hub's cache, if it was downloaded before; no network."""
    try:
        return Path(
            huggingface_hub.snapshot_download(
                repo_id, local_files_only=True, allow_patterns=_WANTED, ignore_patterns=_UNWANTED
            )
        )
    except LocalEntryNotFoundError:
        return None


def download_folder(repo_id: str) -> Path:
    """The model's folder in the hub's cache, downloaded if need be with the hub library's own login (HF_TOKEN)."""
    page = hub_page(repo_id)
    try:
        return Path(huggingface_hub.snapshot_download(repo_id, allow_patterns=_WANTED, ignore_patterns=_UNWANTED))
    except GatedRepoError as error:
        raise UserError(
            f"The model {repo_id} is gated: accept its terms at {page}, then set HF_TOKEN to a token of that account "
            "(or run `hf auth login`)."
        ) from error
    except RepositoryNotFoundError as error:
        raise UserError(
            f"The hub has no model {repo_id} that you may see: check the name at {page}; for a private model set "
            "HF_TOKEN (or run `hf auth login`)."
        ) from error
    except HFValidationError as error:
        raise UserError(
            f"{repo_id!r} is not a hub id; expected organisation/name as on {huggingface_hub.constants.ENDPOINT}."
        ) from error
    except LocalEntryNotFoundError as error:
        if huggingface_hub.constants.HF_HUB_OFFLINE:
            advice = "HF_HUB_OFFLINE is set: unset it to download"
        else:
            advice = "check the network, its proxy (HTTPS_PROXY) or mirror (HF_ENDPOINT)"
        raise UserError(
            f"The model {repo_id} ({page}) is not on this machine and the hub does not answer: {advice}, or give a "
            "local folder."
        ) from error
    except HfHubHTTPError as error:
        status = error.response.status_code if error.response is not None else "no"
        raise UserError(
            f"The hub refused {repo_id} with HTTP status {status}: look at {page}; if it wants a login set HF_TOKEN "
            "(or run `hf auth login`)."
        ) from error
    except _NetworkError as error:
        raise UserError(
            f"The download of {repo_id} ({page}) broke off ({type(error).__name__}); run the same command again to "
            "continue it."
        ) from error
