"""Tiny Hugging Face folders for the tests: a config.json, random weights, a real tokenizer with a chat template.

The tensor names and shapes are written out here by hand from the published checkpoints, not taken from
`burnish.model.spec`, so that a test which loads such a folder checks burnish's own table.
"""

import json
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np

SPECIAL_TOKENS = ("<|endoftext|>", "<|im_start|>", "<|im_end|>")
BASE_CONFIG: dict[str, Any] = {
    "vocab_size": 288,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 256,
    "rms_norm_eps": 1e-5,
    "rope_theta": 10000.0,
    "hidden_act": "silu",
    "tie_word_embeddings": False,
    "initializer_range": 0.02,
    "bos_token_id": 1,
    "eos_token_id": 2,
    "pad_token_id": 0,
    "use_cache": True,
}
FAMILY_CONFIG: dict[str, dict[str, Any]] = {
    "llama": {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "attention_bias": False,
        "mlp_bias": False,
        "rope_scaling": None,
    },
    "qwen2": {"architectures": ["Qwen2ForCausalLM"], "model_type": "qwen2", "use_sliding_window": False},
    "qwen3": {
        "architectures": ["Qwen3ForCausalLM"],
        "model_type": "qwen3",
        "attention_bias": False,
        "head_dim": 16,
        "use_sliding_window": False,
    },
}
CHAT_TEMPLATE = (
    "{% for message in messages %}"
    "{{ '<|im_start|>' + message['role'] + '\\n' + message['content'] + '<|im_end|>\\n' }}"
    "{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}"
    "{% if enable_thinking is defined and not enable_thinking %}{{ '<think>\\n\\n</think>\\n\\n' }}{% endif %}"
    "{% endif %}"
)
# Joined in this order; each pair's halves exist before it does.
MERGES = [
    ("Ġ", "t"),
    ("Ġ", "a"),
    ("h", "e"),
    ("i", "n"),
    ("r", "e"),
    ("o", "n"),
    ("Ġt", "he"),
    ("e", "r"),
    ("Ġ", "s"),
    ("a", "t"),
    ("o", "u"),
    ("Ġ", "w"),
    ("i", "s"),
    ("a", "n"),
    ("Ġ", "o"),
    ("Ġo", "f"),
    ("in", "g"),
    ("an", "d"),
    ("Ġa", "n"),
    ("Ġan", "d"),
    ("h", "at"),
    ("w", "hat"),
    ("Ġ", "is"),
    ("u", "s"),
    ("us", "er"),
    ("s", "is"),
    ("t", "an"),
    ("a", "s"),
    ("as", "sis"),
]
NUMPY_DTYPES: dict[str, Any] = {"float32": np.float32, "float16": np.float16, "bfloat16": ml_dtypes.bfloat16}
SAFETENSORS_DTYPES = {"float32": "F32", "float16": "F16", "bfloat16": "BF16", "int64": "I64"}


def tiny_config(family: str = "llama", **overrides: Any) -> dict[str, Any]:
    """The content of a tiny config.json; `overrides` replace or add fields."""
    return {**FAMILY_CONFIG[family], **BASE_CONFIG, "torch_dtype": "float32", **overrides}


def tiny_tensor_shapes(config: dict[str, Any]) -> dict[str, tuple[int, ...]]:
    """HF tensor name -> shape, for a config of one of the three families."""
    family = config["model_type"]
    hidden, inner = config["hidden_size"], config["intermediate_size"]
    head_dim = config.get("head_dim") or hidden // config["num_attention_heads"]
    q_rows, kv_rows = config["num_attention_heads"] * head_dim, config["num_key_value_heads"] * head_dim
    shapes: dict[str, tuple[int, ...]] = {"model.embed_tokens.weight": (config["vocab_size"], hidden)}
    for layer in range(config["num_hidden_layers"]):
        prefix = f"model.layers.{layer}."
        shapes |= {
            prefix + "input_layernorm.weight": (hidden,),
            prefix + "self_attn.q_proj.weight": (q_rows, hidden),
            prefix + "self_attn.k_proj.weight": (kv_rows, hidden),
            prefix + "self_attn.v_proj.weight": (kv_rows, hidden),
            prefix + "self_attn.o_proj.weight": (hidden, q_rows),
            prefix + "post_attention_layernorm.weight": (hidden,),
            prefix + "mlp.gate_proj.weight": (inner, hidden),
            prefix + "mlp.up_proj.weight": (inner, hidden),
            prefix + "mlp.down_proj.weight": (hidden, inner),
        }
        if family == "qwen2" or config.get("attention_bias"):
            for projection, rows in (("q", q_rows), ("k", kv_rows), ("v", kv_rows)):
                shapes[f"{prefix}self_attn.{projection}_proj.bias"] = (rows,)
        if family != "qwen2" and config.get("attention_bias"):
            shapes[prefix + "self_attn.o_proj.bias"] = (hidden,)
        if config.get("mlp_bias"):
            shapes |= {f"{prefix}mlp.{name}_proj.bias": (inner,) for name in ("gate", "up")}
            shapes[prefix + "mlp.down_proj.bias"] = (hidden,)
        if family == "qwen3":
            shapes |= {f"{prefix}self_attn.{name}_norm.weight": (head_dim,) for name in ("q", "k")}
    shapes["model.norm.weight"] = (hidden,)
    if not config["tie_word_embeddings"]:
        shapes["lm_head.weight"] = (config["vocab_size"], hidden)
    return shapes


