"""Tokens whose logits a request changes: penalised, biased and drafted ones. They are few, and handled one by one.

Rule, in the default chain's order: z + bias; then for tokens seen in prompt, output or the drafts before the row,
repetition divides positive logits and multiplies others; then frequency times the count and presence where the count is
positive, counted in the output and the drafts before the row.
The pass over a row leaves these tokens out (a bit for each) and one more program for each row processes a list of them,
so that the cost is nearly that of an unchanged row. A drafted token is in its request's list whatever the row: only
later rows have seen it.
Source: sampling/penalties.py, sampling/logit_bias.py (T21 to T28).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray

from draftproof.errors import ParameterError
from draftproof.kernels.arguments import Rows, aligned
from draftproof.params import SamplingParams

_PENALTIES: Final = {"repetition_penalty": 1.0, "frequency_penalty": 0.0, "presence_penalty": 0.0}
_CHUNK: Final = 1024  # entries that a program of eight warps takes at once


@dataclass(frozen=True, slots=True, eq=False)
class Changes:
    """What each request's penalties and bias act on; tensors [requests, H] and [requests, K], ids padded with -1.

    seen_ids [requests, H] int32, distinct ids of prompt and output, and seen_counts, how often the output has each.
    bias_ids [requests, K] int32, distinct, and biases float32. repetition, frequency, presence: [requests] float32.
    """

    seen_ids: torch.Tensor
    seen_counts: torch.Tensor
    bias_ids: torch.Tensor
    biases: torch.Tensor
    repetition: torch.Tensor
    frequency: torch.Tensor
    presence: torch.Tensor

    @classmethod
    def of(
        cls,
        params: Sequence[SamplingParams],
        prompts: Sequence[Sequence[int]],
        outputs: Sequence[Sequence[int]],
        *,
        device: torch.device | str,
    ) -> Changes:
        """The tensors of one `params` for each request, with its prompt's and its output's token ids so far."""
        if not len(params) == len(prompts) == len(outputs):
            counts = f"{len(params)}, {len(prompts)} and {len(outputs)}"
            raise ParameterError("params, prompts, outputs", counts, "one of each for every request")
        seen = []
        for one, prompt, output in zip(params, prompts, outputs, strict=True):
            in_output = Counter(output)
            penalised = any(getattr(one, name) != off for name, off in _PENALTIES.items())
            ids = sorted({*prompt, *output}) if penalised else []
            seen.append((np.array(ids, dtype=np.int64), np.array([in_output[each] for each in ids], dtype=np.int64)))
        biases = []
        for one in params:
            of_ids = dict(one.logit_bias or {})
            biases.append((np.array(list(of_ids), dtype=np.int64), np.array(list(of_ids.values()), dtype=np.float64)))
        return cls.of_counts(
            seen, biases, [[getattr(one, name) for name in _PENALTIES] for one in params], device=device
        )

    @classmethod
    def of_counts(
        cls,
        seen: Sequence[tuple[NDArray[np.int64], NDArray[np.int64]]],
        biases: Sequence[tuple[NDArray[np.int64], NDArray[np.float64]]],
        penalties: Sequence[Sequence[float]],
        *,
        device: torch.device | str,
    ) -> Changes:
        """For each request: (distinct ids of prompt and output, how often the output has each), both empty where no
        penalty is set; (ids, biases); (repetition, frequency, presence)."""
        columns = np.zeros((3, aligned(len(seen))), dtype=np.float32)
        columns[:, : len(seen)] = np.array(penalties, dtype=np.float32).reshape(len(seen), 3).T
        return cls(
            _table([ids for ids, _ in seen], -1, np.int32, device),
            _table([counts for _, counts in seen], 0, np.int32, device),
            _table([ids for ids, _ in biases], -1, np.int32, device),
            _table([values for _, values in biases], 0, np.float32, device),
            *torch.from_numpy(columns).to(device)[:, : len(seen)].unbind(0),
        )

    def num_exceptions(self, rows: Rows) -> int:
        """How many special tokens a request may have."""
        return self.seen_ids.shape[1] + rows.drafted_of.shape[1] + self.bias_ids.shape[1]


class Exceptions(NamedTuple):
    """Scratch of special tokens, E of them a request, padded to whole tiles.

    special: [requests, W] int32, a bit for each, in the bytes that `device.rows.special_at` says. ids [requests, E]
    int32, -1 for entries without a token. biases [requests, E] float32. counts [requests, E] int32, four times the
    output's count, 2 for drafted tokens and 1 for seen ones. logits: [rows, E] float32, processed, -inf for entries
    without a token; written as rows are read.
    """

    special: torch.Tensor
    ids: torch.Tensor
    biases: torch.Tensor
    counts: torch.Tensor
    logits: torch.Tensor

    @classmethod
    def empty(cls, rows: Rows, num_exceptions: int, vocab_size: int, tile: int, device: torch.device) -> Exceptions:
        """Unwritten, for `num_exceptions` tokens a request, padded to whole tiles of `tile`."""
        width = -(-num_exceptions // tile) * tile
        floats = torch.empty((rows.num_requests + rows.num_rows, width), dtype=torch.float32, device=device)
        ids, counts = torch.empty((2, rows.num_requests, width), dtype=torch.int32, device=device)
        special = torch.empty((rows.num_requests, 32 * -(-vocab_size // 1024)), dtype=torch.int32, device=device)
        return cls(special, ids, floats[: rows.num_requests], counts, floats[rows.num_requests :])


def list_exceptions(rows: Rows, changes: Changes, vocab_size: int, out: Exceptions, *, overlaps: bool) -> None:
    """Launches the kernel that writes all of `out` but its logits. overlaps: whether the next may begin beside it."""
    from draftproof.kernels.device.exceptions_kernel import exceptions_kernel

    exceptions_kernel[(rows.num_requests,)](
        rows.drafted_of, (changes.seen_ids, changes.seen_counts), (changes.bias_ids, changes.biases), out.special,
        out.special.stride(0), (out.ids, out.biases, out.counts), rows.drafted_of.shape[1], changes.seen_ids.shape[1],
        changes.bias_ids.shape[1], out.ids.shape[1], out.special.shape[1], vocab_size, CHUNK=_CHUNK,
        OVERLAP=overlaps, num_warps=8,
    )  # fmt: skip


def _table(
    rows: Sequence[NDArray[Any]], padding: int, dtype: type[np.generic], device: torch.device | str
) -> torch.Tensor:
    table = np.full((len(rows), aligned(max(map(len, rows), default=0))), padding, dtype=dtype)
    for line, row in zip(table, rows, strict=True):
        line[: len(row)] = row
    return torch.from_numpy(table).to(device)
