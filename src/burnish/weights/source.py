"""What every place that weights come from offers: a config, tensors read one by one, a tokenizer, side files."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

import ml_dtypes
import numpy as np

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerFast

FLOAT_DTYPES: dict[str, np.dtype[Any]] = {
    "float32": np.dtype(np.float32),
    "float16": np.dtype(np.float16),
    "bfloat16": np.dtype(ml_dtypes.bfloat16),
}
"""The number formats that weights may have in a file, by the names that config.json uses."""


@dataclass(frozen=True)
class TensorInfo:
    """One tensor of a source: its shape in Hugging Face's layout and the dtype that `read` returns."""

    shape: tuple[int, ...]
    dtype: str


class Source(Protocol):
    """A checkpoint that can be loaded; `open_source` makes one."""

    name: str
    """What the user asked for, as messages name it."""
    config: dict[str, Any]
    """The content of config.json."""
    generation_config: dict[str, Any]
    """The content of generation_config.json; empty where there is none."""

    @property
    def tensors(self) -> Mapping[str, TensorInfo]:
        """Every tensor by its Hugging Face name."""
        ...

    @property
    def folder(self) -> Path | None:
        """The Hugging Face folder behind this source, if it is one."""
        ...

    def read(self, name: str) -> np.ndarray:
        """One tensor, read from disk now into memory of its own."""
        ...

    def load_tokenizer(self) -> PreTrainedTokenizerFast:
        """The source's tokenizer, chat template included."""
        ...

    def side_files(self) -> dict[str, bytes | Path]:
        """What an exported folder holds besides weights and config.json: relative file name -> content or file."""
        ...
