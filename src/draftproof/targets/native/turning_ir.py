"""Rotary position embedding, and where keys and values go, as LLVM's intermediate representation: text.

`turn(joined, cos, sin, query, keys, values, columns, num_tokens, num_written, heads, kv_heads, dim, by_key_head,
by_value_head, num_threads)`:

    out[h] = bfloat16(bfloat16(x[h] · cos) + (x[h] with its halves swapped) · sin)

joined [num_tokens, heads + 2 · kv_heads, dim] bfloat16: queries, keys, values. cos, sin [num_tokens, dim] bfloat16, the
first half of `sin` negative. query [num_tokens, heads, dim]. The keys of the first `num_written` tokens, turned, and
their values go to column `columns[token]` of keys and values, whose heads are so many bytes apart. dim is a multiple of
32. A thread takes every num_threads-th token. Products of two bfloat16 numbers are exact in float32, so the bits are
PyTorch's.
"""

from __future__ import annotations

from typing import Final

from draftproof.targets.native.text import DECLARED, Fields, entry, given, widened

TURN: Final[Fields] = dict.fromkeys(
    ("joined", "cos", "sin", "query", "keys", "values", "columns"), "ptr"
) | dict.fromkeys(("num_tokens", "num_written", "heads", "kv_heads", "dim", "by_key_head", "by_value_head"), "i64")


def turning_ir() -> str:
    """The module's text."""
    return "\n".join([DECLARED, _turn(), entry("turn", TURN, "turns")])


def _half(name: str, own: str, other: str) -> list[str]:
    """%name.out: one half of a head, from its own numbers and the other half's."""
    return [
        *widened(f"{name}.cos", f"%{name}.cos.at"),
        *widened(f"{name}.sin", f"%{name}.sin.at"),
        f"  %{name}.first = fmul <16 x float> {own}, %{name}.cos",
        f"  %{name}.first.short = fptrunc <16 x float> %{name}.first to <16 x bfloat>",
        f"  %{name}.first.again = fpext <16 x bfloat> %{name}.first.short to <16 x float>",
        f"  %{name}.second = fmul <16 x float> {other}, %{name}.sin",
        f"  %{name}.both = fadd <16 x float> %{name}.first.again, %{name}.second",
        f"  %{name}.out = fptrunc <16 x float> %{name}.both to <16 x bfloat>",
        f"  store <16 x bfloat> %{name}.out, ptr %{name}.to, align 2",
    ]


def _turn() -> str:
    lines = [
        "define internal void @turns(ptr %given, i64 %thread, i64 %num_threads) {",
        "entry:",
        given(TURN),
        "  %half = lshr i64 %dim, 1",
        "  %turned = add i64 %heads, %kv_heads",
        "  %all = add i64 %turned, %kv_heads",
        "  br label %next_token",
        "next_token:",
        "  %token = phi i64 [%thread, %entry], [%token.next, %token_done]",
        "  %going = icmp ult i64 %token, %num_tokens",
        "  br i1 %going, label %begin, label %end",
        "begin:",
        "  %is_written = icmp ult i64 %token, %num_written",
        "  %last = select i1 %is_written, i64 %all, i64 %heads",
        "  br i1 %is_written, label %writing, label %prepared",
        "writing:",
        "  %column.at = getelementptr i64, ptr %columns, i64 %token",
        "  %column.there = load i64, ptr %column.at, align 8",
        "  br label %prepared",
        "prepared:",
        "  %column = phi i64 [0, %begin], [%column.there, %writing]",
        "  %in.column = mul i64 %column, %dim",
        "  %first.head = mul i64 %token, %all",
        "  %query.head = mul i64 %token, %heads",
        "  %in.angles = mul i64 %token, %dim",
        "  %cosines = getelementptr bfloat, ptr %cos, i64 %in.angles",
        "  %sines = getelementptr bfloat, ptr %sin, i64 %in.angles",
        "  br label %next_head",
        "next_head:",
        "  %head = phi i64 [0, %prepared], [%head.next, %head_done]",
        "  %has_head = icmp ult i64 %head, %last",
        "  br i1 %has_head, label %placed, label %token_done",
        "placed:",
        "  %own.head = add i64 %first.head, %head",
        "  %own.place = mul i64 %own.head, %dim",
        "  %own = getelementptr bfloat, ptr %joined, i64 %own.place",
        "  %q.head = add i64 %query.head, %head",
        "  %q.place = mul i64 %q.head, %dim",
        "  %q.to = getelementptr bfloat, ptr %query, i64 %q.place",
        "  %key = sub i64 %head, %heads",
        "  %key.place = mul i64 %key, %by_key_head",
        "  %key.first = getelementptr i8, ptr %keys, i64 %key.place",
        "  %key.to = getelementptr bfloat, ptr %key.first, i64 %in.column",
        "  %value = sub i64 %head, %turned",
        "  %value.place = mul i64 %value, %by_value_head",
        "  %value.first = getelementptr i8, ptr %values, i64 %value.place",
        "  %value.to = getelementptr bfloat, ptr %value.first, i64 %in.column",
        "  %is_query = icmp ult i64 %head, %heads",
        "  %to = select i1 %is_query, ptr %q.to, ptr %key.to",
        "  %is_value = icmp uge i64 %head, %turned",
        "  br i1 %is_value, label %copying, label %turning",
        "turning:",
        "  %k = phi i64 [0, %placed], [%k.next, %turning]",
        "  %above = add i64 %k, %half",
        "  %x.low.at = getelementptr bfloat, ptr %own, i64 %k",
        "  %x.high.at = getelementptr bfloat, ptr %own, i64 %above",
        *widened("x.low", "%x.low.at"),
        *widened("x.high", "%x.high.at"),
        "  %low.cos.at = getelementptr bfloat, ptr %cosines, i64 %k",
        "  %high.cos.at = getelementptr bfloat, ptr %cosines, i64 %above",
        "  %low.sin.at = getelementptr bfloat, ptr %sines, i64 %k",
        "  %high.sin.at = getelementptr bfloat, ptr %sines, i64 %above",
        "  %low.to = getelementptr bfloat, ptr %to, i64 %k",
        "  %high.to = getelementptr bfloat, ptr %to, i64 %above",
        *_half("low", "%x.low", "%x.high"),
        *_half("high", "%x.high", "%x.low"),
        "  %k.next = add i64 %k, 16",
        "  %k.more = icmp ult i64 %k.next, %half",
        "  br i1 %k.more, label %turning, label %head_done",
        "copying:",
        "  %c = phi i64 [0, %placed], [%c.next, %copying]",
        "  %c.from = getelementptr bfloat, ptr %own, i64 %c",
        "  %c.to = getelementptr bfloat, ptr %value.to, i64 %c",
        "  %copied = load <16 x i16>, ptr %c.from, align 2",
        "  store <16 x i16> %copied, ptr %c.to, align 2",
        "  %c.next = add i64 %c, 16",
        "  %c.more = icmp ult i64 %c.next, %dim",
        "  br i1 %c.more, label %copying, label %head_done",
        "head_done:",
        "  %head.next = add i64 %head, 1",
        "  br label %next_head",
        "token_done:",
        "  %token.next = add i64 %token, %num_threads",
        "  br label %next_token",
        "end:",
        "  ret void",
        "}",
    ]
    return "\n".join(lines)
