"""Rows' bounds, for all of them or for those that a walk may come to: kernels that every operation on laws shares.

rows, nodes, WANTED: as in wanted.py.
asked: (how many rows ask [3], which [3, rows], whether a row's bound is wanted [rows]): first the rows with top-p alone
that may be wanted before their tokens are weighed, then those that are, then those of these whose bracket is wide.
brackets: (edges [ROUNDS, rows, EDGES], masses above them [ROUNDS, rows], pivots' masses [ROUNDS, rows, MASSES], how
many rounds narrow a row's bracket, how many tokens are listed [rows], listed logits, ids [rows, ROOM]).
"""

import triton
import triton.language as tl

from draftproof.kernels.device.draw import OK
from draftproof.kernels.device.law import bound_of_row
from draftproof.kernels.device.overlap import let_next_begin, wait_for_previous
from draftproof.kernels.device.race import SLOTS
from draftproof.kernels.device.request import row_of, scale_of
from draftproof.kernels.device.rows import level
from draftproof.kernels.device.top_p import (
    EDGES,
    GROUPED,
    MASSES,
    PIVOTS,
    ROUNDS,
    collect_part,
    first_bracket,
    narrowed,
    quarters,
    sampled_pivots,
    store_edges,
    weigh_pivots,
)
from draftproof.kernels.device.wanted import (
    ACCEPT,
    REJECT,
    UNSURE,
    has_top_p_alone,
    is_wanted,
    place_of,
    states_of,
    wanted_rows,
)


@triton.jit
def sample_kernel(logits, stride, row_params, request_params, masks, exceptions, scratch, num_tiles, num_plain,
                  vocab_size, offsets, rows, nodes, asked, brackets, num_rows, TILE: tl.constexpr,
                  HAS_ALLOWED: tl.constexpr, HAS_SPECIAL: tl.constexpr, NODES: tl.constexpr, WANTED: tl.constexpr,
                  OVERLAP: tl.constexpr):  # fmt: skip
    """Grid: rows. Lists the rows with top-p alone that may be wanted, with a sample's pivots for each."""
    let_next_begin(OVERLAP)
    row_index = tl.program_id(0)
    request, first, local, num_nodes = place_of(row_index, row_params, offsets)
    wait_for_previous(OVERLAP)
    if has_top_p_alone(request, request_params):
        if is_wanted(row_index, first, local, num_nodes, rows, nodes, NODES, WANTED):
            tl.store(asked[1] + tl.atomic_add(asked[0], 1, sem="relaxed"), row_index)
            tl.store(brackets[4] + row_index, 0)
            tl.store(brackets[1] + row_index, 0.0)
            for turn in range(ROUNDS):
                tl.store(brackets[2] + (turn * num_rows + row_index) * MASSES + tl.arange(0, MASSES),
                         tl.zeros((MASSES,), tl.int64))  # fmt: skip
            scale = scale_of(tl.load(request_params[0] + request))
            top_p = tl.minimum(tl.load(request_params[2] + request), 1.0 - 1e-12)
            largest, total = tl.load(rows[4] + row_index), tl.load(rows[5] + row_index)
            top = level(largest, scale)
            low, high = first_bracket(largest, scale, top, total, top_p, vocab_size)
            told, p1, p2, p3 = sampled_pivots(
                row_of(row_index, request, logits, stride, masks, exceptions, HAS_ALLOWED, HAS_SPECIAL),
                (num_tiles, num_plain, vocab_size), scale, top, (1.0 - top_p) * total, low, high, TILE, HAS_ALLOWED,
                HAS_SPECIAL)  # fmt: skip
            store_edges(brackets[0] + row_index * EDGES, low, p1, p2, p3, high)
            tl.store(brackets[3] + row_index, tl.where(told, 1, ROUNDS))


