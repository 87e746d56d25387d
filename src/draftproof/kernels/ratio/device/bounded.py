"""Tests and bounds of rows in one launch, where top-k or min-p lists what may be kept: neither asks the other.

A bound is then found whether or not the walk comes to its row. It costs less than a launch that waits for the tests; of
many rows less than it saves only where they are raced as well (listed.py).
"""

import triton
import triton.language as tl

from draftproof.kernels.device.bound_kernels import store_bound
from draftproof.kernels.device.draw import OK, health
from draftproof.kernels.device.overlap import let_next_begin, wait_for_previous
from draftproof.kernels.device.ratio import LOGITS
from draftproof.kernels.device.request import scale_of
from draftproof.kernels.ratio.device.bracketed import measured_row
from draftproof.kernels.ratio.device.draft_law import law_of_draft, tiles_of_draft
from draftproof.kernels.ratio.device.listed import stop_here, winner_of_list
from draftproof.kernels.ratio.device.measure import measure_row


@triton.jit
def bounded_test_kernel(logits, stride, row_params, request_params, masks, exceptions, scratch, num_tiles, num_plain,
                        vocab_size, draft, values, draft_temperature, draft_scratch, draft_tiles, before, rows, nodes,
                        bracket, residual_masses, num_ended, num_rows, TILE: tl.constexpr, TILES: tl.constexpr,
                        DRAFT_TILES: tl.constexpr, DRAFT_TILE: tl.constexpr, DRAFT_GROUP: tl.constexpr,
                        HAS_ALLOWED: tl.constexpr, HAS_SPECIAL: tl.constexpr, LAW: tl.constexpr, STEPS: tl.constexpr,
                        WIDTH: tl.constexpr, BLOCK: tl.constexpr, GROUP: tl.constexpr, LIST: tl.constexpr,
                        KEY_SHIFT: tl.constexpr, PACKED: tl.constexpr, KIND: tl.constexpr, EVEN: tl.constexpr,
                        RACES: tl.constexpr, OVERLAP: tl.constexpr):  # fmt: skip
    """Grid: 2 * rows. The first programs bound a row each, the others do what `test_kernel` does.

    No row has top-p alone. GROUP, LIST, KEY_SHIFT, PACKED, KIND, EVEN: as `bound_kernel` has them.
    RACES: whether a bounded row is raced as well, as in listed.py: winners are residual_masses[2].
    """
    let_next_begin(OVERLAP)
    if tl.program_id(0) < num_rows:
        row_index = tl.program_id(0)
        request = tl.load(row_params[0] + row_index)
        temperature = tl.load(request_params[0] + request)
        scale = scale_of(temperature)
        if RACES:
            here = stop_here(row_index, row_params, request_params, draft, values, draft_temperature, LAW)
        wait_for_previous(OVERLAP)
        reach, masses, largest, top, total = measured_row(row_index, scratch, num_tiles, scale, TILES)
        of_law = (0.0, 0.0, 0.0, 0.0, 0.0)
        if RACES and LAW == LOGITS:
            tiles = tiles_of_draft(row_index - request, draft_scratch, draft_tiles, here[0] == 0, DRAFT_TILES, LAW)
            of_law = law_of_draft(tiles, here[5])
        if health(largest) == OK:
            z_bound, id_bound, mass, num_found = store_bound(
                row_index, request, logits, stride, request_params, masks, exceptions, scratch,
                (num_tiles, num_plain, vocab_size), largest, total, rows, TILE, TILES, GROUP, LIST, KEY_SHIFT, PACKED,
                KIND, EVEN, HAS_ALLOWED, HAS_SPECIAL, True)  # fmt: skip
            if RACES:
                winner = winner_of_list(
                    here, of_law, scratch[6] + row_index * LIST, scratch[7] + row_index * LIST, num_found, values[4],
                    vocab_size, temperature, scale, largest, (z_bound, id_bound, mass), LAW, STEPS)  # fmt: skip
                tl.store(residual_masses[2] + row_index, winner)
    else:
        measure_row(tl.program_id(0) - num_rows, logits, stride, row_params, request_params, masks, exceptions,
                    scratch, num_tiles, num_plain, vocab_size, draft, values, draft_temperature, draft_scratch,
                    draft_tiles, before, rows, nodes, bracket, residual_masses, num_ended, TILE, TILES, DRAFT_TILES,
                    DRAFT_TILE, DRAFT_GROUP, HAS_ALLOWED, HAS_SPECIAL, LAW, STEPS, WIDTH, False, False, BLOCK, False,
                    False, True, OVERLAP, False, 0, 0)  # fmt: skip
