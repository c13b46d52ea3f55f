"""Prompts are exactly what the model's own chat template and tokenizer make of the messages."""

import json
from pathlib import Path

import pytest
from tokenizers import Tokenizer, processors

from burnish.errors import UserError
from burnish.text.tokenizer import ChatTokenizer, load_tokenizer
from burnish.weights.sources import open_source
from tiny_models import CHAT_TEMPLATE, tiny_tokenizer, write_tiny_hf_folder

MESSAGES = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "What is 12 + 345? ünï 🙂 e\u0301"}]


def test_ids_are_those_of_apply_chat_template(tmp_path: Path) -> None:
    chat = ChatTokenizer.from_source(open_source(str(write_tiny_hf_folder(tmp_path))))
    text = "<|im_start|>system\nBe brief.<|im_end|>\n<|im_start|>user\n" + MESSAGES[1]["content"]
    text += "<|im_end|>\n<|im_start|>assistant\n"
    by_hand = Tokenizer.from_file(str(tmp_path / "tokenizer.json")).encode(text, add_special_tokens=False).ids
    ids = chat.encode_chat(MESSAGES)
    assert ids == by_hand
    assert ids == chat.tokenizer.apply_chat_template(MESSAGES, add_generation_prompt=True, return_dict=False)
    assert all(type(token) is int for token in ids)


def test_chat_template_kwargs_are_passed_on() -> None:
    chat = ChatTokenizer(tiny_tokenizer())
    plain, closed = chat.encode_chat(MESSAGES), chat.encode_chat(MESSAGES, enable_thinking=False)
    assert chat.tokenizer.decode(closed) == chat.tokenizer.decode(plain) + "<think>\n\n</think>\n\n"
    assert chat.encode_chat(MESSAGES, enable_thinking=True) == plain


def test_bos_stands_once_where_the_template_writes_it() -> None:
    tokenizer = tiny_tokenizer(chat_template="{{ bos_token }}" + CHAT_TEMPLATE.replace("<|im_start|>", ">"))
    tokenizer.backend_tokenizer.post_processor = processors.TemplateProcessing(
        single="<|im_start|> $A", special_tokens=[("<|im_start|>", 1)]
    )
    assert tokenizer.encode("text")[0] == 1
    ids = ChatTokenizer(tokenizer).encode_chat(MESSAGES)
    assert ids[0] == 1
    assert ids.count(1) == 1


def test_no_bos_where_the_template_writes_none() -> None:
    tokenizer = tiny_tokenizer(chat_template="{{ messages[0]['content'] }}")
    tokenizer.backend_tokenizer.post_processor = processors.TemplateProcessing(
        single="<|im_start|> $A", special_tokens=[("<|im_start|>", 1)]
    )
    assert 1 not in ChatTokenizer(tokenizer).encode_chat(MESSAGES)


@pytest.mark.parametrize(
    ("generation", "config", "expected"),
    [
        ({"eos_token_id": [2, 0, 2]}, {"eos_token_id": 5}, (2, 0)),
        ({"eos_token_id": 7}, {"eos_token_id": 5}, (7,)),
        ({}, {"eos_token_id": [5, 6]}, (5, 6)),
        ({"eos_token_id": None}, {"eos_token_id": 0}, (0,)),
        ({}, {}, (2,)),
    ],
)
def test_every_end_of_sequence_id_counts(generation: dict, config: dict, expected: tuple[int, ...]) -> None:
    assert ChatTokenizer(tiny_tokenizer(), generation, config).eos_ids == expected


def test_a_model_without_end_of_sequence_is_refused() -> None:
    tokenizer = tiny_tokenizer()
    tokenizer.eos_token = None
    with pytest.raises(UserError, match="eos_token_id"):
        ChatTokenizer(tokenizer)


def test_padding_falls_back_to_end_of_sequence() -> None:
    tokenizer = tiny_tokenizer()
    assert ChatTokenizer(tokenizer).pad_id == 0
    tokenizer.pad_token = None
    assert ChatTokenizer(tokenizer, {"eos_token_id": [2, 0]}).pad_id == 2


def test_decoding_skips_special_tokens_and_keeps_every_space() -> None:
    chat = ChatTokenizer(tiny_tokenizer())
    text = "  Well , it 's 3 . 5 !\n\n\tünï 🙂 "
    ids = chat.tokenizer.encode(text, add_special_tokens=False)
    assert chat.decode([1, *ids, 2, 0]) == text


def test_a_tokenizer_without_chat_template_is_refused(tmp_path: Path) -> None:
    source = open_source(str(write_tiny_hf_folder(tmp_path, chat_template=None)))
    with pytest.raises(UserError, match="no chat template"):
        ChatTokenizer.from_source(source)


def test_messages_that_the_template_refuses_are_told_with_their_roles() -> None:
    template = "{{ raise_exception('Conversation roles must alternate') }}"
    with pytest.raises(UserError, match=r"roles must alternate.*system, user"):
        ChatTokenizer(tiny_tokenizer(chat_template=template)).encode_chat(MESSAGES)


@pytest.mark.parametrize(
    "tokenizer_class", ["GPT2Tokenizer", "Qwen2Tokenizer", "PreTrainedTokenizerFast", "LlamaTokenizer"]
)
@pytest.mark.parametrize("model_type", ["llama", "qwen2"])
def test_tokenizer_json_is_taken_literally(tmp_path: Path, tokenizer_class: str, model_type: str) -> None:
    folder = write_tiny_hf_folder(tmp_path, model_type)
    content = json.loads((folder / "tokenizer_config.json").read_text())
    (folder / "tokenizer_config.json").write_text(json.dumps({**content, "tokenizer_class": tokenizer_class}))
    literal = Tokenizer.from_file(str(folder / "tokenizer.json"))
    text = "what's  12345 e\u0301 ٤٥ the assistant\n\n x"
    ids = load_tokenizer(folder).encode(text, add_special_tokens=False)
    assert ids == literal.encode(text, add_special_tokens=False).ids


def test_a_missing_or_garbled_tokenizer_is_named(tmp_path: Path) -> None:
    folder = write_tiny_hf_folder(tmp_path)
    (folder / "tokenizer.json").write_text('{"version": "1.0"')
    with pytest.raises(UserError, match=r"tokenizer in .* can't be loaded"):
        open_source(str(folder)).load_tokenizer()
    (folder / "tokenizer.json").unlink()
    with pytest.raises(UserError, match="holds no tokenizer"):
        open_source(str(folder)).load_tokenizer()
