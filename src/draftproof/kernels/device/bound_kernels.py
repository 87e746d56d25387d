"""Rows' bounds, for all of them or for those that a walk may come to: kernels that every operation on laws shares.

rows: (faults, verdicts, z bounds, id bounds, largest logits, totals, masses), one entry a row each.
brackets: (edges [rows, 2], how many tokens lie between them [rows], masses above them [rows, PARTS] in units of 2^-40,
those tokens' logits [rows, SIZE], their ids [rows, SIZE]).
WANTED: which healthy rows are bounded: 0 all, 1 for `rejection`, 2 for `block`.
"""

import triton
import triton.language as tl

from draftproof.kernels.device.bracket import collect_part, sampled_bracket
from draftproof.kernels.device.draw import OK, UNITS
from draftproof.kernels.device.law import bound_of_row
from draftproof.kernels.device.overlap import let_next_begin, wait_for_previous
from draftproof.kernels.device.race import SLOTS
from draftproof.kernels.device.request import is_raced, row_of, scale_of
from draftproof.kernels.device.rows import level

ACCEPT = tl.constexpr(0)
REJECT = tl.constexpr(1)
UNSURE = tl.constexpr(2)
LAST = tl.constexpr(3)


@triton.jit
def place_of(row_index, row_params, offsets):
    """(request, its first row, the row's index within the request, how many nodes the request has)."""
    request = tl.load(row_params[0] + row_index)
    first = tl.load(offsets + request)
    return request, first, row_index - first, tl.load(offsets + request + 1) - first - 1


@triton.jit
def is_wanted(row_index, first, local, rows, draft_faults, NODES: tl.constexpr, WANTED: tl.constexpr):
    """Whether a row's bound is asked for: no row before it surely ends the walk, and it isn't surely accepted."""
    wanted = tl.load(rows[0] + row_index) == OK
    if WANTED > 0:
        node = tl.arange(0, NODES)
        before = node < local
        faults = tl.load(rows[0] + first + node, mask=before, other=0)
        states = tl.load(rows[1] + first + node, mask=before, other=0)
        others = tl.load(draft_faults + first + node, mask=before, other=0)
        ended = tl.max((before & ((faults != 0) | (others != 0) | (states == REJECT))).to(tl.int32), 0)
        wanted = wanted & (ended == 0)
    if WANTED == 1:
        wanted = wanted & (tl.load(rows[1] + row_index) != ACCEPT)
    return wanted


@triton.jit
def has_top_p_alone(request, request_params):
    """Whether a request's rows are bounded by top-p's bracket."""
    return is_raced(request, request_params) & (tl.load(request_params[2] + request) < 1.0)


@triton.jit
def bracket_kernel(logits, stride, row_params, request_params, masks, exceptions, scratch, num_tiles, num_plain,
                   vocab_size, offsets, rows, draft_faults, brackets, TILE: tl.constexpr, HAS_ALLOWED: tl.constexpr,
                   HAS_SPECIAL: tl.constexpr, NODES: tl.constexpr, WANTED: tl.constexpr,
                   OVERLAP: tl.constexpr):  # fmt: skip
    """Grid: rows. The bracket of top-p's last token by a sample, for wanted rows that have top-p alone."""
    let_next_begin(OVERLAP)
    row_index = tl.program_id(0)
    request, first, local, num_nodes = place_of(row_index, row_params, offsets)
    wait_for_previous(OVERLAP)
    if has_top_p_alone(request, request_params):
        if is_wanted(row_index, first, local, rows, draft_faults, NODES, WANTED):
            scale = scale_of(tl.load(request_params[0] + request))
            largest = tl.load(rows[4] + row_index)
            low, high = sampled_bracket(
                row_of(row_index, request, logits, stride, masks, exceptions, HAS_ALLOWED, HAS_SPECIAL),
                (num_tiles, num_plain, vocab_size), scale, level(largest, scale), largest, tl.load(rows[5] + row_index),
                tl.load(request_params[2] + request), TILE, HAS_ALLOWED, HAS_SPECIAL)  # fmt: skip
            tl.store(brackets[0] + 2 * row_index, low)
            tl.store(brackets[0] + 2 * row_index + 1, high)
            tl.store(brackets[1] + row_index, 0)


