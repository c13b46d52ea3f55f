"""`burnish config`: what a run would be configured with, and which keys there are."""

from typing import Annotated

import typer

app = typer.Typer(help="Show a run's configuration, or look up its keys.", no_args_is_help=True)


@app.command()
def show(
    arguments: Annotated[
        list[str] | None,
        typer.Argument(metavar="RECIPE KEY=VALUE", help="A packaged recipe or a YAML file, and settings on top of it."),
    ] = None,
) -> None:
    """Print the whole configuration that a recipe and settings result in, as YAML."""
    from burnish.config.loading import dump_yaml, load_config, split_arguments

    typer.echo(dump_yaml(load_config(*split_arguments(arguments or []))), nl=False)


@app.command()
def keys(
    word: Annotated[str, typer.Argument(help="Only keys that have this in their name or description.")] = "",
) -> None:
    """List the keys of the configuration: what each expects, its default, and what it is for."""
    from rich.console import Console
    from rich.text import Text

    from burnish.config.keys import all_keys, nearest_key, shown
    from burnish.errors import UserError

    found = [key for key in all_keys().values() if word.lower() in f"{key.name} {key.sentence}".lower()]
    if not found:
        near = nearest_key(word)
        raise UserError(
            f"no key has {word} in it; " + (f"did you mean {near}?" if near else "type burnish config keys")
        )
    console = Console(highlight=False)
    for key in found:
        default = "required" if key.required else f"default {shown(key.default)}"
        console.print(Text.assemble((key.name, "bold cyan"), f"  {key.expected}; {default}"))
        console.print(Text(f"    {key.sentence}"), style="dim")


@app.command()
def recipes() -> None:
    """List the packaged recipes."""
    from burnish.config.loading import recipe_names

    typer.echo("\n".join(recipe_names()))
