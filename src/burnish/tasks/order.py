"""In which order the rows of a task are drawn: the position in the data is one integer, whatever was drawn before."""

import hashlib
from collections.abc import Sequence

from burnish.errors import UserError
from burnish.tasks.base import Row, Task

_ROUNDS = 6


def row_index(position: int, num_rows: int, seed: int) -> int:
    """The row that is drawn at `position` (0, 1, 2, …, without end).

    Each epoch of `num_rows` positions visits every row once, in an order of its own. A pure function: a resumed run
    needs the position alone.
    """
    epoch, offset = divmod(position, num_rows)
    return shuffled(offset, num_rows, f"{seed}/{epoch}")


def shuffled(index: int, count: int, key: str) -> int:
    """Where `index` lands in the permutation of range(count) named by `key`, without building the permutation.

    A Feistel network over the smallest even number of bits that holds `count`, walked until it lands inside (Black
    and Rogaway, "Ciphers with Arbitrary Finite Domains", 2002). It depends on BLAKE2 alone, so the order is the same
    on every Python version.
    """
    half_bits = max(1, ((count - 1).bit_length() + 1) // 2)
    mask = (1 << half_bits) - 1
    while True:
        left, right = index >> half_bits, index & mask
        for round_number in range(_ROUNDS):
            digest = hashlib.blake2b(f"{key}/{round_number}/{right}".encode(), digest_size=8).digest()
            left, right = right, left ^ (int.from_bytes(digest) & mask)
        index = (left << half_bits) | right
        if index < count:
            return index


def training_rows(task: Task, max_prompts: int | None = None) -> Sequence[Row]:
    """The rows that a run trains on: the task's, or the first `max_prompts` of them."""
    rows = task.train_rows()
    if not len(rows):
        raise UserError(f"task {task.name} has no training prompts; give it a data set with at least one row")
    return rows if max_prompts is None else rows[:max_prompts]
