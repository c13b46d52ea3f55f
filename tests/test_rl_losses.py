"""Losses against NumPy by hand and brute force, and the promise that cutting an update can't change its gradient."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from burnish.rl import losses

CLIP = {"clip_low": 0.2, "clip_high": 0.28}


def example(rows=6, tokens=10, seed=0):
    """Random per-token arrays, with one trajectory per run of three tokens and some tokens outside the loss."""
    generator = np.random.default_rng(seed)
    shape = (rows, tokens)
    trajectory_ids = (np.arange(tokens) // 3)[None] + 4 * np.arange(rows)[:, None]
    return {
        "logprobs": generator.normal(-2, 0.5, shape).astype(np.float32),
        "sampled_logprobs": generator.normal(-2, 0.5, shape).astype(np.float32),
        "advantages": generator.normal(0, 1, shape).astype(np.float32),
        "loss_mask": (generator.random(shape) < 0.7).astype(np.float32),
        "trajectory_ids": trajectory_ids.astype(np.int32),
    }


def token_weights(loss_mask, trajectory_ids, aggregation, max_tokens=None):
    """Weights laid out by hand: each trajectory's weight at each of its counted tokens."""
    counted = loss_mask > 0
    lengths = np.bincount(trajectory_ids[counted], minlength=trajectory_ids.max() + 1)
    by_trajectory = losses.trajectory_weights(lengths, aggregation, max_tokens)
    return np.where(counted, by_trajectory[trajectory_ids], 0.0).astype(np.float32)


def by_hand(logprob, sampled, advantage):
    ratio = np.exp(np.clip(float(logprob) - float(sampled), -20, 20))
    return -min(ratio * advantage, min(max(ratio, 0.8), 1.28) * advantage)


def loss_by_hand(data, aggregation, max_tokens):
    """Lists of token losses per trajectory, then the aggregation's sentence, literally."""
    sequences: dict[int, list[float]] = {}
    for cell in zip(
        *(data[n].ravel() for n in ("loss_mask", "trajectory_ids", "logprobs", "sampled_logprobs", "advantages")),
        strict=True,
    ):
        if cell[0]:
            sequences.setdefault(int(cell[1]), []).append(by_hand(*cell[2:]))
    if aggregation == "token-mean":
        everything = [loss for sequence in sequences.values() for loss in sequence]
        return sum(everything) / len(everything)
    if aggregation == "sequence-mean-token-mean":
        return np.mean([np.mean(sequence) for sequence in sequences.values()])
    return np.mean([np.sum(sequence) / max_tokens for sequence in sequences.values()])


AGGREGATIONS = ["token-mean", "sequence-mean-token-mean", "sequence-mean-token-sum-norm"]


@pytest.mark.parametrize("aggregation", AGGREGATIONS)
def test_policy_loss_equals_numpy_by_hand(aggregation):
    data = example()
    weights = token_weights(data["loss_mask"], data["trajectory_ids"], aggregation, max_tokens=16)
    loss, count = losses.policy_loss(data["logprobs"], data["sampled_logprobs"], data["advantages"], weights, **CLIP)
    assert float(loss) == pytest.approx(loss_by_hand(data, aggregation, 16), abs=1e-6)
    assert count == data["loss_mask"].sum()


@pytest.mark.parametrize(
    ("advantage", "ratio", "value", "slope"),
    [  # the four corners of the clip, its inside, and the safety limit
        (1.0, 1.5, -1.28, 0.0),
        (1.0, 0.5, -0.5, -0.5),
        (-1.0, 1.5, 1.5, 1.5),
        (-1.0, 0.5, 0.8, 0.0),
        (1.0, 1.0, -1.0, -1.0),
        (1.0, 1.27, -1.27, -1.27),
        (-1.0, 0.81, 0.81, 0.81),
        (-1.0, np.exp(25.0), np.exp(20.0), 0.0),
    ],
)
def test_clip_cuts_the_gradient_only_where_it_would_push_further(advantage, ratio, value, slope):
    def loss(logprob):
        one = jnp.ones((1, 1))
        return losses.policy_loss(logprob * one, -1.0 * one, advantage * one, one, **CLIP)[0]

    logprob = jnp.float32(np.log(ratio) - 1.0)
    assert float(loss(logprob)) == pytest.approx(value, rel=1e-5)
    assert float(jax.grad(loss)(logprob)) == pytest.approx(slope, rel=1e-5)


def tiny_policy_loss(parameters, tokens, data, weights, reference):
    """A model with one logit row per input token, so that the whole chain from parameters to loss is differentiated."""
    logprobs = jnp.take_along_axis(jax.nn.log_softmax(parameters)[tokens], (tokens[..., None] * 7 + 1) % 5, -1)[..., 0]
    loss, _ = losses.policy_loss(logprobs, data["sampled_logprobs"], data["advantages"], weights, **CLIP)
    return loss + 0.1 * losses.kl_loss(logprobs, reference, weights, "k3")[0]


