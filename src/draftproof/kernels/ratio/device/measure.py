"""Each row's maximum and mass, its node's p and q, and what bounds tell of the test: accepted, rejected or unsure."""

import triton
import triton.language as tl

from draftproof.kernels.device.before import mass_before
from draftproof.kernels.device.boundary import kth_tile_max, score_of
from draftproof.kernels.device.draw import NEAR_MASS, OK, health, lowered, masses_of, surely_kept
from draftproof.kernels.device.law import bound_of_unfiltered
from draftproof.kernels.device.noise import uniform
from draftproof.kernels.device.overlap import let_next_begin, wait_for_previous
from draftproof.kernels.device.ratio import logit_at
from draftproof.kernels.device.request import row_of, scale_of
from draftproof.kernels.device.rows import level, max_or_nan
from draftproof.kernels.device.wanted import ACCEPT, KEPT, LAST, REJECT, UNSURE, place_of, store_unbounded
from draftproof.kernels.ratio.device.draft_law import draft_of_node, drafted_logit, tiles_of_draft
from draftproof.kernels.ratio.device.state import COIN, noise_at
from draftproof.kernels.ratio.device.unsure import settled_state


@triton.jit
def test_kernel(logits, stride, row_params, request_params, masks, exceptions, scratch, num_tiles, num_plain,
                vocab_size, draft, values, draft_temperature, draft_scratch, draft_tiles, before, rows, nodes, bracket,
                residual_masses, num_ended, TILE: tl.constexpr, TILES: tl.constexpr, DRAFT_TILES: tl.constexpr,
                DRAFT_TILE: tl.constexpr, DRAFT_GROUP: tl.constexpr, HAS_ALLOWED: tl.constexpr,
                HAS_SPECIAL: tl.constexpr, LAW: tl.constexpr, STEPS: tl.constexpr, WIDTH: tl.constexpr,
                TOP_P: tl.constexpr, LISTS: tl.constexpr, BLOCK: tl.constexpr, UNFILTERED: tl.constexpr,
                BEFORE: tl.constexpr, OVERLAP: tl.constexpr):  # fmt: skip
    """Grid: rows. Each row's maximum and mass, its node's p and q as far as they are known, and what bounds tell.

    UNFILTERED: no row has a filter, and rows' bounds are written here. before, BEFORE: as the read has them.
    residual_masses, num_ended: as `chain_kernel` and `race_kernel` have them, of a request's races; they begin at 0.
    """
    let_next_begin(OVERLAP)
    measure_row(tl.program_id(0), logits, stride, row_params, request_params, masks, exceptions, scratch, num_tiles,
                num_plain, vocab_size, draft, values, draft_temperature, draft_scratch, draft_tiles, before, rows,
                nodes, bracket, residual_masses, num_ended, TILE, TILES, DRAFT_TILES, DRAFT_TILE, DRAFT_GROUP,
                HAS_ALLOWED, HAS_SPECIAL, LAW, STEPS, WIDTH, TOP_P, LISTS, BLOCK, UNFILTERED, BEFORE, False,
                OVERLAP, False, 0, 0)  # fmt: skip


