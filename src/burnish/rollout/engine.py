"""The rollout engine: prompts go in, finished trajectories come out, many decoding steps per dispatch.

`submit` queues prompts, `poll` runs one dispatch and returns what finished, `update_weights` swaps the policy. The host
keeps the book of which sequence stands on which lane; the device holds keys and values. Every decision is a pure
function of what was submitted: nothing depends on time.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field

import jax
import jax.numpy as jnp
import numpy as np

from burnish.errors import RunStopped
from burnish.model.decoder import Parameters, unroll
from burnish.model.spec import ModelSpec
from burnish.rollout.decode import Lanes, LayerCache, Truncation, decode, gather_own, gather_prefix, prefill
from burnish.rollout.layout import Grid, cache_length, power_of_two, smallest_grid
from burnish.rollout.records import Prompt, StopReason, Trajectory
from burnish.rollout.sampling import Sampling, lane_keys

FIRST_CACHE = 64
"""Slots a lane's own cache starts with at most; it doubles as completions grow."""


@dataclass(eq=False)
class _Request:
    """A prompt that waits or runs, and the noise keys of its completions."""

    prompt: Prompt
    sampling: Sampling
    keys: np.ndarray


@dataclass(eq=False)
class _Sequence:
    """A completion being drawn."""

    request: _Request
    completion_index: int
    tokens: list[int] = field(default_factory=list)
    logprobs: list[float] = field(default_factory=list)
    kept_ids: list[np.ndarray] = field(default_factory=list)
    stop_reason: StopReason | None = None


