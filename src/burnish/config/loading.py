"""From a recipe and `key=value` overrides to a checked `RunConfig`, with one sentence for each mistake."""

import copy
import difflib
from collections.abc import Mapping, Sequence
from importlib import resources
from pathlib import Path
from typing import Any

from pydantic import ValidationError
from pydantic_core import ErrorDetails

from burnish.config import yaml_text
from burnish.config.keys import Key, all_keys, groups, nearest_key
from burnish.config.schema import RunConfig
from burnish.config.yaml_text import YamlError, one_line
from burnish.errors import UserError


def load_config(recipe: str | Path | None, overrides: Sequence[str] = ()) -> RunConfig:
    """The configuration of a packaged recipe (by name) or of a YAML file (by path), with `key=value` overrides on top.

    Overrides of a whole group (`task=gsm8k`) apply before those of its keys (`task.path=…`); otherwise the last wins.
    """
    data = {} if recipe is None else _read_recipe(recipe)
    pairs = [_split_override(override) for override in overrides]
    for key, raw in sorted(pairs, key=lambda pair: pair[0].count(".")):
        _apply(data, key, _override_value(key, raw))
    return _validated(data, origin=f"{recipe}: " if recipe is not None and not overrides else "")


def config_from(data: Mapping[str, Any]) -> RunConfig:
    """The configuration that nested mappings give, as YAML would: `{"model": …, "task": {"name": …}}`."""
    return _validated(dict(data), origin="")


def _validated(data: dict[str, Any], origin: str) -> RunConfig:
    try:
        return RunConfig.model_validate(data)
    except ValidationError as error:
        sentences = [origin + _sentence(problem, data) for problem in error.errors(include_url=False)]
        raise UserError("\n".join(sentences)) from None


def split_arguments(arguments: Sequence[str]) -> tuple[str | None, list[str]]:
    """`[RECIPE] [key=value …]` as a shell gives it: the one argument without `=` (or that is a file) is the recipe."""
    recipes = [argument for argument in arguments if "=" not in argument or Path(argument).is_file()]
    if len(recipes) > 1:
        raise UserError(
            f"{' and '.join(recipes)} were both given, but a run has one recipe; "
            f"type settings as key=value, for example task={recipes[1]}"
        )
    return (recipes[0] if recipes else None), [argument for argument in arguments if argument not in recipes]


def dump_yaml(config: RunConfig) -> str:
    """The whole configuration as YAML that `load_config` reads back to an equal one."""
    return yaml_text.dump(config.model_dump(mode="python"))


def recipe_names() -> list[str]:
    """Names of the packaged recipes."""
    folder = resources.files("burnish.config") / "recipes"
    return sorted(file.name.removesuffix(".yaml") for file in folder.iterdir() if file.name.endswith(".yaml"))


def _read_recipe(recipe: str | Path) -> dict[str, Any]:
    name = str(recipe)
    if name in recipe_names():
        content = (resources.files("burnish.config") / "recipes" / f"{name}.yaml").read_bytes()
    else:
        content = _read_file(recipe)
    try:
        data = yaml_text.parse(content.decode("utf-8-sig"))
    except UnicodeDecodeError as error:
        line = content.count(b"\n", 0, error.start) + 1
        raise UserError(f"{name}, line {line}: the file is not UTF-8 text; save it as UTF-8") from None
    except YamlError as error:
        place = f", line {error.line}" if error.line else ""
        raise UserError(f"{name}{place}: not valid YAML: {error}") from None
    if data is None:
        return {}
    if not isinstance(data, dict):
        raise UserError(f"{name} holds {one_line(data)}, but a recipe holds lines such as `steps: 100`")
    return data


def _read_file(recipe: str | Path) -> bytes:
    path = Path(recipe).expanduser()
    if path.is_dir():
        inside = path / "config.yaml"
        advice = f"type {inside}" if inside.is_file() else "type the path of a .yaml file"
        raise UserError(f"{recipe} is a folder and a recipe is a file; {advice}")
    try:
        return path.read_bytes()
    except FileNotFoundError:
        raise UserError(_no_such_recipe(str(recipe))) from None
    except OSError as error:
        raise UserError(
            f"{recipe} can't be read ({error.strerror}); type a file that can, or a recipe's name"
        ) from None


