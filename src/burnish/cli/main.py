"""The `burnish` command: the list of its verbs, and how each way a verb can end becomes an exit code.

A verb's file imports only typer at its top and everything else inside its function, so that `burnish --help` answers at
once and without jax.
"""

import os
import sys
from typing import Annotated

import typer

from burnish import __version__
from burnish.cli import config_command, demo, doctor, eval_command, generate, train
from burnish.errors import Interrupted, RunStopped, UserError

app = typer.Typer(
    name="burnish",
    help="Reinforcement-learning post-training of open-weight language models in JAX.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)
app.command(name="demo")(demo.demo)
app.add_typer(train.app, name="train")
app.add_typer(config_command.app, name="config")
app.command(name="eval")(eval_command.evaluate)
app.command(name="generate")(generate.generate)
app.command(name="doctor")(doctor.doctor)


def _print_version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"burnish {__version__}")
        raise typer.Exit


@app.callback()
def _options(
    version: Annotated[
        bool, typer.Option("--version", help="Print the version.", callback=_print_version, is_eager=True)
    ] = False,
) -> None:
    pass


def run() -> None:
    """The console script: 0 done, 1 stopped by the run's own alarm, 2 mendable by the user, 130 or 143 interrupted."""
    try:
        try:
            app(prog_name="burnish")
        finally:
            sys.stdout.flush()
    except (UserError, RunStopped) as error:
        _print_error(str(error))
        sys.exit(error.exit_code)
    except Interrupted as interrupted:
        # The run has said where it was saved; that it ended as asked is no error.
        typer.echo(str(interrupted), err=True)
        sys.exit(interrupted.exit_code)
    except KeyboardInterrupt:
        sys.exit(130)
    except BrokenPipeError:
        # Whoever read our output has seen enough; what is still buffered must not complain at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        sys.exit(1)


def _print_error(message: str) -> None:
    from rich.console import Console
    from rich.text import Text

    console = Console(stderr=True, soft_wrap=True, highlight=False)
    for line in message.splitlines() or ["stopped without a message"]:
        console.print(Text.assemble(("error: ", "bold red"), line))