@dataclass
class _Grid:
    """What stands where: `rows[i][j]` is the sequence on lane j of row i, and the device arrays of the same shape."""

    shape: Grid
    rows: list[list[_Sequence | None]]
    prefix: list[LayerCache]
    prefix_lengths: np.ndarray
    own: list[LayerCache]
    lanes: Lanes
    slot: int


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
        self._waiting: deque[_Request] = deque()
        self._grid: _Grid | None = None
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
        active = self._waiting[0] if self._waiting else self._grid and _first_request(self._grid)
        if active and _truncation(active.sampling) != _truncation(sampling):
            raise ValueError("everything that is drawn at the same time needs the same top_k, top_p and min_p")
        number = sampling.num_generations
        groups = np.repeat(np.asarray([prompt.group_id for prompt in prompts], np.int32), number)
        completions = np.tile(np.arange(number, dtype=np.int32), len(prompts))
        keys = np.asarray(lane_keys(seed, step, groups, completions)).reshape(len(prompts), number, 2)
        self._waiting.extend(
            _Request(prompt, sampling, key) for prompt, key in zip(prompts, keys, strict=True)
        )

    def poll(self) -> list[Trajectory]:
        """Run one dispatch and return the completions that it finished, in lane order; [] when idle."""
        if not self.busy:
            return []
        if self._parameters is None:
            raise ValueError("update_weights must be called before poll")
        grid = self._arrange()
        sampling = _first_request(grid).sampling
        own, lanes, slot, drawn = decode(
            self._parameters,
            grid.prefix,
            grid.prefix_lengths,
            grid.own,
            grid.lanes,
            jnp.int32(grid.slot),
            _truncation(sampling),
            spec=self._spec,
            eos_ids=self._eos_ids,
            max_steps=self._steps,
            bound=min(sampling.kept_bound, self._spec.vocab_size),
        )
        lanes, slot, drawn = jax.device_get((lanes, slot, drawn))
        grid.own, grid.lanes, grid.slot = own, lanes, int(slot)
        finished = []
        for place, sequence in _standing(grid):
            count = int(drawn.counts[place])
            sequence.tokens.extend(drawn.tokens[place][:count].tolist())
            sequence.logprobs.extend(drawn.logprobs[place][:count].tolist())
            if drawn.kept_ids is not None:
                sequence.kept_ids.extend(drawn.kept_ids[place][:count])
            self.generated_tokens += count
            self._look_for_an_end(sequence, count)
            if sequence.stop_reason is not None:
                grid.rows[place[0]][place[1]] = None
                finished.append(self._trajectory(sequence))
        if not any(True for _ in _standing(grid)):
            self._grid = None
        return finished

    def in_progress(self) -> Iterator[tuple[Prompt, int, list[int]]]:
        """What is being drawn: (prompt, completion index, the completion's tokens so far)."""
        if self._grid is not None:
            for _, sequence in _standing(self._grid):
                yield sequence.request.prompt, sequence.completion_index, list(sequence.tokens)

    def run(self) -> Iterator[Trajectory]:
        """Poll until everything submitted has been returned."""
        while self.busy:
            yield from self.poll()

    def abandon(self) -> None:
        """Forget everything that was submitted and not returned."""
        self._waiting.clear()
        self._grid = None

    def _look_for_an_end(self, sequence: _Sequence, fresh: int) -> None:
        sampling = sequence.request.sampling
        if sampling.stop_strings:
            for length in range(len(sequence.tokens) - fresh + 1, len(sequence.tokens) + 1):
                text = self._decode_text(sequence.tokens[:length])
                if any(stop in text for stop in sampling.stop_strings):
                    self.generated_tokens -= len(sequence.tokens) - length
                    del sequence.tokens[length:], sequence.logprobs[length:], sequence.kept_ids[length:]
                    sequence.stop_reason = "stop_string"
                    return
        if sequence.tokens[-1] in self._eos_ids:
            sequence.stop_reason = "eos"
        elif len(sequence.tokens) >= sampling.max_tokens:
            sequence.stop_reason = "length"

    def _trajectory(self, sequence: _Sequence) -> Trajectory:
        count = len(sequence.tokens)
        logprobs = np.asarray(sequence.logprobs, np.float32)
        prompt = sequence.request.prompt
        if not np.isfinite(logprobs).all():
            raise RunStopped(
                f"the model gave a log-probability that is not finite while answering prompt {prompt.id!r}: "
                "its weights hold NaN or have overflowed; resume from an earlier checkpoint with a lower learning rate"
            )
        assert sequence.stop_reason is not None
        return Trajectory(
            prompt_id=prompt.id,
            group_id=prompt.group_id,
            completion_index=sequence.completion_index,
            prompt_ids=np.asarray(prompt.token_ids, np.int32),
            token_ids=np.asarray(sequence.tokens, np.int32),
            sampled_mask=np.ones(count, bool),
            logprobs=logprobs,
            versions=np.full(count, self._version, np.int32),
            turn=np.zeros(count, np.int32),
            kept_ids=np.stack(sequence.kept_ids) if sequence.kept_ids else None,
            stop_reason=sequence.stop_reason,
            text=self._decode_text(sequence.tokens),
        )

    def _arrange(self) -> _Grid:
        """Let waiting prompts in where there is room, and shrink or lengthen the grid where that pays."""
        old = self._grid
        standing = [] if old is None else list(_standing(old))
        living: dict[_Request, list[tuple[tuple[int, int] | None, _Sequence]]] = {}
        for place, sequence in standing:
            living.setdefault(sequence.request, []).append((place, sequence))
        counts = [len(sequences) for sequences in living.values()]
        admitted: list[_Request] = []
        # Re-arranging copies caches, so newcomers wait until half of the lanes are free.
        if self._waiting and (not counts or smallest_grid(counts).size * 2 <= self._max_lanes):
            while self._waiting:
                request = self._waiting[0]
                more = [*counts, request.sampling.num_generations]
                if counts and smallest_grid(more).size > self._max_lanes:
                    break
                counts = more
                admitted.append(self._waiting.popleft())
                living[request] = [
                    (None, _Sequence(request, index)) for index in range(request.sampling.num_generations)
                ]
        shape = smallest_grid(counts)
        if old is not None and not admitted and shape.size >= old.shape.size:
            ahead = min(self._steps, int(old.lanes.remaining.max()))
            if old.slot + ahead <= old.own[0][0].shape[3]:
                return old
        self._grid = self._rearranged(old, shape, living, admitted)
        return self._grid

    def _rearranged(
        self,
        old: _Grid | None,
        shape: Grid,
        living: dict[_Request, list[tuple[tuple[int, int] | None, _Sequence]]],
        admitted: list[_Request],
    ) -> _Grid:
        groups, width = shape
        rows: list[list[_Sequence | None]] = []
        prefix_rows: list[int] = []
        prefix_lengths = np.zeros(groups, np.int32)
        sources = np.zeros((groups, width, 2), np.int32)
        lanes = Lanes(
            tokens=np.zeros(shape, np.int32),
            positions=np.zeros(shape, np.int32),
            starts=np.zeros(shape, np.int32),
            remaining=np.zeros(shape, np.int32),
            keys=np.zeros((*shape, 2), np.uint32),
            temperatures=np.ones(shape, np.float32),
        )
        old_places = [place for pairs in living.values() for place, _ in pairs if place is not None]
        shift = min((int(old.lanes.starts[place]) for place in old_places), default=0) if old else 0
        slot = old.slot - shift if old and old_places else 0
        old_groups = old.shape.groups if old else 0
        for request, pairs in living.items():
            prompt = request.prompt.token_ids
            for first in range(0, len(pairs), width):
                row = len(rows)
                chunk = pairs[first : first + width]
                rows.append([sequence for _, sequence in chunk] + [None] * (width - len(chunk)))
                prefix_lengths[row] = len(prompt) - 1
                place = chunk[0][0]
                prefix_rows.append(place[0] if place is not None else old_groups + admitted.index(request))
                for lane, (place, sequence) in enumerate(chunk):
                    here = row, lane
                    if place is None:
                        lanes.tokens[here] = prompt[-1]
                        lanes.positions[here] = len(prompt) - 1
                        lanes.starts[here] = slot
                        lanes.remaining[here] = request.sampling.max_tokens
                        lanes.keys[here] = request.keys[sequence.completion_index]
                        lanes.temperatures[here] = request.sampling.temperature
                    else:
                        assert old is not None
                        sources[here] = place
                        for name in ("tokens", "positions", "remaining", "keys", "temperatures"):
                            getattr(lanes, name)[here] = getattr(old.lanes, name)[place]
                        lanes.starts[here] = old.lanes.starts[place] - shift
        rows.extend([None] * width for _ in range(groups - len(rows)))
        ahead = slot + min(self._steps, int(lanes.remaining.max()))
        longest = int((slot - lanes.starts + lanes.remaining).max())
        slots = min(power_of_two(max(ahead, FIRST_CACHE)), cache_length(max(longest, ahead)))
        prefix = self._prefix_caches(old, prefix_rows, groups, int(prefix_lengths.max()), admitted)
        return _Grid(
            shape=shape,
            rows=rows,
            prefix=prefix,
            prefix_lengths=prefix_lengths,
            own=self._own_caches(old if old_places else None, sources, shift, slots),
            lanes=lanes,
            slot=slot,
        )

    def _prefix_caches(
        self, old: _Grid | None, rows: list[int], groups: int, longest: int, admitted: list[_Request]
    ) -> list[LayerCache]:
        length = cache_length(longest)
        if admitted:
            fresh = self._prefill([request.prompt.token_ids[:-1] for request in admitted])
        indices = np.asarray(rows + [0] * (groups - len(rows)), np.int32)
        empty = self._zeros(0, 1)
        caches = []
        for index in range(self._spec.num_layers):
            before = old.prefix[index] if old else (empty, empty)
            after = fresh[index] if admitted else (empty, empty)
            keys, values = (gather_prefix(b, a, indices, length=length) for b, a in zip(before, after, strict=True))
            caches.append((keys, values))
        return caches

    def _prefill(self, prompts: list[tuple[int, ...]]) -> list[LayerCache]:
        assert self._parameters is not None
        tokens = np.zeros((power_of_two(len(prompts)), cache_length(max(map(len, prompts)))), np.int32)
        lengths = np.zeros(len(tokens), np.int32)
        for row, prompt in enumerate(prompts):
            tokens[row, : len(prompt)] = prompt
            lengths[row] = len(prompt)
        return prefill(self._parameters, tokens, lengths, spec=self._spec)

    def _own_caches(self, old: _Grid | None, sources: np.ndarray, shift: int, slots: int) -> list[LayerCache]:
        if old is None:
            shape = (*sources.shape[:2], self._spec.num_kv_heads, slots, self._spec.head_dim)
            return [
                (jnp.zeros(shape, self._dtype), jnp.zeros(shape, self._dtype)) for _ in range(self._spec.num_layers)
            ]
        gathered: list[LayerCache] = []
        for keys, values in old.own:
            gathered.append(
                (
                    gather_own(keys, sources, np.int32(shift), length=slots),
                    gather_own(values, sources, np.int32(shift), length=slots),
                )
            )
        return gathered

    def _zeros(self, rows: int, length: int) -> jax.Array:
        return jnp.zeros((rows, self._spec.num_kv_heads, length, self._spec.head_dim), self._dtype)

    @property
    def _dtype(self) -> np.dtype:
        assert self._parameters is not None
        return self._parameters["model.embed_tokens.weight"].dtype


def _standing(grid: _Grid) -> Iterator[tuple[tuple[int, int], _Sequence]]:
    for row, sequences in enumerate(grid.rows):
        for lane, sequence in enumerate(sequences):
            if sequence is not None:
                yield (row, lane), sequence


def _first_request(grid: _Grid) -> _Request:
    return next(sequence.request for _, sequence in _standing(grid))


def _truncation(sampling: Sampling) -> Truncation:
    bound = sampling.kept_bound
    return Truncation(np.int32(bound), np.float32(sampling.top_p), np.float32(sampling.min_p))
