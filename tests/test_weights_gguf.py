"""A GGUF file gives the model that was converted into it; what it can't give is refused by name."""

import re
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest
from gguf import GGML_QUANT_SIZES, GGMLQuantizationType

from burnish.errors import UserError
from burnish.model.rope import RopeSpec, inverse_frequencies
from burnish.model.spec import ModelSpec
from burnish.weights.gguf import half_split_rows
from burnish.weights.sources import Source, open_source
from tiny_gguf import converted, gguf_name, tiny_metadata, write_gguf
from tiny_models import tiny_config, tiny_tensors


def tiny_source(folder: Path, family: str = "llama", extra: dict[str, Any] | None = None, **overrides: Any) -> Source:
    config = tiny_config(family, **overrides)
    tensors = converted(config, tiny_tensors(config))
    metadata = {key: value for key, value in {**tiny_metadata(config), **(extra or {})}.items() if value is not None}
    return open_source(str(write_gguf(folder / "model.gguf", family, metadata, tensors)))


@pytest.mark.parametrize("family", ["llama", "qwen2", "qwen3"])
@pytest.mark.parametrize("tied", [True, False])
def test_converted_model_comes_back_exactly(tmp_path: Path, family: str, tied: bool) -> None:
    source = tiny_source(tmp_path, family, tie_word_embeddings=tied)
    config = tiny_config(family, tie_word_embeddings=tied)
    original = tiny_tensors(config)
    assert source.tensors.keys() == original.keys()
    for name, values in original.items():
        read = source.read(name)
        assert read.dtype == np.float32
        np.testing.assert_array_equal(read, values, err_msg=name)
        assert source.tensors[name].shape == values.shape
    assert ModelSpec.from_config(source.config) == ModelSpec.from_config(config)
    assert source.generation_config == {"bos_token_id": 1, "eos_token_id": 2, "pad_token_id": 0}


def test_llama_biases_follow_the_same_row_order(tmp_path: Path) -> None:
    source = tiny_source(tmp_path, attention_bias=True, mlp_bias=True)
    for name, values in tiny_tensors(tiny_config(attention_bias=True, mlp_bias=True)).items():
        np.testing.assert_array_equal(source.read(name), values, err_msg=name)
    assert source.config["attention_bias"] is True
    assert source.config["mlp_bias"] is True


