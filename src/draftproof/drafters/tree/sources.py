"""Which source of laws a drafter has."""

from __future__ import annotations

from typing import TYPE_CHECKING, cast

from draftproof.drafters.ngram import NgramDrafter
from draftproof.drafters.suffix import SuffixDrafter
from draftproof.drafters.tree.factorised_source import DepthLaws, FactorisedSource
from draftproof.drafters.tree.lookup_sources import NgramSource, SuffixSource
from draftproof.drafters.tree.source import LawSource
from draftproof.errors import ParameterError

if TYPE_CHECKING:
    from draftproof.drafters.base import Drafter


def source_of(drafter: Drafter) -> LawSource:
    """The source of a drafter's laws: of its block's laws (`depth_laws`), its own (`law_source`), or ours.

    Raises ParameterError for a drafter that offers none.
    """
    if hasattr(drafter, "depth_laws"):
        return FactorisedSource(cast(DepthLaws, drafter))
    own = getattr(drafter, "law_source", None)
    if own is not None:
        made: LawSource = own()
        return made
    if isinstance(drafter, NgramDrafter):
        return NgramSource(drafter)
    if isinstance(drafter, SuffixDrafter):
        return SuffixSource(drafter)
    # The draft model's module loads torch.
    from draftproof.drafters.draft_model import DraftModelDrafter
    from draftproof.drafters.tree.model_source import ModelSource

    if isinstance(drafter, DraftModelDrafter):
        return ModelSource(drafter)
    raise ParameterError(
        "topology", "tree", f"'chain' with the method {drafter.method}", "it has no laws to grow a tree from"
    )
