"""`rejection` and `block` on the device: read both, test nodes, bound rows, find where each request stops, draw there.

Tensors that pass from one kernel to the next, `state`: of rows (faults, verdicts, z bounds, id bounds, largest logits,
totals, masses), of nodes (drafted tokens' weights, logits; q, level, scale, 1 / mass of the draft's row; its fault; the
coin), of brackets ([ROUNDS + 1, rows, 2] logits, masses; [ROUNDS, rows, PARTS, PIVOTS] masses), prefix masses and
whether their residual's mass is wanted. A node's entries stand at the row that tests it.
"""

import triton
import triton.language as tl

from draftproof.kernels.device.bound_kernels import ACCEPT, LAST, REJECT, UNSURE, place_of
from draftproof.kernels.device.boundary import score_of
from draftproof.kernels.device.draw import OK, health, masses_of, surely_kept
from draftproof.kernels.device.law import store_bracket
from draftproof.kernels.device.noise import nearness, uniform
from draftproof.kernels.device.passes import first_at, list_tiles
from draftproof.kernels.device.ratio import (
    LOGITS,
    POINT,
    SPARSE,
    draft_probs,
    logit_at,
    race_all,
    race_tiles,
    residual_mass,
)  # fmt: skip
from draftproof.kernels.device.read import read_split
from draftproof.kernels.device.request import noise_of, row_of, scale_of
from draftproof.kernels.device.rows import level, max_or_nan

DRAFT_FAULT = tl.constexpr(3)

COIN = tl.constexpr(17 << 24)
RESIDUAL = tl.constexpr(18 << 24)
BONUS = tl.constexpr(19 << 24)


@triton.jit
def noise_at(row_index, first, request, row_params, request_params, word):
    """The noise of `word`, of the pass that starts at the request's first row."""
    noise = noise_of(row_index, request, row_params, request_params)
    start = tl.load(row_params[1] + first).to(tl.uint32, bitcast=True)
    return start, noise[1], tl.zeros((), tl.uint32) + word.to(tl.uint32), noise[3], noise[4]


@triton.jit
def node_of(row_index, request, bonus, draft, values, nodes, LAW: tl.constexpr):
    """The node that a row tests, as ratio.py takes it; of no meaning at a bonus row, which tests none.

    values: (pointer, stride, ids, their stride, width).
    """
    row = (row_index - request).to(tl.int64)
    token_id = tl.load(draft[1] + row_index + 1, mask=bonus == 0, other=-1)
    start, ids = values[0], values[2]
    if LAW != POINT:
        start = values[0] + row * values[1]
    if LAW == SPARSE:
        ids = values[2] + row * values[3]
    if LAW == LOGITS:
        return (start, ids, values[4], token_id, tl.load(nodes[3] + row_index), tl.load(nodes[4] + row_index),
                tl.load(nodes[5] + row_index))  # fmt: skip
    return start, ids, values[4], token_id, 0.0, 0.0, 0.0


@triton.jit
def law_of(row_index, share, scale, rows):
    """A bounded row's law, as ratio.py takes it. rows: see `state` above."""
    largest = tl.load(rows[4] + row_index)
    gain = share / tl.load(rows[6] + row_index)
    return (scale, level(largest, scale), tl.load(rows[2] + row_index), tl.load(rows[3] + row_index),
            gain.to(tl.float32))  # fmt: skip


