"""Eight chats with the real SmolLM2-135M-Instruct, and where the answers of `transformers` to them are stored."""

import json
from dataclasses import dataclass

import numpy as np

from .cases import GOLDEN

CHATS = GOLDEN / "smollm2_chats.json"
LOGITS = GOLDEN / "smollm2_logits.npz"
"""Arrays named by the number of the chat: float32 [completion tokens, 64], see `logit_columns`."""
COMPLETION_TOKENS = 32
VOCABULARY = 49152
MIN_MARGIN = 5e-3
"""How far the second-best logit must lie below the best on every step: greedy decoding must not hang on rounding."""

PROMPTS: list[list[dict[str, str]]] = [
    [{"role": "user", "content": "What is 7 + 5?"}],
    [{"role": "user", "content": "What is 123 + 4567? Reply with the number only."}],
    [{"role": "user", "content": "Name the capital of Japan."}],
    [
        {"role": "system", "content": "You answer in French."},
        {"role": "user", "content": "Good morning! How are you?"},
    ],
    [
        {"role": "user", "content": "My name is Zoë and I'm 31 years old."},
        {"role": "assistant", "content": "Nice to meet you, Zoë!"},
        {"role": "user", "content": "What is my name?"},
    ],
    [{"role": "user", "content": "def add(a, b):\n    return a + b\n\n# Explain this code."}],
    [{"role": "user", "content": "List three colours – with a 🎨 emoji: 1) … 2) … 3) …"}],
    [
        {
            "role": "user",
            "content": (
                "Natalia sold clips to 48 of her friends in April, and then she sold half as many clips in May. "
                "How many clips did Natalia sell altogether in April and May?"
            ),
        }
    ],
]


@dataclass(frozen=True)
class Chat:
    """One prompt and what greedy decoding with `transformers` makes of it."""

    messages: list[dict[str, str]]
    prompt_ids: list[int]
    completion_ids: list[int]
    """Up to COMPLETION_TOKENS; ends with the end-of-sequence token where the model drew it."""
    text: str


def stored_chats() -> list[Chat]:
    """The golden chats."""
    return [Chat(**fields) for fields in json.loads(CHATS.read_text())["chats"]]


def logit_columns(completion_id: int) -> np.ndarray:
    """The 64 columns of the vocabulary that are stored for one step: the drawn token and 63 spread over the rest."""
    return np.concatenate([[completion_id], np.linspace(0, VOCABULARY - 1, 63).astype(int)])
