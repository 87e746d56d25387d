"""Compiles LLVM's intermediate representation, with the LLVM that `draftproof[cpu]` brings (llvmlite): no compiler has
to be installed."""

from __future__ import annotations

import ctypes
import warnings
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any, Final

import torch

from draftproof.targets.dtype import cpu_flags
from draftproof.targets.native.attention_ir import GIVEN as ATTENTION
from draftproof.targets.native.attention_ir import attention_ir
from draftproof.targets.native.pointwise_ir import GATE, NORM, pointwise_ir
from draftproof.targets.native.product_ir import GIVEN as PRODUCT
from draftproof.targets.native.product_ir import product_ir
from draftproof.targets.native.text import Fields
from draftproof.targets.native.turning_ir import TURN, turning_ir

FLAGS: Final = {"avx512f", "avx512bw", "avx512vl", "avx512_bf16"}
CALLS: Final = ("GOMP_parallel", "omp_get_thread_num", "omp_get_num_threads")
"""Of the library whose threads PyTorch computes with: another one's would wait on the same processors."""
KINDS: Final[dict[str, Any]] = {"ptr": ctypes.c_int64, "i64": ctypes.c_int64, "float": ctypes.c_float}
_engines: Final[list[Any]] = []

Function = Callable[..., None]


@cache
def available() -> bool:
    """Whether this machine runs them: an x86 processor with vector products of bfloat16 but no tile products (AMX), for
    which oneDNN's are as good; PyTorch's threads are GNU OpenMP's; llvmlite is there, and compiles. A rule of the
    machine alone."""
    flags = cpu_flags()
    if not flags >= FLAGS or "amx_bf16" in flags or _threads() is None:
        return False
    try:
        import llvmlite.binding  # noqa: F401
    except (ImportError, OSError):
        return False
    try:
        product(2)
        attention(1, 1, 16)
        pointwise()
        turning()
    except RuntimeError as error:
        warnings.warn(
            f"narrow forwards go on with PyTorch's kernels, since LLVM refuses: {error}", RuntimeWarning, stacklevel=2
        )
        return False
    return True


@cache
def product(num_pairs: int) -> Function:
    """`product` of product_ir.py, for so many pairs of input features. Raises RuntimeError where LLVM refuses."""
    return _compiled(product_ir(num_pairs), product=PRODUCT)["product"]


@cache
def attention(kv_heads: int, groups: int, dim: int) -> Function:
    """`attend` of attention_ir.py, for such heads. Raises RuntimeError where LLVM refuses."""
    return _compiled(attention_ir(kv_heads, groups, dim), attend=ATTENTION)["attend"]


@cache
def pointwise() -> dict[str, Function]:
    """`add_norm` and `gate` of pointwise_ir.py. Raises RuntimeError where LLVM refuses."""
    return _compiled(pointwise_ir(), add_norm=NORM, gate=GATE)


@cache
def turning() -> Function:
    """`turn` of turning_ir.py. Raises RuntimeError where LLVM refuses."""
    return _compiled(turning_ir(), turn=TURN)["turn"]


def _compiled(text: str, **functions: Fields) -> dict[str, Function]:
    import llvmlite.binding as llvm

    threads = _threads()
    if threads is None:
        raise RuntimeError("PyTorch has no GNU OpenMP")
    llvm.initialize_native_target()
    llvm.initialize_native_asmprinter()
    for called in CALLS:
        llvm.add_symbol(called, ctypes.cast(getattr(threads, called), ctypes.c_void_p).value)
    target = llvm.Target.from_default_triple()
    machine = target.create_target_machine(
        cpu=llvm.get_host_cpu_name(), features=llvm.get_host_cpu_features().flatten(), opt=3
    )
    module = llvm.parse_assembly(text)
    module.verify()
    engine = llvm.create_mcjit_compiler(module, machine)
    engine.finalize_object()
    _engines.append(engine)  # the code lives as long as it does
    return {
        name: ctypes.CFUNCTYPE(None, *(KINDS[kind] for kind in fields.values()), ctypes.c_int64)(
            engine.get_function_address(name)
        )
        for name, fields in functions.items()
    }


@cache
def _threads() -> Any:
    """The library of PyTorch's threads, None where it isn't GNU's."""
    folder = Path(torch.__file__).parent
    found = [
        *sorted((folder / "lib").glob("libgomp*.so*")),
        *sorted((folder.parent / "torch.libs").glob("libgomp*.so*")),
    ]
    for path in found:
        try:
            library = ctypes.CDLL(str(path))
        except OSError:
            continue
        if all(hasattr(library, name) for name in CALLS):
            return library
    return None
