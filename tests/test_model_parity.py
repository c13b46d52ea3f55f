"""From the same config and weights burnish computes the logits that `transformers` computes, however rows are packed.

The expected values are stored in `tests/oracle/golden` (see `tests/oracle/generate.py`), so no torch is needed here.
"""

import functools
import json
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from burnish.model.decoder import Parameters, forward, logits, unroll
from burnish.model.spec import ModelSpec, hf_tensors, parameters
from oracle.cases import CASES, CHECKPOINTS, LOGITS, SHARED_PREFIX_TOKENS, Case

TOLERANCE = 1e-4
ROW_TOKENS = 64
ONE_OF_EACH_FAMILY = [case for case in CASES if case.name in ("llama-all-biases", "qwen2-tied", "qwen3-untied")]
each_case = pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)


@functools.cache
def golden(case: Case) -> list[np.ndarray]:
    """What `transformers` computes for each sequence of the case, alone: float32 [tokens, vocab]."""
    with np.load(LOGITS) as arrays:
        return [arrays[f"{case.name}/{index}"] for index in range(len(case.sequences))]


@functools.cache
def checkpoint(case: Case) -> dict[str, Any]:
    """The config and the tensors' shapes of the checkpoint that `transformers` saves."""
    return json.loads(CHECKPOINTS.read_text())["cases"][case.name]


@functools.cache
def model(case: Case) -> tuple[ModelSpec, Parameters]:
    """The case as burnish holds it, its weights placed by the table of tensors."""
    spec = ModelSpec.from_config(case.config)
    values = {
        key: np.full((spec.num_layers, *entry.shape) if entry.layered else entry.shape, np.nan, np.float32)
        for key, entry in parameters(spec).items()
    }
    for name, place in hf_tensors(spec).items():
        values[place.key][place.layer if place.layer is not None else ...] = case.weight(name, place.shape)
    return spec, {key: jnp.asarray(value) for key, value in values.items()}


@functools.partial(jax.jit, static_argnames="spec")
def compute(weights: Parameters, spec: ModelSpec, *rows: jax.Array) -> jax.Array:
    return logits(weights, spec, forward(weights, spec, *rows))


class Row:
    """One packed row under construction, and where each piece of it lies."""

    def __init__(self) -> None:
        self.tokens, self.positions, self.segment_ids, self.prefix_ids = np.zeros((4, ROW_TOKENS), np.int32)
        self.end = 0

    def add(self, tokens: np.ndarray, segment_id: int, *, first_position: int = 0, prefix_id: int = 0) -> slice:
        place = slice(self.end, self.end + len(tokens))
        self.end = place.stop
        self.tokens[place] = tokens
        self.positions[place] = first_position + np.arange(len(tokens))
        self.segment_ids[place] = segment_id
        self.prefix_ids[place] = prefix_id
        return place

    @property
    def fields(self) -> list[jax.Array]:
        """What the model takes, int32 [1, ROW_TOKENS] each: one shape, so that each case compiles once."""
        return [jnp.asarray(field)[None] for field in (self.tokens, self.positions, self.segment_ids, self.prefix_ids)]

    def logits(self, case: Case) -> np.ndarray:
        spec, weights = model(case)
        return np.asarray(compute(weights, spec, *self.fields))[0]


def assert_equal(actual: np.ndarray, expected: np.ndarray) -> None:
    """Both float32 and nowhere further apart than the tolerance."""
    assert actual.shape == expected.shape
    assert actual.dtype == expected.dtype == np.float32
    np.testing.assert_allclose(actual, expected, rtol=0, atol=TOLERANCE)


@each_case
def test_logits_equal_those_of_transformers(case: Case) -> None:
    for tokens, expected in zip(case.sequences, golden(case), strict=True):
        row = Row()
        place = row.add(tokens, 1)
        assert_equal(row.logits(case)[place], expected)


@pytest.mark.parametrize("case", ONE_OF_EACH_FAMILY, ids=lambda case: case.name)
def test_unrolled_layers_equal_scanned_ones(case: Case) -> None:
    spec, weights = model(case)
    row = Row()
    place = row.add(case.sequences[2], 1)
    assert_equal(np.asarray(compute(unroll(weights), spec, *row.fields))[0, place], golden(case)[2])


@each_case
def test_sequences_packed_in_one_row_equal_each_alone(case: Case) -> None:
    row = Row()
    places = [row.add(tokens, index + 1) for index, tokens in enumerate(case.sequences)]
    actual = row.logits(case)
    for place, expected in zip(places, golden(case), strict=True):
        assert_equal(actual[place], expected)


@each_case
def test_completions_that_share_a_prefix_equal_whole_sequences(case: Case) -> None:
    _, first, second = case.sequences
    split = SHARED_PREFIX_TOKENS
    np.testing.assert_array_equal(first[:split], second[:split])
    row = Row()
    stranger = row.add(case.sequences[0], 5)
    prefix = row.add(first[:split], 2)
    one = row.add(first[split:], 7, first_position=split, prefix_id=2)
    two = row.add(second[split:], 3, first_position=split, prefix_id=2)
    actual = row.logits(case)
    assert_equal(actual[stranger], golden(case)[0])
    assert_equal(np.concatenate([actual[prefix], actual[one]]), golden(case)[1])
    assert_equal(np.concatenate([actual[prefix], actual[two]]), golden(case)[2])


@each_case
@pytest.mark.parametrize("padding_token", [0, 42])
def test_padding_on_either_side_changes_nothing(case: Case, padding_token: int) -> None:
    row = Row()
    row.tokens[:] = padding_token
    row.end = 11
    place = row.add(case.sequences[2], 1)
    actual = row.logits(case)
    assert_equal(actual[place], golden(case)[2])
    assert np.isfinite(actual).all(), "what is computed on padding must not poison a gradient"


@each_case
def test_table_of_tensors_is_that_of_the_saved_checkpoint(case: Case) -> None:
    table = {name: list(place.shape) for name, place in hf_tensors(ModelSpec.from_config(case.config)).items()}
    assert table == checkpoint(case)["tensors"]


@each_case
def test_config_as_transformers_saves_it_means_the_same(case: Case) -> None:
    assert ModelSpec.from_config(checkpoint(case)["config"]) == ModelSpec.from_config(case.config)


@each_case
def test_every_parameter_matters(case: Case) -> None:
    """Stretching any one tensor moves the logits by far more than the tolerance: parity vouches for all of them."""
    spec, weights = model(case)
    row = Row()
    place = row.add(case.sequences[1], 1)
    for name, tensor in hf_tensors(spec).items():
        index = ... if tensor.layer is None else tensor.layer
        stretch = np.linspace(0.8, 1.2, tensor.shape[0], dtype=np.float32)
        stretched = case.weight(name, tensor.shape) * stretch.reshape(-1, *[1] * (len(tensor.shape) - 1))
        changed = weights | {tensor.key: weights[tensor.key].at[index].set(stretched)}
        moved = np.abs(np.asarray(compute(changed, spec, *row.fields))[0, place] - golden(case)[1]).max()
        assert moved > 50 * TOLERANCE, name
