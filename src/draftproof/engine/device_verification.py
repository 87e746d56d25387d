"""Verification on the target's device: a batch's passes go from raw logits to emitted tokens in the kernels.

The sampler chain, the noise and the verifier's rule run inside (`draftproof.kernels`); what comes back to the host are
tokens. Rule: whether a request is verified here depends on the request alone, so that its text does not depend on its
batch, its drafts or the step. The rest goes the reference way (`laws.py` and the verifier), and so does a pass in which
a kernel finds a row that is no law: the reference then says what is wrong with it, and whether the request ends.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Final, NamedTuple

import torch

from draftproof.core import ROOT, Decision, Draft, Outcome, Purpose, Verdict
from draftproof.engine.device_inputs import (
    Pass,
    changes_of,
    draft_laws_of,
    joined,
    kind_of,
    requests_of,
    rows_of,
    words_of,
)
from draftproof.engine.request import Request
from draftproof.errors import DraftContractError, ParameterError
from draftproof.kernels import KernelVerdict, Requests, verify_block, verify_keyed, verify_rejection
from draftproof.kernels.launch import KINDS
from draftproof.sampling import Mask, SamplerChain
from draftproof.verify import get_verifier

LEAST_ROWS: Final = 16
"""Kernels are compiled for so many rows of a request, or the next powers of two."""
_RULES: Final = {type(get_verifier(name)): name for name in ("keyed", "greedy", "match", "rejection", "block")}


class _Group(NamedTuple):
    """What passes of one call share. kind: of the draft's laws. changed: drafted tokens are listed apart in their rows.
    masked: masks are read for every token."""

    rule: str
    kind: str
    changed: bool
    masked: bool
    vocab_size: int
    dtype: torch.dtype


class DeviceVerification:
    """Takes what the kernels take of an engine's requests. logprobs_mode: as in the engine."""

    def __init__(self, chain: SamplerChain, logprobs_mode: str) -> None:
        self._preset, self._mode = chain.preset, logprobs_mode
        self._seen: dict[_Group, tuple[bool, bool, bool]] = {}

    @classmethod
    def of(cls, device: torch.device, chain: SamplerChain, logprobs_mode: str) -> DeviceVerification | None:
        """For a target on `device`; None where the kernels don't run, or don't compute what the chain asks for."""
        if device.type != "cuda" or chain.preset.name != "vllm" or chain.dtype != "float32":
            return None
        try:
            import triton  # noqa: F401
        except ImportError:
            return None
        return cls(chain, logprobs_mode)

    def covers(self, request: Request) -> bool:
        """Whether the kernels honour all that the request asks for: a function of its parameters alone."""
        params = request.params
        if type(request.verifier) not in _RULES or request.trace is not None:
            return False
        if _RULES[type(request.verifier)] == "greedy" and params.temperature != 0:
            return False
        if params.logprobs is not None and self._mode.startswith("processed"):
            return False
        try:
            requests_of([Pass(request, Draft.empty(0), torch.empty(0))], torch.device("cpu"))
        except ParameterError:
            return False
        return True

    def verify(self, passes: Sequence[Pass]) -> list[Verdict | None]:
        """A verdict for each pass; None where it is to go the reference way."""
        verdicts: list[Verdict | None] = [None] * len(passes)
        groups: dict[_Group, list[int]] = {}
        masks: dict[int, list[Mask | None]] = {}
        for index, one in enumerate(passes):
            if one.logits.dtype not in KINDS or not self.covers(one.request) or not _is_accepted(one):
                continue
            rule = _RULES[type(one.request.verifier)].replace("greedy", "keyed")
            kind = kind_of(one.draft) if rule in ("rejection", "block") else "any"
            if kind is not None:
                try:
                    masks[index] = one.masks(self._preset)
                except Exception:  # a grammar's failure is its request's alone: the reference way meets it again
                    continue
                group = _Group(
                    rule, kind, one.is_changed, any(mask is not None for mask in masks[index]),
                    one.request.row_params.vocab_size, one.logits.dtype,
                )  # fmt: skip
                groups.setdefault(group, []).append(index)
        for group, indices in groups.items():
            of_rows = [mask for index in indices for mask in masks[index]]
            found = self._verify([passes[index] for index in indices], group, of_rows)
            for index, verdict in zip(indices, found, strict=True):
                verdicts[index] = verdict
        return verdicts

    def _verify(self, passes: Sequence[Pass], group: _Group, masks: Sequence[Mask | None]) -> Iterator[Verdict | None]:
        """Passes of one group. masks: one for each of their rows."""
        logits = joined([one.logits for one in passes])
        device, size = logits.device, group.vocab_size
        rows = rows_of(passes, Purpose.MATCH if group.rule == "match" else Purpose.TARGET, device)
        rows = replace(rows, most=max(rows.most, LEAST_ROWS))
        requests = self._as_compiled(group, requests_of(passes, device))
        changes = changes_of(passes, device) if group.changed else None
        allowed = words_of(masks, size, device) if group.masked else None
        if group.rule in ("keyed", "match"):
            found = verify_keyed(logits, rows, requests, vocab_size=size, allowed=allowed, changes=changes)
        else:
            verify = verify_block if group.rule == "block" else verify_rejection
            law = draft_laws_of(passes, group.kind, device)
            found = verify(logits, law, rows, requests, vocab_size=size, allowed=allowed, changes=changes)
        # A mask hides a row's NaN and infinities from the kernels, and must not from the request.
        is_bad = (~logits[:, :size].amax(1).isfinite()).int() if group.masked else None
        yield from _verdicts(passes, found, is_bad)

    def _as_compiled(self, group: _Group, requests: Requests) -> Requests:
        """The requests for kernels that take what the group has ever asked for: a kernel is compiled for what it takes,
        which costs seconds, and the tokens don't depend on it."""
        now = (requests.races, requests.top_p_alone, requests.lists)
        before = self._seen.get(group, (False, False, False))
        races, top_p_alone, lists = self._seen[group] = (now[0] or before[0], now[1] or before[1], now[2] or before[2])
        return replace(requests, races=races, top_p_alone=top_p_alone, lists=lists)


