"""The engine draws what a plain forward pass says, whatever the scheduling, and stops where it must.

One round of prompts is drawn once (`reference`) and compared with other schedules of it and with NumPy. All tests share
a few shapes, because every new one is compiled.
"""

import random
from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from burnish.errors import RunStopped
from burnish.model.decoder import Parameters, forward, logits
from burnish.model.spec import ModelSpec, parameters
from burnish.rollout import engine as engine_module
from burnish.rollout.engine import Engine
from burnish.rollout.records import Prompt, Trajectory
from burnish.rollout.sampling import Sampling

VOCABULARY = 300
SPEC = ModelSpec.from_config(
    {
        "model_type": "qwen3",
        "vocab_size": VOCABULARY,
        "hidden_size": 32,
        "intermediate_size": 48,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "head_dim": 16,
        "tie_word_embeddings": False,
        "rope_theta": 10000.0,
        "max_position_embeddings": 128,
    }
)
PAD = 0
"""What the engine fills prompts up with: here an EOS as well, as in many tokenizers."""
EOS_IDS = range(16)
SAMPLING = Sampling(num_generations=3, temperature=0.7, max_tokens=20)
TRUNCATED = replace(SAMPLING, top_k=50, top_p=0.95)
SEED, STEP = 9, 1
PROMPT_LENGTHS = (9, 1, 33, 2, 20, 20)
Drawn = dict[tuple[int, int], Trajectory]


def make_parameters(seed: int) -> Parameters:
    numbers = np.random.default_rng(seed)
    made = {}
    for key, parameter in parameters(SPEC).items():
        shape = ((SPEC.num_layers,) if parameter.layered else ()) + parameter.shape
        made[key] = jnp.asarray(numbers.normal(size=shape) * 0.3 + ("norm" in key), jnp.float32)
    return made


def make_prompts() -> list[Prompt]:
    numbers = np.random.default_rng(0)
    token_ids = [tuple(numbers.integers(16, VOCABULARY, length).tolist()) for length in PROMPT_LENGTHS]
    token_ids[-1] = token_ids[-2]
    # Group ids are names, neither positions nor in order.
    return [Prompt(f"p{index}", 100 - 7 * index, ids) for index, ids in enumerate(token_ids)]


PROMPTS = make_prompts()
LONGEST, ONE_TOKEN = PROMPTS[2], PROMPTS[1]


