"""Which tokens of a row the filters keep: all that rank up to a last one, (logit, id), and their mass.

Order of the default chain: min-p, then top-k with ties kept, then top-p over the survivors by probability, then id.
Every filter keeps a prefix of one ranking, so what is kept is one bound. It is searched for over the integers that
order float32 (`KEY_SHIFT` low bits are the same in all logits and are left out), first among the few tokens above the
k-th largest of the tiles' maxima, which at least k tokens reach, and over all of the row's tiles if these don't do.
The few are found by the maxima of groups of tokens, in the tiles that reach that value.
"""

import triton
import triton.language as tl

from draftproof.kernels.device.listing import collect, list_groups, some_special
from draftproof.kernels.device.passes import UNIT, WHOLE, count_and_mass, list_tiles, whole
from draftproof.kernels.device.rows import above, level, ordered, unordered

BY_COUNT = tl.constexpr(0)  # what `keep_of_row` asks of a row, in this order: top-k's last logit,
WHOLE_MASS = tl.constexpr(1)  # the mass of what top-k and min-p keep,
BY_MASS = tl.constexpr(2)  # top-p's last logit,
BEFORE = tl.constexpr(3)  # the mass before its ties,
UP_TO = tl.constexpr(4)  # how many ties there are,
BY_ID = tl.constexpr(5)  # and the last of them that is kept
NOTHING = tl.constexpr(6)

COARSE = tl.constexpr(16)  # low bits of whole keys, which are searched after the others
SHORT = tl.constexpr(128)  # tokens of a list that are looked at together; most lists have no more


@triton.jit
def value_of(key, KEY_SHIFT: tl.constexpr):
    """The float32 of an `ordered` integer whose low bits are left out: zeros, or ones below 0."""
    return unordered((key << KEY_SHIFT) | ((key >> 31) & ((1 << KEY_SHIFT) - 1)))


@triton.jit
def score_of(z, largest, temperature):
    """(z - max) / T in float32, rounded as the host rounds it."""
    return tl.div_rn(z - largest, temperature)


@triton.jit
def kth_tile_max(tile_max, num_tiles, k, TILES: tl.constexpr):
    """A value that at least k tiles' maxima reach, close below the k-th largest; -inf if there are fewer."""
    tile = tl.arange(0, TILES)
    reach = tl.load(tile_max + tile, mask=tile < num_tiles, other=-float("inf"))
    there = reach > -float("inf")
    key = tl.where(there, ordered(reach) >> 16, -32768)
    low, high = tl.min(tl.where(there, key, 32767), 0), tl.max(key, 0)
    enough = tl.sum(there.to(tl.int32), 0) >= k
    while low < high:
        middle = (low | high) - ((low ^ high) >> 1)
        if tl.sum((key >= middle).to(tl.int32), 0) >= k:
            low = middle
        else:
            high = middle - 1
    return tl.where(enough, unordered(low << 16), -float("inf"))


@triton.jit
def load_list(list_z, list_ids, num_found, LIST: tl.constexpr):
    """(logits, ids, which are there), [LIST] each."""
    place = tl.arange(0, LIST)
    there = place < num_found
    z = tl.load(list_z + place, mask=there, other=-float("inf"))
    return z, tl.load(list_ids + place, mask=there, other=0), there


@triton.jit
def count_and_mass_of_list(list_z, list_ids, num_found, scale, top, z_bound, id_bound):
    """As `count_and_mass`, of a list."""
    count, mass = tl.zeros((SHORT,), tl.int32), tl.zeros((SHORT,), tl.int64)
    for first in range(0, num_found, SHORT):
        z, ids, there = load_list(list_z + first, list_ids + first, num_found - first, SHORT)
        counted = there & above(z, ids, z_bound, id_bound)
        count += counted.to(tl.int32)
        mass += tl.where(counted, whole(tl.exp2(tl.fma(z, scale, -top))), 0.0).to(tl.int64)
    return tl.sum(count, 0), tl.sum(mass, 0).to(tl.float64) * UNIT


