"""The launch after `pick`, under top-p and for many rows: masses before contenders, of rows that a walk may come to."""

import triton
import triton.language as tl

from draftproof.kernels.device.draw import LEFT, SUMMED
from draftproof.kernels.device.overlap import let_next_begin, wait_for_previous
from draftproof.kernels.device.request import row_of, scale_of
from draftproof.kernels.device.rows import level
from draftproof.kernels.device.sums import filled_parts, store_masses_of_part


@triton.jit
def sum_kernel(logits, stride, row_params, request_params, masks, exceptions, scratch, drawn, num_tiles, num_plain,
               num_racers, vocab_size, draft, num_nodes, TILE: tl.constexpr, TILES: tl.constexpr, RACERS: tl.constexpr,
               GROUP: tl.constexpr, PARTS: tl.constexpr, HAS_ALLOWED: tl.constexpr, HAS_SPECIAL: tl.constexpr,
               NODES: tl.constexpr, OVERLAP: tl.constexpr):  # fmt: skip
    """Grid: any. The masses before the contenders of rows that `pick_kernel` left to be summed, where a walk may come
    to them.

    draft: (offsets, drafted, parents, ancestors [rows, num_nodes]), as in `walk_kernel` and `arguments.Rows`.
    """
    let_next_begin(OVERLAP)
    node = tl.arange(0, NODES)
    tile = tl.arange(0, TILES)
    wait_for_previous(OVERLAP)
    num_parts = filled_parts(num_tiles, TILES, PARTS)
    for item in range(tl.program_id(0), tl.load(scratch[10]) * num_parts, tl.num_programs(0)):
        place = scratch[10] + 2 + 2 * (item // num_parts)
        row_index, request = tl.load(place), tl.load(place + 1)
        first = tl.load(draft[0] + request)
        above = (node > 0) & (node <= num_nodes)
        above = above & (tl.load(draft[3] + row_index * num_nodes + node - 1, mask=above, other=0) != 0)
        drafted = tl.load(draft[1] + first + node, mask=above, other=-1)
        parents = first + tl.load(draft[2] + first + node, mask=above, other=0)
        if may_come(drawn, above, drafted, parents):
            scale = scale_of(tl.load(request_params[0] + request))
            tile_max = scratch[0] + row_index * TILES
            if HAS_SPECIAL:
                largest = tl.load(drawn[9] + row_index)
            else:
                largest = tl.max(tl.load(tile_max + tile, mask=tile < num_tiles, other=-float("inf")), 0)
            z = drawn[7] + 3 * row_index
            store_masses_of_part(
                row_of(row_index, request, logits, stride, masks, exceptions, HAS_ALLOWED, HAS_SPECIAL), tile_max,
                item % num_parts, (num_tiles, num_plain, vocab_size), scale, level(largest, scale),
                ((tl.load(z), tl.load(drawn[0] + row_index)), (tl.load(z + 1), tl.load(drawn[5] + row_index)),
                 (tl.load(z + 2), tl.load(drawn[6] + row_index))),
                drawn[4] + row_index * (3 * PARTS), TILES, GROUP, TILE, PARTS, HAS_ALLOWED, HAS_SPECIAL)  # fmt: skip


@triton.jit
def may_come(drawn, above, drafted, parents):
    """Whether a walk may come to a row, as far as picks say: none of its ancestors' rows surely draws another token.

    above: [NODES] which nodes are ancestors; drafted, parents: their tokens, and the rows that these follow.
    """
    states = tl.load(drawn[2] + parents, mask=above, other=LEFT)
    first = tl.load(drawn[0] + parents, mask=above, other=-1)
    second = tl.load(drawn[5] + parents, mask=above, other=-1)
    third = tl.load(drawn[6] + parents, mask=above, other=-1)
    later = (second == drafted) | (third == drafted) | (second < 0) | (third < 0)
    likely = (first == drafted) | (states == LEFT) | ((states == SUMMED) & later)
    return tl.min((likely | (above == 0)).to(tl.int32), 0) > 0