@triton.jit
def read_pair_kernel(logits, quads, stride, quad_stride, row_params, request_params, masks, exceptions, scratch,
                     num_plain, tiles_per_split, vocab_size, num_plain_splits, draft, values, draft_quads,
                     draft_quad_stride, draft_temperature, draft_scratch, draft_tiles, draft_tiles_per_split,
                     draft_splits, TILE: tl.constexpr, TILES: tl.constexpr, RACERS: tl.constexpr,
                     PACKED: tl.constexpr, KIND: tl.constexpr, EVEN: tl.constexpr, DRAFT_TILES: tl.constexpr,
                     DRAFT_PACKED: tl.constexpr, DRAFT_KIND: tl.constexpr, DRAFT_EVEN: tl.constexpr,
                     DRAFT_TILE: tl.constexpr, HAS_ALLOWED: tl.constexpr, HAS_SPECIAL: tl.constexpr,
                     LAW: tl.constexpr):  # fmt: skip
    """Grid: rows * (target's splits + draft's splits), one warp each: maxima and masses of both laws' tiles."""
    num_target = num_plain_splits + HAS_SPECIAL
    num_splits = num_target + draft_splits
    row_index = tl.program_id(0) // num_splits
    split = tl.program_id(0) % num_splits
    request, first, local, num_nodes = place_of(row_index, row_params, draft[0])
    noise = noise_of(row_index, request, row_params, request_params)
    if split < num_target:
        scale = scale_of(tl.load(request_params[0] + request))
        row = row_of(row_index, request, logits, stride, masks, exceptions, HAS_ALLOWED, HAS_SPECIAL)
        read_split(row, quads + row_index.to(tl.int64) * quad_stride, noise, scale, False, split,
                   scratch[0] + row_index * TILES, scratch[1] + row_index * TILES,
                   (scratch[2], scratch[3], scratch[4]), RACERS, num_plain, tiles_per_split, exceptions[2], vocab_size,
                   num_plain_splits, TILE, PACKED, KIND, EVEN, HAS_ALLOWED, HAS_SPECIAL, False, True)  # fmt: skip
    elif LAW == LOGITS:
        if local < num_nodes:
            index = row_index - request
            scale = scale_of(tl.load(draft_temperature + request))
            start = values[0] + index.to(tl.int64) * values[1]
            read_split((start, start, start, start, start), draft_quads + index.to(tl.int64) * draft_quad_stride, noise,
                       scale, False, split - num_target, draft_scratch[0] + index * DRAFT_TILES,
                       draft_scratch[1] + index * DRAFT_TILES, (scratch[2], scratch[3], scratch[4]), RACERS,
                       draft_tiles, draft_tiles_per_split, 0, values[4], draft_splits, DRAFT_TILE, DRAFT_PACKED,
                       DRAFT_KIND, DRAFT_EVEN, False, False, False, True)  # fmt: skip


@triton.jit
def test_kernel(logits, stride, row_params, request_params, masks, exceptions, scratch, num_tiles, num_plain,
                vocab_size, draft, values, draft_temperature, draft_scratch, draft_tiles, rows, nodes, brackets,
                TILE: tl.constexpr, TILES: tl.constexpr, DRAFT_TILES: tl.constexpr, DRAFT_TILE: tl.constexpr,
                DRAFT_GROUP: tl.constexpr, HAS_ALLOWED: tl.constexpr, HAS_SPECIAL: tl.constexpr, LAW: tl.constexpr,
                STEPS: tl.constexpr, WIDTH: tl.constexpr, TOP_P: tl.constexpr, BLOCK: tl.constexpr):  # fmt: skip
    """Grid: rows. Each row's maximum and mass, its node's p and q as far as they are known, and what bounds tell."""
    row_index = tl.program_id(0)
    request, first, local, num_nodes = place_of(row_index, row_params, draft[0])
    temperature = tl.load(request_params[0] + request)
    k, top_p = tl.load(request_params[1] + request), tl.load(request_params[2] + request)
    min_score = tl.load(request_params[3] + request)
    scale = scale_of(temperature)
    tile_max, tile_mass = scratch[0] + row_index * TILES, scratch[1] + row_index * TILES
    tile = tl.arange(0, TILES)
    largest = max_or_nan(tl.load(tile_max + tile, mask=tile < num_tiles, other=-float("inf")))
    fault = health(largest)
    top = level(largest, scale)
    reach, masses = masses_of(tile_max, tile_mass, num_tiles, scale, largest, TILES)
    total = tl.sum(masses, 0)
    tl.store(rows[0] + row_index, fault)
    tl.store(rows[4] + row_index, largest)
    tl.store(rows[5] + row_index, total)
    if TOP_P:
        store_bracket(row_index, brackets, largest, scale, top, total, top_p, vocab_size)
    state = tl.full((), LAST, tl.int32)
    if local < num_nodes:
        state, draft_fault = test_node(
            row_of(row_index, request, logits, stride, masks, exceptions, HAS_ALLOWED, HAS_SPECIAL), row_index, request,
            noise_at(row_index, first, request, row_params, request_params, local + COIN), draft, values,
            draft_temperature, draft_scratch, draft_tiles, nodes, (num_tiles, num_plain, vocab_size), exceptions[2],
            (tile_max, tile_mass), largest, scale, top, total, temperature, k, top_p, min_score, TILE, TILES,
            DRAFT_TILES, DRAFT_TILE, DRAFT_GROUP, HAS_ALLOWED, HAS_SPECIAL, LAW, STEPS, WIDTH, TOP_P,
            BLOCK)  # fmt: skip
        tl.store(nodes[6] + row_index, draft_fault)
    tl.store(rows[1] + row_index, state)