tiny_gradient = jax.jit(jax.grad(tiny_policy_loss))


@settings(max_examples=25, deadline=None)
@given(st.permutations(range(6)), st.lists(st.integers(1, 5), max_size=4), st.sampled_from(AGGREGATIONS))
def test_any_cut_into_micro_batches_gives_the_same_gradient(order, cuts, aggregation):
    data, generator = example(), np.random.default_rng(1)
    tokens, reference = generator.integers(0, 5, (6, 10)), generator.normal(-2, 0.5, (6, 10)).astype(np.float32)
    data["loss_mask"][4] = 0.0  # a micro-batch may hold nothing that counts
    data["sampled_logprobs"] = data["sampled_logprobs"] + np.float32(0.4)
    parameters = jnp.asarray(generator.normal(size=(5, 5)), jnp.float32)
    weights = token_weights(data["loss_mask"], data["trajectory_ids"], aggregation, max_tokens=16)
    whole = tiny_gradient(parameters, tokens, data, weights, reference)
    parts = [np.array(part, int) for part in np.split(np.array(order), sorted(set(cuts))) if len(part)]
    summed = sum(
        tiny_gradient(parameters, tokens[p], {n: a[p] for n, a in data.items()}, weights[p], reference[p])
        for p in parts
    )
    np.testing.assert_allclose(summed, whole, atol=1e-6)
    assert np.abs(whole).max() > 1e-3


def test_averaging_micro_batch_means_would_have_changed_the_gradient():
    """The trap the weights avoid: a mean per micro-batch weighs tokens by who they share a micro-batch with."""
    data = example()
    data["loss_mask"][:3, 2:] = 0.0
    token_losses = np.vectorize(by_hand)(data["logprobs"], data["sampled_logprobs"], data["advantages"])
    halves = [token_losses[h][data["loss_mask"][h] > 0].mean() for h in (slice(0, 3), slice(3, 6))]
    assert abs(np.mean(halves) - token_losses[data["loss_mask"] > 0].mean()) > 1e-2


@pytest.mark.parametrize("aggregation", AGGREGATIONS)
def test_an_all_masked_batch_gives_zero_and_not_nan(aggregation):
    data = example()
    nothing = np.zeros_like(data["loss_mask"])
    weights = token_weights(nothing, data["trajectory_ids"], aggregation, max_tokens=16)
    broken = jnp.full(nothing.shape, jnp.nan)

    def loss(logprobs):
        policy, _ = losses.policy_loss(logprobs, broken, data["advantages"], weights, **CLIP)
        return policy + losses.kl_loss(logprobs, broken, weights, "k3")[0]

    value, gradient = jax.value_and_grad(loss)(jnp.asarray(data["logprobs"]))
    assert value == 0.0
    assert np.all(np.asarray(gradient) == 0.0)
    metrics = losses.policy_metrics(broken, broken, broken, nothing, **CLIP)
    assert all(float(losses.mean(pair)) == 0.0 for pair in metrics.values())
    assert losses.max_logprob_difference(broken, broken, nothing) == 0.0


def test_masked_trajectories_leave_numerator_and_denominator():
    data = example()
    kept = data["trajectory_ids"] % 4 != 2
    data["loss_mask"] = data["loss_mask"] * kept
    without = {name: array[:, kept[0]] for name, array in data.items()}
    for aggregation in AGGREGATIONS:
        weights = token_weights(data["loss_mask"], data["trajectory_ids"], aggregation, 16)
        alone = token_weights(without["loss_mask"], without["trajectory_ids"], aggregation, 16)
        np.testing.assert_array_equal(weights[:, kept[0]], alone)
        assert np.all(weights[~kept] == 0)


def test_garbage_outside_the_loss_reaches_neither_value_nor_gradient():
    data = example()
    weights = token_weights(data["loss_mask"], data["trajectory_ids"], "token-mean")

    def loss(logprobs, sampled, advantages):
        return losses.policy_loss(logprobs, sampled, advantages, weights, **CLIP)[0]

    clean = jax.value_and_grad(loss)(data["logprobs"], data["sampled_logprobs"], data["advantages"])
    outside = data["loss_mask"] == 0
    for garbage in (np.nan, -np.inf):
        dirty = [
            np.where(outside, np.float32(garbage), data[n]) for n in ("logprobs", "sampled_logprobs", "advantages")
        ]
        value, gradient = jax.value_and_grad(loss)(*dirty)
        assert value == clean[0]
        np.testing.assert_array_equal(gradient, clean[1])


def distributions(seed=0, size=6):
    generator = np.random.default_rng(seed)
    p, q = (generator.dirichlet(np.ones(size)) for _ in range(2))
    return p, q, float(np.sum(p * np.log(p / q)))


