"""Tokens whose logits a request changes: penalised, biased and drafted ones. They are few, and handled one by one.

Rule, in the default chain's order: z + bias; then for tokens seen in prompt, output or the drafts before the row,
repetition divides positive logits and multiplies others; then frequency times the count and presence where the count is
positive, counted in the output and the drafts before the row.
The pass over a row leaves these tokens out (a bit for each) and reads them from a list of their own, so that its cost
is that of an unchanged row. A drafted token is in its request's list whatever the row: only later rows have seen it.
Source: sampling/penalties.py, sampling/logit_bias.py (T21 to T28).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import torch

from draftproof.errors import ParameterError
from draftproof.kernels.arguments import Rows
from draftproof.params import SamplingParams


@dataclass(frozen=True, slots=True, eq=False)
class Changes:
    """What each request's penalties and bias act on; tensors [requests, H] and [requests, K], ids padded with -1.

    seen_ids [requests, H] int32, distinct ids of prompt and output, and seen_counts, how often the output has each.
    bias_ids [requests, K] int32 and biases float32. repetition, frequency, presence: [requests] float32.
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
            penalised = (one.repetition_penalty, one.frequency_penalty, one.presence_penalty) != (1.0, 0.0, 0.0)
            ids = sorted({*prompt, *output}) if penalised else []
            seen.append({token_id: in_output[token_id] for token_id in ids})
        biases = [dict(one.logit_bias or {}) for one in params]

        def column(name: str) -> torch.Tensor:
            return torch.tensor([getattr(one, name) for one in params], dtype=torch.float32, device=device)

        return cls(
            _table([list(ids) for ids in seen], -1, torch.int32, device),
            _table([list(ids.values()) for ids in seen], 0, torch.int32, device),
            _table([list(ids) for ids in biases], -1, torch.int32, device),
            _table([list(ids.values()) for ids in biases], 0, torch.float32, device),
            column("repetition_penalty"),
            column("frequency_penalty"),
            column("presence_penalty"),
        )

    def num_exceptions(self, rows: Rows) -> int:
        """How many special tokens a request may have."""
        return self.seen_ids.shape[1] + rows.drafted_of.shape[1] + self.bias_ids.shape[1]


class Exceptions(NamedTuple):
    """special: [requests, W] int32, a bit for each special token. ids: [requests, E] int32. logits: [rows, E] float32,
    processed, -inf for entries without a token."""

    special: torch.Tensor
    ids: torch.Tensor
    logits: torch.Tensor


def exceptions_of(
    logits: torch.Tensor, rows: Rows, changes: Changes, vocab_size: int, allowed: torch.Tensor | None, tile: int
) -> Exceptions:
    """The special tokens of `logits` [rows, >= V], processed, padded to whole tiles.

    allowed: [rows, ceil(V / 32)] int32, or None. tile: tokens a tile.
    """
    listed = torch.cat([changes.seen_ids, rows.drafted_of, changes.bias_ids], dim=1).long()
    listed = torch.nn.functional.pad(listed, (0, -listed.shape[1] % tile), value=-1)
    listed = torch.where(listed < vocab_size, listed, -1)
    ids = torch.where(_is_first(listed), listed, -1)
    num_seen = changes.seen_ids.shape[1]
    counts = torch.zeros_like(ids)
    counts[:, :num_seen] = changes.seen_counts
    in_request = torch.zeros_like(ids, dtype=torch.bool)
    in_request[:, :num_seen] = ids[:, :num_seen] >= 0
    biases = ((changes.bias_ids[:, None, :] == ids[..., None]) & (ids >= 0)[..., None]).float()
    bias = torch.where(biases > 0, changes.biases[:, None, :], 0.0).sum(dim=-1)

    of_row = rows.request.long()
    row_ids = ids[of_row]
    drafted = rows.drafted_of[of_row]
    before = (rows.ancestors[..., None] & (drafted[..., None] == row_ids[:, None, :])).sum(dim=1)
    row_counts = counts[of_row] + before
    z = logits.gather(1, row_ids.clamp(min=0)).float() + bias[of_row]
    seen = in_request[of_row] | (row_counts > 0)
    repetition = changes.repetition[of_row][:, None]
    z = torch.where(seen, torch.where(z > 0, z / repetition, z * repetition), z)
    z = z - row_counts.float() * changes.frequency[of_row][:, None]
    z = z - (row_counts > 0).float() * changes.presence[of_row][:, None]
    there = row_ids >= 0
    if allowed is not None:
        words = allowed.gather(1, row_ids.clamp(min=0) // 32)
        there &= ((words >> (row_ids % 32).int()) & 1) != 0
    return Exceptions(_bits(ids, vocab_size), ids.int().contiguous(), torch.where(there, z, -torch.inf).contiguous())


def _is_first(ids: torch.Tensor) -> torch.Tensor:
    """[requests, E] which entries are the first of their id in their row."""
    ranked, order = ids.sort(dim=1, stable=True)
    first = torch.ones_like(ranked, dtype=torch.bool)
    first[:, 1:] = ranked[:, 1:] != ranked[:, :-1]
    return torch.empty_like(first).scatter_(1, order, first)


def _bits(ids: torch.Tensor, vocab_size: int) -> torch.Tensor:
    """[requests, ceil(V / 32)] int32 with a bit for each of the distinct `ids` that isn't negative."""
    words = torch.zeros((ids.shape[0], -(-vocab_size // 32)), dtype=torch.int64, device=ids.device)
    bit = torch.where(ids >= 0, torch.bitwise_left_shift(torch.ones_like(ids), ids.clamp(min=0) % 32), 0)
    words.scatter_add_(1, ids.clamp(min=0) // 32, bit)
    return torch.where(words >= 1 << 31, words - (1 << 32), words).int()


def _table(
    rows: Sequence[Sequence[float]], padding: int, dtype: torch.dtype, device: torch.device | str
) -> torch.Tensor:
    width = max((len(row) for row in rows), default=0)
    padded = [[*row] + [padding] * (width - len(row)) for row in rows]
    return torch.tensor(padded, dtype=dtype, device=device).reshape(len(rows), width)