@triton.jit
def test_node(row, row_index, request, noise, draft, values, draft_temperature, draft_scratch, draft_tiles, nodes,
              shape, num_exceptions, tiles, largest, scale, top, total, temperature, k, top_p, min_score,
              TILE: tl.constexpr, TILES: tl.constexpr, DRAFT_TILES: tl.constexpr, DRAFT_TILE: tl.constexpr,
              DRAFT_GROUP: tl.constexpr, HAS_ALLOWED: tl.constexpr, HAS_SPECIAL: tl.constexpr, LAW: tl.constexpr,
              STEPS: tl.constexpr, WIDTH: tl.constexpr, TOP_P: tl.constexpr, BLOCK: tl.constexpr):  # fmt: skip
    """(state, draft's fault) of one node; stores its weight and its draft's numbers."""
    token_id = tl.load(draft[1] + row_index + 1)
    z = logit_at(row, token_id, shape, num_exceptions, TILE, HAS_ALLOWED, HAS_SPECIAL)
    weight = tl.where(z > -float("inf"), tl.exp2(tl.fma(z, scale, -top)), 0.0)
    q, draft_fault = draft_of_node(row_index, request, token_id, draft, values, draft_temperature, draft_scratch,
                                   draft_tiles, nodes, DRAFT_TILES, DRAFT_TILE, DRAFT_GROUP, LAW, STEPS,
                                   WIDTH)  # fmt: skip
    u = uniform(noise[2].to(tl.int64), noise)
    tl.store(nodes[0] + row_index, weight)
    tl.store(nodes[1] + row_index, z)
    tl.store(nodes[2] + row_index, q)
    tl.store(nodes[7] + row_index, u)
    own = weight.to(tl.float64)
    needs = u * q
    state = tl.full((), UNSURE, tl.int32)
    if weight == 0:
        state = tl.full((), REJECT, tl.int32)
    elif not BLOCK:
        listed = (k > 0) | (min_score > -float("inf"))
        if temperature == 0:
            if z < largest:
                state = tl.full((), REJECT, tl.int32)
        elif listed:
            if score_of(z, largest, temperature) < min_score:
                state = tl.full((), REJECT, tl.int32)
        elif top_p >= 1.0:
            state = tl.where(needs * total < own, ACCEPT, REJECT)
        elif TOP_P:
            kept, needed = surely_kept(tiles[0], tiles[1], shape[0], scale, top, largest, top_p, z, TILES)
            if needs * needed * 0.99999 >= own:
                state = tl.full((), REJECT, tl.int32)
            elif kept & (needs * total * 1.00001 < own):
                state = tl.full((), ACCEPT, tl.int32)
    return state, draft_fault


