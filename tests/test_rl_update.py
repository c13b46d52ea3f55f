"""The update does what the formulas say: it equals a reference that takes one padded sequence after the other, with its
own softmax and its own AdamW; and neither packing, shared prompts nor micro-batches change it.
"""

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from burnish.errors import RunStopped
from burnish.model.decoder import Parameters
from burnish.model.spec import ModelSpec
from burnish.rl.batch import Batch
from burnish.rl.packing import pack, pad_rows, pad_rows_to_multiple
from burnish.rl.trainer import Trainer
from burnish.rl.update import State, UpdateSettings, update
from burnish.rollout.engine import Engine
from burnish.rollout.records import Prompt, Trajectory
from burnish.rollout.sampling import Sampling
from burnish.weights.loading import load_parameters
from burnish.weights.sources import open_source
from tiny_runs import GENERATIONS, MAX_TOKENS, OPTIMIZER, ROW_TOKENS, tiny_model, tiny_run
from update_by_hand import (
    CLIPS,
    EOS,
    PROMPT_LENGTHS,
    HandWrittenAdamW,
    Model,
    logprobs_one_by_one,
    reference_gradient,
    trajectory,
)

ROWS = 8
"""As many as any of these batches has."""
# The gradient itself, in the place of an optimizer's state.
CAPTURE = optax.GradientTransformation(
    init=lambda parameters: jax.tree.map(jnp.zeros_like, parameters),
    update=lambda gradients, state, parameters=None: (jax.tree.map(jnp.zeros_like, gradients), gradients),
)


@pytest.fixture(scope="module", autouse=True)
def _quick_compilation() -> Iterator[None]:
    """A tiny model's gradient takes ten seconds to compile well and four to compile."""
    jax.config.update("jax_disable_most_optimizations", True)
    yield
    jax.config.update("jax_disable_most_optimizations", False)


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Model:
    folder = tiny_model(tmp_path_factory.mktemp("update") / "tiny")
    source = open_source(str(folder))
    spec = ModelSpec.from_config(source.config)
    return Model(folder, spec, load_parameters(source, spec, "float32"))


@pytest.fixture(scope="module")
def trajectories(model: Model) -> list[Trajectory]:
    """Four groups, interleaved, of lengths 1 to 8, whose sampler disagrees enough for clips to bite."""
    random = np.random.default_rng(0)
    made = []
    for index in range(GENERATIONS):
        for group_id, prompt_length in PROMPT_LENGTHS.items():
            tokens = random.integers(0, 288, random.integers(1, MAX_TOKENS + 1)).astype(np.int32)
            ended = len(tokens) < MAX_TOKENS and index % 2 == 0
            tokens[-1] = EOS if ended else tokens[-1]
            prompt = np.random.default_rng(group_id).integers(0, 288, prompt_length).astype(np.int32)
            made.append(trajectory(prompt, tokens, group_id, index, "eos" if ended else "length"))
    own = logprobs_one_by_one(model.parameters, model.spec, made)
    return [
        replace(t, logprobs=(logprobs + random.normal(0, 0.3, len(logprobs))).astype(np.float32))
        for t, logprobs in zip(made, own, strict=True)
    ]


@pytest.fixture(scope="module")
def advantages(trajectories: list[Trajectory]) -> np.ndarray:
    """Reward minus the group's mean over its sample deviation, by hand."""
    rewards = np.random.default_rng(1).normal(size=len(trajectories))
    groups = np.array([t.group_id for t in trajectories])
    result = np.zeros(len(rewards))
    for index, group in enumerate(groups):
        own = rewards[groups == group]
        result[index] = (rewards[index] - own.mean()) / (own.std(ddof=1) + 1e-6)
    return result


