"""Attention over cached keys as LLVM's intermediate representation: text, for one shape of heads.

`attend(queries, keys, values, out, blocks, num_blocks, masks, scratch, num_keys, query_stride, key_stride,
value_stride, scale, num_threads)`; addresses, and 64-bit integers but for `scale`. All tensors are bfloat16.

    queries [tokens, heads, DIM], a token every `query_stride` bytes; out [tokens, heads, DIM] contiguous
    keys, values [kv_heads, columns, DIM], a head every `key_stride` and `value_stride` bytes
    blocks [num_blocks, 5] int64: first token, number of tokens, first column, number of columns that all of the tokens
        see, number of columns behind them that some see
    masks int16: of each block in turn, for each column of the second kind, which lanes see it
    scratch float32 [num_threads, num_keys, LANES], num_keys: the most columns of a block

A block's queries of one key head stand side by side in a vector's lanes, a lane each: their scores, weights and sums go
from column to column, and a column that a lane doesn't see adds nothing to it. So a query adds up what it sees in the
order of the columns, wherever these lie, whatever else is computed, and however many columns there are.
"""

from __future__ import annotations

from typing import Final

from draftproof.targets.native.text import (
    DECLARED,
    LANES,
    Fields,
    constant,
    entry,
    given,
    power_constants,
    power_of_two,
    repeated,
    splat,
)

LARGE_GROUP: Final = 16
SMALL_GROUP: Final = 4
"""Columns whose scores are computed together."""
MOST_SUMS: Final = 24
"""Vectors of sums that are kept in registers."""
UNSEEN: Final = "0xC7E0000000000000"
"""-2^127: a score that no lane has."""
FIELDS: Final = 5


def tokens_of_block(groups: int) -> int:
    """How many tokens a block has, whose `groups` queries of a key head are lanes of their own."""
    return LANES // groups


def attention_ir(kv_heads: int, groups: int, dim: int) -> str:
    """The module's text. dim: a multiple of 16. groups: query heads of a key head, 1 to 16."""
    parts = [DECLARED, _scores(LARGE_GROUP, dim), _scores(SMALL_GROUP, dim), _scores(1, dim), _weights()]
    for num_tokens in range(1, tokens_of_block(groups) + 1):
        parts.append(_outputs(num_tokens, groups, kv_heads * groups, dim))
    return "\n".join([*parts, _head(kv_heads, groups, dim), _driver(kv_heads, dim)])


def _scores(num_columns: int, dim: int) -> str:
    """%scores [num_columns, LANES] from %keys [num_columns, dim] and %packed [pairs, LANES, 2]."""
    lines = [
        f"define internal void @scores_{num_columns}(ptr noalias %packed, ptr noalias %keys, ptr noalias %scores) {{",
        "entry:",
        "  br label %loop",
        "loop:",
        "  %pair = phi i64 [0, %entry], [%pair.next, %loop]",
    ]
    for column in range(num_columns):
        lines.append(f"  %sum{column} = phi <16 x float> [zeroinitializer, %entry], [%next{column}, %loop]")
    lines += [
        "  %at = mul i64 %pair, 64",
        "  %from = getelementptr i8, ptr %packed, i64 %at",
        "  %q = load <32 x bfloat>, ptr %from, align 64",
        "  %in = mul i64 %pair, 4",
        "  %key = getelementptr i8, ptr %keys, i64 %in",
    ]
    for column in range(num_columns):
        lines += [
            f"  %k{column}.at = getelementptr i8, ptr %key, i64 {2 * dim * column}",
            f"  %k{column}.two = load i32, ptr %k{column}.at, align 2",
            *splat(f"k{column}", f"%k{column}.two", "i32"),
            f"  %k{column}.all = bitcast <16 x i32> %k{column} to <32 x bfloat>",
            f"  %next{column} = call <16 x float> @llvm.x86.avx512bf16.dpbf16ps.512("
            f"<16 x float> %sum{column}, <32 x bfloat> %q, <32 x bfloat> %k{column}.all)",
        ]
    lines += [
        "  %pair.next = add i64 %pair, 1",
        f"  %more = icmp ult i64 %pair.next, {dim // 2}",
        "  br i1 %more, label %loop, label %done",
        "done:",
    ]
    for column in range(num_columns):
        lines += [
            f"  %to{column} = getelementptr i8, ptr %scores, i64 {64 * column}",
            f"  store <16 x float> %next{column}, ptr %to{column}, align 64",
        ]
    return "\n".join([*lines, "  ret void", "}"])


