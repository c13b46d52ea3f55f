"""Packing against a slow oracle that asks, trajectory by trajectory, what each token may see and must hold."""

import dataclasses

import jax
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from burnish.rl.losses import policy_loss
from burnish.rl.packing import (
    counted_trajectories,
    pack,
    packing_efficiency,
    pad_rows,
    pad_rows_to_multiple,
    split_by_group,
    unpack,
)
from burnish.rollout.records import Prompt, Trajectory

EOS = 0  # also what padding holds: a mask inferred from ids would lose it


def trajectory(prompt_ids, token_ids, group_id=0, index=0, *, sampled=None, stop_reason="eos", kept_ids=None):
    length = len(token_ids)
    generator = np.random.default_rng([abs(group_id), index, length])
    return Trajectory(
        prompt_id=f"prompt-{group_id}",
        group_id=group_id,
        completion_index=index,
        prompt_ids=np.array(prompt_ids, np.int32),
        token_ids=np.array(token_ids, np.int32),
        sampled_mask=np.ones(length, bool) if sampled is None else np.array(sampled, bool),
        logprobs=-generator.random(length).astype(np.float32) - 0.1,
        versions=np.zeros(length, np.int32),
        turn=np.zeros(length, np.int32),
        kept_ids=kept_ids,
        stop_reason=stop_reason,
        text="",
    )


ROW = 24


@st.composite
def groups(draw):
    """Interleaved groups of random sizes; every token id is drawn, EOS = PAD = 0 among them."""
    trajectories = []
    for group_id in draw(st.lists(st.integers(-5, 40), min_size=1, max_size=4, unique=True)):
        prompt = draw(st.lists(st.integers(0, 9), min_size=1, max_size=10))
        for index in range(draw(st.integers(1, 5))):
            tokens = draw(st.lists(st.integers(0, 9), min_size=1, max_size=ROW - len(prompt)))
            sampled = draw(st.lists(st.booleans(), min_size=len(tokens), max_size=len(tokens)))
            trajectories.append(trajectory(prompt, tokens, group_id, index, sampled=sampled))
    return draw(st.permutations(trajectories))


def visible(batch, row):
    """The contract's rule, [query, key]."""
    segment, prefix = batch.segment_ids[row], batch.prefix_ids[row]
    own = (segment[None] == segment[:, None]) | (segment[None] == prefix[:, None])
    return own & (segment != 0)[:, None] & (segment != 0)[None] & np.tri(len(segment), dtype=bool)


@settings(max_examples=80, deadline=None)
@given(groups(), st.booleans())
def test_every_completion_token_sees_exactly_its_own_conversation(trajectories, shared_prefix):
    batch = pack(trajectories, np.zeros(len(trajectories)), row_tokens=ROW, shared_prefix=shared_prefix)
    seen_by = 0
    for row in range(len(batch.tokens)):
        mask = visible(batch, row)
        for query in range(ROW):
            keys = np.flatnonzero(mask[query])
            if batch.segment_ids[row, query] == 0:
                assert len(keys) == 0
                continue
            assert np.all(batch.segment_ids[row, keys] != 0)
            owner = batch.trajectory_ids[row, query]
            if owner < 0:
                continue
            mine = trajectories[owner]
            step = int(np.sum(batch.trajectory_ids[row, :query] == owner))
            conversation = np.concatenate([mine.prompt_ids, mine.token_ids[:step]])
            seen = sorted((int(batch.positions[row, key]), int(batch.tokens[row, key])) for key in keys)
            assert seen == list(enumerate(conversation.tolist()))
            # Equal ids could hide another completion's tokens: of those, none may be seen.
            assert set(batch.trajectory_ids[row, keys].tolist()) <= {-1, owner}
            seen_by += 1
    assert seen_by == sum(len(t.token_ids) for t in trajectories)


@settings(max_examples=80, deadline=None)
@given(groups(), st.booleans())
def test_every_completion_token_appears_once_with_what_belongs_to_it(trajectories, shared_prefix):
    advantages = np.arange(len(trajectories)) - 1.5
    batch = pack(trajectories, advantages, row_tokens=ROW, shared_prefix=shared_prefix)
    back = {
        name: unpack(getattr(batch, name), batch.trajectory_ids, len(trajectories))
        for name in ("tokens", "targets", "positions", "loss_mask", "advantages", "sampled_logprobs", "loss_weights")
    }
    counted = sum(int(t.sampled_mask.sum()) for t in trajectories)
    for index, mine in enumerate(trajectories):
        first, length = len(mine.prompt_ids) - 1, len(mine.token_ids)
        np.testing.assert_array_equal(back["targets"][index], mine.token_ids)
        np.testing.assert_array_equal(back["tokens"][index], [mine.prompt_ids[-1], *mine.token_ids[:-1]])
        np.testing.assert_array_equal(back["positions"][index], np.arange(first, first + length))
        np.testing.assert_array_equal(back["loss_mask"][index], mine.sampled_mask)
        np.testing.assert_array_equal(back["advantages"][index], np.full(length, advantages[index]))
        np.testing.assert_array_equal(back["sampled_logprobs"][index], np.where(mine.sampled_mask, mine.logprobs, 0))
        np.testing.assert_allclose(back["loss_weights"][index], mine.sampled_mask / max(counted, 1), rtol=1e-6)
    elsewhere = batch.trajectory_ids < 0
    for name in ("loss_mask", "loss_weights", "advantages", "sampled_logprobs", "targets"):
        assert np.all(getattr(batch, name)[elsewhere] == 0)


