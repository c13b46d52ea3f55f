"""The optimizer against AdamW written out in NumPy, and a warm-up that fits the run it is in."""

import dataclasses
import math

import jax.numpy as jnp
import numpy as np
import optax
import pytest

from burnish.rl.optimizer import decay_mask, learning_rate_schedule, make_optimizer, schedule_updates


@dataclasses.dataclass(frozen=True)
class Entry:
    """A row of the parameter table: one layer's shape."""

    shape: tuple[int, ...]


TABLE = {"layers.*.proj": Entry((4, 3)), "layers.*.norm": Entry((3,)), "embed": Entry((5, 3)), "norm": Entry((3,))}
SHAPES = {"layers.*.proj": (2, 4, 3), "layers.*.norm": (2, 3), "embed": (5, 3), "norm": (3,)}


def random_tree(seed, scale=1.0):
    generator = np.random.default_rng(seed)
    return {name: (scale * generator.normal(size=shape)).astype(np.float32) for name, shape in SHAPES.items()}


def run(optimizer, parameters, gradients):
    parameters = {name: jnp.asarray(value) for name, value in parameters.items()}
    state = optimizer.init(parameters)
    for gradient in gradients:
        updates, state = optimizer.update({n: jnp.asarray(g) for n, g in gradient.items()}, state, parameters)
        parameters = optax.apply_updates(parameters, updates)
    return parameters


def adamw_by_hand(parameters, gradients, rates, decayed, max_norm=1.0, b1=0.9, b2=0.95, weight_decay=0.01):
    theta = {name: value.astype(np.float64) for name, value in parameters.items()}
    m, v = ({name: np.zeros(value.shape) for name, value in theta.items()} for _ in range(2))
    for t, (gradient, rate) in enumerate(zip(gradients, rates, strict=True), start=1):
        norm = math.sqrt(sum(float(np.sum(np.square(g, dtype=np.float64))) for g in gradient.values()))
        for name in theta:
            g = gradient[name].astype(np.float64) * min(1.0, max_norm / norm)
            m[name] = b1 * m[name] + (1 - b1) * g
            v[name] = b2 * v[name] + (1 - b2) * g * g
            step = (m[name] / (1 - b1**t)) / (np.sqrt(v[name] / (1 - b2**t)) + 1e-8)
            theta[name] = theta[name] - rate * (step + (weight_decay * theta[name] if decayed[name] else 0.0))
    return theta


def test_adamw_with_clipping_and_warmup_equals_numpy():
    parameters = random_tree(0)
    gradients = [random_tree(seed, scale) for seed, scale in [(1, 3.0), (2, 0.01), (3, 1.0), (4, 0.05), (5, 10.0)]]
    norms = [math.sqrt(sum(float(np.sum(g**2)) for g in tree.values())) for tree in gradients]
    assert min(norms) < 1 < max(norms), "both sides of the clip must be covered"
    schedule = learning_rate_schedule(peak=0.02, total_updates=5, warmup_updates=2, schedule="constant")
    result = run(make_optimizer(schedule, decayed=decay_mask(TABLE)), parameters, gradients)
    decayed = {"layers.*.proj": True, "layers.*.norm": False, "embed": True, "norm": False}
    expected = adamw_by_hand(parameters, gradients, [0.01, 0.02, 0.02, 0.02, 0.02], decayed)
    for name in SHAPES:
        np.testing.assert_allclose(result[name], expected[name], atol=2e-6)


@pytest.mark.parametrize("name", ["adamw", "adafactor"])
def test_weight_decay_spares_norms_though_stacked_layers_look_like_matrices(name):
    parameters, nothing = random_tree(0), {n: np.zeros(s, np.float32) for n, s in SHAPES.items()}
    optimizer = make_optimizer(lambda _: 0.5, name=name, weight_decay=0.1, decayed=decay_mask(TABLE))
    result = run(optimizer, parameters, [nothing])
    for key in ("layers.*.norm", "norm"):
        np.testing.assert_array_equal(result[key], parameters[key])
    for key in ("layers.*.proj", "embed"):
        np.testing.assert_allclose(result[key], parameters[key] * (1 - 0.5 * 0.1), rtol=1e-6)


@pytest.mark.parametrize("name", ["adamw", "adafactor"])
def test_learning_rate_zero_changes_nothing(name):
    parameters = random_tree(0)
    result = run(make_optimizer(lambda _: 0.0, name=name), parameters, [random_tree(1), random_tree(2)])
    for key, value in parameters.items():
        np.testing.assert_array_equal(result[key], value)


def test_adafactor_first_step_equals_numpy():
    """At first the second moments are the squared gradient (unfactored at these sizes), so the step is its sign."""
    parameters, gradient = random_tree(0), random_tree(1)
    result = run(make_optimizer(lambda _: 0.1, name="adafactor", weight_decay=0.0), parameters, [gradient])
    for key, value in parameters.items():
        np.testing.assert_allclose(result[key], value - 0.1 * np.sign(gradient[key]), atol=1e-4)


def test_adafactor_factors_large_matrices_per_layer():
    state = make_optimizer(lambda _: 0.1, name="adafactor").init({"layers.*.proj": jnp.zeros((3, 128, 160))})
    moments = sum(leaf.size for leaf in optax.tree.get(state, "v_row").values()) + sum(
        leaf.size for leaf in optax.tree.get(state, "v_col").values()
    )
    assert moments == 3 * (128 + 160)


def test_warmup_is_sized_from_the_runs_own_updates():
    assert schedule_updates(steps=30, updates_per_rollout=4, epochs_per_rollout=2) == (240, 0)
    assert schedule_updates(steps=30, updates_per_rollout=4, epochs_per_rollout=2, warmup_fraction=0.1) == (240, 24)
    assert schedule_updates(steps=30, updates_per_rollout=4, warmup_steps=3, warmup_fraction=0.9) == (120, 12)
    assert schedule_updates(steps=2, warmup_steps=10) == (2, 2)


def test_schedule_warms_up_to_the_peak_and_falls_along_a_cosine():
    constant = learning_rate_schedule(peak=4e-6, total_updates=10, warmup_updates=4, schedule="constant")
    np.testing.assert_allclose([constant(n) for n in range(10)], [1e-6, 2e-6, 3e-6] + [4e-6] * 7, rtol=1e-6)
    cosine = learning_rate_schedule(peak=1.0, total_updates=10, warmup_updates=2, schedule="cosine")
    expected = [0.5, 1.0] + [0.5 * (1 + math.cos(math.pi * (n - 2) / 8)) for n in range(2, 10)]
    np.testing.assert_allclose([cosine(n) for n in range(10)], expected, atol=1e-6)
    assert cosine(9) > 0, "no rollout is spent on an update at 0"
    no_warmup = learning_rate_schedule(peak=1.0, total_updates=3, warmup_updates=0, schedule="constant")
    assert no_warmup(0) == 1.0
