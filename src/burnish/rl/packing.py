"""Trajectories of different lengths laid into rows of one length, each group's prompt computed once (NumPy).

With a shared prefix, a group becomes one prefix segment, prompt[:-1], followed by one segment per completion with
inputs [prompt[-1], c_1 … c_{n-1}] and targets [c_1 … c_n]; the completion's positions go on from the prefix's. Without,
each trajectory is one segment of its own. Packing is a pure function of its arguments: no clock, no randomness.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Literal

import numpy as np
from jaxtyping import Bool, Float, Int

from burnish.rl.batch import Batch
from burnish.rl.losses import Aggregation, trajectory_weights
from burnish.rollout.records import Trajectory

PADDING = {"trajectory_ids": -1, "kept_ids": -1}
"""What padding holds in each array of a batch; 0 where not named."""


@dataclasses.dataclass(frozen=True)
class Chunk:
    """What is laid into a row in one piece: trajectories that share one prompt, by index."""

    prompt_ids: np.ndarray
    members: tuple[int, ...]
    tokens: int


def pack(
    trajectories: Sequence[Trajectory],
    advantages: Float[np.ndarray, " n"],
    *,
    row_tokens: int,
    shared_prefix: bool = True,
    aggregation: Aggregation = "token-mean",
    max_tokens: int | None = None,
    counted: Bool[np.ndarray, " n"] | None = None,
    laid_out: Bool[np.ndarray, " n"] | None = None,
) -> Batch:
    """Packs one optimizer update: all its rows, so that `loss_weights` holds the normalisation of the whole update.

    `counted` says which trajectories are in the loss (all by default); the others keep their place in the rows, with
    loss_mask 0. `laid_out` says which get a place in the rows (all by default); a counted trajectory without one, whose
    loss and gradient are known to be 0, still counts in the normalisation. `aggregation` and `max_tokens` are those of
    `losses.trajectory_weights`.
    """
    if not trajectories:
        raise ValueError("there is no trajectory to pack")
    if len(advantages) != len(trajectories):
        raise ValueError(f"{len(advantages)} advantages were given for {len(trajectories)} trajectories")
    counted = np.ones(len(trajectories), bool) if counted is None else counted
    laid_out = np.ones(len(trajectories), bool) if laid_out is None else laid_out
    if not laid_out.any():
        raise ValueError("no trajectory is to be laid out")
    counted_tokens = np.asarray([t.sampled_mask.sum() for t in trajectories]) * counted
    weights = trajectory_weights(counted_tokens, aggregation, max_tokens)
    rows = _assign_rows(_chunks(trajectories, laid_out, row_tokens, shared_prefix), row_tokens)
    arrays = _empty_rows(len(rows), row_tokens, kept=_kept_width(trajectories))
    for row, chunks in enumerate(rows):
        line, start, segment = {name: array[row] for name, array in arrays.items()}, 0, 1
        for chunk in chunks:
            prompt_length = len(chunk.prompt_ids)
            prefix = slice(start, start + prompt_length - 1)
            _write_prefix(line, prefix, chunk.prompt_ids, segment)
            prefix_segment = segment if shared_prefix and prompt_length > 1 else 0
            segment, start = segment + (prefix_segment > 0), prefix.stop
            for index in chunk.members:
                span = slice(start, start + len(trajectories[index].token_ids))
                _write_completion(line, span, trajectories[index], segment, prefix_segment)
                line["trajectory_ids"][span] = index
                line["advantages"][span] = advantages[index]
                line["loss_mask"][span] *= counted[index]
                line["loss_weights"][span] = line["loss_mask"][span] * weights[index]
                segment, start = segment + 1, span.stop
    return Batch(**arrays)


def counted_trajectories(
    trajectories: Sequence[Trajectory], truncated_completions: Literal["keep", "mask"]
) -> Bool[np.ndarray, " n"]:
    """Which trajectories are in the loss: with `mask`, those that the length limit cut off (by stop reason) are not."""
    if truncated_completions not in ("keep", "mask"):
        raise ValueError(f"truncated_completions is {truncated_completions!r}, expected 'keep' or 'mask'")
    return np.array([truncated_completions == "keep" or not t.truncated for t in trajectories], bool)


def pad_rows(batch: Batch, rows: int) -> Batch:
    """The batch with padding rows appended up to `rows`; they see nothing, count nothing and change no sum."""
    missing = rows - batch.tokens.shape[0]
    if missing < 0:
        raise ValueError(f"the batch has {batch.tokens.shape[0]} rows, more than the {rows} it should be padded to")

    padded = {}
    for field in dataclasses.fields(batch):
        array = getattr(batch, field.name)
        if array is not None:
            filler = np.full((missing, *array.shape[1:]), PADDING.get(field.name, 0), array.dtype)
            padded[field.name] = np.concatenate([array, filler])
    return dataclasses.replace(batch, **padded)


def pad_rows_to_multiple(batch: Batch, multiple: int) -> Batch:
    """The batch with padding rows up to the next multiple, so that it divides into equal micro-batches."""
    return pad_rows(batch, -(-batch.tokens.shape[0] // multiple) * multiple)


def unpack(
    values: Float[np.ndarray, "rows tokens *rest"],
    trajectory_ids: Int[np.ndarray, "rows tokens"],
    num_trajectories: int,
) -> list[np.ndarray]:
    """Each trajectory's values, in the order of its completion tokens: the inverse of packing for any batch array."""
    return [values[trajectory_ids == index] for index in range(num_trajectories)]


