"""Which rows a walk may come to, as far as is known of them: only theirs are the bounds that are searched for.

rows: (faults, verdicts, z bounds, id bounds, largest logits, totals, masses, least masses), one entry a row each. Until
a row is bounded its bounds keep everything, and its mass is the least one, which the kept tokens don't fall below. What
is wanted is said by what doesn't change while rows are bounded.
nodes: as in ratio/device/state.py; of no meaning where WANTED is 0.
WANTED: which healthy rows are bounded: 0 all, 1 for `rejection`, 2 for `block`.
"""

import triton
import triton.language as tl

from draftproof.kernels.device.draw import OK
from draftproof.kernels.device.edges import WIDTH
from draftproof.kernels.device.request import is_raced
from draftproof.kernels.device.rows import level

ACCEPT = tl.constexpr(0)
REJECT = tl.constexpr(1)
UNSURE = tl.constexpr(2)
LAST = tl.constexpr(3)
KEPT = tl.constexpr(4)  # `block`: not decided, but kept by top-p
LOST = tl.constexpr(-3000.0)  # a step that no rise of steps makes up for


@triton.jit
def place_of(row_index, row_params, offsets):
    """(request, its first row, the row's index within the request, how many nodes the request has)."""
    request = tl.load(row_params[0] + row_index)
    first = tl.load(offsets + request)
    return request, first, row_index - first, tl.load(offsets + request + 1) - first - 1


@triton.jit
def store_unbounded(row_index, rows, bracket, largest, scale, total, temperature, k, top_p, min_score, vocab_size):
    """What is known of a row before its bound is: everything may be kept, and a mass that is kept at least.

    bracket: as in bound_kernels.py; its sums begin at 0.
    """
    listed = (k > 0) | (min_score > -float("inf")) | (temperature == 0)
    own = tl.exp2(tl.fma(largest, scale, -level(largest, scale))).to(tl.float64)
    tl.store(rows[2] + row_index, -float("inf"))
    tl.store(rows[3] + row_index, vocab_size)
    least = tl.where(listed, own, tl.minimum(top_p, 1.0) * total) * 0.99999
    tl.store(rows[6] + row_index, least)
    tl.store(rows[7] + row_index, least)
    tl.store(bracket[1] + WIDTH * row_index + tl.arange(0, WIDTH), tl.zeros((WIDTH,), tl.int64))
    if row_index == 0:
        tl.store(bracket[5], 0)


@triton.jit
def has_top_p_alone(request, request_params):
    """Whether a request's rows are bounded by top-p's bracket."""
    return is_raced(request, request_params) & (tl.load(request_params[2] + request) < 1.0)


@triton.jit
def larger_of(a, b):
    """The larger of two."""
    return tl.maximum(a, b)


@triton.jit
def wanted_rows(first, num_nodes, rows, nodes, NODES: tl.constexpr, WANTED: tl.constexpr):
    """([NODES] which of a request's rows are wanted, how many tokens surely pass): no row before them ends the walk.

    `rejection`: but for rows that are surely accepted. `block`: but for rows after the longest prefix that can pass: it
    passes with P at most, and P is at most what its tokens' weights over the rows' least masses give; and for rows
    before one whose P is surely 1. A row whose token is kept exceeds the least mass by less than the token's weight.
    """
    node = tl.arange(0, NODES)
    inside = node < num_nodes
    states = tl.load(rows[1] + first + node, mask=node <= num_nodes, other=LAST)
    faults = tl.load(rows[0] + first + node, mask=node <= num_nodes, other=1)
    draft_faults = tl.load(nodes[6] + first + node, mask=inside, other=0)
    ends = inside & ((faults != OK) | (draft_faults != 0) | (states == REJECT))
    end = tl.min(tl.where(ends, node, NODES), 0)
    wanted = (node <= num_nodes) & (faults == OK) & (node <= end)
    num_sure = tl.zeros((), tl.int32)
    if WANTED == 1:
        wanted = wanted & (states != ACCEPT)
    else:
        healthy = inside & (faults == OK)
        q = tl.load(nodes[2] + first + node, mask=inside, other=1.0)
        masses = tl.load(rows[7] + first + node, mask=healthy, other=1.0)
        coins = tl.load(nodes[7] + first + node, mask=inside, other=1.0)
        own = tl.load(nodes[0] + first + node, mask=inside, other=0.0).to(tl.float64)
        highest = tl.where(q > 0, own / (masses * tl.where(q > 0, q, 1.0)), 1e30)
        highest = tl.where(states == REJECT, 0.0, highest)
        total, risen = prefix_of(tl.where(inside, steps_of(highest), 0.0))
        most = tl.exp2(total - risen) * 1.0001
        last = tl.max(tl.where(inside & (coins < most), node + 1, 0), 0)
        most_masses = tl.minimum(tl.load(rows[5] + first + node, mask=healthy, other=1.0), masses * 1.00003 + own)
        kept = healthy & (states == KEPT) & (q > 0)
        lowest = 0.9999 * own / (most_masses * tl.where(q > 0, q, 1.0))
        total, risen = prefix_of(tl.where(kept, steps_of(lowest), tl.where(inside, LOST, 0.0)))
        num_sure = tl.max(tl.where(kept & (node < end) & (total >= risen), node + 1, 0), 0)
        wanted = wanted & (node <= last) & (node >= num_sure)
    return wanted, num_sure


@triton.jit
def steps_of(ratios):
    """Ratios' logarithms, cut off where no product of them comes from."""
    return tl.log2(tl.maximum(tl.minimum(ratios, 1e30), 1e-30))


@triton.jit
def prefix_of(steps):
    """[NODES] (sums of steps, the most that they have risen above 0): products cut off at 1 are their differences."""
    total = tl.cumsum(steps, 0)
    return total, tl.maximum(tl.associative_scan(total, 0, larger_of), 0.0)


@triton.jit
def is_wanted(row_index, first, local, num_nodes, rows, nodes, NODES: tl.constexpr, WANTED: tl.constexpr):
    """Whether a row's bound is wanted."""
    if WANTED == 0:
        wanted = tl.load(rows[0] + row_index) == OK
    else:
        each, num_sure = wanted_rows(first, num_nodes, rows, nodes, NODES, WANTED)
        wanted = tl.max((each & (tl.arange(0, NODES) == local)).to(tl.int32), 0) > 0
    return wanted
