"""A curve in one line of a terminal, drawn with eighths of blocks."""

from collections.abc import Sequence
from itertools import pairwise

_BLOCKS = "▁▂▃▄▅▆▇█"


def sparkline(values: Sequence[float], width: int = 40) -> str:
    """`values` in at most `width` characters, from the lowest block at their minimum to the highest at their maximum.

    Longer series are cut into `width` parts of nearly one length, each shown by its mean; equal values are all low.
    """
    shown = means(values, width)
    low, high = min(shown, default=0.0), max(shown, default=0.0)
    step = (high - low) / (len(_BLOCKS) - 1) or 1.0
    return "".join(_BLOCKS[round((value - low) / step)] for value in shown)


def means(values: Sequence[float], parts: int) -> list[float]:
    """Means of at most `parts` consecutive parts of `values`."""
    parts = min(parts, len(values))
    edges = [len(values) * part // parts for part in range(parts + 1)] if parts else []
    return [sum(values[start:end]) / (end - start) for start, end in pairwise(edges)]
