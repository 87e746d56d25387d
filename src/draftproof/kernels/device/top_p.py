"""Where top-p alone ends in a row, of whose tokens it may keep tens of thousands.

A sample of the row tells about where the mass that may be dropped ends, and how far the sample may be off; three pivots
are set there, and the row's tokens above each are weighed, many programs a row, in integers, so that the sum doesn't
depend on how many programs there were. What is weighed is the truth: a sample that misled leaves a wide bracket, which
is narrowed further by pivots at equal distances. What is left of the bracket is listed, and the list is searched.
"""

import triton
import triton.language as tl

from draftproof.kernels.device.boundary import load_list, value_of
from draftproof.kernels.device.passes import WHOLE, whole
from draftproof.kernels.device.rows import load_places, load_tiles, ordered
from draftproof.kernels.device.sums import UNITS

ROUNDS = tl.constexpr(3)  # the sample's, and two more
PIVOTS = tl.constexpr(3)
MASSES = tl.constexpr(4)  # room for the pivots' masses
EDGES = tl.constexpr(8)  # room for a bracket's low end, its pivots and its high end
GROUPED = tl.constexpr(8)  # tiles that are always in one part
AT_ONCE = tl.constexpr(4)  # tiles looked at together
CHUNK = tl.constexpr(64)  # tokens side by side in a sample
CHUNKS = tl.constexpr(64)
HALVINGS = tl.constexpr(12)
MOST_LISTED = tl.constexpr(3500)  # of both halves of a bracket, as a sample has it, for a list of one half
LEAST_SAMPLE = tl.constexpr(8.0)  # tokens' worth of weight below a sampled bound


@triton.jit
def first_bracket(largest, scale, top, total, top_p, vocab_size):
    """(low, high): top-p's last token has low <= z < high. V tokens below low weigh less than what may be dropped."""
    spare = (1.0 - top_p) * total / vocab_size
    depth = tl.log2(spare.to(tl.float32)) - 0.01 + top
    low = depth / scale
    low = tl.maximum(low - 1e-5 * tl.abs(low) - 1e-30, -3.4028234663852886e38)
    return tl.minimum(low, largest), largest + tl.abs(largest) * 1e-6 + 1e-30


