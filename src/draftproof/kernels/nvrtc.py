"""Kernels in CUDA C++ (cuda/), compiled when they are first needed, for the GPU that is there.

NVRTC, the compiler, comes with PyTorch, and NVIDIA's Python bindings with `draftproof[gpu]`: no toolkit is needed.
"""

from __future__ import annotations

import ctypes
from functools import cache
from pathlib import Path
from typing import Any, Final, NamedTuple

import torch

SOURCES: Final = Path(__file__).parent / "cuda"


class Kernel(NamedTuple):
    """A compiled kernel. num_threads: of a program. shared: bytes of shared memory that it asks for."""

    function: Any
    num_threads: int
    shared: int

    def __call__(self, num_programs: int, *arguments: Any) -> None:
        """Launches it on PyTorch's current stream. arguments: tensors, and numbers as ctypes has them."""
        from cuda.bindings import driver

        tensors = [isinstance(each, torch.Tensor) for each in arguments]
        values = tuple(
            each.data_ptr() if is_tensor else each.value for each, is_tensor in zip(arguments, tensors, strict=True)
        )
        kinds = tuple(
            ctypes.c_void_p if is_tensor else type(each) for each, is_tensor in zip(arguments, tensors, strict=True)
        )
        stream = torch.cuda.current_stream().cuda_stream
        _checked(
            driver.cuLaunchKernel(
                self.function, num_programs, 1, 1, self.num_threads, 1, 1, self.shared, stream, (values, kinds), 0
            )
        )


@cache
def available(device: torch.device) -> bool:
    """Whether kernels in CUDA C++ run on `device`: compute capability 9 (H100, H200), bindings and compiler there."""
    if device.type != "cuda" or torch.version.hip is not None or torch.cuda.get_device_capability(device)[0] != 9:
        return False
    try:
        from cuda.bindings import nvrtc

        _checked(nvrtc.nvrtcVersion())
    except (ImportError, OSError, RuntimeError):
        return False
    return True


@cache
def compiled(
    source: str, name: str, device: torch.device, num_threads: int, shared: int, defined: tuple[tuple[str, int], ...]
) -> Kernel:
    """The kernel `name` of the file `source`. defined: macros, as (name, value)."""
    from cuda.bindings import driver

    image = image_of(source, torch.cuda.get_device_capability(device), defined)
    with torch.cuda.device(device):
        torch.cuda.current_stream().synchronize()  # makes PyTorch's context the current one
        (module,) = _checked(driver.cuModuleLoadData(image))
        (function,) = _checked(driver.cuModuleGetFunction(module, name.encode()))
        attributes = driver.CUfunction_attribute
        for attribute, value in (
            (attributes.CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES, shared),
            (attributes.CU_FUNC_ATTRIBUTE_PREFERRED_SHARED_MEMORY_CARVEOUT, 100),
        ):
            _checked(driver.cuFuncSetAttribute(function, attribute, value))
    return Kernel(function, num_threads, shared)


def image_of(
    source: str, capability: tuple[int, int], defined: tuple[tuple[str, int], ...], folder: Path = SOURCES
) -> bytes:
    """Machine code of a file in `folder` for GPUs of `capability`. Raises RuntimeError with the compiler's words where
    it refuses."""
    from cuda.bindings import nvrtc

    headers = sorted(folder.glob("*.cuh"))
    texts, names = [path.read_bytes() for path in headers], [path.name.encode() for path in headers]
    text = (folder / source).read_bytes()
    (program,) = _checked(nvrtc.nvrtcCreateProgram(text, source.encode(), len(headers), texts, names))
    target = f"sm_{capability[0]}{capability[1]}"
    options = [f"--gpu-architecture={target}", "--std=c++17", *(f"-D{key}={value}" for key, value in defined)]
    (status,) = nvrtc.nvrtcCompileProgram(program, len(options), [option.encode() for option in options])
    if status != nvrtc.nvrtcResult.NVRTC_SUCCESS:
        log = b" " * _checked(nvrtc.nvrtcGetProgramLogSize(program))[0]
        _checked(nvrtc.nvrtcGetProgramLog(program, log))
        raise RuntimeError(f"{source} doesn't compile for {target}: {log.decode(errors='replace').rstrip(chr(0))}")
    image: bytes = b" " * _checked(nvrtc.nvrtcGetCUBINSize(program))[0]
    _checked(nvrtc.nvrtcGetCUBIN(program, image))
    _checked(nvrtc.nvrtcDestroyProgram(program))
    return image


def _checked(found: tuple[Any, ...]) -> tuple[Any, ...]:
    """What a call of the driver or the compiler returns besides its status, which has to be success."""
    status, *rest = found
    if status.value != 0:
        raise RuntimeError(f"CUDA refuses: {status}")
    return tuple(rest)
