"""Published config.json files are understood; what burnish can't compute is refused by a sentence that names it.

`published_configs.json` holds the fields of well-known checkpoints and how many parameters their publishers count.
"""

import json
import re
from pathlib import Path
from typing import Any

import pytest

from burnish.errors import UserError
from burnish.model.spec import ModelSpec
from oracle.cases import CASES

PUBLISHED = json.loads(Path(__file__).with_name("published_configs.json").read_text())
CONFIGS = {case.name: case.config for case in CASES}


@pytest.mark.parametrize("name", PUBLISHED)
def test_published_checkpoint_has_its_published_number_of_parameters(name: str) -> None:
    assert ModelSpec.from_config(PUBLISHED[name]["config"]).num_parameters == PUBLISHED[name]["parameters"]


def test_rope_of_llama_3_is_read() -> None:
    rope = ModelSpec.from_config(PUBLISHED["Llama-3.1-8B-Instruct"]["config"]).rope
    assert (rope.theta, rope.type, rope.factor) == (500_000.0, "llama3", 8.0)
    assert (rope.low_freq_factor, rope.high_freq_factor, rope.original_max_position_embeddings) == (1.0, 4.0, 8192)


REFUSED: list[tuple[str, dict[str, Any], str]] = [
    # case, fields that replace the case's own, what the sentence must name
    ("llama-untied", {"rope_theta": None}, "rope_theta"),
    ("llama-untied", {"rope_theta": "10000"}, "rope_theta"),
    ("llama-untied", {"rms_norm_eps": None}, "rms_norm_eps"),
    ("llama-untied", {"rope_scaling": "linear"}, "rope scaling"),
    ("llama-untied", {"rope_scaling": {"type": "linear", "factor": 0}}, "factor"),
    (
        "llama-untied",
        {"rope_scaling": {"type": "linear", "factor": 2.0}, "rope_parameters": {"rope_type": "default"}},
        "differ",
    ),
    (
        "llama-untied",
        {
            "rope_scaling": {
                "rope_type": "llama3",
                "factor": 8.0,
                "low_freq_factor": 4.0,
                "high_freq_factor": 4.0,
                "original_max_position_embeddings": 64,
            }
        },
        "low_freq_factor",
    ),
    ("llama-untied", {"model_type": ["llama"]}, "model_type"),
    ("llama-untied", {"tie_word_embeddings": "false"}, "tie_word_embeddings"),
    ("qwen3-untied", {"layer_types": ["full_attention"]}, "layer_types"),
    ("llama-untied", {"model_type": "mistral", "architectures": ["MistralForCausalLM"]}, "mistral"),
    ("llama-untied", {"model_type": "gemma2", "architectures": ["Gemma2ForCausalLM"]}, "gemma2"),
    ("qwen3-untied", {"model_type": "qwen3_moe", "architectures": ["Qwen3MoeForCausalLM"]}, "qwen3_moe"),
    ("llama-untied", {"model_type": None}, "model_type"),
    ("llama-untied", {"architectures": ["LlamaForSequenceClassification"]}, "LlamaForSequenceClassification"),
    ("llama-untied", {"sliding_window": 4096}, "sliding_window"),
    ("qwen2-untied", {"use_sliding_window": True}, "sliding_window"),
    ("qwen2-untied", {"use_sliding_window": True, "sliding_window": None}, "use_sliding_window"),
    ("qwen3-untied", {"layer_types": ["full_attention", "sliding_attention", "full_attention"]}, "sliding_attention"),
    ("qwen3-untied", {"layer_types": ["full_attention", "chunked_attention", "full_attention"]}, "layer_types"),
    ("llama-untied", {"rope_scaling": {"type": "dynamic", "factor": 2.0}}, "dynamic"),
    (
        "llama-untied",
        {"rope_scaling": {"rope_type": "longrope", "long_factor": [1.0]}},
        "longrope",
    ),
    (
        "qwen2-untied",
        {"rope_scaling": {"type": "yarn", "factor": 4.0, "original_max_position_embeddings": 32768}},
        "yarn",
    ),
    ("qwen2-new-spelling", {"rope_parameters": {"rope_type": "yarn", "factor": 4.0, "rope_theta": 1e6}}, "yarn"),
    ("qwen2-untied", {"rope_scaling": {"type": "mrope", "mrope_section": [2, 1, 1]}}, "mrope"),
    ("llama-untied", {"rope_scaling": {"type": "linear"}}, "factor"),
    ("llama-untied", {"rope_scaling": {"rope_type": "llama3", "factor": 8.0}}, "low_freq_factor"),
    ("llama-untied", {"rope_scaling": {"type": "linear", "factor": 2.0, "attention_factor": 1.5}}, "attention_factor"),
    ("llama-linear-new-spelling", {"partial_rotary_factor": 0.5}, "partial_rotary_factor"),
    (
        "llama-linear-new-spelling",
        {"rope_parameters": {"rope_type": "default", "rope_theta": 1e4, "partial_rotary_factor": 0.5}},
        "partial_rotary_factor",
    ),
    ("llama-untied", {"rope_parameters": {"full_attention": {"rope_type": "default"}}}, "full_attention"),
    ("llama-untied", {"hidden_act": "gelu_pytorch_tanh"}, "hidden_act"),
    ("llama-untied", {"attn_logit_softcapping": 50.0}, "attn_logit_softcapping"),
    ("llama-untied", {"final_logit_softcapping": 30.0}, "final_logit_softcapping"),
    ("llama-untied", {"num_local_experts": 8, "num_experts_per_tok": 2}, "num_local_experts"),
    ("llama-untied", {"quantization_config": {"quant_method": "gptq", "bits": 4}}, "quantization_config"),
    ("llama-untied", {"embedding_multiplier": 12.0}, "embedding_multiplier"),
    ("llama-untied", {"logits_scaling": 8.0}, "logits_scaling"),
    ("llama-untied", {"residual_multiplier": 0.22}, "residual_multiplier"),
    ("llama-untied", {"query_pre_attn_scalar": 256}, "query_pre_attn_scalar"),
    ("llama-untied", {"clip_qkv": 8.0}, "clip_qkv"),
    ("llama-untied", {"no_rope_layers": [1, 0, 1]}, "no_rope_layers"),
    ("llama-untied", {"attention_dropout": 0.1}, "attention_dropout"),
    ("llama-untied", {"rope_interleaved": True}, "rope_interleaved"),
    ("llama-untied", {"num_key_value_heads": 3}, "key/value heads"),
    ("llama-untied", {"head_dim": 5}, "head_dim"),
    ("llama-untied", {"hidden_size": None}, "hidden_size"),
    ("llama-untied", {"num_hidden_layers": "two"}, "num_hidden_layers"),
]