def _weights() -> str:
    """In place of scores [num_shared + num_own, LANES]: what the softmax gives them, before it is divided; returns the
    sums' inverses. %masks: of the last num_own. %scale: times log2(e)."""
    return "\n".join(
        [
            "define internal <16 x float> @weights(ptr noalias %scores, i64 %num_shared, i64 %num_own, "
            "ptr noalias %masks, float %scale) {",
            "entry:",
            *splat("unseen", UNSEEN),
            *splat("scales", "%scale"),
            *power_constants(),
            "  %num_keys = add i64 %num_shared, %num_own",
            "  br label %shared",
            "shared:",
            "  %s = phi i64 [0, %entry], [%s.next, %shared_one]",
            "  %most = phi <16 x float> [%unseen, %entry], [%most.next, %shared_one]",
            "  %s.more = icmp ult i64 %s, %num_shared",
            "  br i1 %s.more, label %shared_one, label %own",
            "shared_one:",
            "  %s.off = mul i64 %s, 64",
            "  %s.at = getelementptr i8, ptr %scores, i64 %s.off",
            "  %score = load <16 x float>, ptr %s.at, align 64",
            "  %above = fcmp ogt <16 x float> %score, %most",
            "  %most.next = select <16 x i1> %above, <16 x float> %score, <16 x float> %most",
            "  %s.next = add i64 %s, 1",
            "  br label %shared",
            "own:",
            "  %o = phi i64 [0, %shared], [%o.next, %own_one]",
            "  %most.own = phi <16 x float> [%most, %shared], [%most.own.next, %own_one]",
            "  %o.more = icmp ult i64 %o, %num_own",
            "  br i1 %o.more, label %own_one, label %exponentials",
            "own_one:",
            "  %o.key = add i64 %num_shared, %o",
            "  %o.off = mul i64 %o.key, 64",
            "  %o.at = getelementptr i8, ptr %scores, i64 %o.off",
            "  %o.any = load <16 x float>, ptr %o.at, align 64",
            "  %mask.at = getelementptr i16, ptr %masks, i64 %o",
            "  %mask = load i16, ptr %mask.at, align 2",
            "  %sees = bitcast i16 %mask to <16 x i1>",
            "  %o.score = select <16 x i1> %sees, <16 x float> %o.any, <16 x float> %unseen",
            "  store <16 x float> %o.score, ptr %o.at, align 64",
            "  %o.above = fcmp ogt <16 x float> %o.score, %most.own",
            "  %most.own.next = select <16 x i1> %o.above, <16 x float> %o.score, <16 x float> %most.own",
            "  %o.next = add i64 %o, 1",
            "  br label %own",
            "exponentials:",
            "  %e = phi i64 [0, %own], [%e.next, %exponential]",
            "  %total = phi <16 x float> [zeroinitializer, %own], [%total.next, %exponential]",
            "  %e.more = icmp ult i64 %e, %num_keys",
            "  br i1 %e.more, label %exponential, label %done",
            "exponential:",
            "  %e.off = mul i64 %e, 64",
            "  %e.at = getelementptr i8, ptr %scores, i64 %e.off",
            "  %e.score = load <16 x float>, ptr %e.at, align 64",
            "  %below = fsub <16 x float> %e.score, %most.own",
            "  %x = fmul <16 x float> %below, %scales",
            *power_of_two("p", "%x"),
            "  store <16 x float> %p, ptr %e.at, align 64",
            "  %total.next = fadd <16 x float> %total, %p",
            "  %e.next = add i64 %e, 1",
            "  br label %exponentials",
            "done:",
            *splat("ones", constant(1.0)),
            "  %inverse = fdiv <16 x float> %ones, %total",
            "  ret <16 x float> %inverse",
            "}",
        ]
    )


