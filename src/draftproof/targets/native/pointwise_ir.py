"""What lies between a layer's products, as LLVM's intermediate representation: text. All tensors are bfloat16, but for
float32 weights of norms, and contiguous; widths are multiples of 16.

`add_norm(residual, added, weight, out, num_rows, width, eps, num_threads)`: residual += added, rounded, where `added`
isn't 0; out = residual / sqrt(mean(residual²) + eps) · weight.
`gate(joined, out, num_rows, width, num_threads)`: out [rows, width] = silu(joined[:, :width]) · joined[:, width:], with
silu rounded to bfloat16 before it is multiplied, as PyTorch has it.

A thread takes every num_threads-th row; each number is computed in float32 by the same instructions wherever it stands.
"""

from __future__ import annotations

from math import inf, log
from typing import Final

from draftproof.targets.native.text import (
    DECLARED,
    Fields,
    constant,
    entry,
    given,
    power_constants,
    power_of_two,
    splat,
    widened,
)

NORM: Final[Fields] = {
    "residual": "ptr",
    "added": "ptr",
    "weight": "ptr",
    "out": "ptr",
    "num_rows": "i64",
    "width": "i64",
    "eps": "float",
}
GATE: Final[Fields] = {"joined": "ptr", "out": "ptr", "num_rows": "i64", "width": "i64"}


def pointwise_ir() -> str:
    """The module's text."""
    return "\n".join(
        [DECLARED, _norm(), entry("add_norm", NORM, "norms"), _gate(), entry("gate", GATE, "gates")],
    )


def _norm() -> str:
    lines = [
        "define internal void @norms(ptr %given, i64 %thread, i64 %num_threads) {",
        "entry:",
        given(NORM),
        "  %adds = icmp ne ptr %added, null",
        "  %size = uitofp i64 %width to float",
        "  br label %next_row",
        "next_row:",
        "  %row = phi i64 [%thread, %entry], [%row.next, %row_done]",
        "  %going = icmp ult i64 %row, %num_rows",
        "  br i1 %going, label %begin, label %end",
        "begin:",
        "  %first = mul i64 %row, %width",
        "  br label %squares",
        "squares:",
        "  %k = phi i64 [0, %begin], [%k.next, %summed]",
        "  %sum = phi <16 x float> [zeroinitializer, %begin], [%sum.next, %summed]",
        "  %at = add i64 %first, %k",
        "  %x.at = getelementptr bfloat, ptr %residual, i64 %at",
        *widened("x", "%x.at"),
        "  br i1 %adds, label %adding, label %summed",
        "adding:",
        "  %a.at = getelementptr bfloat, ptr %added, i64 %at",
        *widened("a", "%a.at"),
        "  %xa = fadd <16 x float> %x, %a",
        "  %xa.rounded = fptrunc <16 x float> %xa to <16 x bfloat>",
        "  store <16 x bfloat> %xa.rounded, ptr %x.at, align 2",
        "  %xa.again = fpext <16 x bfloat> %xa.rounded to <16 x float>",
        "  br label %summed",
        "summed:",
        "  %y = phi <16 x float> [%x, %squares], [%xa.again, %adding]",
        "  %sum.next = call <16 x float> @llvm.fma.v16f32(<16 x float> %y, <16 x float> %y, <16 x float> %sum)",
        "  %k.next = add i64 %k, 16",
        "  %k.more = icmp ult i64 %k.next, %width",
        "  br i1 %k.more, label %squares, label %scaled",
        "scaled:",
        "  %total = call reassoc float @llvm.vector.reduce.fadd.v16f32(float 0.0, <16 x float> %sum.next)",
        "  %mean = fdiv float %total, %size",
        "  %above = fadd float %mean, %eps",
        "  %root = call float @llvm.sqrt.f32(float %above)",
        f"  %inverse = fdiv float {constant(1.0)}, %root",
        *splat("scale", "%inverse"),
        "  br label %outputs",
        "outputs:",
        "  %o = phi i64 [0, %scaled], [%o.next, %outputs]",
        "  %o.at = add i64 %first, %o",
        "  %z.at = getelementptr bfloat, ptr %residual, i64 %o.at",
        *widened("z", "%z.at"),
        "  %w.at = getelementptr float, ptr %weight, i64 %o",
        "  %w = load <16 x float>, ptr %w.at, align 4",
        "  %normed = fmul <16 x float> %z, %scale",
        "  %weighted = fmul <16 x float> %normed, %w",
        "  %rounded = fptrunc <16 x float> %weighted to <16 x bfloat>",
        "  %to = getelementptr bfloat, ptr %out, i64 %o.at",
        "  store <16 x bfloat> %rounded, ptr %to, align 2",
        "  %o.next = add i64 %o, 16",
        "  %o.more = icmp ult i64 %o.next, %width",
        "  br i1 %o.more, label %outputs, label %row_done",
        "row_done:",
        "  %row.next = add i64 %row, %num_threads",
        "  br label %next_row",
        "end:",
        "  ret void",
        "}",
    ]
    return "\n".join(lines)


def _gate() -> str:
    lines = [
        "define internal void @gates(ptr %given, i64 %thread, i64 %num_threads) {",
        "entry:",
        given(GATE),
        *power_constants(),
        *splat("ones", constant(1.0)),
        *splat("most", constant(126.0)),
        *splat("infinite", constant(inf)),
        *splat("minus.log2e", constant(-1.0 / log(2.0))),
        "  br label %next_row",
        "next_row:",
        "  %row = phi i64 [%thread, %entry], [%row.next, %row_done]",
        "  %going = icmp ult i64 %row, %num_rows",
        "  br i1 %going, label %begin, label %end",
        "begin:",
        "  %o.first = mul i64 %row, %width",
        "  %g.first = mul i64 %o.first, 2",
        "  br label %numbers",
        "numbers:",
        "  %k = phi i64 [0, %begin], [%k.next, %numbers]",
        "  %g.place = add i64 %g.first, %k",
        "  %g.at = getelementptr bfloat, ptr %joined, i64 %g.place",
        "  %u.at = getelementptr bfloat, ptr %g.at, i64 %width",
        *widened("g", "%g.at"),
        *widened("u", "%u.at"),
        "  %power.any = fmul <16 x float> %g, %minus.log2e",
        "  %is_large = fcmp ogt <16 x float> %power.any, %most",
        "  %power = select <16 x i1> %is_large, <16 x float> %most, <16 x float> %power.any",
        *power_of_two("e.any", "%power"),
        "  %e = select <16 x i1> %is_large, <16 x float> %infinite, <16 x float> %e.any",
        "  %below = fadd <16 x float> %e, %ones",
        "  %silu = fdiv <16 x float> %g, %below",
        "  %silu.rounded = fptrunc <16 x float> %silu to <16 x bfloat>",
        "  %silu.again = fpext <16 x bfloat> %silu.rounded to <16 x float>",
        "  %gated = fmul <16 x float> %silu.again, %u",
        "  %rounded = fptrunc <16 x float> %gated to <16 x bfloat>",
        "  %o.place = add i64 %o.first, %k",
        "  %to = getelementptr bfloat, ptr %out, i64 %o.place",
        "  store <16 x bfloat> %rounded, ptr %to, align 2",
        "  %k.next = add i64 %k, 16",
        "  %k.more = icmp ult i64 %k.next, %width",
        "  br i1 %k.more, label %numbers, label %row_done",
        "row_done:",
        "  %row.next = add i64 %row, %num_threads",
        "  br label %next_row",
        "end:",
        "  ret void",
        "}",
    ]
    return "\n".join(lines)