def test_eos_that_is_also_the_padding_id_stays_in_the_loss():
    batch = pack([trajectory([3, 4], [5, EOS])], np.ones(1), row_tokens=8)
    assert batch.targets[0].tolist() == [0, 5, EOS, 0, 0, 0, 0, 0]
    assert batch.loss_mask[0].tolist() == [0, 1, 1, 0, 0, 0, 0, 0]


def test_tokens_the_policy_did_not_draw_have_no_loss_but_are_seen():
    sampled = [True, True, False, False, True]
    mine = trajectory([3, 4], [5, 6, 7, 8, 9], sampled=sampled)
    batch = pack([mine], np.ones(1), row_tokens=8, aggregation="sequence-mean-token-mean")
    assert batch.loss_mask[0, 1:6].tolist() == [1, 1, 0, 0, 1]
    np.testing.assert_allclose(batch.loss_weights[0, 1:6], np.array(sampled) / 3)
    assert visible(batch, 0)[5, :6].all()


def test_a_prompt_is_laid_once_per_group_and_again_in_each_further_row():
    prompt = [1, 2, 3, 4, 5]
    fits = [trajectory(prompt, [6] * 5, 0, i) for i in range(4)]
    batch = pack(fits, np.zeros(4), row_tokens=24)
    assert len(batch.tokens) == 1
    assert np.sum(batch.segment_ids > 0) == 4 + 4 * 5
    too_many = [trajectory(prompt, [6] * 5, 0, i) for i in range(5)]
    batch = pack(too_many, np.zeros(5), row_tokens=24)
    assert len(batch.tokens) == 2
    assert [row[:4].tolist() for row in batch.tokens] == [prompt[:4]] * 2
    assert sorted(np.sum(batch.segment_ids > 0, axis=1).tolist()) == [4 + 5, 4 + 20]


def test_sharing_the_prefix_saves_the_repeated_prompts():
    trajectories = [trajectory(range(1, 11), [3, 4, EOS], g, i) for g in range(3) for i in range(4)]
    shared, repeated = (pack(trajectories, np.zeros(12), row_tokens=24, shared_prefix=s) for s in (True, False))
    assert len(shared.tokens) == 3
    assert len(repeated.tokens) == 6
    assert packing_efficiency(shared) == pytest.approx((9 + 4 * 3) / 24)
    assert packing_efficiency(repeated) == pytest.approx(1.0)


def test_a_one_token_prompt_needs_no_prefix():
    batch = pack([trajectory([7], [5, 6], 0, i) for i in range(2)], np.zeros(2), row_tokens=6)
    assert np.all(batch.prefix_ids == 0)
    assert batch.tokens[0].tolist() == [7, 5, 7, 5, 0, 0]
    assert batch.positions[0].tolist() == [0, 1, 0, 1, 0, 0]


@settings(max_examples=40, deadline=None)
@given(groups())
def test_packing_is_deterministic_and_wastes_less_than_half(trajectories):
    one, two = (pack(trajectories, np.zeros(len(trajectories)), row_tokens=ROW) for _ in range(2))
    for a, b in zip(jax.tree.leaves(one), jax.tree.leaves(two), strict=True):
        np.testing.assert_array_equal(a, b)
    assert len(one.tokens) == 1 or packing_efficiency(one) > 0.5  # best fit leaves at most one row under half


def test_a_trajectory_longer_than_a_row_is_named():
    with pytest.raises(ValueError, match=r"completion 3 of prompt 'prompt-8' \(group 8\) needs 9 tokens of a row of 8"):
        pack([trajectory([1, 2, 3, 4], [5] * 6, 8, 3)], np.zeros(1), row_tokens=8)
    assert pack([trajectory([1, 2, 3, 4], [5] * 5, 8, 3)], np.zeros(1), row_tokens=8).tokens.shape == (1, 8)


def test_a_group_with_two_prompts_is_refused():
    with pytest.raises(ValueError, match="another prompt than the rest of its group"):
        pack([trajectory([1, 2], [3]), trajectory([1, 9], [3], 0, 1)], np.zeros(2), row_tokens=8)


