"""Tiny models that between them use every switch of the supported families, with weights made from their names.

Neither torch nor jax is imported here: `generate.py` feeds these cases to `transformers`, `test_model_parity.py` feeds
the same ones to burnish, and the golden outputs are all that passes between the two.
"""

import hashlib
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

GOLDEN = Path(__file__).with_name("golden")
LOGITS = GOLDEN / "logits.npz"
"""Arrays named `<case>/<index of the sequence>`, float32 [tokens, vocab]."""
CHECKPOINTS = GOLDEN / "checkpoints.json"
"""For each case, the config and the tensors (name → shape) of the checkpoint that `transformers` saves."""

SHARED_PREFIX_TOKENS = 9
"""The last two sequences of every case begin with the same tokens, so that they can hang on one prefix."""
SEQUENCE_TOKENS = (5, 17, 37)
"""The longest goes beyond `original_max_position_embeddings` of the scaled cases."""


@dataclass(frozen=True)
class Case:
    """One tiny model: its config as a Hugging Face file would give it."""

    name: str
    config: dict[str, Any] = field(repr=False, compare=False)

    @property
    def sequences(self) -> list[np.ndarray]:
        """Inputs, int32 [tokens] each."""
        random = _random(self.name, "sequences")
        sequences = [random.randint(0, self.config["vocab_size"], size) for size in SEQUENCE_TOKENS]
        sequences[2][:SHARED_PREFIX_TOKENS] = sequences[1][:SHARED_PREFIX_TOKENS]
        return [sequence.astype(np.int32) for sequence in sequences]

    def weight(self, tensor_name: str, shape: tuple[int, ...]) -> np.ndarray:
        """One tensor of the checkpoint, float32, of a size that keeps attention uneven and logits of order 1 to 5."""
        noise = _random(self.name, tensor_name).standard_normal(shape)
        if tensor_name.endswith("norm.weight"):
            values = 1 + 0.3 * noise
        elif tensor_name.endswith(".bias"):
            values = 0.5 * noise
        elif tensor_name.endswith("embed_tokens.weight"):
            values = 0.3 * noise
        else:
            values = 1.5 * noise / np.sqrt(shape[-1])
        return values.astype(np.float32)


def _random(case: str, what: str) -> np.random.RandomState:
    """The legacy generator: the one whose stream NumPy promises never to change."""
    digest = hashlib.sha256(f"{case}/{what}".encode()).digest()
    return np.random.RandomState(int.from_bytes(digest[:4], "little"))


def _llama(name: str, **fields: Any) -> Case:
    config = {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "vocab_size": 101,
        "hidden_size": 32,
        "intermediate_size": 56,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "hidden_act": "silu",
        "max_position_embeddings": 256,
        "rms_norm_eps": 1e-5,
        "rope_theta": 10000.0,
        "rope_scaling": None,
        "tie_word_embeddings": False,
        "attention_bias": False,
        "mlp_bias": False,
        "bos_token_id": 1,
        "eos_token_id": 2,
    }
    return _case(name, config, fields)


def _qwen2(name: str, **fields: Any) -> Case:
    config = {
        "architectures": ["Qwen2ForCausalLM"],
        "model_type": "qwen2",
        "vocab_size": 103,
        "hidden_size": 48,
        "intermediate_size": 64,
        "num_hidden_layers": 2,
        "num_attention_heads": 6,
        "num_key_value_heads": 2,
        "hidden_act": "silu",
        "max_position_embeddings": 256,
        "max_window_layers": 1,
        "rms_norm_eps": 1e-6,
        "rope_theta": 1000000.0,
        "sliding_window": 8,
        "use_sliding_window": False,
        "tie_word_embeddings": False,
        "attention_dropout": 0.0,
    }
    return _case(name, config, fields)


