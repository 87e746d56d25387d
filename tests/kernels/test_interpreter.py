"""What is remembered of Triton's interpreter is what it would have made anew."""

import os

import numpy as np
import pytest
import torch

if "TRITON_INTERPRET" not in os.environ:
    pytest.skip("kernels are compiled here", allow_module_level=True)

import triton
import triton.language as tl
from triton.runtime import interpreter

TYPES = [
    (tl.int1, np.bool_),
    (tl.int32, np.int32),
    (tl.uint32, np.uint32),
    (tl.int64, np.int64),
    (tl.bfloat16, np.uint16),
    (tl.float16, np.float16),
    (tl.float32, np.float32),
    (tl.float64, np.float64),
    (tl.pointer_type(tl.int32), np.uint64),
]


@pytest.mark.parametrize(("scalar", "expected"), TYPES, ids=str)
def test_a_type_is_the_same_as_a_block_and_a_second_time(scalar, expected):
    for _ in range(2):
        assert interpreter._get_np_dtype(scalar) == np.dtype(expected)
        assert interpreter._get_np_dtype(tl.block_type(scalar, [4])) == np.dtype(expected)


def test_a_shape_is_the_same_from_numbers_from_a_type_and_from_a_tensor():
    first = tl.block_type(tl.float32, [8, 2])
    tensor = tl.tensor(interpreter.TensorHandle(np.zeros((8, 2), np.float32), tl.float32), first)
    for made in (first, tl.block_type(tl.float32, first.shape), tl.block_type(tl.float32, tensor.shape)):
        assert list(made.shape) == [8, 2] and made.numel == 16 and str(made) == "<['8', '2'], fp32>" and made == first
        assert made.with_element_ty(tl.int8).nbytes == 16
    assert [size.value for size in tensor.shape] == [8, 2] and tensor.numel.value == 16 and tensor.dtype == tl.float32
    scalar = tl.tensor(interpreter.TensorHandle(np.zeros(1, np.int32), tl.int32), tl.int32)
    assert len(scalar.shape) == 0 and scalar.numel.value == 1
    for wrong in ([3], []):
        with pytest.raises((TypeError, ValueError)):
            tl.block_type(tl.int32, wrong)
    with pytest.raises(TypeError, match="0d"):
        tl.block_type(tl.int32, scalar.shape)


@triton.jit
def doubled(values):
    return values + values


@triton.jit
def doubling_kernel(values, wrong: tl.constexpr):
    places = tl.arange(0, 4)
    if wrong:
        doubled(places, places)
    tl.store(values + places, doubled(tl.load(values + places)))


@triton.jit
def summing_kernel(values):
    places = tl.arange(0, 4)
    tl.store(values + places, tl.sum(tl.load(values + places), 0))


def test_the_language_is_whole_again_after_a_launch_and_after_one_that_failed():
    # Triton itself leaves `tl.core` replaced after a function of its standard library, for whichever test ran before.
    sums = torch.arange(4)
    summing_kernel[(1,)](sums)
    values, before = torch.arange(4), tl.core.load
    doubling_kernel[(1,)](values, False)
    with pytest.raises(Exception, match="doubled"):
        doubling_kernel[(1,)](values, True)
    assert tl.core.is_builtin(tl.load) and tl.core.load is before
    doubling_kernel[(1,)](values, False)
    summing_kernel[(1,)](sums)
    assert values.tolist() == [0, 4, 8, 12] and sums.tolist() == [24] * 4
