"""Tokens are drawn from exactly the distribution whose log-probability is reported, and noise is keyed, not ordered."""

import itertools
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from burnish.config.schema import IMPLIED_TOP_K
from burnish.rollout.sampling import Sampling, draw, draw_truncated, lane_keys, uniforms

VOCABULARIES = [5, 256, 300]
drawn = jax.jit(draw)
drawn_truncated = jax.jit(draw_truncated, static_argnames="bound")


def log_softmax(logits: np.ndarray, temperature: float = 1.0) -> np.ndarray:
    scaled = logits.astype(np.float64) / temperature
    scaled = scaled - scaled.max(-1, keepdims=True)
    return scaled - np.log(np.exp(scaled).sum(-1, keepdims=True))


def in_batches(function: Any, logits: np.ndarray, temperature: float, noise: np.ndarray) -> tuple[np.ndarray, ...]:
    """Call it with rows of logits, a temperature and a noise each; in batches of one size, so that little compiles."""
    size = 512
    rows = np.broadcast_to(logits, (len(noise), logits.shape[-1])).astype(np.float32)
    results = []
    for first in range(0, len(noise), size):
        batch = np.zeros((size, rows.shape[1]), np.float32)
        batch_noise = np.zeros(size, np.float32)
        count = len(noise[first : first + size])
        batch[:count], batch_noise[:count] = rows[first : first + size], noise[first : first + size]
        result = function(batch, np.full(size, temperature, np.float32), batch_noise)
        results.append([np.asarray(each)[:count] for each in result])
    return tuple(np.concatenate(each) for each in zip(*results, strict=True))


def draw_rows(logits: np.ndarray, temperature: float, noise: np.ndarray) -> tuple[np.ndarray, ...]:
    return in_batches(drawn, logits, temperature, noise)


def truncate(
    logits: np.ndarray,
    temperature: float,
    noise: np.ndarray,
    *,
    top_k: int,
    top_p: float = 1.0,
    min_p: float = 0.0,
) -> tuple[np.ndarray, ...]:
    limits = {"top_k": np.int32(top_k), "top_p": np.float32(top_p), "min_p": np.float32(min_p)}
    bound = max(top_k, min(50, logits.shape[-1]))
    return in_batches(partial(drawn_truncated, bound=bound, **limits), logits, temperature, noise)


def kept_by_transformers_order(
    logits: np.ndarray, temperature: float, top_k: int, top_p: float, min_p: float
) -> list[int]:
    """The kept ids of one row, likeliest first, by the steps of `transformers`' logits processors, in float64."""
    scores = logits.astype(np.float64) / temperature
    # TopK: everything below the k-th highest goes.
    scores[scores < np.sort(scores)[-top_k]] = -np.inf
    # TopP: from the least likely up, everything goes while its cumulated probability stays within 1 - top_p.
    if top_p < 1:
        ascending = np.argsort(scores, kind="stable")
        cumulated = np.cumsum(np.exp(log_softmax(scores[ascending])))
        remove = cumulated <= 1 - top_p
        remove[-1] = False
        scores[ascending[remove]] = -np.inf
    # MinP: everything below min_p times the highest probability that is left goes.
    probabilities = np.exp(log_softmax(scores))
    scores[probabilities < min_p * probabilities.max()] = -np.inf
    return [int(index) for index in np.argsort(-scores, kind="stable") if np.isfinite(scores[index])]


@pytest.mark.parametrize("vocabulary", VOCABULARIES)
@pytest.mark.parametrize("temperature", [1.0, 0.7])
def test_token_is_the_inverse_of_the_cumulative_distribution(vocabulary: int, temperature: float) -> None:
    random = np.random.default_rng(vocabulary)
    logits = random.normal(size=vocabulary) * 3
    noise = np.concatenate([random.random(2000), [0.0]]).astype(np.float32)
    tokens, logprobs = draw_rows(logits, temperature, noise)
    expected = log_softmax(logits.astype(np.float32), temperature)
    cumulative = np.cumsum(np.exp(expected))
    # Within float32's rounding of a boundary either neighbour is right.
    assert np.all(cumulative[tokens] > noise - 1e-6)
    assert np.all(cumulative[tokens] - np.exp(expected[tokens]) <= noise + 1e-6)
    clear = np.abs(noise[:, None] - cumulative).min(-1) > 1e-6
    assert clear.mean() > 0.95
    np.testing.assert_array_equal(tokens[clear], np.searchsorted(cumulative, noise[clear], side="right"))
    np.testing.assert_allclose(logprobs, expected[tokens], atol=1e-5)


