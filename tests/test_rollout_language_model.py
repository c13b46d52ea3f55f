"""`burnish.load` gives a model whose logits, scores and answers agree with each other, and which refuses bad input."""

import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

import burnish
from burnish.errors import UserError
from burnish.rollout import language_model
from burnish.rollout.language_model import LanguageModel
from tiny_models import write_tiny_hf_folder

MESSAGES = [{"role": "user", "content": "What is 7 + 5?"}]
TOKENS = 12


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_tiny_hf_folder(tmp_path_factory.mktemp("tiny"), scale=0.3)


@pytest.fixture(scope="module")
def model(folder: Path) -> LanguageModel:
    return burnish.load(folder, progress=False)


@pytest.fixture(scope="module")
def greedy(model: LanguageModel) -> list[int]:
    (answer,) = model.generate(MESSAGES, max_tokens=TOKENS)
    assert answer.stop_reason == "length", "the tests below need an answer that no EOS ends"
    return answer.token_ids.tolist()


def log_softmax(logits: np.ndarray) -> np.ndarray:
    wide = logits.astype(np.float64)
    wide = wide - wide.max(-1, keepdims=True)
    return wide - np.log(np.exp(wide).sum(-1, keepdims=True))


def test_importing_burnish_imports_no_jax() -> None:
    check = "import sys, burnish; assert 'load' in dir(burnish); assert not {'jax', 'transformers'} & set(sys.modules)"
    subprocess.run([sys.executable, "-c", check], check=True, timeout=60)
    with pytest.raises(AttributeError, match="no attribute 'lode'"):
        burnish.lode  # noqa: B018


@pytest.mark.parametrize("temperature", [1.0, 0.7])
def test_score_is_the_log_softmax_of_the_logits(model: LanguageModel, temperature: float) -> None:
    random = np.random.default_rng(0)
    for prompt_length, length in [(1, 1), (1, 30), (9, 5), (40, 24)]:
        ids = random.integers(0, 288, prompt_length + length)
        expected = log_softmax(model.logits(ids) / temperature)[prompt_length - 1 : -1]
        scores = model.score(ids[:prompt_length], ids[prompt_length:], temperature=temperature)
        assert scores.dtype == np.float32
        np.testing.assert_allclose(scores, expected[np.arange(length), ids[prompt_length:]], atol=1e-5)


def test_logits_do_not_depend_on_padding(model: LanguageModel) -> None:
    ids = list(range(100, 140))
    whole = model.logits(ids)
    assert whole.shape == (40, 288)
    assert whole.dtype == np.float32
    for length in (1, 31, 32, 33):
        np.testing.assert_allclose(model.logits(ids[:length]), whole[:length], atol=1e-5)


def test_many_lengths_compile_few_programs(model: LanguageModel) -> None:
    model.logits([5])
    model.score([5], [6])
    compiled = language_model._logits._cache_size(), language_model._scores._cache_size()
    for length in range(2, 31):
        model.logits(range(length))
        model.score(range(length), [1, 2])
    assert (language_model._logits._cache_size(), language_model._scores._cache_size()) == compiled


def test_greedy_answer_is_the_argmax_of_the_logits(model: LanguageModel, greedy: list[int]) -> None:
    ids = model.encode(MESSAGES)
    for _ in range(TOKENS):
        ids.append(int(model.logits(ids)[-1].argmax()))
    assert greedy == ids[-TOKENS:]


@pytest.mark.parametrize("truncation", [{}, {"top_k": 50, "top_p": 0.95}], ids=["whole vocabulary", "top-k, top-p"])
def test_sampled_logprobs_are_the_scores(model: LanguageModel, truncation: dict[str, float]) -> None:
    answers = model.generate(MESSAGES, num_generations=4, temperature=0.7, max_tokens=TOKENS, seed=3, **truncation)
    assert [answer.completion_index for answer in answers] == [0, 1, 2, 3]
    for answer in answers:
        scores = model.score(answer.prompt_ids, answer.token_ids, temperature=0.7, kept_ids=answer.kept_ids)
        np.testing.assert_allclose(scores, answer.logprobs, atol=1e-4)


def test_same_seed_same_answers_other_seed_others(model: LanguageModel) -> None:
    def draw(seed: int) -> list[list[int]]:
        answers = model.generate(MESSAGES, num_generations=4, temperature=1.0, max_tokens=TOKENS, seed=seed)
        return [answer.token_ids.tolist() for answer in answers]

    assert draw(1) == draw(1)
    assert draw(1) != draw(2)
    assert len({tuple(answer) for answer in draw(1)}) == 4


