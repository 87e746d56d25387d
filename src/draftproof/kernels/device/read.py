"""The pass over everything: one read of each row, into a maximum and a mass for each tile and a race for each split.

A program of one warp reads the tiles of one split of one row. The mass of a tile is relative to its own maximum, so
nothing is rescaled and nothing overflows, and a row's bits depend on its own data alone.
"""

import triton
import triton.language as tl

from draftproof.kernels.device.before import mass_of, store_masses
from draftproof.kernels.device.bits import bits_of_quads, lanes_of_words, only, special_of_tile
from draftproof.kernels.device.noise import philox4, screened
from draftproof.kernels.device.overlap import wait_for_previous
from draftproof.kernels.device.race import SLOTS, empty_slots, entered, finished, nothing_found
from draftproof.kernels.device.rows import coarse, larger, level, load_packed, load_quads, max_or_nan, quads_of, unpack

NONE = tl.constexpr(0)
FEW = tl.constexpr(1)
MOST = tl.constexpr(2)
ALL = tl.constexpr(3)


@triton.jit
def first_of_split(quads_ptr, split, tiles_per_split, vocab_size, TILE: tl.constexpr, PACKED: tl.constexpr,
                   KIND: tl.constexpr, EVEN: tl.constexpr):  # fmt: skip
    """The packed quads of a split's first tile. On their way while the request's parameters are still being read."""
    within = tl.arange(0, TILE // (4 * SLOTS))[:, None] * SLOTS + tl.arange(0, SLOTS)[None, :]
    quad = split * tiles_per_split * (TILE // 4) + within
    coming = within.to(tl.int64)
    if PACKED:
        coming = load_packed(quads_ptr, quad, quad < quads_of(vocab_size, EVEN), KIND)
    return coming


@triton.jit
def allowed_words(row, tile, last, vocab_size, TILE: tl.constexpr):
    """[TILE / 32] uint32: a tile's words of the mask; all bits set from tile `last` on and beyond the vocabulary."""
    word = tile * (TILE // 32) + tl.arange(0, TILE // 32)
    words = row[1].to(tl.pointer_type(tl.uint32), bitcast=True)
    return tl.load(words + word, mask=32 * word < tl.where(tile < last, vocab_size, 0), other=0xFFFFFFFF)


@triton.jit
def share_of(words):
    """NONE, FEW, MOST or ALL: how many of a tile's tokens are allowed; FEW where a word of it allows none."""
    least = tl.min(words, 0)
    of_part = tl.where(least == 0, tl.where(tl.max(words, 0) == 0, NONE, FEW), MOST)
    return tl.where(least == 0xFFFFFFFF, ALL, of_part)


@triton.jit
def read_split(row, quads_ptr, coming, noise, scale, races, split, tile_max, tile_mass, group_max, num_tiles,
               tiles_per_split, vocab_size, TILE: tl.constexpr, PACKED: tl.constexpr, KIND: tl.constexpr,
               EVEN: tl.constexpr, HAS_ALLOWED: tl.constexpr, HAS_SPECIAL: tl.constexpr, RACE: tl.constexpr,
               MASS: tl.constexpr, GROUPS: tl.constexpr, OVERLAP: tl.constexpr, loose=False,
               AHEAD: tl.constexpr = True, tile_before=None, token=None,
               BEFORE: tl.constexpr = False):  # fmt: skip
    """(what is found in one split, whether it holds a NaN). Pointers are at the row's own entries.

    coming: its first tile, from `first_of_split`. scale: log2(e) / T, or 1 at T = 0. races: whether this row's noise is
    raced here; 0 for all without RACE.
    Writes tile_max (logits, NaN where a tile has one; infinite for raced rows without MASS, which don't ask) and
    tile_mass (sum of 2^(y - largest y of the tile)). GROUPS: rows that aren't raced write group_max, the largest logit
    of each slot of each tile, too.
    Special tokens are left out by their bits, which the kernel before this one sets. A raced row without MASS asks for
    them only when it scores: till then they are bounds that promise too much, and reading goes on beside that kernel.
    loose: so do this row's maxima and masses, which leave no special token out. AHEAD: special tokens' bits are asked a
    tile ahead, as is worth its while where most rows leave these tokens out.
    What a mask leaves of a tile is asked of its words first: all of it, nothing, or tokens to be told apart. Where most
    are left, a raced row without MASS tells quads apart and no more: a bound may promise too much there, too.
    BEFORE: of tiles that may rank before `token`, the mass that does is written to tile_before (before.py).
    """
    GROUP: tl.constexpr = TILE // (4 * SLOTS)
    num_quads = quads_of(vocab_size, EVEN)
    first = split * tiles_per_split
    found = nothing_found()
    faulty = found[0][0] != found[0][0]
    measures = (races == 0) | MASS
    leaves_out = measures & (loose == 0) & HAS_SPECIAL
    if HAS_SPECIAL:
        if leaves_out:
            wait_for_previous(OVERLAP)
    if first < num_tiles:
        last = tl.minimum(first + tiles_per_split, num_tiles)
        within = tl.arange(0, GROUP)[:, None] * SLOTS + tl.arange(0, SLOTS)[None, :]
        slots = empty_slots(first * GROUP)
        if HAS_ALLOWED:
            next_words = allowed_words(row, first, last, vocab_size, TILE)
            next_share = share_of(next_words)
            coming_words = allowed_words(row, first + 1, last, vocab_size, TILE)
        if HAS_SPECIAL and AHEAD:
            next_special = special_of_tile(row, first, leaves_out, GROUP, SLOTS)
        for tile in range(first, last):
            quad = tile * (TILE // 4) + within
            if HAS_ALLOWED:
                words, next_words = next_words, coming_words
                share, next_share = next_share, share_of(next_words)
                coming_words = allowed_words(row, tile + 2, last, vocab_size, TILE)
            if PACKED:
                # The next tile is on its way while this one is worked on.
                z0, z1, z2, z3 = unpack(coming, quad, vocab_size, KIND, EVEN)
                after = quad + TILE // 4
                coming_end = tl.where(tile + 1 < last, num_quads, 0)
                if HAS_ALLOWED:
                    coming_end = tl.where(next_share != NONE, coming_end, 0)
                coming = load_packed(quads_ptr, after, after < coming_end, KIND)
            else:
                z0, z1, z2, z3 = load_quads(quads_ptr, row[0], quad, num_quads, vocab_size, PACKED, KIND, EVEN)
            applies = leaves_out
            if HAS_SPECIAL and AHEAD:
                special = next_special
                next_special = special_of_tile(row, tile + 1, leaves_out & (tile + 1 < last), GROUP, SLOTS)
            if HAS_ALLOWED:
                applies = applies | ((share != ALL) & (measures | (share == FEW)))
            if HAS_ALLOWED or HAS_SPECIAL:
                if applies:
                    lanes = tl.full((SLOTS // 2,), -1, tl.int32)
                    if HAS_ALLOWED:
                        lanes = lanes_of_words(words, GROUP, SLOTS)
                    if HAS_SPECIAL:
                        if not AHEAD:
                            special = special_of_tile(row, tile, leaves_out, GROUP, SLOTS)
                        lanes = lanes & ~special
                    z0, z1, z2, z3 = only(bits_of_quads(lanes, GROUP, SLOTS), z0, z1, z2, z3)
            of_quad = larger(larger(z0, z1), larger(z2, z3))
            racing = races
            if HAS_ALLOWED:
                racing = races & (share != NONE)
                if RACE and not MASS:
                    if races & (share == MOST):
                        lanes = lanes_of_words(words, GROUP, SLOTS)
                        of_quad = tl.where((bits_of_quads(lanes, GROUP, SLOTS) & 15) != 0, of_quad, -float("inf"))
            if measures:
                of_group = tl.reduce(of_quad, 0, larger)
                largest = max_or_nan(of_group)
                tl.store(tile_max + tile, largest)
                if GROUPS:
                    if races == 0:
                        tl.store(group_max + tile * SLOTS + tl.arange(0, SLOTS), coarse(of_group))
                if MASS:
                    top = level(largest, scale)
                    if BEFORE:
                        store_masses(tile_mass, tile_before, tile, largest, token, z0, z1, z2, z3, scale, top, TILE)
                    else:
                        tl.store(tile_mass + tile, mass_of(z0, z1, z2, z3, scale, top))
            else:
                tl.store(tile_max + tile, float("inf"))
            if RACE:
                if racing:
                    k0, k1, k2, k3 = philox4(quad.to(tl.uint32), noise[0], noise[1], noise[2], noise[3], noise[4])
                    bounds = screened(of_quad, scale, tl.minimum(tl.minimum(k0, k1), tl.minimum(k2, k3)))
                    slots = entered(bounds, tile * GROUP, slots, GROUP)
        if RACE:
            if races:
                if HAS_SPECIAL:
                    wait_for_previous(OVERLAP)
                found, faulty = finished(row, quads_ptr, slots, (first * GROUP, last * GROUP), noise, scale, vocab_size,
                                         PACKED, KIND, EVEN, HAS_ALLOWED, HAS_SPECIAL, MASS)  # fmt: skip
    return found, faulty


@triton.jit
def store_found(found, faulty, racers, split, RACERS: tl.constexpr):
    """Writes a split's three best scores, NaN for the best if it is faulty, and the ids and logits of the two best.

    racers: (scores [3, RACERS], ids [2, RACERS], logits [2, RACERS]), pointers.
    """
    scores, ids, logits = found
    tl.store(racers[0] + split, tl.where(faulty, float("nan"), scores[0]))
    tl.store(racers[0] + RACERS + split, scores[1])
    tl.store(racers[0] + 2 * RACERS + split, scores[2])
    tl.store(racers[1] + split, ids[0])
    tl.store(racers[1] + RACERS + split, ids[1])
    tl.store(racers[2] + split, logits[0])
    tl.store(racers[2] + RACERS + split, logits[1])
