"""Where a request's walk stops, once its rows are bounded: token by token, or at the longest prefix that passes."""

import triton
import triton.language as tl

from draftproof.kernels.device.overlap import let_next_begin, wait_for_previous
from draftproof.kernels.device.wanted import ACCEPT, LAST, REJECT, UNSURE, wanted_rows


@triton.jit
def weights_kept(first, node, inside, draft, rows, nodes):
    """[NODES] (drafted tokens' kept weights, masses of their rows) in float64, for bounded rows; 0 where one is surely
    dropped."""
    z = tl.load(nodes[1] + first + node, mask=inside, other=-float("inf"))
    token_ids = tl.load(draft[1] + first + node + 1, mask=inside, other=0)
    z_bound = tl.load(rows[2] + first + node, mask=inside, other=float("inf"))
    id_bound = tl.load(rows[3] + first + node, mask=inside, other=0)
    states = tl.load(rows[1] + first + node, mask=inside, other=LAST)
    kept = ((z > z_bound) | ((z == z_bound) & (token_ids <= id_bound))) & (states != REJECT)
    weights = tl.load(nodes[0] + first + node, mask=inside, other=0.0).to(tl.float64)
    return tl.where(kept, weights, 0.0), tl.load(rows[6] + first + node, mask=inside, other=1.0)


@triton.jit
def stop_of_rejection(first, num_nodes, draft, rows, nodes, NODES: tl.constexpr):
    """(how many nodes are accepted, fault of the row or node that ends the walk)."""
    node = tl.arange(0, NODES)
    inside = node < num_nodes
    weights, masses = weights_kept(first, node, inside, draft, rows, nodes)
    needs = tl.load(nodes[7] + first + node, mask=inside, other=0.0)
    needs = needs * tl.load(nodes[2] + first + node, mask=inside, other=0.0)
    states = tl.load(rows[1] + first + node, mask=inside, other=LAST)
    accepted = inside & ((states == ACCEPT) | ((states == UNSURE) & (needs * masses < weights)))
    faults = tl.load(rows[0] + first + node, mask=node <= num_nodes, other=0)
    draft_faults = tl.load(nodes[6] + first + node, mask=inside, other=0)
    faults = tl.where(faults != 0, faults, draft_faults)
    stop = tl.min(tl.where(accepted & (faults == 0), NODES, node), 0)
    return stop, tl.max(tl.where(node == stop, faults, 0), 0)


@triton.jit
def then(ratio, most, next_ratio, next_most):
    """x -> min(most, ratio x) and then x -> min(next_most, next_ratio x), as one such step, for x of at most 1."""
    return tl.minimum(ratio * next_ratio, 1e300), tl.minimum(next_most, most * next_ratio)


@triton.jit
def chain_of(first, num_nodes, draft, rows, nodes, NODES: tl.constexpr, TOP_P: tl.constexpr):
    """P_i for `block`: ([NODES] P of the tokens before each row, whether its residual's mass is wanted, how many tokens
    the longest prefix has, fault)."""
    node = tl.arange(0, NODES)
    inside, later = node < num_nodes, (node > 0) & (node <= num_nodes)
    weights, row_masses = weights_kept(first - 1, node, later, draft, rows, nodes)
    q = tl.load(nodes[2] + first + node - 1, mask=later, other=1.0)
    # Coin i - 1 is that of the prefix of i tokens.
    coin = tl.load(nodes[7] + first + node - 1, mask=later, other=1.0)
    faults = tl.load(rows[0] + first + node, mask=inside, other=0)
    draft_faults = tl.load(nodes[6] + first + node, mask=inside, other=0)
    ratios = tl.where((weights > 0) & (q > 0), weights / row_masses / tl.where(q > 0, q, 1.0), 0.0)
    ratios = tl.where(later, ratios, 1.0)
    if TOP_P:
        # Up to here it is sure that P is 1, and rows aren't bounded.
        bounded, num_sure = wanted_rows(first, num_nodes, rows, nodes, NODES, 2)
        ratios = tl.where(node <= num_sure, 1.0, ratios)
    unused, masses = tl.associative_scan((ratios, tl.minimum(ratios, 1.0)), 0, then)
    first_fault = tl.min(tl.where(inside & (faults != 0), node, NODES), 0)
    comes_there = tl.max(tl.where((node == first_fault) & (masses > 0), 1, 0), 0) > 0
    end = tl.where(comes_there, first_fault, num_nodes)
    masses = tl.where(node <= end, masses, 0.0)
    fault = tl.max(tl.where(inside & (node <= end), draft_faults, 0), 0)
    sure = later & (node <= end) & ((masses == 1.0) | ((node == end) & (coin < masses)))
    longest = tl.max(tl.where(sure, node, 0), 0)
    wanted = (node > longest) & (node < end) & (coin < masses) & (fault == 0)
    return masses, wanted, end, fault


@triton.jit
def chain_kernel(draft, rows, nodes, prefixes, residual_masses, NODES: tl.constexpr, TOP_P: tl.constexpr,
                 OVERLAP: tl.constexpr):  # fmt: skip
    """Grid: requests. P_i for `block`, and a list of the residual masses that are wanted.

    prefixes: (P [rows], wanted [rows], ends [requests], faults [requests]): a row's P is that of the tokens before it;
    ends: how many tokens the longest prefix has. residual_masses: (masses [rows] int64, how many are wanted, which).
    """
    let_next_begin(OVERLAP)
    request = tl.program_id(0)
    first = tl.load(draft[0] + request)
    num_nodes = tl.load(draft[0] + request + 1) - first - 1
    wait_for_previous(OVERLAP)
    masses, wanted, end, fault = chain_of(first, num_nodes, draft, rows, nodes, NODES, TOP_P)
    node = tl.arange(0, NODES)
    tl.store(prefixes[0] + first + node, masses, mask=node <= num_nodes)
    tl.store(prefixes[1] + first + node, wanted.to(tl.int32), mask=node <= num_nodes)
    tl.store(prefixes[2] + request, end)
    tl.store(prefixes[3] + request, fault)
    listed = wanted.to(tl.int32) > 0
    place = tl.atomic_add(residual_masses[1] + 0 * node, 1, mask=listed, sem="relaxed")
    tl.store(residual_masses[2] + place, first + node, mask=listed)


@triton.jit
def stop_of_block(request, first, num_nodes, draft, rows, nodes, prefixes, residual_masses,
                  NODES: tl.constexpr):  # fmt: skip
    """(how many tokens are accepted, P there, fault)."""
    node = tl.arange(0, NODES)
    inside = node <= num_nodes
    end = tl.load(prefixes[2] + request)
    fault = tl.load(prefixes[3] + request)
    masses = tl.load(prefixes[0] + first + node, mask=inside, other=0.0)
    wanted = tl.load(prefixes[1] + first + node, mask=inside, other=0) > 0
    coin = tl.load(nodes[7] + first + node - 1, mask=(node > 0) & inside, other=1.0)
    units = tl.load(residual_masses[0] + first + node, mask=wanted, other=0)
    rest = units.to(tl.float64) / 72057594037927936.0
    passes = wanted & (coin * (rest + 1 - masses) < rest)
    passes = passes | ((node > 0) & (node <= end) & ((masses == 1.0) | ((node == end) & (coin < masses))))
    stop = tl.max(tl.where(passes, node, 0), 0)
    row_fault = tl.load(rows[0] + first + stop)
    return (
        tl.where(fault != 0, 0, stop),
        tl.sum(tl.where(node == stop, masses, 0.0), 0),
        tl.where(fault != 0, fault, row_fault),
    )
