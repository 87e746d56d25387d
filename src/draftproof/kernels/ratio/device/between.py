"""The race of `rejection` under top-p alone: where a request stops, what lies above its row's edges, who wins."""

import triton
import triton.language as tl

from draftproof.kernels.device.contenders import race_and_weigh, store_contenders
from draftproof.kernels.device.overlap import let_next_begin, wait_for_previous
from draftproof.kernels.device.request import row_of, scale_of
from draftproof.kernels.device.wanted import ACCEPT, LAST
from draftproof.kernels.ratio.device.decide import law_and_edges, winner_between
from draftproof.kernels.ratio.device.emit import drafted_of, store_verdict
from draftproof.kernels.ratio.device.state import BONUS, RESIDUAL, node_of, noise_at


@triton.jit
def stop_of_settled(first, num_nodes, rows, nodes, NODES: tl.constexpr):
    """(how many nodes are accepted, fault of the row or node that ends the walk), where all tests are decided."""
    node = tl.arange(0, NODES)
    inside = node < num_nodes
    states = tl.load(rows[1] + first + node, mask=inside, other=LAST)
    faults = tl.load(rows[0] + first + node, mask=node <= num_nodes, other=0)
    draft_faults = tl.load(nodes[6] + first + node, mask=inside, other=0)
    faults = tl.where(faults != 0, faults, draft_faults)
    stop = tl.min(tl.where((states == ACCEPT) & (faults == 0), NODES, node), 0)
    return stop, tl.max(tl.where(node == stop, faults, 0), 0)


@triton.jit
def race_between_kernel(logits, stride, row_params, request_params, masks, exceptions, scratch, num_tiles, num_plain,
                        vocab_size, draft, values, rows, nodes, bracket, racers, verdict, num_splits,
                        TILE: tl.constexpr, TILES: tl.constexpr, HAS_ALLOWED: tl.constexpr, HAS_SPECIAL: tl.constexpr,
                        LAW: tl.constexpr, STEPS: tl.constexpr, NODES: tl.constexpr, SPLITS: tl.constexpr,
                        LIST: tl.constexpr, KEY_SHIFT: tl.constexpr, OVERLAP: tl.constexpr):  # fmt: skip
    """Grid: requests * num_splits, as `race_kernel`, which does this for rows whose bounds are known. Rows have no
    special tokens. racers: as `store_contenders` takes them."""
    let_next_begin(OVERLAP)
    request = tl.program_id(0) // num_splits
    split = tl.program_id(0) % num_splits
    first = tl.load(draft[0] + request)
    num_nodes = tl.load(draft[0] + request + 1) - first - 1
    start = noise_at(first, first, request, row_params, request_params, 0 * request + BONUS)
    scale = scale_of(tl.load(request_params[0] + request))
    drafted = drafted_of(first, num_nodes, draft, NODES)
    wait_for_previous(OVERLAP)
    stop, fault = stop_of_settled(first, num_nodes, rows, nodes, NODES)
    row_index = first + stop
    bonus = (stop == num_nodes).to(tl.int32)
    row = row_of(row_index, request, logits, stride, masks, exceptions, HAS_ALLOWED, False)
    shape = (num_tiles, num_plain, vocab_size)
    word = tl.where(bonus > 0, BONUS, stop + RESIDUAL)
    noise = (start[0], start[1], word.to(tl.uint32), start[3], start[4])
    law, edges = law_and_edges(row_index, scale, rows, bracket, vocab_size)
    node = node_of(row_index, request, bonus, draft, values, nodes, LAW)
    if fault == 0:
        share = tl.cdiv(num_tiles, num_splits)
        contenders, hidden, units = race_and_weigh(
            row, scratch[0] + row_index * TILES, split * share, tl.minimum((split + 1) * share, num_tiles), shape,
            noise, law, edges[0], node, bonus, edges[4], TILE, LAW, STEPS, HAS_ALLOWED)  # fmt: skip
        store_contenders(contenders, hidden, units, racers, request, split, TILE // 8, SPLITS)
    tl.debug_barrier()
    ended = tl.atomic_add(racers[5] + request, 1, sem="acq_rel")
    tl.debug_barrier()
    if ended == num_splits - 1:
        winner = tl.full((), -1, tl.int32)
        if fault == 0:
            winner = winner_between(racers, request, num_splits, row, row_index, edges, scratch, shape, noise, law,
                                    node, bonus, TILE, TILES, LAW, STEPS, SPLITS, LIST, KEY_SHIFT,
                                    HAS_ALLOWED)  # fmt: skip
        store_verdict(request, stop, drafted, winner, fault, verdict, NODES)
