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


def smallest_grid(lane_counts: Sequence[int], width: int) -> GridShape:
    """The smaller of two grids for prompts that have this many lanes each: `width` lanes a row, or one.

    `width` is that of whole groups. When most of a group has finished, rows of one lane, each with its own copy of the
    prompt, take fewer lanes; widths in between would save little and make for many more shapes. Among equals the grid
    of whole groups wins, which reads each prompt once.
    """
    wide = power_of_two(width)
    whole = GridShape(power_of_two(sum(-(-count // wide) for count in lane_counts)), wide)
    single = GridShape(power_of_two(sum(lane_counts)), 1)
    return single if single.size < whole.size else whole
