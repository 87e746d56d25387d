"""Where top-p is to end in a row, told before anything of it is weighed: for sure by its tiles, likely by a sample.

For sure: the tiles that reach a logit weigh at least as much as the tokens that do, and their maxima alone at most as
much. Between these two bounds a sample puts edges, close to where it has the mass that may be dropped below, by buckets
of logits that are counted while the row is still read. Edges are guesses; what lies above them is weighed later.
"""

import triton
import triton.language as tl

from draftproof.kernels.device.samples import BUCKETS

EDGES = tl.constexpr(6)
SURE = tl.constexpr(1e-5)  # how much of a mass float32 sums can be wrong by, and more
TRIED = tl.constexpr(8)  # logits looked at together,
SEARCHES = tl.constexpr(2)  # and so often: a range is cut down to one part in 9^2


@triton.jit
def offset_of(edge):
    """How far edges [N] are put from the likely end, in standard errors of a sample's mass: the first one further than
    any sample may err, the others so that the end is likely between two close ones."""
    far = tl.where(edge == 0, -4.5, 3.5)
    near = tl.where(edge <= 2, -0.4, 0.4)
    wide = tl.where(edge <= 2, -1.2, 1.2)
    return tl.where((edge == 0) | (edge >= 5), far, tl.where((edge == 1) | (edge == 4), wide, near))


@triton.jit
def sampled_edges(summary, scale, top, spare, share):
    """[8] logits, of which the first EDGES ascend: edges about where a sample has `spare` of mass below.

    -inf where a sample may have that much below no logit, inf where it has less below all. spare: relative to `top`.
    share: which part of the row the sample is.
    """
    up_to, low, width, own_top = summary
    wanted = spare.to(tl.float32) * share * tl.exp2(tl.minimum(top - own_top, 100.0))
    number = tl.sum((up_to < wanted).to(tl.int32), 0)
    # The tokens below weigh no more than one at the end each: so their sum errs by no more than this.
    weight = tl.exp2(tl.fma(low + number.to(tl.float32) * width, scale, -own_top))
    spread = 0.8 * tl.sqrt(wanted * weight)
    goal = wanted + offset_of(tl.arange(0, 8)) * spread
    below = up_to[None, :] < goal[:, None]
    number = tl.sum(below.to(tl.int32), 1)
    before = tl.max(tl.where(below, up_to[None, :], 0.0), 1)
    after = tl.min(tl.where(below, 3.4028234663852886e38, up_to[None, :]), 1)
    part = tl.minimum((goal - before) / tl.maximum(after - before, 1e-37), 1.0)
    edges = low + ((number - 1).to(tl.float32) + part) * width
    edges = tl.where(number >= BUCKETS, float("inf"), edges)
    return tl.where(goal > 0.0, edges, -float("inf"))


@triton.jit
def lowest_of(reach, high):
    """A logit that the maxima of all tiles [TILES] reach that have any token; finite."""
    return tl.maximum(tl.min(tl.where(reach > -float("inf"), reach, high), 0), -3.4028234663852886e38)


@triton.jit
def reached_from(reach, masses, tried):
    """[TRIED] the masses [TILES] of the tiles whose maxima reach each of the logits tried, added up."""
    return tl.sum(tl.where(reach[None, :] >= tried[:, None], masses[None, :], 0.0), 1)


@triton.jit
def tried_between(low, high):
    """[TRIED] logits above `low` and below `high`."""
    part = (tl.arange(0, TRIED) + 1).to(tl.float32) / (TRIED + 1)
    return low + tl.minimum(high - low, 3.4028234663852886e38) * part


@triton.jit
def surely_below(reach, masses, needed, high):
    """A logit that top-p's last token lies below, close to the lowest one of which the tiles' masses tell it.

    reach, masses [TILES]: the tiles' maxima and masses. needed: the mass that top-p wants. high: such a logit.
    """
    masses, less = masses.to(tl.float32), (needed * (1.0 - SURE)).to(tl.float32)
    low = lowest_of(reach, high)
    for _ in tl.static_range(SEARCHES):
        tried = tried_between(low, high)
        reached = reached_from(reach, masses, tried)
        low = tl.maximum(low, tl.max(tl.where(reached < less, low, tried), 0))
        high = tl.minimum(high, tl.min(tl.where(reached < less, tried, high), 0))
    return high


@triton.jit
def surely_from(reach, scale, top, needed, low, high):
    """A logit that top-p's last token doesn't lie below, close to the highest one of which the tiles' maxima tell it.

    low: such a logit. high: one above all.
    """
    own, enough = tl.exp2(tl.fma(reach, scale, -top)), (needed * (1.0 + SURE)).to(tl.float32)
    least, start = low, tl.maximum(lowest_of(reach, high), low)
    for _ in tl.static_range(SEARCHES):
        tried = tried_between(start, high)
        reached = reached_from(reach, own, tried)
        least = tl.maximum(least, tl.max(tl.where(reached >= enough, tried, least), 0))
        start = tl.maximum(start, least)
        high = tl.minimum(high, tl.min(tl.where(reached >= enough, high, tried), 0))
    return least