def _outputs(num_tokens: int, groups: int, num_heads: int, dim: int) -> str:
    """%out of the lanes of `num_tokens` tokens: weighted values times %inverse. %out: the first lane's."""
    num_lanes, vectors = num_tokens * groups, dim // LANES
    together = next(
        count for count in (4, 2, 1) if vectors % count == 0 and (count == 1 or count * num_lanes <= MOST_SUMS)
    )
    sums = [(lane, part) for lane in range(num_lanes) for part in range(together)]
    lines = [
        f"define internal void @outputs_{num_tokens}(ptr noalias %weights, ptr noalias %values, i64 %num_keys, "
        "<16 x float> %inverse, ptr noalias %out) {",
        "entry:",
        "  br label %part",
        "part:",
        "  %first = phi i64 [0, %entry], [%first.next, %write]",
        "  %first.off = mul i64 %first, 2",
        "  %values.part = getelementptr i8, ptr %values, i64 %first.off",
        "  br label %loop",
        "loop:",
        "  %key = phi i64 [0, %part], [%key.next, %loop]",
    ]
    for lane, part in sums:
        lines.append(f"  %sum{lane}.{part} = phi <16 x float> [zeroinitializer, %part], [%next{lane}.{part}, %loop]")
    lines += [
        f"  %v.off = mul i64 %key, {2 * dim}",
        "  %v.at = getelementptr i8, ptr %values.part, i64 %v.off",
        "  %w.off = mul i64 %key, 64",
        "  %w.at = getelementptr i8, ptr %weights, i64 %w.off",
    ]
    for part in range(together):
        lines += [
            f"  %v{part}.at = getelementptr i8, ptr %v.at, i64 {2 * LANES * part}",
            f"  %v{part}.short = load <16 x i16>, ptr %v{part}.at, align 2",
            f"  %v{part}.wide = zext <16 x i16> %v{part}.short to <16 x i32>",
            f"  %v{part}.bits = shl <16 x i32> %v{part}.wide, " + repeated("i32 16"),
            f"  %v{part} = bitcast <16 x i32> %v{part}.bits to <16 x float>",
        ]
    for lane in range(num_lanes):
        lines += [
            f"  %w{lane}.at = getelementptr i8, ptr %w.at, i64 {4 * lane}",
            f"  %w{lane}.value = load float, ptr %w{lane}.at, align 4",
            *splat(f"w{lane}", f"%w{lane}.value"),
        ]
        for part in range(together):
            lines.append(
                f"  %next{lane}.{part} = call <16 x float> @llvm.fma.v16f32(<16 x float> %w{lane}, "
                f"<16 x float> %v{part}, <16 x float> %sum{lane}.{part})"
            )
    lines += [
        "  %key.next = add i64 %key, 1",
        "  %more = icmp ult i64 %key.next, %num_keys",
        "  br i1 %more, label %loop, label %write",
        "write:",
        "  %out.part = getelementptr i8, ptr %out, i64 %first.off",
    ]
    for lane in range(num_lanes):
        token, head = divmod(lane, groups)
        lines += [
            f"  %i{lane}.value = extractelement <16 x float> %inverse, i64 {lane}",
            *splat(f"i{lane}", f"%i{lane}.value"),
        ]
        for part in range(together):
            at = 2 * (dim * (num_heads * token + head) + LANES * part)
            lines += [
                f"  %o{lane}.{part} = fmul <16 x float> %next{lane}.{part}, %i{lane}",
                f"  %r{lane}.{part} = fptrunc <16 x float> %o{lane}.{part} to <16 x bfloat>",
                f"  %to{lane}.{part} = getelementptr i8, ptr %out.part, i64 {at}",
                f"  store <16 x bfloat> %r{lane}.{part}, ptr %to{lane}.{part}, align 2",
            ]
    lines += [
        f"  %first.next = add i64 %first, {LANES * together}",
        f"  %parts.left = icmp ult i64 %first.next, {dim}",
        "  br i1 %parts.left, label %part, label %done",
        "done:",
        "  ret void",
        "}",
    ]
    return "\n".join(lines)


