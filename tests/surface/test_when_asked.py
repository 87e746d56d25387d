"""Rows and states that are made at the first look at them."""

import pytest

from draftproof.when_asked import StatesAlong, WhenAsked

# Two branches below node 0, one of them two nodes deep, and a second child of the context.
PARENTS = (-1, 0, 0, 2, -1)


class Squares(WhenAsked[int]):
    def __init__(self, length: int) -> None:
        super().__init__(length)
        self.asked: list[int] = []

    def _make(self, place: int) -> int:
        self.asked.append(place)
        return place * place


def test_an_item_is_made_once_and_only_when_it_is_asked_for() -> None:
    squares = Squares(5)
    assert len(squares) == 5 and squares.asked == []
    assert squares[3] == 9 and squares[-2] == 9 and squares.asked == [3]
    assert squares[1:4] == [1, 4, 9] and squares.asked == [3, 1, 2]
    assert list(squares) == [0, 1, 4, 9, 16] and sorted(squares.asked) == [0, 1, 2, 3, 4]
    with pytest.raises(IndexError):
        squares[5]


@pytest.mark.parametrize("order", [(0, 1, 2, 3, 4, 5), (4, 2, 5, 0), (5,), (3, 4)])
def test_a_state_is_made_from_its_parents_whatever_is_asked_for_first(order) -> None:
    made: list[int] = []

    def after(path: tuple[int, ...], node: int) -> tuple[int, ...]:
        made.append(node)
        return (*path, node)

    states = StatesAlong((), PARENTS, after)
    paths = ((), (0,), (0, 1), (0, 2), (0, 2, 3), (4,))
    for place in (*order, *order):
        assert states.at(place) == paths[place]
    assert len(made) == len(set(made)) and set(made) == {node for place in order for node in paths[place]}
