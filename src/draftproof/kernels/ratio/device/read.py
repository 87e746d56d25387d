"""The one read of both laws: every tile's maximum and mass, of the target's rows and of a draft's rows from logits."""

import triton
import triton.language as tl

from draftproof.kernels.device.before import next_above
from draftproof.kernels.device.exceptions import read_exceptions
from draftproof.kernels.device.overlap import let_next_begin, wait_for_previous
from draftproof.kernels.device.race import SLOTS
from draftproof.kernels.device.ratio import LOGITS
from draftproof.kernels.device.read import first_of_split, read_split
from draftproof.kernels.device.read_kernel import split_of
from draftproof.kernels.device.request import noise_of, row_of, scale_of
from draftproof.kernels.device.samples import BUCKETS, PARTS, count_part
from draftproof.kernels.device.wanted import has_top_p_alone, place_of


@triton.jit
def read_pair_kernel(logits, quads, stride, quad_stride, row_params, request_params, masks, exceptions, scratch,
                     num_plain, tiles_per_split, vocab_size, num_plain_splits, draft, values, draft_quads,
                     draft_quad_stride, draft_temperature, draft_scratch, draft_tiles, draft_tiles_per_split,
                     draft_splits, before, sample, TILE: tl.constexpr, TILES: tl.constexpr,
                     PACKED: tl.constexpr, KIND: tl.constexpr, EVEN: tl.constexpr, DRAFT_TILES: tl.constexpr,
                     DRAFT_PACKED: tl.constexpr, DRAFT_KIND: tl.constexpr, DRAFT_EVEN: tl.constexpr,
                     DRAFT_TILE: tl.constexpr, HAS_ALLOWED: tl.constexpr, HAS_SPECIAL: tl.constexpr,
                     LAW: tl.constexpr, MASS: tl.constexpr, GROUPS: tl.constexpr, BEFORE: tl.constexpr,
                     OVERLAP: tl.constexpr, SAMPLES: tl.constexpr):  # fmt: skip
    """Grid: rows * (target's splits + draft's splits), one warp each: maxima and masses of both laws' tiles.

    MASS: whether the target's masses are asked for, which top-k and min-p don't. GROUPS: whether its groups' maxima.
    BEFORE: whether what ranks before drafted tokens is, where top-p alone asks: `before` [rows, TILES], by tiles.
    SAMPLES: whether each row's sample is counted, by programs that come first: (counts [rows, PARTS, BUCKETS] int32,
    ends [rows, 2] float32), as in samples.py.
    """
    let_next_begin(OVERLAP)
    num_samplers = PARTS if SAMPLES else 0
    num_rows = tl.num_programs(0) // (num_plain_splits + HAS_SPECIAL + draft_splits + num_samplers)
    program = tl.program_id(0) - num_rows * num_samplers
    if SAMPLES:
        if program < 0:
            row_index, part = tl.program_id(0) // PARTS, tl.program_id(0) % PARTS
            request = tl.load(row_params[0] + row_index)
            if has_top_p_alone(request, request_params):
                count_part(row_of(row_index, request, logits, stride, masks, exceptions, HAS_ALLOWED, False), part,
                           scale_of(tl.load(request_params[0] + request)), vocab_size,
                           sample[0] + (row_index * PARTS + part) * BUCKETS, sample[1] + 2 * row_index,
                           HAS_ALLOWED, OVERLAP)  # fmt: skip
    if program >= 0:
        read_pair(program, num_rows, logits, quads, stride, quad_stride, row_params, request_params, masks, exceptions,
                  scratch, num_plain, tiles_per_split, vocab_size, num_plain_splits, draft, values, draft_quads,
                  draft_quad_stride, draft_temperature, draft_scratch, draft_tiles, draft_tiles_per_split, draft_splits,
                  before, TILE, TILES, PACKED, KIND, EVEN, DRAFT_TILES, DRAFT_PACKED, DRAFT_KIND, DRAFT_EVEN,
                  DRAFT_TILE, HAS_ALLOWED, HAS_SPECIAL, LAW, MASS, GROUPS, BEFORE, OVERLAP)  # fmt: skip


