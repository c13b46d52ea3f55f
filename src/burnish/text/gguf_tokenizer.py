"""The tokenizer inside a GGUF file, rebuilt with `tokenizers`: vocabulary, merges, pre-tokenizer, chat template.

`transformers` can read GGUF tokenizers only with torch, and it ignores `tokenizer.ggml.pre`, which says how text is cut
before the merges apply: SmolLM cuts numbers into digits, Llama 3 into groups of three. A wrong cut gives valid ids that
the model never saw.
"""

from __future__ import annotations

import json
import tempfile
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, processors

from burnish.errors import UserError
from burnish.text.quiet import import_transformers

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerFast

# tokenizer.ggml.token_type, as llama.cpp numbers them.
_UNKNOWN, _CONTROL, _USER_DEFINED, _UNUSED = 2, 3, 4, 5

_GPT2_WORDS = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)"
_LLAMA3_WORDS = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}"
    r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
_QWEN2_WORDS = _LLAMA3_WORDS.replace(r"\p{N}{1,3}", r"\p{N}")


def _bytes_of(*patterns: str) -> pre_tokenizers.PreTokenizer:
    """Cut at each pattern in turn, then write every piece in the byte alphabet."""
    cuts = [pre_tokenizers.Split(Regex(pattern), behavior="isolated") for pattern in patterns]
    return pre_tokenizers.Sequence([*cuts, pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)])


def _gpt2() -> pre_tokenizers.PreTokenizer:
    return pre_tokenizers.ByteLevel(add_prefix_space=False)


def _smollm() -> pre_tokenizers.PreTokenizer:
    return pre_tokenizers.Sequence([pre_tokenizers.Digits(individual_digits=True), _gpt2()])


def _default() -> pre_tokenizers.PreTokenizer:
    """What llama.cpp does for "default": punctuation apart, GPT-2's words, digits in threes."""
    return _bytes_of(r"[\p{P}\$\+<=>\^~\|]+", _GPT2_WORDS, r"\p{N}+", r"[0-9][0-9][0-9]")


PRE_TOKENIZERS: dict[str, Callable[[], pre_tokenizers.PreTokenizer]] = {
    "default": _default,
    "gpt-2": _gpt2,
    "smollm": _smollm,
    "llama-bpe": lambda: _bytes_of(_LLAMA3_WORDS),
    "llama3": lambda: _bytes_of(_LLAMA3_WORDS),
    "llama-v3": lambda: _bytes_of(_LLAMA3_WORDS),
    "qwen2": lambda: _bytes_of(_QWEN2_WORDS),
}
_LLAMA3_NAMES = ("llama-bpe", "llama3", "llama-v3")


def tokenizer_from_gguf(metadata: Mapping[str, Any]) -> PreTrainedTokenizerFast:
    """Build the tokenizer that a GGUF file's metadata describes; what can't be honoured is a UserError naming it."""
    pre = metadata.get("tokenizer.ggml.pre")
    _refuse_unknown(metadata, pre)
    tokens: list[str] = metadata["tokenizer.ggml.tokens"]
    kinds: list[int] = metadata.get("tokenizer.ggml.token_type") or [1] * len(tokens)
    # Files pad their vocabulary to the embedding's rows with unused tokens, which no text may produce.
    vocabulary = {
        token: index for index, (token, kind) in enumerate(zip(tokens, kinds, strict=True)) if kind != _UNUSED
    }
    merges = [_halves(merge, vocabulary) for merge in metadata["tokenizer.ggml.merges"]]
    # Llama 3's vocabulary holds words that its merges can't reach.
    bpe = models.BPE(vocab=vocabulary, merges=merges, ignore_merges=pre in _LLAMA3_NAMES)
    tokenizer = Tokenizer(bpe)
    if pre == "qwen2":
        tokenizer.normalizer = normalizers.NFC()
    tokenizer.pre_tokenizer = PRE_TOKENIZERS[str(pre)]()
    tokenizer.decoder = decoders.ByteLevel()
    special = [
        AddedToken(token, special=True, normalized=False)
        for token, kind in zip(tokens, kinds, strict=True)
        if kind in (_CONTROL, _UNKNOWN)
    ]
    tokenizer.add_special_tokens(special)
    tokenizer.add_tokens(
        [
            AddedToken(token, normalized=False)
            for token, kind in zip(tokens, kinds, strict=True)
            if kind == _USER_DEFINED
        ]
    )
    roles = {
        role: _token(metadata, tokens, key)
        for role, key in (("bos", "bos"), ("eos", "eos"), ("pad", "padding"), ("unk", "unknown"))
    }
    _add_at_the_ends(tokenizer, metadata, roles, default_bos=pre in _LLAMA3_NAMES)
    named = {f"{role}_token": token for role, token in roles.items() if token is not None}
    context = metadata.get(f"{metadata.get('general.architecture')}.context_length")
    return import_transformers().PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        chat_template=metadata.get("tokenizer.chat_template"),
        clean_up_tokenization_spaces=False,
        **({"model_max_length": int(context)} if context else {}),
        **named,
    )


