"""The product of gate and up with its gate, for more tokens than a step of one request has.

One warp brings tiles of both operands into a ring of buffers, eight multiply them. A program has 96 columns of gate and
as many of up, as tiles of 128 and of 64 rows of weights: Qwen3-8B's 12,288 columns are 128 programs, which a device of
132 processors runs at once, where tiles of powers of two leave a second wave that is half empty. Gate and up lie in the
tiles by turns of eight rows, so that one thread has both of a column. Sums run in float32 in the order of the depth: a
row's result depends on nothing but the row, the weights and the sizes of the tiles.
"""

from __future__ import annotations

from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.hopper import (
    fence_async_shared,
    mbarrier,
    tma,
    warpgroup_mma,
    warpgroup_mma_wait,
)

WIDE = gl.constexpr(128)
NARROW = gl.constexpr(64)
TURN = gl.constexpr(8)
DEPTH = gl.constexpr(64)


@gluon.jit
def _bring(
    states_desc, few_desc, wide_desc, narrow_desc, states, wide, narrow, full, empty, first_row, first_column, steps,
    remaining, ROWS: gl.constexpr, FEW: gl.constexpr, STAGES: gl.constexpr, COUNTED: gl.constexpr,
):  # fmt: skip
    if COUNTED and remaining <= FEW:
        _bring_rows(
            few_desc, wide_desc, narrow_desc, states, wide, narrow, full, empty, first_row, first_column, steps,
            FEW, STAGES,
        )  # fmt: skip
    else:
        _bring_rows(
            states_desc, wide_desc, narrow_desc, states, wide, narrow, full, empty, first_row, first_column, steps,
            ROWS, STAGES,
        )  # fmt: skip


