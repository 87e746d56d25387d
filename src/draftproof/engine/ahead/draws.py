"""Tokens of target rows and of drafts on the device: the kernels on CUDA, their rule in plain PyTorch elsewhere.

One set of requests' parameters serves both. Everything is in tensors: nothing is read by the host.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import fields, replace
from typing import Any

import torch

from draftproof.engine.device_verification import LEAST_ROWS
from draftproof.kernels import KeyedKernel, Requests, Rows, reference
from draftproof.params import SamplingParams


class Draws:
    """Verifies chains of `num_drafts` tokens under keyed noise, and draws drafts over the same noise.

    params, seeds, sample_indices: one for each request; `use` puts others in their place. kinds: what the kernels are
    built for, at least what all these requests need; None for what the first ones do.
    """

    def __init__(
        self,
        params: Sequence[SamplingParams],
        seeds: Sequence[int],
        sample_indices: Sequence[int],
        *,
        num_drafts: int,
        vocab_size: int,
        device: torch.device,
        kinds: Mapping[str, bool] | None = None,
    ) -> None:
        self._num_requests, self._num_drafts, self._vocab_size = len(params), num_drafts, vocab_size
        self._requests = Requests.of(params, seeds, sample_indices, device=device)
        self._known = (list(params), list(seeds), list(sample_indices))
        if kinds is not None:
            self._requests = replace(self._requests, **dict[str, Any](kinds))
        drafts = [[0] * num_drafts] * len(params)
        self._rows = Rows.of_drafts([0] * len(params), drafts, device=device)
        self._places = torch.arange(1, num_drafts + 2, device=device, dtype=torch.int32)
        self._drafting: dict[int, tuple[Rows, Requests]] = {}
        self._uses_kernels = device.type == "cuda"
        self._kernels: dict[Any, KeyedKernel] = {}

    def use(self, params: Sequence[SamplingParams], seeds: Sequence[int], sample_indices: Sequence[int]) -> None:
        """These requests from the next call on; the kernels were built for what they need."""
        known = (list(params), list(seeds), list(sample_indices))
        if known == self._known:
            return
        self._known = known
        given = Requests.of(params, seeds, sample_indices, device=self._places.device)
        for num_each, held in [(1, self._requests), *((num, held) for num, (_, held) in self._drafting.items())]:
            for name, tensor in _tensors(held).items():
                tensor.copy_(getattr(given, name).repeat_interleave(num_each))

    def draw(self, logits: torch.Tensor, starts: torch.Tensor, first: int) -> torch.Tensor:
        """logits [requests, n, >= V] of the tokens at starts + 1 + first and on: ids [requests, n] int32.

        A row that has none, of NaN, gives token 0: a draft is anybody's guess.
        """
        count = logits.shape[1]
        if count not in self._drafting:
            rows = Rows.of_drafts([0] * (self._num_requests * count), [[]] * (self._num_requests * count),
                                  device=logits.device)  # fmt: skip
            self._drafting[count] = (rows, _repeated(self._requests, count))
        rows, requests = self._drafting[count]
        rows.position.copy_((starts[:, None] + self._places[first : first + count]).flatten())
        ids, _, _ = self._run(logits.reshape(-1, logits.shape[-1]), rows, requests, ("draft", count))
        return ids[:, 0].view(-1, count).clamp(min=0)

    def verify(
        self, logits: torch.Tensor, drafts: torch.Tensor, starts: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """logits [requests * (1 + num_drafts), >= V] after the newest tokens, at `starts`, and after each draft's.

        Returns what was emitted [requests, 1 + num_drafts], then -1; how many drafts were accepted [requests]; and
        [requests] 0, or what is wrong with the row that the walk came to: the tokens before it stand.
        """
        rows = self._rows
        rows.position.copy_((starts[:, None] + self._places).flatten())
        rows.drafted.view(self._num_requests, -1)[:, 1:] = drafts
        ids, num_accepted, faults = self._run(logits, rows, self._requests, "target")
        return ids[:, : self._num_drafts + 1], num_accepted, faults

    def _run(
        self, logits: torch.Tensor, rows: Rows, requests: Requests, name: Any
    ) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        if not self._uses_kernels:
            return verified_by_reference(logits, rows, requests, self._vocab_size)
        if name not in self._kernels:
            # Compiled for all short drafts at once, and what is verified otherwise.
            most = max(rows.most, LEAST_ROWS) if rows.most > 1 else 1
            self._kernels[name] = KeyedKernel(logits, replace(rows, most=most), self._vocab_size)
        verdict = self._kernels[name](logits, rows, requests)
        return verdict.token_ids, verdict.num_accepted, verdict.faults


def verified_by_reference(
    logits: torch.Tensor, rows: Rows, requests: Requests, vocab_size: int
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """(tokens, number accepted, faults) of chains that are all as long, as `verify_keyed` answers."""
    seen = logits[:, :vocab_size].float()
    wrong = torch.where((seen == -torch.inf).all(-1), 2, 0)
    wrong = torch.where((seen.isnan() | (seen == torch.inf)).any(-1), 1, wrong)
    seen = torch.where(wrong[:, None] > 0, 0.0, seen)
    tokens = reference.draw(seen, rows, requests, vocab_size).view(-1, rows.most)
    wrong = wrong.view(-1, rows.most)
    follows = (tokens[:, :-1] == rows.drafted.view(-1, rows.most)[:, 1:]) & (wrong[:, :-1] == 0)
    num_accepted = follows.int().cumprod(1).sum(1)
    faults = wrong.gather(1, num_accepted[:, None])[:, 0]
    num_emitted = num_accepted + (faults == 0)
    places = torch.arange(rows.most, device=logits.device)
    return torch.where(places < num_emitted[:, None], tokens, -1).int(), num_accepted.int(), faults.int()


def _tensors(requests: Requests) -> dict[str, torch.Tensor]:
    values = {entry.name: getattr(requests, entry.name) for entry in fields(requests)}
    return {name: value for name, value in values.items() if isinstance(value, torch.Tensor)}


def _repeated(requests: Requests, count: int) -> Requests:
    tensors: dict[str, Any] = {name: tensor.repeat_interleave(count) for name, tensor in _tensors(requests).items()}
    return replace(requests, **tensors)
