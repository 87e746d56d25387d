"""Rows' bounds, for all of them or for those that a walk may come to: kernels that every operation on laws shares.

rows, nodes, WANTED: as in wanted.py.
bracket: (sums [rows, 4] int64, lists [rows, 2, ROOM], brackets [rows, 3] of a sample, as in top_p.py; how many rows are
wanted, and which [rows], where any has top-p alone).
"""

import triton
import triton.language as tl

from draftproof.kernels.device.law import bound_of_row
from draftproof.kernels.device.overlap import let_next_begin, wait_for_previous
from draftproof.kernels.device.race import SLOTS
from draftproof.kernels.device.request import row_of, scale_of
from draftproof.kernels.device.rows import level
from draftproof.kernels.device.top_p import first_bracket, sampled_bracket, settled_bracket
from draftproof.kernels.device.wanted import has_top_p_alone, is_wanted, place_of


@triton.jit
def sample_kernel(logits, stride, row_params, request_params, masks, exceptions, num_tiles, num_plain, vocab_size,
                  offsets, rows, nodes, bracket, TILE: tl.constexpr, TILES: tl.constexpr, HAS_ALLOWED: tl.constexpr,
                  HAS_SPECIAL: tl.constexpr, NODES: tl.constexpr, WANTED: tl.constexpr,
                  OVERLAP: tl.constexpr):  # fmt: skip
    """Grid: rows. Lists the wanted rows, with a sample's bracket for those that have top-p alone."""
    let_next_begin(OVERLAP)
    row_index = tl.program_id(0)
    request, first, local, num_nodes = place_of(row_index, row_params, offsets)
    wait_for_previous(OVERLAP)
    if is_wanted(row_index, first, local, num_nodes, rows, nodes, NODES, WANTED):
        tl.store(bracket[4] + tl.atomic_add(bracket[3], 1, sem="relaxed"), row_index)
        if has_top_p_alone(request, request_params):
            scale = scale_of(tl.load(request_params[0] + request))
            top_p = tl.minimum(tl.load(request_params[2] + request), 1.0 - 1e-12)
            largest, total = tl.load(rows[4] + row_index), tl.load(rows[5] + row_index)
            top = level(largest, scale)
            shape = (num_tiles, num_plain, vocab_size)
            least, most = first_bracket(largest, scale, top, total, top_p, vocab_size)
            low, high, likely = sampled_bracket(
                row_of(row_index, request, logits, stride, masks, exceptions, HAS_ALLOWED, HAS_SPECIAL), shape, scale,
                top, (1.0 - top_p) * total, least, most, TILE, TILES, HAS_ALLOWED, HAS_SPECIAL)  # fmt: skip
            tl.store(bracket[2] + 3 * row_index, low)
            tl.store(bracket[2] + 3 * row_index + 1, high)
            tl.store(bracket[2] + 3 * row_index + 2, likely)


