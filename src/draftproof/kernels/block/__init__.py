"""`verify_block`: accept the longest prefix of the draft that passes its own test.

The rule, its noise and its edge cases are those of `draftproof.verify.block`; README.md says how it is computed.
"""

from __future__ import annotations

import torch

from draftproof.kernels.arguments import Requests, Rows
from draftproof.kernels.exceptions import Changes
from draftproof.kernels.ratio.launches import RatioKernel
from draftproof.kernels.ratio.laws import DraftLaws
from draftproof.kernels.verdict import KernelVerdict


def block_kernel(
    target_logits: torch.Tensor,
    draft: DraftLaws,
    rows: Rows,
    vocab_size: int,
    *,
    num_exceptions: int = 0,
    tile: int | None = None,
) -> RatioKernel:
    """`verify_block` for one shape: owns its scratch and outputs, so that a graph can be captured over its calls.

    Arguments as in `RatioKernel`.
    """
    return RatioKernel(target_logits, draft, rows, vocab_size, block=True, num_exceptions=num_exceptions, tile=tile)


def verify_block(
    target_logits: torch.Tensor,
    draft: DraftLaws,
    rows: Rows,
    requests: Requests,
    *,
    vocab_size: int | None = None,
    allowed: torch.Tensor | None = None,
    changes: Changes | None = None,
) -> KernelVerdict:
    """From raw logits to emitted tokens under `block`; `block_kernel` once, for one call.

    target_logits: [rows, >= vocab_size] bf16, fp16 or fp32, on a GPU. draft: what each drafted token was drawn from.
    rows, requests: see there; chains alone. vocab_size: the target's, without padding; the width of the logits if None.
    allowed: [rows, ceil(V / 32)] int32, a set bit for each token that may be drawn. changes: penalties and bias.
    Raises ParameterError for trees, and for logits or laws of another shape or type.
    """
    size = target_logits.shape[-1] if vocab_size is None else vocab_size
    num_exceptions = 0 if changes is None else changes.num_exceptions(rows)
    kernel = block_kernel(target_logits, draft, rows, size, num_exceptions=num_exceptions)
    return kernel(target_logits, draft, rows, requests, allowed=allowed, changes=changes)
