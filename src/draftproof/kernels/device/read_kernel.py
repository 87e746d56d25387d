"""The kernel that reads every row once. All operations begin with it."""

import triton
import triton.language as tl

from draftproof.kernels.device.exceptions import read_exceptions
from draftproof.kernels.device.overlap import let_next_begin, wait_for_previous
from draftproof.kernels.device.race import SLOTS
from draftproof.kernels.device.read import first_of_split, read_split, store_found
from draftproof.kernels.device.request import is_loose, is_raced, noise_of, row_of, scale_of

AHEAD = tl.constexpr(64)  # rows whose special tokens are gathered before any of their tiles is read


@triton.jit
def read_kernel(logits, quads, stride, quad_stride, row_params, request_params, masks, exceptions, scratch, num_plain,
                tiles_per_split, vocab_size, num_plain_splits, TILE: tl.constexpr, TILES: tl.constexpr,
                RACERS: tl.constexpr, PACKED: tl.constexpr, KIND: tl.constexpr, EVEN: tl.constexpr,
                HAS_ALLOWED: tl.constexpr, HAS_SPECIAL: tl.constexpr, RACE: tl.constexpr,
                MASS: tl.constexpr, GROUPS: tl.constexpr, OVERLAP: tl.constexpr,
                LOOSE: tl.constexpr = False, SUMS: tl.constexpr = False):  # fmt: skip
    """Grid: rows * (num_plain_splits + HAS_SPECIAL), one warp each. Greedy rows, top-k and min-p aren't raced.

    SUMS: rows will be listed whose masses are to be summed; there are none yet.

    LOOSE: maxima of rows without min-p may be special tokens' (`is_loose`), and raced rows' masses hold theirs.
    """
    row_index, split = place_of(tl.program_id(0), num_plain_splits, HAS_SPECIAL, LOOSE and not RACE)
    let_next_begin(OVERLAP)
    if SUMS:
        if tl.program_id(0) == 0:
            tl.store(scratch[10], 0)
        if split == 0:
            tl.store(scratch[11] + 4 * row_index + tl.arange(0, 4), tl.zeros((4,), tl.int64))
    quads_ptr = quads + row_index.to(tl.int64) * quad_stride
    coming = first_of_split(quads_ptr, split, tiles_per_split, vocab_size, TILE, PACKED, KIND, EVEN)
    request = tl.load(row_params[0] + row_index)
    races = is_raced(request, request_params) & RACE
    loose = is_loose(request, request_params) & LOOSE
    noise = noise_of(row_index, request, row_params, request_params)
    scale = scale_of(tl.load(request_params[0] + request))
    row = row_of(row_index, request, logits, stride, masks, exceptions, HAS_ALLOWED, HAS_SPECIAL)
    tile_max, tile_mass = scratch[0] + row_index * TILES, scratch[1] + row_index * TILES
    group_max = scratch[8] + row_index.to(tl.int64) * ((num_plain + exceptions[2] // TILE) * SLOTS)
    found, faulty = read_split(row, quads_ptr, coming, noise, scale, races, split, tile_max, tile_mass, group_max,
                               num_plain, tiles_per_split, vocab_size, TILE, PACKED, KIND, EVEN, HAS_ALLOWED,
                               HAS_SPECIAL, RACE, MASS, GROUPS, OVERLAP, loose, MASS and not LOOSE)  # fmt: skip
    if HAS_SPECIAL:
        if split == num_plain_splits:
            wait_for_previous(OVERLAP)
            found, faulty = read_exceptions(
                row, row_index, request, exceptions, noise, scale, races,
                (tile_max + num_plain, tile_mass + num_plain), vocab_size, TILE, HAS_ALLOWED, RACE, MASS,
                scratch[-1] + row_index.to(tl.int64) * exceptions[2], LOOSE & MASS)  # fmt: skip
    if RACE:
        store_found(found, faulty, (scratch[2] + row_index * (3 * RACERS), scratch[3] + row_index * (2 * RACERS),
                                    scratch[4] + row_index * (2 * RACERS)), split, RACERS)  # fmt: skip


@triton.jit
def split_of(program, num_plain_splits, HAS_SPECIAL: tl.constexpr):
    """The split that one of a row's programs reads: the exceptions' is the last one, and begins first."""
    split = program
    if HAS_SPECIAL:
        split = tl.where(program == 0, num_plain_splits, program - 1)
    return split


@triton.jit
def place_of(program, num_plain_splits, HAS_SPECIAL: tl.constexpr, BESIDE: tl.constexpr):
    """(row, split) that a program reads. The exceptions' splits come last: short ones, which wait for nothing then.

    BESIDE: each comes AHEAD rows before its own instead, which finds in the cache what was gathered.
    """
    if BESIDE:
        num_splits = num_plain_splits + 1
        num_rows = tl.num_programs(0) // num_splits
        ahead = tl.minimum(AHEAD, num_rows)
        at = program - ahead
        row_index, split = at // num_splits, split_of(at % num_splits, num_plain_splits, HAS_SPECIAL)
        row_index = tl.where(split == num_plain_splits, row_index + ahead, row_index)
        beyond = at - (num_rows - ahead) * num_splits
        if beyond >= 0:
            row_index, split = num_rows - ahead + beyond // num_plain_splits, beyond % num_plain_splits
        if at < 0:
            row_index, split = program, num_plain_splits
    else:
        row_index, split = program // num_plain_splits, program % num_plain_splits
        if HAS_SPECIAL:
            num_rows = tl.num_programs(0) // (num_plain_splits + 1)
            beyond = program - num_rows * num_plain_splits
            row_index = tl.where(beyond >= 0, beyond, row_index)
            split = tl.where(beyond >= 0, num_plain_splits, split)
    return row_index, split
