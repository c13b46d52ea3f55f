"""The rollout engine: prompts go in, finished trajectories come out, many decoding steps per dispatch.

`submit` queues prompts, `poll` runs one dispatch and returns what finished, `update_weights` swaps the policy. Every
decision is a pure function of what was submitted: nothing depends on time.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Sequence

import jax
import jax.numpy as jnp
import numpy as np

from burnish.errors import RunStopped
from burnish.model.decoder import Parameters, unroll
from burnish.model.spec import ModelSpec
from burnish.rollout.decode import Truncation, decode
from burnish.rollout.grid import (
    Grid,
    PartialCompletion,
    Place,
    Request,
    fitting_shape,
    newcomers_of,
    rearranged,
)
from burnish.rollout.records import Prompt, Trajectory
from burnish.rollout.sampling import Sampling, lane_keys


class Engine:
    """Draws groups of completions from one model.

    Args:
        spec: the model's architecture.
        eos_ids: token ids that end a completion; each counts as drawn and belongs to it.
        decode_text: token ids → text, special tokens skipped; needed for `Trajectory.text` and stop strings.
        max_lanes: how many completions are drawn side by side at most (a single prompt may exceed it).
        steps_per_dispatch: decoding steps between two looks at what finished.
    """

    def __init__(
        self,
        spec: ModelSpec,
        *,
        eos_ids: Sequence[int],
        decode_text: Callable[[Sequence[int]], str],
        max_lanes: int = 64,
        steps_per_dispatch: int = 16,
    ) -> None:
        self._spec = spec
        self._eos_ids = tuple(sorted(set(eos_ids)))
        self._decode_text = decode_text
        self._max_lanes = max_lanes
        self._steps = steps_per_dispatch
        self._parameters: Parameters | None = None
        self._version = -1
        self._waiting: deque[Request] = deque()
        self._grid: Grid | None = None
        self.generated_tokens = 0
        """Tokens drawn since the engine was made."""

    def update_weights(self, version: int, parameters: Parameters) -> None:
        """Draw from these weights (stacked, already in the compute dtype) from now on.

        Raises:
            ValueError: while completions are being drawn: their cached keys and values would be of other weights.
        """
        if self._grid is not None:
            raise ValueError("weights can't change while completions are being drawn; poll until the engine is idle")
        self._parameters = None  # Free the previous copy before the next one is made.
        self._parameters = unroll(parameters)
        self._version = version

    @property
    def busy(self) -> bool:
        """Whether anything submitted has not been returned yet."""
        return bool(self._waiting) or self._grid is not None

    def submit(self, prompts: Sequence[Prompt], sampling: Sampling, *, seed: int, step: int) -> None:
        """Queue `sampling.num_generations` completions of every prompt; noise is keyed by (seed, step, group, …)."""
        if not prompts:
            return
        if self.busy and _truncation(self._active_sampling()) != _truncation(sampling):
            raise ValueError("everything that is drawn at the same time needs the same top_k, top_p and min_p")
        number = sampling.num_generations
        groups = np.repeat(np.asarray([prompt.group_id for prompt in prompts], np.int32), number)
        completions = np.tile(np.arange(number, dtype=np.int32), len(prompts))
        keys = np.asarray(lane_keys(seed, step, jnp.asarray(groups), jnp.asarray(completions)))
        self._waiting.extend(
            Request(prompt, sampling, key)
            for prompt, key in zip(prompts, keys.reshape(len(prompts), number, 2), strict=True)
        )

    def poll(self) -> list[Trajectory]:
        """Run one dispatch and return the completions that it finished, in lane order; [] when idle."""
        if not self.busy:
            return []
        if self._parameters is None:
            raise ValueError("update_weights must be called before poll")
        grid = self._grid = self._arranged(self._parameters)
        top_k, top_p, min_p = _truncation(grid.sampling)
        own, lanes, slot, drawn = decode(
            self._parameters,
            grid.prefix,
            grid.prefix_lengths,
            grid.own,
            grid.lanes,
            jnp.int32(grid.slot),
            Truncation(jnp.int32(top_k), jnp.float32(top_p), jnp.float32(min_p)),
            spec=self._spec,
            eos_ids=self._eos_ids,
            max_steps=self._steps,
            bound=min(top_k, self._spec.vocab_size),
        )
        slot, remaining, drawn = jax.device_get((slot, lanes.remaining, drawn))
        grid.move_on(own, lanes, int(slot), remaining)
        finished: dict[Place, PartialCompletion] = {}
        for place, completion in grid.standing():
            count = int(drawn.counts[place])
            logprobs = drawn.logprobs[place][:count]
            _check_finite(logprobs, completion.request.prompt)
            completion.tokens.extend(drawn.tokens[place][:count].tolist())
            completion.logprobs.extend(logprobs.tolist())
            if drawn.kept_ids is not None:
                completion.kept_ids.extend(drawn.kept_ids[place][:count])
            self.generated_tokens += count
            self._look_for_an_end(completion, count)
            if completion.stop_reason is not None:
                finished[place] = completion
        grid.free(list(finished))
        if not any(grid.standing()):
            self._grid = None
        return [self._trajectory(completion) for completion in finished.values()]

    def in_progress(self) -> Iterator[tuple[Prompt, int, list[int]]]:
        """What is being drawn: (prompt, completion index, the completion's tokens so far)."""
        if self._grid is not None:
            for _, completion in self._grid.standing():
                yield completion.request.prompt, completion.index, list(completion.tokens)

    def run(self) -> Iterator[Trajectory]:
        """Poll until everything submitted has been returned."""
        while self.busy:
            yield from self.poll()

    def abandon(self) -> None:
        """Forget everything that was submitted and not returned."""
        self._waiting.clear()
        self._grid = None

    def _active_sampling(self) -> Sampling:
        return self._grid.sampling if self._grid is not None else self._waiting[0].sampling

    def _look_for_an_end(self, completion: PartialCompletion, fresh: int) -> None:
        """Give it a stop reason if one of its last `fresh` tokens ended it, and cut what was drawn beyond."""
        sampling = completion.request.sampling
        total = len(completion.tokens)
        if sampling.stop_strings and self._says_stop(completion.tokens, sampling):
            # Somewhere in the fresh tokens; the first of them that completes a stop string is the last that stays.
            lengths = range(total - fresh + 1, total + 1)
            length = next(length for length in lengths if self._says_stop(completion.tokens[:length], sampling))
            self.generated_tokens -= total - length
            del completion.tokens[length:], completion.logprobs[length:], completion.kept_ids[length:]
            completion.stop_reason = "stop_string"
            return
        if completion.tokens[-1] in self._eos_ids:
            completion.stop_reason = "eos"
        elif total >= sampling.max_tokens:
            completion.stop_reason = "length"

    def _says_stop(self, tokens: Sequence[int], sampling: Sampling) -> bool:
        text = self._decode_text(tokens)
        return any(stop in text for stop in sampling.stop_strings)

    def _trajectory(self, completion: PartialCompletion) -> Trajectory:
        assert completion.stop_reason is not None
        prompt = completion.request.prompt
        count = len(completion.tokens)
        return Trajectory(
            prompt_id=prompt.id,
            group_id=prompt.group_id,
            completion_index=completion.index,
            prompt_ids=np.asarray(prompt.token_ids, np.int32),
            token_ids=np.asarray(completion.tokens, np.int32),
            sampled_mask=np.ones(count, bool),
            logprobs=np.asarray(completion.logprobs, np.float32),
            versions=np.full(count, self._version, np.int32),
            turn=np.zeros(count, np.int32),
            kept_ids=np.stack(completion.kept_ids) if completion.kept_ids else None,
            stop_reason=completion.stop_reason,
            text=self._decode_text(completion.tokens),
        )

    def _arranged(self, parameters: Parameters) -> Grid:
        """The grid of the next dispatch: let waiting prompts in where there is room, shrink it where it can."""
        grid = self._grid
        admitted = self._admitted([] if grid is None else grid.members())
        if grid is not None and not admitted and grid.holds(self._steps) and not grid.should_shrink():
            return grid
        return rearranged(grid, admitted, parameters=parameters, spec=self._spec, steps=self._steps)

    def _admitted(self, members: list[list[PartialCompletion]]) -> list[Request]:
        """Take those prompts off the queue that find room beside these completions, one list for each prompt."""
        admitted: list[Request] = []
        # Re-arranging copies caches, so newcomers wait until half of the lanes are free.
        if members and fitting_shape(members).size * 2 > self._max_lanes:
            return admitted
        while self._waiting:
            members = [*members, newcomers_of(self._waiting[0])]
            if len(members) > 1 and fitting_shape(members).size > self._max_lanes:
                break
            admitted.append(self._waiting.popleft())
        return admitted


def _truncation(sampling: Sampling) -> tuple[int, float, float]:
    return sampling.kept_bound, sampling.top_p, sampling.min_p


def _check_finite(logprobs: np.ndarray, prompt: Prompt) -> None:
    if not np.isfinite(logprobs).all():
        raise RunStopped(
            f"the model gave a log-probability that is not finite while answering prompt {prompt.id!r}: "
            "its weights hold NaN or have overflowed; resume from an earlier checkpoint with a lower learning rate"
        )