@gluon.jit
def _bring_rows(
    states_desc, wide_desc, narrow_desc, states, wide, narrow, full, empty, first_row, first_column, steps,
    ROWS: gl.constexpr, STAGES: gl.constexpr,
):  # fmt: skip
    for step in range(steps):
        stage = step % STAGES
        mbarrier.wait(empty.index(stage), ((step // STAGES) & 1) ^ 1)
        bar = full.index(stage)
        mbarrier.expect(bar, (ROWS + WIDE + NARROW) * DEPTH * 2)
        at = step * DEPTH
        target = states.index(stage)._reinterpret(states_desc.dtype, states_desc.block_type.shape, states_desc.layout)
        tma.async_copy_global_to_shared(states_desc, [first_row, at], bar, target)
        target = wide.index(stage)._reinterpret(wide_desc.dtype, wide_desc.block_type.shape, wide_desc.layout)
        tma.async_copy_global_to_shared(wide_desc, [first_column // TURN, 0, 0, at], bar, target)
        target = narrow.index(stage)._reinterpret(narrow_desc.dtype, narrow_desc.block_type.shape, narrow_desc.layout)
        tma.async_copy_global_to_shared(narrow_desc, [(first_column + WIDE // 2) // TURN, 0, 0, at], bar, target)


@gluon.jit
def _multiply(
    wide_out_desc, narrow_out_desc, few_wide_out_desc, few_narrow_out_desc, states, wide, narrow, full, empty,
    first_row, first_column, steps, remaining,
    ROWS: gl.constexpr, FEW: gl.constexpr, STAGES: gl.constexpr, COUNTED: gl.constexpr,
):  # fmt: skip
    if COUNTED and remaining <= FEW:
        _multiply_rows(
            few_wide_out_desc, few_narrow_out_desc, states, wide, narrow, full, empty, first_row, first_column,
            steps, FEW, STAGES,
        )  # fmt: skip
    else:
        _multiply_rows(
            wide_out_desc, narrow_out_desc, states, wide, narrow, full, empty, first_row, first_column, steps,
            ROWS, STAGES,
        )  # fmt: skip


@gluon.jit
def _multiply_rows(
    wide_out_desc, narrow_out_desc, states, wide, narrow, full, empty, first_row, first_column, steps,
    ROWS: gl.constexpr, STAGES: gl.constexpr,
):  # fmt: skip
    wide_layout: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [8, 1], [16, ROWS, 16])
    narrow_layout: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [4, 2], [16, ROWS // 2, 16])
    left = gl.zeros((WIDE, ROWS), gl.float32, wide_layout)
    right = gl.zeros((NARROW, ROWS), gl.float32, narrow_layout)
    for step in range(steps):
        stage = step % STAGES
        mbarrier.wait(full.index(stage), (step // STAGES) & 1)
        # The first rows of the buffer, where there are few.
        turned = states.index(stage)._reinterpret(states.dtype, [ROWS, DEPTH], states.layout).permute((1, 0))
        left = warpgroup_mma(wide.index(stage), turned, left, is_async=True)
        right = warpgroup_mma(narrow.index(stage), turned, right, is_async=True)
        # Those of the step before are done: its buffers are free once both groups of warps say so.
        left, right = warpgroup_mma_wait(2, deps=(left, right))
        gl.thread_barrier()
        mbarrier.arrive(empty.index((step + STAGES - 1) % STAGES), count=1, pred=step > 0)
    left, right = warpgroup_mma_wait(0, deps=(left, right))
    # The buffers have been read: the output goes through them.
    gl.thread_barrier()
    _store(left, wide_out_desc, states.index(0), first_row, first_column, WIDE, ROWS)
    _store(right, narrow_out_desc, states.index(1), first_row, first_column + WIDE // 2, NARROW, ROWS)
    tma.store_wait(0)


@gluon.jit
def _store(total, out_desc, buffer, first_row, first_column, WIDTH: gl.constexpr, ROWS: gl.constexpr):
    dtype: gl.constexpr = out_desc.dtype
    turns = total.reshape((WIDTH // (2 * TURN), 2, TURN, ROWS)).permute((0, 2, 3, 1))
    gate, up = gl.split(turns)
    gate = gate.to(dtype).to(gl.float32)
    opened = (gate / (1.0 + gl.exp(-gate))).to(dtype)
    out = (opened * up.to(dtype)).reshape((WIDTH // 2, ROWS)).permute((1, 0))
    target = buffer._reinterpret(dtype, out_desc.block_type.shape, out_desc.layout)
    target.store(out)
    fence_async_shared()
    tma.async_copy_shared_to_global(out_desc, [first_row, first_column], target)


@gluon.jit(do_not_specialize=["num_tokens", "count_ptr"])
def gated_kernel(
    states_desc, few_desc, wide_desc, narrow_desc, wide_out_desc, narrow_out_desc, few_wide_out_desc,
    few_narrow_out_desc, count_ptr, num_tokens, depth,
    ROWS: gl.constexpr, FEW: gl.constexpr, STAGES: gl.constexpr, COUNTED: gl.constexpr,
):  # fmt: skip
    """states [tokens, depth] times weight [size / 8, 2, 8, depth] (a view of [2, size, depth]), both tiles' views of
    it; out [tokens, size]: silu(first) · second, each rounded to out's type before, as the model's own code does.

    COUNTED: the rows that are wanted, which come first, are so many as `count_ptr` holds; where no more than FEW of a
    tile are, no others are read, multiplied or written. few_...: tiles of FEW rows.
    """
    program = gl.program_id(0)
    num_rows = gl.cdiv(num_tokens, ROWS)
    # Neighbouring programs share the weights that they read.
    first_row = (program % num_rows) * ROWS
    first_column = (program // num_rows) * ((WIDE + NARROW) // 2)
    remaining = num_tokens - first_row
    if COUNTED:
        remaining = gl.load(count_ptr) - first_row
    dtype: gl.constexpr = states_desc.dtype
    tile: gl.constexpr = gl.NVMMASharedLayout(128, 16, rank=2)
    states = gl.allocate_shared_memory(dtype, [STAGES, ROWS, DEPTH], tile)
    wide = gl.allocate_shared_memory(dtype, [STAGES, WIDE, DEPTH], tile)
    narrow = gl.allocate_shared_memory(dtype, [STAGES, NARROW, DEPTH], tile)
    full = gl.allocate_shared_memory(gl.int64, [STAGES, 1], mbarrier.MBarrierLayout())
    empty = gl.allocate_shared_memory(gl.int64, [STAGES, 1], mbarrier.MBarrierLayout())
    for stage in gl.static_range(STAGES):
        mbarrier.init(full.index(stage), count=1)
        mbarrier.init(empty.index(stage), count=1)
    fence_async_shared()
    steps = depth // DEPTH
    gl.warp_specialize(
        [
            (
                _multiply,
                (
                    wide_out_desc, narrow_out_desc, few_wide_out_desc, few_narrow_out_desc, states, wide, narrow,
                    full, empty, first_row, first_column, steps, remaining, ROWS, FEW, STAGES, COUNTED,
                ),
            ),
            (
                _bring,
                (
                    states_desc, few_desc, wide_desc, narrow_desc, states, wide, narrow, full, empty, first_row,
                    first_column, steps, remaining, ROWS, FEW, STAGES, COUNTED,
                ),
            ),
        ],
        [1],
        [40],
    )  # fmt: skip
