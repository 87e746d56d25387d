"""What one request does in one step: append tokens of its context and, if that reaches its end, run a pass."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

import torch

from draftproof.core import Draft
from draftproof.engine.logprobs import raw_rows, token_logprobs
from draftproof.engine.request import Emitted, Request
from draftproof.errors import RequestError


@dataclass(slots=True)
class Turn:
    """num_context: tokens of the context that this step appends to the slot. num_asked: at most so many are drafted.

    start: entries that the slot holds before. is_pass: the step reaches the end of the context, so that tokens are
    verified and committed. draft, kept: what came of it; kept are the newly committed tokens.
    """

    request: Request
    num_context: int
    num_asked: int = 0
    start: int = field(init=False)
    is_pass: bool = field(init=False)
    draft: Draft = field(init=False)
    kept: list[Emitted] = field(default_factory=list)

    def __post_init__(self) -> None:
        context_length = len(self.request.context_ids)
        self.start = self.request.num_cached
        self.is_pass = self.start + self.num_context == context_length
        self.draft = Draft.empty(context_length)

    @property
    def num_tokens(self) -> int:
        """The most tokens that the target is given for it: what the step's token budget counts."""
        return self.num_context + self.num_asked

    @property
    def appended_ids(self) -> tuple[int, ...]:
        """The tokens that the target appends: of the context, then the draft's."""
        chunk = self.request.context_ids[self.start : self.start + self.num_context]
        return (*chunk, *self.draft.token_ids)

    @property
    def num_rows(self) -> int:
        """How many of the appended tokens, the last ones, need a row of logits."""
        if self.request.wants_prompt_rows:
            return self.num_context + len(self.draft)
        return 1 + len(self.draft) if self.is_pass else 0

    @contextmanager
    def failing_alone(self) -> Iterator[None]:
        """Whatever is raised inside ends this turn's request, and no other."""
        try:
            yield
        except RequestError as error:
            self.request.fail(error)
        except Exception as error:  # a user's processor, a grammar: code that isn't ours runs here
            self.request.fail_with(error)

    def take_prompt_rows(self, logits: torch.Tensor | Exception) -> torch.Tensor:
        """The rows of the pass, after those of the prompt were read, if the request asked for them.

        logits: [num_rows, V]; an error is raised.
        """
        if isinstance(logits, Exception):
            raise logits
        request, num_top = self.request, self.request.params.prompt_logprobs
        if num_top is None or not request.wants_prompt_rows:
            return logits
        # Row i belongs to the token after the chunk's token i. A preempted request has read the first ones before.
        known, end = len(request.prompt_logprobs), min(self.start + self.num_context, len(request.prompt_ids) - 1)
        if end > known:
            rows = list(raw_rows(logits[known - self.start : end - self.start], request.row_params.vocab_size))
            request.prompt_logprobs += token_logprobs(rows, request.prompt_ids[known + 1 : end + 1], num_top)
        return logits[self.num_context - 1 :] if self.is_pass else logits[:0]