@triton.jit
def read_pair(program, num_rows, logits, quads, stride, quad_stride, row_params, request_params, masks, exceptions,
              scratch, num_plain, tiles_per_split, vocab_size, num_plain_splits, draft, values, draft_quads,
              draft_quad_stride, draft_temperature, draft_scratch, draft_tiles, draft_tiles_per_split, draft_splits,
              before, TILE: tl.constexpr, TILES: tl.constexpr, PACKED: tl.constexpr, KIND: tl.constexpr,
              EVEN: tl.constexpr, DRAFT_TILES: tl.constexpr, DRAFT_PACKED: tl.constexpr, DRAFT_KIND: tl.constexpr,
              DRAFT_EVEN: tl.constexpr, DRAFT_TILE: tl.constexpr, HAS_ALLOWED: tl.constexpr,
              HAS_SPECIAL: tl.constexpr, LAW: tl.constexpr, MASS: tl.constexpr, GROUPS: tl.constexpr,
              BEFORE: tl.constexpr, OVERLAP: tl.constexpr):  # fmt: skip
    """What one of the programs of `read_pair_kernel` reads."""
    num_target = num_plain_splits + HAS_SPECIAL
    num_splits = num_target + draft_splits
    row_index = program // num_splits
    split = program % num_splits
    if split < num_target:
        split = split_of(split, num_plain_splits, HAS_SPECIAL)
    quads_ptr = quads + row_index.to(tl.int64) * quad_stride
    coming = first_of_split(quads_ptr, split, tiles_per_split, vocab_size, TILE, PACKED, KIND, EVEN)
    request, first, local, num_nodes = place_of(row_index, row_params, draft[0])
    following = tl.load(row_params[0] + row_index + 1, mask=row_index + 1 < num_rows, other=-1)
    noise = noise_of(row_index, request, row_params, request_params)
    if split < num_target:
        scale = scale_of(tl.load(request_params[0] + request))
        row = row_of(row_index, request, logits, stride, masks, exceptions, HAS_ALLOWED, HAS_SPECIAL)
        tile_max, tile_mass = scratch[0] + row_index * TILES, scratch[1] + row_index * TILES
        group_max = scratch[8] + row_index.to(tl.int64) * ((num_plain + exceptions[2] // TILE) * SLOTS)
        token = (0.0, 0.0, 0)
        if BEFORE:
            asked = (local < num_nodes) & has_top_p_alone(request, request_params)
            token_id = tl.load(draft[1] + row_index + 1, mask=asked, other=-1)
            inside = (token_id >= 0) & (token_id < vocab_size)
            z = tl.load(row[0] + token_id, mask=inside, other=float("inf")).to(tl.float32)
            token = (z, next_above(z), token_id)
        read_split(row, quads_ptr, coming, noise, scale, False, split, tile_max, tile_mass, group_max, num_plain,
                   tiles_per_split, vocab_size, TILE, PACKED, KIND, EVEN, HAS_ALLOWED, HAS_SPECIAL, False, MASS,
                   GROUPS, OVERLAP, tile_before=before + row_index * TILES, token=token, BEFORE=BEFORE)  # fmt: skip
        if HAS_SPECIAL:
            if split == num_plain_splits:
                wait_for_previous(OVERLAP)
                read_exceptions(row, row_index, request, exceptions, noise, scale, False,
                                (tile_max + num_plain, tile_mass + num_plain), vocab_size, TILE, HAS_ALLOWED, False,
                                MASS)  # fmt: skip
    elif LAW == LOGITS:
        # Of a request's last row, which has no node, the next row's request tells without a look at the request's own.
        if request == following:
            index = row_index - request
            scale = scale_of(tl.load(draft_temperature + request))
            start = values[0] + index.to(tl.int64) * values[1]
            draft_ptr = draft_quads + index.to(tl.int64) * draft_quad_stride
            first_tile = first_of_split(draft_ptr, split - num_target, draft_tiles_per_split, values[4], DRAFT_TILE,
                                        DRAFT_PACKED, DRAFT_KIND, DRAFT_EVEN)  # fmt: skip
            read_split((start, start, start, start, start), draft_ptr, first_tile, noise, scale, False,
                       split - num_target, draft_scratch[0] + index * DRAFT_TILES,
                       draft_scratch[1] + index * DRAFT_TILES, scratch[8], draft_tiles, draft_tiles_per_split,
                       values[4], DRAFT_TILE, DRAFT_PACKED, DRAFT_KIND, DRAFT_EVEN, False, False, False, True, False,
                       OVERLAP)  # fmt: skip
