"""The last of many equal tokens that top-p keeps: rows may hold more of them than a list does."""

import triton
import triton.language as tl

from draftproof.kernels.device.passes import WHOLE, whole
from draftproof.kernels.device.rows import load_tiles

AT_ONCE = tl.constexpr(4)  # tiles looked at together


@triton.jit
def keep_of_ties(row, tile_max, counts, shape, scale, top, z_bound, num_tied, wanted, TILES: tl.constexpr,
                 TILE: tl.constexpr, HAS_ALLOWED: tl.constexpr, HAS_SPECIAL: tl.constexpr):  # fmt: skip
    """(bound's id, mass) of the first of `num_tied` tokens of logit `z_bound` that weigh `wanted`: one at least.

    counts: [TILES] int32, scratch. A tied token is counted in the tile that its id falls in, and the id is searched for
    in one such tile: a special token, which stands elsewhere, is looked for there by its id.
    """
    one = whole(tl.exp2(tl.fma(z_bound, scale, -top))).to(tl.float64) / WHOLE
    most = num_tied.to(tl.float64)
    num_kept = tl.minimum(tl.maximum(tl.ceil(wanted / one), 1.0), most).to(tl.int32)
    id_bound = tl.zeros((), tl.int32) + shape[2]
    if num_kept < num_tied:
        for start in range(0, shape[1], AT_ONCE):
            tile = start + tl.arange(0, AT_ONCE)
            reach = tl.load(tile_max + tile, mask=tile < shape[1], other=-float("inf"))
            z, ids = load_tiles(row, tl.where(reach >= z_bound, tile, shape[0]), shape[0], shape[1], shape[2], TILE,
                                HAS_ALLOWED, HAS_SPECIAL)  # fmt: skip
            tl.store(counts + tile, tl.sum((z == z_bound).to(tl.int32), 1), mask=tile < shape[1])
        tl.debug_barrier()
        if HAS_SPECIAL:
            for special in range(shape[1], shape[0]):
                z, ids = load_tiles(row, tl.full((1,), 0, tl.int32) + special, shape[0], shape[1], shape[2], TILE,
                                    HAS_ALLOWED, HAS_SPECIAL)  # fmt: skip
                tl.atomic_add(counts + ids // TILE, 1, mask=(z == z_bound) & (ids >= 0))
            tl.debug_barrier()
        tile = tl.arange(0, TILES)
        up_to = tl.cumsum(tl.load(counts + tile, mask=tile < shape[1], other=0), 0)
        of_last = tl.min(tl.where(up_to >= num_kept, tile, TILES - 1), 0)
        before = tl.max(tl.where(tile < of_last, up_to, 0), 0)
        first, last = of_last * TILE, tl.minimum((of_last + 1) * TILE, shape[2]) - 1
        while first < last:
            middle = (first + last) >> 1
            count = tl.zeros((), tl.int32) + before
            special = of_last
            while special < shape[0]:
                z, ids = load_tiles(row, tl.full((1,), 0, tl.int32) + special, shape[0], shape[1], shape[2], TILE,
                                    HAS_ALLOWED, HAS_SPECIAL)  # fmt: skip
                counted = (z == z_bound) & (ids >= of_last * TILE) & (ids <= middle)
                count += tl.sum(tl.sum(counted.to(tl.int32), 1), 0)
                special = tl.maximum(special + 1, shape[1])
            if count >= num_kept:
                last = middle
            else:
                first = middle + 1
        id_bound = first
    return id_bound, num_kept.to(tl.float64) * one
