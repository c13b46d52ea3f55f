"""The dotted keys of the configuration, read off the schema: what each expects, its default, and its sentence."""

import difflib
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from types import NoneType, UnionType
from typing import Any, Literal, TypeGuard, Union, cast, get_args, get_origin

from annotated_types import Ge, Gt, Le, Lt
from pydantic import BaseModel
from pydantic.fields import FieldInfo

from burnish.config import yaml_text
from burnish.config.schema import RunConfig


@dataclass(frozen=True)
class Key:
    """One key that can be typed as `name=value`."""

    name: str
    """Dotted, for example `rollout.temperature`."""
    types: tuple[type, ...]
    """The Python types of its values, without None."""
    choices: tuple[str, ...]
    """The only values it takes, where it takes only some."""
    nullable: bool
    minimum: float | None
    """The smallest value allowed, where that value itself is allowed."""
    maximum: float | None
    expected: str
    """What a value must be, for people: `a whole number of at least 1`."""
    required: bool
    default: Any
    sentence: str

    @property
    def group(self) -> str:
        """`rollout` of `rollout.temperature`; empty for keys of the run itself."""
        return self.name.rpartition(".")[0]


@cache
def all_keys() -> dict[str, Key]:
    """Every key by its dotted name, in the order of the schema."""
    return {key.name: key for key in _keys_of(RunConfig, "")}


@cache
def groups() -> dict[str, str]:
    """The sentence of every group by its name; the run itself has the name ``""``."""
    found = {"": _one_paragraph(RunConfig.__doc__)}
    for name, field in RunConfig.model_fields.items():
        if _is_group(field.annotation):
            found[name] = _one_paragraph(field.annotation.__doc__)
    return found


def nearest_key(unknown: str) -> str | None:
    """The real key that someone who typed `unknown` most likely meant."""
    group, _, leaf = unknown.rpartition(".")
    names = [name for name, key in all_keys().items() if group not in groups() or not group or key.group == group]
    leaves = {name: name.rpartition(".")[2] for name in names}
    close_leaves = difflib.get_close_matches(leaf, leaves.values(), n=1, cutoff=0.6 if group in groups() else 0.7)
    # With the group spelled right, comparing whole names would count it as likeness.
    whole = [] if group and group in groups() else [*names, *(() if group else groups())]
    rankings = (
        [name for name in names if leaves[name] == leaf],
        difflib.get_close_matches(unknown, whole, n=1, cutoff=0.75),
        [name for name in names if leaves[name] in close_leaves],
        [name for name in names if "".join(word[0] for word in leaves[name].split("_")) == leaf],
        [name for name in names if len(leaf) > 2 and leaf in leaves[name]],
        difflib.get_close_matches(unknown, whole, n=1, cutoff=0.6),
    )
    for candidates in rankings:
        if candidates:
            return difflib.get_close_matches(unknown, candidates, n=1, cutoff=0)[0]
    return None


def _keys_of(model: type[BaseModel], prefix: str) -> Iterator[Key]:
    for name, field in model.model_fields.items():
        if _is_group(field.annotation):
            yield from _keys_of(field.annotation, f"{prefix}{name}.")
        else:
            yield _key(prefix + name, field)


def _is_group(annotation: Any) -> TypeGuard[type[BaseModel]]:
    return isinstance(annotation, type) and issubclass(annotation, BaseModel)


def _key(name: str, field: FieldInfo) -> Key:
    members = get_args(field.annotation) if get_origin(field.annotation) in (Union, UnionType) else (field.annotation,)
    nullable = NoneType in members
    (kind,) = (member for member in members if member is not NoneType)
    choices = get_args(kind) if get_origin(kind) is Literal else ()
    plain = str if choices else get_origin(kind) or kind
    bounds = field.metadata
    return Key(
        name=name,
        types=(int, float) if plain is float else (plain,),
        choices=choices,
        nullable=nullable,
        minimum=next((cast(float, bound.ge) for bound in bounds if isinstance(bound, Ge)), None),
        maximum=next((cast(float, bound.le) for bound in bounds if isinstance(bound, Le)), None),
        expected=_expected(plain, choices, bounds, nullable),
        required=field.is_required(),
        default=None if field.is_required() else field.get_default(call_default_factory=True),
        sentence=_one_paragraph(field.description),
    )


def _expected(kind: type, choices: tuple[str, ...], bounds: list[Any], nullable: bool) -> str:
    if choices:
        what = "one of " + ", ".join(choices)
    else:
        what = {
            bool: "true or false",
            int: "a whole number",
            float: "a number",
            str: "text",
            list: "a list of texts",
            dict: "a mapping",
        }[kind]
    limits = []
    for bound in bounds:
        match bound:
            case Ge():
                limits.append(f"of at least {bound.ge:g}")
            case Gt():
                limits.append(f"above {bound.gt:g}")
            case Le():
                limits.append(f"of at most {bound.le:g}" if not limits else f"at most {bound.le:g}")
            case Lt():
                limits.append(f"below {bound.lt:.10g}")
    text = " and ".join([what + (" " + limits[0] if limits else ""), *limits[1:]])
    return text + (" or null" if nullable else "")


def _one_paragraph(text: str | None) -> str:
    return " ".join((text or "").split())


def shown(value: Any) -> str:
    """A value as it is typed after `key=`."""
    return yaml_text.one_line(value)
