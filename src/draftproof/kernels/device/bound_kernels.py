"""Rows' bounds, for all of them or for those that a walk may come to: kernels that every operation on laws shares.

rows, nodes, WANTED: as in wanted.py.
bracket: (edges [rows, WIDTH] float32, sums [rows, WIDTH] int64, listed logits and places [rows, ROOM], as in edges.py;
masses [rows, BUCKETS] int64, as in buckets.py; how many rows are wanted, and which [rows], where any has top-p alone).
"""

import triton
import triton.language as tl

from draftproof.kernels.device.buckets import BUCKETS
from draftproof.kernels.device.edges import (
    ASKED,
    COUNT,
    KEPT_MASS,
    STRETCH,
    WIDTH,
    eighths_of,
    interval_of,
    list_stretches,
    weigh_stretches,
)
from draftproof.kernels.device.law import bound_of_row, bound_of_top_p
from draftproof.kernels.device.overlap import let_next_begin, wait_for_previous
from draftproof.kernels.device.passes import WHOLE
from draftproof.kernels.device.race import SLOTS
from draftproof.kernels.device.ranks import load_sample, ranked_edges, store_edges, tally_of
from draftproof.kernels.device.request import row_of, scale_of
from draftproof.kernels.device.rows import level, loaded_eighths
from draftproof.kernels.device.top_p import first_bracket
from draftproof.kernels.device.wanted import has_top_p_alone, is_wanted, place_of


@triton.jit
def sample_kernel(logits, stride, row_params, request_params, masks, exceptions, num_tiles, num_plain, vocab_size,
                  offsets, rows, nodes, bracket, TILE: tl.constexpr, TILES: tl.constexpr, HAS_ALLOWED: tl.constexpr,
                  HAS_SPECIAL: tl.constexpr, NODES: tl.constexpr, WANTED: tl.constexpr, EARLY: tl.constexpr,
                  OVERLAP: tl.constexpr):  # fmt: skip
    """Grid: rows. Lists the wanted rows, with edges by a sample for those that have top-p alone.

    EARLY: whether all rows' samples are counted, before it is known which rows are wanted.
    """
    let_next_begin(OVERLAP)
    row_index = tl.program_id(0)
    request, first, local, num_nodes = place_of(row_index, row_params, offsets)
    asked = has_top_p_alone(request, request_params)
    scale = scale_of(tl.load(request_params[0] + request))
    top_p = tl.minimum(tl.load(request_params[2] + request), 1.0 - 1e-12)
    row = row_of(row_index, request, logits, stride, masks, exceptions, HAS_ALLOWED, HAS_SPECIAL)
    shape = (num_tiles, num_plain, vocab_size)
    z, share = load_sample(row, shape, TILE, TILES, HAS_ALLOWED)
    if EARLY:
        tally = tally_of(z, scale)
    wait_for_previous(OVERLAP)
    largest, total = tl.load(rows[4] + row_index), tl.load(rows[5] + row_index)
    if is_wanted(row_index, first, local, num_nodes, rows, nodes, NODES, WANTED):
        tl.store(bracket[6] + tl.atomic_add(bracket[5], 1, sem="relaxed"), row_index)
        edges = bracket[0] + WIDTH * row_index
        if asked:
            top = level(largest, scale)
            least, most = first_bracket(largest, scale, top, total, top_p, vocab_size)
            if not EARLY:
                tally = tally_of(z, scale)
            ranked = ranked_edges(tally, (1.0 - top_p) * total, top, share, least, most)
            store_edges(edges, ranked, least, most, scale, top)
            tl.store(bracket[1] + WIDTH * row_index + KEPT_MASS, tl.ceil(top_p * total * WHOLE).to(tl.int64))
        else:
            tl.store(edges + ASKED, 0.0)


@triton.jit
def share_of(item, num_wanted, num_tiles, TILE: tl.constexpr):
    """(which of the wanted rows, first stretch, end) of an item of work, where programs share rows evenly."""
    stretches = tl.cdiv(num_tiles * TILE, STRETCH)
    parts = parts_of_wanted(num_wanted, num_tiles, TILE)
    share = tl.cdiv(stretches, parts)
    first = item % parts * share
    return item // parts, first, tl.minimum(first + share, stretches)


