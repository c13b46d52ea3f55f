"""`burnish doctor`: what this machine has and lacks for a run, on one page to read or to paste into a report."""

import os
import sys
from collections.abc import Iterator
from importlib import metadata
from pathlib import Path

import typer

PACKAGES = (
    "burnish", "jax", "jaxlib", "libtpu", "optax", "orbax-checkpoint", "numpy", "transformers", "tokenizers",
    "safetensors", "huggingface-hub", "gguf", "math-verify", "pydantic",
)  # fmt: skip

EXTRAS = {
    "datasets": ("datasets", "data sets from the hub, and parquet files"),
    "reasoning-gym": ("reasoning-gym", "tasks named reasoning_gym:…"),
    "wandb": ("wandb", "tracking.wandb_project"),
    "trackio": ("trackio", "tracking.trackio_project"),
}
"""Extra of burnish → the package it installs, and what that is for."""

VARIABLES = (
    "JAX_", "XLA_", "LIBTPU_INIT_ARGS", "TPU_", "PJRT_", "MEGASCALE_", "CUDA_VISIBLE_DEVICES", "LD_LIBRARY_PATH",
    "HF_HOME", "HF_HUB_", "HF_ENDPOINT", "TRANSFORMERS_", "OMP_NUM_THREADS",
)  # fmt: skip
"""Beginnings of the environment variables that change how jax, the TPU runtime or the hub behave."""

SECRET_WORDS = ("TOKEN", "SECRET", "PASSWORD", "API_KEY", "CREDENTIAL")

Finding = tuple[str, str]


def doctor() -> None:
    """Show versions, devices, memory, kernels, environment and what is missing, with how to install it."""
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    console = Console(highlight=False)
    devices, problem = _devices()
    sections = {
        "Versions": list(_versions()),
        "Devices": devices,
        "Memory": list(_memory()),
        "Kernels": [("attention", "XLA, on every kind of device"), ("experts", "none (dense models only)")],
        "Environment": list(_environment()) or [("", "none of the variables that matter is set")],
        "Folders": list(_folders()),
        "Hub": list(_hub()),
        "Extras": list(_extras()),
    }
    for title, findings in sections.items():
        console.print(Text(title, style="bold"))
        table = Table.grid(padding=(0, 2))
        table.add_column(no_wrap=True)
        table.add_column(overflow="fold")
        for name, value in findings:
            table.add_row(Text(f"  {name}", style="cyan"), Text(value))
        console.print(table)
    if problem:
        console.print(Text(problem, style="bold red"))
        raise typer.Exit(1)


def _versions() -> Iterator[Finding]:
    yield "python", f"{sys.version.split()[0]} ({sys.executable})"
    for package in PACKAGES:
        missing = "not installed (TPU machines need it)" if package == "libtpu" else "missing: reinstall burnish"
        yield package, _version(package) or missing


def _version(package: str) -> str | None:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return None


def _devices() -> tuple[list[Finding], str | None]:
    """The devices jax sees, and a sentence where it sees none or fewer kinds than the machine has."""
    try:
        import jax

        found = jax.devices()
    except (ImportError, RuntimeError) as error:
        return [("jax", "found no device")], f"jax does not start: {error}"
    findings = [("backend", f"{jax.default_backend()}, process {jax.process_index()} of {jax.process_count()}")]
    for device in found:
        statistics = device.memory_stats() or {}
        limit, used = statistics.get("bytes_limit"), statistics.get("bytes_in_use", 0)
        memory = f", {_gib(limit)} memory, {_gib(used)} in use" if limit else ""
        findings.append((str(device), device.device_kind + memory))
    if jax.default_backend() == "cpu":
        if Path("/dev/nvidiactl").exists():
            findings.append(("GPU", "there is one, but jax does not use it: python -m pip install 'jax[cuda13]'"))
        if any(Path("/dev").glob("accel*")) or any(Path("/dev/vfio").glob("[0-9]*")):
            findings.append(("TPU", "there seems to be one, but jax does not use it: python -m pip install 'jax[tpu]'"))
    return findings, None


def _memory() -> Iterator[Finding]:
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    yield "CPU cores", str(cores)
    if hasattr(os, "sysconf"):
        yield "host memory", _gib(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"))
    limit = Path("/sys/fs/cgroup/memory.max")
    if limit.exists() and (text := limit.read_text().strip()).isdigit():
        yield "of which allowed", _gib(int(text))


def _environment() -> Iterator[Finding]:
    for name, value in sorted(os.environ.items()):
        if name.startswith(VARIABLES):
            secret = any(word in name.upper() for word in SECRET_WORDS)
            yield name, "set (not shown)" if secret else value


def _folders() -> Iterator[Finding]:
    import shutil

    from huggingface_hub import constants

    from burnish.config.cache import cache_folder

    yield "hub cache", constants.HF_HUB_CACHE
    yield "burnish cache", str(cache_folder())
    yield "jax compilation cache", os.environ.get("JAX_COMPILATION_CACHE_DIR") or str(cache_folder() / "jax")
    yield "free disk here", _gib(shutil.disk_usage(Path.cwd()).free)


def _hub() -> Iterator[Finding]:
    from huggingface_hub import constants, get_token

    yield "address", constants.ENDPOINT + (", not asked: HF_HUB_OFFLINE is set" if constants.HF_HUB_OFFLINE else "")
    if get_token():
        yield "login", "a token is set; burnish never shows or writes it"
    else:
        yield "login", "none: gated models need `hf auth login`, or HF_TOKEN in the environment"


def _extras() -> Iterator[Finding]:
    for extra, (package, use) in EXTRAS.items():
        installed = _version(package)
        yield extra, installed or f"missing, for {use}: python -m pip install 'burnish[{extra}]'"


def _gib(size: int) -> str:
    return f"{size / 2**30:.1f} GiB"