@triton.jit
def draft_of_node(row_index, request, token_id, draft, values, draft_temperature, draft_scratch, draft_tiles, nodes,
                  DRAFT_TILES: tl.constexpr, DRAFT_TILE: tl.constexpr, DRAFT_GROUP: tl.constexpr, LAW: tl.constexpr,
                  STEPS: tl.constexpr, WIDTH: tl.constexpr):  # fmt: skip
    """(q of the node's token, OK or DRAFT_FAULT); stores the level, scale and 1 / mass of a law from logits."""
    index = row_index - request
    healthy = True
    if LAW == LOGITS:
        temperature = tl.load(draft_temperature + request)
        scale = scale_of(temperature)
        tile_max = draft_scratch[0] + index * DRAFT_TILES
        tile = tl.arange(0, DRAFT_TILES)
        largest = max_or_nan(tl.load(tile_max + tile, mask=tile < draft_tiles, other=-float("inf")))
        reach, masses = masses_of(tile_max, draft_scratch[1] + index * DRAFT_TILES, draft_tiles, scale, largest,
                                  DRAFT_TILES)  # fmt: skip
        total = tl.sum(masses, 0)
        healthy = health(largest) == OK
        node_scale = tl.where(temperature > 0, scale, 0.0)
        tl.store(nodes[3] + row_index, level(largest, scale))
        tl.store(nodes[4] + row_index, node_scale)
        tl.store(nodes[5] + row_index, (1.0 / total).to(tl.float32))
        start = values[0] + index.to(tl.int64) * values[1]
        inside = (token_id >= 0) & (token_id < values[4])
        z = tl.load(start + token_id, mask=inside, other=-float("inf")).to(tl.float32)
        own = tl.where(z > -float("inf"), tl.exp2(tl.fma(z, scale, -level(largest, scale))), 0.0)
        q = own.to(tl.float64) / total
        if (temperature == 0) & healthy:
            q = tl.full((), 0.0, tl.float64)
            if z == largest:
                tiles = draft_scratch[2] + index * DRAFT_TILES
                num_listed = list_tiles(tiles, tile_max, draft_tiles, largest, DRAFT_TILES)
                shape = (draft_tiles, draft_tiles, values[4])
                best = first_at((start, start, start, start, start), tiles, num_listed, shape, largest, DRAFT_GROUP,
                                DRAFT_TILE, False, False)  # fmt: skip
                q = (best == token_id).to(tl.float64)
    elif LAW == POINT:
        q = tl.full((), 1.0, tl.float64)
    else:
        start = values[0] + index.to(tl.int64) * values[1]
        column = tl.arange(0, WIDTH)
        total = tl.zeros((WIDTH,), tl.float64)
        lowest = tl.zeros((WIDTH,), tl.float32)
        for begin in range(0, values[4], WIDTH):
            inside = begin + column < values[4]
            if LAW == SPARSE:
                listed = tl.load(values[2] + index.to(tl.int64) * values[3] + begin + column, mask=inside, other=-1)
                inside = inside & (listed >= 0)
            share = tl.load(start + begin + column, mask=inside, other=0.0)
            total += share.to(tl.float64)
            lowest = tl.minimum(lowest, share)
        mass = tl.sum(total, 0)
        healthy = (mass > 0.999) & (mass < 1.001) & (tl.min(lowest, 0) >= 0)
        node = (start, values[2], values[4], token_id, 0.0, 0.0, 0.0)
        if LAW == SPARSE:
            node = (start, values[2] + index.to(tl.int64) * values[3], values[4], token_id, 0.0, 0.0, 0.0)
        q = draft_probs(node, token_id, LAW, STEPS).to(tl.float64)
    healthy = healthy & (q > 0)
    return q, tl.where(healthy, OK, DRAFT_FAULT)


@triton.jit
def weights_kept(first, node, inside, draft, rows, nodes):
    """[NODES] (drafted tokens' kept weights, masses of their rows) in float64, for bounded rows."""
    z = tl.load(nodes[1] + first + node, mask=inside, other=-float("inf"))
    token_ids = tl.load(draft[1] + first + node + 1, mask=inside, other=0)
    z_bound = tl.load(rows[2] + first + node, mask=inside, other=float("inf"))
    id_bound = tl.load(rows[3] + first + node, mask=inside, other=0)
    kept = (z > z_bound) | ((z == z_bound) & (token_ids <= id_bound))
    weights = tl.load(nodes[0] + first + node, mask=inside, other=0.0).to(tl.float64)
    return tl.where(kept, weights, 0.0), tl.load(rows[6] + first + node, mask=inside, other=1.0)


