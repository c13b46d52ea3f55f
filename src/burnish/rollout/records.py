"""What a rollout is given and what it returns: a prompt in, a trajectory out, as plain records that need no jax.

Nothing is inferred later from token ids: which tokens the policy drew, why it stopped and under which weights
come from these records, because EOS may equal PAD and there may be several EOS ids.
"""

from __future__ import annotations

import dataclasses
from typing import Literal, get_args

import numpy as np
from jaxtyping import Bool, Float32, Int32

StopReason = Literal["eos", "stop_string", "length"]


@dataclasses.dataclass(frozen=True)
class Prompt:
    """One question for the engine. Every completion drawn for it shares its `group_id`."""

    id: str
    group_id: int
    token_ids: tuple[int, ...]
    """At least one id: the last prompt token is the first input of decoding."""

    def __post_init__(self) -> None:
        if not self.token_ids:
            raise ValueError(f"prompt {self.id!r} has no tokens; decoding starts from the last prompt token")


@dataclasses.dataclass(frozen=True, eq=False)
class Trajectory:
    """One finished completion of one prompt; `p` prompt tokens, `n` completion tokens, up to `k` kept ids per token."""

    prompt_id: str
    group_id: int
    """The group is what advantages compare within; it is this number, never a position in a list."""
    completion_index: int
    """Which of its group's completions this is, from 0."""
    prompt_ids: Int32[np.ndarray, " p"]
    token_ids: Int32[np.ndarray, " n"]
    """Completion tokens, including the EOS where one was drawn."""
    sampled_mask: Bool[np.ndarray, " n"]
    """True where the policy drew the token; False for what a tool or an environment put in."""
    logprobs: Float32[np.ndarray, " n"]
    """Log-probability under the distribution the token was drawn from, temperature and truncation included."""
    versions: Int32[np.ndarray, " n"]
    """Version of the weights that drew each token."""
    turn: Int32[np.ndarray, " n"]
    """Turn of the conversation each token belongs to, from 0."""
    kept_ids: Int32[np.ndarray, "n k"] | None
    """Under top-k/p sampling, the ids the distribution was renormalised over, −1 padded; None when nothing was cut."""
    stop_reason: StopReason
    text: str

    def __post_init__(self) -> None:
        completion_length = len(self.token_ids)
        expected: dict[str, tuple[type, int | None]] = {
            "prompt_ids": (np.int32, None),
            "token_ids": (np.int32, completion_length),
            "sampled_mask": (np.bool_, completion_length),
            "logprobs": (np.float32, completion_length),
            "versions": (np.int32, completion_length),
            "turn": (np.int32, completion_length),
        }
        for name, (dtype, length) in expected.items():
            self._check(name, getattr(self, name), dtype, ndim=1, length=length)
        if self.kept_ids is not None:
            self._check("kept_ids", self.kept_ids, np.int32, ndim=2, length=completion_length)
        if len(self.prompt_ids) == 0 or completion_length == 0:
            raise ValueError(f"{self.name}: prompt and completion need at least one token each")
        if self.stop_reason not in get_args(StopReason):
            raise ValueError(
                f"{self.name}: stop_reason is {self.stop_reason!r}, expected one of {get_args(StopReason)}"
            )

    @property
    def name(self) -> str:
        """How messages name this trajectory."""
        return f"completion {self.completion_index} of prompt {self.prompt_id!r} (group {self.group_id})"

    @property
    def truncated(self) -> bool:
        """Whether the length limit cut it off."""
        return self.stop_reason == "length"

    def _check(self, field: str, value: object, dtype: type, *, ndim: int, length: int | None) -> None:
        if not isinstance(value, np.ndarray) or value.dtype != dtype or value.ndim != ndim:
            given = f"{value.dtype}{list(value.shape)}" if isinstance(value, np.ndarray) else type(value).__name__
            raise ValueError(f"{self.name}: {field} is {given}, expected a {ndim}-d {dtype.__name__} array")
        if length is not None and value.shape[0] != length:
            raise ValueError(f"{self.name}: {field} has {value.shape[0]} entries for {length} completion tokens")
