"""`verify_rejection` and `verify_block`: chains against the laws that their tokens were drawn from.

`rejection` accepts a drafted token iff u q < p and replaces the first rejected one from max(p - q, 0); `block` accepts
the longest prefix of the draft that passes its own test. Rules, noise and edge cases are those of
`draftproof.verify.rejection` and `.block`; README.md says how they are computed.
"""

from __future__ import annotations

import torch

from draftproof.kernels.arguments import Requests, Rows
from draftproof.kernels.common import sizes_of
from draftproof.kernels.exceptions import Changes
from draftproof.kernels.ratio.launches import RatioKernel
from draftproof.kernels.ratio.laws import DraftLaws
from draftproof.kernels.verdict import KernelVerdict


def verify_rejection(
    target_logits: torch.Tensor,
    draft: DraftLaws,
    rows: Rows,
    requests: Requests,
    *,
    vocab_size: int | None = None,
    allowed: torch.Tensor | None = None,
    changes: Changes | None = None,
) -> KernelVerdict:
    """From raw logits to emitted tokens under `rejection`; `RatioKernel` once, for one call.

    target_logits: [rows, >= vocab_size] bf16, fp16 or fp32, on a GPU. draft: what each drafted token was drawn from.
    rows, requests: see there; chains alone. vocab_size: the target's, without padding; the width of the logits if None.
    allowed: [rows, ceil(V / 32)] int32, a set bit for each token that may be drawn. changes: penalties and bias.
    Raises ParameterError for trees, and for logits or laws of another shape or type.
    """
    return _verify(target_logits, draft, rows, requests, vocab_size, allowed, changes, block=False)


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
    """From raw logits to emitted tokens under `block`; arguments and errors as in `verify_rejection`."""
    return _verify(target_logits, draft, rows, requests, vocab_size, allowed, changes, block=True)


def _verify(
    logits: torch.Tensor,
    draft: DraftLaws,
    rows: Rows,
    requests: Requests,
    vocab_size: int | None,
    allowed: torch.Tensor | None,
    changes: Changes | None,
    *,
    block: bool,
) -> KernelVerdict:
    size, num_exceptions = sizes_of(logits, rows, vocab_size, changes)
    kernel = RatioKernel(logits, draft, rows, size, block=block, num_exceptions=num_exceptions)
    return kernel(logits, draft, rows, requests, allowed=allowed, changes=changes)
