"""The grid of lanes: which completion stands where, and how it moves as completions finish and prompts come in.

The host keeps the book (who stands on which lane), the device holds keys, values and what each lane does next. A new
grid takes over the caches of the lanes that live, moved towards the front of their slots, and prefills what came in.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from burnish.model.decoder import Parameters
from burnish.model.spec import ModelSpec
from burnish.rollout.decode import Lanes, LayerCache, gather_own, gather_prefix, prefill
from burnish.rollout.layout import GridShape, cache_length, power_of_two, smallest_grid
from burnish.rollout.records import Prompt, StopReason
from burnish.rollout.sampling import Sampling

FIRST_CACHE = 64
"""Slots a lane's own cache starts with at most; it doubles as completions grow."""

SHRINK_BY = 4
"""How many times smaller a grid has to become before it is re-arranged for that alone."""

PREFILL_ROWS = 16
"""Prompts that are prefilled in one dispatch at most."""

Place = tuple[int, int]
"""Row and lane."""


@dataclass(eq=False)
class Request:
    """A prompt that waits or runs, and the noise keys of its completions (num_generations, 2)."""

    prompt: Prompt
    sampling: Sampling
    keys: np.ndarray


@dataclass(eq=False)
class PartialCompletion:
    """A completion being drawn."""

    request: Request
    index: int
    """Which of its prompt's completions it is."""
    tokens: list[int] = field(default_factory=list)
    logprobs: list[float] = field(default_factory=list)
    kept_ids: list[np.ndarray] = field(default_factory=list)
    stop_reason: StopReason | None = None


@dataclass
class Grid:
    """What stands where, and the device arrays of the same shape."""

    shape: GridShape
    completions: list[list[PartialCompletion | None]]
    """`completions[row][lane]`; the completions of a row continue the same prompt."""
    prefix: list[LayerCache]
    """Per layer, keys and values of each row's prompt but for its last token."""
    prefix_lengths: jax.Array
    own: list[LayerCache]
    """Per layer, keys and values of what each lane has been fed since."""
    lanes: Lanes
    remaining: np.ndarray
    """The host's copy of `lanes.remaining`."""
    slot: int
    """The slot of `own` that every lane writes next."""

    def standing(self) -> Iterator[tuple[Place, PartialCompletion]]:
        """The completions being drawn, row by row."""
        for row, completions in enumerate(self.completions):
            for lane, completion in enumerate(completions):
                if completion is not None:
                    yield (row, lane), completion

    def members(self) -> list[list[PartialCompletion]]:
        """The completions being drawn, those of one prompt together."""
        by_request: dict[Request, list[PartialCompletion]] = {}
        for _, completion in self.standing():
            by_request.setdefault(completion.request, []).append(completion)
        return list(by_request.values())

    @property
    def sampling(self) -> Sampling:
        """How the first completion is drawn; top_k, top_p and min_p are those of all."""
        return next(completion.request.sampling for _, completion in self.standing())

    def should_shrink(self) -> bool:
        """Whether so few lanes would do that a smaller shape is worth compiling and copying the caches."""
        return fitting_shape(self.members()).size * SHRINK_BY <= self.shape.size

    def holds(self, steps: int) -> bool:
        """Whether the lanes' own caches have slots for so many steps, or as many as any lane may still draw."""
        return self.slot + min(steps, int(self.remaining.max())) <= self.own[0][0].shape[3]

    def move_on(self, own: list[LayerCache], lanes: Lanes, slot: int, remaining: np.ndarray) -> None:
        """Take over the state that a dispatch left."""
        self.own, self.lanes, self.slot, self.remaining = own, lanes, slot, remaining

    def free(self, places: Sequence[Place]) -> None:
        """Take finished completions off their lanes; one that the host stopped must not be drawn any further."""
        for row, lane in places:
            self.completions[row][lane] = None
        if places and self.remaining[tuple(np.transpose(places))].any():
            self.remaining = self.remaining.copy()
            self.remaining[tuple(np.transpose(places))] = 0
            self.lanes = dataclasses.replace(self.lanes, remaining=jnp.asarray(self.remaining))


def fitting_shape(members: Sequence[Sequence[PartialCompletion]]) -> GridShape:
    """The shape for these completions, those of one prompt together."""
    width = max(completions[0].request.sampling.num_generations for completions in members)
    return smallest_grid([len(completions) for completions in members], width)


def newcomers_of(request: Request) -> list[PartialCompletion]:
    """The completions of a prompt that nothing has been drawn of yet."""
    return [PartialCompletion(request, index) for index in range(request.sampling.num_generations)]


