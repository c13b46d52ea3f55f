"""Tiny GGUF files for the tests, written with the `gguf` package as llama.cpp's converter would write them."""

from pathlib import Path
from typing import Any

import gguf
import numpy as np
from gguf import GGMLQuantizationType

from tiny_models import CHAT_TEMPLATE, MERGES, SPECIAL_TOKENS, tiny_tokenizer

GGUF_NAMES = {
    "model.embed_tokens": "token_embd",
    "model.norm": "output_norm",
    "lm_head": "output",
    "input_layernorm": "attn_norm",
    "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v",
    "self_attn.q_norm": "attn_q_norm",
    "self_attn.k_norm": "attn_k_norm",
    "self_attn.o_proj": "attn_output",
    "post_attention_layernorm": "ffn_norm",
    "mlp.gate_proj": "ffn_gate",
    "mlp.up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down",
}


def gguf_name(name: str) -> str:
    """llama.cpp's name of a Hugging Face tensor."""
    stem, kind = name.rsplit(".", 1)
    if stem.startswith("model.layers."):
        _, _, layer, part = stem.split(".", 3)
        return f"blk.{layer}.{GGUF_NAMES[part]}.{kind}"
    return f"{GGUF_NAMES[stem]}.{kind}"


def interleave_rows(values: np.ndarray, heads: int) -> np.ndarray:
    """The row order that llama.cpp's converter gives the q and k projections of Llama models."""
    rows = values.shape[0]
    order = [
        head * (rows // heads) + half * (rows // heads // 2) + pair
        for head in range(heads)
        for pair in range(rows // heads // 2)
        for half in (0, 1)
    ]
    return values[order]


def tiny_metadata(config: dict[str, Any]) -> dict[str, Any]:
    """The metadata of a GGUF file for a tiny config, with the tiny tokenizer's vocabulary."""
    architecture = config["model_type"]
    vocabulary = tiny_tokenizer().get_vocab()
    tokens = sorted(vocabulary, key=lambda token: vocabulary[token])
    heads = config["num_attention_heads"]
    return {
        f"{architecture}.block_count": config["num_hidden_layers"],
        f"{architecture}.context_length": config["max_position_embeddings"],
        f"{architecture}.embedding_length": config["hidden_size"],
        f"{architecture}.feed_forward_length": config["intermediate_size"],
        f"{architecture}.attention.head_count": heads,
        f"{architecture}.attention.head_count_kv": config["num_key_value_heads"],
        f"{architecture}.attention.key_length": config.get("head_dim", config["hidden_size"] // heads),
        f"{architecture}.attention.layer_norm_rms_epsilon": config["rms_norm_eps"],
        f"{architecture}.rope.freq_base": config["rope_theta"],
        "tokenizer.ggml.model": "gpt2",
        "tokenizer.ggml.pre": "gpt-2",
        "tokenizer.ggml.tokens": tokens,
        "tokenizer.ggml.token_type": [3 if token in SPECIAL_TOKENS else 1 for token in tokens],
        "tokenizer.ggml.merges": [" ".join(pair) for pair in MERGES],
        "tokenizer.ggml.bos_token_id": 1,
        "tokenizer.ggml.eos_token_id": 2,
        "tokenizer.ggml.padding_token_id": 0,
        "tokenizer.chat_template": CHAT_TEMPLATE,
    }


def write_gguf(
    path: Path,
    architecture: str,
    metadata: dict[str, Any],
    tensors: dict[str, np.ndarray],
    quantization: str = "F32",
) -> Path:
    """Write a file of tensors by GGUF name; with a `quantization` other than F32 the matrices are packed already."""
    writer = gguf.GGUFWriter(path, architecture)
    for key, value in metadata.items():
        if isinstance(value, list):
            writer.add_array(key, value)
        else:
            add = {bool: writer.add_bool, int: writer.add_uint32, float: writer.add_float32, str: writer.add_string}
            add[type(value)](key, value)
    for name, values in tensors.items():
        packed = quantization != "F32" and values.ndim > 1
        writer.add_tensor(name, values, raw_dtype=GGMLQuantizationType[quantization] if packed else None)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def converted(config: dict[str, Any], tensors: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    """Hugging Face tensors as llama.cpp's converter stores them."""
    result = {}
    for name, values in tensors.items():
        if config["model_type"] == "llama" and ".q_proj." in name:
            values = interleave_rows(values, config["num_attention_heads"])
        if config["model_type"] == "llama" and ".k_proj." in name:
            values = interleave_rows(values, config["num_key_value_heads"])
        result[gguf_name(name)] = values
    return result
