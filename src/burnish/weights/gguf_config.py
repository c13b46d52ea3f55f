"""What a GGUF file's metadata says, in the words of Hugging Face's config.json and generation_config.json.

Every key of the architecture is either honoured or refused by name: a key that is skipped is a model that computes
something else.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import numpy as np

from burnish.errors import UserError

ARCHITECTURES = {"llama": "LlamaForCausalLM", "qwen2": "Qwen2ForCausalLM", "qwen3": "Qwen3ForCausalLM"}
_HONOURED = {
    *("block_count", "context_length", "embedding_length", "feed_forward_length", "vocab_size"),
    *("attention.head_count", "attention.head_count_kv", "attention.key_length", "attention.value_length"),
    *(
        "attention.layer_norm_rms_epsilon",
        "rope.freq_base",
        "rope.dimension_count",
        "rope.scaling.type",
        "rope.scaling.factor",
    ),
    *("rope.scaling.original_context_length", "rope.scaling.finetuned"),
}
# What a key may say when it changes nothing.
_NEUTRAL: dict[str, tuple[Any, ...]] = {
    "attention.sliding_window": (0,),
    "attention.causal": (True,),
    "expert_count": (0,),
    "expert_used_count": (0,),
    "logit_scale": (0.0, 1.0),
    "rope.scale_linear": (1.0,),
    "rope.scaling.attn_factor": (1.0,),
    "tensor_data_layout": ("Meta AI original pth",),
}
# The scalings published with Llama 3.1 and 3.2: (low_freq_factor, high_freq_factor, original context); `factor` shows
# in the tensor.
_LLAMA3_SCALING = (1.0, 4.0, 8192)


def hf_config(
    metadata: Mapping[str, Any], tensor_shapes: Mapping[str, tuple[int, ...]], rope_factors: np.ndarray | None
) -> dict[str, Any]:
    """The content of config.json for a GGUF file.

    `tensor_shapes` are by GGUF name, in Hugging Face's axis order; `rope_factors` is the file's rope_freqs.weight,
    [head_dim / 2].
    """
    architecture = metadata.get("general.architecture")
    if architecture not in ARCHITECTURES:
        raise UserError(
            f"The GGUF file is of architecture {architecture!r}, which burnish can't run; supported: "
            f"{', '.join(ARCHITECTURES)}."
        )
    prefix = f"{architecture}."
    fields = {key.removeprefix(prefix): value for key, value in metadata.items() if key.startswith(prefix)}
    for key, value in fields.items():
        if key not in _HONOURED and value not in _NEUTRAL.get(key, ()):
            raise UserError(
                f"The GGUF file sets {prefix}{key} to {_short(value)}, which burnish does not know how to honour."
            )

    def required(key: str) -> int:
        if not isinstance(fields.get(key), int):
            raise UserError(
                f"The GGUF file should give one whole number for {prefix}{key}, not {_short(fields.get(key))}."
            )
        return int(fields[key])

    hidden, heads = required("embedding_length"), required("attention.head_count")
    head_dim = required("attention.key_length") if "attention.key_length" in fields else hidden // heads
    for key in ("attention.value_length", "rope.dimension_count"):
        if fields.get(key, head_dim) != head_dim:
            raise UserError(
                f"The GGUF file sets {prefix}{key} to {fields[key]} where heads have {head_dim} channels; burnish "
                "needs them equal."
            )
    if "token_embd.weight" not in tensor_shapes:
        raise UserError("The GGUF file has no token_embd.weight: it is not a whole model.")
    theta = _shortest(fields.get("rope.freq_base", 10_000.0))
    config: dict[str, Any] = {
        "architectures": [ARCHITECTURES[architecture]],
        "model_type": architecture,
        "vocab_size": tensor_shapes["token_embd.weight"][0],
        "hidden_size": hidden,
        "intermediate_size": required("feed_forward_length"),
        "num_hidden_layers": required("block_count"),
        "num_attention_heads": heads,
        "num_key_value_heads": required("attention.head_count_kv") if "attention.head_count_kv" in fields else heads,
        "head_dim": head_dim,
        "hidden_act": "silu",
        "max_position_embeddings": required("context_length"),
        "rms_norm_eps": _shortest(fields.get("attention.layer_norm_rms_epsilon", 1e-6)),
        "rope_theta": theta,
        "rope_scaling": _rope_scaling(fields, theta, head_dim, rope_factors),
        "tie_word_embeddings": "output.weight" not in tensor_shapes,
        "attention_dropout": 0.0,
        "torch_dtype": "float32",
        "use_cache": True,
    }
    if architecture != "qwen2":
        config["attention_bias"] = "blk.0.attn_q.bias" in tensor_shapes
    if architecture == "llama":
        config["mlp_bias"] = "blk.0.ffn_up.bias" in tensor_shapes
    else:
        config["use_sliding_window"] = False
    for key, role in (("bos", "bos"), ("eos", "eos"), ("padding", "pad")):
        token_id = metadata.get(f"tokenizer.ggml.{key}_token_id")
        config[f"{role}_token_id"] = None if token_id is None else int(token_id)
    return config


def hf_generation_config(metadata: Mapping[str, Any]) -> dict[str, Any]:
    """The content of generation_config.json: end of text, of turn and of message all stop."""
    ids = {
        key: int(metadata[f"tokenizer.ggml.{key}_token_id"])
        for key in ("bos", "eos", "eot", "eom", "padding")
        if metadata.get(f"tokenizer.ggml.{key}_token_id") is not None
    }
    stops = list(dict.fromkeys(ids[key] for key in ("eos", "eot", "eom") if key in ids))
    content: dict[str, Any] = {}
    if "bos" in ids:
        content["bos_token_id"] = ids["bos"]
    if stops:
        content["eos_token_id"] = stops[0] if len(stops) == 1 else stops
    if "padding" in ids:
        content["pad_token_id"] = ids["padding"]
    return content


def _rope_scaling(
    fields: Mapping[str, Any], theta: float, head_dim: int, factors: np.ndarray | None
) -> dict[str, Any] | None:
    kind = fields.get("rope.scaling.type", "none")
    if kind not in ("none", "linear"):
        raise UserError(
            f"The GGUF file asks for rope.scaling.type {kind!r}, which burnish can't compute; supported: none, linear."
        )
    if kind == "linear":
        if factors is not None or "rope.scaling.factor" not in fields:
            raise UserError(
                "The GGUF file asks for linear RoPE scaling without a plain rope.scaling.factor; burnish can't honour "
                "that."
            )
        return {"rope_type": "linear", "factor": _shortest(fields["rope.scaling.factor"])}
    if fields.get("rope.scaling.factor", 1.0) not in (0.0, 1.0):
        raise UserError(
            f"The GGUF file sets rope.scaling.factor to {fields['rope.scaling.factor']} without a rope.scaling.type; "
            "burnish can't honour that."
        )
    return None if factors is None else _llama3_scaling(theta, head_dim, factors)


def _llama3_scaling(theta: float, head_dim: int, factors: np.ndarray) -> dict[str, Any]:
    """The numbers of Llama 3.1's scaling, of which llama.cpp stores only the divisor of each frequency."""
    low, high, original = _LLAMA3_SCALING
    factor = float(np.max(factors))
    frequencies = 1.0 / theta ** (np.arange(0, head_dim, 2) / head_dim)
    turns = original * frequencies / (2 * math.pi)
    blend = np.clip((turns - low) / (high - low), 0.0, 1.0)
    expected = 1.0 / ((1 - blend) / factor + blend)
    if factors.shape != expected.shape or not np.allclose(factors, expected, rtol=1e-3):
        raise UserError("The GGUF file has a rope_freqs.weight that is not Llama 3's scaling; burnish can't honour it.")
    return {
        "rope_type": "llama3",
        "factor": factor,
        "low_freq_factor": low,
        "high_freq_factor": high,
        "original_max_position_embeddings": original,
    }


def _shortest(value: float) -> float:
    """A float32 from the file as the number its author wrote: 1e-05, not 9.999999747378752e-06."""
    return float(str(np.float32(value)))


def _short(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 80 else text[:77] + "…"
