"""Rows of few likely tokens, of which neither a sample nor edges tell much: all that may be kept, in a list of its own.

Found in the few tiles that reach a logit, and then searched and raced without another look at the row.
"""

import triton
import triton.language as tl

from draftproof.kernels.device.boundary import SHORT, load_list
from draftproof.kernels.device.listing import bits_set
from draftproof.kernels.device.noise import field_at, score
from draftproof.kernels.device.passes import list_tiles, lowest_bit, places_of, read_group
from draftproof.kernels.device.ratio import NOTHING_LEFT, residual, winner_of

MOST_TILES = tl.constexpr(64)  # of a row that is listed,
AT_ONCE = tl.constexpr(4)  # looked at together


@triton.jit
def list_tokens(row, tiles, tile_max, shape, least, list_z, list_ids, TILE: tl.constexpr, TILES: tl.constexpr,
                LIST: tl.constexpr, HAS_ALLOWED: tl.constexpr):  # fmt: skip
    """Writes (logit, id) of a row's tokens from `least` on, in order of ids; returns how many there are.

    0 where they are more than LIST, which is the lists' room, or stand in more than MOST_TILES. least: finite.
    """
    EIGHTHS: tl.constexpr = AT_ONCE * TILE // 8
    num_listed, num_found = list_tiles(tiles, tile_max, shape[0], least, TILES), tl.zeros((), tl.int32)
    bit = 1 << tl.arange(0, 8)
    for start in range(0, tl.where(num_listed <= MOST_TILES, num_listed, 0), AT_ONCE):
        z, ids = read_group(row, tiles, start, num_listed, shape, AT_ONCE, TILE, HAS_ALLOWED, False)
        hits = tl.sum(tl.where(tl.reshape(z, (EIGHTHS, 8)) >= least, bit[None, :], 0), 1)
        first = tl.min(tl.reshape(ids, (EIGHTHS, 8)), 1)
        place, num_found = places_of(bits_set(hits), num_found)
        while tl.max((hits != 0).to(tl.int32), 0) > 0:
            mine, there = first + lowest_bit(hits), (hits != 0) & (place < LIST)
            own = tl.load(row[0] + mine, mask=there, other=0.0).to(tl.float32)
            tl.store(list_z + place, own + 0.0, mask=there)
            tl.store(list_ids + place, mine, mask=there)
            place, hits = place + 1, hits & (hits - 1)
    tl.debug_barrier()
    return tl.where(num_found <= LIST, num_found, 0)


@triton.jit
def race_list(list_z, list_ids, num_found, noise, vocab_size, law, node, bonus, LAW: tl.constexpr,
              STEPS: tl.constexpr):  # fmt: skip
    """(best score, its id, the runner-up's) of the residual's race among listed tokens."""
    best, second = tl.full((), -float("inf"), tl.float32), tl.full((), -float("inf"), tl.float32)
    winner, left = tl.full((), 0, tl.int32) + vocab_size, tl.full((), NOTHING_LEFT, tl.int32)
    low, none = tl.full((SHORT,), -float("inf"), tl.float32), tl.full((SHORT,), NOTHING_LEFT, tl.int32)
    for first in range(0, num_found, SHORT):
        z, ids, there = load_list(list_z + first, list_ids + first, num_found - first, SHORT)
        rest = residual(z, ids, law, node, bonus, LAW, STEPS)
        raised = score(tl.log2(tl.where(rest > 0, rest, 1.0)), field_at(ids, noise))
        found = tl.reduce((tl.where(there & (rest > 0), raised, low), ids, low, none), 0, winner_of)
        best, winner, second, left = winner_of(best, winner, second, left, found[0], found[1], found[2], found[3])
    return best, winner, second
