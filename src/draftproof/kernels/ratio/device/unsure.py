"""Tests that masses as they were read leave unsure, by where top-p ends in their row."""

import triton
import triton.language as tl

from draftproof.kernels.device.boundary import keep_of_row
from draftproof.kernels.device.brackets import surely_below, surely_from
from draftproof.kernels.device.draw import NEAR_MASS, masses_of
from draftproof.kernels.device.passes import WHOLE
from draftproof.kernels.device.rows import above
from draftproof.kernels.device.top_p import first_bracket
from draftproof.kernels.device.wanted import ACCEPT, REJECT
from draftproof.kernels.ratio.device.few import list_tokens


@triton.jit
def wanted_units(top_p, total):
    """The mass that top-p keeps at least, in units of 2^-43, as a whole number in float64."""
    return tl.ceil(top_p * total * WHOLE)


@triton.jit
def settled_state(row, tile_max, tile_mass, tiles, lists, shape, scale, top, largest, total, top_p, z, token_id, kept,
                  before, needs, own, TILE: tl.constexpr, TILES: tl.constexpr, LIST: tl.constexpr,
                  KEY_SHIFT: tl.constexpr, HAS_ALLOWED: tl.constexpr, HAS_SPECIAL: tl.constexpr):  # fmt: skip
    """ACCEPT or REJECT for a token of logit z and weight `own`, under top-p alone. kept: whether it surely is.

    before: the mass that ranks before it, or -1. A kept token is the last one if that and its own weight are enough.
    Another last one weighs no more than one where the row's tiles show that top-p ends. Where this doesn't tell, the
    end is searched for, in a list of few tokens, else by one pass after the other. needs: u q. lists: (logits, ids)
    [LIST].
    """
    top_p = tl.minimum(top_p, 1.0 - 1e-12)
    needed, up_to = top_p * total, tl.maximum(before, 0.0) + own
    reach, masses = masses_of(tile_max, tile_mass, shape[0], scale, largest, TILES)
    low, high = first_bracket(largest, scale, top, total, top_p, shape[2])
    most = surely_below(reach, masses, needed, high)
    last = tl.exp2(tl.fma(most, scale, -top)).to(tl.float64)
    ends = (before >= 0) & (up_to >= needed * (1.0 + NEAR_MASS))
    most_mass = tl.where(ends, up_to, tl.minimum(total, needed + last))
    accepted = kept & (needs * most_mass * 1.00001 < own)
    if not (accepted | (kept & (needs * tl.maximum(needed, up_to) * 0.99999 >= own))):
        least = surely_from(reach, scale, top, needed, low, high)
        num_found = list_tokens(row, tiles, tile_max, shape, least, lists[0], lists[1], TILE, TILES, LIST,
                                HAS_ALLOWED)  # fmt: skip
        wanted = wanted_units(top_p, total) / WHOLE
        if num_found > 0:
            z_bound, id_bound, mass = keep_of_row(
                row, tiles, tile_max, shape, scale, top, largest, least, 0, top_p, TILES, 1, TILE, KEY_SHIFT,
                HAS_ALLOWED, HAS_SPECIAL, listed=(lists[0], lists[1], num_found), wanted=wanted,
                z_most=tl.minimum(most, largest))  # fmt: skip
        else:
            z_bound, id_bound, mass = keep_of_row(
                row, tiles, tile_max, shape, scale, top, largest, least, 0, top_p, TILES, 1, TILE, KEY_SHIFT,
                HAS_ALLOWED, HAS_SPECIAL, wanted=wanted, z_most=most)  # fmt: skip
        accepted = above(z, token_id, z_bound, id_bound + 1) & (needs * mass < own)
    return tl.where(accepted, ACCEPT, REJECT)
