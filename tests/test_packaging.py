"""What is installed is what is pinned, and the parts that promise to do without jax do without it."""

import re
import subprocess
import sys
import tomllib
from importlib import resources
from pathlib import Path

import pytest
from packaging.requirements import Requirement

import burnish

ROOT = Path(__file__).parents[1]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
LOCKS = ("run", "dev")


def pins(lock: str) -> list[Requirement]:
    lines = (ROOT / "requirements" / f"{lock}.txt").read_text().splitlines()
    return [Requirement(line.removesuffix("\\")) for line in lines if re.match(r"[a-z]", line)]


def pinned(lock: str, python: str) -> dict[str, str]:
    environment = {
        "python_version": python,
        "python_full_version": f"{python}.1",
        "sys_platform": "linux",
        "platform_machine": "x86_64",
        "platform_python_implementation": "CPython",
    }
    chosen = [pin for pin in pins(lock) if pin.marker is None or pin.marker.evaluate(environment)]
    assert len({pin.name for pin in chosen}) == len(chosen), "a package is pinned twice for one Python"
    return {pin.name: next(iter(pin.specifier)).version for pin in chosen}


@pytest.mark.parametrize("lock", LOCKS)
def test_a_lock_holds_jax_0_10_for_python_3_11_and_a_newer_one_for_3_12(lock: str):
    assert pinned(lock, "3.11")["jax"].startswith("0.10.")
    assert tuple(int(part) for part in pinned(lock, "3.12")["jax"].split(".")[:2]) >= (0, 12)


@pytest.mark.parametrize("lock", LOCKS)
def test_a_lock_names_no_host_and_holds_neither_torch_nor_cuda(lock: str):
    text = (ROOT / "requirements" / f"{lock}.txt").read_text()
    assert "://" not in text
    assert not [pin.name for pin in pins(lock) if re.match(r"torch|nvidia|jax-cuda|triton", pin.name)]


@pytest.mark.parametrize("python", ["3.11", "3.12", "3.13"])
@pytest.mark.parametrize("lock", LOCKS)
def test_every_dependency_is_pinned_within_its_bounds(lock: str, python: str):
    requirements = [Requirement(text) for text in PROJECT["dependencies"]]
    if lock == "dev":
        requirements += [Requirement(text) for text in PROJECT["optional-dependencies"]["dev"]]
    versions = pinned(lock, python)
    outdated = [str(r) for r in requirements if r.name != "burnish" and versions.get(r.name, "0") not in r.specifier]
    assert outdated == [], "run `make lock LOCK_ARGS=`"


def test_both_locks_agree():
    for python in ("3.11", "3.12"):
        run, dev = pinned("run", python), pinned("dev", python)
        assert {name: (version, dev[name]) for name, version in run.items() if dev.get(name) != version} == {}


@pytest.mark.parametrize("module", ["burnish", "burnish.errors", "burnish.config", "burnish.tasks", "burnish.observe"])
def test_importing_a_room_without_arrays_does_not_import_jax(module: str):
    loaded = subprocess.run(
        [sys.executable, "-c", f"import sys, {module}; print('jax' in sys.modules)"],
        capture_output=True,
        text=True,
        check=True,
    )
    assert loaded.stdout.strip() == "False"


def test_the_version_is_the_one_the_changelog_tells_of():
    assert f"## [{burnish.__version__}]" in (ROOT / "CHANGELOG.md").read_text()


def test_recipes_and_the_typing_marker_lie_inside_the_package():
    package = resources.files("burnish")
    assert package.joinpath("py.typed").is_file()
    assert package.joinpath("config", "recipes", "demo.yaml").is_file()