def _no_such_recipe(recipe: str) -> str:
    if recipe.endswith((".yaml", ".yml")) or "/" in recipe:
        return (
            f"{recipe} does not exist; type the path of a .yaml file, or a recipe's name: {', '.join(recipe_names())}"
        )
    close = difflib.get_close_matches(recipe, recipe_names(), n=1, cutoff=0.4)
    meant = f"; did you mean {close[0]}?" if close else "."
    return f"there is no recipe {recipe} (there are {', '.join(recipe_names())}){meant}"


def _split_override(override: str) -> tuple[str, str]:
    key, equals, value = override.partition("=")
    key = key.strip().removeprefix("--")
    if not equals or not key:
        raise UserError(f"{override} is not a setting; type key=value, for example steps=50")
    return key, value


def _override_value(name: str, raw: str) -> Any:
    """`raw` parsed as YAML, except where the key takes text: run_name=007 stays text."""
    key = all_keys().get(name)
    takes_text = (key is not None and key.types == (str,)) or name == "task"
    try:
        value = yaml_text.parse(raw)
    except YamlError as error:
        if takes_text:
            return raw
        raise UserError(f"{name}={raw} can't be read ({error}); put the value in quotes, '\"…\"'") from None
    if name == "task" and isinstance(value, dict):
        return value
    return raw if takes_text and value is not None and not isinstance(value, str) else value


def _apply(data: dict[str, Any], name: str, value: Any) -> None:
    """Set the dotted key `name` in nested `data`; a mapping given for a group changes only the keys it holds."""
    *parents, leaf = name.split(".")
    place = data
    for depth, parent in enumerate(parents):
        inner = place.get(parent)
        if parent == "task" and depth == 0 and isinstance(inner, str):
            inner = {"name": inner}
        if not isinstance(inner, dict):
            inner = {}
        # A copy, because a YAML alias may let two keys share one mapping.
        place[parent] = copy.copy(inner)
        place = place[parent]
    if name in groups() and isinstance(value, dict) and isinstance(place.get(leaf), dict):
        value = {**place[leaf], **value}
    place[leaf] = value


def _sentence(problem: ErrorDetails, data: dict[str, Any]) -> str:
    """One of pydantic's findings in the words of someone who types `key=value`."""
    path = [str(part) for part in problem["loc"]]
    name = ".".join(path)
    if problem["type"] == "value_error":
        return str(problem["ctx"]["error"])
    if problem["type"] == "missing":
        return f"{name} is not set and has no default; type {name}=… ({all_keys()[name].sentence})"
    if problem["type"] == "extra_forbidden":
        if isinstance(problem["input"], dict) and problem["input"]:
            name = f"{name}.{next(iter(problem['input']))}"
        near = nearest_key(name)
        meant = f"did you mean {near}?" if near else "`burnish config keys` lists all of them."
        return f"there is no key {name}; {meant}"
    while path and ".".join(path) not in all_keys() and ".".join(path) not in groups():
        path.pop()  # an element of a list or mapping: the sentence is about the key that holds it
    name = ".".join(path)
    given = data
    for part in path:
        given = given[part]
    if name in groups():
        example = next(key for key in all_keys() if key.startswith(f"{name}."))
        return f"{name}={one_line(given)} is not possible, {name} is a group of keys; type for example {example}=…"
    key = all_keys()[name]
    return f"{name} must be {key.expected}, not {one_line(given)}; type for example {name}={_suggestion(key, given)}"


def _suggestion(key: Key, given: Any) -> str:
    """A value that would be accepted and lies close to what was given."""
    if key.choices:
        close = difflib.get_close_matches(str(given).lower(), key.choices, n=1, cutoff=0.4)
        return close[0] if close else str(key.default)
    number = given
    if isinstance(given, str) and key.types != (str,):
        try:
            number = float(given)
        except ValueError:
            number = None
    if isinstance(number, int | float) and not isinstance(number, bool) and number == number:
        if key.minimum is not None and number < key.minimum:
            return f"{key.minimum:g}"
        if key.maximum is not None and number > key.maximum:
            return f"{key.maximum:g}"
        if key.types == (int,) and abs(number) < 2**31:
            return str(round(number))
        if key.types == (str,):
            return f"'{given}'"
    if key.required:
        return "…"
    if key.types == (list,) and isinstance(given, str):
        return one_line([given])
    if key.types == (bool,):
        return {"yes": "true", "on": "true", "1": "true"}.get(str(given).lower(), "false")
    return one_line(key.default)