def tiny_tensors(config: dict[str, Any], *, seed: int = 0, scale: float = 0.1) -> dict[str, np.ndarray]:
    """Random tensors for a config, in the config's dtype; norm weights lie around one."""
    rng = np.random.default_rng(seed)
    dtype = NUMPY_DTYPES[config.get("torch_dtype") or config.get("dtype") or "float32"]
    tensors = {}
    for name, shape in tiny_tensor_shapes(config).items():
        values = rng.standard_normal(shape) * scale + (1.0 if "norm" in name else 0.0)
        tensors[name] = values.astype(dtype)
    return tensors


def write_safetensors(path: Path, tensors: dict[str, np.ndarray], *, metadata: dict[str, str] | None = None) -> None:
    """A safetensors file written straight from the format's description, bfloat16 included."""
    header: dict[str, Any] = {"__metadata__": metadata or {"format": "pt"}}
    offset = 0
    for name, array in tensors.items():
        end = offset + array.nbytes
        header[name] = {
            "dtype": SAFETENSORS_DTYPES[str(array.dtype)],
            "shape": list(array.shape),
            "data_offsets": [offset, end],
        }
        offset = end
    encoded = json.dumps(header).encode()
    encoded += b" " * (-len(encoded) % 8)
    with open(path, "wb") as file:
        file.write(len(encoded).to_bytes(8, "little") + encoded)
        for array in tensors.values():
            file.write(np.ascontiguousarray(array).tobytes())


def tiny_tokenizer(*, chat_template: str | None = CHAT_TEMPLATE) -> Any:
    """A byte-level BPE tokenizer of 288 ids: three special tokens, the 256 bytes, 29 merges."""
    from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    vocab = {
        token: index for index, token in enumerate([*SPECIAL_TOKENS, *sorted(pre_tokenizers.ByteLevel.alphabet())])
    }
    for left, right in MERGES:
        vocab[left + right] = len(vocab)
    tokenizer = Tokenizer(models.BPE(vocab=vocab, merges=MERGES))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens([AddedToken(token, special=True) for token in SPECIAL_TOKENS])
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        bos_token="<|im_start|>",
        eos_token="<|im_end|>",
        pad_token="<|endoftext|>",
        chat_template=chat_template,
        clean_up_tokenization_spaces=False,
        model_max_length=256,
    )


def write_tiny_hf_folder(
    path: Path,
    family: str = "llama",
    *,
    seed: int = 0,
    scale: float = 0.1,
    shards: int = 1,
    tokenizer: bool = True,
    chat_template: str | None = CHAT_TEMPLATE,
    tensors: dict[str, np.ndarray] | None = None,
    **overrides: Any,
) -> Path:
    """Write a complete tiny model folder and return it.

    `overrides` are fields of config.json (`tie_word_embeddings=True`, `torch_dtype="bfloat16"`, …);
    `tensors` replaces the random weights; `shards` > 1 writes that many files and their index.
    """
    path = Path(path)
    path.mkdir(parents=True, exist_ok=True)
    config = tiny_config(family, **overrides)
    tensors = tiny_tensors(config, seed=seed, scale=scale) if tensors is None else tensors
    (path / "config.json").write_text(json.dumps(config, indent=2) + "\n")
    generation = {"bos_token_id": 1, "eos_token_id": [2, 0], "pad_token_id": 0, "do_sample": True, "temperature": 0.7}
    (path / "generation_config.json").write_text(json.dumps(generation, indent=2) + "\n")
    if shards == 1:
        write_safetensors(path / "model.safetensors", tensors)
    else:
        names = list(tensors)
        weight_map = {}
        for shard in range(shards):
            file_name = f"model-{shard + 1:05d}-of-{shards:05d}.safetensors"
            chosen = names[shard::shards]
            write_safetensors(path / file_name, {name: tensors[name] for name in chosen})
            weight_map |= dict.fromkeys(chosen, file_name)
        index = {"metadata": {"total_size": sum(array.nbytes for array in tensors.values())}, "weight_map": weight_map}
        (path / "model.safetensors.index.json").write_text(json.dumps(index, indent=2) + "\n")
    if tokenizer:
        tiny_tokenizer(chat_template=chat_template).save_pretrained(path)
    return path
