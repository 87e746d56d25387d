"""Which rows a walk may come to, as far as is known of them: only theirs are the bounds that are searched for.

rows: (faults, verdicts, z bounds, id bounds, largest logits, totals, masses), one entry a row each. Until a row is
bounded its bounds keep everything, and its mass is one that the kept tokens don't fall below.
nodes: as in ratio/device/state.py; of no meaning where WANTED is 0.
WANTED: which healthy rows are bounded: 0 all, 1 for `rejection`, 2 for `block`.
"""

import triton
import triton.language as tl

from draftproof.kernels.device.draw import OK
from draftproof.kernels.device.request import is_raced
from draftproof.kernels.device.rows import level

ACCEPT = tl.constexpr(0)
REJECT = tl.constexpr(1)
UNSURE = tl.constexpr(2)
LAST = tl.constexpr(3)


@triton.jit
def place_of(row_index, row_params, offsets):
    """(request, its first row, the row's index within the request, how many nodes the request has)."""
    request = tl.load(row_params[0] + row_index)
    first = tl.load(offsets + request)
    return request, first, row_index - first, tl.load(offsets + request + 1) - first - 1


@triton.jit
def store_unbounded(row_index, rows, asked, largest, scale, total, temperature, k, top_p, min_score, vocab_size):
    """What is known of a row before its bound is: everything may be kept, and a mass that is kept at least."""
    listed = (k > 0) | (min_score > -float("inf")) | (temperature == 0)
    own = tl.exp2(tl.fma(largest, scale, -level(largest, scale))).to(tl.float64)
    tl.store(rows[2] + row_index, -float("inf"))
    tl.store(rows[3] + row_index, vocab_size)
    tl.store(rows[6] + row_index, tl.where(listed, own, tl.minimum(top_p, 1.0) * total) * 0.99999)
    if row_index == 0:
        tl.store(asked[0], 0)
        tl.store(asked[0] + 1, 0)
        tl.store(asked[0] + 2, 0)


@triton.jit
def has_top_p_alone(request, request_params):
    """Whether a request's rows are bounded by top-p's bracket."""
    return is_raced(request, request_params) & (tl.load(request_params[2] + request) < 1.0)


@triton.jit
def larger_of(a, b):
    """The larger of two."""
    return tl.maximum(a, b)


@triton.jit
def wanted_rows(first, num_nodes, states, weights, rows, nodes, NODES: tl.constexpr, WANTED: tl.constexpr):
    """[NODES] which of a request's rows are wanted: no row before them surely ends the walk.

    `rejection`: but for rows that are surely accepted. `block`: but for rows after the longest prefix that can pass: it
    passes with P at most, and P is at most what its tokens' weights [NODES] over the rows' least masses give.
    """
    node = tl.arange(0, NODES)
    inside = node < num_nodes
    faults = tl.load(rows[0] + first + node, mask=node <= num_nodes, other=1)
    draft_faults = tl.load(nodes[6] + first + node, mask=inside, other=0)
    ends = inside & ((faults != OK) | (draft_faults != 0) | (states == REJECT))
    end = tl.min(tl.where(ends, node, NODES), 0)
    wanted = (node <= num_nodes) & (faults == OK) & (node <= end)
    if WANTED == 1:
        wanted = wanted & (states != ACCEPT)
    else:
        q = tl.load(nodes[2] + first + node, mask=inside, other=1.0)
        masses = tl.load(rows[6] + first + node, mask=inside & (faults == OK), other=1.0)
        coins = tl.load(nodes[7] + first + node, mask=inside, other=1.0)
        ratio = tl.where(q > 0, weights.to(tl.float64) / (masses * tl.where(q > 0, q, 1.0)), 1e30)
        steps = tl.log2(tl.maximum(tl.minimum(ratio, 1e30), 1e-30))
        # Products cut off at 1 are a sum less the most that it has risen above 0.
        total = tl.cumsum(tl.where(inside, steps, 0.0), 0)
        risen = tl.maximum(tl.associative_scan(total, 0, larger_of), 0.0)
        most = tl.exp2(total - risen) * 1.0001
        last = tl.max(tl.where(inside & (coins < most), node + 1, 0), 0)
        wanted = wanted & (node <= last)
    return wanted


@triton.jit
def states_of(first, num_nodes, rows, nodes, NODES: tl.constexpr):
    """[NODES] (states, drafted tokens' weights) of a request's rows."""
    node = tl.arange(0, NODES)
    states = tl.load(rows[1] + first + node, mask=node <= num_nodes, other=LAST)
    return states, tl.load(nodes[0] + first + node, mask=node < num_nodes, other=0.0)


@triton.jit
def is_wanted(row_index, first, local, num_nodes, rows, nodes, NODES: tl.constexpr, WANTED: tl.constexpr):
    """Whether a row's bound is wanted, as far as is known before top-p's tokens are weighed."""
    if WANTED == 0:
        wanted = tl.load(rows[0] + row_index) == OK
    else:
        states, weights = states_of(first, num_nodes, rows, nodes, NODES)
        each = wanted_rows(first, num_nodes, states, weights, rows, nodes, NODES, WANTED)
        wanted = tl.max((each & (tl.arange(0, NODES) == local)).to(tl.int32), 0) > 0
    return wanted