def test_k1_and_k3_are_unbiased_and_k2_is_not():
    p, q, kl = distributions()
    log_ratio = jnp.asarray(np.log(p / q))
    expectation = {k.__name__: float(np.sum(p * np.asarray(k(log_ratio)))) for k in (losses.k1, losses.k2, losses.k3)}
    assert expectation["k1"] == pytest.approx(kl, rel=1e-5)
    assert expectation["k3"] == pytest.approx(kl, rel=1e-5)
    assert abs(expectation["k2"] - kl) > 0.01
    assert np.all(np.asarray(losses.k3(log_ratio)) >= 0)
    assert np.any(np.asarray(losses.k1(log_ratio)) < 0)


def test_k1_in_the_loss_would_have_no_gradient_and_is_refused():
    """Expectation over all tokens of the gradient of each estimator, at fixed sampling probabilities p."""
    p, q, _ = distributions()
    logits = jnp.asarray(np.log(p))

    def expected_gradient(estimator):
        expectation = lambda theta: jnp.sum(jnp.asarray(p) * estimator(jax.nn.log_softmax(theta) - jnp.log(q)))  # noqa: E731
        return np.asarray(jax.grad(expectation)(logits))

    true = jax.grad(lambda theta: jnp.sum(jax.nn.softmax(theta) * (jax.nn.log_softmax(theta) - jnp.log(q))))(logits)
    np.testing.assert_allclose(expected_gradient(losses.k1), 0.0, atol=1e-6)
    np.testing.assert_allclose(expected_gradient(losses.k2), true, atol=1e-6)
    assert np.abs(expected_gradient(losses.k3)).max() > 0.01
    one = jnp.ones((1, 1))
    with pytest.raises(ValueError, match="k1 only goes into the reward"):
        losses.kl_loss(one, one, one, "k1")


@pytest.mark.parametrize("estimator", ["k2", "k3"])
def test_kl_loss_equals_numpy_by_hand(estimator):
    data = example()
    weights = token_weights(data["loss_mask"], data["trajectory_ids"], "sequence-mean-token-mean")
    delta = data["logprobs"].astype(np.float64) - data["sampled_logprobs"]
    token = 0.5 * delta**2 if estimator == "k2" else np.exp(-delta) + delta - 1
    loss, _ = losses.kl_loss(data["logprobs"], data["sampled_logprobs"], weights, estimator)
    assert float(loss) == pytest.approx(float(np.sum(token * weights)), abs=1e-6)


def test_sequence_kl_sums_k1_over_each_trajectorys_counted_tokens():
    data = example(rows=2)
    result = losses.sequence_kl(
        data["logprobs"], data["sampled_logprobs"], data["loss_mask"], data["trajectory_ids"], 8
    )
    for index in range(8):
        mine = (data["trajectory_ids"] == index) & (data["loss_mask"] > 0)
        assert result[index] == pytest.approx(
            float(np.sum((data["logprobs"] - data["sampled_logprobs"])[mine])), abs=1e-5
        )


def test_metrics_equal_numpy_by_hand_and_see_differences_before_any_limit():
    data = example()
    data["logprobs"][0, 0], data["loss_mask"][0, 0] = data["sampled_logprobs"][0, 0] - 30.0, 1.0
    arguments = [data[n] for n in ("logprobs", "sampled_logprobs", "advantages", "loss_mask")]
    metrics = {name: float(losses.mean(pair)) for name, pair in losses.policy_metrics(*arguments, **CLIP).items()}
    counted = data["loss_mask"] > 0
    delta = (data["logprobs"].astype(np.float64) - data["sampled_logprobs"])[counted]
    ratio, advantages = np.exp(np.clip(delta, -20, 20)), data["advantages"][counted]
    assert metrics["clip_share_low"] == pytest.approx(np.mean((ratio < 0.8) & (advantages < 0)))
    assert metrics["clip_share_high"] == pytest.approx(np.mean((ratio > 1.28) & (advantages > 0)))
    assert metrics["ratio"] == pytest.approx(np.mean(ratio), rel=1e-5)
    assert metrics["sampler_kl"] == pytest.approx(np.mean(np.exp(delta) - 1 - delta), rel=1e-5)
    assert metrics["logprob_difference"] == pytest.approx(np.mean(np.abs(delta)), rel=1e-5)
    assert float(losses.max_logprob_difference(*arguments[:2], arguments[3])) == pytest.approx(30.0, rel=1e-5)


def test_sampler_kl_estimates_the_divergence_of_the_sampler_from_the_trainer():
    sampler, trainer, kl = distributions(3)
    outcomes = [np.log(trainer)[None], np.log(sampler)[None], np.zeros((1, 6))]
    one_at_a_time = [
        losses.policy_metrics(*outcomes, np.eye(6)[i : i + 1], **CLIP)["sampler_kl"] for i in range(len(sampler))
    ]
    expectation = sum(p * float(losses.mean(pair)) for p, pair in zip(sampler, one_at_a_time, strict=True))
    assert expectation == pytest.approx(kl, rel=1e-5)