def test_row_order_makes_half_split_rotation_equal_llama_cpps_rotation_of_neighbours() -> None:
    heads, head_dim, position = 3, 8, 5
    rng = np.random.default_rng(0)
    neighbours, hidden = rng.standard_normal((heads * head_dim, 16)), rng.standard_normal(16)
    angles = position * 10_000.0 ** (-np.arange(0, head_dim, 2) / head_dim)
    cos, sin = np.cos(angles), np.sin(angles)
    even, odd = (neighbours @ hidden).reshape(heads, head_dim // 2, 2).transpose(2, 0, 1)
    rotated_neighbours = np.stack([even * cos - odd * sin, even * sin + odd * cos], axis=-1).reshape(heads, head_dim)
    first, second = (half_split_rows(neighbours, heads) @ hidden).reshape(heads, 2, head_dim // 2).transpose(1, 0, 2)
    rotated_halves = np.concatenate([first * cos - second * sin, first * sin + second * cos], axis=-1)
    pairs = rotated_neighbours.reshape(heads, head_dim // 2, 2).transpose(0, 2, 1).reshape(heads, head_dim)
    np.testing.assert_allclose(rotated_halves, pairs, atol=1e-12)


@pytest.mark.parametrize("quantization", ["F16", "BF16", "Q8_0", "Q4_0", "Q4_1", "Q4_K", "Q6_K"])
def test_quantised_tensors_are_what_the_gguf_package_makes_of_them(tmp_path: Path, quantization: str) -> None:
    kind = GGMLQuantizationType[quantization]
    rng = np.random.default_rng(0)
    config = tiny_config(
        "qwen3", hidden_size=256, intermediate_size=256, num_attention_heads=16, tie_word_embeddings=True
    )
    values, packed = {}, {}
    for name, tensor in tiny_tensors(config).items():
        packed[gguf_name(name)] = tensor
        if tensor.ndim == 2:
            if quantization in ("Q4_K", "Q6_K"):  # the package can't make these: any bytes with small scales will do
                block, size = GGML_QUANT_SIZES[kind]
                raw = rng.integers(0, 256, (tensor.shape[0], tensor.shape[1] // block, size), np.uint8)
                scale = np.frombuffer(np.float16(0.01).tobytes(), np.uint8)
                raw[..., slice(0, 2) if quantization == "Q4_K" else slice(-2, None)] = scale
                raw[..., slice(2, 4) if quantization == "Q4_K" else slice(-2, None)] = scale
                packed[gguf_name(name)] = raw.reshape(tensor.shape[0], -1)
            else:
                packed[gguf_name(name)] = gguf.quants.quantize(tensor, kind)
        values[name] = gguf.quants.dequantize(packed[gguf_name(name)], kind) if tensor.ndim == 2 else tensor
    path = write_gguf(tmp_path / "model.gguf", "qwen3", tiny_metadata(config), packed, quantization)
    source = open_source(str(path))
    assert source.tensors.keys() == values.keys()
    for name, expected in values.items():
        np.testing.assert_array_equal(source.read(name), expected, err_msg=name)
        assert source.tensors[name].shape == tiny_tensors(config)[name].shape
        assert np.isfinite(expected).all()


def test_q4_1_is_scale_times_four_bits_plus_minimum(tmp_path: Path) -> None:
    config = tiny_config("qwen3", tie_word_embeddings=True)
    quants = np.random.default_rng(1).integers(0, 16, (288, 32))
    halves = np.array([0.5, -1.25], np.float16).view(np.uint8)
    nibbles = (quants[:, :16] | quants[:, 16:] << 4).astype(np.uint8)
    block = np.concatenate([np.tile(halves, (288, 1)), nibbles], axis=1)
    packed = {"token_embd.weight": block}
    source = open_source(str(write_gguf(tmp_path / "m.gguf", "qwen3", tiny_metadata(config), packed, "Q4_1")))
    np.testing.assert_array_equal(source.read("model.embed_tokens.weight"), (0.5 * quants - 1.25).astype(np.float32))


def test_an_unsupported_quantisation_is_refused_by_name(tmp_path: Path) -> None:
    config = tiny_config("qwen3", tie_word_embeddings=True)
    packed = {"token_embd.weight": gguf.quants.quantize(np.ones((288, 32), np.float32), GGMLQuantizationType.Q5_0)}
    path = write_gguf(tmp_path / "m.gguf", "qwen3", tiny_metadata(config), packed, "Q5_0")
    with pytest.raises(UserError, match="Q5_0"):
        open_source(str(path))


@pytest.mark.parametrize("factor", [8.0, 32.0])
def test_llama3_scaling_is_recovered_from_rope_freqs(tmp_path: Path, factor: float) -> None:
    config = tiny_config(hidden_size=256, num_attention_heads=4, rope_theta=500_000.0, num_hidden_layers=1)
    scaled = RopeSpec(500_000.0, "llama3", factor, 1.0, 4.0, 8192)
    divisors = inverse_frequencies(RopeSpec(500_000.0), 64) / inverse_frequencies(scaled, 64)
    tensors = converted(config, tiny_tensors(config)) | {"rope_freqs.weight": divisors.astype(np.float32)}
    source = open_source(str(write_gguf(tmp_path / "m.gguf", "llama", tiny_metadata(config), tensors)))
    rope = ModelSpec.from_config(source.config).rope
    assert rope.type == "llama3"
    np.testing.assert_allclose(inverse_frequencies(rope, 64), inverse_frequencies(scaled, 64), rtol=1e-5)
    assert "rope_freqs.weight" not in source.tensors


def test_other_rope_freqs_are_refused(tmp_path: Path) -> None:
    config = tiny_config()
    tensors = converted(config, tiny_tensors(config)) | {"rope_freqs.weight": np.array([1, 1, 2, 3], np.float32)}
    path = write_gguf(tmp_path / "m.gguf", "llama", tiny_metadata(config), tensors)
    with pytest.raises(UserError, match=r"rope_freqs\.weight"):
        open_source(str(path))


def test_linear_scaling_is_honoured(tmp_path: Path) -> None:
    source = tiny_source(tmp_path, extra={"llama.rope.scaling.type": "linear", "llama.rope.scaling.factor": 4.0})
    assert ModelSpec.from_config(source.config).rope == RopeSpec(10_000.0, "linear", 4.0)


@pytest.mark.parametrize(
    ("family", "extra"),
    [
        ("llama", {"llama.rope.scaling.type": "yarn"}),
        ("llama", {"llama.attention.sliding_window": 4096}),
        ("llama", {"llama.expert_count": 8}),
        ("llama", {"llama.rope.dimension_count": 4}),
        ("qwen3", {"qwen3.final_logit_softcapping": 30.0}),
        ("llama", {"split.count": 3}),
    ],
)
def test_what_cannot_be_honoured_is_refused_by_name(tmp_path: Path, family: str, extra: dict[str, Any]) -> None:
    named = re.escape(next(iter(extra)).removeprefix("llama.").removesuffix(".count").removesuffix("_count"))
    with pytest.raises(UserError, match=named if "split" not in named else "one of 3 parts"):
        tiny_source(tmp_path, family, extra)


def test_an_unknown_architecture_is_refused_by_name(tmp_path: Path) -> None:
    path = write_gguf(tmp_path / "m.gguf", "mamba", {}, {"token_embd.weight": np.ones((4, 4), np.float32)})
    with pytest.raises(UserError, match="'mamba'"):
        open_source(str(path))


@pytest.mark.parametrize("keep", [0, 3, 200, 20_000, -100])
def test_a_damaged_file_is_named(tmp_path: Path, keep: int) -> None:
    tiny_source(tmp_path)
    path = tmp_path / "model.gguf"
    path.write_bytes(path.read_bytes()[:keep])
    with pytest.raises(UserError, match=re.escape(str(path))):
        open_source(str(path))