@triton.jit
def bound_kernel(logits, stride, row_params, request_params, masks, exceptions, scratch, num_tiles, num_plain,
                 vocab_size, offsets, rows, nodes, bracket, TILE: tl.constexpr, TILES: tl.constexpr,
                 GROUP: tl.constexpr, LIST: tl.constexpr, ROOM: tl.constexpr, KEY_SHIFT: tl.constexpr,
                 HAS_ALLOWED: tl.constexpr, HAS_SPECIAL: tl.constexpr, TOP_P: tl.constexpr, LISTS: tl.constexpr,
                 PARTS: tl.constexpr, NODES: tl.constexpr, WANTED: tl.constexpr, OVERLAP: tl.constexpr):  # fmt: skip
    """Grid: rows; with top-p any number of programs. The bound and the kept mass of wanted rows."""
    let_next_begin(OVERLAP)
    shape = (num_tiles, num_plain, vocab_size)
    if TOP_P:
        wait_for_previous(OVERLAP)
        for item in range(tl.program_id(0), tl.load(bracket[3]) * PARTS, tl.num_programs(0)):
            bound_part(tl.load(bracket[4] + item // PARTS), item % PARTS, logits, stride, row_params, request_params,
                       masks, exceptions, scratch, shape, rows, bracket, TILE, TILES, GROUP, LIST, ROOM, KEY_SHIFT,
                       HAS_ALLOWED, HAS_SPECIAL, TOP_P, LISTS, PARTS)  # fmt: skip
    else:
        row_index = tl.program_id(0)
        request, first, local, num_nodes = place_of(row_index, row_params, offsets)
        wait_for_previous(OVERLAP)
        if is_wanted(row_index, first, local, num_nodes, rows, nodes, NODES, WANTED):
            bound_part(row_index, 0, logits, stride, row_params, request_params, masks, exceptions, scratch, shape,
                       rows, bracket, TILE, TILES, GROUP, LIST, ROOM, KEY_SHIFT, HAS_ALLOWED, HAS_SPECIAL, TOP_P, LISTS,
                       PARTS)  # fmt: skip


@triton.jit
def bound_part(row_index, part, logits, stride, row_params, request_params, masks, exceptions, scratch, shape,
               rows, bracket, TILE: tl.constexpr, TILES: tl.constexpr, GROUP: tl.constexpr, LIST: tl.constexpr,
               ROOM: tl.constexpr, KEY_SHIFT: tl.constexpr, HAS_ALLOWED: tl.constexpr, HAS_SPECIAL: tl.constexpr,
               TOP_P: tl.constexpr, LISTS: tl.constexpr, PARTS: tl.constexpr):  # fmt: skip
    """A part of a row with top-p alone, or all of another: the last part's program writes the row's bound and mass."""
    request = tl.load(row_params[0] + row_index)
    temperature = tl.load(request_params[0] + request)
    scale = scale_of(temperature)
    largest, total = tl.load(rows[4] + row_index), tl.load(rows[5] + row_index)
    top = level(largest, scale)
    top_p = tl.load(request_params[2] + request)
    row = row_of(row_index, request, logits, stride, masks, exceptions, HAS_ALLOWED, HAS_SPECIAL)
    tile_max = scratch[0] + row_index * TILES
    lists = bracket[1] + row_index.to(tl.int64) * (2 * ROOM)
    bounds = (part == 0) & (row_index >= 0)
    found, low = tl.zeros((), tl.int32), largest
    above_mass = tl.zeros((), tl.float64)
    count = tl.zeros((), tl.int32)
    if TOP_P:
        if has_top_p_alone(request, request_params):
            bounds, found, low, above_mass, count = settled_bracket(
                row, tile_max, part, shape, scale, top, largest, total, tl.minimum(top_p, 1.0 - 1e-12),
                bracket[2] + 3 * row_index, bracket[0] + 4 * row_index, lists, TILE, TILES, ROOM, PARTS, KEY_SHIFT,
                HAS_ALLOWED, HAS_SPECIAL)  # fmt: skip
    if bounds:
        z_bound, id_bound, mass = bound_of_row(
            row, scratch[5] + row_index * TILES, tile_max, scratch[8] + row_index.to(tl.int64) * (shape[0] * SLOTS),
            scratch[9] + row_index * LIST, scratch[6] + row_index * LIST, scratch[7] + row_index * LIST,
            (lists + ROOM, count, found, low), shape, scale, top, largest, temperature, total,
            tl.load(request_params[1] + request), top_p, tl.load(request_params[3] + request), above_mass, TILES, GROUP,
            TILE, LIST, ROOM, KEY_SHIFT, HAS_ALLOWED, HAS_SPECIAL, TOP_P, LISTS)  # fmt: skip
        tl.store(rows[2] + row_index, z_bound)
        tl.store(rows[3] + row_index, id_bound)
        tl.store(rows[6] + row_index, mass)
