"""The least-squares fit of what never falls: isotonic regression by pooling adjacent violators.

Source: Ayer et al. 1955. Here: costs of passes by width, where measured ones fall by scatter alone.
"""

from __future__ import annotations

from collections.abc import Iterable


def rising(measured: Iterable[tuple[float, int]]) -> list[tuple[float, int]]:
    """For each the fitted mean, none below the one before it, and the count of all measurements that it is the mean of.

    measured: (mean, count of its measurements, at least 1) each.
    """
    pools: list[tuple[float, int, int]] = []
    for mean, count in measured:
        size = 1
        while pools and pools[-1][0] > mean:
            other, num, others = pools.pop()
            mean = (mean * count + other * num) / (count + num)
            count, size = count + num, size + others
        pools.append((mean, count, size))
    return [(mean, count) for mean, count, size in pools for _ in range(size)]
