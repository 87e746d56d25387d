"""The mass that ranks before a token that is known before its row is read: too little, and top-p keeps the token.

While the row is read, each tile sums what ranks before the token, relative to the tile's own maximum; the tile that the
token stands in, where ids decide between equal logits, is looked at again.
"""

import triton
import triton.language as tl

from draftproof.kernels.device.draw import masses_of
from draftproof.kernels.device.rows import above, load_tiles, ordered, unordered


@triton.jit
def next_above(z):
    """The lowest float32 above z; of both zeros, the lowest above 0."""
    return unordered(ordered(z + 0.0) + 1)


@triton.jit
def store_before(tile_before, tile, token, z0, z1, z2, z3, w0, w1, w2, w3, TILE: tl.constexpr):
    """Writes what a tile's weights [GROUP, SLOTS] sum up to of those that rank before a token of another tile.

    token: (its logit, the lowest float32 above it, its id). Equal logits rank before it in the tiles before its own.
    """
    least = tl.where(tile * TILE > token[2], token[1], token[0])
    low = tl.where(z0 >= least, w0, 0.0) + tl.where(z1 >= least, w1, 0.0)
    high = tl.where(z2 >= least, w2, 0.0) + tl.where(z3 >= least, w3, 0.0)
    tl.store(tile_before + tile, tl.sum(tl.sum(low + high, 0), 0))


@triton.jit
def mass_before(row, tile_max, tile_before, shape, scale, top, largest, z, token_id, TILES: tl.constexpr,
                TILE: tl.constexpr, HAS_ALLOWED: tl.constexpr):  # fmt: skip
    """The mass before a token of logit z, float64, of a row that was read with it and has no special tokens."""
    reach, masses = masses_of(tile_max, tile_before, shape[0], scale, largest, TILES)
    own = token_id // TILE
    others = tl.sum(tl.where(tl.arange(0, TILES) == own, 0.0, masses), 0)
    beside, ids = load_tiles(row, tl.full((1,), 0, tl.int32) + own, shape[0], shape[1], shape[2], TILE, HAS_ALLOWED,
                             False)  # fmt: skip
    weights = tl.where(above(beside, ids, z, token_id), tl.exp2(tl.fma(beside, scale, -top)), 0.0)
    return others + tl.sum(tl.sum(weights, 1), 0).to(tl.float64)
