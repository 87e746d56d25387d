"""`target_probs` on the device, after rows have been read and bounded: the law is written out."""

import triton
import triton.language as tl

from draftproof.kernels.device.bits import is_special
from draftproof.kernels.device.draw import OK, health, masses_of
from draftproof.kernels.device.law import bound_of_unfiltered
from draftproof.kernels.device.overlap import let_next_begin, wait_for_previous
from draftproof.kernels.device.request import row_of, scale_of
from draftproof.kernels.device.rows import above, level, load_tiles, max_or_nan
from draftproof.kernels.device.wanted import store_unbounded


@triton.jit
def measure_kernel(logits, stride, row_params, request_params, masks, exceptions, scratch, num_tiles, num_plain,
                   vocab_size, rows, bracket, TILE: tl.constexpr, TILES: tl.constexpr, HAS_ALLOWED: tl.constexpr,
                   HAS_SPECIAL: tl.constexpr, UNFILTERED: tl.constexpr, OVERLAP: tl.constexpr):  # fmt: skip
    """Grid: rows. Each row's fault, maximum and mass. UNFILTERED: and its bound, where no row has a filter.

    rows, bracket: as in device/wanted.py and device/bound_kernels.py.
    """
    let_next_begin(OVERLAP)
    row_index = tl.program_id(0)
    request = tl.load(row_params[0] + row_index)
    scale = scale_of(tl.load(request_params[0] + request))
    row = row_of(row_index, request, logits, stride, masks, exceptions, HAS_ALLOWED, HAS_SPECIAL)
    shape = (num_tiles, num_plain, vocab_size)
    wait_for_previous(OVERLAP)
    tile_max, tile_mass = scratch[0] + row_index * TILES, scratch[1] + row_index * TILES
    tile = tl.arange(0, TILES)
    largest = max_or_nan(tl.load(tile_max + tile, mask=tile < num_tiles, other=-float("inf")))
    reach, masses = masses_of(tile_max, tile_mass, num_tiles, scale, largest, TILES)
    total = tl.sum(masses, 0)
    tl.store(rows[0] + row_index, health(largest))
    tl.store(rows[4] + row_index, largest)
    tl.store(rows[5] + row_index, total)
    if UNFILTERED:
        if health(largest) == OK:
            z_bound, id_bound, mass = bound_of_unfiltered(
                row, scratch[5] + row_index * TILES, tile_max, shape, scale, level(largest, scale), largest,
                tl.load(request_params[0] + request), total, TILES, TILE, HAS_ALLOWED, HAS_SPECIAL)  # fmt: skip
            tl.store(rows[2] + row_index, z_bound)
            tl.store(rows[3] + row_index, id_bound)
            tl.store(rows[6] + row_index, mass)
    else:
        store_unbounded(row_index, rows, bracket, largest, scale, total, tl.load(request_params[0] + request),
                        tl.load(request_params[1] + request), tl.load(request_params[2] + request),
                        tl.load(request_params[3] + request), vocab_size)  # fmt: skip


@triton.jit
def write_kernel(logits, stride, row_params, request_params, masks, exceptions, num_tiles, num_plain, vocab_size, rows,
                 out, out_stride, GROUP: tl.constexpr, TILE: tl.constexpr, HAS_ALLOWED: tl.constexpr,
                 HAS_SPECIAL: tl.constexpr, OVERLAP: tl.constexpr):  # fmt: skip
    """Grid: rows * ceil(tiles / GROUP). Probabilities into `out` [rows, >= V] float32; NaN throughout a row that has a
    fault."""
    let_next_begin(OVERLAP)
    parts = tl.cdiv(num_tiles, GROUP)
    row_index = tl.program_id(0) // parts
    tile = tl.program_id(0) % parts * GROUP + tl.arange(0, GROUP)
    request = tl.load(row_params[0] + row_index)
    scale = scale_of(tl.load(request_params[0] + request))
    row = row_of(row_index, request, logits, stride, masks, exceptions, HAS_ALLOWED, HAS_SPECIAL)
    if HAS_SPECIAL:
        wait_for_previous(OVERLAP)
    z, ids = load_tiles(row, tile, num_tiles, num_plain, vocab_size, TILE, HAS_ALLOWED, HAS_SPECIAL)
    if not HAS_SPECIAL:
        wait_for_previous(OVERLAP)
    writes = (ids >= 0) & (ids < vocab_size)
    if HAS_SPECIAL:
        place = tile[:, None] * TILE - num_plain * TILE + tl.arange(0, TILE)[None, :]
        of_plain = writes & (place < 0)
        writes = (of_plain & ~is_special(row, ids, of_plain)) | (writes & (place >= 0) & (place < exceptions[2]))
    fault, largest = tl.load(rows[0] + row_index), tl.load(rows[4] + row_index)
    z_bound, id_bound = tl.load(rows[2] + row_index), tl.load(rows[3] + row_index)
    gain = (1.0 / tl.load(rows[6] + row_index)).to(tl.float32)
    probs = tl.full(z.shape, float("nan"), tl.float32)
    if fault == OK:
        kept = above(z, ids, z_bound, id_bound + 1) & (z > -float("inf"))
        probs = tl.where(kept, tl.exp2(tl.fma(z, scale, -level(largest, scale))) * gain, 0.0)
    tl.store(out + row_index.to(tl.int64) * out_stride + ids, probs, mask=writes)
