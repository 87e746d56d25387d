"""The launch after `pick`, under top-p and for many rows: masses before contenders, of rows that a walk may come to."""

import triton
import triton.language as tl

from draftproof.kernels.device.draw import LEFT, SUMMED
from draftproof.kernels.device.overlap import let_next_begin, wait_for_previous
from draftproof.kernels.device.request import row_of, scale_of
from draftproof.kernels.device.rows import level
from draftproof.kernels.device.sums import add_masses_of_part, filled_parts


@triton.jit
def sum_kernel(logits, stride, row_params, request_params, masks, exceptions, scratch, drawn, num_tiles, num_plain,
               num_racers, vocab_size, draft, num_nodes, TILE: tl.constexpr, TILES: tl.constexpr, RACERS: tl.constexpr,
               GROUP: tl.constexpr, PARTS: tl.constexpr, HAS_ALLOWED: tl.constexpr, HAS_SPECIAL: tl.constexpr,
               NODES: tl.constexpr, TREE: tl.constexpr, OVERLAP: tl.constexpr):  # fmt: skip
    """Grid: any. The masses before the contenders of rows that `pick_kernel` left to be summed, where a walk may come
    to them.

    draft: (drafted, parents, ancestors [rows, num_nodes]), as in `walk_kernel` and `arguments.Rows`.
    """
    let_next_begin(OVERLAP)
    node, tile = tl.arange(0, NODES), tl.arange(0, TILES)
    num_parts = filled_parts(num_tiles, TILES, PARTS)
    item = tl.program_id(0)
    wait_for_previous(OVERLAP)
    # What memory brings of a row is asked for before any of it is used, and its place in the list before it is known
    # whether there is one.
    row_index, request, first = listed_row(scratch[10], item // num_parts, True)
    num_items = tl.load(scratch[10]) * num_parts
    while item < num_items:
        above = (node > 0) & (node <= row_index - first)
        drafted = tl.load(draft[0] + first + node, mask=above, other=-1)
        parents = first + node - 1
        if TREE:
            parents = first + tl.load(draft[1] + first + node, mask=above, other=0)
            above = above & (tl.load(draft[2] + row_index * num_nodes + node - 1, mask=above, other=0) != 0)
        tile_max = scratch[0] + row_index * TILES
        if HAS_SPECIAL:
            largest = tl.load(drawn[8] + row_index)
        else:
            largest = tl.max(tl.load(tile_max + tile, mask=tile < num_tiles, other=-float("inf")), 0)
        scale = scale_of(tl.load(request_params[0] + request))
        z = drawn[6] + 3 * row_index
        bounds = ((tl.load(z), tl.load(drawn[0] + row_index)), (tl.load(z + 1), tl.load(drawn[4] + row_index)),
                  (tl.load(z + 2), tl.load(drawn[5] + row_index)))  # fmt: skip
        if may_come(drawn, above, drafted, parents):
            add_masses_of_part(
                row_of(row_index, request, logits, stride, masks, exceptions, HAS_ALLOWED, HAS_SPECIAL), tile_max,
                item % num_parts, (num_tiles, num_plain, vocab_size), scale, level(largest, scale), bounds,
                scratch[11] + 4 * row_index, TILES, GROUP, TILE, PARTS, HAS_ALLOWED, HAS_SPECIAL)  # fmt: skip
        item += tl.num_programs(0)
        row_index, request, first = listed_row(scratch[10], item // num_parts, item < num_items)


@triton.jit
def listed_row(listed, index, inside):
    """(row, request, the request's first row) of a list that `pick_kernel` makes; read where `inside`."""
    place = listed + 4 + 4 * index
    return (tl.load(place, mask=inside, other=0), tl.load(place + 1, mask=inside, other=0),
            tl.load(place + 2, mask=inside, other=0))  # fmt: skip


@triton.jit
def may_come(drawn, above, drafted, parents):
    """Whether a walk may come to a row, as far as picks say: none of its ancestors' rows surely draws another token.

    above: [NODES] which nodes are ancestors; drafted, parents: their tokens, and the rows that these follow.
    """
    states = tl.load(drawn[2] + parents, mask=above, other=LEFT)
    first = tl.load(drawn[0] + parents, mask=above, other=-1)
    second = tl.load(drawn[4] + parents, mask=above, other=-1)
    third = tl.load(drawn[5] + parents, mask=above, other=-1)
    later = (second == drafted) | (third == drafted) | (second < 0) | (third < 0)
    likely = (first == drafted) | (states == LEFT) | ((states == SUMMED) & later)
    return tl.min((likely | (above == 0)).to(tl.int32), 0) > 0
