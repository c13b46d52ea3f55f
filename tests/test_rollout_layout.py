"""The grid holds every lane in shapes that are few, and wastes less than it holds."""

from hypothesis import given
from hypothesis import strategies as st

from burnish.rollout.layout import SMALLEST_CACHE, GridShape, cache_length, power_of_two, smallest_grid

counts_of_lanes = st.lists(st.integers(1, 40), min_size=1, max_size=40)


def rows_needed(counts: list[int], lanes: int) -> int:
    return sum(-(-count // lanes) for count in counts)


@given(st.integers(0, 10**6))
def test_power_of_two_is_the_smallest_that_reaches(count: int) -> None:
    size = power_of_two(count)
    assert size >= max(count, 1)
    assert size == 1 or size // 2 < count
    assert bin(size).count("1") == 1


@given(st.integers(0, 10**5))
def test_cache_length_holds_the_tokens_in_few_sizes(tokens: int) -> None:
    size = cache_length(tokens)
    assert size >= tokens
    assert size == SMALLEST_CACHE or size < 1.5 * tokens + 1
    assert bin(size).count("1") == 1 or bin(size // 3).count("1") == 1


def test_cache_length_of_known_counts() -> None:
    known = {0: 32, 1: 32, 32: 32, 33: 48, 48: 48, 49: 64, 64: 64, 65: 96, 96: 96, 97: 128, 257: 384, 385: 512}
    assert {tokens: cache_length(tokens) for tokens in known} == known


@given(counts_of_lanes)
def test_grid_holds_all_lanes_and_less_than_as_many_again(counts: list[int]) -> None:
    grid = smallest_grid(counts)
    assert grid.groups >= rows_needed(counts, grid.lanes)
    assert sum(counts) <= grid.size < 2 * sum(counts)


@given(counts_of_lanes)
def test_no_other_grid_has_fewer_lanes_or_as_many_in_fewer_rows(counts: list[int]) -> None:
    grid = smallest_grid(counts)
    others = [
        GridShape(groups, lanes)
        for lanes in (1, 2, 4, 8, 16, 32, 64)
        for groups in (1 << exponent for exponent in range(12))
        if groups >= rows_needed(counts, lanes)
    ]
    assert min((other.size, other.groups) for other in others) == (grid.size, grid.groups)


@given(counts_of_lanes, st.data())
def test_grid_never_grows_when_lanes_finish(counts: list[int], data: st.DataObject) -> None:
    left = [data.draw(st.integers(0, count)) for count in counts]
    living = [count for count in left if count]
    if living:
        assert smallest_grid(living).size <= smallest_grid(counts).size


def test_grid_of_known_groups() -> None:
    assert smallest_grid([8] * 8) == (8, 8)
    assert smallest_grid([1]) == (1, 1)
    assert smallest_grid([3]) == (1, 4)
    # One long group beside small ones takes several rows, rather than making every row as wide.
    assert smallest_grid([8, 1, 1, 1, 1, 1, 1, 1, 1]) == (16, 1)
    assert smallest_grid([8, 2, 2, 2, 2]) == (8, 2)
