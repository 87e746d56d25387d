"""What is remembered of Triton's interpreter is what it would have made anew."""

import dataclasses
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


@triton.jit
def followed(factor, added, next_factor, next_added):
    return factor * next_factor, next_factor * added + next_added


@triton.jit
def following_kernel(values, found, AXIS: tl.constexpr, KEPT: tl.constexpr):
    places = tl.arange(0, 4)[:, None] * 8 + tl.arange(0, 8)[None, :]
    factor, added = tl.reduce((tl.load(values + places), tl.load(values + 32 + places)), AXIS, followed)
    tl.store(found + tl.arange(0, KEPT), factor)
    tl.store(found + KEPT + tl.arange(0, KEPT), added)


@pytest.mark.parametrize(("axis", "kept"), [(0, 8), (1, 4)])
def test_what_is_combined_stays_in_order(axis, kept):
    values = torch.randint(1, 4, (2, 4, 8), generator=torch.Generator().manual_seed(axis))
    found = torch.zeros(2, kept, dtype=torch.int64)
    following_kernel[(1,)](values, found, axis, kept)
    factor, added = torch.ones(kept, dtype=torch.int64), torch.zeros(kept, dtype=torch.int64)
    for next_factor, next_added in zip(values[0].unbind(axis), values[1].unbind(axis), strict=True):
        factor, added = factor * next_factor, next_factor * added + next_added
    assert torch.equal(found, torch.stack([factor, added]))


@triton.jit
def adding_kernel(values):
    tl.store(values, tl.load(values) + tl.load(values + 1))


def test_an_overflow_is_looked_at_where_it_is_asked_for(monkeypatch):
    values = torch.tensor([2**31 - 1, 1], dtype=torch.int32)
    adding_kernel[(1,)](values)
    assert values.tolist() == [-(2**31), 1]
    builder = interpreter.interpreter_builder
    monkeypatch.setattr(builder, "options", dataclasses.replace(builder.options, debug=True))
    adding_kernel[(1,)](values)
    with pytest.raises(Exception, match="overflow"):
        adding_kernel[(1,)](torch.tensor([2**31 - 1, 1], dtype=torch.int32))
