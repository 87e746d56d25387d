"""The launch after the read: every row picks its token, or up to three of them that top-p is yet to decide between."""

import triton
import triton.language as tl

from draftproof.kernels.device.draw import OK, SUMMED, health, load_racers, pick
from draftproof.kernels.device.overlap import let_next_begin, wait_for_previous
from draftproof.kernels.device.race import SLOTS
from draftproof.kernels.device.request import is_raced, noise_of, row_of, scale_of
from draftproof.kernels.device.rows import level, max_or_nan
from draftproof.kernels.device.sums import add_masses_of_part, filled_parts


@triton.jit
def pick_kernel(logits, stride, row_params, request_params, masks, exceptions, scratch, drawn, num_tiles, num_plain,
                num_racers, vocab_size, offsets, TILE: tl.constexpr, TILES: tl.constexpr, RACERS: tl.constexpr,
                GROUP: tl.constexpr, LIST: tl.constexpr, KEY_SHIFT: tl.constexpr, PARTS: tl.constexpr,
                HAS_ALLOWED: tl.constexpr, HAS_SPECIAL: tl.constexpr, PACKED: tl.constexpr, KIND: tl.constexpr,
                EVEN: tl.constexpr, TOP_P: tl.constexpr, LISTS: tl.constexpr, RACED: tl.constexpr, SUMS: tl.constexpr,
                OVERLAP: tl.constexpr, LOOSE: tl.constexpr):  # fmt: skip
    """What `pick` says of each row. Grid: rows, times `filled_parts` with SUMS, where every program also sums its part.

    drawn: (tokens, faults, states, masses wanted, second, third tokens [rows], the three tokens' logits [rows, 3], what
    wanted masses may be off by, the logit that masses are relative to [rows]; the last two with HAS_SPECIAL). What
    stands before these tokens is summed in scratch[11], [rows, 4]: three masses and the number of parts that are in.
    """
    row_index, part = tl.program_id(0), tl.zeros((), tl.int32)
    if SUMS:
        num_parts = filled_parts(num_tiles, TILES, PARTS)
        row_index, part = tl.program_id(0) // num_parts, tl.program_id(0) % num_parts
    let_next_begin(OVERLAP)
    request = tl.load(row_params[0] + row_index)
    noise = noise_of(row_index, request, row_params, request_params)
    temperature, k = tl.load(request_params[0] + request), tl.load(request_params[1] + request)
    top_p, min_score = tl.load(request_params[2] + request), tl.load(request_params[3] + request)
    raced = is_raced(request, request_params)
    first = tl.load(offsets + request)
    wait_for_previous(OVERLAP)
    tile_max = scratch[0] + row_index * TILES
    tile = tl.arange(0, TILES)
    # All that memory brings is asked for before any of it is used.
    reach = tl.load(tile_max + tile, mask=tile < num_tiles, other=-float("inf"))
    tile_masses = reach
    if TOP_P:
        tile_masses = tl.load(scratch[1] + row_index * TILES + tile, mask=tile < num_tiles, other=0.0)
    racing = load_racers((scratch[2] + row_index * (3 * RACERS), scratch[3] + row_index * (2 * RACERS),
                          scratch[4] + row_index * (2 * RACERS)), num_racers if RACED else 0, RACERS)  # fmt: skip
    largest = max_or_nan(reach)
    fault = health(tl.where(raced, max_or_nan(racing[0]), largest))
    none = tl.full((), -1, tl.int32)
    tokens = (none, none, none)
    z = (0.0 * temperature, 0.0 * temperature, 0.0 * temperature)
    state = tl.full((), 0, tl.int32)
    wanted, doubt = tl.full((), 0.0, tl.float64), tl.full((), 0.0, tl.float64)
    row = row_of(row_index, request, logits, stride, masks, exceptions, HAS_ALLOWED, HAS_SPECIAL)
    scale = scale_of(temperature)
    if fault == OK:
        tokens, z, state, wanted, doubt, largest = pick(
            row, noise, scratch[5] + row_index * TILES, tile_max, reach, tile_masses,
            scratch[8] + row_index.to(tl.int64) * (num_tiles * SLOTS), scratch[9] + row_index * LIST, racing,
            (scratch[-1] + row_index.to(tl.int64) * exceptions[2], exceptions[3]), scratch[6] + row_index * LIST,
            scratch[7] + row_index * LIST, (num_tiles, num_plain, vocab_size), largest, scale, temperature, k, top_p,
            min_score, part, TILES, TILE, LIST, KEY_SHIFT, HAS_ALLOWED, HAS_SPECIAL, PACKED, KIND,
            EVEN, TOP_P, LISTS, LOOSE)  # fmt: skip
        if SUMS:
            if state == SUMMED:
                add_masses_of_part(
                    row, tile_max, part, (num_tiles, num_plain, vocab_size), scale, level(largest, scale),
                    ((z[0], tokens[0]), (z[1], tokens[1]), (z[2], tokens[2])), scratch[11] + 4 * row_index,
                    TILES, GROUP, TILE, PARTS, HAS_ALLOWED, HAS_SPECIAL)  # fmt: skip
    if part == 0:
        tl.store(drawn[0] + row_index, tokens[0])
        tl.store(drawn[1] + row_index, fault)
        tl.store(drawn[2] + row_index, state)
        tl.store(drawn[3] + row_index, wanted)
        if TOP_P:
            tl.store(drawn[4] + row_index, tokens[1])
            tl.store(drawn[5] + row_index, tokens[2])
            if HAS_SPECIAL:
                tl.store(drawn[7] + row_index, doubt)
                tl.store(drawn[8] + row_index, largest)
            if not SUMS:
                if state == SUMMED:
                    place = scratch[10] + 4 + 4 * tl.atomic_add(scratch[10], 1, sem="relaxed")
                    tl.store(place, row_index)
                    tl.store(place + 1, request)
                    tl.store(place + 2, first)
                for rank in tl.static_range(3):
                    tl.store(drawn[6] + 3 * row_index + rank, z[rank])
