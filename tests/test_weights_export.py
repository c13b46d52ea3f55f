"""Weights out: what went in comes out bit for bit, with its side files, whole or not at all."""

import errno
import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import jax.numpy as jnp
import ml_dtypes
import numpy as np
import pytest
from safetensors import safe_open
from safetensors.numpy import load_file

from burnish.errors import UserError
from burnish.model.spec import ModelSpec
from burnish.text.tokenizer import ChatTokenizer
from burnish.weights import export
from burnish.weights.export import save_hf
from burnish.weights.loading import load_parameters
from burnish.weights.sources import Source, open_source
from tiny_gguf import converted, tiny_metadata, write_gguf
from tiny_models import tiny_config, tiny_tensors, tiny_tokenizer, write_tiny_hf_folder


def roundtrip(source: Source, folder: Path, dtype: str = "source", **options: object) -> Path:
    spec = ModelSpec.from_config(source.config)
    parameters = load_parameters(source, spec, jnp.float32, progress=False)
    return save_hf(folder, parameters, spec, source, dtype, progress=False, **options)


def weights_of(folder: Path) -> dict[str, np.ndarray]:
    tensors: dict[str, np.ndarray] = {}
    for file in folder.glob("*.safetensors"):
        tensors |= load_file(file)
    return tensors


def assert_same_bits(left: dict[str, np.ndarray], right: dict[str, np.ndarray]) -> None:
    assert left.keys() == right.keys()
    for name, values in left.items():
        assert (values.dtype, values.shape) == (right[name].dtype, right[name].shape), name
        assert values.tobytes() == right[name].tobytes(), name


@pytest.mark.parametrize("family", ["llama", "qwen2", "qwen3"])
@pytest.mark.parametrize("tied", [True, False])
@pytest.mark.parametrize("torch_dtype", ["float32", "bfloat16", "float16"])
def test_in_and_out_is_bit_exact(tmp_path: Path, family: str, tied: bool, torch_dtype: str) -> None:
    folder = write_tiny_hf_folder(tmp_path / "in", family, tie_word_embeddings=tied, torch_dtype=torch_dtype)
    (folder / "README.md").write_text("A model card.")
    (folder / "training_args.bin").write_bytes(b"not the model's")
    out = roundtrip(open_source(str(folder)), tmp_path / "out")
    assert_same_bits(weights_of(folder), weights_of(out))
    assert ("lm_head.weight" in weights_of(out)) is not tied
    side_files = {path.name for path in folder.iterdir()} - {"model.safetensors", "training_args.bin"}
    assert {path.name for path in out.iterdir()} == side_files | {"model.safetensors"}
    for name in side_files:
        assert (folder / name).read_bytes() == (out / name).read_bytes(), name


def test_mixed_dtypes_stay_mixed(tmp_path: Path) -> None:
    tensors = tiny_tensors(tiny_config(torch_dtype="bfloat16"))
    tensors |= {name: values.astype(np.float32) for name, values in tensors.items() if "norm" in name}
    folder = write_tiny_hf_folder(tmp_path / "in", tensors=tensors, torch_dtype="bfloat16")
    assert_same_bits(tensors, weights_of(roundtrip(open_source(str(folder)), tmp_path / "out")))


@pytest.mark.parametrize("field", ["torch_dtype", "dtype"])
def test_another_dtype_changes_weights_and_that_field_of_the_config_alone(tmp_path: Path, field: str) -> None:
    overrides = {"torch_dtype": "float32"} if field == "torch_dtype" else {"torch_dtype": None, "dtype": "float32"}
    folder = write_tiny_hf_folder(tmp_path / "in", **overrides)
    out = roundtrip(open_source(str(folder)), tmp_path / "out", "bfloat16")
    config = json.loads((out / "config.json").read_text())
    assert config == {**json.loads((folder / "config.json").read_text()), field: "bfloat16"}
    expected = {name: values.astype(ml_dtypes.bfloat16) for name, values in weights_of(folder).items()}
    assert_same_bits(expected, weights_of(out))


def test_large_models_are_cut_into_shards_with_an_index(tmp_path: Path) -> None:
    folder = write_tiny_hf_folder(tmp_path / "in")
    out = roundtrip(open_source(str(folder)), tmp_path / "out", max_shard_bytes=40_000)
    index = json.loads((out / "model.safetensors.index.json").read_text())
    shards = sorted(path.name for path in out.glob("*.safetensors"))
    assert len(shards) > 2
    assert shards[0] == f"model-00001-of-{len(shards):05d}.safetensors"
    for shard in shards:
        with safe_open(out / shard, "numpy") as file:
            assert file.metadata() == {"format": "pt"}
            assert set(file.keys()) == {name for name, place in index["weight_map"].items() if place == shard}
        assert sum(values.nbytes for values in load_file(out / shard).values()) <= 40_000
    assert_same_bits(weights_of(folder), weights_of(out))
    assert index["metadata"]["total_size"] == sum(values.nbytes for values in weights_of(folder).values())
    assert_same_bits(weights_of(folder), weights_of(roundtrip(open_source(str(out)), tmp_path / "again")))


