"""The few tokens of a row that reach a bound: first the groups that may hold one, by their maxima, then the tokens.

A group is the tokens of one slot in one tile, numbered tile * SLOTS + slot. One program lists a row. A lane takes a
whole tile, and then a whole group: all that memory brings of them is asked for at once, hits are bits of a lane's own
words, and nothing crosses lanes but how many there are.
"""

import triton
import triton.language as tl

from draftproof.kernels.device.bits import bits_of_group
from draftproof.kernels.device.passes import LANES, lowest_bit, places_of
from draftproof.kernels.device.race import SLOTS
from draftproof.kernels.device.rows import highest, load_quads, quads_of

NO_FOUR = tl.constexpr(-35747867511423104)  # four times -inf in bfloat16
LOWEST = tl.constexpr(-3.4028234663852886e38)  # of finite logits


@triton.jit
def list_groups(tiles, num_listed, group_max, groups, z_bound, LIST: tl.constexpr):
    """Writes the listed tiles' groups that may hold a logit of `z_bound`; returns how many, also beyond LIST."""
    fours = group_max.to(tl.pointer_type(tl.int64), bitcast=True)
    bound = tl.maximum(z_bound, LOWEST)
    num_found = tl.zeros((), tl.int32)
    for start in range(0, num_listed, LANES):
        at = start + tl.arange(0, LANES)
        inside = at < num_listed
        tile = tl.load(tiles + at, mask=inside, other=0)
        mine = fours + tile * (SLOTS // 4)
        low, high = hits_of_maxima(mine, inside, bound), hits_of_maxima(mine + SLOTS // 8, inside, bound)
        place, num_found = places_of(bits_set(low) + bits_set(high), num_found)
        while tl.max(((low | high) != 0).to(tl.int32), 0) > 0:
            hit, is_low = (low | high) != 0, low != 0
            slot = lowest_bit(tl.where(is_low, low, high)) + tl.where(is_low, 0, SLOTS // 2)
            tl.store(groups + place, tile * SLOTS + slot, mask=hit & (place < LIST))
            high = tl.where(is_low, high, high & (high - 1))
            place, low = place + 1, low & (low - 1)
    tl.debug_barrier()
    return num_found


@triton.jit
def hits_of_maxima(fours, inside, bound):
    """[N] int32: which of the SLOTS / 2 groups at `fours` [N], four bfloat16 each, reach the bound, a bit for each."""
    hits = tl.zeros(inside.shape, tl.int32)
    for at in tl.static_range(SLOTS // 8):
        four = tl.load(fours + at, mask=inside, other=NO_FOUR)
        low, high = four.to(tl.int32), (four >> 32).to(tl.int32)
        z0, z1 = (low << 16).to(tl.float32, bitcast=True), (low & -65536).to(tl.float32, bitcast=True)
        z2, z3 = (high << 16).to(tl.float32, bitcast=True), (high & -65536).to(tl.float32, bitcast=True)
        hits |= hits_of_quad(z0, z1, z2, z3, bound) << (4 * at)
    return hits


@triton.jit
def hits_of_quad(z0, z1, z2, z3, bound):
    """[N] int32 whose bits 0 to 3 say which of four values reach the bound."""
    first = (z0 >= bound).to(tl.int32) | ((z1 >= bound).to(tl.int32) << 1)
    return first | ((z2 >= bound).to(tl.int32) << 2) | ((z3 >= bound).to(tl.int32) << 3)


@triton.jit
def bits_set(words):
    """How many bits of [N] int32 words are set."""
    bits = words.to(tl.uint32, bitcast=True)
    bits = bits - ((bits >> 1) & 0x55555555)
    bits = (bits & 0x33333333) + ((bits >> 2) & 0x33333333)
    return ((((bits + (bits >> 4)) & 0x0F0F0F0F) * 0x01010101) >> 24).to(tl.int32)


@triton.jit
def collect(row, groups, num_groups, shape, z_bound, list_z, list_ids, TILE: tl.constexpr, LIST: tl.constexpr,
            HAS_ALLOWED: tl.constexpr, HAS_SPECIAL: tl.constexpr, PACKED: tl.constexpr, KIND: tl.constexpr,
            EVEN: tl.constexpr):  # fmt: skip
    """Writes (logit, id) of the groups' tokens of at least `z_bound`; returns (how many there are, also beyond LIST,
    the largest logit of those)."""
    GROUP: tl.constexpr = TILE // (4 * SLOTS)
    bound, num_quads = tl.maximum(z_bound, LOWEST), quads_of(shape[2], EVEN)
    quads = row[0]
    if PACKED:
        quads = row[0].to(tl.pointer_type(tl.int64), bitcast=True)
    num_found = tl.zeros((), tl.int32)
    largest = tl.full((LANES,), -float("inf"), tl.float32)
    for start in range(0, num_groups, LANES):
        at = start + tl.arange(0, LANES)
        group = tl.load(groups + at, mask=at < num_groups, other=shape[0] * SLOTS)
        tile, slot = group // SLOTS, group % SLOTS
        plain = tile < shape[1]
        hits = tl.zeros((LANES,), tl.int32)
        for index in tl.static_range(GROUP):
            quad = tl.where(plain, tile * (TILE // 4) + index * SLOTS + slot, num_quads)
            z0, z1, z2, z3 = load_quads(quads, row[0], quad, num_quads, shape[2], PACKED, KIND, EVEN)
            hits |= hits_of_quad(z0, z1, z2, z3, bound) << (8 * index)
        if HAS_ALLOWED or HAS_SPECIAL:
            hits = hits & bits_of_group(row, tile, slot, plain, shape[2], GROUP, SLOTS, HAS_ALLOWED, HAS_SPECIAL)
        if HAS_SPECIAL:
            extra = (plain == 0) & (at < num_groups)
            if tl.max(extra.to(tl.int32), 0) > 0:
                first = row[4] + (tile - shape[1]) * TILE + 4 * slot
                for index in tl.static_range(GROUP):
                    z0, z1, z2, z3 = load_four(first + index * (4 * SLOTS), extra)
                    hits |= hits_of_quad(z0, z1, z2, z3, bound) << (8 * index)
        place, num_found = places_of(bits_set(hits), num_found)
        while tl.max((hits != 0).to(tl.int32), 0) > 0:
            hit, bit = hits != 0, lowest_bit(hits)
            ids = tile * TILE + 4 * slot + (bit >> 3) * (4 * SLOTS) + (bit & 7)
            z = tl.load(row[0] + ids, mask=hit & plain, other=-float("inf")).to(tl.float32)
            if HAS_SPECIAL:
                mine, entry = hit & (plain == 0), ids - shape[1] * TILE
                z = tl.where(mine, tl.load(row[4] + entry, mask=mine, other=0.0), z)
                ids = tl.where(mine, tl.load(row[3] + entry, mask=mine, other=0), ids)
            largest = tl.maximum(largest, z)
            tl.store(list_z + place, z + 0.0, mask=hit & (place < LIST))
            tl.store(list_ids + place, ids, mask=hit & (place < LIST))
            place, hits = place + 1, hits & (hits - 1)
    tl.debug_barrier()
    return num_found, highest(largest)


@triton.jit
def load_four(first, inside):
    """Four logits at `first` [N] and behind; -inf where not `inside`."""
    return (tl.load(first, mask=inside, other=-float("inf")), tl.load(first + 1, mask=inside, other=-float("inf")),
            tl.load(first + 2, mask=inside, other=-float("inf")),
            tl.load(first + 3, mask=inside, other=-float("inf")))  # fmt: skip
