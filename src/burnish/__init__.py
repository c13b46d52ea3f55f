"""burnish: reinforcement-learning post-training of open-weight language models in JAX.

`load` opens a model to ask, score and save; `train` makes it better. What needs jax is imported when it is first used,
so that `import burnish` and the command line's `--help` stay quick.
"""

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from burnish.rl.loop import train as train
    from burnish.rollout.language_model import LanguageModel as LanguageModel
    from burnish.rollout.language_model import load as load

__version__ = "0.1.0"

_HOMES = {
    "LanguageModel": "burnish.rollout.language_model",
    "load": "burnish.rollout.language_model",
    "train": "burnish.rl.loop",
}
"""Where each public name lives."""


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module 'burnish' has no attribute {name!r}")
    return getattr(importlib.import_module(_HOMES[name]), name)


def __dir__() -> list[str]:
    return sorted({*globals(), *_HOMES})
