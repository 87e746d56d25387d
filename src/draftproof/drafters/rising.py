"""The least-squares fit of what never falls: isotonic regression by pooling adjacent violators.

Source: Ayer et al. 1955. Here: costs of passes by width, where measured ones fall by scatter alone.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple


class Pool(NamedTuple):
    """So many neighbours that count as one: the mean of all that was measured of them."""

    mean: float
    num_measured: int
    num_neighbours: int


def rising(measured: Iterable[tuple[float, int]]) -> list[Pool]:
    """The pools, whose means never fall.

    measured: (mean, count of its measurements, at least 1) each.
    """
    pools: list[Pool] = []
    for mean, count in measured:
        size = 1
        while pools and pools[-1].mean > mean:
            other, num, others = pools.pop()
            mean = (mean * count + other * num) / (count + num)
            count, size = count + num, size + others
        pools.append(Pool(mean, count, size))
    return pools
