"""A GGUF file as a source: its tensors under Hugging Face's names and row order, dequantised to float32 one by one."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from burnish.errors import UserError
from burnish.weights.gguf_config import hf_config, hf_generation_config
from burnish.weights.gguf_file import GgufFile
from burnish.weights.source import TensorInfo

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerFast

QUANTIZATIONS = ("F32", "F16", "BF16", "Q8_0", "Q4_0", "Q4_1", "Q4_K", "Q6_K")
_GLOBAL_NAMES = {"token_embd": "model.embed_tokens", "output_norm": "model.norm", "output": "lm_head"}
_LAYER_NAMES = {
    "attn_norm": "input_layernorm",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_q_norm": "self_attn.q_norm",
    "attn_k_norm": "self_attn.k_norm",
    "attn_output": "self_attn.o_proj",
    "ffn_norm": "post_attention_layernorm",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
}
_ROPE_FACTORS = "rope_freqs.weight"
_INTERLEAVED = re.compile(r"blk\.\d+\.attn_(q|k)\.(weight|bias)")


class GgufSource:
    """An open GGUF file; the metadata is read at once, a tensor when it is asked for."""

    folder: Path | None = None

    def __init__(self, path: Path, name: str | None = None) -> None:
        self.name = name or str(path)
        self._file = GgufFile(path)
        self.metadata = self._file.metadata
        if (parts := self.metadata.get("split.count", 1)) > 1:
            raise UserError(f"{path} is one of {parts} parts; join them with `llama-gguf-split --merge` first.")
        tensors = self._file.tensors
        if odd := sorted({tensor.quantization for tensor in tensors.values()} - set(QUANTIZATIONS)):
            raise UserError(
                f"{path} has tensors of type {', '.join(odd)}, which burnish can't read; "
                f"supported: {', '.join(QUANTIZATIONS)}."
            )
        rope_factors = self._file.read(_ROPE_FACTORS) if _ROPE_FACTORS in tensors else None
        self.config = hf_config(self.metadata, {name: tensor.shape for name, tensor in tensors.items()}, rope_factors)
        self.generation_config = hf_generation_config(self.metadata)
        self._gguf_name = {hf_name(name): name for name in tensors if name != _ROPE_FACTORS}
        self.tensors = {name: TensorInfo(tensors[key].shape, "float32") for name, key in self._gguf_name.items()}

    def read(self, name: str) -> np.ndarray:
        """One tensor as float32, in Hugging Face's row order."""
        gguf_name = self._gguf_name[name]
        values = self._file.read(gguf_name)
        if self.config["model_type"] == "llama" and (match := _INTERLEAVED.fullmatch(gguf_name)):
            heads = self.config["num_attention_heads" if match[1] == "q" else "num_key_value_heads"]
            values = half_split_rows(values, heads)
        return values

    def load_tokenizer(self) -> PreTrainedTokenizerFast:
        """The tokenizer built from the file's own vocabulary."""
        from burnish.text.gguf_tokenizer import tokenizer_from_gguf

        return tokenizer_from_gguf(self.metadata)

    def side_files(self) -> dict[str, bytes | Path]:
        """Tokenizer files and generation_config.json made from the metadata."""
        from burnish.text.gguf_tokenizer import tokenizer_files

        files: dict[str, bytes | Path] = dict(tokenizer_files(self.load_tokenizer()))
        files["generation_config.json"] = (json.dumps(self.generation_config, indent=2) + "\n").encode()
        return files


def hf_name(gguf_name: str) -> str:
    """The Hugging Face name of a GGUF tensor; an unknown one stays as it is, so that loading refuses it by name."""
    match gguf_name.split("."):
        case ["blk", layer, part, kind] if part in _LAYER_NAMES:
            return f"model.layers.{layer}.{_LAYER_NAMES[part]}.{kind}"
        case [part, kind] if part in _GLOBAL_NAMES:
            return f"{_GLOBAL_NAMES[part]}.{kind}"
    return gguf_name


def half_split_rows(values: np.ndarray, heads: int) -> np.ndarray:
    """Undo llama.cpp's row order of q and k, [heads * head_dim, …].

    llama.cpp rotates neighbouring channels (0, 1), (2, 3), …; Hugging Face rotates channel i with i + head_dim / 2.
    Converters of Llama models therefore interleave each head's two halves.
    """
    pairs = values.reshape(heads, values.shape[0] // heads // 2, 2, *values.shape[1:])
    return np.ascontiguousarray(pairs.swapaxes(1, 2)).reshape(values.shape)