def _is_accepted(one: Pass) -> bool:
    """Whether the verifier takes the draft; the reference way raises what is wrong with it."""
    try:
        one.request.verifier.accepts(one.draft)
    except DraftContractError:
        return False
    return True


def _verdicts(passes: Sequence[Pass], found: KernelVerdict, is_bad: torch.Tensor | None) -> Iterator[Verdict | None]:
    """One copy to the host for all of them. is_bad: [rows], of rows that a mask may have hidden."""
    columns = [found.faults[:, None], found.num_accepted[:, None], found.token_ids, found.accepted_rows]
    table = torch.cat(columns, dim=1).tolist()
    bad = None if is_bad is None else is_bad.tolist()
    width, first = found.token_ids.shape[1], 0
    for one, (fault, num_accepted, *rest) in zip(passes, table, strict=True):
        end = first + 1 + len(one.draft)
        if fault or (bad is not None and any(bad[first:end])):
            yield None
        else:
            path = [row - 1 for row in rest[width : width + num_accepted]]
            yield verdict_of(one.draft, rest[: num_accepted + 1], path)
        first = end


def verdict_of(draft: Draft, token_ids: Sequence[int], path: Sequence[int]) -> Verdict:
    """The verdict of a walk along the nodes `path` that emitted `token_ids`, one more; probabilities stay unsaid."""
    decisions = []
    for depth, (before, token_id) in enumerate(zip((ROOT, *path), token_ids, strict=True)):
        accepted = depth < len(path)
        node = path[depth] if accepted else next(iter(draft.children_of(before)), ROOT)
        outcome = Outcome.ACCEPTED if accepted else Outcome.BONUS if node == ROOT else Outcome.RECOVERED
        drafted = None if node == ROOT else draft.token_ids[node]
        decisions.append(Decision(draft.start + depth, node, drafted, token_id, outcome, None, None))
    return Verdict(tuple(token_ids), tuple(path), tuple(decisions))
