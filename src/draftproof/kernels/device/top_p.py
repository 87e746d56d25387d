"""Where top-p alone ends in a row, of whose tokens it may keep tens of thousands.

A sample of the row tells about where the mass that may be dropped ends, and how far the sample may be off. One pass,
which a row's programs share, weighs what lies above either end of that bracket, in integers, so that the sum doesn't
depend on how many programs there are, and lists what lies inside. What is weighed is the truth: where the sample
misled, the last of the row's programs moves the bracket and passes over the row again. Then it searches the list.
"""

import triton
import triton.language as tl

from draftproof.kernels.device.boundary import value_of
from draftproof.kernels.device.passes import WHOLE, whole
from draftproof.kernels.device.rows import load_eighths, load_places, ordered
from draftproof.kernels.device.sums import UNITS

AT_ONCE = tl.constexpr(4)  # tiles looked at together
MOST_STEPS = tl.constexpr(8)  # so often in one part
CHUNK = tl.constexpr(64)  # tokens side by side in a sample
MOST_CHUNKS = tl.constexpr(64)
HALVINGS = tl.constexpr(11)
NARROWINGS = tl.constexpr(5)
ERRORS = tl.constexpr(5.0)  # a sample's standard errors to either side
MOST_LISTED = tl.constexpr(1600)  # to either side, as a sample has it
TURNS = tl.constexpr(8)  # passes over a row, at most


@triton.jit
def first_bracket(largest, scale, top, total, top_p, vocab_size):
    """(low, high): top-p's last token has low <= z < high. V tokens below low weigh less than what may be dropped."""
    spare = (1.0 - top_p) * total / vocab_size
    depth = tl.log2(spare.to(tl.float32)) - 0.01 + top
    low = depth / scale
    low = tl.maximum(low - 1e-5 * tl.abs(low) - 1e-30, -3.4028234663852886e38)
    return tl.minimum(low, largest), largest + tl.abs(largest) * 1e-6 + 1e-30