@triton.jit
def stop_of_rejection(first, num_nodes, draft, rows, nodes, NODES: tl.constexpr):
    """(how many nodes are accepted, fault of the row or node that ends the walk)."""
    node = tl.arange(0, NODES)
    inside = node < num_nodes
    weights, masses = weights_kept(first, node, inside, draft, rows, nodes)
    needs = tl.load(nodes[7] + first + node, mask=inside, other=0.0)
    needs = needs * tl.load(nodes[2] + first + node, mask=inside, other=0.0)
    states = tl.load(rows[1] + first + node, mask=inside, other=LAST)
    accepted = inside & ((states == ACCEPT) | ((states == UNSURE) & (needs * masses < weights)))
    faults = tl.load(rows[0] + first + node, mask=node <= num_nodes, other=0)
    draft_faults = tl.load(nodes[6] + first + node, mask=inside, other=0)
    faults = tl.where(faults != 0, faults, draft_faults)
    stop = tl.min(tl.where(accepted & (faults == 0), NODES, node), 0)
    return stop, tl.max(tl.where(node == stop, faults, 0), 0)


@triton.jit
def chain_kernel(draft, rows, nodes, prefixes, NODES: tl.constexpr):
    """Grid: requests. P_i for `block`, and which residual masses are wanted.

    prefixes: (P [rows], wanted [rows], ends [requests], faults [requests]): a row's P is that of the tokens before it;
    ends: how many tokens the longest prefix has.
    """
    request = tl.program_id(0)
    first = tl.load(draft[0] + request)
    num_nodes = tl.load(draft[0] + request + 1) - first - 1
    node = tl.arange(0, NODES)
    inside = node < num_nodes
    weights, row_masses = weights_kept(first, node, inside, draft, rows, nodes)
    q = tl.load(nodes[2] + first + node, mask=inside, other=1.0)
    faults = tl.load(rows[0] + first + node, mask=inside, other=0)
    draft_faults = tl.load(nodes[6] + first + node, mask=inside, other=0)
    probs = tl.where(weights > 0, weights / row_masses, 0.0)
    prefix = tl.full((), 1.0, tl.float64)
    masses = tl.where(node == 0, 1.0, tl.zeros((NODES,), tl.float64))
    end = tl.zeros((), tl.int32) + num_nodes
    fault = tl.zeros((), tl.int32)
    for index in range(0, num_nodes):
        if index < end:
            here = node == index
            fault = tl.maximum(fault, tl.max(tl.where(here, draft_faults, 0), 0))
            if prefix > 0:
                if tl.max(tl.where(here, faults, 0), 0) != 0:
                    end = index
                else:
                    mass = prefix * tl.sum(tl.where(here, probs, 0.0), 0)
                    draft_prob = tl.sum(tl.where(here, q, 0.0), 0)
                    prefix = tl.where(mass >= draft_prob, 1.0, mass / draft_prob)
                    masses = tl.where(node == index + 1, prefix, masses)
    # Coin i - 1 is that of the prefix of i tokens.
    coin = tl.load(nodes[7] + first + node - 1, mask=(node > 0) & (node <= num_nodes), other=1.0)
    sure = (node > 0) & (node <= end) & ((masses == 1.0) | ((node == end) & (coin < masses)))
    longest = tl.max(tl.where(sure, node, 0), 0)
    wanted = (node > longest) & (node < end) & (coin < masses) & (fault == 0)
    there = node <= num_nodes
    tl.store(prefixes[0] + first + node, masses, mask=there)
    tl.store(prefixes[1] + first + node, wanted.to(tl.int32), mask=there)
    tl.store(prefixes[2] + request, end)
    tl.store(prefixes[3] + request, fault)


