"""What a program loads of its row and request, from the tensors that `arguments.Arguments` packs.

request_params: temperature, top_k, top_p, min_score, seed low, seed high, sample index; one entry per request each.
row_params: request, position, noise word; one entry per row each.
"""

import triton
import triton.language as tl


@triton.jit
def noise_of(row_index, request, row_params, request_params):
    """(position, sample index, word, key low, key high), uint32 scalars."""
    return (
        tl.load(row_params[1] + row_index).to(tl.uint32, bitcast=True),
        tl.load(request_params[6] + request).to(tl.uint32, bitcast=True),
        tl.load(row_params[2] + row_index).to(tl.uint32, bitcast=True),
        tl.load(request_params[4] + request).to(tl.uint32, bitcast=True),
        tl.load(request_params[5] + request).to(tl.uint32, bitcast=True),
    )


@triton.jit
def is_raced(request, request_params):
    """Whether a request's rows are raced while they are read: sampled, without top-k and min-p."""
    sampled = tl.load(request_params[0] + request) > 0
    listed = (tl.load(request_params[1] + request) > 0) | (tl.load(request_params[3] + request) > -float("inf"))
    return sampled & (listed == 0)


@triton.jit
def is_loose(request, request_params):
    """Whether a request's maxima may be a special token's logit: sampled, without min-p."""
    sampled = tl.load(request_params[0] + request) > 0
    least = tl.load(request_params[3] + request)
    return sampled & (least == -float("inf"))


@triton.jit
def scale_of(temperature):
    """log2(e) / T, and 1 at T = 0, where logits are compared as they are."""
    return tl.where(temperature > 0, 1.4426950408889634 / tl.where(temperature > 0, temperature, 1.0), 1.0)


@triton.jit
def row_of(row_index, request, logits, stride, masks, exceptions, HAS_ALLOWED: tl.constexpr,
           HAS_SPECIAL: tl.constexpr):  # fmt: skip
    """(logits, allowed bits, special bits, exceptions' ids, exceptions' logits) of one row, as pointers.

    masks: (allowed [rows, W], its stride, special [requests, W], its stride), bytes of eight tokens each.
    exceptions: (ids [requests, E], logits [rows, E], E, how many entries may hold a token, biases [requests, E], four
    times the output's counts, 2 for drafted tokens and 1 for seen ones [requests, E], drafted ids [requests, N],
    ancestors [rows, N], N, repetition, frequency, presence [requests]).
    """
    index = row_index.to(tl.int64)
    allowed, special, exception_ids, exception_logits = logits, logits, logits, logits
    if HAS_ALLOWED:
        allowed = masks[0] + index * masks[1]
    if HAS_SPECIAL:
        special = masks[2] + request.to(tl.int64) * masks[3]
        exception_ids = exceptions[0] + request.to(tl.int64) * exceptions[2]
        exception_logits = exceptions[1] + index * exceptions[2]
    return logits + index * stride, allowed, special, exception_ids, exception_logits
