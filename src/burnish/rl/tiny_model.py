"""The start model of `burnish demo --tiny`: about a million weights, made on the spot, that add but seldom carry.

It is a Llama in small. Pre-training is plain next-token cross-entropy on the task's training problems, never on the
held-out ones, with answers that often forget the ten to carry and sometimes lose another. The model picks up the habit:
its likeliest answer to a sum with a carry is mostly wrong. The right answers it has seen too; to prefer them is left
for reinforcement learning to teach.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jaxtyping import Array, Float, Int
from rich.console import Console
from rich.progress import track

from burnish.model.compilation_cache import use_compilation_cache
from burnish.model.decoder import Parameters, forward, logits
from burnish.model.spec import ModelSpec, hf_tensors, parameters
from burnish.tasks import Row
from burnish.text.quiet import import_transformers
from burnish.text.tokenizer import ChatTokenizer
from burnish.weights.export import save_hf
from burnish.weights.source import TensorInfo

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerFast

FORGETS_CARRY = 0.6
"""How often an answer of the pre-training leaves out a ten that should be carried."""

LOSES_A_TEN = 0.25
"""How often an answer is ten too small besides."""

STEPS = 160
BATCH = 16
LEARNING_RATE = 1.5e-3
"""At its peak, after a warm-up of a tenth of the steps; a cosine then takes it down to a tenth."""

SPECIAL_TOKENS = ("<|pad|>", "<|end|>", "<|system|>", "<|user|>", "<|assistant|>")
_CHAT_TEMPLATE = (
    "{% for message in messages %}{{ '<|' + message['role'] + '|>' + message['content'] }}"
    "{% if message['role'] == 'assistant' %}{{ '<|end|>' }}{% endif %}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|assistant|>' }}{% endif %}"
)
_WORDS = ("What", " is", " +", " -", " *", *(f" {digit}" for digit in range(10)))
"""Pieces of text that are one token; everything else is spelled in bytes. The first digit of a number is another token
than the later ones, so that a model need not learn from positions which digit is which."""

_CONFIG: dict[str, Any] = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "hidden_size": 128,
    # Wide, since what there is to learn is a table of sums.
    "intermediate_size": 1024,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 4,
    "hidden_act": "silu",
    "max_position_embeddings": 2048,
    "rms_norm_eps": 1e-5,
    "rope_theta": 10000.0,
    "attention_bias": False,
    "mlp_bias": False,
    "tie_word_embeddings": True,
    "torch_dtype": "float32",
}


def make_tiny_model(folder: Path, rows: Sequence[Row], seed: int) -> Path:
    """Make the model and write it as a Hugging Face folder, which appears whole or not at all.

    The same seed makes the same model. `rows` are additions as the arithmetic task gives them.
    """
    use_compilation_cache()
    tokenizer = tiny_tokenizer()
    config = {
        **_CONFIG,
        "vocab_size": len(tokenizer),
        "bos_token_id": None,
        "eos_token_id": tokenizer.eos_token_id,
        "pad_token_id": tokenizer.pad_token_id,
    }
    spec = ModelSpec.from_config(config)
    trained = _pretrain(_initial(spec, tokenizer, seed), spec, _Lessons(tokenizer, rows), seed)
    return save_hf(folder, trained, spec, _MadeHere(config, tokenizer, spec), tokenizer=tokenizer, progress=False)


def tiny_tokenizer() -> PreTrainedTokenizerFast:
    """Byte-level BPE whose merges are those of a few words: any text can be written, sums in few tokens."""
    from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, pre_tokenizers

    vocab = [*SPECIAL_TOKENS, *sorted(pre_tokenizers.ByteLevel.alphabet())]
    merges: list[tuple[str, str]] = []
    for word in _WORDS:
        spelled = word.replace(" ", "Ġ")
        for end in range(2, len(spelled) + 1):
            if spelled[:end] not in vocab:
                vocab.append(spelled[:end])
                merges.append((spelled[: end - 1], spelled[end - 1]))
    tokenizer = Tokenizer(models.BPE({token: index for index, token in enumerate(vocab)}, merges))
    pieces = pre_tokenizers.Split(Regex(r" ?\d| ?[^\s\d]+|\s+"), "isolated")
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [pieces, pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)]
    )
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens([AddedToken(token, special=True) for token in SPECIAL_TOKENS])
    return import_transformers().PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        eos_token="<|end|>",
        pad_token="<|pad|>",
        chat_template=_CHAT_TEMPLATE,
        clean_up_tokenization_spaces=False,
        model_max_length=_CONFIG["max_position_embeddings"],
    )


class _Lessons:
    """The pre-training text: problems with answers that may be one or two tens short, as padded rows."""

    def __init__(self, tokenizer: PreTrainedTokenizerFast, rows: Sequence[Row]) -> None:
        chat = ChatTokenizer(tokenizer)
        prompts = [chat.encode_chat(row.messages) for row in rows]
        sums = [(int(row.fields["left"]), int(row.fields["right"])) for row in rows]
        answered = [
            [[*prompt, *tokenizer.encode(f" {left + right - short}"), chat.eos_ids[0]] for short in (0, 10, 20)]
            for prompt, (left, right) in zip(prompts, sums, strict=True)
        ]
        longest = max(len(ids) for answers in answered for ids in answers)
        self._tokens = np.zeros((len(rows), 3, longest), np.int32)
        self._lengths = np.zeros((len(rows), 3), np.int32)
        self._prompt_lengths = np.asarray([len(prompt) for prompt in prompts], np.int32)
        self._carries = np.asarray([left % 10 + right % 10 > 9 for left, right in sums])
        for index, answers in enumerate(answered):
            for short, ids in enumerate(answers):
                self._tokens[index, short, : len(ids)] = ids
                self._lengths[index, short] = len(ids)

    def draw(self, random: np.random.Generator) -> tuple[np.ndarray, np.ndarray]:
        """A batch of rows: (tokens [rows, tokens], mask of the tokens to predict [rows, tokens])."""
        chosen = random.integers(0, len(self._tokens), BATCH)
        forgotten = (random.random(BATCH) < FORGETS_CARRY) & self._carries[chosen]
        short = forgotten.astype(int) + (random.random(BATCH) < LOSES_A_TEN)
        place = np.arange(self._tokens.shape[2])
        answer = (place >= self._prompt_lengths[chosen, None]) & (place < self._lengths[chosen, short, None])
        return self._tokens[chosen, short], answer


def _initial(spec: ModelSpec, tokenizer: PreTrainedTokenizerFast, seed: int) -> Parameters:
    """Random weights, but for two things that shorten pre-training from minutes to seconds.

    Queries start at zero, so that attention starts as a plain mean. And the digits' embeddings start as a line and two
    waves over their value, which is how trained models come to hold numbers (Zhou et al. 2024, arXiv 2406.03445).
    """
    random = np.random.default_rng(seed)
    weights: dict[str, np.ndarray] = {}
    for name, parameter in parameters(spec).items():
        shape = (spec.num_layers, *parameter.shape) if parameter.layered else parameter.shape
        if len(parameter.shape) == 1:
            weights[name] = np.ones(shape, np.float32)
        else:
            scale = parameter.shape[-1] ** -0.5 if parameter.layered else 0.1
            weights[name] = (scale * random.standard_normal(shape)).astype(np.float32)
    weights["model.layers.*.self_attn.q_proj.weight"][:] = 0.0
    value = np.arange(10)
    turns = [2 * np.pi * frequency * value / 10 for frequency in (1, 2)]
    features = np.stack([(value - 4.5) / 4.5, *map(np.cos, turns), *map(np.sin, turns)], axis=1)
    embeddings = weights["model.embed_tokens.weight"]
    for prefix in ("", "Ġ"):
        ids = tokenizer.convert_tokens_to_ids([f"{prefix}{digit}" for digit in range(10)])
        directions = 0.1 * random.standard_normal((features.shape[1], spec.hidden_size))
        embeddings[ids] = 0.5 * embeddings[ids] + 0.5 * features @ directions
    return {name: jnp.asarray(value) for name, value in weights.items()}


def _pretrain(start: Parameters, spec: ModelSpec, lessons: _Lessons, seed: int) -> Parameters:
    warmup = max(1, STEPS // 10)
    schedule = optax.warmup_cosine_decay_schedule(0.0, LEARNING_RATE, warmup, STEPS + 1, 0.1 * LEARNING_RATE)
    optimizer = optax.chain(optax.clip_by_global_norm(1.0), optax.adam(schedule, b1=0.9, b2=0.95))

    @partial(jax.jit, donate_argnums=(0, 1))
    def update(
        weights: Parameters, state: Any, tokens: Int[Array, "rows tokens"], answer: Float[Array, "rows tokens"]
    ) -> tuple[Parameters, Any]:
        gradient = jax.grad(_loss)(weights, spec, tokens, answer)
        changes, state = optimizer.update(gradient, state, weights)
        return optax.apply_updates(weights, changes), state

    random = np.random.default_rng([seed, 1])
    weights, state = start, jax.jit(optimizer.init)(start)
    console = Console(stderr=True)
    bar = track(
        range(STEPS), f"making a model of {spec.num_parameters / 1e6:.2f}M weights", console=console,
        transient=True, disable=not console.is_terminal,
    )  # fmt: skip
    for _ in bar:
        weights, state = update(weights, state, *lessons.draw(random))
    return weights


def _loss(
    weights: Parameters, spec: ModelSpec, tokens: Int[Array, "rows tokens"], answer: Float[Array, "rows tokens"]
) -> Float[Array, ""]:
    """Mean cross-entropy of the answers' tokens."""
    inputs, targets, counted = tokens[:, :-1], tokens[:, 1:], answer[:, 1:].astype(jnp.float32)
    positions = jnp.broadcast_to(jnp.arange(inputs.shape[1]), inputs.shape)
    # Causal attention sees no padding, which stands at the end.
    hidden = forward(weights, spec, inputs, positions, jnp.ones_like(inputs))
    entropies = optax.softmax_cross_entropy_with_integer_labels(logits(weights, spec, hidden), targets)
    return jnp.sum(entropies * counted) / jnp.sum(counted)


@dataclass
class _MadeHere:
    """A `weights.Source` of weights that come from nowhere: what an export needs to know besides them."""

    config: dict[str, Any]
    tokenizer: PreTrainedTokenizerFast
    spec: ModelSpec
    name: str = "the tiny model"
    folder: Path | None = None
    generation_config: dict[str, Any] = field(default_factory=dict)

    @property
    def tensors(self) -> Mapping[str, TensorInfo]:
        return {name: TensorInfo(place.shape, "float32") for name, place in hf_tensors(self.spec).items()}

    def read(self, name: str) -> np.ndarray:
        raise NotImplementedError("these weights are not in a file yet")

    def load_tokenizer(self) -> PreTrainedTokenizerFast:
        return self.tokenizer

    def side_files(self) -> dict[str, bytes | Path]:
        return {}
