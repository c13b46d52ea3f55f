"""How lanes are laid out in the grid: which shapes there are, and which one costs least for the lanes that live.

Pure functions of counts, so that scheduling never depends on time. Shapes come from few sizes (powers of two, and for
cache lengths also their halfway points), because every new shape is a compilation.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

SMALLEST_CACHE = 32


class GridShape(NamedTuple):
    """`groups` rows of `lanes` lanes; all lanes of a row share a prompt."""

    groups: int
    lanes: int

    @property
    def size(self) -> int:
        return self.groups * self.lanes


def power_of_two(count: int) -> int:
    """The smallest power of two that is at least `count` (and 1)."""
    return 1 << max(count - 1, 0).bit_length()


def cache_length(tokens: int) -> int:
    """The smallest cache size that holds `tokens`: 32, 48, 64, 96, 128, …"""
    size = power_of_two(max(tokens, SMALLEST_CACHE))
    return size * 3 // 4 if size > SMALLEST_CACHE and tokens <= size * 3 // 4 else size


def smallest_grid(lane_counts: Sequence[int]) -> GridShape:
    """The grid of fewest lanes for prompts that have this many lanes each; among equals the one of fewest rows.

    A prompt with more lanes than the grid is wide takes several rows, each with its own copy of the prompt.
    """
    best: GridShape | None = None
    lanes = power_of_two(max(lane_counts))
    while lanes:
        grid = GridShape(power_of_two(sum(-(-count // lanes) for count in lane_counts)), lanes)
        if best is None or grid.size < best.size:
            best = grid
        lanes //= 2
    assert best is not None
    return best
