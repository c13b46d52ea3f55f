"""Weights in: every tensor arrives once, at its place, and what doesn't fit is named."""

import json
import subprocess
import sys
from pathlib import Path

import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np
import pytest
from safetensors.numpy import load_file

from burnish.errors import UserError
from burnish.model.spec import ModelSpec
from burnish.weights.hf_folder import FolderSource
from burnish.weights.loading import load_parameters
from burnish.weights.sources import Source, open_source
from tiny_models import tiny_config, tiny_tensor_shapes, tiny_tensors, write_tiny_hf_folder


def load(source: Source, dtype=jnp.float32) -> dict[str, jax.Array]:
    return load_parameters(source, ModelSpec.from_config(source.config), dtype, progress=False)


@pytest.mark.parametrize("family", ["llama", "qwen2", "qwen3"])
@pytest.mark.parametrize("shards", [1, 3])
@pytest.mark.parametrize("torch_dtype", ["float32", "bfloat16", "float16"])
def test_every_tensor_arrives_at_its_place(tmp_path: Path, family: str, shards: int, torch_dtype: str) -> None:
    folder = write_tiny_hf_folder(tmp_path, family, shards=shards, torch_dtype=torch_dtype)
    expected: dict[str, np.ndarray] = {}
    for file in folder.glob("*.safetensors"):
        expected |= load_file(file)
    loaded = load(open_source(str(folder)))
    arrived = {}
    for key, array in loaded.items():
        if "*" in key:
            arrived |= {key.replace("*", str(layer)): np.asarray(array[layer]) for layer in range(array.shape[0])}
        else:
            arrived[key] = np.asarray(array)
    assert arrived.keys() == expected.keys()
    for name, values in expected.items():
        np.testing.assert_array_equal(arrived[name], values.astype(np.float32), err_msg=name)


def test_parameters_have_the_asked_dtype(tmp_path: Path) -> None:
    loaded = load(open_source(str(write_tiny_hf_folder(tmp_path))), jnp.bfloat16)
    assert {array.dtype for array in loaded.values()} == {jnp.dtype(jnp.bfloat16)}
    written = tiny_tensors(tiny_config())["model.layers.1.mlp.up_proj.weight"].astype(ml_dtypes.bfloat16)
    np.testing.assert_array_equal(np.asarray(loaded["model.layers.*.mlp.up_proj.weight"][1]), written)