def packed_gradient(model: Model, batch: Batch, rows: int = 1, **settings: Any) -> tuple[float, Parameters]:
    """(loss, gradient) of the product's update, in micro-batches of so many rows."""
    micro_batches = -(-len(batch.tokens) // rows)
    batch = pad_rows_to_multiple(pad_rows(batch, ROWS), rows)
    defaults = {
        "spec": model.spec,
        "compute_dtype": "float32",
        "remat": "none",
        "temperature": 1.0,
        "clip_low": CLIPS[0],
        "clip_high": CLIPS[1],
        "rows_per_micro_batch": rows,
    }
    parameters = jax.tree.map(jnp.copy, model.parameters)
    state, metrics = update(
        State(parameters, CAPTURE.init(parameters), jnp.int32(0)),
        batch,
        jnp.int32(micro_batches),
        settings=UpdateSettings(**defaults | settings),
        optimizer=CAPTURE,
    )
    return float(metrics.loss), jax.device_get(state.optimizer_state)


def packed(
    trajectories: list[Trajectory], advantages: np.ndarray, row_tokens: int = ROW_TOKENS, **options: Any
) -> Batch:
    return pack(trajectories, advantages, row_tokens=row_tokens, max_tokens=MAX_TOKENS, **options)


def assert_gradients_equal(found: Parameters, expected: Parameters, tolerance: float = 1e-5) -> None:
    """Within `tolerance` of each tensor's largest entry."""
    assert found.keys() == expected.keys()
    for name, gradient in expected.items():
        largest = np.abs(gradient).max()
        assert largest > 0, f"the gradient of {name} is zero: the test has lost its point"
        np.testing.assert_allclose(found[name], gradient, rtol=0, atol=tolerance * largest, err_msg=name)


def trainer_for(model: Model, *overrides: str, **optimizer: float) -> Trainer:
    """A trainer at its start. There is one for each configuration, since a new one would compile the update anew."""
    key = model.folder, overrides, tuple(optimizer.items())
    if key not in _trainers:
        config = tiny_run(model.folder, *overrides, **optimizer)
        # An update donates what it holds, so the trainer gets copies of the weights.
        trainer = Trainer(config, model.spec, jax.tree.map(jnp.copy, model.parameters))
        _trainers[key] = trainer, jax.device_get(trainer.state)
    trainer, start = _trainers[key]
    trainer.restore(*jax.tree.map(jnp.array, (start.parameters, start.optimizer_state)), 0)
    return trainer


_trainers: dict[Any, tuple[Trainer, State]] = {}


def weights_of(trainer: Trainer) -> Parameters:
    return jax.device_get(trainer.state.parameters)


def assert_same_bits(found: Parameters, expected: Parameters) -> None:
    for name, array in expected.items():
        np.testing.assert_array_equal(np.asarray(found[name]), np.asarray(array), err_msg=name)


# The gradient


@pytest.mark.parametrize("aggregation", ["token-mean", "sequence-mean-token-mean", "sequence-mean-token-sum-norm"])
def test_gradient_is_that_of_one_sequence_after_the_other(model, trajectories, advantages, aggregation):
    loss, gradient = packed_gradient(model, packed(trajectories, advantages, aggregation=aggregation))
    expected_loss, expected = reference_gradient(model, trajectories, advantages, aggregation=aggregation)
    np.testing.assert_allclose(loss, expected_loss, rtol=1e-5)
    assert_gradients_equal(gradient, expected)


@pytest.mark.parametrize(
    ("row_tokens", "rows", "shared_prefix", "remat"),
    [(ROW_TOKENS, 1, False, "none"), (2 * ROW_TOKENS, 4, True, "full"), (ROW_TOKENS, 1, True, "dots")],
    ids=["prompts not shared", "four longer rows at once, layers computed again", "all but products computed again"],
)
def test_gradient_does_not_depend_on_the_layout(
    model, trajectories, advantages, row_tokens, rows, shared_prefix, remat
):
    _, expected = packed_gradient(model, packed(trajectories, advantages))
    batch = packed(trajectories, advantages, row_tokens, shared_prefix=shared_prefix)
    _, gradient = packed_gradient(model, batch, rows, remat=remat)
    assert_gradients_equal(gradient, expected)


def test_end_of_sequence_stays_in_the_loss_where_it_is_also_the_padding(model, trajectories, advantages):
    ended = [index for index, t in enumerate(trajectories) if t.stop_reason == "eos" and len(t.token_ids) > 1]
    chosen = [trajectories[index] for index in ended]
    assert all(t.token_ids[-1] == EOS for t in chosen)
    _, gradient = packed_gradient(model, packed(chosen, advantages[ended]))
    assert_gradients_equal(gradient, reference_gradient(model, chosen, advantages[ended])[1])
    cut = [trajectory(t.prompt_ids, t.token_ids[:-1], t.group_id, t.completion_index, "length") for t in chosen]
    cut = [replace(short, logprobs=t.logprobs[:-1]) for short, t in zip(cut, chosen, strict=True)]
    with pytest.raises(AssertionError):
        assert_gradients_equal(gradient, reference_gradient(model, cut, advantages[ended])[1], tolerance=1e-2)


# The trainer


def test_mini_batches_and_epochs_equal_updates_by_hand(model, trajectories, advantages, tmp_path):
    trainer = trainer_for(
        model,
        "algorithm.updates_per_rollout=2",
        "algorithm.epochs_per_rollout=2",
        "optimizer.warmup_steps=2",
    )
    # A group that teaches nothing is left out of the rows, and not out of the mean over tokens.
    advantages = np.where([t.group_id == 4 for t in trajectories], 0.0, advantages)
    found = trainer.train(1, trajectories, advantages, None, tmp_path)
    # Groups in order of appearance: 11 and 4, then 30 and 7. Two steps of warm-up are eight updates here.
    halves = [[index for index, t in enumerate(trajectories) if t.group_id in part] for part in ({11, 4}, {30, 7})]
    by_hand = HandWrittenAdamW(model.parameters)
    norms = []
    for number, half in enumerate(halves * 2, 1):
        weights = {name: jnp.asarray(array, jnp.float32) for name, array in by_hand.weights.items()}
        _, gradient = reference_gradient(
            model, [trajectories[index] for index in half], advantages[half], parameters=weights
        )
        norms.append(np.sqrt(sum(np.square(array).sum() for array in gradient.values())))
        by_hand.step(gradient, OPTIMIZER["learning_rate"] * number / 8)
    assert int(trainer.state.version) == 4
    assert len(found.metrics) == 4
    np.testing.assert_allclose([metrics.grad_norm for metrics in found.metrics], norms, rtol=1e-3)
    assert found.learning_rate == pytest.approx(OPTIMIZER["learning_rate"] / 8)
    assert min(norms) > OPTIMIZER["max_grad_norm"], "nothing was clipped: the test has lost its point"
    for name, weights in weights_of(trainer).items():
        moved = np.abs(by_hand.weights[name] - np.asarray(model.parameters[name])).max()
        np.testing.assert_allclose(weights, by_hand.weights[name], rtol=0, atol=2e-2 * moved, err_msg=name)


def test_truncated_completions_leave_numerator_and_denominator(model, trajectories, advantages, tmp_path):
    whole = [index for index, t in enumerate(trajectories) if t.stop_reason != "length"]
    masking = trainer_for(model, "algorithm.truncated_completions=mask")
    masking.train(1, trajectories, advantages, None, tmp_path)
    without = trainer_for(model)
    without.train(1, [trajectories[index] for index in whole], advantages[whole], None, tmp_path)
    for name, weights in weights_of(without).items():
        np.testing.assert_allclose(weights_of(masking)[name], weights, rtol=0, atol=1e-4, err_msg=name)


def test_update_in_which_nothing_counts_changes_nothing(model, trajectories, advantages, tmp_path):
    cut = [replace(t, stop_reason="length") for t in trajectories]
    trainer = trainer_for(model, "algorithm.truncated_completions=mask")
    before = jax.device_get(trainer.state)
    assert trainer.train(1, cut, advantages, None, tmp_path).metrics == []
    assert trainer.train(2, [], np.zeros(0), None, tmp_path).metrics == []
    assert int(trainer.state.version) == 0
    assert_same_bits(weights_of(trainer), before.parameters)
    jax.tree.map(np.testing.assert_array_equal, jax.device_get(trainer.state.optimizer_state), before.optimizer_state)


def test_update_that_is_not_finite_stops_the_run_and_saves_its_batch(model, trajectories, advantages, tmp_path):
    trainer = trainer_for(model)
    broken = dict(trainer.state.parameters)
    broken["model.norm.weight"] = broken["model.norm.weight"].at[3].set(jnp.nan)
    trainer.restore(broken, trainer.state.optimizer_state, 0)
    with pytest.raises(RunStopped, match="step 7: the loss is nan"):
        trainer.train(7, trajectories, advantages, None, tmp_path)
    expected = packed(trajectories, advantages)
    with np.load(tmp_path / "not_finite_step_000007.npz") as saved:
        assert {"tokens", "targets", "advantages", "sampled_logprobs", "loss_weights"} <= set(saved)
        for name in saved:
            np.testing.assert_array_equal(saved[name], getattr(expected, name), err_msg=name)


def share_changed(trainer: Trainer, trajectories: list[Trajectory], advantages: np.ndarray, folder: Path) -> float:
    (metrics,) = trainer.train(1, trajectories, advantages, None, folder).metrics
    return float(metrics.share_of_weights_changed)


def test_share_of_weights_changed_tells_an_update_that_rounding_swallowed(model, trajectories, advantages, tmp_path):
    given = trajectories, advantages, tmp_path
    still = trainer_for(model, "rollout.temperature=0.7", learning_rate=0.0)
    assert share_changed(still, *given) == 0.0
    assert_same_bits(weights_of(still), model.parameters)
    # Rows of the embedding whose tokens never occurred are moved by weight decay alone.
    assert share_changed(trainer_for(model, learning_rate=1e-2), *given) > 0.95
    rounded = trainer_for(model, "training.compute_dtype=bfloat16", learning_rate=1e-6)
    assert 0.0 < share_changed(rounded, *given) < 0.05
    moved = [np.mean(weights_of(rounded)[name] != array) for name, array in model.parameters.items()]
    assert min(moved) > 0.3, "the master weights stay in float32 and do move"


def test_k1_is_taken_from_the_reward_and_not_from_the_loss(model, trajectories, advantages, tmp_path):
    trainer = trainer_for(model, "algorithm.kl_coefficient=0.2", "algorithm.kl_estimator=k1")
    own = logprobs_one_by_one(model.parameters, model.spec, trajectories)
    reference = trainer.reference_logprobs(trajectories)
    penalties = trainer.kl_penalties(trajectories, reference)
    expected = [0.2 * (t.logprobs - logprobs).sum() for t, logprobs in zip(trajectories, own, strict=True)]
    np.testing.assert_allclose(penalties, expected, atol=1e-4)
    (metrics,) = trainer.train(1, trajectories, advantages, reference, tmp_path).metrics
    np.testing.assert_allclose(metrics.loss, reference_gradient(model, trajectories, advantages)[0], rtol=1e-4)


def test_kl_term_and_temperature_are_in_the_loss_and_the_reference_stays_the_start(
    model, trajectories, advantages, tmp_path
):
    trainer = trainer_for(model, "algorithm.kl_coefficient=0.2", "rollout.temperature=0.7")
    reference = trainer.reference_logprobs(trajectories)
    own = logprobs_one_by_one(model.parameters, model.spec, trajectories, temperature=0.7)
    for found, logprobs in zip(reference, own, strict=True):
        np.testing.assert_allclose(found, logprobs, atol=1e-5)
    (first,) = trainer.train(1, trajectories, advantages, reference, tmp_path).metrics
    moved = jax.tree.map(jnp.copy, trainer.state.parameters)
    again = trainer.reference_logprobs(trajectories)
    for found, before in zip(again, reference, strict=True):
        np.testing.assert_array_equal(found, before)
    (second,) = trainer.train(2, trajectories, advantages, reference, tmp_path).metrics
    assert float(first.pairs["kl_to_reference"][0]) == pytest.approx(0.0, abs=1e-4)
    assert float(second.pairs["kl_to_reference"][0]) > 0.1

    def by_hand(**terms: float) -> tuple[float, float]:
        loss, gradient = reference_gradient(
            model, trajectories, advantages, parameters=moved, reference=reference, **terms
        )
        return loss, np.sqrt(sum(np.square(array).sum() for array in gradient.values()))

    measured = float(second.loss), float(second.grad_norm)
    np.testing.assert_allclose(measured, by_hand(temperature=0.7, kl_k3=0.2), rtol=1e-4)
    for without in ({"kl_k3": 0.2}, {"temperature": 0.7}):
        assert np.abs(np.array(measured) / by_hand(**without) - 1).min() > 1e-2
    assert trainer_for(model).reference_logprobs(trajectories) is None


# The sampler and the trainer


def drawn_by_engine(model: Model, sampling: Sampling, version: int = 3) -> list[Trajectory]:
    engine = Engine(model.spec, eos_ids=[EOS, 2], decode_text=str, max_lanes=8, steps_per_dispatch=4)
    engine.update_weights(version, model.parameters)
    random = np.random.default_rng(5)
    prompts = [
        Prompt(f"prompt {group}", group, tuple(random.integers(0, 288, length).tolist()))
        for group, length in PROMPT_LENGTHS.items()
    ]
    engine.submit(prompts, sampling, seed=0, step=1)
    return list(engine.run())


def worst_difference(model: Model, trajectories: list[Trajectory], folder: Path) -> float:
    """Largest |Δlogp| that an update at learning rate 0 measures."""
    trainer = trainer_for(model, "rollout.temperature=0.7", learning_rate=0.0)
    (metrics,) = trainer.train(1, trajectories, np.ones(len(trajectories)), None, folder).metrics
    return float(metrics.max_logprob_difference)


@pytest.mark.parametrize("truncation", [{}, {"top_k": 50, "top_p": 0.95}], ids=["whole vocabulary", "truncated"])
def test_trainer_gives_each_drawn_token_the_log_probability_it_was_drawn_with(model, truncation, tmp_path):
    drawn = drawn_by_engine(model, Sampling(GENERATIONS, temperature=0.7, max_tokens=MAX_TOKENS, **truncation))
    assert all(version == 3 for t in drawn for version in t.versions)
    assert worst_difference(model, drawn, tmp_path) <= 1e-4
    # Neither the temperature nor the ids that were kept could be ignored unnoticed.
    if truncation:
        assert worst_difference(model, [replace(t, kept_ids=None) for t in drawn], tmp_path) > 1e-2
    else:
        cold = logprobs_one_by_one(model.parameters, model.spec, drawn)
        assert max(np.abs(t.logprobs - own).max() for t, own in zip(drawn, cold, strict=True)) > 0.1
