"""One request while its draft grows."""

from __future__ import annotations

from dataclasses import dataclass, field

import torch

from draftproof.core import Draft, Law
from draftproof.drafters.base import DraftRequest
from draftproof.errors import LawError
from draftproof.grammar import GrammarCursor
from draftproof.sampling import History


@dataclass(slots=True)
class Turn:
    """num_tokens: how long the draft may get. row: in the block's hidden states. state: of a recurrent head.

    hidden, logits: of a chain drafter's newest entry.
    """

    request: DraftRequest
    num_tokens: int
    draft: Draft = field(init=False)
    history: History = field(init=False)
    grammar: GrammarCursor | None = field(init=False)
    row: int = -1
    state: torch.Tensor | None = None
    hidden: torch.Tensor | None = None
    logits: torch.Tensor | None = None

    def __post_init__(self) -> None:
        request = self.request
        self.draft = Draft.empty(len(request.context_ids))
        self.history, self.grammar = request.history, request.grammar

    @property
    def previous_id(self) -> int:
        """The token before the next one."""
        return self.draft.token_ids[-1] if len(self.draft) else self.request.context_ids[-1]

    @property
    def is_done(self) -> bool:
        """True if the draft grows no further."""
        return len(self.draft) >= self.num_tokens

    def take(self, draft: Draft, law: Law) -> None:
        """The draft with one more token, whose processed law was `law`; it ends there if no history can follow."""
        self.draft = draft
        added = draft.token_ids[-1:]
        try:
            self.history = self.history.extended(added, (law,))
        except LawError:
            self.stop()
            return
        self.grammar = None if self.grammar is None else self.grammar.after_all(added)

    def stop(self) -> None:
        """The draft ends here."""
        self.num_tokens = len(self.draft)
