"""What an evaluation reports about a model from several samples per problem: pass@1, pass@k, maj@k."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence

import numpy as np


def pass_at_k(num_samples: int, num_correct: int, k: int) -> float:
    """Probability that at least one of k samples is correct, estimated from n ≥ k of one problem.

    The unbiased estimator 1 − C(n − c, k) / C(n, k) (Chen et al. 2021, arXiv 2107.03374, equation 1); the average over
    all ways to choose k of the n samples. Report its mean over problems.
    """
    if not 1 <= k <= num_samples:
        raise ValueError(f"pass@{k} needs at least {k} samples per problem (and k ≥ 1), got {num_samples}")
    if not 0 <= num_correct <= num_samples:
        raise ValueError(f"{num_correct} of {num_samples} samples can't be correct")
    return 1.0 - math.comb(num_samples - num_correct, k) / math.comb(num_samples, k)


def majority_at_k(answers: Sequence[str | None], correct: Sequence[bool], k: int) -> float:
    """Probability that the most frequent of k normalised answers to one problem is correct.

    The samples are cut, in their order, into blocks of k, and the result is averaged over the whole blocks. Samples
    without an answer (None) don't vote; a block without votes is wrong. Ties take their expected value under a uniform
    random choice among the tied answers, so that the result depends neither on luck nor on the order within a block.
    """
    if len(answers) != len(correct):
        raise ValueError(f"{len(answers)} answers were given with {len(correct)} grades")
    if not 1 <= k <= len(answers):
        raise ValueError(f"maj@{k} needs at least {k} samples per problem (and k ≥ 1), got {len(answers)}")
    blocks = range(0, len(answers) - k + 1, k)
    return float(np.mean([_majority(answers[start : start + k], correct[start : start + k]) for start in blocks]))


def mean_and_standard_error(per_problem: Sequence[float]) -> tuple[float, float]:
    """Mean over problems and its standard error, std(ddof 1) / √problems; NaN error for a single problem.

    For pass@1, give each problem's share of correct samples: samples of one problem are not independent draws of the
    benchmark, so the error goes by problems, never by samples.
    """
    values = np.asarray(per_problem, np.float64)
    if len(values) == 0:
        raise ValueError("there is no problem to average over")
    error = float(np.std(values, ddof=1) / np.sqrt(len(values))) if len(values) > 1 else math.nan
    return float(np.mean(values)), error


def _majority(answers: Sequence[str | None], correct: Sequence[bool]) -> float:
    votes = Counter(answer for answer in answers if answer is not None)
    if not votes:
        return 0.0
    winners = {answer for answer, count in votes.items() if count == max(votes.values())}
    # Tied answers hold equally many samples, so a mean over the winners' samples is the mean over the tied answers.
    return float(
        np.mean([is_correct for answer, is_correct in zip(answers, correct, strict=True) if answer in winners])
    )