def chi_square(counts: np.ndarray, probabilities: np.ndarray) -> float:
    """In standard deviations from its mean; rare tokens are pooled so that each cell expects 20 or more."""
    order = np.argsort(-probabilities)
    expected = probabilities[order] * counts.sum()
    common = expected >= 20
    cells = np.append(counts[order][common], counts[order][~common].sum())
    means = np.append(expected[common], max(expected[~common].sum(), 1e-9))
    freedom = len(cells) - 1
    return float((((cells - means) ** 2 / means).sum() - freedom) / np.sqrt(2 * freedom))


def keyed_noise(count: int) -> np.ndarray:
    groups, completions, positions = np.unravel_index(np.arange(count), (count // 1000, 10, 100))
    keys = lane_keys(7, 3, jnp.asarray(groups, jnp.int32), jnp.asarray(completions, jnp.int32))
    return np.asarray(uniforms(keys, jnp.asarray(positions, jnp.int32)))


def test_frequencies_follow_the_distribution() -> None:
    noise = keyed_noise(40_000)
    assert noise.min() >= 0
    assert noise.max() < 1
    logits = np.random.default_rng(1).normal(size=300) * 1.5
    tokens, _ = draw_rows(logits, 0.7, noise)
    probabilities = np.exp(log_softmax(logits, 0.7))
    assert abs(chi_square(np.bincount(tokens, minlength=300), probabilities)) < 4
    # The same test sees a temperature that was left out.
    assert chi_square(np.bincount(tokens, minlength=300), np.exp(log_softmax(logits))) > 50


def test_truncated_frequencies_follow_the_renormalised_distribution() -> None:
    noise = keyed_noise(40_000)
    logits = np.random.default_rng(2).normal(size=300) * 1.5
    tokens, _, kept_ids = truncate(logits, 0.7, noise, top_k=50, top_p=0.95)
    kept = kept_ids[0][kept_ids[0] >= 0]
    probabilities = np.zeros(300)
    probabilities[kept] = np.exp(log_softmax(logits[kept], 0.7))
    counts = np.bincount(tokens, minlength=300)
    assert counts[probabilities == 0].sum() == 0
    assert abs(chi_square(counts, probabilities)) < 4


def test_noise_is_a_function_of_its_key_alone() -> None:
    def noise(seed: int, step: int, group: int, completion: int, position: int) -> float:
        keys = lane_keys(seed, step, jnp.asarray([group], jnp.int32), jnp.asarray([completion], jnp.int32))
        return float(uniforms(keys, jnp.asarray([position], jnp.int32))[0])

    coordinates = list(itertools.product((0, 1), repeat=5))
    values = [noise(*each) for each in coordinates]
    assert len(set(values)) == len(values), "each of the five coordinates changes the noise"
    assert [noise(*each) for each in reversed(coordinates)] == values[::-1]
    # In a batch of another shape it is the same number, bit for bit.
    groups, completions, positions = np.meshgrid([0, 1], [0, 1], [0, 1], indexing="ij")
    keys = lane_keys(1, 0, jnp.asarray(groups.ravel(), jnp.int32), jnp.asarray(completions.ravel(), jnp.int32))
    together = uniforms(keys.reshape(2, 2, 2, 2), jnp.asarray(positions, jnp.int32))
    assert np.asarray(together).ravel().tolist() == values[16:24]


@pytest.mark.parametrize("vocabulary", VOCABULARIES)
def test_noise_next_to_one_picks_no_token_without_mass(vocabulary: int) -> None:
    last = np.nextafter(np.float32(1), np.float32(0))
    noise = np.asarray([last, 1 - 2**-23, 0.9999, 0.0], np.float32)
    random = np.random.default_rng(vocabulary)
    for with_mass in ([0], [vocabulary // 2], [1, 3], [vocabulary - 1]):
        logits = np.full(vocabulary, -1e4)
        logits[with_mass] = random.normal(size=len(with_mass))
        tokens, logprobs = draw_rows(logits, 1.0, noise)
        assert set(tokens.tolist()) <= set(with_mass)
        assert np.isfinite(logprobs).all()
        tokens, _, kept_ids = truncate(logits, 1.0, noise, top_k=5)
        assert set(tokens.tolist()) <= set(with_mass)
        assert {int(each) for each in kept_ids.ravel()} == {*with_mass, -1}


def test_many_small_masses_stay_in_reach_of_any_noise() -> None:
    # Rounding adds up over a large vocabulary: every draw must still be a token of it, the last ones included.
    noise = np.linspace(0, 1, 63, endpoint=False, dtype=np.float32)
    tokens, logprobs = drawn(np.zeros((63, 50_000), np.float32), np.ones(63, np.float32), noise)
    assert np.abs(tokens - noise * 50_000).max() < 2
    np.testing.assert_allclose(logprobs, -np.log(50_000), atol=1e-5)


@pytest.mark.parametrize("scale", [1e-6, 1.0, 1e4, 1e30])
def test_extreme_logits_give_finite_logprobs(scale: float) -> None:
    logits = np.random.default_rng(3).normal(size=300) * scale
    noise = np.linspace(0, 1, 50, endpoint=False)
    tokens, logprobs = draw_rows(logits, 0.7, noise)
    expected = log_softmax(logits.astype(np.float32), 0.7)
    np.testing.assert_allclose(logprobs, expected[tokens], rtol=1e-5, atol=1e-5)
    tokens, logprobs, _ = truncate(logits, 0.7, noise, top_k=50)
    kept = np.argsort(-logits)[:50]
    expected[kept] = log_softmax(logits[kept].astype(np.float32), 0.7)
    np.testing.assert_allclose(logprobs, expected[tokens], rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("noise", [0.0, 0.5, 0.99999])
def test_temperature_zero_takes_the_first_of_the_likeliest(noise: float) -> None:
    for vocabulary in VOCABULARIES:
        logits = np.random.default_rng(vocabulary).normal(size=vocabulary)
        tokens, logprobs = draw_rows(logits, 0.0, np.asarray([noise]))
        assert tokens.tolist() == [logits.argmax()]
        assert logprobs.tolist() == [0.0]
        # Next to the highest by the least that float32 tells apart.
        logits = np.full(vocabulary, np.nextafter(np.float32(1), np.float32(0)))
        logits[3] = 1
        assert draw_rows(logits, 0.0, np.asarray([noise]))[0].tolist() == [3]
        logits[2:5] = 7
        assert draw_rows(logits, 0.0, np.asarray([noise]))[0].tolist() == [2]
        tokens, _, _ = truncate(logits, 0.0, np.asarray([noise]), top_k=3)
        assert tokens.tolist() == [2]


def test_each_lane_has_its_own_temperature() -> None:
    logits = np.random.default_rng(4).normal(size=(2, 3, 300)).astype(np.float32)
    temperatures = np.asarray([[0.0, 0.5, 1.0], [2.0, 0.7, 0.0]], np.float32)
    tokens, logprobs = drawn(logits, temperatures, np.full((2, 3), 0.37, np.float32))
    for lane in np.ndindex(2, 3):
        if temperatures[lane] == 0:
            assert tokens[lane] == logits[lane].argmax()
        else:
            expected = log_softmax(logits[lane], float(temperatures[lane]))[tokens[lane]]
            np.testing.assert_allclose(logprobs[lane], expected, atol=1e-5)


TRUNCATIONS = [
    {"top_k": 1},
    {"top_k": 50},
    {"top_k": 50, "top_p": 0.95},
    {"top_k": 50, "top_p": 0.5},
    {"top_k": 50, "top_p": 1e-6},
    {"top_k": 50, "min_p": 0.1},
    {"top_k": 50, "top_p": 0.9, "min_p": 0.05},
    {"top_k": 20, "top_p": 0.9},
    {"top_k": 300},
]


@pytest.mark.parametrize("truncation", TRUNCATIONS, ids=str)
@pytest.mark.parametrize("temperature", [1.0, 0.7])
def test_kept_ids_are_those_of_transformers(truncation: dict[str, float], temperature: float) -> None:
    random = np.random.default_rng(5)
    logits = (random.normal(size=(20, 300)) * random.uniform(0.1, 4, size=(20, 1))).astype(np.float32)
    noise = random.random(20)
    tokens, logprobs, kept_ids = truncate(logits, temperature, noise, **truncation)  # type: ignore[arg-type]
    for row in range(len(logits)):
        limits = {"top_p": 1.0, "min_p": 0.0, **truncation}
        kept = kept_by_transformers_order(logits[row], temperature, **limits)  # type: ignore[arg-type]
        assert kept_ids[row, : len(kept)].tolist() == kept
        assert (kept_ids[row, len(kept) :] == -1).all()
        expected = log_softmax(logits[row, kept], temperature)
        chosen = kept.index(tokens[row])
        np.testing.assert_allclose(logprobs[row], expected[chosen], atol=1e-5)
        before = np.exp(expected[:chosen]).sum()
        assert before - 1e-5 <= noise[row] <= before + np.exp(expected[chosen]) + 1e-5


def test_truncation_of_known_cases() -> None:
    logits = np.log([0.5, 0.2, 0.15, 0.1, 0.05])

    def kept(**limits: float) -> list[int]:
        _, _, ids = truncate(logits, 1.0, np.zeros(1), **{"top_k": 5, **limits})  # type: ignore[arg-type]
        return [int(each) for each in ids[0] if each >= 0]

    assert kept() == [0, 1, 2, 3, 4]
    assert kept(top_k=2) == [0, 1]
    assert kept(top_p=0.4) == [0]
    assert kept(top_p=0.6) == [0, 1]
    assert kept(top_p=0.84) == [0, 1, 2]
    assert kept(min_p=0.25) == [0, 1, 2]
    assert kept(min_p=0.19) == [0, 1, 2, 3]
    # top_p counts within what top_k left: 0.5 / 0.7 is more than 0.7, 0.5 / 0.85 is not.
    assert kept(top_k=2, top_p=0.7) == [0]
    assert kept(top_k=3, top_p=0.7) == [0, 1]


def test_top_p_of_one_cuts_nothing_however_small() -> None:
    # Each of these is lost in float32 when it is added to the mass before it.
    logits = np.asarray([0.0, -20.0, -21.0, -22.0])
    _, _, kept_ids = truncate(logits, 1.0, np.zeros(1), top_k=4)
    assert kept_ids.tolist() == [[0, 1, 2, 3]]


def test_top_p_and_min_p_imply_a_bound_and_top_k_sets_it() -> None:
    assert Sampling().kept_bound == 0
    assert Sampling(top_k=7, top_p=0.9).kept_bound == 7
    assert Sampling(top_p=0.9).kept_bound == IMPLIED_TOP_K
    assert Sampling(min_p=0.1).kept_bound == IMPLIED_TOP_K


def test_logits_that_are_not_finite_show_in_the_logprob() -> None:
    for bad in (np.nan, np.inf):
        logits = np.zeros(300)
        logits[17] = bad
        assert not np.isfinite(draw_rows(logits, 1.0, np.asarray([0.5]))[1]).any()
        assert not np.isfinite(truncate(logits, 1.0, np.asarray([0.5]), top_k=50)[1]).any()
