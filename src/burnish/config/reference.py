"""Writes docs/configuration.md, the reference of every key, from the schema.

`python -m burnish.config.reference > docs/configuration.md`
"""

import sys

from burnish.config.differences import Difference
from burnish.config.keys import Key, all_keys, groups, shown

_INTRODUCTION = """\
# Configuration

<!-- Generated from src/burnish/config/schema.py by `python -m burnish.config.reference > docs/configuration.md`. -->

A run is described by a recipe, a YAML file or one of the packaged names, and by `key=value` settings on top of it:

    burnish train rl gsm8k-smollm2-135m steps=200 optimizer.learning_rate=2e-6 rollout.stop_strings='["\\n\\n"]'

Values are YAML: `true`, `null`, `[a, b]`, `1e-5`. `burnish config show RECIPE key=value …` prints the configuration
that results, `burnish config keys WORD` finds a key. Keys marked ↻ may change when a run is resumed; the others make
it another run.
"""


def reference_page() -> str:
    """The whole page as Markdown."""
    parts = [_INTRODUCTION]
    for group, sentence in groups().items():
        keys = [key for key in all_keys().values() if key.group == group]
        parts.append(f"## {f'`{group}`' if group else 'The run'}\n\n{sentence}\n\n{_table(keys)}")
    return "\n".join(parts)


def _table(keys: list[Key]) -> str:
    rows = ["| key | expects | default | |", "|---|---|---|---|"]
    for key in keys:
        mark = " ↻" if Difference(key.name, None, None).may_change else ""
        default = "required" if key.required else f"`{shown(key.default)}`"
        cells = (f"`{key.name}`{mark}", key.expected, default, key.sentence)
        rows.append("| " + " | ".join(cell.replace("|", r"\|") for cell in cells) + " |")
    return "\n".join(rows) + "\n"


if __name__ == "__main__":
    sys.stdout.write(reference_page())