@triton.jit
def sampled_bracket(row, shape, scale, top, spare, low, high, TILE: tl.constexpr, TILES: tl.constexpr,
                    HAS_ALLOWED: tl.constexpr, HAS_SPECIAL: tl.constexpr):  # fmt: skip
    """(low, high, a sampled logit) of a part of a bracket: around where a sample has `spare` of mass below, and of few
    tokens; that logit is the last one below which the sample has less."""
    ALL: tl.constexpr = TILES * TILE // CHUNK
    CHUNKS: tl.constexpr = ALL if ALL < MOST_CHUNKS else MOST_CHUNKS
    num_chunks = tl.cdiv(shape[0] * TILE, CHUNK)
    at = tl.arange(0, CHUNKS * CHUNK)
    chunk = at // CHUNK
    chunk = tl.where(num_chunks > CHUNKS, chunk * num_chunks // CHUNKS, chunk)
    place = tl.where(chunk < num_chunks, chunk * CHUNK + at % CHUNK, shape[0] * TILE)
    z, ids = load_places(row, place, shape[0], shape[1], shape[2], TILE, HAS_ALLOWED, HAS_SPECIAL)
    weights = tl.exp2(tl.fma(z, scale, -top))
    share = tl.minimum(num_chunks, CHUNKS).to(tl.float32) / num_chunks.to(tl.float32)
    wanted = spare.to(tl.float32) * share
    a, b = low, high
    for _ in range(HALVINGS):
        middle = 0.5 * a + 0.5 * b
        if tl.sum(tl.where(z < middle, weights, 0.0), 0) > wanted:
            b = middle
        else:
            a = middle
    below = tl.where(z < b, weights, 0.0)
    near = 0.36 / scale  # a quarter of a factor e
    rise = tl.sum(tl.where(tl.abs(z - b) < near, weights, 0.0), 0) / (2.0 * near)
    error = tl.where(rise > 0, tl.sqrt(tl.sum(below * below, 0)) / tl.maximum(rise, 1e-30), high - low)
    error = ERRORS * tl.minimum(error, high - low)
    most = (share * MOST_LISTED).to(tl.int32)
    down, most_down = tl.zeros((), tl.float32), tl.minimum(error, b - low)
    up, most_up = tl.zeros((), tl.float32), tl.minimum(error, high - b)
    # The whole width first, then halves of what is left of it. Two counts of at most 2^13 in one sum.
    by = tl.full((), 1.0, tl.float32)
    for _ in range(NARROWINGS):
        further_down, further_up = down + by * (most_down - down), up + by * (most_up - up)
        counts = tl.where((z < b) & (z >= b - further_down), 1, 0)
        counts += tl.where((z >= b) & (z < b + further_up), 65536, 0)
        count = tl.sum(counts, 0)
        few_down, few_up = (count & 65535) <= most, (count >> 16) <= most
        down, most_down = tl.where(few_down, further_down, down), tl.where(few_down, most_down, further_down)
        up, most_up = tl.where(few_up, further_up, up), tl.where(few_up, most_up, further_up)
        by = tl.full((), 0.5, tl.float32)
    return tl.maximum(b - down, low), tl.minimum(b + up, high), tl.max(tl.where(z < b, z + 0.0, low), 0)


@triton.jit
def weigh_part(row, tile_max, part, shape, scale, top, low, high, sums, eighths, TILE: tl.constexpr,
               TILES: tl.constexpr, ROOM: tl.constexpr, HAS_ALLOWED: tl.constexpr,
               HAS_SPECIAL: tl.constexpr):  # fmt: skip
    """Adds masses at and above `low` and `high` in one part of a row's tiles, in units of 2^-40, to `sums`, and lists
    the eighths that have tokens between them, in any order.

    Float32 sums of 8 tokens, always the same ones, are added up as integers: the same for any number of programs.
    eighths: 256 times which of a row's runs of 8 places, and a bit for each token that is meant.
    sums: pointers to two masses, and to how many eighths there are and 2^32 times how many tokens, which goes on
    counting beyond ROOM.
    """
    ALL: tl.constexpr = (TILES + AT_ONCE - 1) // AT_ONCE
    STEPS: tl.constexpr = ALL if ALL < MOST_STEPS else MOST_STEPS
    bit = 1 << tl.arange(0, 8)[None, None, :]
    within = tl.arange(0, TILE // 8)[None, :]
    at_low = tl.zeros((AT_ONCE, TILE // 8), tl.int64)
    at_high, counted, hits = at_low, at_low, at_low
    for step in tl.static_range(STEPS):
        tile = tl.arange(0, AT_ONCE) + (part * STEPS + step) * AT_ONCE
        reach = tl.load(tile_max + tile, mask=tile < shape[0], other=-float("inf"))
        eighth = tl.where(reach >= low, tile, shape[0])[:, None] * (TILE // 8) + within
        z = load_eighths(row, eighth, shape[0], shape[1], shape[2], TILE, HAS_ALLOWED, HAS_SPECIAL)
        weights = tl.exp2(tl.fma(z, scale, -top))
        reaches, exceeds = z >= low, z >= high
        at_low += in_units(tl.sum(tl.where(reaches, weights, 0.0), 2))
        at_high += in_units(tl.sum(tl.where(exceeds, weights, 0.0), 2))
        mine = tl.sum(tl.where(reaches & (exceeds == 0) & (z > -float("inf")), bit, 0), 2)
        counted += tl.where(mine > 0, (num_bits(mine).to(tl.int64) << 32) + 1, 0)
        hits |= mine.to(tl.int64) << (8 * step)
    # One addition for all that this part lists: each of many to the same address would wait for the one before.
    num_hits = (counted & 0xFFFFFFFF).to(tl.int32)
    up_to = tl.cumsum(tl.reshape(num_hits, (AT_ONCE * TILE // 8,)), 0)
    start = tl.atomic_add(sums + 2, tl.sum(tl.sum(counted, 1), 0), sem="relaxed").to(tl.int32)
    index = tl.reshape(up_to, (AT_ONCE, TILE // 8)) - num_hits + start
    for step in tl.static_range(STEPS):
        mine = ((hits >> (8 * step)) & 255).to(tl.int32)
        tile = tl.arange(0, AT_ONCE) + (part * STEPS + step) * AT_ONCE
        eighth = tile[:, None] * (TILE // 8) + within
        tl.store(eighths + index, eighth * 256 + mine, mask=(mine > 0) & (index < ROOM))
        index += (mine > 0).to(tl.int32)
    tl.atomic_add(sums, tl.sum(tl.sum(at_low, 1), 0), sem="relaxed")
    tl.atomic_add(sums + 1, tl.sum(tl.sum(at_high, 1), 0), sem="relaxed")


@triton.jit
def in_units(mass):
    """Masses in whole units of 2^-40."""
    return (mass.to(tl.float64) * UNITS).to(tl.int64)


@triton.jit
def num_bits(bits):
    """How many of the lowest eight bits are set."""
    bits = bits - ((bits >> 1) & 0x55)
    bits = (bits & 0x33) + ((bits >> 2) & 0x33)
    return (bits + (bits >> 4)) & 0x0F


@triton.jit
def list_places(eighths, count, places, ROOM: tl.constexpr):
    """Writes the places of the tokens that `count` <= ROOM eighths name, ROOM at most."""
    at = tl.arange(0, ROOM)
    entry = tl.load(eighths + at, mask=at < count, other=0)
    index = tl.cumsum(num_bits(entry & 255), 0) - num_bits(entry & 255)
    for place in tl.static_range(8):
        hit = ((entry >> place) & 1) != 0
        tl.store(places + index, (entry >> 8) * 8 + place, mask=hit & (index < ROOM))
        index += hit.to(tl.int32)
    tl.debug_barrier()


@triton.jit
def settled_bracket(row, tile_max, part, shape, scale, top, largest, total, top_p, bracket, sums, lists,
                    TILE: tl.constexpr, TILES: tl.constexpr, ROOM: tl.constexpr, PARTS: tl.constexpr,
                    KEY_SHIFT: tl.constexpr, HAS_ALLOWED: tl.constexpr, HAS_SPECIAL: tl.constexpr):  # fmt: skip
    """(whether this program is the last of its row's, what is found, the bracket's low end, the mass above the bracket,
    how many tokens it has). The last one alone goes on, if the sample's bracket wasn't it.

    Found: 0 nothing; 1 a bracket, whose places are listed; 2 one logit, that of all tokens in the bracket.
    bracket: [3], as `sampled_bracket` has it. sums: [4] int64: as in `weigh_part`, and how many programs have ended; 0.
    lists: [2, ROOM].
    """
    needed = top_p * total
    least, most = first_bracket(largest, scale, top, total, top_p, shape[2])
    low, high, likely = tl.load(bracket), tl.load(bracket + 1), tl.load(bracket + 2)
    mine, found = tl.zeros((), tl.int32), tl.zeros((), tl.int32)
    count, above_mass = tl.zeros((), tl.int32), tl.zeros((), tl.float64)
    first, last = part, part + 1
    turn, tied = tl.zeros((), tl.int32), tl.zeros((), tl.int32)
    index = tl.arange(0, 4)
    while turn < TURNS:
        for each in range(first, last):
            weigh_part(row, tile_max, each, shape, scale, top, low, high, sums, lists, TILE, TILES, ROOM, HAS_ALLOWED,
                       HAS_SPECIAL)  # fmt: skip
        tl.debug_barrier()
        if turn == 0:
            one = tl.full((), 1, tl.int64)
            mine = (tl.atomic_add(sums + 3, one, sem="acq_rel") == PARTS - 1).to(tl.int32)
            tl.debug_barrier()
        turn += 1
        if mine == 0:
            turn = tl.full((), TURNS, tl.int32)
        else:
            sum_of = tl.atomic_add(sums + index, tl.zeros((4,), tl.int64), sem="acq_rel")
            low_mass = tl.sum(tl.where(index == 0, sum_of, 0), 0).to(tl.float64) / UNITS
            above_mass = tl.sum(tl.where(index == 1, sum_of, 0), 0).to(tl.float64) / UNITS
            listed = tl.sum(tl.where(index == 2, sum_of, 0), 0)
            num_eighths, count = (listed & 0xFFFFFFFF).to(tl.int32), (listed >> 32).to(tl.int32)
            width = tl.maximum(high - low, (most - least) / 64)
            if above_mass >= needed:
                least, low = high, high
                high = tl.minimum(high + 2 * width, most)
                tied = tl.zeros((), tl.int32)
            elif low_mass < needed:
                most, high = low, low
                low = tl.maximum(low - 2 * width, least)
                tied = tl.zeros((), tl.int32)
            elif (count > ROOM) & (tied == 0):
                least, most = low, high
                low, high = low + width / 3, high - width / 3
                if (likely >= least) & (likely < most):
                    # Too many are likely to be equal.
                    tied = tl.full((), 1, tl.int32)
                    low = value_of(ordered(likely) >> KEY_SHIFT, KEY_SHIFT)
                    high = value_of((ordered(likely) >> KEY_SHIFT) + 1, KEY_SHIFT)
                    likely = most
            else:
                found = 1 + tied
                turn = tl.full((), TURNS, tl.int32)
                if tied == 0:
                    list_places(lists, num_eighths, lists + ROOM, ROOM)
            if turn < TURNS:
                first, last = tl.zeros((), tl.int32), tl.zeros((), tl.int32) + PARTS
                tl.atomic_add(sums + index, tl.where(index < 3, -sum_of, 0), sem="acq_rel")
                tl.debug_barrier()
    return mine > 0, found, low, above_mass, count


@triton.jit
def keep_of_bracket(row, places, count, shape, scale, top, wanted, TILE: tl.constexpr, ROOM: tl.constexpr,
                    KEY_SHIFT: tl.constexpr, HAS_ALLOWED: tl.constexpr, HAS_SPECIAL: tl.constexpr):  # fmt: skip
    """(bound's logit, bound's id, mass of the list that is kept, enough): the first of listed places that weigh
    `wanted`.

    enough: whether the list weighs that much, which sums in float32 may have said of too short a one.
    """
    at = tl.arange(0, ROOM)
    alive = at < count
    place = tl.load(places + at, mask=alive, other=shape[0] * TILE)
    z, ids = load_places(row, place, shape[0], shape[1], shape[2], TILE, HAS_ALLOWED, HAS_SPECIAL)
    z += 0.0
    key = ordered(z) >> KEY_SHIFT
    units = tl.where(alive, whole(tl.exp2(tl.fma(z, scale, -top))), 0.0).to(tl.int64)
    goal = tl.maximum(tl.ceil(wanted * WHOLE), 1.0).to(tl.int64)
    enough = tl.sum(units, 0) >= goal
    low = tl.min(tl.where(alive, key, 2147483647), 0)
    high = tl.max(tl.where(alive, key, -2147483648), 0)
    id_bound = tl.full((), 0, tl.int32) + shape[2]
    mass = tl.zeros((), tl.float64)
    if enough:
        while low < high:
            middle = (low | high) - ((low ^ high) >> 1)
            if tl.sum(tl.where(key >= middle, units, 0), 0) >= goal:
                low = middle
            else:
                high = middle - 1
        before = tl.sum(tl.where(key > low, units, 0), 0)
        tied = alive & (key == low)
        one = tl.maximum(tl.max(tl.where(tied, units, 0), 0), 1)
        num_tied = tl.sum(tied.to(tl.int32), 0)
        num_kept = tl.minimum((goal - before + one - 1) // one, num_tied.to(tl.int64)).to(tl.int32)
        mass = (before + num_kept.to(tl.int64) * one).to(tl.float64) / WHOLE
        if num_kept < num_tied:
            first, last = tl.full((), 0, tl.int32), id_bound
            while first < last:
                # Three counts of at most 2^13 in one sum: a quarter of what is left of the ids in each turn.
                quarter = (last - first) >> 2
                id1, id2, id3 = first + quarter, first + 2 * quarter, first + 3 * quarter
                packed = (ids <= id1).to(tl.int64) + ((ids <= id2).to(tl.int64) << 20)
                packed += (ids <= id3).to(tl.int64) << 40
                counts = tl.sum(tl.where(tied, packed, 0), 0)
                in1 = (counts & 0xFFFFF) >= num_kept
                in2 = ((counts >> 20) & 0xFFFFF) >= num_kept
                in3 = (counts >> 40) >= num_kept
                last = tl.where(in1, id1, tl.where(in2, id2, tl.where(in3, id3, last)))
                first = tl.where(in1, first, tl.where(in2, id1 + 1, tl.where(in3, id2 + 1, id3 + 1)))
            id_bound = first
    return value_of(low, KEY_SHIFT), id_bound, mass, enough
