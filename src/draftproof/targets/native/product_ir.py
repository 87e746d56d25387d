"""The product as LLVM's intermediate representation: text, for one number of input features.

`product(weight, features, bias, out, num_rows, num_outputs, num_threads)`, all addresses or 64-bit integers:

    out[r, n] = bfloat16(bias[n] + sum over k of features[r, k] · weight[n, k])

weight [blocks, pairs, COLUMNS, 2] bfloat16: of a block of outputs, pair by pair of input features. bias [blocks ·
COLUMNS] float32. features [num_rows, 2 · pairs], out [num_rows, num_outputs] bfloat16, contiguous. A thread takes
neighbouring blocks; for each block it goes through the rows in equal parts of up to `ROWS`. One function for each
number of rows keeps a vector of sums for each row, and adds to it pair after pair: one order, whatever the number of
rows.
"""

from __future__ import annotations

from typing import Final

from draftproof.targets.native.text import DECLARED, LANES, Fields, entry, given

GIVEN: Final[Fields] = dict.fromkeys(("weight", "features", "bias", "out"), "ptr") | {
    "num_rows": "i64",
    "num_outputs": "i64",
}
COLUMNS: Final = LANES
"""Outputs of a block."""
ROWS: Final = 28
"""Most rows at a time: for each of them a block's sums stay in one of 32 vector registers."""
UNROLLED: Final = 2
"""Pairs of a turn of the loop, if their number is a multiple of it."""
BLOCK_PAIR: Final = 4 * COLUMNS
"""Bytes that a block has for a pair."""
AHEAD: Final = 8192
"""Bytes of weights that are asked for before they are used."""


def product_ir(num_pairs: int) -> str:
    """The module's text."""
    blocks = "\n".join(_block(num_rows, num_pairs) for num_rows in range(1, ROWS + 1))
    return f"{DECLARED}\n{blocks}\n{_driver(num_pairs)}\n{entry('product', GIVEN, 'blocks')}"


def _block(num_rows: int, num_pairs: int) -> str:
    """A block of outputs for `num_rows` rows. %mask: which outputs there are."""
    unrolled = UNROLLED if num_pairs % UNROLLED == 0 else 1
    lines = [
        f"define internal void @block_{num_rows}(ptr noalias %weight, ptr noalias %features, ptr noalias %bias, "
        "ptr noalias %out, i64 %out_stride, i16 %mask) {",
        "entry:",
        "  br label %loop",
        "loop:",
        "  %pair = phi i64 [0, %entry], [%pair.next, %loop]",
    ]
    for row in range(num_rows):
        lines.append(f"  %sum{row}.0 = phi <16 x float> [zeroinitializer, %entry], [%sum{row}.{unrolled}, %loop]")
    lines += [
        f"  %in.block = mul i64 %pair, {BLOCK_PAIR}",
        "  %weights = getelementptr i8, ptr %weight, i64 %in.block",
        "  %in.row = mul i64 %pair, 4",
        "  %row = getelementptr i8, ptr %features, i64 %in.row",
    ]
    for turn in range(unrolled):
        lines += [
            f"  %from{turn} = getelementptr i8, ptr %weights, i64 {BLOCK_PAIR * turn}",
            f"  %ahead{turn} = getelementptr i8, ptr %weights, i64 {AHEAD + BLOCK_PAIR * turn}",
            f"  call void @llvm.prefetch.p0(ptr %ahead{turn}, i32 0, i32 3, i32 1)",
            f"  %w{turn} = load <32 x bfloat>, ptr %from{turn}, align 64",
        ]
        for row in range(num_rows):
            name = f"{row}.{turn}"
            lines += [
                f"  %at{name} = getelementptr i8, ptr %row, i64 {4 * (num_pairs * row + turn)}",
                f"  %x{name} = load i32, ptr %at{name}, align 2",
                f"  %one{name} = insertelement <16 x i32> poison, i32 %x{name}, i64 0",
                f"  %all{name} = shufflevector <16 x i32> %one{name}, <16 x i32> poison, <16 x i32> zeroinitializer",
                f"  %f{name} = bitcast <16 x i32> %all{name} to <32 x bfloat>",
                f"  %sum{row}.{turn + 1} = call <16 x float> @llvm.x86.avx512bf16.dpbf16ps.512("
                f"<16 x float> %sum{name}, <32 x bfloat> %w{turn}, <32 x bfloat> %f{name})",
            ]
    lines += [
        f"  %pair.next = add i64 %pair, {unrolled}",
        f"  %more = icmp ult i64 %pair.next, {num_pairs}",
        "  br i1 %more, label %loop, label %done",
        "done:",
        "  %wanted = bitcast i16 %mask to <16 x i1>",
        "  %b = load <16 x float>, ptr %bias, align 64",
    ]
    for row in range(num_rows):
        lines += [
            f"  %biased{row} = fadd <16 x float> %sum{row}.{unrolled}, %b",
            f"  %rounded{row} = fptrunc <16 x float> %biased{row} to <16 x bfloat>",
            f"  %to{row}.at = mul i64 %out_stride, {row}",
            f"  %to{row} = getelementptr i8, ptr %out, i64 %to{row}.at",
            f"  call void @llvm.masked.store.v16bf16.p0(<16 x bfloat> %rounded{row}, ptr %to{row}, i32 2, "
            "<16 x i1> %wanted)",
        ]
    return "\n".join([*lines, "  ret void", "}"])