@triton.jit
def measure_row(row_index, logits, stride, row_params, request_params, masks, exceptions, scratch, num_tiles, num_plain,
                vocab_size, draft, values, draft_temperature, draft_scratch, draft_tiles, before, rows, nodes, bracket,
                residual_masses, num_ended, TILE: tl.constexpr, TILES: tl.constexpr, DRAFT_TILES: tl.constexpr,
                DRAFT_TILE: tl.constexpr, DRAFT_GROUP: tl.constexpr, HAS_ALLOWED: tl.constexpr,
                HAS_SPECIAL: tl.constexpr, LAW: tl.constexpr, STEPS: tl.constexpr, WIDTH: tl.constexpr,
                TOP_P: tl.constexpr, LISTS: tl.constexpr, BLOCK: tl.constexpr, UNFILTERED: tl.constexpr,
                BEFORE: tl.constexpr, BOUNDED: tl.constexpr, OVERLAP: tl.constexpr,
                SETTLES: tl.constexpr, LIST: tl.constexpr, KEY_SHIFT: tl.constexpr):  # fmt: skip
    """What `test_kernel` does for one row. SETTLES: so that its test is decided here whatever bounds tell, and rows
    with top-p alone are bounded by others. BOUNDED: all rows are bounded by others at the same time."""
    request, first, local, num_nodes = place_of(row_index, row_params, draft[0])
    temperature = tl.load(request_params[0] + request)
    k, top_p = tl.load(request_params[1] + request), tl.load(request_params[2] + request)
    min_score = tl.load(request_params[3] + request)
    scale = scale_of(temperature)
    row = row_of(row_index, request, logits, stride, masks, exceptions, HAS_ALLOWED, HAS_SPECIAL)
    shape = (num_tiles, num_plain, vocab_size)
    tests = local < num_nodes
    # What no launch before this one writes is on its way while the rows are still read.
    noise = noise_at(row_index, first, request, row_params, request_params, local + COIN)
    u = uniform(noise[2].to(tl.int64), noise)
    token_id = tl.load(draft[1] + row_index + 1, mask=tests, other=-1)
    z = tl.full((), 0.0, tl.float32)
    if not HAS_SPECIAL:
        z = logit_at(row, token_id, shape, exceptions[2], TILE, HAS_ALLOWED, HAS_SPECIAL)
    drafted = drafted_logit(row_index, request, token_id, values, draft_temperature, LAW)
    wait_for_previous(OVERLAP)
    if HAS_SPECIAL:
        z = logit_at(row, token_id, shape, exceptions[2], TILE, HAS_ALLOWED, HAS_SPECIAL)
    tile_max, tile_mass = scratch[0] + row_index * TILES, scratch[1] + row_index * TILES
    tile = tl.arange(0, TILES)
    reach = tl.load(tile_max + tile, mask=tile < num_tiles, other=-float("inf"))
    weights = tl.load(tile_mass + tile, mask=tile < num_tiles, other=0.0)
    measured = tiles_of_draft(row_index - request, draft_scratch, draft_tiles, tests, DRAFT_TILES, LAW)
    largest = max_or_nan(reach)
    fault = health(largest)
    top = level(largest, scale)
    total = tl.sum(lowered(reach, weights, scale, largest), 0)
    tl.store(rows[0] + row_index, fault)
    if BLOCK:
        tl.store(residual_masses[0] + row_index, tl.zeros((), tl.int64))
        if row_index == 0:
            tl.store(residual_masses[1], 0)
    if local == 0:
        tl.store(num_ended + request, 0)
    tl.store(rows[4] + row_index, largest)
    tl.store(rows[5] + row_index, total)
    if not (UNFILTERED or SETTLES or BOUNDED):
        store_unbounded(row_index, rows, bracket, largest, scale, total, temperature, k, top_p, min_score, vocab_size)
    top_p_alone = SETTLES & (temperature > 0) & (top_p < 1.0)
    z_bound, id_bound, mass = largest, token_id, total
    if UNFILTERED or SETTLES:
        if (fault == OK) & (top_p_alone == 0):
            z_bound, id_bound, mass = bound_of_unfiltered(
                row, scratch[5] + row_index * TILES, tile_max, shape, scale, top, largest, temperature,
                total, TILES, TILE, HAS_ALLOWED, HAS_SPECIAL)  # fmt: skip
            tl.store(rows[2] + row_index, z_bound)
            tl.store(rows[3] + row_index, id_bound)
            tl.store(rows[6] + row_index, mass)
    state = tl.full((), LAST, tl.int32)
    if tests:
        state, draft_fault = test_node(
            row, row_index, request, u, token_id, z, drafted, measured, values, draft_scratch, draft_tiles, nodes,
            shape, (tile_max, tile_mass, before + row_index * TILES, scratch[5] + row_index * TILES),
            (scratch[6] + row_index * LIST, scratch[7] + row_index * LIST), largest, scale,
            top, total, temperature, k, top_p, min_score, id_bound, TILE, TILES, DRAFT_TILES, DRAFT_TILE, DRAFT_GROUP,
            HAS_ALLOWED, HAS_SPECIAL, LAW, STEPS, WIDTH, TOP_P, LISTS, BLOCK, BEFORE, SETTLES, LIST,
            KEY_SHIFT)  # fmt: skip
        tl.store(nodes[6] + row_index, draft_fault)
    tl.store(rows[1] + row_index, state)


