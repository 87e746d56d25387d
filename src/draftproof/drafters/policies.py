"""Which policy chooses how much a request drafts."""

from __future__ import annotations

from typing import TYPE_CHECKING

from draftproof.drafters.anticipating import CuttingNodes
from draftproof.drafters.auto_length import AutoLength
from draftproof.drafters.auto_nodes import AutoNodes
from draftproof.drafters.length import FixedLength, LengthPolicy

if TYPE_CHECKING:
    from draftproof.config import SpeculativeConfig
    from draftproof.verify.base import Verifier


def policy_for(config: SpeculativeConfig, verifier: Verifier) -> LengthPolicy:
    """The policy that requests of `verifier` share.

    Under a replay verifier it reads the clock; otherwise costs come from a table, so that the same seed gives the same
    text. Where the verifier's output can't depend on the draft, a tree may be cut after it was grown,
    which is a type of its own.
    """
    if config.draft_length == "fixed":
        return FixedLength(config.most_drafted)
    replays = verifier.guarantee == "replay"
    if config.topology == "chain":
        return AutoLength(config.most_drafted, use_clock=replays)
    return CuttingNodes(config.most_drafted) if replays else AutoNodes(config.most_drafted, use_clock=False)
