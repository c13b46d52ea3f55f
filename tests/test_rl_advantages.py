"""Advantages: what a completion is worth against its group, checked by hand and against statistics.stdev."""

import statistics

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from burnish.rl.advantages import count_groups, group_advantages, zero_advantage_groups


def by_hand(rewards, group_ids, normalization, valid):
    """The definition, completion by completion, with the standard library's mean and sample deviation."""
    everyone = [r for r, v in zip(rewards, valid, strict=True) if v]
    result = []
    for reward, group, is_valid in zip(rewards, group_ids, valid, strict=True):
        peers = [r for r, g, v in zip(rewards, group_ids, valid, strict=True) if g == group and v]
        if not is_valid or len(set(peers)) < 2:
            result.append(0.0)
            continue
        scale = {"none": 1.0}
        scale["std"] = statistics.stdev(peers) + 1e-6
        scale["batch"] = statistics.stdev(everyone) + 1e-6
        result.append((reward - statistics.fmean(peers)) / scale[normalization])
    return result


completions = st.lists(
    st.tuples(st.sampled_from([0.0, 0.1, 0.5, 1.0, -2.0]), st.integers(-3, 3), st.booleans()), min_size=1, max_size=24
)


@settings(max_examples=60, deadline=None)
@given(completions, st.sampled_from(["std", "none", "batch"]))
def test_advantages_equal_the_definition_for_any_grouping(rows, normalization):
    rewards, groups, valid = zip(*rows, strict=True)
    given_rewards = np.where(valid, rewards, np.nan)  # a completion without a reward has no number to leak
    result = group_advantages(given_rewards, np.array(groups), normalization, np.array(valid))
    np.testing.assert_allclose(result, by_hand(rewards, groups, normalization, valid), atol=1e-12)


def test_published_example_uses_the_sample_deviation():
    result = group_advantages(np.array([1.0, 0.0, 0.0, 0.0]), np.zeros(4, int))
    assert result[0] == pytest.approx(0.75 / (0.5 + 1e-6), abs=1e-12)  # ddof 0 would give 0.75 / 0.433


@pytest.mark.parametrize("normalization", ["std", "none", "batch"])
def test_equal_rewards_give_exactly_zero_even_where_their_mean_rounds(normalization):
    rewards = np.array([0.1] * 7 + [0.0, 1.0])
    assert np.mean(rewards[:7]) != 0.1, "the example must round, or it shows nothing"
    result = group_advantages(rewards, np.array([5] * 7 + [6] * 2), normalization)
    assert np.all(result[:7] == 0.0)
    assert np.all(result[7:] != 0.0)


def test_groups_are_their_ids_and_never_their_positions():
    rewards, groups = np.array([1.0, 0.0, 0.3, 0.9, 0.0, 0.5]), np.array([7, 7, 7, 2, 2, 2])
    expected = group_advantages(rewards, groups)
    shuffled = np.array([3, 0, 4, 1, 5, 2])
    np.testing.assert_allclose(group_advantages(rewards[shuffled], groups[shuffled]), expected[shuffled], atol=1e-15)


def test_a_group_whittled_down_to_one_completion_gets_zero():
    result = group_advantages(
        np.array([5.0, np.nan, np.nan, 1.0, 0.0]),
        np.array([0, 0, 0, 1, 1]),
        "none",
        np.array([True, False, False, True, True]),
    )
    np.testing.assert_array_equal(result, [0.0, 0.0, 0.0, 0.5, -0.5])


def test_a_missing_reward_that_is_called_valid_is_named():
    with pytest.raises(ValueError, match="reward 1 is nan"):
        group_advantages(np.array([0.0, np.nan]), np.array([0, 0]))


def test_groups_are_counted_by_what_they_teach_and_solve():
    #          all solved   none      partly         one valid left   nothing left
    groups = [0, 0, 1, 1, 2, 2, 2, 3, 3, 4]
    rewards = [1.0, 1.0, 0.1, 0.2, 1.0, 0.0, 0.0, 1.0, np.nan, np.nan]
    valid = [True] * 8 + [False, False]
    solved = np.array(rewards) == 1.0
    counts = count_groups(np.array(rewards), np.array(groups), solved, np.array(valid))
    assert (counts.groups, counts.all_solved, counts.none_solved, counts.partly_solved) == (5, 2, 1, 1)
    assert counts.frac_zero_advantage == 3 / 5
    assert zero_advantage_groups(np.array(rewards), np.array(groups), np.array(valid)).tolist() == [0, 3, 4]
