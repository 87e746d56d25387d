"""How a row's processed logits are read: by quads of tokens in the pass over everything, by tiles afterwards.

A row is (logits at the row, allowed bits, special bits, exceptions' ids, exceptions' logits); its bits are bits.py's.
Tokens that are not allowed are -inf. Special tokens (penalised, biased: few) are -inf among the plain tiles, and come
again with their processed logits in the tiles of exceptions, whose numbers follow those of the plain ones.
"""

import triton
import triton.language as tl

from draftproof.kernels.device.bits import has_bit, is_special, plain_bits, special_at


@triton.jit
def quads_of(vocab_size, EVEN: tl.constexpr):
    """How many quads a row has. Of a quotient it is known what divides it, and quads are loaded by two."""
    if EVEN:
        num_quads = vocab_size // 4
    else:
        num_quads = (vocab_size + 3) // 4
    return num_quads


@triton.jit
def load_packed(quads_ptr, quad, inside, KIND: tl.constexpr):
    """[QUADS] int64: four 16-bit logits each; four times -inf where not `inside`."""
    if KIND == "bf16":
        packed = tl.load(quads_ptr + quad, mask=inside, other=-35747867511423104)
    else:
        packed = tl.load(quads_ptr + quad, mask=inside, other=-287953294993589248)
    return packed


@triton.jit
def unpack(packed, quad, vocab_size, KIND: tl.constexpr, EVEN: tl.constexpr):
    """z0..z3 [QUADS] float32 of packed quads; -inf beyond the vocabulary."""
    low, high = packed.to(tl.uint32), (packed >> 32).to(tl.uint32)
    if KIND == "bf16":
        z0, z1 = (low << 16).to(tl.float32, bitcast=True), (low & 0xFFFF0000).to(tl.float32, bitcast=True)
        z2, z3 = (high << 16).to(tl.float32, bitcast=True), (high & 0xFFFF0000).to(tl.float32, bitcast=True)
    else:
        z0 = low.to(tl.uint16).to(tl.float16, bitcast=True).to(tl.float32)
        z1 = (low >> 16).to(tl.uint16).to(tl.float16, bitcast=True).to(tl.float32)
        z2 = high.to(tl.uint16).to(tl.float16, bitcast=True).to(tl.float32)
        z3 = (high >> 16).to(tl.uint16).to(tl.float16, bitcast=True).to(tl.float32)
    if not EVEN:
        z1 = tl.where(4 * quad + 1 < vocab_size, z1, -float("inf"))
        z2 = tl.where(4 * quad + 2 < vocab_size, z2, -float("inf"))
        z3 = tl.where(4 * quad + 3 < vocab_size, z3, -float("inf"))
    return z0, z1, z2, z3


@triton.jit
def load_quads(quads_ptr, logits_ptr, quad, num_quads, vocab_size, PACKED: tl.constexpr, KIND: tl.constexpr,
               EVEN: tl.constexpr):  # fmt: skip
    """z0..z3 [QUADS] float32: logits of tokens 4 quad + lane, -inf outside the vocabulary.

    PACKED: `quads_ptr` reads four 16-bit logits as one int64. KIND: "bf16", "fp16" or "fp32".
    EVEN: the vocabulary is a multiple of 4.
    """
    if PACKED:
        packed = load_packed(quads_ptr, quad, quad < num_quads, KIND)
        z0, z1, z2, z3 = unpack(packed, quad, vocab_size, KIND, EVEN)
    else:
        first = logits_ptr + 4 * quad
        z0 = tl.load(first, mask=quad < num_quads, other=-float("inf")).to(tl.float32)
        z1 = tl.load(first + 1, mask=4 * quad + 1 < vocab_size, other=-float("inf")).to(tl.float32)
        z2 = tl.load(first + 2, mask=4 * quad + 2 < vocab_size, other=-float("inf")).to(tl.float32)
        z3 = tl.load(first + 3, mask=4 * quad + 3 < vocab_size, other=-float("inf")).to(tl.float32)
    return z0, z1, z2, z3


@triton.jit
def load_tiles(row, tile, num_tiles, num_plain, vocab_size, TILE: tl.constexpr, HAS_ALLOWED: tl.constexpr,
               HAS_SPECIAL: tl.constexpr):  # fmt: skip
    """(z [G, TILE] float32, token ids [G, TILE] int32) of tiles `tile` [G]; -inf where there is no token."""
    loaded = loaded_of_tiles(row, tile, vocab_size, TILE, HAS_ALLOWED, HAS_SPECIAL)
    return tiles_of_loaded(row, tile, loaded, num_tiles, num_plain, vocab_size, TILE, HAS_ALLOWED, HAS_SPECIAL)


