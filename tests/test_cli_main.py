"""The command line starts quickly and without jax, and every way it can end has its message and exit code."""

import os
import subprocess
import sys
import time

import pytest

from burnish import __version__
from burnish.cli import main
from burnish.errors import RunStopped, UserError

RUN = "from burnish.cli.main import run; run()"


def burnish(*arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", RUN, *arguments],
        capture_output=True,
        text=True,
        timeout=120,
        env={**os.environ, "COLUMNS": "120", "NO_COLOR": "1", **environment},
    )


@pytest.mark.parametrize("arguments", [["--help"], ["--version"], ["config", "show", "demo"], ["config", "keys"]])
def test_help_and_config_import_no_jax(arguments: list[str]) -> None:
    check = """if True:
        import sys
        from burnish.cli.main import run
        try:
            run()
        except SystemExit as end:
            assert not end.code
        heavy = {"jax", "torch", "transformers", "numpy", "matplotlib"} & set(sys.modules)
        assert not heavy, heavy
    """
    subprocess.run([sys.executable, "-c", check, *arguments], check=True, stdout=subprocess.DEVNULL, timeout=120)


def test_help_costs_little_more_than_the_library_that_prints_it() -> None:
    def seconds(*command: str) -> float:
        start = time.perf_counter()
        subprocess.run(command, check=True, stdout=subprocess.DEVNULL, timeout=120)
        return time.perf_counter() - start

    pairs = [
        (
            seconds(sys.executable, "-c", RUN, "--help"),
            seconds(sys.executable, "-c", "import rich.console, rich.table, typer"),
        )
        for _ in range(5)
    ]
    assert min(ours for ours, _ in pairs) < 4 * min(typers for _, typers in pairs)


def test_version_is_the_packages() -> None:
    assert burnish("--version").stdout == f"burnish {__version__}\n"


def test_mistyped_verb_is_answered_with_the_real_one() -> None:
    result = burnish("confg")
    assert result.returncode == 2
    assert "Did you mean 'config'?" in result.stderr


def test_user_mistake_is_one_sentence_on_stderr_and_exit_code_2() -> None:
    result = burnish("config", "show", "demo", "steps=ten")
    assert (result.returncode, result.stdout) == (2, "")
    assert result.stderr == (
        "error: steps must be a whole number of at least 1, not ten; type for example steps=100\n"
    )  # fmt: skip


@pytest.mark.parametrize(
    ("raised", "code", "message"),
    [
        (UserError("say [this] instead"), 2, "error: say [this] instead\n"),
        (RunStopped("graders failed\nValueError: first"), 1, "error: graders failed\nerror: ValueError: first\n"),
        (KeyboardInterrupt(), 130, ""),
    ],
)
def test_exit_codes(
    raised: BaseException,
    code: int,
    message: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    def app(**_: object) -> None:
        raise raised

    monkeypatch.setattr(main, "app", app)
    with pytest.raises(SystemExit) as exit_:
        main.run()
    assert exit_.value.code == code
    assert capsys.readouterr().err == message


def test_reader_that_stops_reading_gets_no_traceback() -> None:
    reading, writing = os.pipe()
    os.close(reading)
    try:
        result = subprocess.run(
            [sys.executable, "-c", RUN, "config", "keys"], stdout=writing, stderr=subprocess.PIPE, text=True, timeout=60
        )
    finally:
        os.close(writing)
    assert result.stderr == ""
    assert result.returncode == 1


def test_config_show_prints_what_load_config_reads() -> None:
    from burnish.config import yaml_text
    from burnish.config.loading import load_config
    from burnish.config.schema import RunConfig

    shown = burnish("config", "show", "demo", "seed=3")
    assert RunConfig.model_validate(yaml_text.parse(shown.stdout)) == load_config("demo", ["seed=3"])


def test_config_keys_finds_by_name_and_by_description() -> None:
    assert "rollout.temperature" in burnish("config", "keys", "TEMPER").stdout
    assert "algorithm.advantage" in burnish("config", "keys", "Dr. GRPO").stdout
    assert "did you mean rollout.temperature?" in burnish("config", "keys", "temprature").stderr


def test_doctor_shows_the_machine_and_no_secret() -> None:
    result = burnish("doctor", JAX_PLATFORMS="cpu", HF_TOKEN="hf_verysecret", TPU_API_KEY="alsosecret")
    assert result.returncode == 0, result.stderr
    for word in ("jaxlib", "host memory", "JAX_PLATFORMS", "backend", "TPU_API_KEY", "a token is set"):
        assert word in result.stdout
    assert "secret" not in result.stdout


def test_doctor_says_why_jax_does_not_start() -> None:
    result = burnish("doctor", JAX_PLATFORMS="nonsense")
    assert result.returncode == 1
    assert "jax does not start" in result.stdout
    assert "Traceback" not in result.stderr
