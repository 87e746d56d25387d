"""Products of few rows with a layer's weights, with what follows them in the same kernel.

A program takes a tile of the output and a share of the depth, both operands tile by tile through tensor descriptors.
The sum runs in float32 in the order of the depth: a row's result depends on nothing but the row, the weights and the
sizes of the tiles along columns and depth. Where all real rows of a tile fit into `FEW`, no others are read or
multiplied.
"""

from __future__ import annotations

import triton
import triton.language as tl

from draftproof.targets.static.device.chain import follow


@triton.jit(do_not_specialize=["num_tokens", "count_ptr"])
def product_kernel(
    states_desc, few_desc, weight_desc, out_ptr, count_ptr, num_tokens, size, depth,
    ROWS: tl.constexpr, FEW: tl.constexpr, COLUMNS: tl.constexpr, DEPTH: tl.constexpr, SPLITS: tl.constexpr,
    GATED: tl.constexpr, COUNTED: tl.constexpr, STAGES: tl.constexpr, PRECISION: tl.constexpr,
    CHAINED: tl.constexpr,
):  # fmt: skip
    """states [tokens, depth] times weight [size, depth]; out [tokens, size], or [SPLITS, tokens, size] in float32.

    GATED: weight [2, size, depth]; silu(first) · second, each rounded to out's type before, as the model's own code
    does. COUNTED: the rows that are wanted, which come first, are so many as `count_ptr` holds; the others of `out`
    are left as they are. few_desc: tiles of FEW rows of `states`.
    """
    if CHAINED:
        follow()
    program = tl.program_id(0)
    split = tl.program_id(1)
    # Neighbouring programs share the weights that they read.
    num_rows = tl.cdiv(num_tokens, ROWS)
    first_row = (program % num_rows) * ROWS
    first_column = (program // num_rows) * COLUMNS
    count = num_tokens
    if COUNTED:
        count = tl.minimum(tl.load(count_ptr), num_tokens)
    if COUNTED and FEW < ROWS and count - first_row <= FEW:
        if first_row < count:
            _tile(
                few_desc, weight_desc, out_ptr, first_row, first_column, split, count, num_tokens, size, depth,
                FEW, COLUMNS, DEPTH, SPLITS, GATED, STAGES, PRECISION,
            )  # fmt: skip
    else:
        _tile(
            states_desc, weight_desc, out_ptr, first_row, first_column, split, count, num_tokens, size, depth,
            ROWS, COLUMNS, DEPTH, SPLITS, GATED, STAGES, PRECISION,
        )  # fmt: skip


@triton.jit
def _tile(
    states_desc, weight_desc, out_ptr, first_row, first_column, split, count, num_tokens, size, depth,
    ROWS: tl.constexpr, COLUMNS: tl.constexpr, DEPTH: tl.constexpr, SPLITS: tl.constexpr, GATED: tl.constexpr,
    STAGES: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    share = depth // SPLITS
    begin = split * share
    # The weights' rows are the wide side of the tile: a step has few tokens.
    total = tl.zeros([2 * COLUMNS if GATED else COLUMNS, ROWS], tl.float32)
    for at in tl.range(begin, begin + share, DEPTH, num_stages=STAGES):
        states = states_desc.load([first_row, at])
        if GATED:
            weight = weight_desc.load([0, first_column, at]).reshape(2 * COLUMNS, DEPTH)
        else:
            weight = weight_desc.load([first_column, at])
        total = tl.dot(weight, states.T, total, input_precision=PRECISION)
    total = tl.trans(total)
    rows = first_row + tl.arange(0, ROWS)
    columns = first_column + tl.arange(0, COLUMNS)
    known = (rows < count)[:, None] & (columns < size)[None, :]
    dtype = out_ptr.dtype.element_ty
    target = out_ptr + (split * num_tokens + rows).to(tl.int64)[:, None] * size + columns[None, :]
    if GATED:
        gate, up = tl.split(total.reshape(ROWS, 2, COLUMNS).permute(0, 2, 1))
        gate = gate.to(dtype).to(tl.float32)
        opened = (gate / (1.0 + tl.exp(-gate))).to(dtype)
        tl.store(target, opened * up.to(dtype), mask=known)
    else:
        tl.store(target, total.to(dtype), mask=known)
