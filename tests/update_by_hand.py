"""The update written out by hand: one padded sequence after the other, a plain softmax, AdamW in NumPy."""

from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from burnish.model.decoder import Parameters, forward, logits
from burnish.model.spec import ModelSpec
from burnish.rl.losses import Aggregation
from burnish.rollout.records import Trajectory
from tiny_runs import GENERATIONS, MAX_TOKENS, OPTIMIZER

PROMPT_LENGTHS = {11: 5, 4: 1, 30: 9, 7: 12}
"""By group id. A prompt of one token has no prefix to share."""
LENGTH = 20
"""The longest prompt with the longest completion."""
EOS = 0
"""Also the id that padding holds: a mask made from ids would lose it."""
CLIPS = 0.2, 0.28


@dataclass(frozen=True)
class Model:
    """A tiny model, and the start of the run that it is trained in."""

    folder: Path
    spec: ModelSpec
    parameters: Parameters


def trajectory(
    prompt: np.ndarray, tokens: np.ndarray, group_id: int, index: int, stop_reason: Any = "eos"
) -> Trajectory:
    return Trajectory(
        prompt_id=f"prompt {group_id}",
        group_id=group_id,
        completion_index=index,
        prompt_ids=prompt,
        token_ids=tokens,
        sampled_mask=np.ones(len(tokens), bool),
        logprobs=np.zeros(len(tokens), np.float32),
        versions=np.zeros(len(tokens), np.int32),
        turn=np.zeros(len(tokens), np.int32),
        kept_ids=None,
        stop_reason=stop_reason,
        text="",
    )


class Sequences:
    """Trajectories as padded sequences: `drawn[i, j]` says that token j of sequence i was drawn by the policy.

    There are always as many, of which some may be empty: one compilation serves all tests.
    """

    def __init__(self, trajectories: list[Trajectory]) -> None:
        shape = len(PROMPT_LENGTHS) * GENERATIONS, LENGTH
        self.count = len(trajectories)
        self.tokens, self.lengths = np.zeros(shape, np.int32), np.zeros(shape[0], np.int32)
        self.sampled, self.drawn = np.zeros(shape, np.float32), np.zeros(shape, bool)
        for row, t in enumerate(trajectories):
            start, self.lengths[row] = len(t.prompt_ids), len(t.prompt_ids) + len(t.token_ids)
            self.tokens[row, :start], self.tokens[row, start : self.lengths[row]] = t.prompt_ids, t.token_ids
            self.sampled[row, start : self.lengths[row]] = t.logprobs
            self.drawn[row, start : self.lengths[row]] = True

    def weights(self, aggregation: Aggregation) -> np.ndarray:
        """What each token's loss is multiplied by."""
        per_sequence = self.drawn.sum(1, keepdims=True)
        denominators = {
            "token-mean": per_sequence.sum(),
            "sequence-mean-token-mean": np.maximum(per_sequence, 1) * self.count,
            "sequence-mean-token-sum-norm": self.count * MAX_TOKENS,
        }
        return (self.drawn / denominators[aggregation]).astype(np.float32)


def sequence_logprobs(parameters: Parameters, spec: ModelSpec, tokens: Any, length: Any, temperature: float) -> Any:
    """Log-probability of every token of one padded sequence, by a plain softmax; 0 for the first."""
    places = jnp.arange(LENGTH)
    hidden = forward(parameters, spec, tokens[None], places[None], (places < length).astype(jnp.int32)[None])
    scores = logits(parameters, spec, hidden)[0] / temperature
    shifted = scores - scores.max(-1, keepdims=True)
    logprobs = shifted - jnp.log(jnp.exp(shifted).sum(-1, keepdims=True))
    return jnp.concatenate([jnp.zeros(1), logprobs[places[:-1], tokens[1:]]])


@partial(jax.jit, static_argnames=("spec",))
def _all_logprobs(parameters: Any, tokens: Any, lengths: Any, temperature: float, *, spec: ModelSpec) -> Any:
    return jax.lax.map(lambda one: sequence_logprobs(parameters, spec, *one, temperature), (tokens, lengths))