def test_no_tensor_is_read_twice(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    source = open_source(str(write_tiny_hf_folder(tmp_path, shards=2)))
    reads: list[str] = []
    read = FolderSource.read
    monkeypatch.setattr(FolderSource, "read", lambda self, name: reads.append(name) or read(self, name))
    load(source)
    assert sorted(reads) == sorted(source.tensors)


def test_missing_unexpected_and_misshapen_tensors_are_all_named_in_one_message(tmp_path: Path) -> None:
    config = tiny_config(num_hidden_layers=3)
    tensors = tiny_tensors(config)
    del tensors["model.norm.weight"]
    for layer in range(3):
        del tensors[f"model.layers.{layer}.mlp.up_proj.weight"]
    tensors["model.layers.0.mlp.extra_proj.weight"] = np.zeros((2, 2), np.float32)
    tensors["lm_head.weight"] = tensors["lm_head.weight"][:-1]
    source = open_source(str(write_tiny_hf_folder(tmp_path, tensors=tensors, num_hidden_layers=3)))
    with pytest.raises(UserError) as caught:
        load(source)
    message = str(caught.value)
    assert "4 missing: " in message
    assert "model.norm.weight" in message
    assert "model.layers.{0-2}.mlp.up_proj.weight" in message
    assert "1 unexpected: model.layers.0.mlp.extra_proj.weight" in message
    assert "lm_head.weight is [287, 32] and should be [288, 32]" in message


def test_tensors_of_an_unsupported_dtype_are_named(tmp_path: Path) -> None:
    tensors = tiny_tensors(tiny_config())
    tensors["model.norm.weight"] = np.ones(32, np.int64)
    source = open_source(str(write_tiny_hf_folder(tmp_path, tensors=tensors)))
    with pytest.raises(UserError, match=r"model\.norm\.weight \(int64\)"):
        load(source)


def test_tied_model_may_repeat_its_embedding_as_head_but_not_carry_another_one(tmp_path: Path) -> None:
    tensors = tiny_tensors(tiny_config(tie_word_embeddings=True))
    tensors["lm_head.weight"] = tensors["model.embed_tokens.weight"].copy()
    equal = write_tiny_hf_folder(tmp_path / "equal", tensors=tensors, tie_word_embeddings=True)
    assert "lm_head.weight" not in load(open_source(str(equal)))
    tensors["lm_head.weight"][3, 4] += 1e-6
    different = write_tiny_hf_folder(tmp_path / "different", tensors=tensors, tie_word_embeddings=True)
    with pytest.raises(UserError, match=r"lm_head\.weight differs from model\.embed_tokens\.weight"):
        load(open_source(str(different)))


def test_saved_rotary_frequencies_are_skipped(tmp_path: Path) -> None:
    tensors = tiny_tensors(tiny_config())
    tensors["model.layers.0.self_attn.rotary_emb.inv_freq"] = np.ones(4, np.float32)
    loaded = load(open_source(str(write_tiny_hf_folder(tmp_path, tensors=tensors))))
    assert not [key for key in loaded if "rotary" in key]


MEASURE_PEAK = """
import sys
import jax, jax.numpy as jnp
from burnish.model.spec import ModelSpec
from burnish.weights.loading import load_parameters
from burnish.weights.sources import open_source
def megabytes(field):
    with open("/proc/self/status") as status:
        return next(int(line.split()[1]) / 1024 for line in status if line.startswith(field))
source = open_source(sys.argv[1])
spec = ModelSpec.from_config(source.config)
jax.jit(lambda x: x + 1)(jnp.zeros(8)).block_until_ready()  # the compiler's own memory is not the weights'
before = megabytes("VmRSS")
loaded = load_parameters(source, spec, jnp.float32, progress=False)
print(megabytes("VmHWM") - before, sum(array.nbytes for array in loaded.values()) / 2**20)
"""


@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="reads the peak memory from Linux's /proc")
@pytest.mark.parametrize("torch_dtype", ["float32", "bfloat16"])
def test_peak_host_memory_is_under_the_model_and_its_largest_tensor(tmp_path: Path, torch_dtype: str) -> None:
    sizes = {"vocab_size": 32768, "hidden_size": 1024, "intermediate_size": 4096, "num_hidden_layers": 3}
    config = tiny_config(torch_dtype=torch_dtype, tie_word_embeddings=True, **sizes)
    write_hollow_folder(tmp_path, config)
    run = subprocess.run(
        [sys.executable, "-c", MEASURE_PEAK, str(tmp_path)], capture_output=True, text=True, check=False, timeout=120
    )
    assert run.returncode == 0, run.stderr
    peak, model = map(float, run.stdout.split())
    largest = 32768 * 1024 * 4 / 2**20
    assert model > 250
    assert peak < model + largest, f"peak {peak:.0f} MB for a model of {model:.0f} MB"


def write_hollow_folder(folder: Path, config: dict) -> None:
    """A model of zeros: the data of its safetensors file is a hole, so that writing it costs nothing."""
    code, size = ("F32", 4) if config["torch_dtype"] == "float32" else ("BF16", 2)
    header, offset = {}, 0
    for name, shape in tiny_tensor_shapes(config).items():
        end = offset + int(np.prod(shape)) * size
        header[name] = {"dtype": code, "shape": list(shape), "data_offsets": [offset, end]}
        offset = end
    encoded = json.dumps(header).encode()
    (folder / "config.json").write_text(json.dumps(config))
    with open(folder / "model.safetensors", "wb") as file:
        file.write(len(encoded).to_bytes(8, "little") + encoded)
        file.truncate(8 + len(encoded) + offset)
