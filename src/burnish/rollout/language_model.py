"""A model to talk to: load it from anywhere, look at its logits, score given answers, draw new ones, save it.

This is `burnish.load`, what `burnish generate` and `burnish eval` stand on. Everything a user hands in is checked here,
in words; the rooms below take well-formed arrays.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import cached_property, partial
from pathlib import Path
from typing import Any, cast

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Float32, Int

from burnish.errors import UserError
from burnish.model.compilation_cache import use_compilation_cache
from burnish.model.decoder import Parameters, forward, logits
from burnish.model.logprobs import score_tokens
from burnish.model.spec import ModelSpec
from burnish.rollout.engine import Engine
from burnish.rollout.layout import cache_length
from burnish.rollout.records import Prompt, Trajectory
from burnish.rollout.sampling import Sampling
from burnish.text.tokenizer import ChatTokenizer
from burnish.weights.export import save_hf
from burnish.weights.loading import load_parameters
from burnish.weights.sources import Source, open_source

STEPS_PER_DISPATCH = 8
"""Tokens drawn between two looks at an answer: few, because somebody may be reading along."""


def load(source: str | Path, *, dtype: str = "float32", progress: bool = True) -> LanguageModel:
    """Open a model: a Hugging Face folder, a .gguf file, a hub id (`org/name`), or `smollm2-135m-instruct`.

    `dtype` is what its weights are held and computed in: `float32`, `bfloat16`, or `auto` (bfloat16 on accelerators,
    float32 on a CPU). `progress` shows a bar on a terminal while weights are downloaded and read. Compiled programs are
    kept on disk for the next time.
    """
    use_compilation_cache()
    number_format = weights_dtype(dtype)
    opened = open_source(str(source), progress=progress)
    spec = ModelSpec.from_config(opened.config)
    return LanguageModel(opened, spec, load_parameters(opened, spec, number_format, progress=progress))


def weights_dtype(name: str) -> np.dtype[Any]:
    """The dtype that `float32`, `bfloat16` or `auto` means on this machine."""
    if name == "auto":
        name = "float32" if jax.default_backend() == "cpu" else "bfloat16"
    if name not in ("float32", "bfloat16"):
        raise UserError(f"dtype={name!r} is not possible; expected float32, bfloat16 or auto.")
    return jnp.dtype(name)


class LanguageModel:
    """A model with its tokenizer, as `load` returns it."""

    def __init__(self, source: Source, spec: ModelSpec, parameters: Parameters) -> None:
        self.source = source
        """Where it came from."""
        self.spec = spec
        """Its architecture."""
        self.parameters = parameters
        """Its weights by parameter name, those of layers stacked."""
        self._engine: Engine | None = None

    @cached_property
    def tokenizer(self) -> ChatTokenizer:
        """Messages to token ids and back; read when first asked for, since logits and scores need none."""
        return ChatTokenizer.from_source(self.source)

    def logits(self, token_ids: Sequence[int] | np.ndarray) -> Float32[np.ndarray, "tokens vocab"]:
        """Logits of the token after each of `token_ids`."""
        ids = self._checked_ids(token_ids, "token_ids")
        self._check_length(len(ids))
        return np.asarray(_logits(self.parameters, *_row(ids), spec=self.spec))[: len(ids)]

    def score(
        self,
        prompt_ids: Sequence[int] | np.ndarray,
        completion_ids: Sequence[int] | np.ndarray,
        *,
        temperature: float = 1.0,
        kept_ids: Int[np.ndarray, "n kept"] | None = None,
    ) -> Float32[np.ndarray, " n"]:
        """Log-probability of each completion token after the prompt and the completion before it.

        `temperature` divides the logits. `kept_ids` (a trajectory's) renormalises over the ids that truncated sampling
        chose among, so that a sampled trajectory's own log-probabilities come out.
        """
        prompt = self._checked_ids(prompt_ids, "prompt_ids")
        completion = self._checked_ids(completion_ids, "completion_ids")
        if not temperature > 0:
            raise UserError(f"temperature={temperature:g} has no log-probabilities; expected a number above 0.")
        count = len(completion)
        if kept_ids is not None and (kept_ids.ndim != 2 or len(kept_ids) != count):
            raise UserError(f"kept_ids is {list(kept_ids.shape)}; expected one row for each of {count} tokens.")
        ids = np.concatenate([prompt, completion])
        self._check_length(len(ids))
        tokens, length = _row(ids)
        first = len(prompt) - 1
        targets = np.zeros(tokens.shape, np.int32)
        targets[0, first : first + count] = completion
        kept = None
        if kept_ids is not None:
            kept = np.full((tokens.shape[1], kept_ids.shape[1]), -1, np.int32)
            kept[first : first + count] = kept_ids
        scores = _scores(self.parameters, tokens, length, targets, np.float32(temperature), kept, spec=self.spec)
        return np.asarray(scores)[first : first + count]

    def generate(
        self,
        messages: Sequence[Mapping[str, Any]],
        *,
        num_generations: int = 1,
        temperature: float = 0.0,
        top_k: int = 0,
        top_p: float = 1.0,
        min_p: float = 0.0,
        max_tokens: int = 256,
        stop_strings: Sequence[str] = (),
        seed: int = 0,
        chat_template_kwargs: Mapping[str, Any] | None = None,
        on_text: Callable[[int, str], None] | None = None,
    ) -> list[Trajectory]:
        """Answers to one conversation, in the order of their `completion_index`.

        Args:
            messages: the conversation, `[{"role": "user", "content": "…"}, …]`.
            num_generations: how many answers are drawn; at temperature 0 they are all the same.
            temperature: 0, the default, takes the likeliest token each time; training draws at 1.
            top_k: draw among so many likeliest tokens; 0 is off.
            top_p: draw among the likeliest tokens that together reach this probability; 1 is off.
            min_p: draw among tokens at least this fraction as likely as the likeliest; 0 is off.
            max_tokens: the longest answer, in tokens; one that was cut has the stop reason `length`.
            stop_strings: an answer ends once its text contains one of these, which stays in the text.
            seed: the same seed draws the same answers.
            chat_template_kwargs: variables of the model's chat template, for example `{"enable_thinking": False}`.
            on_text: called with a completion's index and its text so far, whenever there is more of it.
        """
        sampling = checked_sampling(
            num_generations=num_generations,
            temperature=temperature,
            top_k=top_k,
            top_p=top_p,
            min_p=min_p,
            max_tokens=max_tokens,
            stop_strings=stop_strings,
        )
        if not 0 <= seed < 2**31:
            raise UserError(f"seed={seed} must be at least 0 and below 2**31.")
        prompt = self.encode(messages, chat_template_kwargs)
        context = self.spec.max_position_embeddings
        if len(prompt) + max_tokens > context:
            room = context - len(prompt)
            advice = f"set max_tokens to {room} or less" if room > 0 else "shorten the messages"
            raise UserError(
                f"A prompt of {len(prompt)} tokens and max_tokens={max_tokens} exceed the model's context of {context} "
                f"tokens; {advice}."
            )
        if self._engine is None:
            self._engine = self.make_engine(steps_per_dispatch=STEPS_PER_DISPATCH)
        engine = self._engine
        try:
            engine.submit([Prompt("prompt", 0, tuple(prompt))], sampling, seed=seed, step=0)
            answers: list[Trajectory] = []
            while engine.busy:
                finished = engine.poll()
                answers.extend(finished)
                if on_text is not None:
                    for trajectory in finished:
                        on_text(trajectory.completion_index, trajectory.text)
                    for _, completion_index, token_ids in engine.in_progress():
                        on_text(completion_index, self.tokenizer.decode(token_ids))
        except BaseException:
            # What an interrupted answer leaves behind must not show up among the next one's.
            self._engine = None
            raise
        return sorted(answers, key=lambda trajectory: trajectory.completion_index)

    def encode(
        self, messages: Sequence[Mapping[str, Any]], chat_template_kwargs: Mapping[str, Any] | None = None
    ) -> list[int]:
        """Token ids of a conversation as the model is prompted with it."""
        _check_messages(messages)
        return self.tokenizer.encode_chat(messages, **(chat_template_kwargs or {}))

    def make_engine(self, *, max_lanes: int = 64, steps_per_dispatch: int = 16) -> Engine:
        """A rollout engine that draws from these weights; it holds a copy of them."""
        engine = Engine(
            self.spec,
            eos_ids=self.tokenizer.eos_ids,
            decode_text=self.tokenizer.decode,
            max_lanes=max_lanes,
            steps_per_dispatch=steps_per_dispatch,
        )
        engine.update_weights(0, self.parameters)
        return engine

    def save(self, folder: str | Path, dtype: str = "source", *, progress: bool = True) -> Path:
        """Write it as a Hugging Face folder; `dtype` "source" gives every tensor the dtype it came in."""
        return save_hf(folder, self.parameters, self.spec, self.source, dtype, progress=progress)

    def _checked_ids(self, given: Sequence[int] | np.ndarray, name: str) -> np.ndarray:
        ids = np.asarray(given)
        if ids.ndim != 1 or (ids.size and ids.dtype.kind not in "iu"):
            raise UserError(f"{name} is a {ids.dtype} array of shape {list(ids.shape)}; expected a list of token ids.")
        if not ids.size:
            raise UserError(f"{name} is empty; expected at least one token id.")
        outside = ids[(ids < 0) | (ids >= self.spec.vocab_size)]
        if outside.size:
            raise UserError(
                f"{name} holds {outside[0]}, but the model's token ids are 0 to {self.spec.vocab_size - 1}; "
                "were they made with its own tokenizer?"
            )
        return ids.astype(np.int32)

    def _check_length(self, tokens: int) -> None:
        if tokens > self.spec.max_position_embeddings:
            raise UserError(
                f"{tokens} tokens exceed the model's context of {self.spec.max_position_embeddings} "
                "(max_position_embeddings); give fewer."
            )


def checked_sampling(
    *,
    num_generations: int = 1,
    temperature: float = 0.0,
    top_k: int = 0,
    top_p: float = 1.0,
    min_p: float = 0.0,
    max_tokens: int = 256,
    stop_strings: Sequence[str] = (),
) -> Sampling:
    """How to draw, once every number lies where it must; UserError names the one that doesn't."""
    whole = isinstance(num_generations, int) and isinstance(max_tokens, int) and isinstance(top_k, int)
    demands = [
        (whole, "num_generations, max_tokens and top_k are whole numbers"),
        (num_generations >= 1, f"num_generations={num_generations} must be at least 1"),
        (0 <= temperature < float("inf"), f"temperature={temperature} must be 0 (greedy) or above"),
        (top_k >= 0, f"top_k={top_k} must be at least 1, or 0 for off"),
        (0 < top_p <= 1, f"top_p={top_p} must be above 0 and at most 1, where 1 is off"),
        (0 <= min_p < 1, f"min_p={min_p} must be at least 0, where 0 is off, and below 1"),
        (max_tokens >= 1, f"max_tokens={max_tokens} must be at least 1"),
        (not isinstance(stop_strings, str), f"stop_strings={stop_strings!r} must be a list of texts"),
        (all(stop_strings), "stop_strings holds an empty text, which would end every answer at once"),
    ]
    for met, sentence in demands:
        if not met:
            raise UserError(f"{sentence}.")
    return Sampling(
        num_generations=num_generations,
        temperature=float(temperature),
        top_k=top_k,
        top_p=float(top_p),
        min_p=float(min_p),
        max_tokens=max_tokens,
        stop_strings=tuple(stop_strings),
    )


def _check_messages(messages: object) -> None:
    expected = '[{"role": "user", "content": "…"}]'
    if isinstance(messages, str | Mapping) or not isinstance(messages, Sequence):
        raise UserError(f"messages is {messages!r:.80}; expected a list of messages such as {expected}.")
    if not messages:
        raise UserError(f"messages is empty; expected at least one message, such as {expected}.")
    for message in messages:
        is_one = isinstance(message, Mapping) and isinstance(message.get("role"), str) and "content" in message
        if not is_one:
            raise UserError(f"messages holds {message!r:.80}; expected a role and a content in each, as in {expected}.")


def _row(ids: np.ndarray) -> tuple[np.ndarray, np.int32]:
    """One padded row of token ids and how many of it count; few different lengths, since each one is compiled."""
    tokens = np.zeros((1, cache_length(len(ids))), np.int32)
    tokens[0, : len(ids)] = ids
    return tokens, np.int32(len(ids))


def _hidden(
    parameters: Parameters, tokens: Int[Array, "1 tokens"], length: Int[Array, ""], spec: ModelSpec
) -> Float[Array, "tokens hidden"]:
    positions = jnp.arange(tokens.shape[1])[None]
    return forward(parameters, spec, tokens, positions, (positions < length).astype(jnp.int32))[0]


@partial(jax.jit, static_argnames="spec")
def _logits(
    parameters: Parameters, tokens: Int[Array, "1 tokens"], length: Int[Array, ""], *, spec: ModelSpec
) -> Float[Array, "tokens vocab"]:
    return logits(parameters, spec, _hidden(parameters, tokens, length, spec))


@partial(jax.jit, static_argnames="spec")
def _scores(
    parameters: Parameters,
    tokens: Int[Array, "1 tokens"],
    length: Int[Array, ""],
    targets: Int[Array, "1 tokens"],
    temperature: Float[Array, ""],
    kept_ids: Int[Array, "tokens kept"] | None,
    *,
    spec: ModelSpec,
) -> Float[Array, " tokens"]:
    hidden = _hidden(parameters, tokens, length, spec)
    # Traced rather than static, so that another temperature is no other program; score_tokens only divides by it.
    divisor = cast(float, temperature)
    return score_tokens(parameters, spec, hidden, targets[0], temperature=divisor, kept_ids=kept_ids).logprobs
