"""The grid holds every lane in shapes that are few, and wastes less than it holds."""

from hypothesis import given
from hypothesis import strategies as st

from burnish.rollout.layout import SMALLEST_CACHE, cache_length, power_of_two, smallest_grid

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


@given(counts_of_lanes, st.integers(1, 64))
def test_grid_holds_all_lanes_and_less_than_as_many_again(counts: list[int], width: int) -> None:
    grid = smallest_grid(counts, width)
    assert grid.groups >= rows_needed(counts, grid.lanes)
    assert sum(counts) <= grid.size < 2 * sum(counts)


@given(counts_of_lanes, st.integers(1, 64))
def test_rows_are_whole_groups_unless_single_lanes_take_fewer(counts: list[int], width: int) -> None:
    grid = smallest_grid(counts, width)
    wide = power_of_two(width)
    whole = power_of_two(rows_needed(counts, wide)) * wide
    assert grid.lanes in (1, wide)
    assert grid.size == min(whole, power_of_two(sum(counts)))
    assert grid.lanes == wide or grid.size < whole


@given(counts_of_lanes, st.data())
def test_grid_never_grows_when_lanes_finish(counts: list[int], data: st.DataObject) -> None:
    left = [data.draw(st.integers(0, count)) for count in counts]
    living = [count for count in left if count]
    if living:
        assert smallest_grid(living, max(counts)).size <= smallest_grid(counts, max(counts)).size


def test_grid_of_known_groups() -> None:
    assert smallest_grid([8] * 8, 8) == (8, 8)
    assert smallest_grid([1], 1) == (1, 1)
    assert smallest_grid([3], 3) == (1, 4)
    assert smallest_grid([1, 1, 2], 8) == (4, 1)
    # One long group beside small ones takes several rows, rather than making every row as wide.
    assert smallest_grid([8, 1, 1, 1, 1, 1, 1, 1, 1], 8) == (16, 1)