def _head(kv_heads: int, groups: int, dim: int) -> str:
    """A block's queries of one key head."""
    num_heads, most = kv_heads * groups, tokens_of_block(groups)
    cases = " ".join(f"i64 {count}, label %tokens_{count}" for count in range(1, most))
    calls = "\n".join(
        f"tokens_{count}:\n  call void @outputs_{count}(ptr %scratch, ptr %values, i64 %num_keys, "
        "<16 x float> %inverse, ptr %o)\n  ret void"
        for count in range(1, most + 1)
    )
    return f"""
define internal void @head(ptr %queries, ptr %keys, ptr %values, ptr %out, i64 %query_stride, ptr %scratch,
    float %scale, i64 %token, i64 %num_tokens, i64 %num_shared, i64 %num_own, ptr %masks, i64 %head) {{
entry:
  %packed = alloca [{dim // 2 * LANES} x i32], align 64
  call void @llvm.memset.p0.i64(ptr align 64 %packed, i8 0, i64 {2 * dim * LANES}, i1 false)
  %head.off = mul i64 %head, {2 * groups * dim}
  %q.off = mul i64 %token, %query_stride
  %q.head = add i64 %q.off, %head.off
  %q = getelementptr i8, ptr %queries, i64 %q.head
  %num_lanes = mul i64 %num_tokens, {groups}
  br label %lanes
lanes:
  %lane = phi i64 [0, %entry], [%lane.next, %packed_lane]
  %own.token = udiv i64 %lane, {groups}
  %own.head = urem i64 %lane, {groups}
  %from.token = mul i64 %own.token, %query_stride
  %from.head = mul i64 %own.head, {2 * dim}
  %from.off = add i64 %from.token, %from.head
  %from = getelementptr i8, ptr %q, i64 %from.off
  %to = getelementptr i32, ptr %packed, i64 %lane
  br label %pairs
pairs:
  %pair = phi i64 [0, %lanes], [%pair.next, %pairs]
  %two.at = getelementptr i32, ptr %from, i64 %pair
  %two = load i32, ptr %two.at, align 2
  %to.off = mul i64 %pair, {LANES}
  %to.at = getelementptr i32, ptr %to, i64 %to.off
  store i32 %two, ptr %to.at, align 4
  %pair.next = add i64 %pair, 1
  %pairs.left = icmp ult i64 %pair.next, {dim // 2}
  br i1 %pairs.left, label %pairs, label %packed_lane
packed_lane:
  %lane.next = add i64 %lane, 1
  %lanes.left = icmp ult i64 %lane.next, %num_lanes
  br i1 %lanes.left, label %lanes, label %scored
scored:
  %num_keys = add i64 %num_shared, %num_own
  br label %large
large:
  %a = phi i64 [0, %scored], [%a.next, %large_group]
  %a.next = add i64 %a, {LARGE_GROUP}
  %a.fits = icmp ule i64 %a.next, %num_keys
  br i1 %a.fits, label %large_group, label %small
large_group:
  %a.key = mul i64 %a, {2 * dim}
  %a.keys = getelementptr i8, ptr %keys, i64 %a.key
  %a.score = mul i64 %a, 64
  %a.scores = getelementptr i8, ptr %scratch, i64 %a.score
  call void @scores_{LARGE_GROUP}(ptr %packed, ptr %a.keys, ptr %a.scores)
  br label %large
small:
  %b = phi i64 [%a, %large], [%b.next, %small_group]
  %b.next = add i64 %b, {SMALL_GROUP}
  %b.fits = icmp ule i64 %b.next, %num_keys
  br i1 %b.fits, label %small_group, label %single
small_group:
  %b.key = mul i64 %b, {2 * dim}
  %b.keys = getelementptr i8, ptr %keys, i64 %b.key
  %b.score = mul i64 %b, 64
  %b.scores = getelementptr i8, ptr %scratch, i64 %b.score
  call void @scores_{SMALL_GROUP}(ptr %packed, ptr %b.keys, ptr %b.scores)
  br label %small
single:
  %c = phi i64 [%b, %small], [%c.next, %single_column]
  %c.fits = icmp ult i64 %c, %num_keys
  br i1 %c.fits, label %single_column, label %weighed
single_column:
  %c.key = mul i64 %c, {2 * dim}
  %c.keys = getelementptr i8, ptr %keys, i64 %c.key
  %c.score = mul i64 %c, 64
  %c.scores = getelementptr i8, ptr %scratch, i64 %c.score
  call void @scores_1(ptr %packed, ptr %c.keys, ptr %c.scores)
  %c.next = add i64 %c, 1
  br label %single
weighed:
  %inverse = call <16 x float> @weights(ptr %scratch, i64 %num_shared, i64 %num_own, ptr %masks, float %scale)
  %o.token = mul i64 %token, {2 * num_heads * dim}
  %o.off = add i64 %o.token, %head.off
  %o = getelementptr i8, ptr %out, i64 %o.off
  switch i64 %num_tokens, label %tokens_{most} [ {cases} ]
{calls}
}}
"""