@triton.jit
def parts_of_wanted(num_wanted, num_tiles, TILE: tl.constexpr):
    """How many programs share each of the wanted rows."""
    most = tl.cdiv(num_tiles * TILE, STRETCH)
    return tl.maximum(tl.minimum(tl.num_programs(0) // tl.maximum(num_wanted, 1), most), 1)


@triton.jit
def row_of_wanted(row_index, row_params, logits, stride, masks, exceptions, HAS_ALLOWED: tl.constexpr,
                  HAS_SPECIAL: tl.constexpr):  # fmt: skip
    """`row_of`, which asks for the row's request only where that says something."""
    request = row_index
    if HAS_SPECIAL:
        request = tl.load(row_params[0] + row_index)
    return row_of(row_index, request, logits, stride, masks, exceptions, HAS_ALLOWED, HAS_SPECIAL)


@triton.jit
def weigh_kernel(logits, stride, row_params, masks, exceptions, num_tiles, num_plain, vocab_size, bracket,
                 TILE: tl.constexpr, HAS_ALLOWED: tl.constexpr, HAS_SPECIAL: tl.constexpr,
                 OVERLAP: tl.constexpr):  # fmt: skip
    """Grid: any number of programs of one warp. What wanted rows with top-p alone weigh above their edges."""
    let_next_begin(OVERLAP)
    wait_for_previous(OVERLAP)
    num_wanted = tl.load(bracket[5])
    parts = parts_of_wanted(num_wanted, num_tiles, TILE)
    for item in range(tl.program_id(0), num_wanted * parts, tl.num_programs(0)):
        wanted, first, end = share_of(item, num_wanted, num_tiles, TILE)
        row_index = tl.load(bracket[6] + wanted)
        row = row_of_wanted(row_index, row_params, logits, stride, masks, exceptions, HAS_ALLOWED, HAS_SPECIAL)
        coming = loaded_eighths(row, eighths_of(first), vocab_size, HAS_ALLOWED, HAS_SPECIAL)
        edges = bracket[0] + WIDTH * row_index
        if (tl.load(edges + ASKED) > 0) & (first < end):
            weigh_stretches(row, first, end, coming, (num_tiles, num_plain, vocab_size), edges,
                            bracket[1] + WIDTH * row_index, TILE, HAS_ALLOWED, HAS_SPECIAL)  # fmt: skip


@triton.jit
def list_kernel(logits, stride, row_params, masks, exceptions, num_tiles, num_plain, vocab_size, bracket,
                TILE: tl.constexpr, ROOM: tl.constexpr, HAS_ALLOWED: tl.constexpr, HAS_SPECIAL: tl.constexpr,
                OVERLAP: tl.constexpr):  # fmt: skip
    """Grid: any number of programs of one warp. The tokens of these rows between the edges that top-p ends between."""
    let_next_begin(OVERLAP)
    wait_for_previous(OVERLAP)
    num_wanted = tl.load(bracket[5])
    parts = parts_of_wanted(num_wanted, num_tiles, TILE)
    for item in range(tl.program_id(0), num_wanted * parts, tl.num_programs(0)):
        wanted, first, end = share_of(item, num_wanted, num_tiles, TILE)
        row_index = tl.load(bracket[6] + wanted)
        row = row_of_wanted(row_index, row_params, logits, stride, masks, exceptions, HAS_ALLOWED, HAS_SPECIAL)
        coming = loaded_eighths(row, eighths_of(first), vocab_size, HAS_ALLOWED, HAS_SPECIAL)
        edges, sums = bracket[0] + WIDTH * row_index, bracket[1] + WIDTH * row_index
        low, high, above_units = interval_of(edges, sums)
        if (tl.load(edges + ASKED) > 0) & (first < end):
            own = row_index.to(tl.int64) * ROOM
            list_stretches(row, first, end, coming, (num_tiles, num_plain, vocab_size), low, high, sums + COUNT,
                           bracket[2] + own, bracket[3] + own, TILE, ROOM, HAS_ALLOWED, HAS_SPECIAL)  # fmt: skip


@triton.jit
def bound_kernel(logits, stride, row_params, request_params, masks, exceptions, scratch, num_tiles, num_plain,
                 vocab_size, offsets, rows, nodes, bracket, TILE: tl.constexpr, TILES: tl.constexpr,
                 GROUP: tl.constexpr, LIST: tl.constexpr, ROOM: tl.constexpr, KEY_SHIFT: tl.constexpr,
                 PACKED: tl.constexpr, KIND: tl.constexpr, EVEN: tl.constexpr, HAS_ALLOWED: tl.constexpr,
                 HAS_SPECIAL: tl.constexpr, TOP_P: tl.constexpr, LISTS: tl.constexpr, NODES: tl.constexpr,
                 WANTED: tl.constexpr, OVERLAP: tl.constexpr):  # fmt: skip
    """Grid: rows. The bound and the kept mass of wanted rows, which are listed where any has top-p alone."""
    let_next_begin(OVERLAP)
    row_index = tl.program_id(0)
    shape = (num_tiles, num_plain, vocab_size)
    if TOP_P:
        wait_for_previous(OVERLAP)
        wanted = row_index < tl.load(bracket[5])
        row_index = tl.load(bracket[6] + row_index)
        asked = False
        if wanted:
            asked = tl.load(bracket[0] + WIDTH * row_index + ASKED) > 0
        if asked:
            own = row_index.to(tl.int64) * ROOM
            row = row_of_wanted(row_index, row_params, logits, stride, masks, exceptions, HAS_ALLOWED, HAS_SPECIAL)
            z_bound, id_bound, mass = bound_of_top_p(
                row_index, row, scratch, bracket[0] + WIDTH * row_index, bracket[1] + WIDTH * row_index,
                bracket[4] + row_index.to(tl.int64) * BUCKETS, bracket[2] + own, bracket[3] + own, shape, rows, TILES,
                GROUP, TILE, ROOM, KEY_SHIFT, HAS_ALLOWED, HAS_SPECIAL)  # fmt: skip
            tl.store(rows[2] + row_index, z_bound)
            tl.store(rows[3] + row_index, id_bound)
            tl.store(rows[6] + row_index, mass)
        wanted = wanted & ~asked
    else:
        request, first, local, num_nodes = place_of(row_index, row_params, offsets)
        wait_for_previous(OVERLAP)
        wanted = is_wanted(row_index, first, local, num_nodes, rows, nodes, NODES, WANTED)
    if wanted:
        request = tl.load(row_params[0] + row_index)
        store_bound(row_index, request, logits, stride, request_params, masks, exceptions, scratch, shape,
                    tl.load(rows[4] + row_index), tl.load(rows[5] + row_index), rows, TILE, TILES, GROUP, LIST,
                    KEY_SHIFT, PACKED, KIND, EVEN, HAS_ALLOWED, HAS_SPECIAL, LISTS)  # fmt: skip


@triton.jit
def store_bound(row_index, request, logits, stride, request_params, masks, exceptions, scratch, shape, largest, total,
                rows, TILE: tl.constexpr, TILES: tl.constexpr, GROUP: tl.constexpr, LIST: tl.constexpr,
                KEY_SHIFT: tl.constexpr, PACKED: tl.constexpr, KIND: tl.constexpr, EVEN: tl.constexpr,
                HAS_ALLOWED: tl.constexpr, HAS_SPECIAL: tl.constexpr, LISTS: tl.constexpr):  # fmt: skip
    """Finds what `bound_of_row` does of a healthy row without top-p alone, and writes it; returns it too."""
    temperature = tl.load(request_params[0] + request)
    scale = scale_of(temperature)
    own = row_index.to(tl.int64)
    z_bound, id_bound, mass, num_found = bound_of_row(
        row_of(row_index, request, logits, stride, masks, exceptions, HAS_ALLOWED, HAS_SPECIAL),
        scratch[5] + row_index * TILES, scratch[0] + row_index * TILES, scratch[8] + own * (shape[0] * SLOTS),
        scratch[9] + row_index * LIST, scratch[6] + row_index * LIST, scratch[7] + row_index * LIST, shape, scale,
        level(largest, scale), largest, temperature, total, tl.load(request_params[1] + request),
        tl.load(request_params[2] + request), tl.load(request_params[3] + request), TILES, GROUP, TILE, LIST,
        KEY_SHIFT, PACKED, KIND, EVEN, HAS_ALLOWED, HAS_SPECIAL, LISTS)  # fmt: skip
    tl.store(rows[2] + row_index, z_bound)
    tl.store(rows[3] + row_index, id_bound)
    tl.store(rows[6] + row_index, mass)
    return z_bound, id_bound, mass, num_found