def packing_efficiency(batch: Batch) -> float:
    """Share of the rows' tokens that are not padding."""
    return float(np.mean(np.asarray(batch.segment_ids) != 0))


def split_by_group(group_ids: Int[np.ndarray, " n"], parts: int) -> list[Int[np.ndarray, " m"]]:
    """Indices of at most `parts` mini-batches of whole groups, in order of appearance, as even as groups allow."""
    ids, first = np.unique(group_ids, return_index=True)
    in_order = ids[np.argsort(first)]
    shares = np.array_split(in_order, min(parts, len(in_order)))
    return [np.flatnonzero(np.isin(group_ids, share)) for share in shares]


def _chunks(
    trajectories: Sequence[Trajectory], laid_out: np.ndarray, row_tokens: int, shared_prefix: bool
) -> list[Chunk]:
    """One chunk per group where it fits into a row, else as few as first-fit-decreasing finds; one per trajectory
    without a shared prefix."""
    for trajectory in trajectories:
        needed = len(trajectory.prompt_ids) + len(trajectory.token_ids) - 1
        if needed > row_tokens:
            raise ValueError(f"{trajectory.name} needs {needed} tokens of a row of {row_tokens}")
    groups: dict[int, list[int]] = {}
    for index in np.flatnonzero(laid_out).tolist():
        groups.setdefault(trajectories[index].group_id if shared_prefix else index, []).append(index)
    chunks = []
    for indices in groups.values():
        prompt_ids = trajectories[indices[0]].prompt_ids
        for index in indices:
            if not np.array_equal(trajectories[index].prompt_ids, prompt_ids):
                raise ValueError(f"{trajectories[index].name} has another prompt than the rest of its group")
        lengths = {index: len(trajectories[index].token_ids) for index in indices}
        capacity = row_tokens - (len(prompt_ids) - 1)
        bins: list[list[int]] = []
        for index in sorted(indices, key=lambda i: -lengths[i]):
            fitting = (b for b in bins if sum(lengths[i] for i in b) + lengths[index] <= capacity)
            target = next(fitting, None)
            if target is None:
                target = []
                bins.append(target)
            target.append(index)
        chunks += [Chunk(prompt_ids, tuple(sorted(b)), len(prompt_ids) - 1 + sum(lengths[i] for i in b)) for b in bins]
    return chunks


def _assign_rows(chunks: list[Chunk], row_tokens: int) -> list[list[Chunk]]:
    """Best fit, longest chunk first: each goes where it leaves the least room, ties to the earlier row."""
    rows: list[list[Chunk]] = []
    room: list[int] = []
    for chunk in sorted(chunks, key=lambda c: -c.tokens):
        fitting = [row for row in range(len(rows)) if room[row] >= chunk.tokens]
        if fitting:
            row = min(fitting, key=lambda r: room[r])
        else:
            row = len(rows)
            rows.append([])
            room.append(row_tokens)
        rows[row].append(chunk)
        room[row] -= chunk.tokens
    return rows


def _kept_width(trajectories: Sequence[Trajectory]) -> int | None:
    """Widest list of kept ids, or None when nothing was truncated in sampling."""
    with_kept = [t.kept_ids for t in trajectories if t.kept_ids is not None]
    if with_kept and len(with_kept) != len(trajectories):
        culprit = next(t for t in trajectories if t.kept_ids is None)
        raise ValueError(f"{culprit.name} has no kept_ids while others have; one update can't mix the two")
    return max(kept.shape[1] for kept in with_kept) if with_kept else None


def _empty_rows(rows: int, row_tokens: int, kept: int | None) -> dict[str, np.ndarray]:
    integers = ("tokens", "targets", "positions", "segment_ids", "prefix_ids", "trajectory_ids")
    floats = ("loss_mask", "loss_weights", "advantages", "sampled_logprobs")
    arrays = {name: np.full((rows, row_tokens), PADDING.get(name, 0), np.int32) for name in integers}
    arrays |= {name: np.zeros((rows, row_tokens), np.float32) for name in floats}
    if kept is not None:
        arrays["kept_ids"] = np.full((rows, row_tokens, kept), PADDING["kept_ids"], np.int32)
    return arrays


def _write_prefix(line: dict[str, np.ndarray], span: slice, prompt_ids: np.ndarray, segment: int) -> None:
    line["tokens"][span] = prompt_ids[:-1]
    line["positions"][span] = np.arange(len(prompt_ids) - 1)
    line["segment_ids"][span] = segment


def _write_completion(
    line: dict[str, np.ndarray], span: slice, trajectory: Trajectory, segment: int, prefix_segment: int
) -> None:
    first, length = len(trajectory.prompt_ids) - 1, len(trajectory.token_ids)
    line["tokens"][span] = np.concatenate([trajectory.prompt_ids[-1:], trajectory.token_ids[:-1]])
    line["targets"][span] = trajectory.token_ids
    line["positions"][span] = np.arange(first, first + length)
    line["segment_ids"][span] = segment
    line["prefix_ids"][span] = prefix_segment
    line["loss_mask"][span] = trajectory.sampled_mask
    line["sampled_logprobs"][span] = np.where(trajectory.sampled_mask, trajectory.logprobs, 0.0)
    if trajectory.kept_ids is not None:
        line["kept_ids"][span, : trajectory.kept_ids.shape[1]] = trajectory.kept_ids
