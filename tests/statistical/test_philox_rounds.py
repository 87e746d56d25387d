"""Why seven rounds: batteries on this very layout, which 7 and 10 rounds pass and 3 fail.

Error budget: every battery is deterministic (fixed counters, chosen before any result was seen); a
sound generator fails the Bonferroni bound over all p-values of one battery with probability 1e-4
at most. A battery is never rerun with other counters.
"""

import numpy as np
import pytest
from scipy import stats

from draftproof.core import Purpose
from draftproof.noise import philox4x32

ALPHA = 1e-4
BLOCKS, POSITIONS, SEEDS = np.arange(4096), np.arange(64), np.arange(64)


def words(rounds, block=0, position=0, sample=0, purpose=Purpose.TARGET, index=0, seed=0):
    """[..., 4] words of the layout; arguments broadcast."""
    last = int(purpose) << 24 | index
    key = (np.int64(seed) & 0xFFFFFFFF, np.int64(seed) >> 32)
    block, position, last = np.broadcast_arrays(np.int64(block), np.int64(position), np.int64(last))
    out = philox4x32((block, position, np.full_like(block, sample), last), key, rounds)
    return np.stack(np.broadcast_arrays(*out), -1)


def byte_p_values(values):
    """Chi-square over 256 values, for each byte of each word."""
    flat = values.reshape(-1, values.shape[-1])
    for lane in range(flat.shape[1]):
        for shift in (0, 8, 16, 24):
            counts = np.bincount((flat[:, lane] >> shift) & 255, minlength=256)
            yield stats.chisquare(counts).pvalue


def along_every_axis(rounds):
    """Neighbours along each axis of the layout: the plain words, and the XOR of one with the next."""
    by_block_and_position = words(rounds, BLOCKS[:, None], POSITIONS[None])
    by_position_and_seed = np.stack([words(rounds, BLOCKS, position=5, seed=int(seed)) for seed in SEEDS])
    by_purpose = np.stack([words(rounds, BLOCKS, POSITIONS[:8, None], purpose=p) for p in Purpose])
    by_index = words(rounds, BLOCKS[:256, None], 9, purpose=Purpose.MATCH, index=np.arange(64)[None])
    by_sample = np.stack([words(rounds, BLOCKS, 3, sample=n) for n in range(16)])
    yield "field", by_block_and_position
    yield "next position", by_block_and_position[:, 1:] ^ by_block_and_position[:, :-1]
    yield "next block", by_block_and_position[1:] ^ by_block_and_position[:-1]
    yield "next seed", by_position_and_seed[1:] ^ by_position_and_seed[:-1]
    yield "other purpose", by_purpose[1:] ^ by_purpose[:-1]
    yield "next index", by_index[:, 1:] ^ by_index[:, :-1]
    yield "next sample", by_sample[1:] ^ by_sample[:-1]
    lanes = by_block_and_position
    yield "next lane", lanes[..., 1:] ^ lanes[..., :-1]


def battery_of_bytes(rounds):
    return [p for _, values in along_every_axis(rounds) for p in byte_p_values(values)]


def battery_of_avalanche(rounds):
    """Flip one input bit of counter or key: each output bit flips half the time. 192 x 128 cells and row sums."""
    generator = np.random.default_rng(20261127)
    inputs = [generator.integers(0, 2**32, 1024) for _ in range(6)]
    inputs[1], inputs[3] = inputs[1] % 8192, (inputs[3] % 21 << 24) | inputs[3] % 64
    base = np.stack(philox4x32(tuple(inputs[:4]), tuple(inputs[4:]), rounds), -1)
    p_values = []
    for word in range(6):
        for bit in range(32):
            flipped = [w ^ (1 << bit) if i == word else w for i, w in enumerate(inputs)]
            changed = base ^ np.stack(philox4x32(tuple(flipped[:4]), tuple(flipped[4:]), rounds), -1)
            flips = ((changed[:, :, None] >> np.arange(32)) & 1).reshape(1024, 128)
            cells = (flips.sum(0) - 512) / 16.0
            p_values += [*(2 * stats.norm.sf(np.abs(cells))), stats.chi2.sf((cells**2).sum(), 128)]
    return p_values


def battery_of_streams(rounds):
    """Correlation of uniforms between the streams of one request, and across seeds 0, 1, 2, …"""
    streams = [words(rounds, BLOCKS, POSITIONS[:16, None], purpose=p).reshape(-1) for p in Purpose]
    streams += [words(rounds, BLOCKS, POSITIONS[:16, None], seed=seed).reshape(-1) for seed in range(1, 6)]
    uniforms = [(stream + 0.5) / 2**32 - 0.5 for stream in streams]
    p_values = []
    for first in range(len(uniforms)):
        for second in range(first):
            z = 12 * (uniforms[first] * uniforms[second]).sum() / np.sqrt(len(uniforms[0]))
            p_values.append(2 * stats.norm.sf(abs(z)))
    return p_values


def battery_of_tails(rounds):
    """The largest Gumbel values: words below 2^32 / 2^14 in a field, and the gaps between positions that have them."""
    field = words(rounds, BLOCKS[:, None], np.arange(256)[None])
    rare = field < 2**18
    expected = field.size / 2**14
    per_position = rare.sum((0, 2))
    return [
        2 * min(stats.poisson.cdf(rare.sum(), expected), stats.poisson.sf(rare.sum() - 1, expected)),
        stats.chi2.sf(((per_position - expected / 256) ** 2 / (expected / 256)).sum(), 256),
        stats.chi2.cdf(((per_position - expected / 256) ** 2 / (expected / 256)).sum(), 256),
    ]


BATTERIES = [battery_of_bytes, battery_of_avalanche, battery_of_streams, battery_of_tails]


@pytest.mark.parametrize("battery", BATTERIES, ids=lambda battery: battery.__name__)
@pytest.mark.parametrize("rounds", [7, 10])
def test_passes(battery, rounds):
    p_values = battery(rounds)
    assert min(p_values) * len(p_values) > ALPHA


@pytest.mark.parametrize("battery", BATTERIES[:3], ids=lambda battery: battery.__name__)
def test_three_rounds_fail(battery):
    p_values = battery(3)
    assert min(p_values) * len(p_values) < 1e-12