def test_every_eos_id_ends_an_answer_and_belongs_to_it(tmp_path: Path, greedy: list[int]) -> None:
    # The first of the two is also the padding token.
    first, second = greedy[3], greedy[7]
    assert greedy.index(first) == 3
    for eos_ids, length in [([first, second], 4), ([second, 0], greedy.index(second) + 1)]:
        folder = write_tiny_hf_folder(tmp_path / str(length), scale=0.3)
        generation_config = {"eos_token_id": eos_ids, "pad_token_id": first}
        (folder / "generation_config.json").write_text(json.dumps(generation_config))
        tokenizer_config = json.loads((folder / "tokenizer_config.json").read_text())
        tokenizer_config["pad_token"] = language_model.load(folder, progress=False).tokenizer.tokenizer.decode([first])
        (folder / "tokenizer_config.json").write_text(json.dumps(tokenizer_config))
        model = burnish.load(folder, progress=False)
        assert set(model.tokenizer.eos_ids) == set(eos_ids)
        (answer,) = model.generate(MESSAGES, max_tokens=TOKENS)
        assert answer.stop_reason == "eos"
        assert answer.token_ids.tolist() == greedy[:length]
        assert answer.sampled_mask.all()


def test_stop_string_ends_an_answer(model: LanguageModel, greedy: list[int]) -> None:
    text = model.tokenizer.decode(greedy[:4])
    (answer,) = model.generate(MESSAGES, max_tokens=TOKENS, stop_strings=[text])
    assert answer.stop_reason == "stop_string"
    assert answer.text == text


def test_text_is_told_as_it_grows(model: LanguageModel) -> None:
    seen: list[str] = []
    (answer,) = model.generate(MESSAGES, max_tokens=20, on_text=lambda _, text: seen.append(text))
    assert len(seen) == 3
    assert seen[-1] == answer.text
    assert len(set(seen)) == 3


def test_interrupted_answer_does_not_show_up_in_the_next(model: LanguageModel, greedy: list[int]) -> None:
    def interrupt(_: int, text: str) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        model.generate(MESSAGES, max_tokens=TOKENS, on_text=interrupt)
    assert [answer.token_ids.tolist() for answer in model.generate(MESSAGES, max_tokens=TOKENS)] == [greedy]


def test_saved_model_is_the_loaded_one(model: LanguageModel, folder: Path, tmp_path: Path) -> None:
    saved = model.save(tmp_path / "saved", progress=False)
    assert {path.name for path in saved.iterdir()} >= {path.name for path in folder.iterdir()}
    np.testing.assert_array_equal(burnish.load(saved, progress=False).logits([1, 2, 3]), model.logits([1, 2, 3]))


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda model: model.logits([]), "token_ids is empty"),
        (lambda model: model.logits([3, 288]), "token_ids holds 288, but the model's token ids are 0 to 287"),
        (lambda model: model.logits([-1]), "token_ids holds -1"),
        (lambda model: model.logits([0.5]), "expected a list of token ids"),
        (lambda model: model.logits([1] * 257), "257 tokens exceed the model's context of 256"),
        (lambda model: model.score([1], []), "completion_ids is empty"),
        (lambda model: model.score([], [1]), "prompt_ids is empty"),
        (lambda model: model.score([1], [2], temperature=0), "temperature=0 has no log-probabilities"),
        (lambda model: model.generate("hello"), "messages is 'hello'; expected a list"),
        (lambda model: model.generate([]), "messages is empty"),
        (lambda model: model.generate(["hello"]), "expected a role and a content"),
        (lambda model: model.generate([{"content": "hello"}]), "expected a role and a content"),
        (lambda model: model.generate(MESSAGES, max_tokens=250), "exceed the model's context of 256 .* max_tokens to"),
        (lambda model: model.generate(MESSAGES, max_tokens=0), "max_tokens=0 must be at least 1"),
        (lambda model: model.generate(MESSAGES, temperature=-1), "temperature=-1 must be 0"),
        (lambda model: model.generate(MESSAGES, top_p=0.0), "top_p=0.0 must be above 0"),
        (lambda model: model.generate(MESSAGES, stop_strings="x"), "stop_strings='x' must be a list"),
        (lambda model: model.generate(MESSAGES, stop_strings=[""]), "would end every answer at once"),
        (lambda model: model.generate(MESSAGES, seed=-1), "seed=-1 must be at least 0"),
        (lambda model: model.save("anywhere", dtype="int8"), "Can't export as 'int8'"),
        (lambda model: burnish.load("anywhere", dtype="float8"), "dtype='float8' is not possible"),
    ],
)
def test_bad_input_is_named(model: LanguageModel, call: object, message: str) -> None:
    with pytest.raises(UserError, match=message):
        call(model)  # type: ignore[operator]
