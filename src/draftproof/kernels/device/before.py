"""The mass that ranks before a token that is known before its row is read: it tells whether top-p keeps the token.

While the row is read, each tile whose maximum ranks before the token sums what does, relative to that maximum. Drafted
tokens are mostly likely ones, which few tiles have any token before, so the others are asked for their maxima alone.
The tile that the token stands in, where ids decide between equal logits, is looked at again.
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
def mass_of(z0, z1, z2, z3, scale, top):
    """What a tile's logits [GROUP, SLOTS] weigh, relative to `top`."""
    low = tl.exp2(tl.fma(z0, scale, -top)) + tl.exp2(tl.fma(z1, scale, -top))
    high = tl.exp2(tl.fma(z2, scale, -top)) + tl.exp2(tl.fma(z3, scale, -top))
    return tl.sum(tl.sum(low + high, 0), 0)


@triton.jit
def weights_from(z0, z1, least, scale, top):
    """(weights of two blocks of logits, added up; those of logits from `least` on)."""
    w0, w1 = tl.exp2(tl.fma(z0, scale, -top)), tl.exp2(tl.fma(z1, scale, -top))
    return w0 + w1, tl.where(z0 >= least, w0, 0.0) + tl.where(z1 >= least, w1, 0.0)


@triton.jit
def store_masses(tile_mass, tile_before, tile, largest, token, z0, z1, z2, z3, scale, top, TILE: tl.constexpr):
    """Writes a tile's mass, and what ranks before a token of another tile if its maximum does.

    token: (its logit, the lowest float32 above it, its id). Equal logits rank before it in the tiles before its own.
    The sums are the same ones whether or not they are made together.
    """
    if above(largest, tile, token[0], token[2] // TILE):
        least = tl.where(tile > token[2] // TILE, token[1], token[0])
        low, low_before = weights_from(z0, z1, least, scale, top)
        high, high_before = weights_from(z2, z3, least, scale, top)
        tl.store(tile_mass + tile, tl.sum(tl.sum(low + high, 0), 0))
        tl.store(tile_before + tile, tl.sum(tl.sum(low_before + high_before, 0), 0))
    else:
        tl.store(tile_mass + tile, mass_of(z0, z1, z2, z3, scale, top))


@triton.jit
def mass_before(row, tile_max, tile_before, shape, scale, top, largest, z, token_id, TILES: tl.constexpr,
                TILE: tl.constexpr, HAS_ALLOWED: tl.constexpr):  # fmt: skip
    """The mass before a token of logit z, float64, of a row that was read with it and has no special tokens."""
    reach, masses = masses_of(tile_max, tile_before, shape[0], scale, largest, TILES)
    tile, own = tl.arange(0, TILES), token_id // TILE
    others = tl.sum(tl.where((tile != own) & above(reach, tile, z, own), masses, 0.0), 0)
    beside, ids = load_tiles(row, tl.full((1,), 0, tl.int32) + own, shape[0], shape[1], shape[2], TILE, HAS_ALLOWED,
                             False)  # fmt: skip
    weights = tl.where(above(beside, ids, z, token_id), tl.exp2(tl.fma(beside, scale, -top)), 0.0)
    return others + tl.sum(tl.sum(weights, 1), 0).to(tl.float64)