@pytest.mark.parametrize("family", ["llama", "qwen2", "qwen3"])
def test_gguf_becomes_a_whole_folder(tmp_path: Path, family: str) -> None:
    from transformers import AutoConfig, AutoTokenizer

    config = tiny_config(family)
    tensors = tiny_tensors(config)
    metadata = tiny_metadata(config) | ({"tokenizer.ggml.pre": "qwen2"} if family != "llama" else {})
    source = open_source(str(write_gguf(tmp_path / "m.gguf", family, metadata, converted(config, tensors))))
    out = roundtrip(source, tmp_path / "out")
    assert_same_bits(tensors, weights_of(out))
    opened = open_source(str(out))
    assert ModelSpec.from_config(opened.config) == ModelSpec.from_config(config)
    assert AutoConfig.from_pretrained(out).model_type == family
    messages = [{"role": "user", "content": "What is 12+345 of the assistant's ünïcödé?"}]
    ids = ChatTokenizer.from_source(source).encode_chat(messages)
    assert ids == ChatTokenizer.from_source(opened).encode_chat(messages)
    theirs = AutoTokenizer.from_pretrained(out)
    assert ids == theirs.apply_chat_template(messages, add_generation_prompt=True, return_dict=False)
    assert json.loads((out / "tokenizer_config.json").read_text())["tokenizer_class"] == "PreTrainedTokenizerFast"
    assert json.loads((out / "generation_config.json").read_text())["eos_token_id"] == 2


def test_no_folder_without_tokenizer(tmp_path: Path) -> None:
    source = open_source(str(write_tiny_hf_folder(tmp_path / "in", tokenizer=False)))
    with pytest.raises(UserError, match="no tokenizer"):
        roundtrip(source, tmp_path / "out")
    assert not (tmp_path / "out").exists()
    out = roundtrip(source, tmp_path / "out", tokenizer=tiny_tokenizer())
    assert (out / "tokenizer.json").exists()
    assert open_source(str(out)).load_tokenizer().chat_template


def test_existing_folder_is_replaced_whole(tmp_path: Path) -> None:
    source = open_source(str(write_tiny_hf_folder(tmp_path / "in")))
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "model-00001-of-00009.safetensors").write_text("from another model")
    out = roundtrip(source, tmp_path / "out")
    assert not (out / "model-00001-of-00009.safetensors").exists()
    assert sorted(path.name for path in tmp_path.iterdir()) == ["in", "out"]


def test_a_folder_can_be_exported_onto_itself(tmp_path: Path) -> None:
    folder = write_tiny_hf_folder(tmp_path / "model")
    before = {path.name: path.read_bytes() for path in folder.iterdir() if "safetensors" not in path.name}
    weights = weights_of(folder)
    roundtrip(open_source(str(folder)), folder)
    assert_same_bits(weights, weights_of(folder))
    assert before == {path.name: path.read_bytes() for path in folder.iterdir() if "safetensors" not in path.name}


def test_full_disk_is_told_and_leaves_the_old_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    source = open_source(str(write_tiny_hf_folder(tmp_path / "in")))
    out = roundtrip(source, tmp_path / "out")
    before = {path.name: path.read_bytes() for path in out.iterdir()}

    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(export, "write_safetensors", full)
    with pytest.raises(UserError, match="No space left on device"):
        roundtrip(source, tmp_path / "out")
    assert before == {path.name: path.read_bytes() for path in out.iterdir()}
    assert sorted(path.name for path in tmp_path.iterdir()) == ["in", "out"]


KILLED_EXPORT = """
import os, signal, sys
from pathlib import Path
import jax.numpy as jnp
from burnish.model.spec import ModelSpec
from burnish.weights import export
from burnish.weights.loading import load_parameters
from burnish.weights.sources import open_source
source = open_source(sys.argv[1])
spec = ModelSpec.from_config(source.config)
parameters = load_parameters(source, spec, jnp.float32, progress=False)
export._config_bytes = lambda *_: os.kill(os.getpid(), signal.SIGKILL)
export.save_hf(sys.argv[2], parameters, spec, source, progress=False)
"""


def test_killed_export_leaves_nothing_that_looks_whole_and_the_next_one_clears_it(tmp_path: Path) -> None:
    folder, out = write_tiny_hf_folder(tmp_path / "in"), tmp_path / "out"
    command = [sys.executable, "-c", KILLED_EXPORT, str(folder), str(out)]
    assert subprocess.run(command, check=False).returncode == -signal.SIGKILL
    assert not out.exists()
    (left_over,) = set(tmp_path.iterdir()) - {folder}
    with pytest.raises(UserError, match=r"no config\.json"):
        open_source(str(left_over))
    roundtrip(open_source(str(folder)), out)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["in", "out"]


def test_parameters_of_another_model_are_refused(tmp_path: Path) -> None:
    source = open_source(str(write_tiny_hf_folder(tmp_path / "in")))
    spec = ModelSpec.from_config(source.config)
    parameters = load_parameters(source, spec, jnp.float32, progress=False)
    del parameters["model.norm.weight"]
    with pytest.raises(ValueError, match=r"model\.norm\.weight is None and should be \(32,\)"):
        save_hf(tmp_path / "out", parameters, spec, source, progress=False)


def test_an_unknown_dtype_is_refused(tmp_path: Path) -> None:
    source = open_source(str(write_tiny_hf_folder(tmp_path / "in")))
    with pytest.raises(UserError, match="'int4'; expected one of source, float32"):
        roundtrip(source, tmp_path / "out", "int4")
