"""The few tokens of a row that reach a bound: first the groups that may hold one, by their maxima, then the tokens.

A group is the tokens of one slot in one tile, numbered tile * SLOTS + slot. One program of one warp lists a row. Lanes
take tiles' maxima of groups word by word, then a whole group each: all that memory brings of them is asked for at once,
hits are bits of a lane's own words, and little crosses lanes. Nothing goes through shared memory, since a kernel that
needs some waits for processors that no kernel without any is left on.
"""

import triton
import triton.language as tl

from draftproof.kernels.device.bits import bits_of_group
from draftproof.kernels.device.passes import LANES, lowest_bit, places_of
from draftproof.kernels.device.race import SLOTS
from draftproof.kernels.device.rows import highest, load_quads, quads_of

NO_FOUR = tl.constexpr(-35747867511423104)  # four times -inf in bfloat16
TURNS = tl.constexpr(32)  # of special tokens that a lane looks at before it enters any
LOWEST = tl.constexpr(-3.4028234663852886e38)  # of finite logits


@triton.jit
def list_groups(tiles, num_listed, group_max, groups, z_bound, LIST: tl.constexpr):
    """Writes the listed tiles' groups that may hold a logit of `z_bound`; returns how many, also beyond LIST.

    Four groups are a word of memory, a tile's words lie side by side, and lanes take words in turn: few lines a load.
    """
    FOURS: tl.constexpr = SLOTS // 4
    fours = group_max.to(tl.pointer_type(tl.int64), bitcast=True)
    bound, lane = tl.maximum(z_bound, LOWEST), tl.arange(0, LANES)
    num_found = tl.zeros((), tl.int32)
    coming = tl.load(tiles + lane, mask=lane < num_listed, other=0)
    words = words_of(fours, coming, num_listed)
    for start in range(0, num_listed, LANES):
        low, high = tl.zeros((LANES,), tl.int32), tl.zeros((LANES,), tl.int32)
        for turn in tl.static_range(FOURS):
            hits = hits_of_four(words[turn], bound)
            if turn < 8:
                low |= hits << (4 * turn)
            else:
                high |= hits << (4 * turn - 32)
        # The next tiles' are on their way while these are entered.
        tile, after = coming, start + LANES
        coming = tl.load(tiles + after + lane, mask=after + lane < num_listed, other=0)
        words = words_of(fours, coming, num_listed - after)
        place, num_found = places_of(bits_set(low) + bits_set(high), num_found)
        while tl.max(((low | high) != 0).to(tl.int32), 0) > 0:
            hit, is_low = (low | high) != 0, low != 0
            bit = lowest_bit(tl.where(is_low, low, high)) + tl.where(is_low, 0, 32)
            word = (bit >> 2) * LANES + lane
            first = tl.gather(tile, tl.where(hit, word // FOURS, 0), 0) * SLOTS + 4 * (word % FOURS)
            tl.store(groups + place, first + (bit & 3), mask=hit & (place < LIST))
            high = tl.where(is_low, high, high & (high - 1))
            place, low = place + 1, low & (low - 1)
    tl.debug_barrier()
    return num_found


@triton.jit
def words_of(fours, tile, num_listed):
    """SLOTS / 4 times [LANES] int64: in turn the words of tiles [LANES], of which the first `num_listed` are there."""
    FOURS: tl.constexpr = SLOTS // 4
    words = ()
    for turn in tl.static_range(FOURS):
        word = turn * LANES + tl.arange(0, LANES)
        mine = tl.gather(tile, word // FOURS, 0) * FOURS + word % FOURS
        words = words + (tl.load(fours + mine, mask=word // FOURS < num_listed, other=NO_FOUR),)
    return words


@triton.jit
def hits_of_four(four, bound):
    """`hits_of_quad` of the four bfloat16 in a word."""
    low, high = four.to(tl.int32), (four >> 32).to(tl.int32)
    z0, z1 = (low << 16).to(tl.float32, bitcast=True), (low & -65536).to(tl.float32, bitcast=True)
    z2, z3 = (high << 16).to(tl.float32, bitcast=True), (high & -65536).to(tl.float32, bitcast=True)
    return hits_of_quad(z0, z1, z2, z3, bound)


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
def collect(row, groups, num_groups, shape, z_bound, list_z, list_ids, special, TILE: tl.constexpr, LIST: tl.constexpr,
            HAS_ALLOWED: tl.constexpr, HAS_SPECIAL: tl.constexpr, PACKED: tl.constexpr, KIND: tl.constexpr,
            EVEN: tl.constexpr):  # fmt: skip
    """Writes (logit, id) of the groups' tokens of at least `z_bound`, and of special tokens; returns (how many there
    are, also beyond LIST, the largest logit of those). special: the first of `some_special`, with HAS_SPECIAL."""
    GROUP: tl.constexpr = TILE // (4 * SLOTS)
    bound = tl.maximum(z_bound, LOWEST)
    num_found, most = tl.zeros((), tl.int32), tl.full((), -float("inf"), tl.float32)
    largest = tl.full((LANES,), -float("inf"), tl.float32)
    if HAS_SPECIAL:
        num_found, most = collect_special(row, special, (shape[0] - shape[1]) * TILE, bound, list_z, list_ids, LIST)
    for start in range(0, num_groups, LANES):
        there = start + tl.arange(0, LANES) < num_groups
        group, quads = quads_of_groups(row, groups, start, num_groups, shape[2], TILE, PACKED, KIND, EVEN)
        tile, slot = group // SLOTS, group % SLOTS
        hits = tl.zeros((LANES,), tl.int32)
        for index in tl.static_range(GROUP):
            z0, z1, z2, z3 = quads[index]
            hits |= hits_of_quad(z0, z1, z2, z3, bound) << (8 * index)
        if HAS_ALLOWED or HAS_SPECIAL:
            hits = hits & bits_of_group(row, tile, slot, there, shape[2], GROUP, SLOTS, HAS_ALLOWED, HAS_SPECIAL)
        place, num_found = places_of(bits_set(hits), num_found)
        while tl.max((hits != 0).to(tl.int32), 0) > 0:
            hit, bit = hits != 0, lowest_bit(hits)
            ids = tile * TILE + 4 * slot + (bit >> 3) * (4 * SLOTS) + (bit & 7)
            z = tl.load(row[0] + ids, mask=hit, other=-float("inf")).to(tl.float32)
            largest = tl.maximum(largest, z)
            tl.store(list_z + place, z + 0.0, mask=hit & (place < LIST))
            tl.store(list_ids + place, ids, mask=hit & (place < LIST))
            place, hits = place + 1, hits & (hits - 1)
    tl.debug_barrier()
    return num_found, tl.maximum(most, highest(largest))


@triton.jit
def quads_of_groups(row, groups, start, num_groups, vocab_size, TILE: tl.constexpr, PACKED: tl.constexpr,
                    KIND: tl.constexpr, EVEN: tl.constexpr):  # fmt: skip
    """([LANES] groups of the list from `start` on, their quads' logits, four [LANES] for each of a slot's quads)."""
    num_quads, quads_ptr = quads_of(vocab_size, EVEN), row[0]
    if PACKED:
        quads_ptr = row[0].to(tl.pointer_type(tl.int64), bitcast=True)
    at = start + tl.arange(0, LANES)
    group = tl.load(groups + at, mask=at < num_groups, other=0)
    quads = ()
    for index in tl.static_range(TILE // (4 * SLOTS)):
        quad = group // SLOTS * (TILE // 4) + index * SLOTS + group % SLOTS
        quad = tl.where(at < num_groups, quad, num_quads)
        quads = quads + (load_quads(quads_ptr, row[0], quad, num_quads, vocab_size, PACKED, KIND, EVEN),)
    return group, quads


@triton.jit
def some_special(row, start, num_entries):
    """TURNS times [LANES] logits of special tokens from entry `start` on; -inf beyond the last."""
    values = ()
    for turn in tl.static_range(TURNS):
        entry = start + turn * LANES + tl.arange(0, LANES)
        values = values + (tl.load(row[4] + entry, mask=entry < num_entries, other=-float("inf")),)
    return values


@triton.jit
def collect_special(row, coming, num_entries, bound, list_z, list_ids, LIST: tl.constexpr):
    """As `collect`, of a row's special tokens, all of which are looked at. coming: the first of `some_special`."""
    lane = tl.arange(0, LANES)
    num_found = tl.zeros((), tl.int32)
    largest = tl.full((LANES,), -float("inf"), tl.float32)
    for start in range(0, num_entries, TURNS * LANES):
        hits = tl.zeros((LANES,), tl.int32)
        for turn in tl.static_range(TURNS):
            hits |= (coming[turn] >= bound).to(tl.int32) << turn
        coming = some_special(row, start + TURNS * LANES, num_entries)
        place, num_found = places_of(bits_set(hits), num_found)
        while tl.max((hits != 0).to(tl.int32), 0) > 0:
            hit, mine = hits != 0, start + lowest_bit(hits) * LANES + lane
            z = tl.load(row[4] + mine, mask=hit, other=-float("inf"))
            largest = tl.maximum(largest, z)
            tl.store(list_z + place, z + 0.0, mask=hit & (place < LIST))
            tl.store(list_ids + place, tl.load(row[3] + mine, mask=hit, other=0), mask=hit & (place < LIST))
            place, hits = place + 1, hits & (hits - 1)
    return num_found, highest(largest)
