"""Two samples, one law? Tests by permutation within each prompt, exact at any sample size.

Under the null hypothesis the outputs of one prompt are exchangeable between the two engines.
- Prefixes: outputs cut at a depth are categories. Statistics over all prompts: the largest |z| of a category's count
  (hypergeometric mean and variance), and the sum of z^2.
- MMD: the sum over prompts of s' K s, K the share of equal positions of two outputs (Hamming), s = +1/n_a or -1/n_b.
  p-values are sequential (Besag & Clifford 1991): permutations stop at 20 that reach the observed statistic, p =
  20/number; or at the most that are allowed, p = (1 + reached)/(1 + number). Valid in both cases.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final, TypeAlias

import numpy as np

from draftproof.audit.scores import Floats

Output: TypeAlias = tuple[int, ...]
_REACHED: Final = 20
_CHUNK: Final = 1000
_FEWEST: Final = 2


def prefix_tests(
    first: Sequence[Sequence[Output]],
    second: Sequence[Sequence[Output]],
    depth: int,
    random: np.random.Generator,
    most: int,
) -> tuple[float, float, float]:
    """(p of the largest |z|, p of the sum of z^2, the largest |z|) of outputs cut at `depth`, per prompt."""
    pools = [_counts(a, b, depth) for a, b in zip(first, second, strict=True)]
    numbers = [(len(a), len(b)) for a, b in zip(first, second, strict=True)]
    observed = _prefix_statistics([counts[None, 0] for counts in pools], pools, numbers)

    def permuted(size: int) -> tuple[Floats, Floats]:
        draws = [
            random.multivariate_hypergeometric(counts.sum(0), number[0], size=size)
            for counts, number in zip(pools, numbers, strict=True)
        ]
        return _prefix_statistics(draws, pools, numbers)

    largest, total = float(observed[0][0]), float(observed[1][0])
    p_values = _sequential_p(lambda size: np.stack(permuted(size)), np.array([largest, total]), most)
    return float(p_values[0]), float(p_values[1]), largest


def mmd_test(
    first: Sequence[Sequence[Output]],
    second: Sequence[Sequence[Output]],
    length: int,
    random: np.random.Generator,
    most: int,
) -> tuple[float, float]:
    """(p, statistic) of the kernel of equal positions, over the first `length` tokens."""
    kernels, signs = [], []
    for a, b in zip(first, second, strict=True):
        rows = np.array([(*output, *[-1] * length)[:length] for output in (*a, *b)])
        kernels.append((rows[:, None, :] == rows[None, :, :]).mean(-1))
        signs.append(np.array([1 / len(a)] * len(a) + [-1 / len(b)] * len(b)))
    observed = sum(float(sign @ kernel @ sign) for kernel, sign in zip(kernels, signs, strict=True))

    def permuted(size: int) -> Floats:
        total = np.zeros(size)
        for kernel, sign in zip(kernels, signs, strict=True):
            shuffled = random.permuted(np.tile(sign, (size, 1)), axis=1)
            total += ((shuffled @ kernel) * shuffled).sum(1)
        return total[None]

    # Rounding must not make an equal statistic smaller than the observed one.
    return float(_sequential_p(permuted, np.array([observed * (1 - 1e-9)]), most)[0]), observed


def _counts(first: Sequence[Output], second: Sequence[Output], depth: int) -> np.ndarray:
    """[2, C] counts of each prefix of length `depth` in both samples."""
    prefixes = sorted({output[:depth] for output in (*first, *second)})
    index = {prefix: place for place, prefix in enumerate(prefixes)}
    counts = np.zeros((2, len(prefixes)), dtype=np.int64)
    for side, outputs in enumerate((first, second)):
        for output in outputs:
            counts[side, index[output[:depth]]] += 1
    return counts


def _prefix_statistics(
    draws: Sequence[np.ndarray], pools: Sequence[np.ndarray], numbers: Sequence[tuple[int, int]]
) -> tuple[Floats, Floats]:
    """([B] largest |z|, [B] sum of z^2) of counts [B, C] of the first sample, per prompt."""
    size = len(draws[0])
    largest, total = np.zeros(size), np.zeros(size)
    for drawn, counts, (num_first, num_second) in zip(draws, pools, numbers, strict=True):
        pooled, number = counts.sum(0), num_first + num_second
        mean = num_first * pooled / number
        variance = mean * (1 - pooled / number) * num_second / max(number - 1, 1)
        used = (variance > 0) & (pooled >= _FEWEST)
        if used.any():
            z = (drawn[:, used] - mean[used]) / np.sqrt(variance[used])
            largest = np.maximum(largest, np.abs(z).max(1))
            total += (z**2).sum(1)
    return largest, total


def _sequential_p(permuted: Callable[[int], Floats], observed: Floats, most: int) -> Floats:
    """[S] p-values of S statistics whose permuted values come as [S, B]."""
    reached, done = np.zeros(len(observed)), np.zeros(len(observed))
    active = np.ones(len(observed), dtype=bool)
    while active.any() and done.max() < most:
        values = permuted(int(min(_CHUNK, most - done.max())))
        for index in np.flatnonzero(active):
            hits = np.flatnonzero(values[index] >= observed[index])
            needed = int(_REACHED - reached[index])
            if len(hits) >= needed:
                done[index] += hits[needed - 1] + 1
                reached[index], active[index] = _REACHED, False
            else:
                done[index] += values.shape[1]
                reached[index] += len(hits)
    return np.where(reached >= _REACHED, reached / np.maximum(done, 1), (1 + reached) / (1 + done))
