"""Kernels are compiled once for what they do: not again for each number of rows, drafted or penalised tokens."""

import dataclasses
import inspect
import random

import pytest
import torch
from triton.runtime.interpreter import InterpretedFunction

from draftproof.kernels import Changes, DraftLaws, Requests, Rows, verify_block, verify_keyed, verify_rejection
from draftproof.params import SamplingParams

pytestmark = pytest.mark.skipif(torch.cuda.is_available(), reason="the compiler is there itself")
VOCAB_SIZE = 48
BATCHES = [[2, 1, 3], [1, 0], [4, 4, 4, 4], [0, 0], [16, 2], [1, 1, 1, 1, 3]]
"""Drafted tokens of each request."""


def taken(value):
    """What Triton's launcher looks at of an argument."""
    if isinstance(value, torch.Tensor):
        return (value.dtype, value.data_ptr() % 16 == 0)
    if isinstance(value, tuple):
        return tuple(map(taken, value))
    if isinstance(value, bool) or not isinstance(value, int):
        return type(value)
    return value == 1, value % 16 == 0


def variant(kernel, args, options):
    names = inspect.signature(kernel.fn).parameters
    given = dict(zip(names, args, strict=False)) | options
    free = kernel.kwargs.get("do_not_specialize") or []
    constant = {name for name, at in names.items() if "constexpr" in str(at.annotation)} | options.keys()
    return tuple(
        (name, value if name in constant else taken(value)) for name, value in given.items() if name not in free
    )


@pytest.fixture
def compiled(monkeypatch):
    """By kernel, the variants that a compiler would have been asked for; nothing runs."""
    found = {}

    def launched(kernel, grid):
        def run(*args, **options):
            found.setdefault(kernel.fn.__name__, set()).add(variant(kernel, args, options))

        return run

    monkeypatch.setattr(InterpretedFunction, "__getitem__", launched)
    return found


@pytest.mark.parametrize("rule", [verify_keyed, verify_rejection, verify_block])
@pytest.mark.parametrize("changed", [False, True])
def test_no_kernel_is_compiled_twice_for_batches_of_other_sizes(compiled, rule, changed):
    source = random.Random(3)
    fields = {"repetition_penalty": 1.2, "logit_bias": {3: 1.0}} if changed else {}
    for lengths in BATCHES:
        drafts = [[source.randrange(VOCAB_SIZE) for _ in range(length)] for length in lengths]
        rows = Rows.of_drafts([5] * len(lengths), drafts, device="cpu")
        rows = dataclasses.replace(rows, most=32)  # of which a variant is meant
        params = [SamplingParams(temperature=0.8, top_p=0.9, **fields)] * len(lengths)
        requests = Requests.of(params, range(len(lengths)), device="cpu", changed=changed)
        logits = torch.randn(rows.num_rows, VOCAB_SIZE, generator=torch.Generator().manual_seed(1))
        changes = None
        if changed:
            seen = [[source.randrange(VOCAB_SIZE) for _ in range(1 + 9 * index)] for index in range(len(lengths))]
            changes = Changes.of(params, seen, [ids[:1] for ids in seen], device="cpu")
        laws = () if rule is verify_keyed else (DraftLaws.point_masses(),)
        rule(logits, *laws, rows, requests, changes=changes)
    assert len(compiled) > 2
    expected = dict.fromkeys(compiled, 1)
    if rule is verify_keyed:
        expected["pick_kernel"] = 2  # few rows, which it sums as well, and many
    assert {name: len(variants) for name, variants in compiled.items()} == expected