def _driver(num_pairs: int) -> str:
    """Blocks of a thread, and rows of a block."""
    cases = " ".join(f"i64 {rows}, label %rows_{rows}" for rows in range(1, ROWS))
    calls = "\n".join(
        f"rows_{rows}:\n  call void @block_{rows}(ptr %w, ptr %x, ptr %b, ptr %o, i64 %stride, i16 %mask)\n"
        "  br label %computed"
        for rows in range(1, ROWS + 1)
    )
    return f"""
define internal void @blocks(ptr %given, i64 %thread, i64 %num_threads) {{
entry:
{given(GIVEN)}
  %above = add i64 %num_outputs, {COLUMNS - 1}
  %num_blocks = udiv i64 %above, {COLUMNS}
  %before = mul i64 %num_blocks, %thread
  %first = udiv i64 %before, %num_threads
  %until = add i64 %before, %num_blocks
  %stop = udiv i64 %until, %num_threads
  %stride = mul i64 %num_outputs, 2
  %rows.above = add i64 %num_rows, {ROWS - 1}
  %num_parts = udiv i64 %rows.above, {ROWS}
  %part.above = add i64 %num_rows, %num_parts
  %part.less = sub i64 %part.above, 1
  %part = udiv i64 %part.less, %num_parts
  br label %next_block
next_block:
  %block = phi i64 [%first, %entry], [%block.next, %block_done]
  %going = icmp ult i64 %block, %stop
  br i1 %going, label %begin, label %end
begin:
  %w.at = mul i64 %block, {BLOCK_PAIR * num_pairs}
  %w = getelementptr i8, ptr %weight, i64 %w.at
  %b.at = mul i64 %block, {4 * COLUMNS}
  %b = getelementptr i8, ptr %bias, i64 %b.at
  %column = mul i64 %block, {COLUMNS}
  %left = sub i64 %num_outputs, %column
  %is_whole = icmp uge i64 %left, {COLUMNS}
  %there = select i1 %is_whole, i64 {COLUMNS}, i64 %left
  %power = shl i64 1, %there
  %ones = sub i64 %power, 1
  %mask = trunc i64 %ones to i16
  %o.at = mul i64 %column, 2
  %o.first = getelementptr i8, ptr %out, i64 %o.at
  br label %next_rows
next_rows:
  %row = phi i64 [0, %begin], [%row.next, %computed]
  %rows.left = sub i64 %num_rows, %row
  %is_last = icmp ult i64 %rows.left, %part
  %rows = select i1 %is_last, i64 %rows.left, i64 %part
  %x.at = mul i64 %row, {4 * num_pairs}
  %x = getelementptr i8, ptr %features, i64 %x.at
  %o.row = mul i64 %row, %stride
  %o = getelementptr i8, ptr %o.first, i64 %o.row
  switch i64 %rows, label %rows_{ROWS} [ {cases} ]
{calls}
computed:
  %row.next = add i64 %row, %part
  %has_rows = icmp ult i64 %row.next, %num_rows
  br i1 %has_rows, label %next_rows, label %block_done
block_done:
  %block.next = add i64 %block, 1
  br label %next_block
end:
  ret void
}}
"""