def rearranged(
    old: Grid | None, admitted: Sequence[Request], *, parameters: Parameters, spec: ModelSpec, steps: int
) -> Grid:
    """The smallest grid for the completions of `old` and all of the `admitted` prompts, with room for `steps` more."""
    members = [] if old is None else old.members()
    members += [newcomers_of(request) for request in admitted]
    shape = fitting_shape(members)
    rows = [
        completions[first : first + shape.lanes]
        for completions in members
        for first in range(0, len(completions), shape.lanes)
    ]
    came_from = {} if old is None else {completion: place for place, completion in old.standing()}
    places = {completion: (row, lane) for row, line in enumerate(rows) for lane, completion in enumerate(line)}
    lanes, slot, shift = _lanes(old, came_from, places, shape)

    sources = np.zeros((*shape, 2), np.int32)
    for completion, place in came_from.items():
        sources[places[completion]] = place
    ahead = slot + min(steps, int(lanes["remaining"].max()))
    longest = max(ahead, int((slot - lanes["starts"] + lanes["remaining"]).max()))
    slots = min(power_of_two(max(ahead, FIRST_CACHE)), cache_length(longest))

    # In the order of gather_prefix: the old grid's rows, then the prefilled prompts.
    prefix_sources = np.zeros(shape.groups, np.int32)
    prefix_lengths = np.zeros(shape.groups, np.int32)
    newcomers = {request: (old.shape.groups if old else 0) + index for index, request in enumerate(admitted)}
    for row, (first, *_) in enumerate(rows):
        prefix_sources[row] = came_from[first][0] if first in came_from else newcomers[first.request]
        prefix_lengths[row] = len(first.request.prompt.token_ids) - 1
    fresh = _prefilled([request.prompt.token_ids[:-1] for request in admitted], parameters, spec) if admitted else None
    return Grid(
        shape=shape,
        completions=[
            [*line, *[None] * (shape.lanes - len(line))] for line in [*rows, *[[]] * (shape.groups - len(rows))]
        ],
        prefix=_prefix_caches(old, fresh, prefix_sources, cache_length(int(prefix_lengths.max())), parameters, spec),
        prefix_lengths=jnp.asarray(prefix_lengths),
        own=_own_caches(old, sources, shift, slots, parameters, spec),
        lanes=Lanes(**{name: jnp.asarray(values) for name, values in lanes.items()}),
        remaining=lanes["remaining"],
        slot=slot,
    )


def _lanes(
    old: Grid | None,
    came_from: dict[PartialCompletion, Place],
    places: dict[PartialCompletion, Place],
    shape: GridShape,
) -> tuple[dict[str, np.ndarray], int, int]:
    """The fields of `Lanes`, the slot that is written next, and by how many slots the old caches move forward."""
    lanes = {
        "tokens": np.zeros(shape, np.int32),
        "positions": np.zeros(shape, np.int32),
        "starts": np.zeros(shape, np.int32),
        "remaining": np.zeros(shape, np.int32),
        "keys": np.zeros((*shape, 2), np.uint32),
        "temperatures": np.ones(shape, np.float32),
    }
    before: Any = None if old is None else jax.device_get(old.lanes)
    # No lane that lives has anything in the slots before the first of their starts.
    shift = min((int(before.starts[place]) for place in came_from.values()), default=0)
    slot = 0 if old is None else old.slot - shift
    for completion, place in places.items():
        if completion in came_from:
            for name, values in lanes.items():
                values[place] = getattr(before, name)[came_from[completion]]
            lanes["starts"][place] -= shift
        else:
            request = completion.request
            lanes["tokens"][place] = request.prompt.token_ids[-1]
            lanes["positions"][place] = len(request.prompt.token_ids) - 1
            lanes["starts"][place] = slot
            lanes["remaining"][place] = request.sampling.max_tokens
            lanes["keys"][place] = request.keys[completion.index]
            lanes["temperatures"][place] = request.sampling.temperature
    return lanes, slot, shift


def _prefilled(prompts: Sequence[Sequence[int]], parameters: Parameters, spec: ModelSpec) -> list[LayerCache]:
    """Keys and values of prompts, a few at a time, so that their number asks for no shape of its own."""
    length = cache_length(max(map(len, prompts)))
    parts: list[list[LayerCache]] = []
    for first in range(0, len(prompts), PREFILL_ROWS):
        part = prompts[first : first + PREFILL_ROWS]
        tokens = np.zeros((power_of_two(len(part)), length), np.int32)
        lengths = np.zeros(len(tokens), np.int32)
        for row, prompt in enumerate(part):
            tokens[row, : len(prompt)] = prompt
            lengths[row] = len(prompt)
        parts.append(prefill(parameters, jnp.asarray(tokens), jnp.asarray(lengths), spec=spec))
    if len(parts) == 1:
        return parts[0]
    layers = zip(*parts, strict=True)
    return [
        (jnp.concatenate(keys), jnp.concatenate(values))
        for keys, values in (zip(*layer, strict=True) for layer in layers)
    ]


def _prefix_caches(
    old: Grid | None,
    fresh: list[LayerCache] | None,
    sources: np.ndarray,
    length: int,
    parameters: Parameters,
    spec: ModelSpec,
) -> list[LayerCache]:
    nothing = jnp.zeros((0, spec.num_kv_heads, 1, spec.head_dim), _cache_dtype(parameters))
    before = old.prefix if old else [(nothing, nothing)] * spec.num_layers
    after = fresh or [(nothing, nothing)] * spec.num_layers
    rows = jnp.asarray(sources)
    return [
        (
            gather_prefix(old_keys, new_keys, rows, length=length),
            gather_prefix(old_values, new_values, rows, length=length),
        )
        for (old_keys, old_values), (new_keys, new_values) in zip(before, after, strict=True)
    ]


def _own_caches(
    old: Grid | None, sources: np.ndarray, shift: int, slots: int, parameters: Parameters, spec: ModelSpec
) -> list[LayerCache]:
    if old is None:
        shape = (*sources.shape[:2], spec.num_kv_heads, slots, spec.head_dim)
        dtype = _cache_dtype(parameters)
        return [(jnp.zeros(shape, dtype), jnp.zeros(shape, dtype)) for _ in range(spec.num_layers)]
    places, by = jnp.asarray(sources), jnp.int32(shift)
    return [
        (gather_own(keys, places, by, length=slots), gather_own(values, places, by, length=slots))
        for keys, values in old.own
    ]


def _cache_dtype(parameters: Parameters) -> np.dtype:
    return parameters["model.embed_tokens.weight"].dtype