def tokenizer_files(tokenizer: PreTrainedTokenizerFast) -> dict[str, bytes]:
    """The files that `save_pretrained` writes, naming a tokenizer class that transformers 4 and 5 both know."""
    with tempfile.TemporaryDirectory() as folder:
        tokenizer.save_pretrained(folder)
        files = {path.name: path.read_bytes() for path in sorted(Path(folder).iterdir())}
    content = json.loads(files["tokenizer_config.json"])
    content["tokenizer_class"] = "PreTrainedTokenizerFast"
    files["tokenizer_config.json"] = (json.dumps(content, indent=2, ensure_ascii=False) + "\n").encode()
    return files


def _refuse_unknown(metadata: Mapping[str, Any], pre: Any) -> None:
    model = metadata.get("tokenizer.ggml.model")
    if model != "gpt2":
        raise UserError(
            f"The GGUF file has a tokenizer of kind {model!r}; burnish builds byte-level BPE ones ('gpt2'): give the "
            "model's Hugging Face folder."
        )
    if pre not in PRE_TOKENIZERS:
        raise UserError(
            f"The GGUF file has the pre-tokenizer {pre!r} (tokenizer.ggml.pre), which burnish does not know; "
            f"known: {', '.join(PRE_TOKENIZERS)}. Give the model's Hugging Face folder."
        )
    for key in ("tokens", "merges"):
        if not metadata.get(f"tokenizer.ggml.{key}"):
            raise UserError(
                f"The GGUF file has no tokenizer.ggml.{key}: its tokenizer is not whole; give the model's Hugging "
                "Face folder."
            )
    if metadata.get("tokenizer.ggml.add_space_prefix"):
        raise UserError(
            "The GGUF file sets tokenizer.ggml.add_space_prefix, which burnish does not know for a byte-level "
            "tokenizer."
        )


def _halves(merge: str, vocabulary: Mapping[str, int]) -> tuple[str, str]:
    left, _, right = merge.partition(" ")
    if left not in vocabulary or right not in vocabulary or left + right not in vocabulary:
        raise UserError(
            f"The GGUF file's tokenizer has the merge {merge!r} whose tokens are not in its vocabulary; the file is "
            "damaged."
        )
    return left, right


def _token(metadata: Mapping[str, Any], tokens: list[str], key: str) -> str | None:
    token_id = metadata.get(f"tokenizer.ggml.{key}_token_id")
    if token_id is None:
        return None
    if not 0 <= token_id < len(tokens):
        raise UserError(
            f"The GGUF file gives {key}_token_id {token_id} in a vocabulary of {len(tokens)} tokens; the file is "
            "damaged."
        )
    return tokens[token_id]


def _add_at_the_ends(
    tokenizer: Tokenizer, metadata: Mapping[str, Any], roles: Mapping[str, str | None], *, default_bos: bool
) -> None:
    """BOS and EOS around plain text where the file asks for them; a chat template writes its own."""
    before = roles["bos"] if metadata.get("tokenizer.ggml.add_bos_token", default_bos) else None
    after = roles["eos"] if metadata.get("tokenizer.ggml.add_eos_token", False) else None
    ends = [token for token in (before, after) if token is not None]
    if ends:
        single = [*([before] if before else []), "$A", *([after] if after else [])]
        pair = [*single, *([f"{before}:1"] if before else []), "$B:1", *([f"{after}:1"] if after else [])]
        special_tokens = [(token, tokenizer.token_to_id(token)) for token in ends]
        tokenizer.post_processor = processors.TemplateProcessing(
            single=single, pair=pair, special_tokens=special_tokens
        )
