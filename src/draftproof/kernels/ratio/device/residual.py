"""The residual: its mass where `block` asks for it, its race where a request stops, and the verdict."""

import triton
import triton.language as tl

from draftproof.kernels.device.noise import nearness
from draftproof.kernels.device.overlap import let_next_begin, wait_for_previous
from draftproof.kernels.device.ratio import race_all, race_tiles, residual_mass
from draftproof.kernels.device.request import row_of, scale_of
from draftproof.kernels.ratio.device.state import BONUS, RESIDUAL, law_of, node_of, noise_at
from draftproof.kernels.ratio.device.stop import stop_of_block, stop_of_rejection


@triton.jit
def mass_kernel(logits, stride, row_params, request_params, masks, exceptions, scratch, num_tiles, num_plain,
                vocab_size, draft, values, rows, nodes, prefixes, residual_masses, TILE: tl.constexpr,
                TILES: tl.constexpr, HAS_ALLOWED: tl.constexpr, HAS_SPECIAL: tl.constexpr, LAW: tl.constexpr,
                STEPS: tl.constexpr, PARTS: tl.constexpr, OVERLAP: tl.constexpr):  # fmt: skip
    """Grid: rows * PARTS. S_i's parts, in units of 2^-56, for wanted rows."""
    let_next_begin(OVERLAP)
    row_index = tl.program_id(0) // PARTS
    part = tl.program_id(0) % PARTS
    wait_for_previous(OVERLAP)
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
def race_kernel(logits, stride, row_params, request_params, masks, exceptions, scratch, num_tiles, num_plain,
                vocab_size, draft, values, rows, nodes, prefixes, residual_masses, racers, TILE: tl.constexpr,
                TILES: tl.constexpr, HAS_ALLOWED: tl.constexpr, HAS_SPECIAL: tl.constexpr, LAW: tl.constexpr,
                STEPS: tl.constexpr, NODES: tl.constexpr, PARTS: tl.constexpr, SPLITS: tl.constexpr,
                BLOCK: tl.constexpr, OVERLAP: tl.constexpr):  # fmt: skip
    """Grid: requests * SPLITS. Where the request stops, and this split's best two of the race there.

    racers: (best scores and runner-ups [requests, 2, SPLITS], ids [requests, SPLITS], stops, faults [requests], P).
    """
    let_next_begin(OVERLAP)
    request = tl.program_id(0) // SPLITS
    split = tl.program_id(0) % SPLITS
    first = tl.load(draft[0] + request)
    num_nodes = tl.load(draft[0] + request + 1) - first - 1
    wait_for_previous(OVERLAP)
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
                  NODES: tl.constexpr, SPLITS: tl.constexpr, OVERLAP: tl.constexpr):  # fmt: skip
    """Grid: requests. The race's winner, by float64 where float32 can't order it; then the verdict as in keyed."""
    let_next_begin(OVERLAP)
    request = tl.program_id(0)
    first = tl.load(draft[0] + request)
    num_nodes = tl.load(draft[0] + request + 1) - first - 1
    wait_for_previous(OVERLAP)
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
