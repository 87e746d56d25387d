"""Tests that masses as they were read leave unsure, by where top-p ends in their row."""

import triton
import triton.language as tl

from draftproof.kernels.device.boundary import keep_of_row
from draftproof.kernels.device.brackets import surely_below
from draftproof.kernels.device.draw import masses_of
from draftproof.kernels.device.passes import WHOLE
from draftproof.kernels.device.rows import above
from draftproof.kernels.device.top_p import first_bracket
from draftproof.kernels.device.wanted import ACCEPT, REJECT


@triton.jit
def wanted_units(top_p, total):
    """The mass that top-p keeps at least, in units of 2^-43, as a whole number in float64."""
    return tl.ceil(top_p * total * WHOLE)


@triton.jit
def settled_state(row, tile_max, tile_mass, tiles, shape, scale, top, largest, total, top_p, z, token_id, kept, needs,
                  own, TILE: tl.constexpr, TILES: tl.constexpr, KEY_SHIFT: tl.constexpr, HAS_ALLOWED: tl.constexpr,
                  HAS_SPECIAL: tl.constexpr):  # fmt: skip
    """ACCEPT or REJECT for a token of logit z and weight `own`, under top-p alone. kept: whether it surely is.

    The last kept token weighs no more than one where the row's tiles show that top-p ends. Nearly always that will do,
    else the end is searched for, by one pass after the other. needs: u q.
    """
    top_p = tl.minimum(top_p, 1.0 - 1e-12)
    reach, masses = masses_of(tile_max, tile_mass, shape[0], scale, largest, TILES)
    low, high = first_bracket(largest, scale, top, total, top_p, shape[2])
    most = surely_below(reach, masses, top_p * total, high)
    last = tl.exp2(tl.fma(most, scale, -top)).to(tl.float64)
    accepted = kept & (needs * tl.minimum(total, top_p * total + last) * 1.00001 < own)
    if not accepted:
        z_bound, id_bound, mass = keep_of_row(
            row, tiles, tile_max, shape, scale, top, largest, low, 0, top_p, TILES, 1, TILE, KEY_SHIFT, HAS_ALLOWED,
            HAS_SPECIAL, wanted=wanted_units(top_p, total) / WHOLE, z_most=most)  # fmt: skip
        accepted = above(z, token_id, z_bound, id_bound + 1) & (needs * mass < own)
    return tl.where(accepted, ACCEPT, REJECT)