@triton.jit
def collect_kernel(logits, stride, row_params, request_params, masks, exceptions, scratch, num_tiles, num_plain,
                   vocab_size, offsets, rows, draft_faults, brackets, TILE: tl.constexpr, TILES: tl.constexpr,
                   GROUP: tl.constexpr, SIZE: tl.constexpr, HAS_ALLOWED: tl.constexpr, HAS_SPECIAL: tl.constexpr,
                   NODES: tl.constexpr, PARTS: tl.constexpr, WANTED: tl.constexpr, OVERLAP: tl.constexpr):  # fmt: skip
    """Grid: rows * PARTS. Sums what lies above wanted rows' brackets, and lists what lies in them."""
    let_next_begin(OVERLAP)
    row_index = tl.program_id(0) // PARTS
    part = tl.program_id(0) % PARTS
    request, first, local, num_nodes = place_of(row_index, row_params, offsets)
    wait_for_previous(OVERLAP)
    if has_top_p_alone(request, request_params):
        if is_wanted(row_index, first, local, rows, draft_faults, NODES, WANTED):
            scale = scale_of(tl.load(request_params[0] + request))
            low, high, listed = bracket_of(row_index, brackets, SIZE)
            share = tl.cdiv(num_tiles, PARTS)
            mass = collect_part(
                row_of(row_index, request, logits, stride, masks, exceptions, HAS_ALLOWED, HAS_SPECIAL),
                scratch[0] + row_index * TILES, part * share, tl.minimum((part + 1) * share, num_tiles),
                (num_tiles, num_plain, vocab_size), scale, level(tl.load(rows[4] + row_index), scale), low, high,
                listed, SIZE, GROUP, TILE, HAS_ALLOWED, HAS_SPECIAL)  # fmt: skip
            tl.store(brackets[2] + row_index * PARTS + part, mass)


@triton.jit
def bracket_of(row_index, brackets, SIZE: tl.constexpr):
    """(low, high, (its list's logits, ids, how many they are)) of one row, pointers in the latter."""
    place = row_index.to(tl.int64) * SIZE
    return (tl.load(brackets[0] + 2 * row_index), tl.load(brackets[0] + 2 * row_index + 1),
            (brackets[3] + place, brackets[4] + place, brackets[1] + row_index))  # fmt: skip


@triton.jit
def bound_kernel(logits, stride, row_params, request_params, masks, exceptions, scratch, num_tiles, num_plain,
                 vocab_size, offsets, rows, draft_faults, brackets, TILE: tl.constexpr, TILES: tl.constexpr,
                 GROUP: tl.constexpr, LIST: tl.constexpr, SIZE: tl.constexpr, KEY_SHIFT: tl.constexpr,
                 HAS_ALLOWED: tl.constexpr, HAS_SPECIAL: tl.constexpr, NODES: tl.constexpr, PARTS: tl.constexpr,
                 TOP_P: tl.constexpr, LISTS: tl.constexpr, WANTED: tl.constexpr, OVERLAP: tl.constexpr):  # fmt: skip
    """Grid: rows. The bound and the kept mass of wanted rows."""
    let_next_begin(OVERLAP)
    row_index = tl.program_id(0)
    request, first, local, num_nodes = place_of(row_index, row_params, offsets)
    wait_for_previous(OVERLAP)
    if is_wanted(row_index, first, local, rows, draft_faults, NODES, WANTED):
        temperature = tl.load(request_params[0] + request)
        scale = scale_of(temperature)
        largest, total = tl.load(rows[4] + row_index), tl.load(rows[5] + row_index)
        top_p = tl.load(request_params[2] + request)
        low, high, listed = bracket_of(row_index, brackets, SIZE)
        num_listed, above_mass = tl.full((), 0, tl.int32), tl.full((), 0.0, tl.float64)
        if TOP_P:
            if has_top_p_alone(request, request_params):
                num_listed = tl.load(listed[2])
                masses = tl.load(brackets[2] + row_index * PARTS + tl.arange(0, PARTS))
                above_mass = tl.sum(masses, 0).to(tl.float64) / UNITS
        z_bound, id_bound, mass = bound_of_row(
            row_of(row_index, request, logits, stride, masks, exceptions, HAS_ALLOWED, HAS_SPECIAL),
            scratch[5] + row_index * TILES, scratch[0] + row_index * TILES,
            scratch[8] + row_index.to(tl.int64) * (num_tiles * SLOTS), scratch[9] + row_index * LIST,
            scratch[6] + row_index * LIST, scratch[7] + row_index * LIST,
            (low, high, num_listed <= SIZE,
             (listed[0], listed[1], tl.minimum(num_listed, SIZE), above_mass, top_p * total)),
            (num_tiles, num_plain, vocab_size), scale, level(largest, scale), largest, temperature, total,
            tl.load(request_params[1] + request), top_p, tl.load(request_params[3] + request), TILES, GROUP, TILE, LIST,
            KEY_SHIFT, HAS_ALLOWED, HAS_SPECIAL, TOP_P, LISTS)  # fmt: skip
        tl.store(rows[2] + row_index, z_bound)
        tl.store(rows[3] + row_index, id_bound)
        tl.store(rows[6] + row_index, mass)
