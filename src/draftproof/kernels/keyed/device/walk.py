"""The last launch: requests walk their drafts, by what their rows have picked."""

import triton
import triton.language as tl

from draftproof.kernels.device.draw import DRAWN, LEFT, NEAR_MASS, OK, SUMMED, health, rescue
from draftproof.kernels.device.noise import nearness
from draftproof.kernels.device.overlap import wait_for_previous
from draftproof.kernels.device.passes import largest_of_row
from draftproof.kernels.device.request import is_loose, is_raced, noise_of, row_of, scale_of
from draftproof.kernels.device.rows import larger, max_or_nan
from draftproof.kernels.device.sums import UNITS


@triton.jit
def walk_kernel(logits, stride, row_params, request_params, masks, exceptions, scratch, drawn, num_tiles, num_plain,
                num_racers, vocab_size, draft, verdict, TILE: tl.constexpr, TILES: tl.constexpr, RACERS: tl.constexpr,
                GROUP: tl.constexpr, KEY_SHIFT: tl.constexpr, HAS_ALLOWED: tl.constexpr, HAS_SPECIAL: tl.constexpr,
                FILTERS: tl.constexpr, SUMS: tl.constexpr, NODES: tl.constexpr, TREE: tl.constexpr,
                PICKS: tl.constexpr, OVERLAP: tl.constexpr):  # fmt: skip
    """Grid: requests. Keeps drafted tokens while they equal the drawn ones. PICKS: no row has a filter, and rows are
    picked here.

    draft: (offsets [requests + 1], drafted [rows], parents [rows]). verdict: (token ids [requests, NODES], accepted
    rows [requests, NODES], number accepted, fault [requests]); entries past the emitted ones are -1.
    """
    request = tl.program_id(0)
    first = tl.load(draft[0] + request)
    num_rows = tl.load(draft[0] + request + 1) - first
    node = tl.arange(0, NODES)
    inside = node < num_rows
    is_node = inside & (node > 0)
    drafted = tl.load(draft[1] + first + node, mask=is_node, other=-2)
    parents = tl.load(draft[2] + first + node, mask=is_node, other=-1)
    # All rows of a chain up to the first that stops it are taken at once.
    follows = tl.load(draft[1] + first + node + 1, mask=node + 1 < num_rows, other=-2)
    # Once for nothing while others run, so that the instructions are there when the rows are.
    FIRST: tl.constexpr = 0 if OVERLAP else 1
    for turn in range(FIRST, 2):
        if turn == 1:
            wait_for_previous(OVERLAP)
        there = inside & (turn == 1)
        if PICKS:
            tokens, faults, states = pick_unfiltered(scratch, first + node, there, num_racers, vocab_size, RACERS)
            if not is_raced(request, request_params):
                tokens, faults, states = 0 * node - 1, 0 * node, tl.where(there, LEFT, DRAWN)
            tl.store(drawn[0] + first + node, tokens, mask=there)
            tl.store(drawn[1] + first + node, faults, mask=there)
            tl.store(drawn[2] + first + node, states, mask=there)
        else:
            tokens = tl.load(drawn[0] + first + node, mask=there, other=-1)
            faults = tl.load(drawn[1] + first + node, mask=there, other=0)
            states = tl.load(drawn[2] + first + node, mask=there, other=0)
        dropped = tl.full((NODES,), -1, tl.int32)
        if SUMS:
            # All that memory brings is asked for before any of it is used.
            rows = first + node
            sums = scratch[11] + 4 * rows
            masses = (tl.load(sums, mask=there, other=0), tl.load(sums + 1, mask=there, other=0),
                      tl.load(sums + 2, mask=there, other=0))  # fmt: skip
            num_summed = tl.load(sums + 3, mask=there, other=0)
            contenders = (tokens, tl.load(drawn[4] + rows, mask=there, other=-1),
                          tl.load(drawn[5] + rows, mask=there, other=-1))  # fmt: skip
            wanted = tl.load(drawn[3] + rows, mask=there, other=0.0)
            off = NEAR_MASS * wanted
            if HAS_SPECIAL:
                off = tl.maximum(off, tl.load(drawn[7] + rows, mask=there, other=0.0))
            summed = inside & (states == SUMMED)
            states = tl.where(summed, LEFT, states)
            # Rows that no walk was likely to come to.
            summed = summed & (num_summed > 0)
            for rank in tl.static_range(2, -1, -1):
                ranked = contenders[rank]
                mass = masses[rank].to(tl.float64)
                kept = summed & (ranked >= 0) & (mass < wanted * UNITS)
                tokens = tl.where(kept, ranked, tokens)
                near = summed & (ranked >= 0) & (tl.abs(mass - wanted * UNITS) <= off * UNITS)
                states = tl.where(near, LEFT, tl.where(kept, DRAWN, states))
                dropped = tl.where((dropped < 0) & summed & (kept == 0) & (near == 0), ranked, dropped)
        emitted = tl.full((NODES,), -1, tl.int32)
        path = tl.full((NODES,), -1, tl.int32)
        num_accepted = tl.zeros((), tl.int32)
        current = tl.zeros((), tl.int32)
        fault = tl.zeros((), tl.int32)
        going = tl.full((), 1, tl.int32)
        while going > 0:
            if not TREE:
                current = tl.min(tl.where((follows != tokens) | (faults != 0) | (states == LEFT), node, NODES), 0)
            if tl.max(tl.where(node == current, states, 0), 0) == LEFT:
                row_index = first + current
                tile_max = scratch[0] + row_index * TILES
                tile = tl.arange(0, TILES)
                largest = max_or_nan(tl.load(tile_max + tile, mask=tile < num_tiles, other=-float("inf")))
                temperature = tl.load(request_params[0] + request)
                last_dropped = tl.full((), -1, tl.int32)
                if FILTERS:
                    last_dropped = tl.max(tl.where(node == current, dropped, -1), 0)
                if PICKS:
                    if temperature == 0:
                        faults = tl.where(node == current, health(largest), faults)
                row = row_of(row_index, request, logits, stride, masks, exceptions, HAS_ALLOWED, HAS_SPECIAL)
                if HAS_SPECIAL and FILTERS:
                    if is_loose(request, request_params):
                        largest = largest_of_row(row, scratch[5] + row_index * TILES, tile_max,
                                                 (num_tiles, num_plain, vocab_size), TILES, GROUP, TILE, HAS_ALLOWED,
                                                 HAS_SPECIAL)  # fmt: skip
                        faults = tl.where(node == current, health(largest), faults)
                token = rescue(
                    row, noise_of(row_index, request, row_params, request_params),
                    scratch[5] + row_index * TILES, tile_max, scratch[1] + row_index * TILES,
                    (scratch[2] + row_index * (3 * RACERS), scratch[3] + row_index * (2 * RACERS),
                     scratch[4] + row_index * (2 * RACERS)),
                    (num_tiles, num_plain, vocab_size), largest, scale_of(temperature), temperature,
                    tl.load(request_params[1] + request), tl.load(request_params[2] + request),
                    tl.load(request_params[3] + request), num_racers, last_dropped, RACERS, TILES, GROUP, TILE,
                    KEY_SHIFT, HAS_ALLOWED, HAS_SPECIAL, FILTERS)  # fmt: skip
                tokens = tl.where((node == current) & (faults == OK), token, tokens)
                states = tl.where(node == current, 0, states)
            elif TREE:
                fault = tl.max(tl.where(node == current, faults, 0), 0)
                token = tl.max(tl.where(node == current, tokens, -1), 0)
                emitted = tl.where((node == num_accepted) & (fault == 0), token, emitted)
                child = tl.min(tl.where(is_node & (parents == current) & (drafted == token), node, NODES), 0)
                going = ((child < NODES) & (fault == 0)).to(tl.int32)
                if going > 0:
                    path = tl.where(node == num_accepted, child, path)
                    num_accepted += 1
                    current = child
            else:
                going = tl.zeros((), tl.int32)
                num_accepted = current
                fault = tl.max(tl.where(node == current, faults, 0), 0)
                emitted = tl.where((node < current) | ((node == current) & (fault == 0)), tokens, -1)
                path = tl.where(node < current, node + 1, -1)
        if turn == 1:
            place = request * NODES + node
            tl.store(verdict[0] + place, emitted)
            tl.store(verdict[1] + place, path)
            tl.store(verdict[2] + request, num_accepted)
            tl.store(verdict[3] + request, fault)