def decode_text(token_ids: Sequence[int]) -> str:
    """Two letters per token, none for the special ones."""
    return "".join(chr(97 + each // 26) + chr(97 + each % 26) for each in token_ids if each not in EOS_IDS)


@pytest.fixture(scope="module")
def weights() -> Parameters:
    return make_parameters(0)


@pytest.fixture(scope="module")
def other_weights() -> Parameters:
    return make_parameters(1)


def make_engine(weights: Parameters, max_lanes: int = 64, steps: int = 16) -> Engine:
    engine = Engine(SPEC, eos_ids=EOS_IDS, decode_text=decode_text, max_lanes=max_lanes, steps_per_dispatch=steps)
    engine.update_weights(0, weights)
    return engine


def by_place(trajectories: Iterable[Trajectory]) -> Drawn:
    listed = list(trajectories)
    drawn = {(trajectory.group_id, trajectory.completion_index): trajectory for trajectory in listed}
    assert len(drawn) == len(listed)
    return drawn


def draw(engine: Engine, sampling: Sampling = SAMPLING, prompts: Sequence[Prompt] = PROMPTS) -> Drawn:
    engine.submit(prompts, sampling, seed=SEED, step=STEP)
    return by_place(engine.run())


@pytest.fixture(scope="module")
def reference(weights: Parameters) -> Drawn:
    return draw(make_engine(weights))


@pytest.fixture(scope="module")
def truncated(weights: Parameters) -> Drawn:
    return draw(make_engine(weights), TRUNCATED)


def assert_same(drawn: Drawn, expected: Drawn, *, exact: bool = False) -> None:
    assert drawn.keys() == expected.keys()
    for place, trajectory in drawn.items():
        other = expected[place]
        assert trajectory.token_ids.tolist() == other.token_ids.tolist()
        assert trajectory.prompt_ids.tolist() == other.prompt_ids.tolist()
        assert (trajectory.prompt_id, trajectory.stop_reason) == (other.prompt_id, other.stop_reason)
        np.testing.assert_allclose(trajectory.logprobs, other.logprobs, atol=0 if exact else 1e-4)


def cut(trajectory: Trajectory, length: int, stop_reason: Any) -> Trajectory:
    arrays = {
        name: getattr(trajectory, name)[:length]
        for name in ("token_ids", "sampled_mask", "logprobs", "versions", "turn")
    }
    kept_ids = None if trajectory.kept_ids is None else trajectory.kept_ids[:length]
    return replace(trajectory, **arrays, kept_ids=kept_ids, stop_reason=stop_reason)


@pytest.fixture(scope="module")
def score(weights: Parameters) -> Any:
    """Float64 logits behind each completion token, from one plain forward pass over prompt and completion."""

    @jax.jit
    def run(tokens: jax.Array, lengths: jax.Array) -> jax.Array:
        positions = jnp.broadcast_to(jnp.arange(tokens.shape[1]), tokens.shape)
        segments = (positions < lengths[:, None]).astype(jnp.int32)
        return logits(weights, SPEC, forward(weights, SPEC, tokens, positions, segments))

    def scores(trajectories: Sequence[Trajectory]) -> list[np.ndarray]:
        tokens = np.zeros((18, 96), np.int32)
        lengths = np.ones(18, np.int32)
        for row, trajectory in enumerate(trajectories):
            ids = np.concatenate([trajectory.prompt_ids, trajectory.token_ids])
            tokens[row, : len(ids)], lengths[row] = ids, len(ids)
        rows = np.asarray(run(tokens, lengths), np.float64)
        firsts = [len(trajectory.prompt_ids) - 1 for trajectory in trajectories]
        return [
            rows[row, first : first + len(trajectory.token_ids)]
            for row, (first, trajectory) in enumerate(zip(firsts, trajectories, strict=True))
        ]

    return scores


def log_softmax(scores: np.ndarray) -> np.ndarray:
    shifted = scores - scores.max()
    return shifted - np.log(np.exp(shifted).sum())


def test_logprobs_are_those_of_a_forward_pass_at_the_temperature(reference: Drawn, score: Any) -> None:
    trajectories = list(reference.values())
    assert len(trajectories) == 18
    assert {len(trajectory.prompt_ids) for trajectory in trajectories} == set(PROMPT_LENGTHS)
    for trajectory, rows in zip(trajectories, score(trajectories), strict=True):
        expected = [log_softmax(row / 0.7)[token] for row, token in zip(rows, trajectory.token_ids, strict=True)]
        np.testing.assert_allclose(trajectory.logprobs, expected, atol=1e-4)
        assert trajectory.kept_ids is None


def test_truncated_logprobs_are_renormalised_over_the_kept_ids(truncated: Drawn, score: Any) -> None:
    trajectories = list(truncated.values())
    sizes = []
    for trajectory, rows in zip(trajectories, score(trajectories), strict=True):
        assert trajectory.kept_ids is not None
        assert trajectory.kept_ids.shape == (len(rows), 50)
        for row, token, logprob, padded in zip(
            rows / 0.7, trajectory.token_ids, trajectory.logprobs, trajectory.kept_ids, strict=True
        ):
            kept = padded[padded >= 0]
            expected = log_softmax(row[kept])
            assert abs(logprob - expected[kept.tolist().index(token)]) <= 1e-4
            # The fewest of the 50 likeliest that reach 0.95, up to the rounding of the last one.
            likeliest = np.argsort(-row)[:50]
            cumulated = np.cumsum(np.exp(log_softmax(row[likeliest])))
            assert kept.tolist() == likeliest[: len(kept)].tolist()
            assert cumulated[len(kept) - 1] >= 0.95 - 1e-5
            assert len(kept) == 1 or cumulated[len(kept) - 2] <= 0.95 + 1e-5
            sizes.append(len(kept))
    assert len(set(sizes)) > 3


@pytest.mark.parametrize("max_lanes", [4, 16])
def test_completions_do_not_depend_on_lanes_steps_or_order(
    weights: Parameters, reference: Drawn, max_lanes: int
) -> None:
    engine = make_engine(weights, max_lanes, steps=3)
    shuffled = random.Random(max_lanes).sample(PROMPTS, len(PROMPTS))
    engine.submit(shuffled[:3], SAMPLING, seed=SEED, step=STEP)
    early = [*engine.poll(), *engine.poll()]
    for prompt, index, tokens in engine.in_progress():
        assert reference[prompt.group_id, index].token_ids[: len(tokens)].tolist() == tokens
    for prompt in shuffled[3:]:
        engine.submit([prompt], SAMPLING, seed=SEED, step=STEP)
    assert engine.busy
    drawn = by_place([*early, *engine.run()])
    assert_same(drawn, reference)
    assert all(drawn[place].text == reference[place].text for place in drawn)
    assert not engine.busy
    assert engine.poll() == []


def test_completion_drawn_alone_is_the_one_drawn_among_others(weights: Parameters, reference: Drawn) -> None:
    engine = make_engine(weights, max_lanes=1, steps=3)
    for prompt in (LONGEST, ONE_TOKEN):
        alone = draw(engine, replace(SAMPLING, num_generations=1), [prompt])
        assert_same(alone, {(prompt.group_id, 0): reference[prompt.group_id, 0]})


def test_completion_outgrows_its_cache_while_others_come_and_go(weights: Parameters, score: Any) -> None:
    engine = Engine(SPEC, eos_ids=(), decode_text=decode_text, max_lanes=2, steps_per_dispatch=16)
    engine.update_weights(0, weights)
    long_prompt = Prompt("long", 1, tuple(range(100, 141)))
    engine.submit([long_prompt], replace(SAMPLING, num_generations=1, max_tokens=20), seed=SEED, step=STEP)
    assert engine.poll() == []
    # Starts behind the other's sixteen tokens, moves to the front when that one ends, and needs over 64 slots.
    engine.submit([ONE_TOKEN], replace(SAMPLING, num_generations=1, max_tokens=80), seed=SEED, step=STEP)
    trajectories = list(engine.run())
    assert [len(trajectory.token_ids) for trajectory in trajectories] == [20, 80]
    for trajectory, rows in zip(trajectories, score(trajectories), strict=True):
        assert trajectory.stop_reason == "length"
        expected = [log_softmax(row / 0.7)[token] for row, token in zip(rows, trajectory.token_ids, strict=True)]
        np.testing.assert_allclose(trajectory.logprobs, expected, atol=1e-4)


def test_group_and_completion_each_have_their_own_noise(reference: Drawn) -> None:
    # The last two prompts are the same text in two groups.
    groups = [prompt.group_id for prompt in PROMPTS[-2:]]
    drawn = {tuple(reference[group, index].token_ids.tolist()) for group in groups for index in range(3)}
    assert len(drawn) == 6


def test_every_eos_id_stops_and_belongs_to_the_completion(reference: Drawn) -> None:
    ended = [trajectory for trajectory in reference.values() if trajectory.stop_reason == "eos"]
    assert len({trajectory.token_ids[-1] for trajectory in ended}) >= 3
    assert PAD in {trajectory.token_ids[-1] for trajectory in ended}
    for trajectory in reference.values():
        assert not set(trajectory.token_ids[:-1].tolist()) & set(EOS_IDS)
        assert trajectory.sampled_mask.all()
        assert trajectory.truncated == (trajectory.token_ids[-1] not in EOS_IDS)
        assert (len(trajectory.token_ids) == SAMPLING.max_tokens) or not trajectory.truncated
        assert trajectory.text == decode_text(trajectory.token_ids.tolist())


def test_stop_string_cuts_at_the_token_that_completes_it(weights: Parameters, truncated: Drawn) -> None:
    long = [trajectory for trajectory in truncated.values() if trajectory.truncated]
    # The one spans two tokens of two dispatches, the other lies within the third token.
    spanning = decode_text(long[0].token_ids[15:17].tolist())[1:3]
    within = decode_text(long[1].token_ids[2:3].tolist())
    expected = {}
    for place, trajectory in truncated.items():
        expected[place] = trajectory
        for length in range(1, len(trajectory.token_ids) + 1):
            text = decode_text(trajectory.token_ids[:length].tolist())
            if spanning in text or within in text:
                expected[place] = cut(trajectory, length, "stop_string")
                break
    lengths = {len(trajectory.token_ids) for trajectory in expected.values() if trajectory.stop_reason == "stop_string"}
    assert {3, 17} <= lengths
    engine = make_engine(weights)
    drawn = draw(engine, replace(TRUNCATED, stop_strings=(spanning, within)))
    assert_same(drawn, expected)
    assert engine.generated_tokens == sum(len(trajectory.token_ids) for trajectory in drawn.values())
    assert all(each.text == decode_text(each.token_ids.tolist()) for each in drawn.values())


@pytest.fixture
def steps_run(monkeypatch: pytest.MonkeyPatch) -> list[tuple[int, int]]:
    """(lanes of the grid, decoding steps) of every dispatch."""
    dispatches = []
    decode = engine_module.decode

    def counted(parameters: Any, prefix: Any, lengths: Any, own: Any, lanes: Any, slot: Any, *rest: Any, **named: Any):  # type: ignore[no-untyped-def]
        size, before = lanes.tokens.size, int(slot)
        result = decode(parameters, prefix, lengths, own, lanes, slot, *rest, **named)
        dispatches.append((size, int(result[2]) - before))
        return result

    monkeypatch.setattr(engine_module, "decode", counted)
    return dispatches


def test_finished_completions_leave_the_batch(
    weights: Parameters, reference: Drawn, steps_run: list[tuple[int, int]]
) -> None:
    engine = make_engine(weights, max_lanes=16, steps=3)
    # One long completion among many short ones, each with its own limit.
    survivor = next(
        trajectory for trajectory in reference.values() if trajectory.truncated and trajectory.completion_index == 0
    )
    expected = {(survivor.group_id, 0): survivor}
    for prompt in PROMPTS:
        one = prompt.group_id == survivor.group_id
        engine.submit(
            [prompt],
            replace(SAMPLING, num_generations=1 if one else 3, max_tokens=20 if one else 2),
            seed=SEED,
            step=STEP,
        )
        for index in range(0 if one else 3):
            whole = reference[prompt.group_id, index]
            expected[prompt.group_id, index] = whole if len(whole.token_ids) <= 2 else cut(whole, 2, "length")
    assert_same(by_place(engine.run()), expected)
    assert steps_run[0][0] == 16
    assert steps_run[-1][0] == 1
    # All side by side would be 16 lanes for 20 steps.
    assert sum(lanes * steps for lanes, steps in steps_run) <= 16 * 3 + 17
    assert sum(steps for _, steps in steps_run) == 20


def test_completion_stopped_by_a_string_costs_no_more_steps(
    weights: Parameters, reference: Drawn, steps_run: list[tuple[int, int]]
) -> None:
    lengths = {place: len(trajectory.token_ids) for place, trajectory in reference.items()}
    stopped = next(prompt for prompt in PROMPTS if lengths[prompt.group_id, 0] > 6)
    others = next(
        prompt
        for prompt in PROMPTS
        if prompt is not stopped and all(lengths[prompt.group_id, index] >= 4 for index in range(3))
    )
    stop = decode_text(reference[stopped.group_id, 0].token_ids[:1].tolist())
    engine = make_engine(weights, max_lanes=16, steps=3)
    engine.submit([stopped], replace(SAMPLING, num_generations=1, stop_strings=(stop,)), seed=SEED, step=STEP)
    engine.submit([others], replace(SAMPLING, max_tokens=4), seed=SEED, step=STEP)
    drawn = by_place(engine.run())
    assert len(drawn[stopped.group_id, 0].token_ids) == 1
    # The other three fill the grid as before, and have one token to go.
    assert steps_run == [(4, 3), (4, 1)]


def test_greedy_is_the_argmax(weights: Parameters, score: Any) -> None:
    drawn = draw(make_engine(weights), replace(SAMPLING, temperature=0.0))
    trajectories = list(drawn.values())
    for trajectory, rows in zip(trajectories, score(trajectories), strict=True):
        assert trajectory.token_ids.tolist() == rows.argmax(-1).tolist()
        assert not trajectory.logprobs.any()


def test_weights_change_only_when_nothing_is_being_drawn(weights: Parameters, other_weights: Parameters) -> None:
    engine = make_engine(weights)
    engine.submit(PROMPTS, SAMPLING, seed=SEED, step=STEP)
    engine.update_weights(1, weights)
    engine.poll()
    with pytest.raises(ValueError, match="weights can't change while completions are being drawn"):
        engine.update_weights(2, other_weights)
    trajectories = list(engine.run())
    assert all((trajectory.versions == 1).all() for trajectory in trajectories)
    engine.update_weights(2, other_weights)


def test_nothing_of_the_old_weights_is_used_after_a_change(
    weights: Parameters, other_weights: Parameters, reference: Drawn
) -> None:
    fresh = draw(make_engine(other_weights))
    engine = make_engine(weights)
    assert_same(draw(engine), reference, exact=True)
    engine.submit(PROMPTS, SAMPLING, seed=SEED, step=STEP)
    engine.poll()
    engine.abandon()
    assert not engine.busy
    assert engine.poll() == []
    engine.update_weights(5, other_weights)
    drawn = draw(engine)
    assert_same(drawn, fresh, exact=True)
    assert all((trajectory.versions == 5).all() for trajectory in drawn.values())
    assert any(drawn[place].token_ids.tolist() != reference[place].token_ids.tolist() for place in drawn)


def test_weights_that_are_not_finite_stop_the_run_at_once(weights: Parameters) -> None:
    broken = {**weights, "model.norm.weight": jnp.full_like(weights["model.norm.weight"], jnp.nan)}
    engine = make_engine(broken)
    engine.submit(PROMPTS, SAMPLING, seed=SEED, step=STEP)
    with pytest.raises(RunStopped, match="not finite while answering prompt 'p0'"):
        engine.poll()


def test_second_round_compiles_nothing(weights: Parameters) -> None:
    compiled: list[str] = []

    def listen(name: str, seconds: float, **_: Any) -> None:
        if "backend_compile" in name:
            compiled.append(name)

    engine = make_engine(weights)
    jax.monitoring.register_event_duration_secs_listener(listen)
    try:
        draw(engine)
        jax.jit(lambda x: x * 3 + 1)(np.float32(2))
        assert compiled, "the listener hears of compilations"
        compiled.clear()
        engine.update_weights(1, weights)
        draw(engine)
        assert compiled == []
    finally:
        jax.monitoring.unregister_event_duration_listener(listen)


def test_what_cannot_be_drawn_together_is_refused(weights: Parameters) -> None:
    engine = make_engine(weights)
    engine.submit([], SAMPLING, seed=SEED, step=STEP)
    assert not engine.busy
    engine.submit(PROMPTS, SAMPLING, seed=SEED, step=STEP)
    engine.submit(PROMPTS, replace(SAMPLING, temperature=0.0, max_tokens=3), seed=SEED, step=STEP)
    with pytest.raises(ValueError, match="needs the same top_k, top_p and min_p"):
        engine.submit(PROMPTS, TRUNCATED, seed=SEED, step=STEP)
    without_weights = Engine(SPEC, eos_ids=EOS_IDS, decode_text=decode_text)
    without_weights.submit(PROMPTS, SAMPLING, seed=SEED, step=STEP)
    with pytest.raises(ValueError, match="update_weights must be called before"):
        without_weights.poll()