@triton.jit
def test_node(row, row_index, request, u, token_id, z, drafted, measured, values, draft_scratch, draft_tiles, nodes,
              shape, tiles, lists, largest, scale, top, total, temperature, k, top_p, min_score,
              id_bound, TILE: tl.constexpr, TILES: tl.constexpr, DRAFT_TILES: tl.constexpr, DRAFT_TILE: tl.constexpr,
              DRAFT_GROUP: tl.constexpr, HAS_ALLOWED: tl.constexpr, HAS_SPECIAL: tl.constexpr, LAW: tl.constexpr,
              STEPS: tl.constexpr, WIDTH: tl.constexpr, TOP_P: tl.constexpr, LISTS: tl.constexpr,
              BLOCK: tl.constexpr, BEFORE: tl.constexpr, SETTLES: tl.constexpr,
              LIST: tl.constexpr, KEY_SHIFT: tl.constexpr):  # fmt: skip
    """(state, draft's fault) of one node; stores its weight and its draft's numbers. id_bound: a greedy row's argmax,
    where it SETTLES, and lists: (logits, ids) [LIST] of room."""
    weight = tl.where(z > -float("inf"), tl.exp2(tl.fma(z, scale, -top)), 0.0)
    q, draft_fault = draft_of_node(row_index, request, token_id, drafted, measured, values, draft_scratch, draft_tiles,
                                   nodes, DRAFT_TILES, DRAFT_TILE, DRAFT_GROUP, LAW, STEPS,
                                   WIDTH)  # fmt: skip
    tl.store(nodes[0] + row_index, weight)
    tl.store(nodes[1] + row_index, z)
    tl.store(nodes[2] + row_index, q)
    tl.store(nodes[7] + row_index, u)
    own = weight.to(tl.float64)
    needs = u * q
    listed = (k > 0) | (min_score > -float("inf"))
    state = tl.full((), UNSURE, tl.int32)
    if weight == 0:
        state = tl.full((), REJECT, tl.int32)
    elif temperature == 0:
        if z < largest:
            state = tl.full((), REJECT, tl.int32)
        elif SETTLES:
            state = tl.where((token_id == id_bound) & (needs * own < own), ACCEPT, REJECT)
    elif listed:
        # What is kept weighs as much as the largest at least.
        if (score_of(z, largest, temperature) < min_score) | ((needs * 0.9999 >= own) & (not BLOCK)):
            state = tl.full((), REJECT, tl.int32)
        elif LISTS:
            # At least k tokens are no less than the k-th of the tiles' maxima.
            if k > 0:
                if z < kth_tile_max(tiles[0], shape[0], k, TILES):
                    state = tl.full((), REJECT, tl.int32)
    elif top_p >= 1.0:
        if not BLOCK:
            state = tl.where(needs * total < own, ACCEPT, REJECT)
    elif TOP_P:
        dropped, mass = tl.full((), False, tl.int1), tl.full((), -1.0, tl.float64)
        if BEFORE:
            needed = top_p * total
            mass = mass_before(row, tiles[0], tiles[2], shape, scale, top, largest, z, token_id, TILES, TILE,
                               HAS_ALLOWED)  # fmt: skip
            kept, dropped = mass < needed * (1.0 - NEAR_MASS), mass > needed * (1.0 + NEAR_MASS)
        else:
            reach, masses = masses_of(tiles[0], tiles[1], shape[0], scale, largest, TILES)
            kept, needed = surely_kept(reach, masses, scale, top, top_p, z)
        if dropped:
            state = tl.full((), REJECT, tl.int32)
        elif BLOCK:
            if kept:
                state = tl.full((), KEPT, tl.int32)
        elif needs * needed * 0.99999 >= own:
            state = tl.full((), REJECT, tl.int32)
        elif kept & (needs * tl.minimum(total, needed + own) * 1.00001 < own):
            state = tl.full((), ACCEPT, tl.int32)
        elif SETTLES:
            if health(largest) == OK:
                state = settled_state(row, tiles[0], tiles[1], tiles[3], lists, shape, scale, top, largest, total,
                                      top_p, z, token_id, kept, mass, needs, own, TILE, TILES, LIST, KEY_SHIFT,
                                      HAS_ALLOWED, HAS_SPECIAL)  # fmt: skip
    return state, draft_fault
