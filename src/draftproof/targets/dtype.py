"""Which number format `auto` means on a device."""

from __future__ import annotations

from pathlib import Path

import torch

from draftproof.errors import ParameterError

NAMES = {
    "float32": torch.float32,
    "fp32": torch.float32,
    "bfloat16": torch.bfloat16,
    "bf16": torch.bfloat16,
    "float16": torch.float16,
    "fp16": torch.float16,
    "half": torch.float16,
    "float64": torch.float64,
}
# Instruction sets that multiply bfloat16 matrices; the last is 64-bit Arm's.
CPU_FLAGS = {"amx_bf16", "avx512_bf16", "bf16"}
# Those, and the calls, of products in float32 over weights in float16 (`half_linear.py`).
HALF_FLAGS = {"avx2", "f16c", "fma"}
HALF_CALLS = ("linear_prepack_fp16", "linear_unpack_fp16", "linear_dynamic_fp16")
HALF_ENGINES = ("x86", "fbgemm")


def cpu_flags(cpu_info: Path = Path("/proc/cpuinfo")) -> frozenset[str]:
    """What the CPU can do, by its own word; nothing where the system doesn't tell."""
    try:
        text = cpu_info.read_text(encoding="utf-8", errors="replace")
    except OSError:
        return frozenset()
    for line in text.splitlines():
        name, _, flags = line.partition(":")
        if name.strip() in ("flags", "Features"):
            return frozenset(flags.split())
    return frozenset()


def cpu_has_bf16(cpu_info: Path = Path("/proc/cpuinfo")) -> bool:
    """Does the CPU multiply bfloat16 in hardware?"""
    return bool(CPU_FLAGS & cpu_flags(cpu_info))


def can_halve(device: torch.device) -> bool:
    """Can linear layers keep their weights in float16 and compute in float32? A rule of the machine alone."""
    if device.type != "cpu" or not cpu_flags() >= HALF_FLAGS:
        return False
    calls, quantized = torch.ops.quantized, torch.backends.quantized
    return quantized.engine in HALF_ENGINES and all(hasattr(calls, name) for name in HALF_CALLS)


def resolve_format(dtype: str | torch.dtype, device: torch.device) -> tuple[torch.dtype, bool]:
    """What a target computes in, and whether its weights are float16 nevertheless: where the device can do that, for
    float16, and for `auto` where that would be float32. Raises ParameterError."""
    found = resolve_dtype(dtype, device)
    halves = (found == torch.float16 or (dtype == "auto" and found == torch.float32)) and can_halve(device)
    return (torch.float32 if halves else found), halves


def resolve_dtype(dtype: str | torch.dtype, device: torch.device) -> torch.dtype:
    """`auto`: bfloat16 where the device computes it in hardware, float32 otherwise. Raises ParameterError."""
    if isinstance(dtype, torch.dtype):
        if dtype not in NAMES.values():
            raise ParameterError("dtype", dtype, f"auto or one of {', '.join(NAMES)}")
        return dtype
    if dtype == "auto":
        if device.type == "cuda":
            fast = torch.cuda.is_bf16_supported(including_emulation=False)
        else:
            fast = device.type == "cpu" and cpu_has_bf16()
        return torch.bfloat16 if fast else torch.float32
    if dtype not in NAMES:
        raise ParameterError("dtype", dtype, f"auto or one of {', '.join(NAMES)}")
    return NAMES[dtype]