@triton.jit
def narrowed_by(turn, row_index, num_rows, needed, brackets, inside):
    """(low, high, mass at and above high, which quarter) of rows' brackets after round `turn`."""
    place = turn * num_rows + row_index
    above_mass = tl.load(brackets[1] + place, mask=inside, other=0.0)
    return narrowed(brackets[0] + place * EDGES, brackets[2] + place * MASSES, above_mass, needed, inside)


@triton.jit
def share_of(count, num_units, MOST: tl.constexpr):
    """(how many programs share a row, how many of its units each takes), for `count` rows of so many units."""
    programs = tl.num_programs(0)
    parts = tl.minimum(tl.maximum(4 * programs // tl.maximum(count, 1), 1), tl.minimum(MOST, num_units))
    share = tl.cdiv(num_units, parts)
    return tl.cdiv(num_units, share), share


@triton.jit(do_not_specialize=["turn", "num_rows"])
def weigh_kernel(logits, stride, row_params, request_params, masks, exceptions, scratch, num_tiles, num_plain,
                 vocab_size, rows, asked, brackets, turn, num_rows, TILE: tl.constexpr, TILES: tl.constexpr,
                 HAS_ALLOWED: tl.constexpr, HAS_SPECIAL: tl.constexpr, OVERLAP: tl.constexpr):  # fmt: skip
    """Grid: any number of programs. Weighs the pivots of rows that ask: in round 0 the sample's, later those that
    quarter a wide bracket."""
    let_next_begin(OVERLAP)
    wait_for_previous(OVERLAP)
    later = tl.where(turn > 0, 2, 0)
    count = tl.load(asked[0] + later)
    num_groups = tl.cdiv(num_tiles, GROUPED)
    parts, share = share_of(count, num_groups, 32)
    for item in range(tl.program_id(0), count * parts, tl.num_programs(0)):
        row_index = tl.load(asked[1] + later * num_rows + item // parts)
        part = item % parts
        place = turn * num_rows + row_index
        edges = brackets[0] + place * EDGES
        request = tl.load(row_params[0] + row_index)
        scale = scale_of(tl.load(request_params[0] + request))
        p1, p2, p3 = tl.load(edges + 1), tl.load(edges + 2), tl.load(edges + 3)
        if turn > 0:
            needed = tl.load(request_params[2] + request) * tl.load(rows[5] + row_index)
            low, high, above_mass, quarter = narrowed_by(turn - 1, row_index, num_rows, needed, brackets,
                                                         needed >= 0)  # fmt: skip
            p1, p2, p3 = quarters(low, high)
            if part == 0:
                store_edges(edges, low, p1, p2, p3, high)
                tl.store(brackets[1] + place, above_mass)
        weigh_pivots(row_of(row_index, request, logits, stride, masks, exceptions, HAS_ALLOWED, HAS_SPECIAL),
                     scratch[0] + row_index * TILES, part * share, tl.minimum((part + 1) * share, num_groups),
                     (num_tiles, num_plain, vocab_size), scale, level(tl.load(rows[4] + row_index), scale),
                     (p1, p2, p3), brackets[2] + place * MASSES, TILE, HAS_ALLOWED, HAS_SPECIAL)  # fmt: skip


@triton.jit
def ask_kernel(row_params, request_params, offsets, rows, nodes, asked, brackets, num_rows, NODES: tl.constexpr,
               WANTED: tl.constexpr, OVERLAP: tl.constexpr):  # fmt: skip
    """Grid: requests, or rows if WANTED is 0. Which rows are wanted, once brackets tell more of the drafted tokens.

    M is at least what is needed, and exceeds it by less than any token above the bracket weighs.
    """
    let_next_begin(OVERLAP)
    if WANTED == 0:
        first = tl.program_id(0)
        request = tl.load(row_params[0] + first)
        num_nodes = tl.zeros((), tl.int32)
    else:
        request = tl.program_id(0)
        first = tl.load(offsets + request)
        num_nodes = tl.load(offsets + request + 1) - first - 1
    wait_for_previous(OVERLAP)
    node = tl.arange(0, NODES)
    there = node <= num_nodes
    row_index = first + node
    if WANTED == 0:
        wanted = there & (tl.load(rows[0] + row_index, mask=there, other=1) == OK)
    else:
        states, weights = states_of(first, num_nodes, rows, nodes, NODES)
        wanted = wanted_rows(first, num_nodes, states, weights, rows, nodes, NODES, WANTED)
    if has_top_p_alone(request, request_params):
        scale = scale_of(tl.load(request_params[0] + request))
        total = tl.load(rows[5] + row_index, mask=wanted, other=0.0)
        needed = tl.load(request_params[2] + request) * total
        low, high, above_mass, quarter = narrowed_by(0, row_index, num_rows, needed, brackets, wanted)
        wide = (quarter == 0) | (quarter == PIVOTS)
        wide = wide | (tl.load(brackets[3] + row_index, mask=wanted, other=1) > 1)
        tl.store(brackets[3] + row_index, ROUNDS, mask=wanted & wide)
        if WANTED > 0:
            inside = wanted & (node < num_nodes)
            z = tl.load(nodes[1] + row_index, mask=inside, other=0.0)
            top = level(tl.load(rows[4] + row_index, mask=inside, other=0.0), scale)
            dropped = inside & (z < low)
            weights = tl.where(dropped, 0.0, weights)
            states = tl.where(dropped, REJECT, states)
            if WANTED == 1:
                needs = tl.load(nodes[7] + row_index, mask=inside, other=1.0)
                needs = needs * tl.load(nodes[2] + row_index, mask=inside, other=1.0)
                own = weights.to(tl.float64)
                most = tl.minimum(total, needed + tl.exp2(tl.fma(high, scale, -top)).to(tl.float64))
                unsure = inside & (states == UNSURE)
                rejected = needs * needed * 0.99999 >= own
                accepted = (z >= high) & (needs * most * 1.00001 < own)
                states = tl.where(unsure & rejected, REJECT, tl.where(unsure & accepted, ACCEPT, states))
            tl.store(rows[1] + row_index, states, mask=inside)
            tl.store(nodes[0] + row_index, weights, mask=dropped)
            wanted = wanted & wanted_rows(first, num_nodes, states, weights, rows, nodes, NODES, WANTED)
        place = tl.atomic_add(asked[0] + 1 + 0 * node, 1, mask=wanted, sem="relaxed")
        tl.store(asked[1] + num_rows + place, row_index, mask=wanted)
        place = tl.atomic_add(asked[0] + 2 + 0 * node, 1, mask=wanted & wide, sem="relaxed")
        tl.store(asked[1] + 2 * num_rows + place, row_index, mask=wanted & wide)
    tl.store(asked[2] + row_index, wanted.to(tl.int32), mask=there)


@triton.jit(do_not_specialize=["num_rows"])
def collect_kernel(logits, stride, row_params, request_params, masks, exceptions, scratch, num_tiles, num_plain,
                   vocab_size, rows, asked, brackets, num_rows, TILE: tl.constexpr, TILES: tl.constexpr,
                   GROUP: tl.constexpr, ROOM: tl.constexpr, HAS_ALLOWED: tl.constexpr, HAS_SPECIAL: tl.constexpr,
                   OVERLAP: tl.constexpr):  # fmt: skip
    """Grid: any number of programs. Lists what is left of wanted rows' brackets."""
    let_next_begin(OVERLAP)
    wait_for_previous(OVERLAP)
    count = tl.load(asked[0] + 1)
    parts, share = share_of(count, num_tiles, 64)
    for item in range(tl.program_id(0), count * parts, tl.num_programs(0)):
        row_index = tl.load(asked[1] + num_rows + item // parts)
        part = item % parts
        request = tl.load(row_params[0] + row_index)
        needed = tl.load(request_params[2] + request) * tl.load(rows[5] + row_index)
        turn = tl.load(brackets[3] + row_index) - 1
        low, high, above_mass, quarter = narrowed_by(turn, row_index, num_rows, needed, brackets, needed >= 0)
        collect_part(row_of(row_index, request, logits, stride, masks, exceptions, HAS_ALLOWED, HAS_SPECIAL),
                     scratch[0] + row_index * TILES, part * share, tl.minimum((part + 1) * share, num_tiles),
                     (num_tiles, num_plain, vocab_size), low, high, brackets[4] + row_index,
                     brackets[5] + row_index.to(tl.int64) * ROOM, brackets[6] + row_index.to(tl.int64) * ROOM, GROUP,
                     TILE, ROOM, HAS_ALLOWED, HAS_SPECIAL)  # fmt: skip


@triton.jit(do_not_specialize=["num_rows"])
def bound_kernel(logits, stride, row_params, request_params, masks, exceptions, scratch, num_tiles, num_plain,
                 vocab_size, offsets, rows, nodes, asked, brackets, num_rows, TILE: tl.constexpr, TILES: tl.constexpr,
                 GROUP: tl.constexpr, LIST: tl.constexpr, ROOM: tl.constexpr, KEY_SHIFT: tl.constexpr,
                 HAS_ALLOWED: tl.constexpr, HAS_SPECIAL: tl.constexpr, TOP_P: tl.constexpr, LISTS: tl.constexpr,
                 NODES: tl.constexpr, WANTED: tl.constexpr, OVERLAP: tl.constexpr):  # fmt: skip
    """Grid: rows. The bound and the kept mass of wanted rows."""
    let_next_begin(OVERLAP)
    row_index = tl.program_id(0)
    request, first, local, num_nodes = place_of(row_index, row_params, offsets)
    wait_for_previous(OVERLAP)
    if TOP_P:
        wanted = tl.load(asked[2] + row_index) > 0
    else:
        wanted = is_wanted(row_index, first, local, num_nodes, rows, nodes, NODES, WANTED)
    if wanted:
        temperature = tl.load(request_params[0] + request)
        scale = scale_of(temperature)
        largest, total = tl.load(rows[4] + row_index), tl.load(rows[5] + row_index)
        top_p = tl.load(request_params[2] + request)
        above_mass = tl.zeros((), tl.float64)
        count = tl.zeros((), tl.int32)
        if TOP_P:
            if has_top_p_alone(request, request_params):
                turn = tl.load(brackets[3] + row_index) - 1
                low, high, above_mass, quarter = narrowed_by(turn, row_index, num_rows, top_p * total, brackets,
                                                           total >= 0)  # fmt: skip
                count = tl.load(brackets[4] + row_index)
        z_bound, id_bound, mass = bound_of_row(
            row_of(row_index, request, logits, stride, masks, exceptions, HAS_ALLOWED, HAS_SPECIAL),
            scratch[5] + row_index * TILES, scratch[0] + row_index * TILES,
            scratch[8] + row_index.to(tl.int64) * (num_tiles * SLOTS), scratch[9] + row_index * LIST,
            scratch[6] + row_index * LIST, scratch[7] + row_index * LIST,
            (brackets[5] + row_index.to(tl.int64) * ROOM, brackets[6] + row_index.to(tl.int64) * ROOM, count),
            (num_tiles, num_plain, vocab_size), scale, level(largest, scale), largest, temperature, total,
            tl.load(request_params[1] + request), top_p, tl.load(request_params[3] + request), above_mass, TILES, GROUP,
            TILE, LIST, ROOM, KEY_SHIFT, HAS_ALLOWED, HAS_SPECIAL, TOP_P, LISTS)  # fmt: skip
        tl.store(rows[2] + row_index, z_bound)
        tl.store(rows[3] + row_index, id_bound)
        tl.store(rows[6] + row_index, mass)