@triton.jit
def mass_kernel(logits, stride, row_params, request_params, masks, exceptions, scratch, num_tiles, num_plain,
                vocab_size, draft, values, rows, nodes, prefixes, residual_masses, TILE: tl.constexpr,
                TILES: tl.constexpr, HAS_ALLOWED: tl.constexpr, HAS_SPECIAL: tl.constexpr, LAW: tl.constexpr,
                STEPS: tl.constexpr, PARTS: tl.constexpr):  # fmt: skip
    """Grid: rows * PARTS. S_i's parts, in units of 2^-56, for wanted rows."""
    row_index = tl.program_id(0) // PARTS
    part = tl.program_id(0) % PARTS
    if tl.load(prefixes[1] + row_index) > 0:
        request = tl.load(row_params[0] + row_index)
        scale = scale_of(tl.load(request_params[0] + request))
        share = tl.cdiv(num_tiles, PARTS)
        mass = residual_mass(
            row_of(row_index, request, logits, stride, masks, exceptions, HAS_ALLOWED, HAS_SPECIAL),
            scratch[0] + row_index * TILES, part * share, tl.minimum((part + 1) * share, num_tiles),
            (num_tiles, num_plain, vocab_size),
            law_of(row_index, tl.load(prefixes[0] + row_index), scale, rows),
            node_of(row_index, request, 0, draft, values, nodes, LAW), TILE, LAW, STEPS, HAS_ALLOWED,
            HAS_SPECIAL)  # fmt: skip
        tl.store(residual_masses + row_index * PARTS + part, mass)


@triton.jit
def stop_of_block(request, first, num_nodes, draft, rows, nodes, prefixes, residual_masses, NODES: tl.constexpr,
                  PARTS: tl.constexpr):  # fmt: skip
    """(how many tokens are accepted, P there, fault)."""
    node = tl.arange(0, NODES)
    inside = node <= num_nodes
    end = tl.load(prefixes[2] + request)
    fault = tl.load(prefixes[3] + request)
    masses = tl.load(prefixes[0] + first + node, mask=inside, other=0.0)
    wanted = tl.load(prefixes[1] + first + node, mask=inside, other=0) > 0
    coin = tl.load(nodes[7] + first + node - 1, mask=(node > 0) & inside, other=1.0)
    part = tl.arange(0, PARTS)
    units = tl.load(residual_masses + (first + node)[:, None] * PARTS + part[None, :], mask=wanted[:, None], other=0)
    rest = tl.sum(units, 1).to(tl.float64) / 72057594037927936.0
    passes = wanted & (coin * (rest + 1 - masses) < rest)
    passes = passes | ((node > 0) & (node <= end) & ((masses == 1.0) | ((node == end) & (coin < masses))))
    stop = tl.max(tl.where(passes, node, 0), 0)
    row_fault = tl.load(rows[0] + first + stop)
    return (
        tl.where(fault != 0, 0, stop),
        tl.sum(tl.where(node == stop, masses, 0.0), 0),
        tl.where(fault != 0, fault, row_fault),
    )


@triton.jit
def race_kernel(logits, stride, row_params, request_params, masks, exceptions, scratch, num_tiles, num_plain,
                vocab_size, draft, values, rows, nodes, prefixes, residual_masses, racers, TILE: tl.constexpr,
                TILES: tl.constexpr, HAS_ALLOWED: tl.constexpr, HAS_SPECIAL: tl.constexpr, LAW: tl.constexpr,
                STEPS: tl.constexpr, NODES: tl.constexpr, PARTS: tl.constexpr, SPLITS: tl.constexpr,
                BLOCK: tl.constexpr):  # fmt: skip
    """Grid: requests * SPLITS. Where the request stops, and this split's best two of the race there.

    racers: (best scores and runner-ups [requests, 2, SPLITS], ids [requests, SPLITS], stops, faults [requests], P).
    """
    request = tl.program_id(0) // SPLITS
    split = tl.program_id(0) % SPLITS
    first = tl.load(draft[0] + request)
    num_nodes = tl.load(draft[0] + request + 1) - first - 1
    prefix = tl.full((), 1.0, tl.float64)
    if BLOCK:
        stop, prefix, fault = stop_of_block(request, first, num_nodes, draft, rows, nodes, prefixes, residual_masses,
                                            NODES, PARTS)  # fmt: skip
    else:
        stop, fault = stop_of_rejection(first, num_nodes, draft, rows, nodes, NODES)
    if split == 0:
        tl.store(racers[2] + request, stop)
        tl.store(racers[3] + request, fault)
        tl.store(racers[4] + request, prefix)
    if fault == 0:
        row_index = first + stop
        bonus = (stop == num_nodes).to(tl.int32)
        scale = scale_of(tl.load(request_params[0] + request))
        word = tl.where(bonus > 0, BONUS, stop + RESIDUAL)
        share = tl.cdiv(num_tiles, SPLITS)
        best, best_id, second = race_tiles(
            row_of(row_index, request, logits, stride, masks, exceptions, HAS_ALLOWED, HAS_SPECIAL),
            scratch[0] + row_index * TILES, split * share, tl.minimum((split + 1) * share, num_tiles),
            (num_tiles, num_plain, vocab_size),
            noise_at(row_index, first, request, row_params, request_params, word),
            law_of(row_index, tl.where(bonus > 0, 1.0, prefix), scale, rows),
            node_of(row_index, request, bonus, draft, values, nodes, LAW), bonus, TILE, LAW, STEPS, HAS_ALLOWED,
            HAS_SPECIAL)  # fmt: skip
        place = request * SPLITS + split
        tl.store(racers[0] + 2 * request * SPLITS + split, best)
        tl.store(racers[0] + (2 * request + 1) * SPLITS + split, second)
        tl.store(racers[1] + place, best_id)


