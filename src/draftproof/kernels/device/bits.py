"""Which tokens a mask allows, and which are special: one bit for each. Rows are as in rows.py."""

import triton
import triton.language as tl


@triton.jit
def has_bit(bits, ids, inside):
    """Whether the bits of tokens are set; read where `inside`."""
    return ((tl.load(bits + ids // 8, mask=inside, other=0).to(tl.int32) >> (ids % 8)) & 1) != 0


@triton.jit
def special_at(eighth):
    """Which byte of a request's special bits is of eight tokens: of 1,024 tokens, four bytes for each of 32 lanes."""
    return (eighth & -128) | ((eighth & 31) << 2) | ((eighth >> 5) & 3)


@triton.jit
def is_special(row, ids, inside):
    """Whether tokens are special; read where `inside`."""
    byte = tl.load(row[2] + special_at(ids // 8), mask=inside, other=0).to(tl.int32)
    return ((byte >> (ids % 8)) & 1) != 0


@triton.jit
def plain_bits(row, eighth, inside, HAS_ALLOWED: tl.constexpr, HAS_SPECIAL: tl.constexpr):
    """int32 whose bits 0..7 say which of eight tokens are allowed and not special."""
    bits = tl.full(eighth.shape, 255, tl.int32)
    if HAS_ALLOWED:
        bits = tl.load(row[1] + eighth, mask=inside, other=0).to(tl.int32)
    if HAS_SPECIAL:
        bits = bits & ~tl.load(row[2] + special_at(eighth), mask=inside, other=0).to(tl.int32)
    return bits


@triton.jit
def special_of_tile(row, tile, inside, GROUP: tl.constexpr, SLOTS: tl.constexpr):
    """[SLOTS / 2] int32: a tile's special bits, a byte for each group of its lane's; none where not `inside`."""
    lane = tl.arange(0, SLOTS // 2)
    there = lane < tl.where(inside, SLOTS // 2, 0)
    if GROUP == 4:
        words = row[2].to(tl.pointer_type(tl.int32), bitcast=True)
        bits = tl.load(words + tile * (SLOTS // 2) + lane, mask=there, other=0)
    else:
        bits = tl.zeros((SLOTS // 2,), tl.int32)
        for group in tl.static_range(GROUP):
            byte = special_at((tile * GROUP + group) * (SLOTS // 2) + lane)
            bits |= tl.load(row[2] + byte, mask=there, other=0).to(tl.int32) << (8 * group)
    return bits


@triton.jit
def lanes_of_words(words, GROUP: tl.constexpr, SLOTS: tl.constexpr):
    """[SLOTS / 2] int32: a tile's words of a mask, [TILE / 32] uint32, in the order of `special_of_tile`."""
    lane = tl.arange(0, SLOTS // 2)
    lanes = tl.zeros((SLOTS // 2,), tl.uint32)
    for group in tl.static_range(GROUP):
        word = tl.gather(words, group * (SLOTS // 8) + lane // 4, 0)
        lanes |= ((word >> (8 * (lane % 4)).to(tl.uint32)) & 255) << (8 * group)
    return lanes.to(tl.int32, bitcast=True)


@triton.jit
def bits_of_quads(lanes, GROUP: tl.constexpr, SLOTS: tl.constexpr):
    """[GROUP, SLOTS] int32 of `special_of_tile`'s order: bits 0..3 are of each quad's tokens, with others above."""
    bits = lanes[None, :] >> (8 * tl.arange(0, GROUP)[:, None])
    return tl.reshape(tl.join(bits, bits >> 4), (GROUP, SLOTS))


@triton.jit
def bits_of_group(row, tile, slot, inside, vocab_size, GROUP: tl.constexpr, SLOTS: tl.constexpr,
                  HAS_ALLOWED: tl.constexpr, HAS_SPECIAL: tl.constexpr):  # fmt: skip
    """[N] int32: bit 8 q + i says whether token i of a slot's q-th quad in a tile is allowed and not special."""
    lane = slot // 2
    bits = tl.full(tile.shape, -1, tl.int32)
    if HAS_ALLOWED:
        bits = tl.zeros(tile.shape, tl.int32)
        for group in tl.static_range(GROUP):
            eighth = (tile * GROUP + group) * (SLOTS // 2) + lane
            there = inside & (8 * eighth < vocab_size)
            bits |= tl.load(row[1] + eighth, mask=there, other=0).to(tl.int32) << (8 * group)
    if HAS_SPECIAL:
        if GROUP == 4:
            words = row[2].to(tl.pointer_type(tl.int32), bitcast=True)
            bits = bits & ~tl.load(words + tile * (SLOTS // 2) + lane, mask=inside, other=0)
        else:
            for group in tl.static_range(GROUP):
                byte = special_at((tile * GROUP + group) * (SLOTS // 2) + lane)
                bits = bits & ~(tl.load(row[2] + byte, mask=inside, other=0).to(tl.int32) << (8 * group))
    return bits >> (4 * (slot % 2))


@triton.jit
def plain_only(row, quad, num_quads, z0, z1, z2, z3, HAS_ALLOWED: tl.constexpr, HAS_SPECIAL: tl.constexpr):
    """Logits of a quad's four tokens, -inf where they are not allowed or special."""
    if HAS_ALLOWED or HAS_SPECIAL:
        bits = plain_bits(row, quad // 2, quad < num_quads, HAS_ALLOWED, HAS_SPECIAL)
        z0, z1, z2, z3 = only(bits >> (4 * (quad % 2)), z0, z1, z2, z3)
    return z0, z1, z2, z3


@triton.jit
def only(bits, z0, z1, z2, z3):
    """Logits of a quad's four tokens, -inf where their bit isn't set."""
    z0 = tl.where((bits & 1) != 0, z0, -float("inf"))
    z1 = tl.where((bits & 2) != 0, z1, -float("inf"))
    z2 = tl.where((bits & 4) != 0, z2, -float("inf"))
    z3 = tl.where((bits & 8) != 0, z3, -float("inf"))
    return z0, z1, z2, z3
