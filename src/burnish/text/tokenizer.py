"""A model's tokenizer and chat template: message lists to token ids and back, with the ids that end a completion."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from burnish.errors import UserError
from burnish.text.quiet import import_transformers

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerFast


class TokenizerSource(Protocol):
    """What `ChatTokenizer.from_source` needs of a checkpoint."""

    config: dict[str, Any]
    generation_config: dict[str, Any]

    def load_tokenizer(self) -> PreTrainedTokenizerFast:
        """The checkpoint's tokenizer."""
        ...


def load_tokenizer(folder: Path) -> PreTrainedTokenizerFast:
    """The tokenizer of a Hugging Face folder; no network, no code from the folder.

    Where there is a tokenizer.json it is taken literally: AutoTokenizer of transformers 5 rebuilds the pre-tokenizer of
    some classes (GPT2Tokenizer, which SmolLM2's files name, Qwen2Tokenizer) and so ignores the one that the model was
    trained with.
    """
    transformers = import_transformers()
    from_json = (folder / "tokenizer.json").is_file()
    loader = transformers.PreTrainedTokenizerFast if from_json else transformers.AutoTokenizer
    options = {} if from_json else {"trust_remote_code": False}
    try:
        return loader.from_pretrained(str(folder), local_files_only=True, **options)
    except (OSError, ValueError, ImportError, KeyError) as error:
        first_line = str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
        raise UserError(
            f"The tokenizer in {folder} can't be loaded ({first_line}); download its files again."
        ) from error
    except Exception as error:
        # The `tokenizers` package raises plain Exception for a garbled tokenizer.json.
        if type(error) is not Exception:
            raise
        raise UserError(f"The tokenizer in {folder} can't be loaded ({error}); download its files again.") from error


class ChatTokenizer:
    """Turns chats into prompts and completions into text, exactly as the model's own chat template and tokenizer do."""

    def __init__(
        self,
        tokenizer: PreTrainedTokenizerFast,
        generation_config: Mapping[str, Any] | None = None,
        config: Mapping[str, Any] | None = None,
    ) -> None:
        self.tokenizer = tokenizer
        if not tokenizer.chat_template:
            raise UserError(
                "The model's tokenizer has no chat template; give an instruct model, or add a chat_template.jinja to "
                "its folder."
            )
        self.eos_ids: tuple[int, ...] = _eos_ids(tokenizer, generation_config or {}, config or {})
        pad_id = tokenizer.pad_token_id
        self.pad_id: int = self.eos_ids[0] if pad_id is None else int(pad_id)

    @classmethod
    def from_source(cls, source: TokenizerSource) -> ChatTokenizer:
        """The chat tokenizer of an open checkpoint."""
        return cls(source.load_tokenizer(), source.generation_config, source.config)

    def encode_chat(self, messages: Sequence[Mapping[str, Any]], **chat_template_kwargs: Any) -> list[int]:
        """The prompt's ids: exactly those of `apply_chat_template(messages, add_generation_prompt=True)`."""
        from jinja2 import TemplateError

        options = {"add_generation_prompt": True, **chat_template_kwargs, "tokenize": True, "return_dict": False}
        try:
            ids = self.tokenizer.apply_chat_template([dict(message) for message in messages], **options)
        except TemplateError as error:
            roles = ", ".join(str(message.get("role")) for message in messages)
            raise UserError(
                f"The model's chat template refuses these messages ({error}); their roles are: {roles}."
            ) from error
        return [int(token) for token in ids]

    def decode(self, ids: Iterable[int]) -> str:
        """The text of a completion, without special tokens and without any cosmetic change to its spaces."""
        text = self.tokenizer.decode(
            [int(token) for token in ids], skip_special_tokens=True, clean_up_tokenization_spaces=False
        )
        return str(text)


def _eos_ids(
    tokenizer: PreTrainedTokenizerFast, generation_config: Mapping[str, Any], config: Mapping[str, Any]
) -> tuple[int, ...]:
    """Every id that ends a completion: generation_config's, else config.json's, else the tokenizer's."""
    for given in (generation_config.get("eos_token_id"), config.get("eos_token_id"), tokenizer.eos_token_id):
        ids = given if isinstance(given, list | tuple) else [given]
        found = tuple(dict.fromkeys(int(token) for token in ids if token is not None))
        if found:
            return found
    raise UserError("The model names no end-of-sequence token; set eos_token_id in its generation_config.json.")
