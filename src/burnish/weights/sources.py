"""Open whatever the user names as a model: a folder, a .gguf file, a hub id, or `smollm2-135m-instruct`."""

from __future__ import annotations

import re
from pathlib import Path

from burnish.errors import UserError
from burnish.weights import hub, smollm2
from burnish.weights.gguf import GgufSource
from burnish.weights.hf_folder import FolderSource
from burnish.weights.source import Source, TensorInfo

__all__ = ["Source", "TensorInfo", "open_source"]

_HUB_ID = re.compile(r"[A-Za-z0-9][\w.-]*/[A-Za-z0-9][\w.-]*")


def may_need_download(source: str) -> bool:
    """Whether opening `source` may fetch it from elsewhere, rather than read what it names on this disk."""
    if source == smollm2.NAME:
        return True
    return not Path(source).expanduser().exists() and _HUB_ID.fullmatch(source) is not None


def open_source(source: str, *, progress: bool = True) -> Source:
    """Open a checkpoint for reading; weights are read later, tensor by tensor.

    `source` is a Hugging Face folder, a `.gguf` file, a hub id `organisation/name`, or the name
    `smollm2-135m-instruct`, in this order of precedence, except that the name wins over a folder called so (write
    `./smollm2-135m-instruct` for that). What can't be opened is a UserError that names it.
    """
    if source == smollm2.NAME:
        return _open_path(smollm2.locate(progress=progress), source)
    path = Path(source).expanduser()
    if source and path.exists():
        return _open_path(path, source)
    if path.suffix.lower() == ".gguf":
        raise UserError(f"There is no file {source}; expected the path of a GGUF file.")
    if _HUB_ID.fullmatch(source):
        return FolderSource(hub.download_folder(source), source)
    raise UserError(
        f"{source!r} is no model: there is no such folder; expected a Hugging Face folder, a .gguf file, "
        f"a hub id such as {smollm2.REPO_ID}, or {smollm2.NAME}."
    )


def _open_path(path: Path, name: str) -> Source:
    if path.is_dir():
        return FolderSource(path, name)
    if path.suffix.lower() == ".gguf":
        return GgufSource(path, name)
    raise UserError(
        f"{name} is a {path.suffix or 'plain'} file; expected a Hugging Face folder (give the folder that holds it) "
        "or a .gguf file."
    )
