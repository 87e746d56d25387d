"""What the kernels are given besides logits: which row belongs to what, each request's parameters, and scratch.

Everything here is made before the step, on the host, and lives on the device; the kernels read it and never wait for
the host. Build once and refill (`copy_`) to run inside a captured graph.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
import torch

from draftproof.core import Purpose
from draftproof.errors import ParameterError
from draftproof.params import SamplingParams

_WORD: Final = 0xFFFFFFFF
_TAKEN: Final = frozenset(
    "n temperature top_p top_k min_p seed stop stop_token_ids ignore_eos max_tokens logprobs prompt_logprobs "
    "detokenize skip_special_tokens include_stop_str_in_output".split()
)
_CHANGES: Final = frozenset("repetition_penalty frequency_penalty presence_penalty logit_bias".split())
"""Fields that the kernels honour, and those that don't act on a row's law."""
_MASKS: Final = frozenset("min_tokens allowed_token_ids bad_words no_repeat_ngram_size structured_outputs".split())
_TEMPERATURES: Final = (1e-30, 1e30)


@dataclass(frozen=True, slots=True, eq=False)
class Rows:
    """Which rows of logits belong to which request, and what each is for. Ragged: requests may differ in length.

    A request's first row follows its context, its row i > 0 the draft's node i - 1.

    offsets: [requests + 1] int32, request r has rows offsets[r] to offsets[r + 1] - 1.
    request: [rows] int32. position: [rows] int32, the absolute position of the token that the row decides.
    word: [rows] int32, purpose << 24 | index of the row's noise.
    drafted: [rows] int32, the token that the row follows, read where it is a node. parents: [rows] int32, the row that
    a node's parent is. drafted_of: [requests, N] int32, each request's nodes, padded with -1. ancestors: [rows, N]
    bool, which nodes a row comes after. most: the most rows that a request has. is_tree: False lets chains be walked
    at once.
    """

    offsets: torch.Tensor
    request: torch.Tensor
    position: torch.Tensor
    word: torch.Tensor
    drafted: torch.Tensor
    parents: torch.Tensor
    drafted_of: torch.Tensor
    ancestors: torch.Tensor
    most: int
    is_tree: bool

    @classmethod
    def of_drafts(
        cls,
        starts: Sequence[int],
        drafts: Sequence[Sequence[int]],
        parents: Sequence[Sequence[int]] | None = None,
        *,
        device: torch.device | str,
        purpose: Purpose = Purpose.TARGET,
    ) -> Rows:
        """Rows of requests that start at absolute positions `starts` and drafted `drafts`, one list of ids each.

        parents: for each node its parent's index within its draft, -1 for a child of the context; None makes chains.
        purpose: MATCH gives every row noise of its own, of the pass that starts there, as `verify.match` draws.
        """
        if len(starts) != len(drafts) or (parents is not None and [*map(len, parents)] != [*map(len, drafts)]):
            raise ParameterError("drafts", f"{len(drafts)} of them", "as many as starts, and a parent for every node")
        offsets, request, position, drafted, row_parents = [0], [], [], [], []
        words: list[int] = []
        for index, (start, draft) in enumerate(zip(starts, drafts, strict=True)):
            depths = [0]
            nodes = range(-1, len(draft) - 1) if parents is None else parents[index]
            for node, parent in enumerate(nodes):
                if not -1 <= parent < node:
                    raise ParameterError("parents", parent, f"-1 to {node - 1} for node {node}")
                depths.append(depths[parent + 1] + 1)
            offsets.append(offsets[-1] + len(depths))
            request += [index] * len(depths)
            position += [start + (0 if purpose is Purpose.MATCH else depth) for depth in depths]
            words += [(int(purpose) << 24) + (row if purpose is Purpose.MATCH else 0) for row in range(len(depths))]
            drafted += [0, *draft]
            row_parents += [0, *(parent + 1 for parent in nodes)]
        if position and not 0 <= min(position) <= max(position) <= _WORD:
            raise ParameterError("starts", [min(position), max(position)], "absolute positions below 2**32")
        return cls(
            _int32(offsets, device),
            _int32(request, device),
            _int32(position, device),
            _int32(words, device),
            _int32(drafted, device),
            _int32(row_parents, device),
            *_ancestry(drafts, parents, device),
            max((end - begin for begin, end in zip(offsets, offsets[1:], strict=False)), default=0),
            parents is not None,
        )

    @property
    def num_rows(self) -> int:
        """How many rows of logits there are."""
        return self.request.shape[0]

    @property
    def num_requests(self) -> int:
        """How many requests they belong to."""
        return self.offsets.shape[0] - 1


@dataclass(frozen=True, slots=True, eq=False)
class Requests:
    """Each request's sampling parameters and seed, as tensors [requests].

    temperature float32, top_k int32 (0: off), top_p float64 (1: off), min_score float32 (log min_p rounded up, -inf:
    off), seed_low, seed_high, sample_index int32 (bits). races, top_p_alone, lists: whether any request is raced over
    all its tokens, has top-p without top-k and min-p, has one of these. Known on the host, since kernels are built for
    it. unfiltered: a hint that no request has a filter or is greedy, which saves a launch; greedy ones are honoured
    beside it.
    """

    temperature: torch.Tensor
    top_k: torch.Tensor
    top_p: torch.Tensor
    min_score: torch.Tensor
    seed_low: torch.Tensor
    seed_high: torch.Tensor
    sample_index: torch.Tensor
    races: bool
    top_p_alone: bool
    lists: bool
    unfiltered: bool = False

    @classmethod
    def of(
        cls,
        params: Sequence[SamplingParams],
        seeds: Sequence[int],
        sample_indices: Sequence[int] | None = None,
        *,
        device: torch.device | str,
        changed: bool = False,
        masked: bool = False,
    ) -> Requests:
        """The tensors of `params`, one for each request, under the default chain ("vllm").

        changed: whether penalties and bias are given to the kernel as `exceptions.Changes`. masked: whether what
        forbids tokens (allowed_token_ids, bad_words, min_tokens, a grammar, …) is given as `allowed`.

        Raises ParameterError for a parameter that acts on the law and isn't taken here.
        """
        if len(params) != len(seeds):
            raise ParameterError("seeds", f"{len(seeds)} of them", f"one for each of {len(params)} requests")
        taken = _TAKEN | (_CHANGES if changed else frozenset()) | (_MASKS if masked else frozenset())
        for one in params:
            _refuse_others(one, taken)
            low, high = _TEMPERATURES
            if one.temperature != 0 and not low <= one.temperature <= high:
                raise ParameterError("temperature", one.temperature, f"0 or {low:g} to {high:g} on a GPU")
        for seed in seeds:
            if not 0 <= seed < 1 << 64:
                raise ParameterError("seed", seed, "an integer of 64 bits, 0 to 2**64 - 1")
        indices = [0] * len(params) if sample_indices is None else list(sample_indices)
        sampled = [one for one in params if one.temperature > 0]
        raced = [one for one in sampled if one.top_k <= 0 and one.min_p == 0]
        return cls(
            torch.tensor([one.temperature for one in params], dtype=torch.float32, device=device),
            _int32([max(one.top_k, 0) for one in params], device),
            torch.tensor([one.top_p for one in params], dtype=torch.float64, device=device),
            torch.tensor([_min_score(one.min_p) for one in params], dtype=torch.float32, device=device),
            _int32([seed & _WORD for seed in seeds], device),
            _int32([seed >> 32 for seed in seeds], device),
            _int32(indices, device),
            races=bool(raced),
            top_p_alone=any(one.top_p < 1 for one in raced),
            lists=len(raced) < len(sampled),
            unfiltered=len(raced) == len(params) and all(one.top_p == 1 for one in raced),
        )


def aligned(count: int) -> int:
    """At least `count`, a multiple of 16: kernels are compiled apart for numbers and addresses that aren't."""
    return -(-count // 16) * 16


def _common(count: int) -> int:
    """At least `count`, neither 1 nor a multiple of 16: kernels are compiled apart for these."""
    return count + 1 if count > 1 and count % 16 == 0 else max(count, 2)


def _ancestry(
    drafts: Sequence[Sequence[int]], parents: Sequence[Sequence[int]] | None, device: torch.device | str
) -> tuple[torch.Tensor, torch.Tensor]:
    """([requests, N] int32 nodes, [rows, N] bool ancestors)."""
    width = max(map(len, drafts), default=0)
    padded = _common(width)
    nodes = [[*draft, *[-1] * (padded - len(draft))] for draft in drafts]
    num_rows = [len(draft) + 1 for draft in drafts]
    above = np.tri(width + 1, padded, -1, dtype=np.bool_)[[row for count in num_rows for row in range(count)]]
    if parents is not None:
        first = 0
        for own, count in zip(parents, num_rows, strict=True):
            rows = above[first : first + count]
            rows[:] = False
            for node, parent in enumerate(own):
                rows[node + 1] = rows[parent + 1]
                rows[node + 1, node] = True
            first += count
    return (
        torch.tensor(nodes, dtype=torch.int32, device=device).reshape(len(drafts), padded),
        torch.from_numpy(above).to(device),
    )


def _refuse_others(params: SamplingParams, taken: frozenset[str]) -> None:
    """A parameter that the kernels would pass over is refused."""
    defaults = SamplingParams()
    for entry in dataclasses.fields(SamplingParams):
        given = getattr(params, entry.name)
        if entry.name not in taken and given != getattr(defaults, entry.name):
            hint = "verify with the sampler chain instead"
            if entry.name in _MASKS | _CHANGES:
                hint = (
                    "give its mask as `allowed`, and masked=True here"
                    if entry.name in _MASKS
                    else "give `changes`, and changed=True here"
                )
            raise ParameterError(entry.name, given, "left out for the GPU kernels", hint)


def _min_score(min_p: float) -> float:
    """log(min_p), rounded up to float32: a float32 score passes iff it reaches the float64 logarithm."""
    if min_p == 0:
        return -math.inf
    threshold = math.log(min_p)
    rounded = torch.tensor(threshold, dtype=torch.float32)
    if rounded.item() < threshold:
        rounded = torch.nextafter(rounded, torch.tensor(math.inf))
    return float(rounded.item())


def _int32(values: Sequence[int], device: torch.device | str) -> torch.Tensor:
    """Integers of 32 bits, signed or not, as the same bits in int32."""
    signed = [value - (1 << 32) if value > 0x7FFFFFFF else value for value in values]
    return torch.tensor(signed, dtype=torch.int32, device=device)
