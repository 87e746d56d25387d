"""One step of a batch over fixed buffers: draft, score, verify, commit. On a CUDA device it is one captured graph.

A batch of fewer requests is filled up with copies of its first one, so that few sizes of batches need a graph.

State, numbers for each request: the newest committed token, its position (`starts`, as many as the slot has entries
that count), up to where the drafter's context is cached (`fed`), and the tokens from position fed + 1 on (`recent`).
Each run moves it on and writes a report.
"""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch

from draftproof.drafters.learned.block_drafter import BlockDrafter
from draftproof.drafters.learned.chain_drafter import ChainDrafter
from draftproof.drafters.learned.following import FollowingDrafter
from draftproof.drafters.learned.following_block import FollowingBlock
from draftproof.drafters.learned.following_chain import FollowingChain
from draftproof.engine.ahead.draws import Draws
from draftproof.targets.hf import HFTarget
from draftproof.targets.static.capturing import captured


@dataclass(frozen=True, slots=True)
class Report:
    """What a run did for one request. fault: 0, or what was wrong with the row after the last token."""

    token_ids: tuple[int, ...]
    drafted_ids: tuple[int, ...]
    fault: int


class AheadStep:
    """A step of up to `num_requests` requests that draft `num_drafts` tokens each; slots hold up to `num_keys` entries.

    drafter: None where num_drafts is 0. pool: of the memory of graphs that don't run at the same time.
    """

    def __init__(
        self, target: HFTarget, drafter: BlockDrafter | ChainDrafter | None, draws: Draws, *, num_requests: int,
        num_drafts: int, num_keys: int, pool: Any = None,
    ) -> None:  # fmt: skip
        device = target.device
        self.width, self.draws, self.num_keys = num_drafts + 1, draws, num_keys
        self._forward = target.following(num_requests, self.width, num_keys)
        self._drafter: FollowingDrafter[Any] | None = None
        if drafter is not None and num_drafts:
            sizes = {"num_requests": num_requests, "num_drafts": num_drafts, "num_keys": num_keys}
            if isinstance(drafter, ChainDrafter):
                self._drafter = FollowingChain(drafter, **sizes)
            else:
                self._drafter = FollowingBlock(drafter, **sizes)
        self._state = torch.zeros(3 + self.width, num_requests, dtype=torch.int32, device=device)
        self._newest, self._starts, self._fed = self._state[:3].unbind(0)
        self._recent = self._state[3:].T
        self._num_requests = self._num_real = num_requests
        self._source = torch.arange(num_requests, device=device)
        self._report = torch.zeros(num_requests, 2 + self.width + num_drafts, dtype=torch.int32, device=device)
        self._captures = device.type == "cuda"
        self._graph: Any = None
        self._num_runs = 0
        self._pool = pool
        self._hosts = [torch.zeros(self._report.shape, dtype=torch.int32, pin_memory=self._captures) for _ in range(2)]
        cuda: Any = torch.cuda
        self._copied = [cuda.Event() for _ in range(2)] if self._captures else []
        self._turn = 0
        self._buffers = self.buffers

    @property
    def buffers(self) -> tuple[int, ...]:
        """Where the caches lie that it was made for."""
        return (*self._forward.buffers, *(() if self._drafter is None else self._drafter.buffers))

    @property
    def is_current(self) -> bool:
        """False once a cache has moved: make another."""
        return self._buffers == self.buffers

    def begin(self, slots: Sequence[int], newest: Sequence[int], starts: Sequence[int]) -> None:
        """Requests in these slots, whose contexts but for the newest token are cached, the drafter's included."""
        self.place(slots)
        self._num_real = len(slots)
        self._source.copy_(torch.tensor(self._filled_up(range(self._num_real))))
        num_behind = 0 if self._drafter is None else self._drafter.num_behind
        fed = [start - num_behind for start in starts]
        state = [self._filled_up(values) for values in (newest, starts, fed, newest)]
        self._state[:4].copy_(torch.tensor(state, dtype=torch.int32))

    def place(self, slots: Sequence[int]) -> None:
        """Where the cache has the slots now."""
        slots = self._filled_up(slots)
        self._forward.use(slots)
        if self._drafter is not None:
            self._drafter.use(slots)

    def _filled_up(self, values: Sequence[int]) -> list[int]:
        return [*values, *[values[0]] * (self._num_requests - len(values))]

    @torch.no_grad()
    def launch(self) -> int:
        """Start one run; `read` of what this returns waits for it. At most two may be unread.

        The first run is call by call: a length that is tried once isn't worth a graph.
        """
        if self._captures and self._graph is None and self._num_runs:
            self._capture()
        self._num_runs += 1
        if self._graph is not None:
            self._graph.replay()
        else:
            self._run()
        self._turn ^= 1
        self._hosts[self._turn].copy_(self._report, non_blocking=True)
        if self._copied:
            self._copied[self._turn].record()
        return self._turn

    def read(self, turn: int) -> list[Report]:
        """What the run did."""
        if self._copied:
            self._copied[turn].synchronize()
        reports = []
        for row in self._hosts[turn][: self._num_real].tolist():
            num_accepted, fault = row[:2]
            emitted = row[2 : 2 + num_accepted + (fault == 0)]
            reports.append(Report(tuple(emitted), tuple(row[2 + self.width :]), fault))
        return reports

    def _run(self) -> None:
        # What a copy has computed is nobody's: it goes on from where its request is.
        self._state.copy_(self._state[:, self._source])
        starts = self._starts
        tokens = self._newest[:, None]
        drafts = tokens[:, :0]
        if self._drafter is not None:
            drafts = self._drafter(
                self._newest,
                starts,
                self._fed,
                self._source,
                self._recent,
                lambda logits, first: self.draws.draw(logits, starts, first),
            )
            tokens = torch.cat([tokens, drafts.int()], dim=1)
        logits = self._forward(tokens, starts, self._source)
        emitted, num_accepted, faults = self.draws.verify(logits, drafts, starts)
        self._report[:, 0], self._report[:, 1] = num_accepted, faults
        self._report[:, 2 : 2 + self.width] = emitted
        self._report[:, 2 + self.width :] = drafts
        self._fed.copy_(starts)
        self._recent.copy_(emitted)
        # A faulty row has no token: whatever its request does next is not looked at.
        self._newest.copy_(emitted.gather(1, num_accepted[:, None].long())[:, 0].clamp(min=0))
        starts += num_accepted + 1

    def _capture(self) -> None:
        """A first run has compiled kernels and made workspaces, which a capture must not."""
        try:
            self._graph = captured(self._run, self._pool)
        except torch.OutOfMemoryError:
            raise
        except RuntimeError as error:
            # Code of the model's that waits for the device: call by call it gives the same bits.
            self._captures = False
            reason = str(error).strip().splitlines()[0]
            warnings.warn(f"steps run without a CUDA graph: {reason}", stacklevel=2)