def logprobs_one_by_one(
    parameters: Parameters, spec: ModelSpec, trajectories: list[Trajectory], temperature: float = 1.0
) -> list[np.ndarray]:
    """Per trajectory, the log-probabilities of its completion's tokens."""
    sequences = Sequences(trajectories)
    found = np.asarray(_all_logprobs(parameters, sequences.tokens, sequences.lengths, temperature, spec=spec))
    return [found[index][sequences.drawn[index]] for index in range(len(trajectories))]


@partial(jax.jit, static_argnames=("spec",))
@jax.value_and_grad
def reference_loss(parameters: Any, arrays: tuple[Any, ...], spec: ModelSpec, temperature: float, kl_k3: float) -> Any:
    """The clipped surrogate with a KL term, summed over sequences that are computed one at a time."""

    def one(inputs: tuple[Any, ...]) -> Any:
        tokens, length, sampled, advantage, weights, reference = inputs
        logprobs = sequence_logprobs(parameters, spec, tokens, length, temperature)
        logprobs = jnp.where(weights > 0, logprobs, sampled)
        ratio = jnp.exp(logprobs - sampled)
        surrogate = jnp.minimum(ratio * advantage, jnp.clip(ratio, 1 - CLIPS[0], 1 + CLIPS[1]) * advantage)
        gap = jnp.where(weights > 0, reference - logprobs, 0.0)
        losses = -surrogate + kl_k3 * (jnp.exp(gap) - gap - 1)
        return (losses * weights).sum()

    return jax.lax.map(one, arrays).sum()


def reference_gradient(
    model: Model,
    trajectories: list[Trajectory],
    advantages: np.ndarray,
    *,
    parameters: Parameters | None = None,
    aggregation: Aggregation = "token-mean",
    reference: list[np.ndarray] | None = None,
    temperature: float = 1.0,
    kl_k3: float = 0.0,
) -> tuple[float, Parameters]:
    sequences = Sequences(trajectories)
    other = sequences.sampled.copy()
    if reference is not None:
        other[sequences.drawn] = np.concatenate(reference)
    arrays = (
        sequences.tokens,
        sequences.lengths,
        sequences.sampled,
        np.pad(advantages.astype(np.float32), (0, len(sequences.tokens) - len(trajectories))),
        sequences.weights(aggregation),
        other,
    )
    parameters = model.parameters if parameters is None else parameters
    loss, gradient = reference_loss(parameters, arrays, model.spec, temperature, kl_k3)
    return float(loss), jax.device_get(gradient)


class HandWrittenAdamW:
    """Loshchilov and Hutter's algorithm in float64, with the gradient clipped by its global norm first."""

    def __init__(self, parameters: Parameters) -> None:
        self.weights = {name: np.asarray(array, np.float64) for name, array in parameters.items()}
        self.first = {name: np.zeros_like(array) for name, array in self.weights.items()}
        self.second = {name: np.zeros_like(array) for name, array in self.weights.items()}
        self.count = 0

    def step(self, gradient: Parameters, learning_rate: float) -> None:
        self.count += 1
        beta1, beta2 = OPTIMIZER["beta1"], OPTIMIZER["beta2"]
        norm = np.sqrt(sum(np.square(array.astype(np.float64)).sum() for array in gradient.values()))
        for name, array in gradient.items():
            clipped = array.astype(np.float64) * min(1.0, OPTIMIZER["max_grad_norm"] / norm)
            self.first[name] = beta1 * self.first[name] + (1 - beta1) * clipped
            self.second[name] = beta2 * self.second[name] + (1 - beta2) * clipped**2
            mean = self.first[name] / (1 - beta1**self.count)
            deviation = np.sqrt(self.second[name] / (1 - beta2**self.count))
            decay = 0.0 if "norm" in name else OPTIMIZER["weight_decay"]
            self.weights[name] -= learning_rate * (mean / (deviation + 1e-8) + decay * self.weights[name])
