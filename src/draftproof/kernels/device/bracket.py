"""Where top-p's last token lies, for rows with top-p alone, which may keep thousands of tokens.

A sample of the row tells what mass lies below a logit, give or take: the bracket begins where that is surely less than
top-p may drop and ends where it is surely more. One pass over the row then sums the mass above the bracket and lists
the tokens in it, and the last token is searched for in the list. Masses tell whether the sample was right; where it
wasn't, or too many tokens were to be listed, the row itself is searched.
"""

import triton
import triton.language as tl

from draftproof.kernels.device.draw import units_of_eighths
from draftproof.kernels.device.rows import load_places, load_tiles

PLACES = tl.constexpr(64)  # where a sample is taken, as many tokens side by side at each
HALVINGS = tl.constexpr(12)  # of an edge's range: what is left of it is less than bfloat16's step
DEVIATIONS = tl.constexpr(4.0)  # standard deviations of a sample's mass, and so many tokens more,
MORE = tl.constexpr(8.0)  # where it has few


@triton.jit
def sure_bracket(largest, scale, top, total, top_p, vocab_size):
    """(low, high): logits between which top-p's last token lies: V tokens below low weigh less than may be dropped."""
    spare = (1.0 - top_p) * total / vocab_size
    low = (tl.log2(spare.to(tl.float32)) - 0.01 + top) / scale
    low = tl.maximum(low - 1e-5 * tl.abs(low) - 1e-30, -3.4028234663852886e38)
    return tl.minimum(low, largest), largest + tl.abs(largest) * 1e-6 + 1e-30


@triton.jit
def mass_below(z, weights, edge, gain, scale, top):
    """(the mass below a logit as a sample has it, by how much it may be wrong)."""
    counted = tl.where(z < edge, weights, 0.0)
    more = MORE * tl.exp2(tl.fma(edge, scale, -top))
    return gain * tl.sum(counted, 0), gain * (DEVIATIONS * tl.sqrt(tl.sum(counted * counted, 0)) + more)


@triton.jit
def sampled_bracket(row, shape, scale, top, largest, total, top_p, TILE: tl.constexpr, HAS_ALLOWED: tl.constexpr,
                    HAS_SPECIAL: tl.constexpr):  # fmt: skip
    """(low, high): logits between which top-p's last token most likely lies: low <= z < high."""
    at = tl.arange(0, PLACES * PLACES)
    places = (at // PLACES) * tl.maximum(shape[2] // PLACES, PLACES) + at % PLACES
    z, ids = load_places(row, places, shape[0], shape[1], shape[2], TILE, HAS_ALLOWED, HAS_SPECIAL)
    weights = tl.exp2(tl.fma(z, scale, -top))
    gain = tl.maximum(shape[2], PLACES * PLACES) / (1.0 * PLACES * PLACES)
    spare = ((1.0 - top_p) * total).to(tl.float32)
    low, high = sure_bracket(largest, scale, top, total, top_p, shape[2])
    above_low, below_high = high, low
    for _ in range(HALVINGS):
        edge = 0.5 * (low + above_low)
        mass, doubt = mass_below(z, weights, edge, gain, scale, top)
        low, above_low = tl.where(mass + doubt <= spare, edge, low), tl.where(mass + doubt <= spare, above_low, edge)
        edge = 0.5 * (below_high + high)
        mass, doubt = mass_below(z, weights, edge, gain, scale, top)
        below_high, high = (
            tl.where(mass - doubt >= spare, below_high, edge),
            tl.where(mass - doubt >= spare, edge, high),
        )
    return low, high


@triton.jit
def collect_part(row, tile_max, first, last, shape, scale, top, low, high, listed, SIZE: tl.constexpr,
                 GROUP: tl.constexpr, TILE: tl.constexpr, HAS_ALLOWED: tl.constexpr,
                 HAS_SPECIAL: tl.constexpr):  # fmt: skip
    """The mass at and above `high` in tiles `first` to `last` - 1, in units of 2^-40; lists tokens low <= z < high.

    listed: (logits [SIZE], ids [SIZE], how many there are, also beyond SIZE), pointers that a row's programs share.
    """
    mass = tl.zeros((GROUP, TILE // 8), tl.int64)
    for start in range(first, last, GROUP):
        tile = start + tl.arange(0, GROUP)
        reach = tl.load(tile_max + tile, mask=tile < last, other=-float("inf"))
        if tl.max(reach, 0) >= low:
            z, ids = load_tiles(row, tl.where(reach >= low, tile, shape[0]), shape[0], shape[1], shape[2], TILE,
                                HAS_ALLOWED, HAS_SPECIAL)  # fmt: skip
            mass += units_of_eighths(tl.exp2(tl.fma(z, scale, -top)), z >= high, GROUP, TILE)
            enter(z, ids, (z >= low) & (z < high) & (z > -float("inf")), listed, SIZE, GROUP, TILE)
    return tl.sum(tl.sum(mass, 1), 0)


@triton.jit
def enter(z, ids, hit, listed, SIZE: tl.constexpr, GROUP: tl.constexpr, TILE: tl.constexpr):
    """Adds the tokens [GROUP, TILE] that `hit` names to a list, in no order. A thread counts its own eight."""
    hits = tl.reshape(hit.to(tl.int32), (GROUP * TILE // 8, 8))
    of_eighth = tl.sum(hits, 1)
    num_found = tl.sum(of_eighth, 0)
    if num_found > 0:
        place = tl.atomic_add(listed[2], num_found, sem="relaxed") + tl.cumsum(of_eighth, 0) - of_eighth
        place = place[:, None] + tl.cumsum(hits, 1) - 1
        fits = (hits > 0) & (place < SIZE)
        tl.store(listed[0] + place, tl.reshape(z, (GROUP * TILE // 8, 8)), mask=fits)
        tl.store(listed[1] + place, tl.reshape(ids, (GROUP * TILE // 8, 8)), mask=fits)
