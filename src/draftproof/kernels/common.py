"""The arguments that all kernels on rows take, and the launch before the read where a request changes logits."""

from __future__ import annotations

from typing import Any, NamedTuple

import torch

from draftproof.errors import ParameterError
from draftproof.kernels.arguments import Requests, Rows
from draftproof.kernels.exceptions import Changes, Exceptions, list_exceptions
from draftproof.kernels.launch import Plan


def sizes_of(logits: torch.Tensor, rows: Rows, vocab_size: int | None, changes: Changes | None) -> tuple[int, int]:
    """(vocabulary, special tokens a request may have) of one call: the width of the logits, unless another is given."""
    size = logits.shape[-1] if vocab_size is None else vocab_size
    return size, 0 if changes is None else changes.num_exceptions(rows)


class Common(NamedTuple):
    """given: logits, stride, row parameters, request parameters, masks, exceptions, as device/request.py takes them.

    flags: which of these are there. of_read: options of the read's launch, which may begin while exceptions are listed.
    """

    given: tuple[Any, ...]
    flags: dict[str, bool]
    of_read: dict[str, bool]


def common_arguments(
    plan: Plan,
    logits: torch.Tensor,
    rows: Rows,
    requests: Requests,
    allowed: torch.Tensor | None,
    changes: Changes | None,
    listed: Exceptions,
) -> Common:
    """Launches what lists the special tokens, if there are any, into `listed`. Raises ParameterError for masks or
    changes of another size than the kernel was made for."""
    num_exceptions = 0 if changes is None else changes.num_exceptions(rows)
    if num_exceptions != plan.num_exceptions:
        raise ParameterError(
            "changes", f"{num_exceptions} special tokens", f"{plan.num_exceptions}, as the kernel was made for"
        )
    none = rows.request
    bits, bits_stride = (none, 0) if allowed is None else _bits_of(allowed, plan)
    special, special_stride = none, 0
    exceptions: tuple[Any, ...] = (none, logits, 0, 0, logits, none, none, none, 0, logits, logits, logits)
    if changes is not None and num_exceptions:
        list_exceptions(rows, changes, plan.vocab_size, listed, overlaps=plan.overlaps)
        special = listed.special.view(torch.uint8)
        special_stride = special.stride(0)
        exceptions = (
            listed.ids, listed.logits, listed.ids.shape[1], num_exceptions, listed.biases, listed.counts,
            rows.drafted_of, rows.ancestors, rows.drafted_of.shape[1], changes.repetition, changes.frequency,
            changes.presence,
        )  # fmt: skip
    given = (
        logits, logits.stride(0), (rows.request, rows.position, rows.word),
        (
            requests.temperature, requests.top_k, requests.top_p, requests.min_score, requests.seed_low,
            requests.seed_high, requests.sample_index,
        ),
        (bits, bits_stride, special, special_stride), exceptions,
    )  # fmt: skip
    flags = {"HAS_ALLOWED": allowed is not None, "HAS_SPECIAL": num_exceptions > 0, "OVERLAP": plan.overlaps}
    return Common(given, flags, plan.overlapping if num_exceptions else {})


def _bits_of(allowed: torch.Tensor, plan: Plan) -> tuple[torch.Tensor, int]:
    """A mask's bytes and how many lie between rows."""
    shape = (plan.num_rows, -(-plan.vocab_size // 32))
    if allowed.dtype != torch.int32 or allowed.shape[:1] != shape[:1] or allowed.ndim != 2 or allowed.stride(1) != 1:
        given = f"{allowed.dtype} of shape {tuple(allowed.shape)}, strides {allowed.stride()}"
        raise ParameterError("allowed", given, f"int32 of shape {shape}, a row's words side by side")
    if allowed.shape[1] < shape[1]:
        raise ParameterError("allowed", f"{allowed.shape[1]} words a row", f"{shape[1]} or more")
    return allowed.view(torch.uint8), 4 * allowed.stride(0)
