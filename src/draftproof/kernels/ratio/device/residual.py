"""The residual: its mass where `block` asks for it, its race where a request stops, and the verdict."""

import triton
import triton.language as tl

from draftproof.kernels.device.noise import nearness
from draftproof.kernels.device.overlap import let_next_begin, wait_for_previous
from draftproof.kernels.device.ratio import race_all, race_tiles, residual_mass
from draftproof.kernels.device.request import row_of, scale_of
from draftproof.kernels.ratio.device.emit import drafted_of, store_verdict
from draftproof.kernels.ratio.device.state import BONUS, RESIDUAL, law_of, node_of, noise_at
from draftproof.kernels.ratio.device.stop import stop_of_block, stop_of_rejection


@triton.jit
def mass_kernel(logits, stride, row_params, request_params, masks, exceptions, scratch, num_tiles, num_plain,
                vocab_size, draft, values, rows, nodes, prefixes, residual_masses, TILE: tl.constexpr,
                TILES: tl.constexpr, HAS_ALLOWED: tl.constexpr, HAS_SPECIAL: tl.constexpr, LAW: tl.constexpr,
                STEPS: tl.constexpr, OVERLAP: tl.constexpr):  # fmt: skip
    """Grid: any number of programs, which share the wanted rows. Their S_i, in units of 2^-56."""
    let_next_begin(OVERLAP)
    wait_for_previous(OVERLAP)
    count = tl.load(residual_masses[1])
    parts = tl.maximum(tl.minimum(tl.num_programs(0) // tl.maximum(count, 1), num_tiles // 2), 1)
    share = tl.cdiv(num_tiles, parts)
    shape = (num_tiles, num_plain, vocab_size)
    for item in range(tl.program_id(0), count * parts, tl.num_programs(0)):
        row_index = tl.load(residual_masses[2] + item // parts)
        request = tl.load(row_params[0] + row_index)
        part = item % parts
        scale = scale_of(tl.load(request_params[0] + request))
        mass = residual_mass(
            row_of(row_index, request, logits, stride, masks, exceptions, HAS_ALLOWED, HAS_SPECIAL),
            scratch[0] + row_index * TILES, part * share, tl.minimum((part + 1) * share, num_tiles), shape,
            law_of(row_index, tl.load(prefixes[0] + row_index), scale, rows),
            node_of(row_index, request, 0, draft, values, nodes, LAW), TILE, LAW, STEPS, HAS_ALLOWED,
            HAS_SPECIAL)  # fmt: skip
        tl.atomic_add(residual_masses[0] + row_index, mass, sem="relaxed")


@triton.jit
def race_kernel(logits, stride, row_params, request_params, masks, exceptions, scratch, num_tiles, num_plain,
                vocab_size, draft, values, rows, nodes, prefixes, residual_masses, racers, verdict, num_splits,
                TILE: tl.constexpr, TILES: tl.constexpr, HAS_ALLOWED: tl.constexpr, HAS_SPECIAL: tl.constexpr,
                LAW: tl.constexpr, STEPS: tl.constexpr, NODES: tl.constexpr, SPLITS: tl.constexpr, BLOCK: tl.constexpr,
                OVERLAP: tl.constexpr):  # fmt: skip
    """Grid: requests * num_splits. Where the request stops, and this split's best two of the race there.

    The last of a request's programs to end takes the race's winner, by float64 where float32 can't order it, and writes
    the verdict as in keyed.
    racers: (best scores, runner-ups, ids [requests, SPLITS >= num_splits], how many programs have ended [requests]).
    """
    let_next_begin(OVERLAP)
    request = tl.program_id(0) // num_splits
    split = tl.program_id(0) % num_splits
    first = tl.load(draft[0] + request)
    num_nodes = tl.load(draft[0] + request + 1) - first - 1
    noise = noise_at(first, first, request, row_params, request_params, 0 * request + BONUS)
    scale = scale_of(tl.load(request_params[0] + request))
    drafted = drafted_of(first, num_nodes, draft, NODES)
    wait_for_previous(OVERLAP)
    prefix = tl.full((), 1.0, tl.float64)
    if BLOCK:
        stop, prefix, fault = stop_of_block(request, first, num_nodes, draft, rows, nodes, prefixes, residual_masses,
                                            NODES)  # fmt: skip
    else:
        stop, fault = stop_of_rejection(first, num_nodes, draft, rows, nodes, NODES)
    row_index = first + stop
    bonus = (stop == num_nodes).to(tl.int32)
    row = row_of(row_index, request, logits, stride, masks, exceptions, HAS_ALLOWED, HAS_SPECIAL)
    shape = (num_tiles, num_plain, vocab_size)
    word = tl.where(bonus > 0, BONUS, stop + RESIDUAL)
    noise = (noise[0], noise[1], word.to(tl.uint32), noise[3], noise[4])
    law = law_of(row_index, tl.where(bonus > 0, 1.0, prefix), scale, rows)
    node = node_of(row_index, request, bonus, draft, values, nodes, LAW)
    if fault == 0:
        share = tl.cdiv(num_tiles, num_splits)
        best, best_id, second = race_tiles(
            row, scratch[0] + row_index * TILES, split * share, tl.minimum((split + 1) * share, num_tiles), shape,
            noise, law, node, bonus, TILE, LAW, STEPS, HAS_ALLOWED, HAS_SPECIAL)  # fmt: skip
        place = request * SPLITS + split
        tl.store(racers[0] + place, best)
        tl.store(racers[1] + place, second)
        tl.store(racers[2] + place, best_id)
    tl.debug_barrier()
    ended = tl.atomic_add(racers[3] + request, 1, sem="acq_rel")
    tl.debug_barrier()
    if ended == num_splits - 1:
        winner = tl.full((), -1, tl.int32)
        if fault == 0:
            winner = winner_of_splits(racers, request, num_splits, row, shape, noise, law, node, bonus, TILE, LAW,
                                      STEPS, SPLITS, HAS_ALLOWED, HAS_SPECIAL)  # fmt: skip
        store_verdict(request, stop, drafted, winner, fault, verdict, NODES)


@triton.jit
def winner_of_splits(racers, request, num_splits, row, shape, noise, law, node, bonus, TILE: tl.constexpr,
                     LAW: tl.constexpr, STEPS: tl.constexpr, SPLITS: tl.constexpr, HAS_ALLOWED: tl.constexpr,
                     HAS_SPECIAL: tl.constexpr):  # fmt: skip
    """The id that wins a request's race."""
    split = tl.arange(0, SPLITS)
    place, raced = request * SPLITS + split, split < num_splits
    scores = tl.load(racers[0] + place, mask=raced, other=-float("inf"))
    ids = tl.load(racers[2] + place, mask=raced, other=shape[2])
    best = tl.max(scores, 0)
    winner = tl.min(tl.where(scores == best, ids, shape[2]), 0)
    second = tl.maximum(
        tl.load(racers[1] + place, mask=raced, other=-float("inf")), tl.where(ids == winner, -float("inf"), scores)
    )
    if (tl.max(second, 0) >= best - nearness(best)) | (best == -float("inf")):
        # An empty residual comes of rounding alone, and the token is then drawn from the target's law.
        draws_target = tl.maximum(bonus, (best == -float("inf")).to(tl.int32))
        winner = race_all(row, shape, noise, law, node, draws_target, TILE, LAW, STEPS, HAS_ALLOWED,
                          HAS_SPECIAL)  # fmt: skip
    return winner