@triton.jit
def finish_kernel(logits, stride, row_params, request_params, masks, exceptions, scratch, num_tiles, num_plain,
                  vocab_size, draft, values, rows, nodes, racers, verdict, TILE: tl.constexpr,
                  HAS_ALLOWED: tl.constexpr, HAS_SPECIAL: tl.constexpr, LAW: tl.constexpr, STEPS: tl.constexpr,
                  NODES: tl.constexpr, SPLITS: tl.constexpr):  # fmt: skip
    """Grid: requests. The race's winner, by float64 where float32 can't order it; then the verdict as in keyed."""
    request = tl.program_id(0)
    first = tl.load(draft[0] + request)
    num_nodes = tl.load(draft[0] + request + 1) - first - 1
    stop, fault = tl.load(racers[2] + request), tl.load(racers[3] + request)
    winner = tl.full((), -1, tl.int32)
    if fault == 0:
        split = tl.arange(0, SPLITS)
        scores = tl.load(racers[0] + 2 * request * SPLITS + split)
        ids = tl.load(racers[1] + request * SPLITS + split)
        best = tl.max(scores, 0)
        winner = tl.min(tl.where(scores == best, ids, vocab_size), 0)
        second = tl.load(racers[0] + (2 * request + 1) * SPLITS + split)
        second = tl.maximum(second, tl.where(ids == winner, -float("inf"), scores))
        if (tl.max(second, 0) >= best - nearness(best)) | (best == -float("inf")):
            row_index = first + stop
            bonus = (stop == num_nodes).to(tl.int32)
            scale = scale_of(tl.load(request_params[0] + request))
            word = tl.where(bonus > 0, BONUS, stop + RESIDUAL)
            row = row_of(row_index, request, logits, stride, masks, exceptions, HAS_ALLOWED, HAS_SPECIAL)
            shape = (num_tiles, num_plain, vocab_size)
            noise = noise_at(row_index, first, request, row_params, request_params, word)
            node = node_of(row_index, request, bonus, draft, values, nodes, LAW)
            share = tl.where(bonus > 0, 1.0, tl.load(racers[4] + request))
            law = law_of(row_index, share, scale, rows)
            # An empty residual comes of rounding alone, and the token is then drawn from the target's law.
            draws_target = tl.maximum(bonus, (best == -float("inf")).to(tl.int32))
            winner = race_all(row, shape, noise, law, node, draws_target, TILE, LAW, STEPS, HAS_ALLOWED,
                              HAS_SPECIAL)  # fmt: skip
    position = tl.arange(0, NODES)
    drafted = tl.load(draft[1] + first + position + 1, mask=position < num_nodes, other=-1)
    emitted = tl.where(position < stop, drafted, tl.where(position == stop, winner, -1))
    place = request * NODES + position
    tl.store(verdict[0] + place, emitted)
    tl.store(verdict[1] + place, tl.where(position < stop, position + 1, -1))
    tl.store(verdict[2] + request, stop)
    tl.store(verdict[3] + request, fault)