@triton.jit
def pick_unfiltered(scratch, rows, inside, num_racers, vocab_size, RACERS: tl.constexpr):
    """[NODES] (tokens, faults, states) of rows that were raced and have no filter, by their splits' best."""
    place = tl.arange(0, 2 * RACERS)[None, :]
    there = inside[:, None] & (place % RACERS < num_racers)
    scores = tl.load(scratch[2] + rows[:, None] * (3 * RACERS) + place, mask=there, other=-float("inf"))
    ids = tl.load(scratch[3] + rows[:, None] * (2 * RACERS) + place, mask=there, other=0)
    split = tl.arange(0, RACERS)[None, :]
    thirds = tl.load(scratch[2] + rows[:, None] * (3 * RACERS) + 2 * RACERS + split,
                     mask=inside[:, None] & (split < num_racers), other=-float("inf"))  # fmt: skip
    best = tl.reduce(scores, 1, larger)
    faults = tl.where(inside, health(best), OK)
    winners = tl.min(tl.where((scores == best[:, None]) & there, ids, vocab_size), 1)
    floor = (best - nearness(best))[:, None]
    close = tl.max((there & (ids != winners[:, None]) & (scores >= floor)).to(tl.int32), 1)
    unseen = tl.max((thirds >= floor).to(tl.int32), 1)
    healthy = faults == OK
    states = tl.where(inside & healthy & (close + unseen > 0), LEFT, DRAWN)
    return tl.where(healthy, winners, -1), faults, states