def _qwen3(name: str, **fields: Any) -> Case:
    config = {
        "architectures": ["Qwen3ForCausalLM"],
        "model_type": "qwen3",
        "vocab_size": 107,
        "hidden_size": 32,
        "intermediate_size": 48,
        "num_hidden_layers": 3,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "head_dim": 16,
        "hidden_act": "silu",
        "max_position_embeddings": 256,
        "max_window_layers": 3,
        "rms_norm_eps": 1e-6,
        "rope_theta": 1000000,
        "rope_scaling": None,
        "sliding_window": None,
        "use_sliding_window": False,
        "tie_word_embeddings": False,
        "attention_bias": False,
        "attention_dropout": 0.0,
    }
    return _case(name, config, fields)


ABSENT = object()
"""Marks a field that the case's config.json does not have, so that the family's default counts."""


def _case(name: str, config: dict[str, Any], fields: dict[str, Any]) -> Case:
    merged = config | fields
    return Case(name, {key: value for key, value in merged.items() if value is not ABSENT})


# Head size 16 and an original context of 32 put channels into all three bands of Llama 3.1's rule: short wavelengths
# (kept), long ones (divided), and those between (blended).
_LLAMA3 = {
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 32,
    "rope_type": "llama3",
}

CASES = [
    _llama("llama-tied", tie_word_embeddings=True),
    _llama("llama-untied", num_attention_heads=8, num_key_value_heads=2, num_hidden_layers=3),
    # Llama 1 and 2: as many key/value heads as heads, and early files say little.
    _llama(
        "llama-2-by-defaults",
        **dict.fromkeys(
            (
                *("num_key_value_heads", "hidden_act", "rms_norm_eps", "rope_theta", "rope_scaling"),
                *("tie_word_embeddings", "attention_bias", "mlp_bias"),
            ),
            ABSENT,
        ),
    ),
    _llama(
        "llama-smollm2",
        hidden_size=36,
        num_attention_heads=9,
        num_key_value_heads=3,
        rope_theta=100000,
        tie_word_embeddings=True,
        is_llama_config=True,
        rope_interleaved=False,
    ),
    _llama("llama-attention-bias-wide-heads-tied", head_dim=24, attention_bias=True, tie_word_embeddings=True),
    _llama("llama-all-biases", attention_bias=True, mlp_bias=True),
    _llama("llama-linear-old-spelling", rope_scaling={"type": "linear", "factor": 2.5}),
    _llama(
        "llama-linear-new-spelling",
        rope_theta=ABSENT,
        rope_scaling=ABSENT,
        rope_parameters={"rope_type": "linear", "factor": 4.0, "rope_theta": 5000.0},
    ),
    _llama("llama-3.1-old-spelling", head_dim=16, rope_theta=5000.0, rope_scaling=_LLAMA3),
    _llama(
        "llama-3.2-new-spelling",
        head_dim=16,
        tie_word_embeddings=True,
        rope_theta=ABSENT,
        rope_scaling=ABSENT,
        rope_parameters=_LLAMA3 | {"factor": 32.0, "rope_theta": 5000.0},
    ),
    _qwen2("qwen2-tied", tie_word_embeddings=True),
    _qwen2("qwen2-untied", num_attention_heads=4, num_key_value_heads=1),
    _qwen2(
        "qwen2-new-spelling",
        rope_theta=ABSENT,
        rope_parameters={"rope_type": "default", "rope_theta": 10000.0},
        layer_types=["full_attention", "full_attention"],
    ),
    _qwen3("qwen3-tied", tie_word_embeddings=True),
    _qwen3("qwen3-untied", num_attention_heads=6, num_key_value_heads=3),
    _qwen3(
        "qwen3-biases-new-spelling",
        attention_bias=True,
        rope_theta=ABSENT,
        rope_scaling=ABSENT,
        rope_parameters={"rope_type": "default", "rope_theta": 1000000.0},
    ),
    _qwen3(
        "qwen3-default-head-size", head_dim=ABSENT, num_attention_heads=2, num_key_value_heads=1, num_hidden_layers=2
    ),
]