@triton.jit
def loaded_of_tiles(row, tile, vocab_size, TILE: tl.constexpr, HAS_ALLOWED: tl.constexpr, HAS_SPECIAL: tl.constexpr):
    """(logits [G, TILE], allowed bits, special bits [G, TILE / 8]) as memory holds them, for `tiles_of_loaded`."""
    logits = logits_of_tiles(row, tile, vocab_size, TILE)
    allowed, special = bits_of_tiles(row, tile, vocab_size, TILE, HAS_ALLOWED, HAS_SPECIAL)
    return logits, allowed, special


@triton.jit
def logits_of_tiles(row, tile, vocab_size, TILE: tl.constexpr):
    """[G, TILE] logits as memory holds them; -inf beyond the vocabulary."""
    ids = tile[:, None] * TILE + tl.arange(0, TILE)[None, :]
    return tl.load(row[0] + ids, mask=ids < vocab_size, other=-float("inf"))


@triton.jit
def bits_of_tiles(row, tile, vocab_size, TILE: tl.constexpr, HAS_ALLOWED: tl.constexpr, HAS_SPECIAL: tl.constexpr):
    """(allowed bits, special bits), [G, TILE / 8] each; of no meaning where there are none."""
    # Not known to be aligned: else a lane would load several bytes of one word.
    eighth = tl.multiple_of(tile[:, None] * (TILE // 8) + tl.arange(0, TILE // 8)[None, :], [1, 1])
    allowed, special = eighth, eighth
    if HAS_ALLOWED:
        allowed = tl.load(row[1] + eighth, mask=8 * eighth < vocab_size, other=0)
    if HAS_SPECIAL:
        special = tl.load(row[2] + special_at(eighth), mask=8 * eighth < vocab_size, other=0)
    return allowed, special


@triton.jit
def tiles_of_loaded(row, tile, loaded, num_tiles, num_plain, vocab_size, TILE: tl.constexpr, HAS_ALLOWED: tl.constexpr,
                    HAS_SPECIAL: tl.constexpr):  # fmt: skip
    """What `load_tiles` returns, of what was loaded for it."""
    ids = tile[:, None] * TILE + tl.arange(0, TILE)[None, :]
    z = loaded[0].to(tl.float32)
    if HAS_ALLOWED or HAS_SPECIAL:
        bits = tl.full(loaded[1].shape, 255, tl.int32)
        if HAS_ALLOWED:
            bits = loaded[1].to(tl.int32)
        if HAS_SPECIAL:
            bits = bits & ~loaded[2].to(tl.int32)
        plain = (bits[:, :, None] >> tl.arange(0, 8)[None, None, :]) & 1
        z = tl.where(tl.reshape(plain, ids.shape) != 0, z, -float("inf"))
    if HAS_SPECIAL:
        if tl.max(tile, 0) >= num_plain:
            place = ids - num_plain * TILE
            extra = (place >= 0) & (ids < num_tiles * TILE)
            z = tl.where(extra, tl.load(row[4] + place, mask=extra, other=-float("inf")), z)
            ids = tl.where(extra, tl.load(row[3] + place, mask=extra, other=0), ids)
    return z, ids


@triton.jit
def load_eighths(row, eighth, num_tiles, num_plain, vocab_size, TILE: tl.constexpr, HAS_ALLOWED: tl.constexpr,
                 HAS_SPECIAL: tl.constexpr):  # fmt: skip
    """[G, N, 8] float32 of eighths [G, N]: logits of eight places side by side, each run in one lane; -inf where no
    token is."""
    loaded = loaded_eighths(row, eighth, vocab_size, HAS_ALLOWED, HAS_SPECIAL)
    return eighths_of_loaded(row, eighth, loaded, num_tiles, num_plain, TILE, HAS_ALLOWED, HAS_SPECIAL)


@triton.jit
def loaded_eighths(row, eighth, vocab_size, HAS_ALLOWED: tl.constexpr, HAS_SPECIAL: tl.constexpr):
    """(logits [G, N, 8], bits of plain tokens that are allowed [G, N]) as memory holds them, for
    `eighths_of_loaded`."""
    place = eighth[:, :, None] * 8 + tl.arange(0, 8)[None, None, :]
    bits = eighth
    if HAS_ALLOWED or HAS_SPECIAL:
        bits = plain_bits(row, tl.multiple_of(eighth, [1, 1]), 8 * eighth < vocab_size, HAS_ALLOWED, HAS_SPECIAL)
    return tl.load(row[0] + place, mask=place < vocab_size, other=-float("inf")), bits


@triton.jit
def eighths_of_loaded(row, eighth, loaded, num_tiles, num_plain, TILE: tl.constexpr, HAS_ALLOWED: tl.constexpr,
                      HAS_SPECIAL: tl.constexpr):  # fmt: skip
    """What `load_eighths` returns, of what was loaded for it."""
    z = loaded[0].to(tl.float32)
    if HAS_ALLOWED or HAS_SPECIAL:
        z = tl.where(((loaded[1][:, :, None] >> tl.arange(0, 8)[None, None, :]) & 1) != 0, z, -float("inf"))
    if HAS_SPECIAL:
        if tl.max(tl.max(eighth, 1), 0) >= num_plain * (TILE // 8):
            place = eighth[:, :, None] * 8 + tl.arange(0, 8)[None, None, :]
            extra = place - num_plain * TILE
            inside = (extra >= 0) & (place < num_tiles * TILE)
            z = tl.where(inside, tl.load(row[4] + extra, mask=inside, other=-float("inf")), z)
    return z


@triton.jit
def load_places(row, places, num_tiles, num_plain, vocab_size, TILE: tl.constexpr, HAS_ALLOWED: tl.constexpr,
                HAS_SPECIAL: tl.constexpr):  # fmt: skip
    """(z float32, token ids int32) at `places` (any shape), tile * TILE + place in it; -inf where no token is."""
    ids = places
    inside = places < vocab_size
    z = tl.load(row[0] + ids, mask=inside, other=-float("inf")).to(tl.float32)
    if HAS_ALLOWED:
        z = tl.where(has_bit(row[1], ids, inside), z, -float("inf"))
    if HAS_SPECIAL:
        z = tl.where(is_special(row, ids, inside), -float("inf"), z)
    if HAS_SPECIAL:
        place = places - num_plain * TILE
        extra = (place >= 0) & (places < num_tiles * TILE)
        z = tl.where(extra, tl.load(row[4] + place, mask=extra, other=-float("inf")), z)
        ids = tl.where(extra, tl.load(row[3] + place, mask=extra, other=0), ids)
    return z, ids


@triton.jit
def larger(a, b):
    """The larger of two, NaN if either is."""
    return tl.maximum(a, b, propagate_nan=tl.PropagateNan.ALL)


@triton.jit
def max_or_nan(values):
    """The largest of `values` [N]; NaN if one is NaN. As integers, which a warp compares in one step."""
    return unordered(tl.max(tl.where(values != values, 2147483647, ordered(values)), 0))


@triton.jit
def ordered(z):
    """An int32 for each float32, in the same order: -0 below +0, -inf the lowest that occurs."""
    bits = z.to(tl.int32, bitcast=True)
    return bits ^ ((bits >> 31) & 0x7FFFFFFF)


@triton.jit
def unordered(key):
    """The float32 of an `ordered` integer."""
    return (key ^ ((key >> 31) & 0x7FFFFFFF)).to(tl.float32, bitcast=True)


@triton.jit
def highest(values):
    """The largest of `values` [N], none of them NaN. As integers, which a warp compares in one step."""
    return unordered(tl.max(ordered(values), 0))


@triton.jit
def coarse(z):
    """The upper 16 bits of the lowest bfloat16 that is at least z."""
    bits = z.to(tl.int32, bitcast=True)
    return ((bits + tl.where(bits < 0, 0, 0xFFFF)) >> 16).to(tl.int16)


@triton.jit
def level(largest, scale):
    """What weights are relative to: a rounded product, the same wherever it is made. 0 where nothing is left."""
    return tl.where(largest == -float("inf"), 0.0, largest * scale)


@triton.jit
def above(z, ids, z_bound, id_bound):
    """Which tokens rank before (z_bound, id_bound): a larger logit, or the same and a lower id."""
    return (z > z_bound) | ((z == z_bound) & (ids < id_bound))