GIVEN: Final[Fields] = dict.fromkeys(("queries", "keys", "values", "out", "blocks"), "ptr") | {
    "num_blocks": "i64",
    "masks": "ptr",
    "scratch": "ptr",
    "num_keys": "i64",
    "query_stride": "i64",
    "key_stride": "i64",
    "value_stride": "i64",
    "scale": "float",
}


def _driver(kv_heads: int, dim: int) -> str:
    """A thread takes every num_threads-th of the heads of all blocks."""
    fields = ("token", "num_tokens", "column", "num_shared", "num_own")
    found = []
    for place, name in enumerate(fields):
        found += [
            f"  %{name}.at = getelementptr i64, ptr %block.at, i64 {place}",
            f"  %{name} = load i64, ptr %{name}.at, align 8",
        ]
    return "\n".join(
        [
            "define internal void @heads(ptr %given, i64 %thread, i64 %num_threads) {",
            "entry:",
            given(GIVEN),
            "  %own.size = mul i64 %num_keys, 64",
            "  %own.off = mul i64 %own.size, %thread",
            "  %own = getelementptr i8, ptr %scratch, i64 %own.off",
            "  br label %next_block",
            "next_block:",
            "  %block = phi i64 [0, %entry], [%block.next, %block_done]",
            "  %masks.now = phi ptr [%masks, %entry], [%masks.next, %block_done]",
            "  %going = icmp ult i64 %block, %num_blocks",
            "  br i1 %going, label %begin, label %end",
            "begin:",
            f"  %block.off = mul i64 %block, {FIELDS}",
            "  %block.at = getelementptr i64, ptr %blocks, i64 %block.off",
            *found,
            f"  %heads.before = mul i64 %block, {kv_heads}",
            f"  %c.off = mul i64 %column, {2 * dim}",
            "  br label %next_head",
            "next_head:",
            "  %head = phi i64 [0, %begin], [%head.next, %head_done]",
            "  %place = add i64 %heads.before, %head",
            "  %whose = urem i64 %place, %num_threads",
            "  %is_own = icmp eq i64 %whose, %thread",
            "  br i1 %is_own, label %compute, label %head_done",
            "compute:",
            "  %k.head = mul i64 %head, %key_stride",
            "  %k.off = add i64 %k.head, %c.off",
            "  %k = getelementptr i8, ptr %keys, i64 %k.off",
            "  %v.head = mul i64 %head, %value_stride",
            "  %v.off = add i64 %v.head, %c.off",
            "  %v = getelementptr i8, ptr %values, i64 %v.off",
            "  call void @head(ptr %queries, ptr %k, ptr %v, ptr %out, i64 %query_stride, ptr %own, float %scale, "
            "i64 %token, i64 %num_tokens, i64 %num_shared, i64 %num_own, ptr %masks.now, i64 %head)",
            "  br label %head_done",
            "head_done:",
            "  %head.next = add i64 %head, 1",
            f"  %heads.left = icmp ult i64 %head.next, {kv_heads}",
            "  br i1 %heads.left, label %next_head, label %block_done",
            "block_done:",
            "  %masks.next = getelementptr i16, ptr %masks.now, i64 %num_own",
            "  %block.next = add i64 %block, 1",
            "  br label %next_block",
            "end:",
            "  ret void",
            "}",
            "",
            entry("attend", GIVEN, "heads"),
        ]
    )
