"""The order of rows: each epoch visits every row once, in an order that seed and epoch alone decide."""

from hypothesis import given
from hypothesis import strategies as st

from burnish.tasks import row_index, training_rows
from burnish.tasks.order import shuffled
from misbehaving_tasks import ObedientTask


@given(st.integers(1, 300), st.integers(0, 5), st.integers(0, 10))
def test_each_epoch_visits_every_row_once(num_rows: int, epoch: int, seed: int) -> None:
    positions = range(epoch * num_rows, (epoch + 1) * num_rows)
    assert sorted(row_index(position, num_rows, seed) for position in positions) == list(range(num_rows))


def test_epochs_and_seeds_have_orders_of_their_own() -> None:
    orders = [
        tuple(row_index(position, 50, seed) for position in range(epoch * 50, epoch * 50 + 50))
        for seed in range(3)
        for epoch in range(3)
    ]
    assert len(set(orders)) == 9
    assert tuple(range(50)) not in orders


def test_the_order_never_changes() -> None:
    assert [row_index(position, 10, 0) for position in range(20)] == [
        4,
        5,
        3,
        0,
        2,
        7,
        1,
        8,
        9,
        6,
        6,
        3,
        8,
        5,
        2,
        7,
        0,
        1,
        4,
        9,
    ]


def test_every_row_is_about_equally_often_at_every_place() -> None:
    counts = [[0] * 7 for _ in range(7)]
    for epoch in range(1400):
        for place in range(7):
            counts[place][row_index(epoch * 7 + place, 7, 0)] += 1
    # 200 are expected, with a standard deviation of 13.
    assert all(140 < count < 260 for row in counts for count in row)


@given(st.integers(1, 10**12), st.data())
def test_a_large_range_is_shuffled_without_building_it(count: int, data: st.DataObject) -> None:
    first, second = (data.draw(st.integers(0, count - 1)) for _ in range(2))
    assert 0 <= shuffled(first, count, "key") < count
    assert (shuffled(first, count, "key") == shuffled(second, count, "key")) == (first == second)


def test_max_prompts_limits_what_is_trained_on() -> None:
    class TwoRows(ObedientTask):
        def train_rows(self) -> list:  # type: ignore[type-arg]
            return [*super().train_rows(), *super().train_rows()]

    assert len(training_rows(TwoRows(), 1)) == 1
    assert len(training_rows(TwoRows(), 9)) == 2
    assert len(training_rows(TwoRows())) == 2