def test_truncated_completions_leave_the_loss_by_their_stop_reason():
    # The one cut off ends in the EOS id by chance, the finished one does not: ids would say the opposite.
    trajectories = [
        trajectory([1, 2], [5, EOS], 0, 0, stop_reason="length"),
        trajectory([1, 2], [5, 6, 7], 0, 1, stop_reason="stop_string"),
    ]
    counted = counted_trajectories(trajectories, "mask")
    assert counted.tolist() == [False, True]
    assert counted_trajectories(trajectories, "keep").tolist() == [True, True]
    batch = pack(trajectories, np.array([1.0, -1.0]), row_tokens=12, counted=counted)
    weights = unpack(batch.loss_weights, batch.trajectory_ids, 2)
    assert weights[0].tolist() == [0, 0]
    np.testing.assert_allclose(weights[1], [1 / 3] * 3)
    nothing = pack(trajectories[:1], np.ones(1), row_tokens=12, counted=counted[:1])
    loss, count = policy_loss(
        nothing.sampled_logprobs, nothing.sampled_logprobs, nothing.advantages, nothing.loss_weights, 0.2, 0.28
    )
    assert loss == 0.0
    assert count == 0.0


def test_padding_rows_change_no_sum_and_keep_the_weights():
    kept = np.array([[1, 2], [3, -1]], np.int32)
    batch = pack([trajectory([1, 2], [5, 6], g, kept_ids=kept) for g in range(3)], np.ones(3), row_tokens=4)
    padded = pad_rows_to_multiple(batch, 4)
    assert len(batch.tokens) == 3
    assert len(padded.tokens) == 4
    assert all(leaf.shape[0] == 4 for leaf in jax.tree.leaves(padded))
    for field in dataclasses.fields(batch):
        before, after = getattr(batch, field.name), getattr(padded, field.name)
        if before is not None:
            np.testing.assert_array_equal(after[:3], before)
            assert after.dtype == before.dtype
            assert np.all(after[3] == (-1 if field.name in ("trajectory_ids", "kept_ids") else 0)), field.name
    assert pad_rows(batch, 3).tokens.shape == (3, 4)
    with pytest.raises(ValueError, match="more than the 2"):
        pad_rows(batch, 2)


def test_kept_ids_travel_with_their_tokens():
    trajectories = [
        trajectory([1, 2], [5, 6], 0, 0, kept_ids=np.array([[5, 9], [6, -1]], np.int32)),
        trajectory([1, 2], [7], 0, 1, kept_ids=np.array([[7, 8, 9]], np.int32)),
    ]
    batch = pack(trajectories, np.zeros(2), row_tokens=6)
    back = unpack(batch.kept_ids, batch.trajectory_ids, 2)
    assert back[0].tolist() == [[5, 9, -1], [6, -1, -1]]
    assert back[1].tolist() == [[7, 8, 9]]
    assert np.all(batch.kept_ids[batch.trajectory_ids < 0] == -1)
    with pytest.raises(ValueError, match="has no kept_ids while others have"):
        pack([trajectories[0], trajectory([1, 2], [7], 0, 1)], np.zeros(2), row_tokens=6)


def test_mini_batches_hold_whole_groups_in_order_of_appearance():
    group_ids = np.array([9, 9, 2, 2, 9, 5, 5])
    assert [part.tolist() for part in split_by_group(group_ids, 2)] == [[0, 1, 2, 3, 4], [5, 6]]
    assert [part.tolist() for part in split_by_group(group_ids, 8)] == [[0, 1, 4], [2, 3], [5, 6]]


def test_records_refuse_arrays_that_do_not_belong_together():
    fields = {field.name: getattr(trajectory([1], [2, 3]), field.name) for field in dataclasses.fields(Trajectory)}
    for name, value, message in [
        ("logprobs", np.zeros(3, np.float32), "logprobs has 3 entries for 2 completion tokens"),
        ("logprobs", np.zeros(2), r"logprobs is float64\[2\], expected a 1-d float32 array"),
        ("kept_ids", np.zeros((1, 4), np.int32), "kept_ids has 1 entries for 2"),
        ("prompt_ids", np.zeros(0, np.int32), "at least one token"),
        ("stop_reason", "eot", "stop_reason is 'eot'"),
    ]:
        with pytest.raises(ValueError, match=message):
            Trajectory(**{**fields, name: value})
    with pytest.raises(ValueError, match="'empty' has no tokens"):
        Prompt("empty", 0, ())


@pytest.mark.parametrize("aggregation", ["token-mean", "sequence-mean-token-mean", "sequence-mean-token-sum-norm"])
def test_trajectories_that_are_not_laid_out_still_count_in_the_normalisation(aggregation):
    trajectories = [trajectory([1, 2], [5] * (3 + index), group, index) for group in range(2) for index in range(3)]
    advantages = np.array([1.0, 0.0, -1.0, 0.0, 0.0, 0.0])
    whole = pack(trajectories, advantages, row_tokens=64, aggregation=aggregation, max_tokens=8)
    part = pack(
        trajectories, advantages, row_tokens=64, aggregation=aggregation, max_tokens=8, laid_out=advantages != 0
    )
    for index in range(6):
        weights = whole.loss_weights[whole.trajectory_ids == index]
        expected = weights if advantages[index] else weights[:0]
        np.testing.assert_array_equal(part.loss_weights[part.trajectory_ids == index], expected)
    assert np.count_nonzero(part.segment_ids) < np.count_nonzero(whole.segment_ids)
