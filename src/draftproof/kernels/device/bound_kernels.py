"""Rows' bounds, for all of them or for those that a walk may come to: kernels that every operation on laws shares.

rows: (faults, verdicts, z bounds, id bounds, largest logits, totals, masses), one entry a row each.
brackets: ([ROUNDS + 1, rows, 2] logits, [ROUNDS + 1, rows] masses, [ROUNDS, rows, PARTS, PIVOTS] masses, [rows, PARTS]
counts of listed tokens).
WANTED: which healthy rows are bounded: 0 all, 1 for `rejection`, 2 for `block`.
"""

import triton
import triton.language as tl

from draftproof.kernels.device.draw import OK
from draftproof.kernels.device.law import GROUPED, PIVOTS, bound_of_row, collect_part, narrowed, weigh_pivots
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
def bracket_of(row_index, turn, num_rows, needed, brackets, PARTS: tl.constexpr):
    """(low, high, mass at and above high) of a row before round `turn`, from the round before it."""
    edge = brackets[0] + 2 * (turn * num_rows + row_index)
    if turn == 0:
        low, high = tl.load(edge), tl.load(edge + 1)
        above_mass = tl.load(brackets[1] + row_index)
    else:
        edge = brackets[0] + 2 * ((turn - 1) * num_rows + row_index)
        low, high, above_mass = narrowed(
            tl.load(edge), tl.load(edge + 1), tl.load(brackets[1] + (turn - 1) * num_rows + row_index),
            brackets[2] + ((turn - 1) * num_rows + row_index) * (PARTS * PIVOTS), needed, PARTS)  # fmt: skip
    return low, high, above_mass


@triton.jit(do_not_specialize=["turn", "num_rows"])
def narrow_kernel(logits, stride, row_params, request_params, masks, exceptions, scratch, num_tiles, num_plain,
                  vocab_size, offsets, rows, draft_faults, brackets, turn, num_rows, TILE: tl.constexpr,
                  TILES: tl.constexpr, HAS_ALLOWED: tl.constexpr, HAS_SPECIAL: tl.constexpr, NODES: tl.constexpr,
                  PARTS: tl.constexpr, WANTED: tl.constexpr, OVERLAP: tl.constexpr):  # fmt: skip
    """Grid: rows * PARTS. One round of narrowing top-p's bracket, for wanted rows that have top-p alone."""
    let_next_begin(OVERLAP)
    row_index = tl.program_id(0) // PARTS
    part = tl.program_id(0) % PARTS
    request, first, local, num_nodes = place_of(row_index, row_params, offsets)
    wait_for_previous(OVERLAP)
    temperature, top_p = tl.load(request_params[0] + request), tl.load(request_params[2] + request)
    if has_top_p_alone(request, request_params):
        if is_wanted(row_index, first, local, rows, draft_faults, NODES, WANTED):
            needed = top_p * tl.load(rows[5] + row_index)
            low, high, above_mass = bracket_of(row_index, turn, num_rows, needed, brackets, PARTS)
            if (part == 0) & (turn > 0):
                tl.store(brackets[0] + 2 * (turn * num_rows + row_index), low)
                tl.store(brackets[0] + 2 * (turn * num_rows + row_index) + 1, high)
                tl.store(brackets[1] + turn * num_rows + row_index, above_mass)
            scale = scale_of(temperature)
            num_groups = tl.cdiv(num_tiles, GROUPED)
            share = tl.cdiv(num_groups, PARTS)
            weigh_pivots(row_of(row_index, request, logits, stride, masks, exceptions, HAS_ALLOWED, HAS_SPECIAL),
                         scratch[0] + row_index * TILES, part * share, tl.minimum((part + 1) * share, num_groups),
                         (num_tiles, num_plain, vocab_size), scale, level(tl.load(rows[4] + row_index), scale), low,
                         high, brackets[2] + ((turn * num_rows + row_index) * PARTS + part) * PIVOTS, TILE,
                         HAS_ALLOWED, HAS_SPECIAL)  # fmt: skip


