"""What the verification kernels answer."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from draftproof.kernels.arguments import Rows


@dataclass(frozen=True, slots=True, eq=False)
class KernelVerdict:
    """What became of each request's draft; tensors on the logits' device.

    token_ids: [requests, N] int32, the emitted tokens and then -1. num_accepted: [requests] int32; emitted are one
    more. accepted_rows: [requests, N] int32, the accepted nodes' rows within the request, then -1.
    faults: [requests] int32: 0, or what is wrong with the row that the walk came to (1: NaN or an infinite logit,
    2: every token masked, 3: the draft's law, which has no mass on the token that it is said to have drawn, or is no
    law); the tokens before it stand.
    """

    token_ids: torch.Tensor
    num_accepted: torch.Tensor
    accepted_rows: torch.Tensor
    faults: torch.Tensor

    @classmethod
    def empty(cls, rows: Rows, width: int, device: torch.device) -> KernelVerdict:
        """Unwritten, for the requests of `rows` and up to `width` emitted tokens."""

        def ints(*shape: int) -> torch.Tensor:
            return torch.empty(shape, dtype=torch.int32, device=device)

        num_requests = rows.num_requests
        return cls(ints(num_requests, width), ints(num_requests), ints(num_requests, width), ints(num_requests))
