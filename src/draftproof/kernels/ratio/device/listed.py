"""`rejection` of rows with top-k or min-p: each row is raced as if a request stopped there, in the list that bounds it.

The list of a row is short, so all rows are raced while it isn't known yet which ones count. The last launch finds where
each request stops, and takes that row's winner. Of few rows that is no faster than a race of one row a request.
"""

import triton
import triton.language as tl

from draftproof.kernels.device.noise import nearness
from draftproof.kernels.device.overlap import let_next_begin, wait_for_previous
from draftproof.kernels.device.ratio import LOGITS, race_all, race_tiles
from draftproof.kernels.device.request import row_of, scale_of
from draftproof.kernels.device.rows import level
from draftproof.kernels.device.wanted import place_of
from draftproof.kernels.ratio.device.emit import drafted_of, store_verdict
from draftproof.kernels.ratio.device.few import race_list
from draftproof.kernels.ratio.device.state import BONUS, RESIDUAL, law_of, node_of, noise_at, start_of_law
from draftproof.kernels.ratio.device.stop import stop_of_rejection

LEFT = tl.constexpr(-1)  # a winner that the last launch looks for


@triton.jit
def stop_here(row_index, row_params, request_params, draft, values, draft_temperature, LAW: tl.constexpr):
    """(bonus, noise, where its draft's values start, their ids, token, draft's temperature) of a row where its request
    may stop: what no launch of the call writes."""
    request, first, local, num_nodes = place_of(row_index, row_params, draft[0])
    bonus = (local == num_nodes).to(tl.int32)
    word = tl.where(bonus > 0, BONUS, local + RESIDUAL)
    noise = noise_at(row_index, first, request, row_params, request_params, word)
    token_id = tl.load(draft[1] + row_index + 1, mask=bonus == 0, other=-1)
    start, ids = start_of_law((row_index - request).to(tl.int64), values, LAW)
    temperature = 1.0
    if LAW == LOGITS:
        temperature = tl.load(draft_temperature + request)
    return bonus, noise, start, ids, token_id, temperature


@triton.jit
def winner_of_list(here, of_law, list_z, list_ids, num_found, width, vocab_size, temperature, scale, largest, bound,
                   LAW: tl.constexpr, STEPS: tl.constexpr):  # fmt: skip
    """The id that is drawn if a request stops at this row, or LEFT. here: of `stop_here`. of_law: of `law_of_draft`,
    for a law from logits. bound: (logit, id, mass) of what is kept, which is the winner of a greedy row.
    """
    winner = tl.full((), LEFT, tl.int32)
    if temperature == 0:
        winner = winner * 0 + bound[1]
    elif num_found > 0:
        bonus, noise, start, ids, token_id, unused = here
        node = (start, ids, width, token_id, of_law[2], of_law[3], of_law[4])
        law = (scale, level(largest, scale), bound[0], bound[1], (1.0 / bound[2]).to(tl.float32))
        best, best_id, second = race_list(list_z, list_ids, num_found, noise, vocab_size, law, node, bonus, LAW,
                                          STEPS)  # fmt: skip
        clear = (second < best - nearness(best)) & (best > -float("inf"))
        winner = tl.where(clear, best_id, winner)
    return winner


@triton.jit
def listed_walk_kernel(logits, stride, row_params, request_params, masks, exceptions, scratch, num_tiles, num_plain,
                       vocab_size, draft, values, rows, nodes, winners, verdict, TILE: tl.constexpr,
                       TILES: tl.constexpr, HAS_ALLOWED: tl.constexpr, HAS_SPECIAL: tl.constexpr, LAW: tl.constexpr,
                       STEPS: tl.constexpr, NODES: tl.constexpr, OVERLAP: tl.constexpr):  # fmt: skip
    """Grid: requests. winners: [rows] int32, of `winner_of_list`. verdict: as in keyed.

    What a list left open, near ties, empty residuals and rows that no list holds, is raced here.
    """
    let_next_begin(OVERLAP)
    request = tl.program_id(0)
    first = tl.load(draft[0] + request)
    num_nodes = tl.load(draft[0] + request + 1) - first - 1
    position = tl.arange(0, NODES)
    drafted = drafted_of(first, num_nodes, draft, NODES)
    wait_for_previous(OVERLAP)
    each = tl.load(winners + first + position, mask=position <= num_nodes, other=LEFT)
    stop, fault = stop_of_rejection(first, num_nodes, draft, rows, nodes, NODES)
    winner = tl.max(tl.where((position == stop) & (fault == 0), each, LEFT), 0)
    if (fault == 0) & (winner == LEFT):
        row_index, bonus = first + stop, (stop == num_nodes).to(tl.int32)
        scale = scale_of(tl.load(request_params[0] + request))
        word = tl.where(bonus > 0, BONUS, stop + RESIDUAL)
        noise = noise_at(row_index, first, request, row_params, request_params, word)
        row = row_of(row_index, request, logits, stride, masks, exceptions, HAS_ALLOWED, HAS_SPECIAL)
        law, node = law_of(row_index, 1.0, scale, rows), node_of(row_index, request, bonus, draft, values, nodes, LAW)
        shape = (num_tiles, num_plain, vocab_size)
        best, winner, second = race_tiles(row, scratch[0] + row_index * TILES, 0, num_tiles, shape, noise, law, node,
                                          bonus, TILE, LAW, STEPS, HAS_ALLOWED, HAS_SPECIAL)  # fmt: skip
        if (second >= best - nearness(best)) | (best == -float("inf")):
            # An empty residual comes of rounding alone, and the token is then drawn from the target's law.
            draws_target = tl.maximum(bonus, (best == -float("inf")).to(tl.int32))
            winner = race_all(row, shape, noise, law, node, draws_target, TILE, LAW, STEPS, HAS_ALLOWED,
                              HAS_SPECIAL)  # fmt: skip
    store_verdict(request, stop, drafted, winner, fault, verdict, NODES)