@triton.jit(do_not_specialize=["turn", "num_rows"])
def collect_kernel(logits, stride, row_params, request_params, masks, exceptions, scratch, num_tiles, num_plain,
                   vocab_size, offsets, rows, draft_faults, brackets, turn, num_rows, TILE: tl.constexpr,
                   TILES: tl.constexpr, GROUP: tl.constexpr, LIST: tl.constexpr, HAS_ALLOWED: tl.constexpr,
                   HAS_SPECIAL: tl.constexpr, NODES: tl.constexpr, PARTS: tl.constexpr,
                   WANTED: tl.constexpr, OVERLAP: tl.constexpr):  # fmt: skip
    """Grid: rows * PARTS. Lists what is left of wanted rows' brackets, each part in its share of the row's list."""
    let_next_begin(OVERLAP)
    row_index = tl.program_id(0) // PARTS
    part = tl.program_id(0) % PARTS
    request, first, local, num_nodes = place_of(row_index, row_params, offsets)
    wait_for_previous(OVERLAP)
    if has_top_p_alone(request, request_params):
        if is_wanted(row_index, first, local, rows, draft_faults, NODES, WANTED):
            needed = tl.load(request_params[2] + request) * tl.load(rows[5] + row_index)
            low, high, above_mass = bracket_of(row_index, turn, num_rows, needed, brackets, PARTS)
            share = tl.cdiv(num_tiles, PARTS)
            ROOM: tl.constexpr = LIST // PARTS
            place = row_index * LIST + part * ROOM
            num_found = collect_part(
                row_of(row_index, request, logits, stride, masks, exceptions, HAS_ALLOWED, HAS_SPECIAL),
                scratch[0] + row_index * TILES, part * share, tl.minimum((part + 1) * share, num_tiles),
                (num_tiles, num_plain, vocab_size), low, high, scratch[6] + place, scratch[7] + place, GROUP, TILE,
                ROOM, HAS_ALLOWED, HAS_SPECIAL)  # fmt: skip
            tl.store(brackets[3] + row_index * PARTS + part, num_found)


@triton.jit(do_not_specialize=["turn", "num_rows"])
def bound_kernel(logits, stride, row_params, request_params, masks, exceptions, scratch, num_tiles, num_plain,
                 vocab_size, offsets, rows, draft_faults, brackets, turn, num_rows, TILE: tl.constexpr,
                 TILES: tl.constexpr, GROUP: tl.constexpr, LIST: tl.constexpr, KEY_SHIFT: tl.constexpr,
                 HAS_ALLOWED: tl.constexpr, HAS_SPECIAL: tl.constexpr, NODES: tl.constexpr, PARTS: tl.constexpr,
                 TOP_P: tl.constexpr, LISTS: tl.constexpr, WANTED: tl.constexpr, OVERLAP: tl.constexpr):  # fmt: skip
    """Grid: rows. The bound and the kept mass of wanted rows. turn: how many rounds have narrowed top-p's brackets."""
    let_next_begin(OVERLAP)
    row_index = tl.program_id(0)
    request, first, local, num_nodes = place_of(row_index, row_params, offsets)
    wait_for_previous(OVERLAP)
    if is_wanted(row_index, first, local, rows, draft_faults, NODES, WANTED):
        temperature = tl.load(request_params[0] + request)
        scale = scale_of(temperature)
        largest, total = tl.load(rows[4] + row_index), tl.load(rows[5] + row_index)
        top_p = tl.load(request_params[2] + request)
        above_mass = tl.zeros((), tl.float64)
        if TOP_P:
            if has_top_p_alone(request, request_params):
                low, high, above_mass = bracket_of(row_index, turn, num_rows, top_p * total, brackets,
                                                   PARTS)  # fmt: skip
        z_bound, id_bound, mass = bound_of_row(
            row_of(row_index, request, logits, stride, masks, exceptions, HAS_ALLOWED, HAS_SPECIAL),
            scratch[5] + row_index * TILES, scratch[0] + row_index * TILES,
            scratch[8] + row_index.to(tl.int64) * (num_tiles * SLOTS), scratch[9] + row_index * LIST,
            scratch[6] + row_index * LIST, scratch[7] + row_index * LIST, brackets[3] + row_index * PARTS,
            (num_tiles, num_plain, vocab_size), scale, level(largest, scale), largest, temperature, total,
            tl.load(request_params[1] + request), top_p, tl.load(request_params[3] + request), above_mass, TILES, GROUP,
            TILE, LIST, PARTS, KEY_SHIFT, HAS_ALLOWED, HAS_SPECIAL, TOP_P, LISTS)  # fmt: skip
        tl.store(rows[2] + row_index, z_bound)
        tl.store(rows[3] + row_index, id_bound)
        tl.store(rows[6] + row_index, mass)
