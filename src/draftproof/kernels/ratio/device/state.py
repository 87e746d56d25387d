"""What the kernels of `rejection` and `block` load at a row: its noise, its node, its law; their noise's purposes.

Tensors that pass from one kernel to the next: of rows (device/wanted.py), of nodes (drafted tokens' weights, logits; q,
level, scale, 1 / mass of the draft's row; its fault; the coin), prefix masses and whether their residual's mass is
wanted. A node's entries stand at the row that tests it.
"""

import triton
import triton.language as tl

from draftproof.kernels.device.ratio import LOGITS, POINT, SPARSE
from draftproof.kernels.device.request import noise_of
from draftproof.kernels.device.rows import level

COIN = tl.constexpr(17 << 24)
RESIDUAL = tl.constexpr(18 << 24)
BONUS = tl.constexpr(19 << 24)


@triton.jit
def noise_at(row_index, first, request, row_params, request_params, word):
    """The noise of `word`, of the pass that starts at the request's first row."""
    noise = noise_of(row_index, request, row_params, request_params)
    start = tl.load(row_params[1] + first).to(tl.uint32, bitcast=True)
    return start, noise[1], tl.zeros((), tl.uint32) + word.to(tl.uint32), noise[3], noise[4]


@triton.jit
def node_of(row_index, request, bonus, draft, values, nodes, LAW: tl.constexpr):
    """The node that a row tests, as ratio.py takes it; of no meaning at a bonus row, which tests none.

    values: (pointer, stride, ids, their stride, width).
    """
    token_id = tl.load(draft[1] + row_index + 1, mask=bonus == 0, other=-1)
    start, ids = start_of_law((row_index - request).to(tl.int64), values, LAW)
    if LAW == LOGITS:
        return (start, ids, values[4], token_id, tl.load(nodes[3] + row_index), tl.load(nodes[4] + row_index),
                tl.load(nodes[5] + row_index))  # fmt: skip
    return start, ids, values[4], token_id, 0.0, 0.0, 0.0


@triton.jit
def start_of_law(index, values, LAW: tl.constexpr):
    """(where a node's values start, where their ids do). index: of the node among all drafted ones, int64."""
    start, ids = values[0], values[2]
    if LAW != POINT:
        start = values[0] + index * values[1]
    if LAW == SPARSE:
        ids = values[2] + index * values[3]
    return start, ids


@triton.jit
def law_of(row_index, share, scale, rows):
    """A bounded row's law, as ratio.py takes it. rows: see `state` above."""
    largest = tl.load(rows[4] + row_index)
    gain = share / tl.load(rows[6] + row_index)
    return (scale, level(largest, scale), tl.load(rows[2] + row_index), tl.load(rows[3] + row_index),
            gain.to(tl.float32))  # fmt: skip
