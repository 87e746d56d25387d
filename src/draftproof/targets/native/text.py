"""Pieces of LLVM's intermediate representation that the modules here share."""

from __future__ import annotations

import struct
from collections.abc import Mapping
from math import log
from typing import Final

LANES: Final = 16
"""float32 numbers of a vector."""
LEAST: Final = -126
"""Exponents of 2 below it count as none."""
DEGREE: Final = 7
"""Of the polynomial for 2^x, x from -1/2 to 1/2: off by 5e-9 of its value."""

DECLARED: Final = """
declare <16 x float> @llvm.x86.avx512bf16.dpbf16ps.512(<16 x float>, <32 x bfloat>, <32 x bfloat>)
declare <16 x float> @llvm.fma.v16f32(<16 x float>, <16 x float>, <16 x float>)
declare <16 x float> @llvm.roundeven.v16f32(<16 x float>)
declare float @llvm.vector.reduce.fadd.v16f32(float, <16 x float>)
declare float @llvm.sqrt.f32(float)
declare void @llvm.prefetch.p0(ptr, i32, i32, i32)
declare void @llvm.masked.store.v16bf16.p0(<16 x bfloat>, ptr, i32, <16 x i1>)
declare void @llvm.memset.p0.i64(ptr, i8, i64, i1)
declare i32 @omp_get_thread_num()
declare i32 @omp_get_num_threads()
declare void @GOMP_parallel(ptr, ptr, i32, i32)
"""

Fields = Mapping[str, str]
"""What a function is given: name -> ptr, i64 or float."""


def constant(value: float) -> str:
    """A float32 constant: LLVM wants its digits as a double's."""
    single = struct.unpack("<f", struct.pack("<f", value))[0]
    return "0x" + struct.pack(">d", single).hex().upper()


def splat(name: str, scalar: str, kind: str = "float") -> list[str]:
    """%name: a vector of 16 times `scalar`."""
    return [
        f"  %{name}.one = insertelement <16 x {kind}> poison, {kind} {scalar}, i64 0",
        f"  %{name} = shufflevector <16 x {kind}> %{name}.one, <16 x {kind}> poison, <16 x i32> zeroinitializer",
    ]


def repeated(element: str) -> str:
    """A constant vector of 16 times the element."""
    return "<" + ", ".join([element] * LANES) + ">"


def widened(name: str, address: str) -> list[str]:
    """%name: 16 bfloat16 numbers from an address, as float32."""
    return [
        f"  %{name}.short = load <16 x i16>, ptr {address}, align 2",
        f"  %{name}.wide = zext <16 x i16> %{name}.short to <16 x i32>",
        f"  %{name}.bits = shl <16 x i32> %{name}.wide, " + repeated("i32 16"),
        f"  %{name} = bitcast <16 x i32> %{name}.bits to <16 x float>",
    ]


def power_constants() -> list[str]:
    """What `power_of_two` needs, to be defined once before it."""
    lines, value = [*splat("least", constant(LEAST))], 1.0
    for power in range(DEGREE + 1):
        lines += splat(f"c{power}", constant(value))
        value *= log(2.0) / (power + 1)
    return lines


def power_of_two(name: str, exponent: str) -> list[str]:
    """%name: 2 to the power of a vector of at most 127; 0 below LEAST, and what is no number stays none."""
    lines = [
        f"  %{name}.counts = fcmp uge <16 x float> {exponent}, %least",
        f"  %{name}.kept = select <16 x i1> %{name}.counts, <16 x float> {exponent}, <16 x float> %least",
        f"  %{name}.n = call <16 x float> @llvm.roundeven.v16f32(<16 x float> %{name}.kept)",
        f"  %{name}.f = fsub <16 x float> %{name}.kept, %{name}.n",
    ]
    before = f"%c{DEGREE}"
    for power in range(DEGREE - 1, -1, -1):
        lines.append(
            f"  %{name}.p{power} = call <16 x float> @llvm.fma.v16f32(<16 x float> {before}, <16 x float> %{name}.f, "
            f"<16 x float> %c{power})"
        )
        before = f"%{name}.p{power}"
    return [
        *lines,
        f"  %{name}.whole = fptosi <16 x float> %{name}.n to <16 x i32>",
        f"  %{name}.shift = shl <16 x i32> %{name}.whole, " + repeated("i32 23"),
        f"  %{name}.bits = bitcast <16 x float> {before} to <16 x i32>",
        f"  %{name}.sum = add <16 x i32> %{name}.bits, %{name}.shift",
        f"  %{name}.any = bitcast <16 x i32> %{name}.sum to <16 x float>",
        f"  %{name} = select <16 x i1> %{name}.counts, <16 x float> %{name}.any, <16 x float> zeroinitializer",
    ]


def given(fields: Fields) -> str:
    """Definitions of what a worker is given, from %given."""
    lines = []
    for place, (name, kind) in enumerate(fields.items()):
        lines.append(f"  %{name}.at = getelementptr i64, ptr %given, i64 {place}")
        lines.append(f"  %{name} = load {kind}, ptr %{name}.at, align 8")
    return "\n".join(lines)


def entry(name: str, fields: Fields, worker: str) -> str:
    """The function `name`(fields, num_threads), addresses as integers: each thread calls the worker, which is
    @worker(ptr %given, i64 %thread, i64 %num_threads)."""
    passed = {field: "float" if kind == "float" else "i64" for field, kind in fields.items()}
    stores = []
    for place, (field, kind) in enumerate(passed.items()):
        stores.append(f"  %{field}.at = getelementptr i64, ptr %given, i64 {place}")
        stores.append(f"  store {kind} %{field}, ptr %{field}.at, align 8")
    arguments = ", ".join(f"{kind} %{field}" for field, kind in passed.items())
    body = "\n".join(stores)
    return f"""
define internal void @task_{name}(ptr %given) {{
  %own = call i32 @omp_get_thread_num()
  %all = call i32 @omp_get_num_threads()
  %thread = zext i32 %own to i64
  %num_threads = zext i32 %all to i64
  call void @{worker}(ptr %given, i64 %thread, i64 %num_threads)
  ret void
}}

define void @{name}({arguments}, i64 %num_threads) {{
  %given = alloca [{len(fields)} x i64], align 8
{body}
  %is_alone = icmp ule i64 %num_threads, 1
  br i1 %is_alone, label %alone, label %together
alone:
  call void @{worker}(ptr %given, i64 0, i64 1)
  ret void
together:
  %threads = trunc i64 %num_threads to i32
  call void @GOMP_parallel(ptr @task_{name}, ptr %given, i32 %threads, i32 0)
  ret void
}}
"""
