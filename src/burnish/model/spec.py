"""What a model is: its numbers, read from config.json, and the table of its parameters. No jax here."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from burnish.errors import UserError
from burnish.model.rope import RopeSpec, positive

FAMILIES = {"llama": "LlamaForCausalLM", "qwen2": "Qwen2ForCausalLM", "qwen3": "Qwen3ForCausalLM"}


@dataclass(frozen=True)
class ModelSpec:
    """The architecture of a decoder-only transformer, as its config.json gives it."""

    family: str
    vocab_size: int
    hidden_size: int
    intermediate_size: int
    num_layers: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    rms_norm_eps: float
    rope: RopeSpec
    tie_word_embeddings: bool
    attention_bias: bool
    """Whether the q, k and v projections have a bias."""
    attention_output_bias: bool
    mlp_bias: bool
    qk_norm: bool
    """Whether queries and keys are RMS-normalised per head before the rotation (Qwen3)."""
    max_position_embeddings: int

    @staticmethod
    def from_config(config: dict[str, Any]) -> ModelSpec:
        """Read a Hugging Face config; a UserError names what can't be honoured."""
        family = config.get("model_type")
        if not isinstance(family, str) or family not in FAMILIES:
            raise UserError(
                f"config.json says model_type {family!r}, which burnish can't run; supported: {', '.join(FAMILIES)}"
            )
        architectures = config.get("architectures") or [FAMILIES[family]]
        if architectures != [FAMILIES[family]]:
            raise UserError(
                f"config.json says architectures {architectures}; burnish runs {FAMILIES[family]} for {family!r}"
            )
        refuse_unknown_fields(config)
        number = _reader(config)
        hidden_size, num_heads = number("hidden_size"), number("num_attention_heads")
        num_kv_heads = number("num_key_value_heads", num_heads)
        head_dim = number("head_dim", 128 if family == "qwen3" else hidden_size // num_heads)
        if num_heads % num_kv_heads:
            raise UserError(
                f"config.json has {num_heads} attention heads, not a multiple of its {num_kv_heads} key/value heads"
            )
        if head_dim % 2:
            raise UserError(f"config.json has head_dim {head_dim}; rotary embeddings need an even one")
        if config.get("hidden_act", "silu") != "silu":
            raise UserError(f"config.json says hidden_act {config['hidden_act']!r}; burnish computes 'silu' only")
        if "head_dim" not in config and family != "qwen3" and hidden_size % num_heads:
            raise UserError(
                f"config.json has hidden_size {hidden_size}, not a multiple of its {num_heads} attention heads, "
                "and no head_dim"
            )
        bias = _flag(config, "attention_bias")
        return ModelSpec(
            family=family,
            vocab_size=number("vocab_size"),
            hidden_size=hidden_size,
            intermediate_size=number("intermediate_size"),
            num_layers=number("num_hidden_layers"),
            num_heads=num_heads,
            num_kv_heads=num_kv_heads,
            head_dim=head_dim,
            rms_norm_eps=positive("rms_norm_eps", config.get("rms_norm_eps", 1e-6)),
            rope=RopeSpec.from_config(config),
            tie_word_embeddings=_flag(config, "tie_word_embeddings"),
            attention_bias=family == "qwen2" or bias,
            attention_output_bias=family != "qwen2" and bias,
            mlp_bias=_flag(config, "mlp_bias"),
            qk_norm=family == "qwen3",
            max_position_embeddings=number("max_position_embeddings", 2048),
        )

    @property
    def num_parameters(self) -> int:
        """Parameters in all, tied ones once."""
        total = 0
        for parameter in parameters(self).values():
            size = self.num_layers if parameter.layered else 1
            for extent in parameter.shape:
                size *= extent
            total += size
        return total


def _reader(config: dict[str, Any]) -> Callable[..., int]:
    def number(field: str, default: int | None = None) -> int:
        value = config.get(field)
        value = default if value is None else value
        if not isinstance(value, int) or isinstance(value, bool) or value < 1:
            raise UserError(f"config.json needs a positive whole number for {field!r}, not {value!r}")
        return value

    return number


def _flag(config: dict[str, Any], field: str) -> bool:
    value = config.get(field)
    if value not in (None, True, False):
        raise UserError(f"config.json needs true or false for {field!r}, not {value!r}")
    return bool(value)


# What from_config reads.
_HONOURED = {
    *("model_type", "architectures", "vocab_size", "hidden_size", "intermediate_size", "num_hidden_layers"),
    *("num_attention_heads", "num_key_value_heads", "head_dim", "hidden_act", "rms_norm_eps", "rope_theta"),
    *("rope_scaling", "rope_parameters", "tie_word_embeddings", "attention_bias", "mlp_bias"),
    "max_position_embeddings",
}
# What does not change the function from tokens to logits.
_WITHOUT_EFFECT = {
    *("torch_dtype", "dtype", "transformers_version", "use_cache", "initializer_range", "pretraining_tp"),
    *("bos_token_id", "eos_token_id", "pad_token_id", "is_llama_config", "transformers.js_config", "max_window_layers"),
    *("auto_map", "id2label", "label2id", "problem_type", "return_dict", "name_or_path", "task_specific_params"),
    *("output_attentions", "output_hidden_states", "chunk_size_feed_forward", "tokenizer_class", "finetuning_task"),
    *("max_length", "min_length", "temperature", "top_k", "top_p", "typical_p", "repetition_penalty", "do_sample"),
    *("length_penalty", "num_beams", "num_beam_groups", "diversity_penalty", "num_return_sequences", "prefix"),
    *("is_decoder", "unsloth_version", "unsloth_fixed", "quantization_origin"),
}
# Values at which a field that burnish can't honour changes nothing.
_NEUTRAL: dict[str, tuple[Any, ...]] = {
    "partial_rotary_factor": (1, 1.0),
    "attention_dropout": (0, 0.0),
    "rope_interleaved": (False,),
    "use_sliding_window": (False,),
}


def refuse_unknown_fields(config: dict[str, Any]) -> None:
    """Raise a UserError for the first field of a config that may change the computation and is not understood."""
    layer_types = config.get("layer_types")
    if layer_types and set(layer_types) != {"full_attention"}:
        odd = next(kind for kind in layer_types if kind != "full_attention")
        raise UserError(f"config.json has layer_types with {odd!r}; burnish computes 'full_attention' only")
    if layer_types and len(layer_types) != config.get("num_hidden_layers"):
        raise UserError(
            f"config.json lists {len(layer_types)} layer_types for {config.get('num_hidden_layers')} num_hidden_layers"
        )
    window = config.get("sliding_window")
    # Qwen files carry a window that use_sliding_window turns off; Llama and Mistral files mean it.
    if window is not None and config.get("use_sliding_window", config["model_type"] == "llama"):
        raise UserError(f"config.json sets sliding_window to {window}, which burnish can't compute")
    for field, value in config.items():
        if field in _HONOURED or field in _WITHOUT_EFFECT or field in ("layer_types", "sliding_window"):
            continue
        if value is None or value is False or field.startswith("_") or value in ([], {}):
            continue
        if field in _NEUTRAL and value in _NEUTRAL[field]:
            continue
        raise UserError(
            f"config.json sets {field!r} to {value!r}, which burnish does not know how to honour; "
            "if it does not change what the model computes, remove it from config.json"
        )


@dataclass(frozen=True)
class Parameter:
    """One row of the parameter table: a Hugging Face name, its layer number written `*`."""

    name: str
    shape: tuple[int, ...]
    """Shape of one layer's tensor, as in the Hugging Face file: matrices are (out, in)."""
    axes: tuple[str, ...]
    """Logical names of the axes, which sharding rules map to a mesh."""
    layered: bool


def parameters(spec: ModelSpec) -> dict[str, Parameter]:
    """The parameters of a model, in the order in which a forward pass meets them.

    In memory a layered parameter is stacked: one array of shape (num_layers, *shape) with the leading axis "layers".
    """
    hidden, queries, kv = spec.hidden_size, spec.num_heads * spec.head_dim, spec.num_kv_heads * spec.head_dim
    table: dict[str, Parameter] = {}

    def add(name: str, shape: tuple[int, ...], axes: tuple[str, ...], layered: bool = True) -> None:
        full_name = f"model.layers.*.{name}" if layered else name
        table[full_name] = Parameter(full_name, shape, axes, layered)

    add("model.embed_tokens.weight", (spec.vocab_size, hidden), ("vocab", "embed"), layered=False)
    add("input_layernorm.weight", (hidden,), ("norm",))
    for projection, size, axis in (("q", queries, "heads"), ("k", kv, "kv_heads"), ("v", kv, "kv_heads")):
        add(f"self_attn.{projection}_proj.weight", (size, hidden), (axis, "embed"))
        if spec.attention_bias:
            add(f"self_attn.{projection}_proj.bias", (size,), (axis,))
    if spec.qk_norm:
        add("self_attn.q_norm.weight", (spec.head_dim,), ("norm",))
        add("self_attn.k_norm.weight", (spec.head_dim,), ("norm",))
    add("self_attn.o_proj.weight", (hidden, queries), ("embed", "heads"))
    if spec.attention_output_bias:
        add("self_attn.o_proj.bias", (hidden,), ("norm",))
    add("post_attention_layernorm.weight", (hidden,), ("norm",))
    for projection in ("gate", "up"):
        add(f"mlp.{projection}_proj.weight", (spec.intermediate_size, hidden), ("mlp", "embed"))
        if spec.mlp_bias:
            add(f"mlp.{projection}_proj.bias", (spec.intermediate_size,), ("mlp",))
    add("mlp.down_proj.weight", (hidden, spec.intermediate_size), ("embed", "mlp"))
    if spec.mlp_bias:
        add("mlp.down_proj.bias", (hidden,), ("norm",))
    add("model.norm.weight", (hidden,), ("norm",), layered=False)
    if not spec.tie_word_embeddings:
        add("lm_head.weight", (spec.vocab_size, hidden), ("vocab", "embed"), layered=False)
    return table


@dataclass(frozen=True)
class TensorPlace:
    """Where one tensor of a Hugging Face file lives in memory: a parameter's key and, where stacked, its layer."""

    key: str
    layer: int | None
    shape: tuple[int, ...]


def hf_tensors(spec: ModelSpec) -> dict[str, TensorPlace]:
    """Every tensor of the Hugging Face file by name. Tied models have no `lm_head.weight`."""
    places: dict[str, TensorPlace] = {}
    for key, parameter in parameters(spec).items():
        for layer in range(spec.num_layers) if parameter.layered else [None]:
            name = key if layer is None else key.replace("*", str(layer))
            places[name] = TensorPlace(key, layer, parameter.shape)
    return places