@pytest.mark.parametrize(
    ("case", "fields", "named"), REFUSED, ids=[f"{case}-{'-'.join(fields)}-{named}" for case, fields, named in REFUSED]
)
def test_what_burnish_cannot_compute_is_refused_by_name(case: str, fields: dict[str, Any], named: str) -> None:
    with pytest.raises(UserError, match=re.escape(named)) as refusal:
        ModelSpec.from_config(CONFIGS[case] | fields)
    assert "\n" not in str(refusal.value)


@pytest.mark.parametrize(
    ("case", "fields"),
    [
        ("llama-untied", {"sliding_window": None, "quantization_config": None, "attn_logit_softcapping": None}),
        ("llama-untied", {"partial_rotary_factor": 1.0, "attention_dropout": 0.0, "rope_interleaved": False}),
        ("llama-untied", {"rope_scaling": {"type": "default"}}),
        ("llama-untied", {"rope_scaling": {"rope_type": "default"}, "head_dim": None, "architectures": None}),
        (
            "llama-untied",
            {"eos_token_id": [2, 3], "torch_dtype": "bfloat16", "_name_or_path": "x/y"},
        ),
        ("qwen3-untied", {"layer_types": ["full_attention"] * 3, "max_window_layers": 28}),
        ("qwen2-untied", {"use_sliding_window": False, "sliding_window": 4096, "use_mrope": False}),
    ],
)
def test_what_changes_nothing_is_read_past(case: str, fields: dict[str, Any]) -> None:
    assert ModelSpec.from_config(CONFIGS[case] | fields) == ModelSpec.from_config(CONFIGS[case])
