"""A Hugging Face folder on disk as a source: config.json, safetensors (one file or shards), tokenizer, side files."""

from __future__ import annotations

import json
from fnmatch import fnmatch
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from burnish.errors import UserError
from burnish.weights.safetensors_file import SafetensorsFile
from burnish.weights.source import TensorInfo

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerFast

SINGLE_FILE = "model.safetensors"
INDEX_FILE = "model.safetensors.index.json"
TOKENIZER_FILES = ("tokenizer.json", "tokenizer.model", "vocab.json", "*.tiktoken")
"""A folder without any of these has no tokenizer."""
_SIDE_FILES = (
    *(
        "tokenizer*",
        "*.tiktoken",
        "vocab.json",
        "vocab.txt",
        "merges.txt",
        "special_tokens_map.json",
        "added_tokens.json",
    ),
    *("chat_template*", "*.jinja", "additional_chat_templates/*.jinja", "generation_config.json"),
    *("README*", "LICENSE*", "LICENCE*", "NOTICE*", "USE_POLICY*"),
)


class FolderSource:
    """A local Hugging Face folder; opening it reads headers only."""

    def __init__(self, folder: Path, name: str | None = None) -> None:
        self.folder: Path = folder
        self.name = name or str(folder)
        self.config = read_json(folder / "config.json", needed_in=folder)
        generation = folder / "generation_config.json"
        self.generation_config = read_json(generation) if generation.exists() else {}
        self._file_of = _open_weight_files(folder)
        self.tensors: dict[str, TensorInfo] = {name: file.tensors[name] for name, file in self._file_of.items()}

    def read(self, name: str) -> np.ndarray:
        """One tensor, read from its file now."""
        return self._file_of[name].read(name)

    def load_tokenizer(self) -> PreTrainedTokenizerFast:
        """The folder's tokenizer, chat template included."""
        from burnish.text.tokenizer import load_tokenizer

        if not has_tokenizer(path.name for path in self.folder.iterdir()):
            raise UserError(
                f"{self.name} holds no tokenizer (tokenizer.json, tokenizer.model or vocab.json); add the model's own "
                "files."
            )
        return load_tokenizer(self.folder)

    def side_files(self) -> dict[str, bytes | Path]:
        """The files that an export copies byte for byte."""
        paths = [*self.folder.glob("*"), *self.folder.glob("additional_chat_templates/*")]
        names = {path.relative_to(self.folder).as_posix(): path for path in sorted(paths) if path.is_file()}
        return {
            name: path
            for name, path in names.items()
            if any(fnmatch(name, pattern) and name.count("/") == pattern.count("/") for pattern in _SIDE_FILES)
        }


def has_tokenizer(file_names: Any) -> bool:
    """Whether a folder with these files has a tokenizer."""
    return any(fnmatch(name, pattern) for name in file_names for pattern in TOKENIZER_FILES)


def read_json(path: Path, needed_in: Path | None = None) -> dict[str, Any]:
    """A JSON file's object; a UserError names the file that is missing or garbled."""
    if needed_in is not None and not path.is_file():
        hint = (
            f"; that looks like a run folder: give {needed_in / 'hf'}"
            if (needed_in / "hf" / path.name).is_file()
            else ""
        )
        raise UserError(f"{needed_in} is not a Hugging Face model folder: it has no {path.name}{hint}.")
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except (ValueError, OSError) as error:
        raise UserError(f"{path} can't be read as JSON ({error}); download it again.") from error
    if not isinstance(content, dict):
        raise UserError(f"{path} should hold a JSON object, not a {type(content).__name__}; download it again.")
    return content


def _open_weight_files(folder: Path) -> dict[str, SafetensorsFile]:
    """Tensor name -> the open file that holds it."""
    if (folder / SINGLE_FILE).is_file():
        file = SafetensorsFile(folder / SINGLE_FILE)
        return dict.fromkeys(file.tensors, file)
    index_path = folder / INDEX_FILE
    if not index_path.is_file():
        others = sorted(
            path.name
            for path in folder.glob("*")
            if path.suffix in (".bin", ".pt", ".pth", ".gguf", ".h5", ".safetensors")
        )
        found = f" (found {', '.join(others[:3])})" if others else ""
        raise UserError(
            f"{folder} has neither {SINGLE_FILE} nor {INDEX_FILE}{found}; burnish reads safetensors, or a .gguf file "
            "given by its own path."
        )
    weight_map = read_json(index_path).get("weight_map")
    if not isinstance(weight_map, dict) or not all(isinstance(shard, str) for shard in weight_map.values()):
        raise UserError(f"{index_path} has no weight_map; download it again.")
    shards = sorted(set(weight_map.values()))
    missing = [shard for shard in shards if not (folder / shard).is_file()]
    if missing:
        raise UserError(
            f"{folder} lacks {len(missing)} of its {len(shards)} weight files: {', '.join(missing)}; download them."
        )
    files = {shard: SafetensorsFile(folder / shard) for shard in shards}
    astray = [name for name, shard in weight_map.items() if name not in files[shard].tensors]
    if astray:
        raise UserError(
            f"{index_path} places {', '.join(astray[:5])} in {weight_map[astray[0]]}, which doesn't hold it; download "
            "the folder again."
        )
    return {name: file for file in files.values() for name in file.tensors}