@triton.jit
def sampled_pivots(row, shape, scale, top, spare, low, high, TILE: tl.constexpr, HAS_ALLOWED: tl.constexpr,
                   HAS_SPECIAL: tl.constexpr):  # fmt: skip
    """(whether a sample tells below what `spare` of mass lies, and few tokens lie there; three pivots in [low, high]).

    Pivots are there, or evenly spread if it doesn't tell. The outer two are three of the sample's standard errors away.
    """
    num_chunks = tl.cdiv(shape[0] * TILE, CHUNK)
    at = tl.arange(0, CHUNKS * CHUNK)
    chunk = at // CHUNK
    spread_out = (chunk.to(tl.int64) * num_chunks // CHUNKS).to(tl.int32)
    chunk = tl.where(num_chunks > CHUNKS, spread_out, chunk)
    place = tl.where(chunk < num_chunks, chunk * CHUNK + at % CHUNK, shape[0] * TILE)
    z, ids = load_places(row, place, shape[0], shape[1], shape[2], TILE, HAS_ALLOWED, HAS_SPECIAL)
    weights = tl.exp2(tl.fma(z, scale, -top))
    wanted = (spare * tl.minimum(num_chunks, CHUNKS).to(tl.float64) / num_chunks.to(tl.float64)).to(tl.float32)
    a, b = low, high
    for _ in range(HALVINGS):
        middle = 0.5 * a + 0.5 * b
        if tl.sum(tl.where(z < middle, weights, 0.0), 0) > wanted:
            b = middle
        else:
            a = middle
    below = tl.where(z < b, weights, 0.0)
    squares = tl.sum(below * below, 0)
    near = 0.36 / scale  # a quarter of a factor e
    rise = tl.sum(tl.where(tl.abs(z - b) < near, weights, 0.0), 0) / (2.0 * near)
    error = tl.minimum(tl.sqrt(squares) / tl.maximum(rise, 1e-30), high - low)
    told = (wanted * wanted > LEAST_SAMPLE * squares) & (rise > 0)
    q1, q2, q3 = quarters(low, high)
    inside = (z >= b - 3.0 * error) & (z < b + 3.0 * error)
    few = tl.sum(inside.to(tl.int32), 0) * tl.cdiv(num_chunks, CHUNKS) < MOST_LISTED
    return (
        told & few, tl.where(told, tl.minimum(tl.maximum(b - 3.0 * error, low), high), q1),
        tl.where(told, tl.minimum(tl.maximum(b, low), high), q2),
        tl.where(told, tl.minimum(tl.maximum(b + 3.0 * error, low), high), q3),
    )  # fmt: skip


@triton.jit
def quarters(low, high):
    """Three pivots at equal distances, none above the next."""
    p2 = 0.5 * low + 0.5 * high
    return tl.minimum(0.5 * low + 0.5 * p2, p2), p2, tl.maximum(0.5 * p2 + 0.5 * high, p2)


@triton.jit
def store_edges(edges, low, p1, p2, p3, high):
    """Writes a bracket and its pivots."""
    tl.store(edges, low)
    tl.store(edges + 1, p1)
    tl.store(edges + 2, p2)
    tl.store(edges + 3, p3)
    tl.store(edges + 4, high)


@triton.jit
def narrowed(edges, masses, above_mass, needed, inside):
    """(low, high, mass at and above high, which quarter) of the part of a bracket that holds the last token.

    Pointers of any shape, one for each row. masses: int64 masses at and above each pivot, in units of 2^-40.
    """
    m1 = tl.load(masses, mask=inside, other=0).to(tl.float64) / UNITS
    m2 = tl.load(masses + 1, mask=inside, other=0).to(tl.float64) / UNITS
    m3 = tl.load(masses + 2, mask=inside, other=0).to(tl.float64) / UNITS
    quarter = (m1 >= needed).to(tl.int32) + (m2 >= needed).to(tl.int32) + (m3 >= needed).to(tl.int32)
    mass = tl.where(quarter == 0, m1, tl.where(quarter == 1, m2, m3))
    return (
        tl.load(edges + quarter, mask=inside, other=0.0), tl.load(edges + quarter + 1, mask=inside, other=0.0),
        tl.where(quarter == PIVOTS, above_mass, mass), quarter,
    )  # fmt: skip


@triton.jit
def weigh_pivots(row, tile_max, first, last, shape, scale, top, pivots, out, TILE: tl.constexpr,
                 HAS_ALLOWED: tl.constexpr, HAS_SPECIAL: tl.constexpr):  # fmt: skip
    """Adds masses at and above each pivot in groups `first` to `last` - 1 of 8 tiles, in units of 2^-40, to `out`.

    Float32 sums of 32 tokens, always the same ones, are added up as integers: the same for any number of parts.
    """
    m1 = tl.zeros((TILE // 8,), tl.int64)
    m2, m3 = m1, m1
    for start in range(first * GROUPED, tl.minimum(last * GROUPED, shape[0]), AT_ONCE):
        tile = start + tl.arange(0, AT_ONCE)
        reach = tl.load(tile_max + tile, mask=tile < shape[0], other=-float("inf"))
        if tl.max(reach, 0) >= pivots[0]:
            z, ids = load_tiles(row, tl.where(reach >= pivots[0], tile, shape[0]), shape[0], shape[1], shape[2], TILE,
                                HAS_ALLOWED, HAS_SPECIAL)  # fmt: skip
            weights = tl.exp2(tl.fma(z, scale, -top))
            m1 += units_at_least(weights, z, pivots[0], TILE)
            m2 += units_at_least(weights, z, pivots[1], TILE)
            m3 += units_at_least(weights, z, pivots[2], TILE)
    index = tl.arange(0, MASSES)
    masses = tl.where(index == 0, tl.sum(m1, 0), 0) + tl.where(index == 1, tl.sum(m2, 0), 0)
    masses += tl.where(index == 2, tl.sum(m3, 0), 0)
    tl.atomic_add(out + index, masses, sem="relaxed")


@triton.jit
def units_at_least(weights, z, edge, TILE: tl.constexpr):
    """[TILE / 8] int64: weights [AT_ONCE, TILE] of tokens at or above `edge`, in units of 2^-40."""
    shares = tl.reshape(tl.where(z >= edge, weights, 0.0), (AT_ONCE, TILE // 8, 8))
    return (tl.sum(tl.sum(shares, 2), 0).to(tl.float64) * UNITS).to(tl.int64)


@triton.jit
def collect_part(row, tile_max, first, last, shape, low, high, count, list_z, list_ids, GROUP: tl.constexpr,
                 TILE: tl.constexpr, ROOM: tl.constexpr, HAS_ALLOWED: tl.constexpr,
                 HAS_SPECIAL: tl.constexpr):  # fmt: skip
    """Appends the tokens with low <= z < high in tiles `first` to `last` - 1 to a row's list, in any order.

    count: a pointer to how many there are, which goes on counting beyond ROOM.
    """
    for start in range(first, last, GROUP):
        tile = start + tl.arange(0, GROUP)
        reach = tl.load(tile_max + tile, mask=tile < last, other=-float("inf"))
        if tl.max(reach, 0) >= low:
            z, ids = load_tiles(row, tl.where(reach >= low, tile, shape[0]), shape[0], shape[1], shape[2], TILE,
                                HAS_ALLOWED, HAS_SPECIAL)  # fmt: skip
            hit = (z >= low) & (z < high) & (z > -float("inf"))
            # One in a hundred is listed: counting in the list's own counter needs no word between warps.
            place = tl.atomic_add(count + 0 * ids, 1, mask=hit, sem="relaxed")
            tl.store(list_z + place, z + 0.0, mask=hit & (place < ROOM))
            tl.store(list_ids + place, ids, mask=hit & (place < ROOM))


@triton.jit
def keep_of_bracket(list_z, list_ids, count, vocab_size, scale, top, wanted, ROOM: tl.constexpr,
                    KEY_SHIFT: tl.constexpr):  # fmt: skip
    """(bound's logit, bound's id, mass of the list that is kept, enough): the first of a list that weigh `wanted`.

    enough: whether the list is whole and weighs that much.
    """
    z, ids, alive = load_list(list_z, list_ids, count, ROOM)
    key = ordered(z) >> KEY_SHIFT
    units = tl.where(alive, whole(tl.exp2(tl.fma(z, scale, -top))), 0.0).to(tl.int64)
    goal = tl.maximum(tl.ceil(wanted * WHOLE), 1.0).to(tl.int64)
    enough = (count <= ROOM) & (tl.sum(units, 0) >= goal)
    low = tl.min(tl.where(alive, key, 2147483647), 0)
    high = tl.max(tl.where(alive, key, -2147483648), 0)
    id_bound = tl.full((), 0, tl.int32) + vocab_size
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