@triton.jit
def sum_of_units(units):
    """The sum, an int64, of up to 1,024 `whole` weights: two sums of 32 bits, which a warp makes in one step each."""
    low = tl.sum((units & 0x3FFFFF).to(tl.uint32), 0)
    high = tl.sum((units >> 22).to(tl.uint32), 0)
    return (high.to(tl.int64) << 22) + low.to(tl.int64)


@triton.jit
def middle_of(low, high, BITS: tl.constexpr):
    """An integer above `low` and not above `high`, whose lowest bits are 0; their other bits differ."""
    low, high = low >> BITS, high >> BITS
    return ((low | high) - ((low ^ high) >> 1)) << BITS


@triton.jit
def range_of(key, alive, low, high):
    """(lowest, highest) of the keys from `low` to `high`: often one, where both are near each other."""
    inside = alive & (key >= low) & (key <= high)
    return tl.min(tl.where(inside, key, 2147483647), 0), tl.max(tl.where(inside, key, -2147483648), 0)


@triton.jit
def keep_of_tokens(z, ids, alive, vocab_size, scale, top, k, top_p, KEY_SHIFT: tl.constexpr):
    """(bound's logit, bound's id, mass) for the tokens [N] that are `alive`. k: 0 without top-k."""
    key = ordered(z) >> KEY_SHIFT
    units = tl.where(alive, whole(tl.exp2(tl.fma(z, scale, -top))), 0.0).to(tl.int64)
    lowest = tl.min(tl.where(alive, key, 2147483647), 0)
    highest = tl.max(tl.where(alive, key, -2147483648), 0)
    if k > 0:
        low, high = lowest, highest
        if KEY_SHIFT == 0:
            while low >> COARSE < high >> COARSE:
                middle = middle_of(low, high, COARSE)
                if tl.sum((alive & (key >= middle)).to(tl.int32), 0) >= k:
                    low = middle
                else:
                    high = middle - 1
            low, high = range_of(key, alive, low, high)
        while low < high:
            middle = (low | high) - ((low ^ high) >> 1)
            if tl.sum((alive & (key >= middle)).to(tl.int32), 0) >= k:
                low = middle
            else:
                high = middle - 1
        alive = alive & (key >= low)
        units = tl.where(alive, units, 0)
        lowest = low
    kept = sum_of_units(units)
    needed = top_p * (kept.to(tl.float64) * UNIT)
    goal = tl.ceil(needed * WHOLE).to(tl.int64)
    id_bound = tl.full((), 0, tl.int32) + vocab_size
    bound = lowest
    if top_p < 1.0:
        low, high = lowest, highest
        if KEY_SHIFT == 0:
            while low >> COARSE < high >> COARSE:
                middle = middle_of(low, high, COARSE)
                if sum_of_units(tl.where(key >= middle, units, 0)) >= goal:
                    low = middle
                else:
                    high = middle - 1
            low, high = range_of(key, alive, low, high)
        while low < high:
            middle = (low | high) - ((low ^ high) >> 1)
            if sum_of_units(tl.where(key >= middle, units, 0)) >= goal:
                low = middle
            else:
                high = middle - 1
        bound = low
        before = sum_of_units(tl.where(key > low, units, 0))
        tied = alive & (key == low)
        num_tied = tl.sum(tied.to(tl.int32), 0)
        tied_units = sum_of_units(tl.where(tied, units, 0))
        num_kept, kept = num_tied, before + tied_units
        if num_tied > 1:
            one = tl.maximum(tied_units // num_tied, 1)
            num_kept = tl.minimum(tl.maximum((goal - before + one - 1) // one, 1), num_tied.to(tl.int64)).to(tl.int32)
            kept = before + num_kept.to(tl.int64) * one
        if num_kept < num_tied:
            # Few are tied.
            id_bound = tl.full((), -1, tl.int32)
            for _ in range(0, num_kept):
                id_bound = tl.min(tl.where(tied & (ids > id_bound), ids, vocab_size), 0)
    mass = kept.to(tl.float64) * UNIT
    return value_of(bound, KEY_SHIFT), id_bound, mass


@triton.jit
def keep_of_row(row, tiles, tile_max, shape, scale, top, largest, least, k, top_p, TILES: tl.constexpr,
                GROUP: tl.constexpr, TILE: tl.constexpr, KEY_SHIFT: tl.constexpr, HAS_ALLOWED: tl.constexpr,
                HAS_SPECIAL: tl.constexpr, listed=None, wanted=None, z_most=None):  # fmt: skip
    """(bound's logit, bound's id, mass), searched for in the row itself. least: the lowest logit that min-p keeps.

    wanted, z_most: the mass that top-p keeps at least, where it is known, and a logit that its last token is not above.
    listed: a list (logits, ids, how many) of all of the row's tokens from `least` on, which is searched instead.

    One pass after the other, each for one question, by one piece of code: every copy of a pass is slow to compile.
    """
    low, high = ordered(tl.maximum(least, -3.4028234663852886e38)) >> KEY_SHIFT, ordered(largest) >> KEY_SHIFT
    highest = high
    first, last = tl.full((), 0, tl.int32), tl.full((), 0, tl.int32) + shape[2]
    id_bound = last
    mass, needed = tl.full((), 0.0, tl.float64), tl.full((), 0.0, tl.float64)
    num_before, num_kept = tl.full((), 0, tl.int32), tl.full((), 0, tl.int32)
    asked = tl.where(k > 0, BY_COUNT, WHOLE_MASS)
    if wanted is not None:
        high = ordered(z_most) >> KEY_SHIFT
        needed = wanted
        asked = tl.where(low < high, BY_MASS, BEFORE)
    while asked < NOTHING:
        searches = (asked == BY_COUNT) | (asked == BY_MASS)
        key = tl.where(searches, (low | high) - ((low ^ high) >> 1), low)
        middle = (first + last) >> 1
        up_to = tl.where(asked == BEFORE, 0, tl.where(asked == BY_ID, middle, shape[2]) + 1)
        z_bound = value_of(key, KEY_SHIFT)
        if listed is not None:
            count, share = count_and_mass_of_list(listed[0], listed[1], listed[2], scale, top, z_bound, up_to)
        else:
            num_listed = list_tiles(tiles, tile_max, shape[0], z_bound, TILES)
            count, share = count_and_mass(row, tiles, num_listed, shape, scale, top, z_bound, up_to, GROUP, TILE,
                                          HAS_ALLOWED, HAS_SPECIAL)  # fmt: skip
        if searches:
            reached = tl.where(asked == BY_COUNT, count >= k, share >= needed)
            low, high = tl.where(reached, key, low), tl.where(reached, high, key - 1)
            asked += tl.where(low < high, 0, 1)
        elif asked == WHOLE_MASS:
            mass, needed, high = share, top_p * share, highest
            asked = tl.where(top_p < 1.0, BY_MASS, NOTHING)
        elif asked == BEFORE:
            num_before, mass = count, share
            asked += 1
        elif asked == UP_TO:
            one = whole(tl.exp2(tl.fma(z_bound, scale, -top))).to(tl.float64) * UNIT
            num_tied = count - num_before
            most = num_tied.to(tl.float64)
            num_kept = tl.minimum(tl.maximum(tl.ceil((needed - mass) / one), 1.0), most).to(tl.int32)
            mass += num_kept.to(tl.float64) * one
            asked = tl.where(num_kept < num_tied, BY_ID, NOTHING)
        else:
            reached = count - num_before >= num_kept
            first, last = tl.where(reached, first, middle + 1), tl.where(reached, middle, last)
            id_bound = first
            asked += tl.where(first < last, 0, 1)
    return value_of(low, KEY_SHIFT), id_bound, mass


@triton.jit
def least_of_min_p(largest, temperature, min_score, KEY_SHIFT: tl.constexpr):
    """The lowest logit that min-p keeps: the lowest whose score, as the host rounds it, reaches `min_score`."""
    low = ordered(tl.full((), -3.4028234663852886e38, tl.float32)) >> KEY_SHIFT
    high = ordered(largest) >> KEY_SHIFT
    while low < high:
        middle = (low & high) + ((low ^ high) >> 1)
        if score_of(value_of(middle, KEY_SHIFT), largest, temperature) >= min_score:
            high = middle
        else:
            low = middle + 1
    return value_of(low, KEY_SHIFT)


@triton.jit
def least_of(largest, temperature, min_score, KEY_SHIFT: tl.constexpr):
    """The lowest logit that min-p keeps; -inf without min-p."""
    least = tl.full((), -float("inf"), tl.float32)
    if min_score > -float("inf"):
        least = least_of_min_p(largest, temperature, min_score, KEY_SHIFT)
    return least


@triton.jit
def keep_by_list(row, tiles, tile_max, group_max, groups, list_z, list_ids, shape, scale, top, largest, temperature, k,
                 top_p, min_score, TILES: tl.constexpr, TILE: tl.constexpr, LIST: tl.constexpr,
                 KEY_SHIFT: tl.constexpr, HAS_ALLOWED: tl.constexpr, HAS_SPECIAL: tl.constexpr, PACKED: tl.constexpr,
                 KIND: tl.constexpr, EVEN: tl.constexpr, LOOSE: tl.constexpr = False):  # fmt: skip
    """(bound's logit, bound's id, mass, how many tokens the list holds; 0 if the list isn't enough, what masses are
    relative to: the row's largest logit).

    For rows with top-k or min-p. k: 0 without top-k. top_p: 1 without. min_score: log min_p, or -inf. PACKED, KIND,
    EVEN: as in `load_quads`. LOOSE: maxima, `largest` among them, may be special tokens' in rows with top-k alone. What
    is listed holds the largest.
    """
    # Special tokens are on their way while maxima are searched.
    special = ()
    if HAS_SPECIAL:
        special = some_special(row, 0, (shape[0] - shape[1]) * TILE)
    least = least_of(largest, temperature, min_score, KEY_SHIFT)
    wanted = tl.where(k > 0, k, shape[0] + 1)
    if LOOSE:
        wanted = tl.where(k > 0, tl.minimum(2 * k - k // 5, tl.maximum(k, shape[0] // 2)), wanted)
    num_found, short = tl.full((), 0, tl.int32), tl.full((), 1, tl.int32)
    start, most = tl.full((), 0.0, tl.float32), tl.full((), 0.0, tl.float32)
    while short > 0:
        start = tl.maximum(least, kth_tile_max(tile_max, shape[0], wanted, TILES))
        num_listed = list_tiles(tiles, tile_max, shape[1], start, TILES)
        num_groups = list_groups(tiles, num_listed, group_max, groups, start, LIST)
        num_found = tl.full((), LIST + 1, tl.int32)
        if num_groups <= LIST:
            num_found, most = collect(row, groups, num_groups, shape, start, list_z, list_ids, special, TILE, LIST,
                                      HAS_ALLOWED, HAS_SPECIAL, PACKED, KIND, EVEN)  # fmt: skip
        short = tl.zeros((), tl.int32)
        if LOOSE:
            # More of the maxima were special tokens' than were taken beyond k: k more are taken.
            fewer = (num_found < k) & (start > -float("inf"))
            short = (fewer & (min_score == -float("inf"))).to(tl.int32)
            wanted += k
    if LOOSE:
        largest = most
        top = level(largest, scale)
    z_bound = tl.full((), -float("inf"), tl.float32)
    id_bound = tl.full((), 0, tl.int32)
    mass = tl.full((), 0.0, tl.float64)
    if num_found <= SHORT:
        z, ids, alive = load_list(list_z, list_ids, num_found, SHORT)
        z_bound, id_bound, mass = keep_of_tokens(z, ids, alive, shape[2], scale, top, k, top_p, KEY_SHIFT)
    elif num_found <= LIST:
        z_bound, id_bound, mass = keep_of_row(
            row, tiles, tile_max, shape, scale, top, largest, start, k, top_p, TILES, 1, TILE, KEY_SHIFT, HAS_ALLOWED,
            HAS_SPECIAL, (list_z, list_ids, num_found))  # fmt: skip
    return z_bound, id_bound, mass, tl.where(num_found <= LIST, num_found, 0), largest
