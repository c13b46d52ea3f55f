"""YAML as burnish reads and writes it: with YAML 1.2's plain scalars, and no key twice.

PyYAML follows YAML 1.1, where `1e-5` is text, `no` is false, `1:30` is ninety and `2024-01-01` is a date.
"""

import re
from typing import Any

import yaml

_SCALARS = {
    "tag:yaml.org,2002:null": (re.compile(r"^(?:~|null|Null|NULL|)$"), ["~", "n", "N", ""]),
    "tag:yaml.org,2002:bool": (re.compile(r"^(?:true|True|TRUE|false|False|FALSE)$"), list("tTfF")),
    "tag:yaml.org,2002:int": (re.compile(r"^[-+]?[0-9]+(?:_[0-9]+)*$"), list("-+0123456789")),
    "tag:yaml.org,2002:float": (
        re.compile(
            r"^(?:[-+]?(?:[0-9]+(?:_[0-9]+)*\.?[0-9]*|\.[0-9]+)(?:[eE][-+]?[0-9]+)?|[-+]?\.(?:inf|Inf|INF)|\.(?:nan|NaN|NAN))$"
        ),
        list("-+0123456789."),
    ),
}


class _Loader(yaml.SafeLoader):
    """Reads plain data only (never Python objects), refusing a key that stands twice or is not text."""

    yaml_implicit_resolvers = {}  # noqa: RUF012 (PyYAML's own way to give a loader its resolvers)

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        seen: set[str] = set()
        for key_node, _ in node.value:
            key = self.construct_object(key_node, deep=True)
            if not isinstance(key, str):
                raise yaml.constructor.ConstructorError(
                    None, None, f"the key {key!r} is not text; put it in quotes", key_node.start_mark
                )
            if key in seen:
                raise yaml.constructor.ConstructorError(
                    None, None, f"the key {key} stands twice; remove one", key_node.start_mark
                )
            seen.add(key)
        return super().construct_mapping(node, deep=deep)


def _decimal_int(loader: _Loader, node: yaml.ScalarNode) -> int:
    # PyYAML would read 010 as eight.
    return int(loader.construct_scalar(node).replace("_", ""))


_Loader.add_constructor("tag:yaml.org,2002:int", _decimal_int)
for _tag, (_pattern, _first) in _SCALARS.items():
    _Loader.add_implicit_resolver(_tag, _pattern, _first)


class _Dumper(yaml.SafeDumper):
    """Quotes whatever either YAML 1.1 or 1.2 would take for something other than text."""


_Dumper.add_implicit_resolver("tag:yaml.org,2002:float", *_SCALARS["tag:yaml.org,2002:float"])


class YamlError(ValueError):
    """Text that is not YAML; `line` counts from 1."""

    def __init__(self, problem: str, line: int | None) -> None:
        super().__init__(problem)
        self.line = line


def parse(text: str) -> Any:
    """The data that YAML `text` holds."""
    try:
        return yaml.load(text, Loader=_Loader)
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        raise YamlError(error.problem or str(error), mark.line + 1 if mark else None) from error
    except yaml.reader.ReaderError as error:
        line = text.count("\n", 0, error.position) + 1
        raise YamlError(f"the character U+{ord(text[error.position]):04X} is not allowed", line) from error


def dump(data: Any) -> str:
    """`data` as a YAML document, keys in the order they have."""
    return yaml.dump(data, Dumper=_Dumper, sort_keys=False, allow_unicode=True, width=120)


def one_line(value: Any) -> str:
    """`value` as one would type it after `key=`, shortened where it is long."""
    text = yaml.dump(value, Dumper=_Dumper, default_flow_style=True, allow_unicode=True, width=10**6)
    text = text.removesuffix("...\n").strip().replace("\n", " ")
    return text if len(text) <= 80 else text[:77] + "..."
