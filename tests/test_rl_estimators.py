"""Evaluation estimators against enumeration of everything they average over."""

import itertools
import math
from collections import Counter

import numpy as np
import pytest

from burnish.rl.estimators import majority_at_k, mean_and_standard_error, pass_at_k


@pytest.mark.parametrize(("n", "c"), [(1, 0), (1, 1), (5, 0), (5, 2), (6, 5), (7, 7)])
def test_pass_at_k_equals_the_average_over_all_choices_of_k_samples(n, c):
    samples = [True] * c + [False] * (n - c)
    for k in range(1, n + 1):
        subsets = [any(chosen) for chosen in itertools.combinations(samples, k)]
        assert pass_at_k(n, c, k) == pytest.approx(sum(subsets) / len(subsets), abs=1e-12)


def test_pass_at_k_is_not_the_biased_plug_in_estimate():
    assert pass_at_k(4, 1, 2) == pytest.approx(0.5)
    assert abs(pass_at_k(4, 1, 2) - (1 - (1 - 1 / 4) ** 2)) > 0.05


def test_pass_at_k_refuses_more_than_was_sampled():
    with pytest.raises(ValueError, match="pass@5 needs at least 5 samples"):
        pass_at_k(4, 1, 5)


def test_majority_equals_the_average_over_every_way_to_break_ties():
    for answers in itertools.product(["18", "17", "3", None], repeat=4):
        correct = [answer == "18" for answer in answers]
        votes = Counter(a for a in answers if a is not None).most_common()
        tied = [answer for answer, count in votes if count == votes[0][1]]
        expected = sum(answer == "18" for answer in tied) / len(tied) if tied else 0.0
        assert majority_at_k(answers, correct, 4) == pytest.approx(expected)


def test_majority_of_fewer_averages_whole_blocks():
    answers, correct = ["1", "1", "2", "2", "1", "2", "9"], [True, True, False, False, True, False, False]
    assert majority_at_k(answers, correct, 3) == pytest.approx((1 + 0) / 2)  # 1 1 2 | 2 1 2 | the rest is not a block
    assert majority_at_k(answers, correct, 1) == pytest.approx(3 / 7)


def test_standard_error_goes_by_problems():
    mean, error = mean_and_standard_error([1.0, 0.5, 0.0, 0.5])
    assert mean == 0.5
    assert error == pytest.approx(math.sqrt((0.25 + 0.25) / 3 / 4))
    assert math.isnan(mean_and_standard_error([1.0])[1])
    repeated_samples = np.repeat([1.0, 0.5, 0.0, 0.5], 8)
    assert error > 2 * mean_and_standard_error(repeated_samples)[1]
